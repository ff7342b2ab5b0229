#include "unit.h"

#include "base/cleanup.h"
#include "guest/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Its listening socket is of AF_UNIX here; all else is as with vsock. */
struct world {
	struct loop *loop;
	struct ports *ports;
	struct sockaddr_un address;
	socklen_t address_size;
	int listen_fd;
	int server; /* a TCP port that somebody listens on */
	uint16_t port;
};

static int tcp_server(int family, uint16_t *ret_port)
{
	struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
	socklen_t n = sizeof(at);
	if (family == AF_INET)
		((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)&at)->sin6_addr = in6addr_loopback;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (bind(fd, (struct sockaddr *)&at, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) < 0 || listen(fd, 512) < 0) {
		close(fd);
		return -1;
	}
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
	*ret_port = ntohs(((struct sockaddr_in *)&at)->sin_port); /* at the same place in both */
	return fd;
}

static int set_up(void **state)
{
	static struct world w;
	signal(SIGPIPE, SIG_IGN);
	w = (struct world){.loop = loop_new(), .address = {.sun_family = AF_UNIX}};
	w.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(w.listen_fd, (struct sockaddr *)&w.address, sizeof(sa_family_t)), 0);
	w.address_size = sizeof(w.address);
	getsockname(w.listen_fd, (struct sockaddr *)&w.address, &w.address_size);
	assert_int_equal(listen(w.listen_fd, 512), 0);
	w.ports = ports_new(w.loop, w.listen_fd, 0);
	assert_non_null(w.ports);
	w.server = tcp_server(AF_INET, &w.port);
	assert_true(w.server >= 0);
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;
	ports_free(w->ports);
	loop_free(w->loop);
	close(w->listen_fd);
	if (w->server >= 0)
		close(w->server);
	return 0;
}

/* Runs until the descriptor has one of the events. */
static void await(struct world *w, int fd, short events)
{
	struct pollfd p = {.fd = fd, .events = events};
	while (poll(&p, 1, 0) == 0)
		loop_turn(w->loop, 10);
}

static int ask(struct world *w, uint16_t port)
{
	unsigned char asked[2] = {(unsigned char)port, (unsigned char)(port >> 8)};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&w->address, w->address_size), 0);
	assert_int_equal(send(fd, asked, 2, 0), 2);
	return fd;
}

static int answer(struct world *w, int fd)
{
	unsigned char byte;
	await(w, fd, POLLIN);
	assert_int_equal(recv(fd, &byte, 1, 0), 1);
	return byte;
}

static int open_both(struct world *w, int *ret_inner)
{
	int fd = ask(w, w->port);
	assert_int_equal(answer(w, fd), 0);
	await(w, w->server, POLLIN);
	*ret_inner = accept4(w->server, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	assert_true(*ret_inner >= 0);
	return fd;
}

static void passes_bytes_both_ways_and_each_end(void **state)
{
	struct world *w = *state;
	char text[16];
	int inner, outer = open_both(w, &inner);
	assert_int_equal(send(outer, "ping", 4, 0), 4);
	assert_int_equal(shutdown(outer, SHUT_WR), 0);
	await(w, inner, POLLIN);
	assert_int_equal(recv(inner, text, sizeof(text), 0), 4);
	await(w, inner, POLLIN);
	assert_int_equal(recv(inner, text, sizeof(text), 0), 0);
	/* One direction has ended, the other goes on. */
	assert_int_equal(send(inner, "pong", 4, 0), 4);
	await(w, outer, POLLIN);
	assert_int_equal(recv(outer, text, sizeof(text), 0), 4);
	close(inner);
	await(w, outer, POLLIN);
	assert_int_equal(recv(outer, text, sizeof(text), 0), 0);
	close(outer);
}

static void a_port_that_nobody_listens_on_is_refused(void **state)
{
	struct world *w = *state;
	close(steal_fd(&w->server));
	int fd = ask(w, w->port);
	assert_int_equal(answer(w, fd), ECONNREFUSED);
	char byte;
	await(w, fd, POLLIN);
	assert_int_equal(recv(fd, &byte, 1, 0), 0);
	close(fd);
	fd = ask(w, 0);
	assert_int_equal(answer(w, fd), ECONNREFUSED);
	close(fd);
}

static void ipv6_is_tried_behind_ipv4(void **state)
{
	struct world *w = *state;
	uint16_t port;
	cleanup_fd int server = tcp_server(AF_INET6, &port);
	if (server < 0)
		skip(); /* no IPv6 here */
	int fd = ask(w, port);
	assert_int_equal(answer(w, fd), 0);
	close(fd);
}

/* Much more than all buffers hold: whoever writes has to wait until the other reads, and nothing is lost. */
static void one_that_reads_slowly_holds_the_other_up(void **state)
{
	enum { ALL = 16 << 20 };
	struct world *w = *state;
	static unsigned char bytes[65536];
	int inner, outer = open_both(w, &inner);
	size_t sent = 0, got = 0;
	for (unsigned idle = 0; idle < 50;) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (unsigned char)((sent + i) * 7 / 3);
		ssize_t n = send(inner, bytes, MIN(sizeof(bytes), ALL - sent), 0);
		sent += n > 0 ? (size_t)n : 0;
		idle = n > 0 ? 0 : idle + 1;
		loop_turn(w->loop, 1);
		assert_true(sent < ALL);
	}
	while (got < ALL) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (unsigned char)((sent + i) * 7 / 3);
		ssize_t n = sent < ALL ? send(inner, bytes, MIN(sizeof(bytes), ALL - sent), 0) : 0;
		sent += n > 0 ? (size_t)n : 0;
		loop_turn(w->loop, 0);
		while ((n = recv(outer, bytes, sizeof(bytes), 0)) > 0) {
			for (ssize_t i = 0; i < n; i++)
				if (bytes[i] != (unsigned char)((got + (size_t)i) * 7 / 3))
					fail_msg("byte %zu is another", got + (size_t)i);
			got += (size_t)n;
		}
	}
	assert_int_equal(got, ALL);
	close(outer);
	close(inner);
}

static void what_was_said_before_the_end_arrives(void **state)
{
	enum { ALL = 200000 };
	struct world *w = *state;
	static char bytes[ALL];
	int inner, outer = open_both(w, &inner);
	size_t sent = 0, got = 0;
	while (sent < ALL) {
		ssize_t n = send(outer, bytes, ALL - sent, 0);
		sent += n > 0 ? (size_t)n : 0;
		loop_turn(w->loop, 0);
	}
	close(outer); /* wholly, while much is under way */
	for (;;) {
		await(w, inner, POLLIN);
		ssize_t n = recv(inner, bytes, sizeof(bytes), 0);
		if (n == 0)
			break;
		assert_true(n > 0);
		got += (size_t)n;
	}
	assert_int_equal(got, ALL);
	close(inner);
}

static void a_loss_inside_ends_the_other_side(void **state)
{
	struct world *w = *state;
	struct linger now = {.l_onoff = 1};
	char byte;
	int inner, outer = open_both(w, &inner);
	setsockopt(inner, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(inner);
	await(w, outer, POLLIN);
	assert_true(recv(outer, &byte, 1, 0) <= 0);
	close(outer);
}

static void hundreds_at_once(void **state)
{
	enum { N = 400 };
	struct world *w = *state;
	int outer[N], inner[N];
	struct rlimit l;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
	if (l.rlim_max < 4 * N + 64)
		skip(); /* not so many descriptors here */
	for (int i = 0; i < N; i++)
		outer[i] = open_both(w, &inner[i]);
	for (int i = 0; i < N; i++)
		assert_int_equal(send(outer[i], &i, sizeof(i), 0), sizeof(i));
	for (int i = 0; i < N; i++) {
		int got = -1;
		await(w, inner[i], POLLIN);
		assert_int_equal(recv(inner[i], &got, sizeof(got), 0), sizeof(got));
		assert_int_equal(got, i);
	}
	for (int i = 0; i < N; i++) {
		close(outer[i]);
		close(inner[i]);
	}
}

static void one_that_goes_before_it_has_asked_is_forgotten(void **state)
{
	struct world *w = *state;
	for (int i = 0; i < 2000; i++) { /* more than there may be at once */
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(connect(fd, (struct sockaddr *)&w->address, w->address_size), 0);
		if (i % 2)
			assert_int_equal(send(fd, "x", 1, 0), 1);
		close(fd);
		loop_turn(w->loop, 0);
	}
	int inner, outer = open_both(w, &inner);
	close(outer);
	close(inner);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(passes_bytes_both_ways_and_each_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_port_that_nobody_listens_on_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(ipv6_is_tried_behind_ipv4, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_that_reads_slowly_holds_the_other_up, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_was_said_before_the_end_arrives, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_loss_inside_ends_the_other_side, set_up, tear_down),
		cmocka_unit_test_setup_teardown(hundreds_at_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_that_goes_before_it_has_asked_is_forgotten, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
