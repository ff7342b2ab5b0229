#include "world.h"

#include "base/fd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct seen *seen_on_internet;

static void die(const char *what)
{
	perror(what);
	_exit(99);
}

static int status_of(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void enter(int netns)
{
	if (netns >= 0 && setns(netns, CLONE_NEWNET) < 0)
		die("setns");
}

/* Root of a new user namespace whose ids are the host's 1879048192..; the network namespace stays the host's. */
static void become_guest(void)
{
	int ready[2], mapped[2];
	if (pipe(ready) < 0 || pipe(mapped) < 0)
		die("pipe");
	pid_t self = getpid(), helper = fork();
	if (helper == 0) {
		char path[64], byte;
		close(ready[1]);
		if (read(ready[0], &byte, 1) != 1)
			_exit(1);
		const char *const maps[] = {"uid_map", "gid_map"};
		for (int i = 0; i < 2; i++) {
			snprintf(path, sizeof(path), "/proc/%d/%s", self, maps[i]);
			int fd = open(path, O_WRONLY);
			if (write(fd, "0 1879048192 65536", 18) != 18)
				die(path);
			close(fd);
		}
		_exit(0);
	}
	if (unshare(CLONE_NEWUSER) < 0)
		die("unshare user");
	if (write(ready[1], "", 1) != 1 || status_of(helper) != 0)
		die("mapping ids");
	if (setgid(0) < 0 || setuid(0) < 0)
		die("becoming the guest's root");
}

static int run_command(int netns, const char *command, bool guest)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		enter(netns);
		if (guest)
			become_guest();
		int null = open("/dev/null", O_RDWR);
		dup2(null, 0);
		if (!getenv("LOUD")) {
			dup2(null, 1);
			dup2(null, 2);
		}
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	return status_of(pid);
}

int run_in(int netns, const char *command)
{
	return run_command(netns, command, false);
}

int run_as_guest(int netns, const char *command)
{
	return run_command(netns, command, true);
}

void must_in(int netns, const char *command)
{
	if (run_command(netns, command, false) != 0)
		fail_msg("failed: %s", command);
}

void must(const char *format, ...)
{
	char command[1024];
	va_list ap;
	va_start(ap, format);
	vsnprintf(command, sizeof(command), format, ap);
	va_end(ap);
	must_in(-1, command);
}

bool eventually(const char *command)
{
	for (int i = 0; i < 1200; i++) {
		if (run_command(-1, command, false) == 0)
			return true;
		usleep(50000);
	}
	return false;
}

const char *dotted(uint32_t address)
{
	static char ring[16][INET_ADDRSTRLEN];
	static unsigned at;
	struct in_addr a = {htonl(address)};
	char *to = ring[at++ % 16];
	inet_ntop(AF_INET, &a, to, INET_ADDRSTRLEN);
	return to;
}

/* Services */

static void answer_stream(int listener)
{
	struct sockaddr_in peer;
	socklen_t n = sizeof(peer);
	int fd = accept4(listener, (struct sockaddr *)&peer, &n, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	const char *text = dotted(ntohl(peer.sin_addr.s_addr));
	ssize_t r = write(fd, text, strlen(text));
	(void)r;
	close(fd);
}

/* From the address that was asked, which on a host with several is not the default. */
static void answer_datagram(int fd)
{
	struct sockaddr_in peer;
	char buffer[2048];
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
	} control;
	struct iovec iov = {buffer, sizeof(buffer)};
	struct msghdr m = {&peer, sizeof(peer), &iov, 1, control.bytes, sizeof(control.bytes), 0};
	if (recvmsg(fd, &m, 0) < 0)
		return;
	seen_on_internet->last_source = ntohl(peer.sin_addr.s_addr);
	seen_on_internet->datagrams++;
	const char *text = dotted(ntohl(peer.sin_addr.s_addr));
	iov = (struct iovec){(void *)(uintptr_t)text, strlen(text)};
	m.msg_flags = 0;
	struct in_pktinfo *info = (struct in_pktinfo *)(void *)CMSG_DATA(&control.align);
	info->ipi_ifindex = 0;
	info->ipi_spec_dst = info->ipi_addr;
	sendmsg(fd, &m, 0);
}

static void serve(uint16_t port, int ready)
{
	int one = 1, tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(tcp, (struct sockaddr *)&any, sizeof(any)) < 0 || listen(tcp, 128) < 0 ||
		setsockopt(udp, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one)) < 0 || bind(udp, (struct sockaddr *)&any, sizeof(any)) < 0)
		die("service");
	if (write(ready, "", 1) != 1)
		die("service");
	close(ready);
	for (;;) {
		struct pollfd p[] = {{.fd = tcp, .events = POLLIN}, {.fd = udp, .events = POLLIN}};
		if (poll(p, 2, -1) < 0)
			die("poll");
		if (p[0].revents)
			answer_stream(tcp);
		if (p[1].revents)
			answer_datagram(udp);
	}
}

static void stream(uint16_t port, int ready)
{
	enum { MOST = 64 };
	int one = 1, tcp = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), fds[MOST], n = 0;
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
	signal(SIGPIPE, SIG_IGN);
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(tcp, (struct sockaddr *)&any, sizeof(any)) < 0 || listen(tcp, 128) < 0 || write(ready, "", 1) != 1)
		die("stream");
	close(ready);
	for (;;) {
		int fd = n < MOST ? accept4(tcp, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
		if (fd >= 0)
			fds[n++] = fd;
		for (int i = 0; i < n; i++)
			send(fds[i], "x", 1, MSG_NOSIGNAL);
		usleep(10000);
	}
}

static void wait_ready(int fd)
{
	char byte;
	if (read(fd, &byte, 1) != 1)
		fail_msg("a process of the test's world did not start");
	close(fd);
}

static pid_t start(int netns, uint16_t port, void (*run)(uint16_t port, int ready))
{
	int ready[2];
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		enter(netns);
		/* Sockets of the slots above all: a copy keeps them bound. */
		fd_close_all_except(3, &ready[1], 1);
		run(port, ready[1]);
	}
	close(ready[1]);
	wait_ready(ready[0]);
	return pid;
}

pid_t start_service(int netns, uint16_t port)
{
	return start(netns, port, serve);
}

pid_t start_stream(int netns, uint16_t port)
{
	return start(netns, port, stream);
}

void stop_process(pid_t pid)
{
	if (pid <= 0)
		return;
	kill(pid, SIGKILL);
	status_of(pid);
}

/* Probes */

static int begin(const struct target *t)
{
	int fd = socket(AF_INET, (t->udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(t->port)};
	inet_pton(AF_INET, t->address, &to.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)
		return -errno;
	if (t->udp && send(fd, "?", 1, 0) < 0)
		return -errno;
	return fd;
}

/* Longer than an answer takes on a loaded machine; what is dropped costs it whole. */
enum { SILENCE_MS = 5000 };

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void collect(int *fds, struct outcome *out, size_t n)
{
	int64_t end = now_ms() + SILENCE_MS;
	for (;;) {
		struct pollfd p[64];
		size_t open = 0;
		for (size_t i = 0; i < n; i++) {
			p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
			open += fds[i] >= 0;
		}
		int64_t left = end - now_ms();
		if (!open || left <= 0 || poll(p, n, (int)left) <= 0)
			return;
		for (size_t i = 0; i < n; i++) {
			if (fds[i] < 0 || !p[i].revents)
				continue;
			ssize_t r = recv(fds[i], out[i].answer, sizeof(out[i].answer) - 1, 0);
			out[i].result = r > 0 ? 0 : r == 0 ? -EPIPE : -errno;
			fds[i] = -1;
		}
	}
}

void probe(int netns, const struct target *targets, struct outcome *ret, size_t n)
{
	struct outcome *shared = mmap(NULL, n * sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(n <= 64 && shared != MAP_FAILED);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		int fds[64];
		enter(netns);
		become_guest();
		for (size_t i = 0; i < n; i++) {
			fds[i] = begin(&targets[i]);
			shared[i].result = fds[i] < 0 ? fds[i] : -ETIMEDOUT;
		}
		collect(fds, shared, n);
		_exit(0);
	}
	assert_int_equal(status_of(pid), 0);
	memcpy(ret, shared, n * sizeof(*shared));
	munmap(shared, n * sizeof(*shared));
}

int probe_one(int netns, const char *address, uint16_t port, bool udp, char *ret_answer)
{
	struct target t = {address, port, udp};
	struct outcome o;
	probe(netns, &t, &o, 1);
	if (ret_answer)
		strcpy(ret_answer, o.answer);
	return o.result;
}

/* The world */

static void new_place(struct place *p)
{
	int ready[2];
	char path[64];
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	p->pid = fork();
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWNET) < 0 || write(ready[1], "", 1) != 1)
			die("place");
		for (;;)
			pause();
	}
	close(ready[1]);
	wait_ready(ready[0]);
	snprintf(path, sizeof(path), "/proc/%d/ns/net", p->pid);
	p->netns = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(p->netns >= 0);
}

static void skip_all(const char *why)
{
	fprintf(stderr, "skipped: %s\n", why);
	exit(77);
}

void world_new(struct world *w)
{
	if (geteuid() != 0)
		skip_all("needs root");
	if (system("ip -V >/dev/null 2>&1 && nft -v >/dev/null 2>&1") != 0)
		skip_all("needs the programs ip and nft");
	*w = (struct world){0};
	/* Mounts too: sysfs and /proc/sys are shown by namespace. */
	if (unshare(CLONE_NEWNET) < 0)
		skip_all("cannot make network namespaces here");
	seen_on_internet = mmap(NULL, sizeof(*seen_on_internet), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	new_place(&w->internet);
	new_place(&w->lan);
	must("ip link set lo up");
	must("ip link add up0 type veth peer name eth0 netns %d", w->internet.pid);
	must("ip addr add " HOST_PUBLIC "/24 dev up0 && ip link set up0 up");
	must_in(w->internet.netns, "ip link set lo up && ip addr add " INTERNET_SERVER "/32 dev lo && ip addr add " INTERNET_ROUTER "/24 dev eth0 && ip link set eth0 up");
	must("ip route add default via " INTERNET_ROUTER);
	must("ip link add lan0 type veth peer name eth0 netns %d", w->lan.pid);
	must("ip addr add " HOST_LAN "/24 dev lan0 && ip link set lan0 up");
	must_in(w->lan.netns, "ip link set lo up && ip addr add " METADATA "/32 dev lo && ip addr add " LAN_OTHER "/32 dev lo && ip addr add " LAN_SERVER
		"/24 dev eth0 && ip link set eth0 up && ip route add default via " HOST_LAN);
	must("ip route add " METADATA " via " LAN_SERVER " && ip route add " LAN_OTHER " via " LAN_SERVER);
	w->host.netns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

void world_free(struct world *w)
{
	struct place *places[] = {&w->internet, &w->lan};
	for (int i = 0; i < 2; i++) {
		close(places[i]->netns);
		stop_process(places[i]->pid);
	}
	close(w->host.netns);
}
