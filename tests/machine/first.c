/*
 * The first process of a test machine (rdinit=/first): it leaves a child, which plays the node over the loopback of vsock, and becomes cubicle-init. The child says on the console what it
 * sees, a line "first: ..." each; "first: done" at the end.
 */
#include "base/cleanup.h"
#include "io/chan.h"

#include <errno.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>

static char storage[MSG_MAX];
static uint64_t last_request;

#define say(...) (dprintf(1, "first: " __VA_ARGS__), dprintf(1, "\n"))

static _Noreturn void end(void)
{
	tcdrain(1);
	reboot(RB_POWER_OFF);
	_exit(0);
}

static int connect_to(int type, unsigned port)
{
	for (int i = 0; i < 1200; i++) {
		struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_LOCAL, .svm_port = port};
		int fd = socket(AF_VSOCK, type | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
			return fd;
		if (fd >= 0)
			close(fd);
		usleep(100000);
	}
	say("vsock port %u: %s", port, strerror(errno));
	end();
}

static void send_it(int fd, enum msg_id type, const void *m)
{
	struct error err = {0};
	if (msg_send_fd(fd, type, m, ++last_request, NULL, 0, &err) < 0)
		say("sending: %s", err.message);
}

static enum msg_id receive(int fd, union msg_any *any)
{
	struct msg_header h;
	struct error err = {0};
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, 60000) <= 0 || msg_receive_fd(fd, storage, &h, any, NULL, NULL, &err) < 0) {
		say("no answer: %s", err.message);
		end();
	}
	say("%s%s%.*s", msg_type(h.type)->name, h.type == MSG_ID_error ? ": " : "", h.type == MSG_ID_error ? (int)any->error.message.n : 0, any->error.message.p);
	return h.type;
}

static void ask(int fd, enum msg_id type, const void *m)
{
	union msg_any any;
	say("asks %s", msg_type(type)->name);
	send_it(fd, type, m);
	receive(fd, &any);
}

/* A request through the passing on of connections: true when the answer holds the text. */
static bool get_quietly(uint16_t port, const char *path, const char *text, char answer[4096])
{
	unsigned char asked[2] = {(unsigned char)port, (unsigned char)(port >> 8)}, byte = 255;
	cleanup_fd int fd = connect_to(SOCK_STREAM, 2);
	size_t n = 0;
	if (send(fd, asked, 2, 0) == 2 && recv(fd, &byte, 1, 0) == 1 && !byte) {
		dprintf(fd, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
		for (ssize_t r; n < 4095 && (r = recv(fd, answer + n, 4095 - n, 0)) > 0;)
			n += (size_t)r;
	} else {
		n = (size_t)snprintf(answer, 4096, "refused with %u", byte);
	}
	answer[n] = '\0';
	return strstr(answer, text);
}

static void get(uint16_t port, const char *path)
{
	char answer[4096];
	get_quietly(port, path, "", answer);
	const char *body = strstr(answer, "\r\n\r\n");
	say("port %u, GET %s: %.16s%s%s", port, path, answer, body && body[4] ? ", " : "", body ? body + 4 : "");
}

/* Until the service has written it. */
static void await_output(const char *text)
{
	char answer[4096];
	for (int i = 0; i < 120 && !get_quietly(49983, "/services", text, answer); i++)
		sleep(1);
}

static struct buf services_of(const char *script)
{
	struct buf arguments = BUF_INIT, service = BUF_INIT, services = BUF_INIT;
	msg_list_add(&arguments, STR("/bin/sh"));
	msg_list_add(&arguments, STR("-c"));
	msg_list_add(&arguments, str_of(script));
	const struct str fields[] = {STR("look"), STR("root"), STR("")};
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
		msg_list_add(&service, fields[i]);
	struct str rest = buf_str(&arguments), item;
	while (msg_list_next(&rest, &item))
		msg_list_add(&service, item);
	msg_list_add(&services, buf_str(&service));
	return services;
}

static void claim(int fd, const char *hostname, const char *script)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	struct buf services = services_of(script);
	struct msg_claim m = {
		.sandbox = STR("ione"),
		.template = STR("tone"),
		.hostname = str_of(hostname),
		.realtime = INT64_C(1700000000) * 1000000000,
		.user = STR("root"),
		.boot_id = STR("7b0b6a3e-0000-4000-8000-000000000000"),
		.machine_id = STR("00112233445566778899aabbccddeeff"),
		.nameserver = STR("10.0.2.3"),
		.seccomp = STR(""),
	};
	msg_set(&m, claim, address, STR("10.0.2.15"));
	if (*script)
		msg_set(&m, claim, services, (struct msg_list){buf_str(&services)});
	ask(fd, MSG_ID_claim, &m);
	buf_done(&services);
}

static int greet(void)
{
	union msg_any any;
	int fd = connect_to(SOCK_SEQPACKET, 1);
	send_it(fd, MSG_ID_hello, &(struct msg_hello){.version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION});
	receive(fd, &any);
	say("claimed: %d", any.init_state.claimed);
	if (!any.init_state.claimed) {
		receive(fd, &any); /* spawner */
		ask(fd, MSG_ID_attached, &(struct msg_attached){0});
	}
	return fd;
}

static _Noreturn void play_node(void)
{
	static const char script[] = ". /look >/dev/console 2>&1; echo looked; sleep 1000";
	/* A node that goes before it has claimed. */
	close(greet());
	int fd = greet();
	claim(fd, "one", script);
	get(49983, "/health");
	get(49983, "/metrics");
	get(1, "/");
	await_output("looked");
	ask(fd, MSG_ID_sync, &(struct msg_sync){0});
	ask(fd, MSG_ID_quiesce, &(struct msg_quiesce){.on = true});
	ask(fd, MSG_ID_quiesce, &(struct msg_quiesce){.on = false});
	/* A node that is ended while it copies: the next finds a disk that is not frozen. */
	ask(fd, MSG_ID_quiesce, &(struct msg_quiesce){.on = true});
	close(fd);
	fd = greet();
	ask(fd, MSG_ID_quiesce, &(struct msg_quiesce){.on = true});
	ask(fd, MSG_ID_quiesce, &(struct msg_quiesce){.on = false});
	ask(fd, MSG_ID_trim, &(struct msg_trim){0});
	send_it(fd, MSG_ID_still, &(struct msg_still){.on = true});
	ask(fd, MSG_ID_sync, &(struct msg_sync){0});
	send_it(fd, MSG_ID_still, &(struct msg_still){.on = false});
	claim(fd, "two", "");
	close(fd);
	fd = greet();
	ask(fd, MSG_ID_ping, &(struct msg_ping){0});
	get(49983, "/services");
	say("done");
	end();
}

int main(void)
{
	if (fork() == 0)
		play_node();
	char *const argv[] = {"/init", NULL};
	execv(argv[0], argv);
	return 1;
}
