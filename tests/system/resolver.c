#include "resolver.h"
#include "world.h"

#include "base/fd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

size_t build_query(unsigned char *to, uint16_t id, const char *name, unsigned edns)
{
	size_t n = 12;
	memset(to, 0, 12);
	to[0] = (unsigned char)(id >> 8);
	to[1] = (unsigned char)id;
	to[2] = 1;
	to[5] = 1;
	to[11] = edns != 0;
	while (*name) {
		size_t label = strcspn(name, ".");
		to[n++] = (unsigned char)label;
		memcpy(to + n, name, label);
		n += label;
		name += label + (name[label] == '.');
	}
	memcpy(to + n, "\0\0\1\0\1", 5);
	n += 5;
	if (edns) {
		const unsigned char opt[11] = {0, 0, 41, (unsigned char)(edns >> 8), (unsigned char)edns};
		memcpy(to + n, opt, sizeof(opt));
		n += sizeof(opt);
	}
	return n;
}

/* The resolver */

static size_t question_end(const unsigned char *m)
{
	size_t n = 12;
	while (m[n])
		n += m[n] + 1u;
	return n + 5;
}

static size_t add_record(unsigned char *m, size_t n, unsigned type, const void *data, size_t size)
{
	const unsigned char head[] = {0xc0, 12, 0, (unsigned char)type, 0, 1, 0, 0, 0, 60, (unsigned char)(size >> 8), (unsigned char)size};
	memcpy(m + n, head, sizeof(head));
	memcpy(m + n + sizeof(head), data, size);
	m[7]++;
	return n + sizeof(head) + size;
}

static bool named(const unsigned char *m, const char *label)
{
	return m[12] == strlen(label) && memcmp(m + 13, label, m[12]) == 0;
}

/* Turns the query into its answer: the new length, 0 = say nothing. */
static size_t answer(unsigned char *m, bool tcp)
{
	static const unsigned char address[4] = {198, 51, 100, 77}, filler[250];
	size_t n = question_end(m);
	m[2] = 0x81;
	m[3] = 0x80;
	m[11] = 0;
	if (named(m, "silent"))
		return 0;
	if (named(m, "nx") || named(m, "fail")) {
		m[3] |= named(m, "nx") ? 3 : 2;
		return n;
	}
	if (named(m, "big") && !tcp) {
		m[2] |= 2;
		return n;
	}
	for (int i = 0; (named(m, "big") && i < 16) || (named(m, "long") && i < 4); i++)
		n = add_record(m, n, 16, filler, sizeof(filler));
	return m[7] ? n : add_record(m, n, 1, address, sizeof(address));
}

static void send_lies(int fd, const unsigned char *m, size_t n, const struct sockaddr_in *to)
{
	unsigned char lie[8192];
	memcpy(lie, m, n);
	lie[1] ^= 1; /* another id */
	sendto(fd, lie, n, 0, (const struct sockaddr *)to, sizeof(*to));
	memcpy(lie, m, n);
	lie[14] ^= 1; /* another name */
	sendto(fd, lie, n, 0, (const struct sockaddr *)to, sizeof(*to));
	sendto(fd, lie, 5, 0, (const struct sockaddr *)to, sizeof(*to));
	usleep(50000);
}

static void serve_datagram(int fd)
{
	unsigned char m[8192];
	struct sockaddr_in from;
	socklen_t from_n = sizeof(from);
	if (recvfrom(fd, m, sizeof(m), 0, (struct sockaddr *)&from, &from_n) < 12)
		return;
	size_t n = answer(m, false);
	if (n && named(m, "evil"))
		send_lies(fd, m, n, &from);
	if (n)
		sendto(fd, m, n, 0, (struct sockaddr *)&from, sizeof(from));
}

static void serve_stream(int listener)
{
	unsigned char m[8192];
	int fd = accept(listener, NULL, NULL);
	if (recv(fd, m, 2, MSG_WAITALL) == 2 && recv(fd, m + 2, (size_t)(m[0] << 8 | m[1]), MSG_WAITALL) > 12) {
		size_t n = answer(m + 2, true);
		m[0] = (unsigned char)(n >> 8);
		m[1] = (unsigned char)n;
		/* In two parts: whoever reads must put them together. */
		if (n && send(fd, m, 1, MSG_NOSIGNAL) == 1)
			send(fd, m + 1, n + 1, MSG_NOSIGNAL);
	}
	close(fd);
}

pid_t start_resolver(int netns, const char *address)
{
	int ready[2];
	char byte;
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(53)};
		inet_pton(AF_INET, address, &at.sin_addr);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (setns(netns, CLONE_NEWNET) < 0)
			_exit(1);
		/* Sockets of the slots above all: a copy keeps them bound. */
		fd_close_all_except(3, &ready[1], 1);
		int udp = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(udp, (struct sockaddr *)&at, sizeof(at)) < 0 || bind(tcp, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(tcp, 64) < 0 ||
			write(ready[1], "", 1) != 1)
			_exit(2);
		for (;;) {
			struct pollfd p[] = {{.fd = udp, .events = POLLIN}, {.fd = tcp, .events = POLLIN}};
			if (poll(p, 2, -1) < 0)
				_exit(3);
			if (p[0].revents)
				serve_datagram(udp);
			if (p[1].revents)
				serve_stream(tcp);
		}
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return pid;
}

/* The client */

int name_socket(int netns, bool tcp)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(53)};
	inet_pton(AF_INET, "127.0.0.53", &at.sin_addr);
	int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	assert_int_equal(setns(netns, CLONE_NEWNET), 0);
	int fd = socket(AF_INET, (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	close(home);
	return fd;
}

static ssize_t read_some(int fd, unsigned char *to, size_t size, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int r = poll(&p, 1, ms);
	if (r <= 0)
		return r < 0 ? -errno : -ETIMEDOUT;
	ssize_t n = recv(fd, to, size, 0);
	return n < 0 ? -errno : n;
}

ssize_t read_answer(int fd, bool tcp, unsigned char *to, size_t size, int ms)
{
	if (!tcp)
		return read_some(fd, to, size, ms);
	unsigned char length[2];
	size_t have = 0, want = 2;
	while (have < want) {
		ssize_t n = read_some(fd, have < 2 ? length + have : to + have - 2, want - have, ms);
		if (n <= 0)
			return n;
		have += (size_t)n;
		if (have == 2)
			want = 2 + (size_t)(length[0] << 8 | length[1]);
		assert_true(want - 2 <= size);
	}
	return (ssize_t)have - 2;
}

static struct reply resolve_once(int netns, const char *name, bool tcp, unsigned edns)
{
	static uint16_t last_id = 100;
	static unsigned char m[65536];
	unsigned char q[2 + 512];
	uint16_t id = ++last_id;
	size_t n = build_query(q + 2, id, name, edns);
	q[0] = 0;
	q[1] = (unsigned char)n;
	int fd = name_socket(netns, tcp);
	ssize_t sent = tcp ? send(fd, q, n + 2, MSG_NOSIGNAL) : send(fd, q + 2, n, MSG_NOSIGNAL);
	ssize_t got = sent < 0 ? -errno : read_answer(fd, tcp, m, sizeof(m), 10000);
	close(fd);
	if (got < 12)
		return (struct reply){.error = got < 0 ? (int)got : -EPIPE};
	return (struct reply){.rcode = m[3] & 15, .answers = (unsigned)(m[6] << 8 | m[7]), .truncated = m[2] & 2, .same_id = (m[0] << 8 | m[1]) == id, .size = (size_t)got};
}

/* As the resolvers of glibc and musl do: asks again when nothing comes, or the connection goes with the socket that took it. */
struct reply resolve(int netns, const char *name, bool tcp, unsigned edns)
{
	struct reply r = {0};
	for (int i = 0; i < 3; i++) {
		r = resolve_once(netns, name, tcp, edns);
		if (!r.error)
			break;
	}
	return r;
}
