/* Connections into network namespaces. */
#include "world.h"

#include "base/clock.h"
#include "io/loop.h"
#include "network/slot.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GUEST_PORT = 9000 };

static struct world world;
static struct instance instance;
static struct network *network;
static struct net_slot a, b;
static struct loop *loop;
static struct opener *opener;

static int set_up(void **state)
{
	struct options o;
	struct error err = {0};
	world_new(&world);
	assert_int_equal(options_init(&o), 0);
	assert_int_equal(options_set(&o, STR("state.dir"), STR("/tmp/cubicle-system-opener"), "test", NULL), 0);
	instance_of(&o, &instance);
	options_done(&o);
	if (network_new(&instance, "100.96.0.0/16", false, PRIVATE_OPEN, &network, &err) < 0 || network_slot_create(network, 0, &a, &err) < 0 ||
		network_slot_create(network, 1, &b, &err) < 0)
		fail_msg("%s", err.message);
	loop = loop_new();
	opener = opener_new(loop);
	assert_non_null(opener);
	return 0;
}

static int tear_down(void **state)
{
	opener_free(opener);
	loop_free(loop);
	network_slot_done(&a);
	network_slot_done(&b);
	network_free(network, true);
	world_free(&world);
	return 0;
}

struct opened {
	bool done;
	int result;
};

static void on_opened(int fd_or_error, void *arg)
{
	struct opened *o = arg;
	assert_false(o->done);
	o->done = true;
	o->result = fd_or_error;
}

static void wait_for(struct opened *o)
{
	while (!o->done)
		assert_int_equal(loop_turn(loop, 10000), 0);
}

static int open_port(const struct net_slot *s, uint16_t port)
{
	struct opened o = {0};
	assert_int_equal(opener_connect(opener, s->netns, s->guest_address, port, on_opened, &o), 0);
	wait_for(&o);
	return o.result;
}

/* A listener inside: family and address as given. */
static int listen_in(const struct net_slot *s, const char *address, uint16_t port, int backlog)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	bool is_v6 = inet_pton(AF_INET, address, &v4.sin_addr) != 1;
	if (is_v6)
		assert_int_equal(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
	assert_int_equal(setns(s->netns, CLONE_NEWNET), 0);
	int one = 1, fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	int r = is_v6 ? bind(fd, (struct sockaddr *)&v6, sizeof(v6)) : bind(fd, (struct sockaddr *)&v4, sizeof(v4));
	assert_int_equal(r, 0);
	assert_int_equal(listen(fd, backlog), 0);
	assert_int_equal(setns(world.host.netns, CLONE_NEWNET), 0);
	return fd;
}

static void assert_talks(int client, int listener)
{
	char byte = 0;
	assert_true(client >= 0);
	assert_true(fcntl(client, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(client, F_GETFD) & FD_CLOEXEC);
	struct pollfd come = {.fd = listener, .events = POLLIN}; /* the kernel may hand it over a moment later */
	assert_int_equal(poll(&come, 1, 60000), 1);
	int server = accept(listener, NULL, NULL);
	assert_true(server >= 0);
	assert_int_equal(send(server, "!", 1, 0), 1);
	struct pollfd arrived = {.fd = client, .events = POLLIN};
	assert_int_equal(poll(&arrived, 1, 60000), 1);
	assert_int_equal(recv(client, &byte, 1, 0), 1);
	assert_int_equal(byte, '!');
	close(server);
	close(client);
}

static void every_local_address_is_tried(void **state)
{
	const char *const addresses[] = {"127.0.0.1", "::1", dotted(a.guest_address), "0.0.0.0", "::"};
	for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
		int listener = listen_in(&a, addresses[i], GUEST_PORT, 16);
		assert_talks(open_port(&a, GUEST_PORT), listener);
		/* The other sandbox's port of that number is another one. */
		assert_int_equal(open_port(&b, GUEST_PORT), -ECONNREFUSED);
		close(listener);
	}
}

static void a_closed_port_is_refused(void **state)
{
	assert_int_equal(open_port(&a, 1), -ECONNREFUSED);
	assert_int_equal(open_port(&a, 65535), -ECONNREFUSED);
	assert_int_equal(open_port(&a, 0), -ECONNREFUSED);
}

/* A port of the ephemeral range may be given to the connecting socket itself, which then connects to itself. */
static void nobody_meets_itself(void **state)
{
	/* One port to choose from makes it certain. */
	must_in(b.netns, "echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range");
	for (int i = 0; i < 50; i++) {
		assert_int_equal(open_port(&b, 40000), -ECONNREFUSED);
		assert_int_equal(open_port(&b, 40001), -ECONNREFUSED);
	}
	must_in(b.netns, "echo 32768 60999 > /proc/sys/net/ipv4/ip_local_port_range");
}

/* A listener that accepts nothing: its queue is full after two, then SYNs stay without an answer. */
static void a_full_backlog_costs_only_its_own(void **state)
{
	enum { STUCK = 100 };
	struct opened stuck[STUCK] = {0};
	int full = listen_in(&b, "127.0.0.1", GUEST_PORT, 0), good = listen_in(&a, "127.0.0.1", GUEST_PORT, 64);
	for (int i = 0; i < STUCK; i++)
		assert_int_equal(opener_connect(opener, b.netns, b.guest_address, GUEST_PORT, on_opened, &stuck[i]), 0);
	unsigned stuck_then = 0;
	assert_talks(open_port(&a, GUEST_PORT), good);
	for (int i = 0; i < STUCK; i++)
		stuck_then += !stuck[i].done;
	/* The other was served while these were still waiting. */
	assert_true(stuck_then > 0);
	for (int i = 0; i < 30; i++)
		assert_talks(open_port(&a, GUEST_PORT), good);
	unsigned connected = 0;
	for (int i = 0; i < STUCK; i++) {
		wait_for(&stuck[i]);
		if (stuck[i].result >= 0) {
			connected++;
			close(stuck[i].result);
		} else {
			assert_int_equal(stuck[i].result, -ETIMEDOUT);
		}
	}
	assert_in_range(connected, 1, 4);
	close(full);
	close(good);
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void nothing_is_left_behind(void **state)
{
	struct net_slot s;
	struct error err = {0};
	unsigned before = open_descriptors();
	if (network_slot_create(network, 5, &s, &err) < 0)
		fail_msg("%s", err.message);
	for (int i = 0; i < 100; i++)
		assert_int_equal(open_port(&s, GUEST_PORT), -ECONNREFUSED);
	network_slot_done(&s);
	assert_int_equal(open_descriptors(), before);
	/* The thread has left the namespace: it dies, and its link with it. */
	char command[100];
	snprintf(command, sizeof(command), "! ip link show %s", s.host_link);
	assert_true(eventually(command));
}

static void the_end_answers_what_waits(void **state)
{
	struct opened stuck[20] = {0};
	struct opener *o = opener_new(loop);
	int full = listen_in(&b, "127.0.0.1", GUEST_PORT, 0);
	for (int i = 0; i < 20; i++)
		assert_int_equal(opener_connect(o, b.netns, b.guest_address, GUEST_PORT, on_opened, &stuck[i]), 0);
	opener_free(o);
	unsigned cancelled = 0;
	for (int i = 0; i < 20; i++) {
		wait_for(&stuck[i]);
		cancelled += stuck[i].result == -ECANCELED;
		if (stuck[i].result >= 0)
			close(stuck[i].result);
	}
	assert_true(cancelled > 10);
	close(full);
}

static int by_size(const void *x, const void *y)
{
	int64_t p = *(const int64_t *)x, q = *(const int64_t *)y;
	return (p > q) - (p < q);
}

/* Printed, not judged: machines differ. */
static void the_time_it_takes(void **state)
{
	enum { N = 500 };
	static int64_t took[N];
	int listener = listen_in(&a, "127.0.0.1", GUEST_PORT, 64);
	for (int i = 0; i < N; i++) {
		int64_t from = clock_monotonic();
		int fd = open_port(&a, GUEST_PORT);
		took[i] = clock_monotonic() - from;
		assert_talks(fd, listener);
	}
	qsort(took, N, sizeof(took[0]), by_size);
	print_message("a connected socket: median %lld us, p99 %lld us\n", (long long)took[N / 2] / 1000, (long long)took[N * 99 / 100] / 1000);
	close(listener);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_local_address_is_tried),
		cmocka_unit_test(a_closed_port_is_refused),
		cmocka_unit_test(nobody_meets_itself),
		cmocka_unit_test(a_full_backlog_costs_only_its_own),
		cmocka_unit_test(nothing_is_left_behind),
		cmocka_unit_test(the_end_answers_what_waits),
		cmocka_unit_test(the_time_it_takes),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
