#include "unit.h"

#include "base/clock.h"
#include "io/chan.h"
#include "io/workq.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static int order[8], n_order;

static void note(struct loop_timer *t, void *arg)
{
	order[n_order++] = (int)(intptr_t)arg;
}

static void timers_fire_in_order_of_time(void **state)
{
	struct loop *l = loop_new();
	struct loop_timer *t[4];
	static const int64_t at[] = {3, 1, 4, 2};
	int64_t now = clock_boottime();
	for (int i = 0; i < 4; i++) {
		t[i] = loop_timer_new(l, note, (void *)(intptr_t)at[i]);
		loop_timer_at(t[i], now + at[i] * NS_PER_MS);
	}
	loop_timer_stop(t[2]);
	while (n_order < 3)
		loop_turn(l, 1000);
	assert_int_equal(order[0], 1);
	assert_int_equal(order[1], 2);
	assert_int_equal(order[2], 3);
	for (int i = 0; i < 4; i++)
		loop_timer_free(t[i]);
	loop_free(l);
}

static struct loop_fd *victims[2];
static int deliveries;

static void kills_both(struct loop_fd *w, uint32_t events, void *arg)
{
	deliveries++;
	loop_fd_del(victims[0]);
	loop_fd_del(victims[1]);
}

static void a_source_deleted_in_the_same_turn_is_not_called(void **state)
{
	struct loop *l = loop_new();
	int p[2];
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	int other = dup(p[0]);
	assert_int_equal(write(p[1], "x", 1), 1);
	victims[0] = loop_fd_add(l, p[0], EPOLLIN, kills_both, NULL);
	victims[1] = loop_fd_add(l, other, EPOLLIN, kills_both, NULL);
	while (!deliveries)
		loop_turn(l, 1000);
	assert_int_equal(deliveries, 1);
	loop_free(l);
	close(p[0]), close(p[1]), close(other);
}

static int worked, completed;

static void work(void *arg)
{
	__atomic_add_fetch(&worked, 1, __ATOMIC_SEQ_CST);
}

static void done(void *arg)
{
	completed++;
}

static void work_completes_in_the_loop(void **state)
{
	struct loop *l = loop_new();
	struct workq *q = workq_new(4, 1000);
	for (int i = 0; i < 500; i++)
		assert_int_equal(workq_push(q, l, work, done, NULL), 0);
	while (completed < 500)
		loop_turn(l, 1000);
	assert_int_equal(worked, 500);
	workq_free(q);
	loop_free(l);
}

static bool gate;

static void wait_at_gate(void *arg)
{
	__atomic_store_n((bool *)arg, true, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&gate, __ATOMIC_SEQ_CST))
		sched_yield();
}

static void count(void *arg)
{
	(*(int *)arg)++;
}

static void a_job_that_nobody_has_begun_can_be_taken_back(void **state)
{
	struct loop *l = loop_new();
	struct workq *q = workq_new(1, 1000);
	bool begun = false;
	int done_n[4] = {0}, finished = 0;
	assert_int_equal(workq_push(q, l, wait_at_gate, NULL, &begun), 0);
	while (!__atomic_load_n(&begun, __ATOMIC_SEQ_CST))
		sched_yield();
	assert_false(workq_take_back(q, &begun)); /* it runs */
	for (int i = 0; i < 4; i++)
		assert_int_equal(workq_push(q, l, work, count, &done_n[i]), 0);
	assert_true(workq_take_back(q, &done_n[1]));
	assert_true(workq_take_back(q, &done_n[3])); /* the last: what comes then is behind the others all the same */
	assert_false(workq_take_back(q, &done_n[3]));
	assert_int_equal(workq_push(q, l, work, count, &finished), 0);
	__atomic_store_n(&gate, true, __ATOMIC_SEQ_CST);
	while (!finished)
		loop_turn(l, 1000);
	assert_true(done_n[0] == 1 && done_n[1] == 0 && done_n[2] == 1 && done_n[3] == 0);
	workq_free(q);
	loop_free(l);
}

/* A channel echoes kills back as ok; descriptors travel with peer. */
static int got, got_fd = -1, ends, last_error;

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	got++;
	if (m->header.type == MSG_ID_kill) {
		struct msg_ok ok = {0};
		assert_int_equal(chan_send(c, MSG_ID_ok, &ok, m->header.request, NULL, 0, NULL), 0);
	}
	if (m->n_fds) {
		got_fd = m->fds[0];
		m->fds[0] = -1;
	}
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	ends++;
	last_error = err->code;
}

static const struct chan_ops ops = {on_message, on_closed};

static void channels_queue_in_order_and_carry_descriptors(void **state)
{
	struct loop *l = loop_new();
	int s[2], p[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	struct chan *a = chan_new(l, s[0], MSG_FROM_ANY, 0, &ops, NULL);
	assert_non_null(chan_new(l, s[1], MSG_FROM_ANY, 0, &ops, NULL));
	struct msg_kill kill = {.sandbox = STR("iabc")};
	got = 0;
	for (int i = 0; i < 3000; i++) /* more than a socket buffer holds */
		assert_int_equal(chan_send(a, MSG_ID_kill, &kill, (uint64_t)i + 1, NULL, 0, NULL), 0);
	while (got < 6000)
		loop_turn(l, 1000);
	struct msg_peer peer = {.role = STR("node")};
	assert_int_equal(chan_send(a, MSG_ID_peer, &peer, 0, &p[1], 1, NULL), 0);
	while (got_fd < 0)
		loop_turn(l, 1000);
	assert_int_equal(write(got_fd, "y", 1), 1);
	char byte;
	assert_int_equal(read(p[0], &byte, 1), 1);
	close(got_fd), close(p[0]), close(p[1]);
	chan_free(a);
	ends = 0;
	while (!ends)
		loop_turn(l, 1000);
	assert_int_equal(last_error, -EPIPE);
	loop_free(l);
}

static void a_peer_that_breaks_the_table_is_cut(void **state)
{
	struct loop *l = loop_new();
	int s[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
	struct chan *c = chan_new(l, s[0], MSG_FROM_INIT, CHAN_NO_FDS, &ops, NULL);
	assert_non_null(c);
	struct msg_kill kill = {.sandbox = STR("iabc")};
	assert_int_equal(msg_send_fd(s[1], MSG_ID_kill, &kill, 1, NULL, 0, NULL), 0);
	got = ends = 0;
	while (!ends)
		loop_turn(l, 1000);
	assert_int_equal(last_error, -EPROTO);
	assert_int_equal(got, 0);
	close(s[1]);
	loop_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(timers_fire_in_order_of_time),
		cmocka_unit_test(a_source_deleted_in_the_same_turn_is_not_called),
		cmocka_unit_test(work_completes_in_the_loop),
		cmocka_unit_test(a_job_that_nobody_has_begun_can_be_taken_back),
		cmocka_unit_test(channels_queue_in_order_and_carry_descriptors),
		cmocka_unit_test(a_peer_that_breaks_the_table_is_cut),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
