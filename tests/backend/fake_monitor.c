/*
 * Stands in for cubicle-vmm and for the guest behind it, without a KVM: what node gets to see of both. Words in its name (the sandbox's id: "m-word-word") say how it
 * misbehaves. Its console tells what it was asked. Static, because it begins in an empty tree.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/chan.h"
#include "vmm/args.h"
#include "vmm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

enum kind { ADMIN_LISTENER, CONTROL_LISTENER, ADMIN, CONTROL, STREAM, HELD };
enum { PEERS_MAX = 1024, LATE_US = 300000, DIE_MS = 200, LIFE_SECONDS = 300 /* also of one whose test has failed */ };

/* Ports that are special inside; at all others everything that comes is sent back. */
enum { PORT_REFUSED = 1, PORT_HANGS, PORT_CLOSES, PORT_TIMES_OUT, PORT_ODD, PORT_EARLY_DATA };

struct peer {
	int fd;
	enum kind kind;
	bool asked; /* of STREAM: its port was read */
};

static struct vmm_args args;
static struct peer peers[PEERS_MAX];
static size_t n_peers;
static bool parked, claimed, dropped;
static int64_t dies_at; /* 0 = not */
static char storage[MSG_MAX];

static bool has(const char *word)
{
	char name[VMM_NAME_MAX + 3], wanted[40];
	snprintf(name, sizeof(name), "%s-", args.name);
	snprintf(wanted, sizeof(wanted), "-%s-", word);
	return strstr(name, wanted);
}

static void say(const char *text)
{
	char line[200];
	int n = snprintf(line, sizeof(line), "%s\r\n", text);
	fd_write_all(args.machine.console, line, (size_t)n);
}

static _Noreturn void die(int status)
{
	say("last words \x1b[2J of the guest");
	_exit(status);
}

/* "word0", "word10": ends with that. */
static void may_die(const char *word)
{
	static const int statuses[] = {0, 10, 11, 12, 13};
	char text[32];
	for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
		snprintf(text, sizeof(text), "%s%d", word, statuses[i]);
		if (has(text))
			die(statuses[i]);
	}
}

static void add(int fd, enum kind kind)
{
	if (fd < 0 || n_peers == PEERS_MAX) {
		if (fd >= 0)
			close(fd);
		return;
	}
	fd_set_nonblock(fd, true);
	peers[n_peers++] = (struct peer){.fd = fd, .kind = kind};
}

static void drop(struct peer *p)
{
	close(p->fd);
	p->fd = -1;
}

static void drop_all(enum kind kind)
{
	for (size_t i = 0; i < n_peers; i++)
		if (peers[i].fd >= 0 && peers[i].kind == kind)
			drop(&peers[i]);
}

static void put(int conn, enum msg_id id, const void *m, uint64_t request)
{
	msg_send_fd(conn, id, m, request, NULL, 0, NULL);
}

static void put_noise(int conn)
{
	char noise[600];
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)rand();
	for (size_t n = 1; n <= sizeof(noise); n *= 2)
		send(conn, noise, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void answer(int conn, uint64_t request, bool good)
{
	if (has("late"))
		usleep(LATE_US);
	if (has("wrongid"))
		request += 1000;
	if (good)
		put(conn, MSG_ID_ok, &(struct msg_ok){0}, request);
	else
		put(conn, MSG_ID_error, &(struct msg_error){.code = -ETIMEDOUT, .status = 999, .message = STR("it was \x1b[2J over")}, request);
	if (has("twice"))
		put(conn, MSG_ID_ok, &(struct msg_ok){0}, request);
}

/* what: "sync", "on", "off", "trim" */
static void do_chore(int conn, const char *what, uint64_t request)
{
	char word[16];
	say(what);
	may_die(what);
	snprintf(word, sizeof(word), "%smute", what);
	if (has(word))
		return;
	snprintf(word, sizeof(word), "%serr", what);
	answer(conn, request, !has(word));
}

static void on_hello(struct peer *p, uint64_t request)
{
	struct msg_init_state m = {.claimed = claimed, .version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION};
	may_die("boot");
	if (has("bootclose")) {
		drop(p);
		return;
	}
	if (has("bootnoise"))
		put_noise(p->fd);
	if (has("bootwrong"))
		put(p->fd, MSG_ID_claimed, &(struct msg_claimed){0}, 0);
	if (has("booterr"))
		put(p->fd, MSG_ID_error, &(struct msg_error){.code = -1, .status = 999, .message = STR("no\x1b[2J disk")}, 0);
	msg_set(&m, init_state, still, true);
	put(p->fd, MSG_ID_init_state, &m, request);
	if (!has("half"))
		put(p->fd, MSG_ID_spawner, &(struct msg_spawner){0}, 0);
}

static void on_claim(struct peer *p, uint64_t request)
{
	static const char *const ends[] = {"die0", "die10", "die11", "die12", "die13"};
	claimed = true;
	if (has("noclaim"))
		return;
	put(p->fd, MSG_ID_claimed, &(struct msg_claimed){0}, request);
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
		if (has(ends[i]))
			dies_at = clock_monotonic() + DIE_MS * NS_PER_MS;
	if (has("noise"))
		put_noise(p->fd);
	if (has("dropadm"))
		drop_all(ADMIN);
	if (has("closectl"))
		drop(p);
}

static void on_control(struct peer *p)
{
	struct msg_header h;
	union msg_any m;
	int r = msg_receive_fd(p->fd, storage, &h, &m, NULL, NULL, NULL);
	if (r == -EAGAIN)
		return;
	if (r < 0) {
		drop(p);
		return;
	}
	switch (h.type) {
	case MSG_ID_hello:
		on_hello(p, h.request);
		break;
	case MSG_ID_attached:
		if (!parked)
			put(p->fd, MSG_ID_parked, &(struct msg_parked){0}, 0);
		parked = true;
		break;
	case MSG_ID_claim:
		on_claim(p, h.request);
		break;
	case MSG_ID_sync:
		do_chore(p->fd, "sync", h.request);
		break;
	case MSG_ID_trim:
		do_chore(p->fd, "trim", h.request);
		break;
	case MSG_ID_quiesce:
		do_chore(p->fd, m.quiesce.on ? "on" : "off", h.request);
		break;
	case MSG_ID_still:
		say(m.still.on ? "still" : "moves");
		break;
	case MSG_ID_log_read:
		if (!has("logmute"))
			put(p->fd, MSG_ID_log_page, &(struct msg_log_page){.entries = STR("{}\n"), .next = 1}, h.request);
		break;
	case MSG_ID_assign:
		may_die("assign");
		put(p->fd, MSG_ID_assigned, &(struct msg_assigned){.ready = true}, h.request + (has("wrongid") ? 1000 : 0));
		break;
	default:
		say("what?");
	}
}

static void on_admin(struct peer *p)
{
	struct msg_header h;
	union msg_any m;
	int fds[MSG_MAX_FDS];
	size_t n = 0;
	int r = msg_receive_fd(p->fd, storage, &h, &m, fds, &n, NULL);
	if (r == -EAGAIN)
		return;
	if (r < 0) {
		drop(p);
		return;
	}
	if (h.type == MSG_ID_vm_open && n == 1) {
		add(fds[0], STREAM);
		peers[n_peers - 1].asked = m.vm_open.port == VSOCK_PORT_ENVD; /* nothing is asked or answered there */
	}
	put(p->fd, MSG_ID_ok, &(struct msg_ok){0}, h.request);
	if (has("admnoise"))
		put_noise(p->fd);
	if (has("closeadm") || (has("onceadm") && !dropped))
		drop(p);
	dropped = true;
}

static void answer_port(struct peer *p, unsigned char code)
{
	send(p->fd, &code, 1, MSG_NOSIGNAL);
}

static void on_port(struct peer *p)
{
	unsigned char head[2];
	if (recv(p->fd, head, 2, 0) != 2) {
		drop(p);
		return;
	}
	p->asked = true;
	switch (head[0] | head[1] << 8) {
	case PORT_REFUSED:
		answer_port(p, ECONNREFUSED);
		drop(p);
		break;
	case PORT_HANGS:
		p->kind = HELD;
		break;
	case PORT_CLOSES:
		drop(p);
		break;
	case PORT_TIMES_OUT:
		answer_port(p, ETIMEDOUT);
		p->kind = HELD;
		break;
	case PORT_ODD:
		answer_port(p, 255);
		p->kind = HELD;
		break;
	case PORT_EARLY_DATA:
		send(p->fd, "\0hello", 6, MSG_NOSIGNAL);
		break;
	default:
		answer_port(p, 0);
	}
}

static void on_stream(struct peer *p)
{
	char bytes[4096];
	if (!p->asked) {
		on_port(p);
		return;
	}
	ssize_t n = recv(p->fd, bytes, sizeof(bytes), 0);
	if (n > 0)
		send(p->fd, bytes, (size_t)n, MSG_NOSIGNAL);
	else if (n == 0 || errno != EAGAIN)
		drop(p);
}

static void on_ready(struct peer *p)
{
	switch (p->kind) {
	case ADMIN_LISTENER:
		if (claimed) /* before, its last words are looked at */
			say("admin");
		add(accept4(p->fd, NULL, NULL, SOCK_CLOEXEC), ADMIN);
		if (claimed && has("dropadm"))
			drop(&peers[n_peers - 1]);
		break;
	case CONTROL_LISTENER:
		/* As inside: what was connected before is not heard of any more. */
		add(accept4(p->fd, NULL, NULL, SOCK_CLOEXEC), CONTROL);
		break;
	case ADMIN:
		on_admin(p);
		break;
	case CONTROL:
		on_control(p);
		break;
	case STREAM:
	case HELD:
		on_stream(p);
	}
}

static bool is_heard(const struct peer *p)
{
	switch (p->kind) {
	case CONTROL_LISTENER:
		return !has("mute");
	case CONTROL:
		return !(claimed && has("ctldeaf"));
	case ADMIN:
		return !has("admdeaf");
	case HELD:
		return false;
	case ADMIN_LISTENER:
	case STREAM:
		break;
	}
	return true;
}

static void flood(void)
{
	for (size_t i = 0; i < n_peers; i++) {
		if (peers[i].fd < 0 || (peers[i].kind != CONTROL && peers[i].kind != ADMIN))
			continue;
		for (uint64_t n = 0; n < 200; n++) {
			put(peers[i].fd, MSG_ID_ok, &(struct msg_ok){0}, n);
			if (peers[i].kind == CONTROL)
				put(peers[i].fd, MSG_ID_spawner, &(struct msg_spawner){0}, n);
		}
	}
}

static void turn(void)
{
	struct pollfd q[PEERS_MAX];
	bool floods = claimed && has("flood");
	size_t n = 0;
	for (size_t i = 0; i < n_peers; i++)
		if (peers[i].fd >= 0)
			peers[n++] = peers[i];
	n_peers = n;
	for (size_t i = 0; i < n; i++)
		q[i] = (struct pollfd){.fd = is_heard(&peers[i]) ? peers[i].fd : -1, .events = POLLIN};
	poll(q, n, floods ? 1 : 50);
	for (size_t i = 0; i < n; i++)
		if (q[i].revents && peers[i].fd >= 0)
			on_ready(&peers[i]);
	if (floods)
		flood();
	if (dies_at && clock_monotonic() > dies_at)
		may_die("die");
	if (claimed && has("closelisteners")) {
		drop_all(ADMIN_LISTENER);
		drop_all(CONTROL_LISTENER);
	}
}

int main(int argc, char **argv)
{
	struct error err = {0};
	if (args_parse(argc, argv, &args, &err) < 0) {
		fprintf(stderr, "%s\n", err.message);
		return 13;
	}
	say("the kernel boots");
	if (has("quick")) {
		fprintf(stderr, "no KVM\n");
		die(13);
	}
	if (has("lingers") && fork() == 0)
		for (;;)
			pause();
	add(args.admin, ADMIN_LISTENER);
	add(args.machine.control, CONTROL_LISTENER);
	for (int64_t end = clock_monotonic() + LIFE_SECONDS * NS_PER_S; clock_monotonic() < end;)
		turn();
	return 1;
}
