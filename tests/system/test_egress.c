/* The egress process as serve and node start it: names inside sandboxes. */
#include "resolver.h"
#include "world.h"

#include "base/fd.h"
#include "egress/egress.h"
#include "io/chan.h"
#include "network/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SILENT_RESOLVER "198.51.100.20" /* routed to the internet, where nobody has it */

struct egress {
	pid_t pid;
	int serve, node;
};

static struct world world;
static struct instance instance;
static struct network *network;
static struct net_slot a, b;
static pid_t resolver;

/* The process */

static void become_egress(int serve, const char *upstream)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "state.dir = /tmp/cubicle-system-egress\nuser.egress = nobody\nlog.level = error\ndns.upstream = %s\n", upstream);
	int options = memfd_create("options", 0);
	if (write(options, text, (size_t)n) != n)
		_exit(90);
	int high[2] = {fcntl(serve, F_DUPFD, 100), fcntl(options, F_DUPFD, 100)};
	dup2(high[0], 3);
	dup2(high[1], 4);
	fd_close_all_except(5, NULL, 0);
	char *argv[] = {(char[]){"cubicle"}, (char[]){"egress"}, NULL};
	_exit(egress_main(2, argv));
}

/* Gives egress a channel to a node, which is us. */
static void introduce(struct egress *e)
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	struct msg_peer peer = {.role = STR("node")};
	assert_int_equal(msg_send_fd(e->serve, MSG_ID_peer, &peer, 0, &pair[1], 1, NULL), 0);
	close(pair[1]);
	e->node = pair[0];
}

static struct egress start_egress(const char *upstream)
{
	static char storage[MSG_MAX];
	struct egress e;
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	fflush(NULL);
	e.pid = fork();
	if (e.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		become_egress(pair[1], upstream);
	}
	close(pair[1]);
	e.serve = pair[0];
	struct msg_header h;
	union msg_any any;
	struct error err = {0};
	if (msg_receive_fd(e.serve, storage, &h, &any, NULL, NULL, &err) < 0)
		fail_msg("egress did not start: %s", err.message);
	assert_int_equal(h.type, MSG_ID_ready);
	introduce(&e);
	return e;
}

static int await(struct egress *e)
{
	int status;
	close(e->node);
	close(e->serve);
	waitpid(e->pid, &status, 0);
	return status;
}

static void end(struct egress *e)
{
	assert_int_equal(await(e), 0);
}

static void serve(struct egress *e, const struct net_slot *s, bool allow)
{
	struct msg_dns_serve m = {.slot = s->number, .allow = allow};
	const int fds[] = {s->dns_udp, s->dns_tcp};
	assert_int_equal(msg_send_fd(e->node, MSG_ID_dns_serve, &m, 0, fds, 2, NULL), 0);
}

static void set_policy(struct egress *e, const struct net_slot *s, bool allow)
{
	struct msg_dns_policy m = {.slot = s->number, .allow = allow};
	msg_set(&m, dns_policy, sandbox, STR("itest"));
	assert_int_equal(msg_send_fd(e->node, MSG_ID_dns_policy, &m, 0, NULL, 0, NULL), 0);
}

static void stop_slot(struct egress *e, const struct net_slot *s)
{
	struct msg_dns_stop m = {.slot = s->number};
	assert_int_equal(msg_send_fd(e->node, MSG_ID_dns_stop, &m, 0, NULL, 0, NULL), 0);
}

/* Fixture */

static void make_slot(unsigned number, struct net_slot *ret)
{
	struct error err = {0};
	if (network_slot_create(network, number, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static int set_up(void **state)
{
	struct options o;
	struct error err = {0};
	signal(SIGPIPE, SIG_IGN);
	world_new(&world);
	assert_int_equal(options_init(&o), 0);
	assert_int_equal(options_set(&o, STR("state.dir"), STR("/tmp/cubicle-system-egress"), "test", NULL), 0);
	instance_of(&o, &instance);
	options_done(&o);
	if (network_new(&instance, "100.96.0.0/16", false, PRIVATE_OPEN, &network, &err) < 0)
		fail_msg("%s", err.message);
	make_slot(0, &a);
	make_slot(1, &b);
	resolver = start_resolver(world.internet.netns, INTERNET_SERVER);
	return 0;
}

static int tear_down(void **state)
{
	stop_process(resolver);
	network_slot_done(&a);
	network_slot_done(&b);
	network_free(network, true);
	world_free(&world);
	return 0;
}

static void assert_resolves(const struct net_slot *s, bool tcp)
{
	struct reply r = resolve(s->netns, "www.example.test", tcp, 0);
	if (r.error || r.rcode || r.answers != 1 || !r.same_id)
		fail_msg("no answer over %s: %s, rcode %u, %u answers", tcp ? "TCP" : "UDP", strerror(-r.error), r.rcode, r.answers);
}

/* Tests */

static void it_gives_up_its_privileges(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	char path[64];
	cleanup_buf struct buf status = BUF_INIT;
	snprintf(path, sizeof(path), "/proc/%d/status", e.pid);
	assert_int_equal(file_read(AT_FDCWD, path, 65536, &status), 0);
	const char *text = buf_cstr(&status);
	static const char *const lines[] = {"\nCapInh:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nCapEff:\t0000000000000000\n",
		"\nCapBnd:\t0000000000000000\n", "\nCapAmb:\t0000000000000000\n", "\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n", "\nUid:\t65534\t65534\t65534\t65534\n",
		"\nGroups:\t \n", "\nThreads:\t1\n"};
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (!strstr(text, lines[i]))
			fail_msg("missing in its status:%s%s", lines[i], text);
	/* Not dumpable: what it has open belongs to root. */
	snprintf(path, sizeof(path), "test $(stat -c %%u /proc/%d/environ) = 0", e.pid);
	must("%s", path);
	end(&e);
}

static void names_resolve_over_udp_and_tcp(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	serve(&e, &b, true);
	for (int tcp = 0; tcp < 2; tcp++) {
		assert_resolves(&a, tcp);
		assert_resolves(&b, tcp);
		struct reply r = resolve(a.netns, "nx.example.test", tcp, 1232);
		assert_int_equal(r.error, 0);
		assert_int_equal(r.rcode, 3);
		r = resolve(a.netns, "fail.example.test", tcp, 0);
		assert_int_equal(r.rcode, 2);
	}
	end(&e);
}

static void what_is_too_long_for_a_datagram_comes_over_tcp(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	struct reply r = resolve(a.netns, "big.example.test", false, 4096);
	assert_true(!r.error && r.truncated && r.same_id);
	r = resolve(a.netns, "big.example.test", true, 0);
	assert_true(!r.error && !r.truncated && r.answers == 16 && r.size > 4000);
	/* A resolver that does not keep to the size asked for. */
	r = resolve(a.netns, "long.example.test", false, 0);
	assert_true(!r.error && r.truncated && r.size <= 512);
	r = resolve(a.netns, "long.example.test", false, 1232);
	assert_true(!r.error && !r.truncated && r.answers == 4 && r.size > 1000);
	end(&e);
}

static void lies_do_not_count(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	struct reply r = resolve(a.netns, "evil.example.test", false, 0);
	assert_true(!r.error && !r.rcode && r.same_id && r.answers == 1);
	end(&e);
}

static void without_internet_names_are_refused(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, false);
	serve(&e, &b, true);
	for (int tcp = 0; tcp < 2; tcp++) {
		struct reply r = resolve(a.netns, "www.example.test", tcp, 0);
		assert_true(!r.error && r.rcode == 5 && r.same_id && !r.answers);
	}
	assert_resolves(&b, false);
	set_policy(&e, &a, true);
	assert_resolves(&a, true);
	/* Taken away while a query is under way. */
	unsigned char q[512], m[512];
	int fd = name_socket(a.netns, false);
	size_t n = build_query(q, 7, "silent.example.test", 0);
	assert_int_equal(send(fd, q, n, 0), n);
	usleep(100000);
	set_policy(&e, &a, false);
	assert_true(read_answer(fd, false, m, sizeof(m), 60000) >= 12);
	assert_int_equal(m[3] & 15, 5);
	close(fd);
	end(&e);
}

static void a_silent_resolver_is_passed_over(void **state)
{
	struct egress e = start_egress(SILENT_RESOLVER "," INTERNET_SERVER);
	serve(&e, &a, true);
	/* The client's own patience is 5 s a try: glibc's and musl's. */
	for (int i = 0; i < 20; i++)
		assert_resolves(&a, i % 2);
	end(&e);
}

static void a_closed_port_is_passed_over(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER ":5353," INTERNET_SERVER);
	serve(&e, &a, true);
	assert_resolves(&a, false);
	assert_resolves(&a, true);
	end(&e);
}

static void without_any_resolver_the_answer_is_servfail(void **state)
{
	must("ip route add unreachable 198.51.100.99");
	struct egress e = start_egress("198.51.100.99");
	serve(&e, &a, true);
	for (int tcp = 0; tcp < 2; tcp++) {
		struct reply r = resolve(a.netns, "www.example.test", tcp, 0);
		assert_int_equal(r.error, 0);
		assert_int_equal(r.rcode, 2);
	}
	end(&e);
	e = start_egress(SILENT_RESOLVER);
	serve(&e, &a, true);
	struct reply r = resolve(a.netns, "www.example.test", false, 0);
	assert_int_equal(r.error, 0);
	assert_int_equal(r.rcode, 2);
	end(&e);
}

static void rubbish_is_survived(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	serve(&e, &b, true);
	unsigned char q[600];
	unsigned seed = 1;
	int fd = name_socket(a.netns, false);
	for (int i = 0; i < 3000; i++) {
		size_t n = i % 2 ? build_query(q, (uint16_t)i, "www.example.test", 1232) : (size_t)(rand_r(&seed) % 600);
		for (size_t k = 0; k < n && (i % 2 == 0 || k == (size_t)i % n); k++)
			q[k] = (unsigned char)rand_r(&seed);
		if (send(fd, q, n, MSG_DONTWAIT) < 0)
			usleep(1000);
	}
	close(fd);
	for (int i = 0; i < 40; i++) {
		fd = name_socket(a.netns, true);
		for (size_t k = 0; k < sizeof(q); k++)
			q[k] = (unsigned char)rand_r(&seed);
		send(fd, q, sizeof(q), MSG_NOSIGNAL);
		close(fd);
	}
	assert_resolves(&b, false);
	assert_resolves(&b, true);
	end(&e);
}

/* One sandbox asks for what nobody answers, as fast as it can; another does not notice. */
static void one_sandbox_cannot_take_the_names_from_another(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	serve(&e, &b, true);
	unsigned char q[512];
	int udp = name_socket(a.netns, false), tcp[40];
	for (int i = 0; i < 2000; i++) {
		size_t n = build_query(q, (uint16_t)i, "silent.example.test", 0);
		send(udp, q, n, MSG_DONTWAIT);
	}
	for (int i = 0; i < 40; i++)
		tcp[i] = name_socket(a.netns, true);
	for (int i = 0; i < 10; i++)
		assert_resolves(&b, i % 2);
	/* And it has its own back when the silence is over. */
	close(udp);
	for (int i = 0; i < 40; i++)
		close(tcp[i]);
	struct reply r = {.error = -1};
	for (int i = 0; i < 8 && (r.error || r.rcode); i++)
		r = resolve(a.netns, "www.example.test", false, 0);
	assert_int_equal(r.error, 0);
	assert_int_equal(r.rcode, 0);
	end(&e);
}

static void many_queries_share_one_connection(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	unsigned char all[40 * 64], m[512];
	size_t n = 0;
	bool seen[40] = {false};
	for (unsigned i = 0; i < 40; i++) {
		size_t k = build_query(all + n + 2, (uint16_t)i, i % 3 ? "www.example.test" : "nx.example.test", 0);
		all[n] = 0;
		all[n + 1] = (unsigned char)k;
		n += k + 2;
	}
	int fd = name_socket(a.netns, true);
	/* The first byte alone, then the rest, then no more from this side. */
	assert_int_equal(send(fd, all, 1, 0), 1);
	usleep(20000);
	assert_int_equal(send(fd, all + 1, n - 1, 0), n - 1);
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 40; i++) {
		assert_true(read_answer(fd, true, m, sizeof(m), 60000) >= 12);
		unsigned id = (unsigned)(m[0] << 8 | m[1]);
		assert_true(id < 40 && !seen[id]);
		seen[id] = true;
		assert_int_equal(m[3] & 15, id % 3 ? 0 : 3);
	}
	assert_int_equal(read_answer(fd, true, m, sizeof(m), 60000), 0);
	close(fd);
	end(&e);
}

static void a_slow_connection_is_closed(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	unsigned char m[512];
	int fd = name_socket(a.netns, true), long_one = name_socket(a.netns, true);
	assert_int_equal(send(fd, "", 1, 0), 1);
	/* One that announces more than a query can have is closed at once. */
	assert_int_equal(send(long_one, "\xff\xff", 2, 0), 2);
	assert_true(read_answer(long_one, true, m, sizeof(m), 60000) <= 0);
	assert_int_equal(read_answer(fd, true, m, sizeof(m), 60000), 0);
	close(fd);
	close(long_one);
	end(&e);
}

static bool link_is_gone(const char *link)
{
	char command[100];
	snprintf(command, sizeof(command), "! ip link show %s", link);
	return eventually(command);
}

static void stopped_slots_are_let_go(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	struct net_slot s, t;
	make_slot(20, &s);
	make_slot(21, &t);
	serve(&e, &s, true);
	serve(&e, &t, true);
	assert_resolves(&s, false);
	int waiting = name_socket(s.netns, true);
	close(waiting);
	stop_slot(&e, &s);
	network_slot_done(&s);
	assert_true(link_is_gone(s.host_link));
	/* Another sandbox with the number of one that is served still. */
	struct net_slot old = t;
	t.number = 22;
	make_slot(22, &t);
	t.number = 21;
	serve(&e, &t, true);
	assert_resolves(&t, false);
	network_slot_done(&old);
	assert_true(link_is_gone(old.host_link));
	network_slot_done(&t);
	end(&e);
	assert_true(link_is_gone(t.host_link));
}

/* Sandboxes outlive the node, and their names do too. */
static void names_work_on_without_a_node(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	int tcp = name_socket(a.netns, true);
	assert_resolves(&a, true);
	close(e.node);
	for (int i = 0; i < 6; i++)
		assert_resolves(&a, i % 2);
	introduce(&e);
	for (int i = 0; i < 6; i++)
		assert_resolves(&a, i % 2);
	serve(&e, &a, true);
	for (int i = 0; i < 6; i++)
		assert_resolves(&a, i % 2);
	/* A connection made before is still good. */
	unsigned char q[2 + 512], m[512];
	size_t n = build_query(q + 2, 3, "www.example.test", 0);
	q[0] = 0;
	q[1] = (unsigned char)n;
	assert_int_equal(send(tcp, q, n + 2, 0), n + 2);
	assert_true(read_answer(tcp, true, m, sizeof(m), 60000) > 12);
	close(tcp);
	end(&e);
}

static void a_new_process_takes_the_sockets_over(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	assert_resolves(&a, false);
	kill(e.pid, SIGKILL);
	await(&e);
	/* What is asked in between waits in the socket. */
	unsigned char q[512], m[512];
	int fd = name_socket(a.netns, false);
	size_t n = build_query(q, 9, "www.example.test", 0);
	assert_int_equal(send(fd, q, n, 0), n);
	e = start_egress(INTERNET_SERVER);
	serve(&e, &a, true);
	assert_true(read_answer(fd, false, m, sizeof(m), 60000) >= 12);
	close(fd);
	assert_resolves(&a, true);
	/* The same slot given once more. */
	serve(&e, &a, true);
	assert_resolves(&a, false);
	end(&e);
}

/* A node that starts again binds sockets of its own beside those that are left. */
static void sockets_are_bound_anew_beside_old_ones(void **state)
{
	struct egress e = start_egress(INTERNET_SERVER);
	struct net_slot again;
	struct error err = {0};
	serve(&e, &a, true);
	assert_resolves(&a, true);
	if (network_slot_adopt(network, a.number, fcntl(a.netns, F_DUPFD_CLOEXEC, 0), &again, &err) < 0)
		fail_msg("%s", err.message);
	close(e.node);
	close(a.dns_udp);
	close(a.dns_tcp);
	a.dns_udp = fcntl(again.dns_udp, F_DUPFD_CLOEXEC, 0);
	a.dns_tcp = fcntl(again.dns_tcp, F_DUPFD_CLOEXEC, 0);
	introduce(&e);
	serve(&e, &again, true);
	for (int i = 0; i < 10; i++)
		assert_resolves(&again, i % 2);
	network_slot_done(&again);
	end(&e);
}

static void it_ends_when_asked_and_with_serve(void **state)
{
	int status;
	struct egress e = start_egress(INTERNET_SERVER);
	struct msg_stop stop = {0};
	assert_int_equal(msg_send_fd(e.serve, MSG_ID_stop, &stop, 0, NULL, 0, NULL), 0);
	waitpid(e.pid, &status, 0);
	assert_int_equal(status, 0);
	close(e.serve);
	close(e.node);
	e = start_egress(INTERNET_SERVER);
	close(e.serve);
	waitpid(e.pid, &status, 0);
	assert_int_equal(status, 0);
	close(e.node);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_gives_up_its_privileges),
		cmocka_unit_test(names_resolve_over_udp_and_tcp),
		cmocka_unit_test(what_is_too_long_for_a_datagram_comes_over_tcp),
		cmocka_unit_test(lies_do_not_count),
		cmocka_unit_test(without_internet_names_are_refused),
		cmocka_unit_test(a_silent_resolver_is_passed_over),
		cmocka_unit_test(a_closed_port_is_passed_over),
		cmocka_unit_test(without_any_resolver_the_answer_is_servfail),
		cmocka_unit_test(rubbish_is_survived),
		cmocka_unit_test(one_sandbox_cannot_take_the_names_from_another),
		cmocka_unit_test(many_queries_share_one_connection),
		cmocka_unit_test(a_slow_connection_is_closed),
		cmocka_unit_test(stopped_slots_are_let_go),
		cmocka_unit_test(names_work_on_without_a_node),
		cmocka_unit_test(a_new_process_takes_the_sockets_over),
		cmocka_unit_test(sockets_are_bound_anew_beside_old_ones),
		cmocka_unit_test(it_ends_when_asked_and_with_serve),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
