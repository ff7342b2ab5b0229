/* Deadlines, and clocks that step. */
#include "node_world.h"

static void deadlines_follow_the_table(void **state)
{
	subscribe();
	const char *id = create();
	int64_t created = end_at();
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 60), MSG_ID_sandbox);
	assert_int_equal(end_at(), created); /* never shortens, to the nanosecond */
	assert_int_equal(timeout_of(id, TIMEOUT_REFRESH, 60), MSG_ID_sandbox);
	assert_int_equal(end_at(), created);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 0), MSG_ID_sandbox);
	assert_int_equal(end_at(), created);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 600), MSG_ID_sandbox);
	assert_true(end_at() >= created + 299 * NS_PER_S);
	int64_t longer = end_at();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE end_at > started_at + 590000000000"), 1);
	assert_int_equal(last_event(id)->end_at, longer);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
	assert_true(end_at() < created);
	int64_t shorter = end_at();
	expect_error(timeout_of(id, TIMEOUT_SET, -2), 400, "timeout");
	expect_error(timeout_of(id, TIMEOUT_CONNECT, INT64_MIN), 400, "timeout");
	expect_error(timeout_of(id, TIMEOUT_SET, INT64_MAX), 400, "timeout.max");
	expect_error(timeout_of(id, (enum timeout_mode)9, 10), 400, "mode");
	assert_int_equal(timeout_of(id, TIMEOUT_REFRESH, 1), MSG_ID_sandbox);
	assert_int_equal(end_at(), shorter);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, -1), MSG_ID_sandbox);
	assert_int_equal(end_at(), INT64_MAX);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 600), MSG_ID_sandbox);
	assert_int_equal(end_at(), INT64_MAX);
	machine.boot_shift = 100LL * 86400 * NS_PER_S;
	node_expire(node);
	settle();
	assert_int_equal(last_event(id)->state, SANDBOX_RUNNING);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 0), MSG_ID_sandbox);
	settle();
	assert_int_equal(last_event(id)->state, SANDBOX_GONE);
	assert_string_equal(last_event(id)->reason, "timeout");
}

static void the_deadline_needs_no_front(void **state)
{
	struct msg_create m = want();
	char early[33], late[33];
	m.timeout = 1000;
	memcpy(early, create_with(&m), sizeof(early));
	m.timeout = 2000;
	memcpy(late, create_with(&m), sizeof(late));
	close(steal_fd(&front));
	machine.boot_shift = 500 * NS_PER_S;
	node_expire(node);
	assert_int_equal(fake_alive(), 2);
	machine.boot_shift = 1500 * NS_PER_S;
	node_expire(node);
	for (int i = 0; i < 5000 && fake_alive() == 2; i++)
		loop_turn(loop, 10);
	assert_int_equal(fake_alive(), 1);
	assert_non_null(fake_find(late));
	open_front();
	settle();
	subscribe();
	assert_string_equal(last_event(early)->reason, "timeout");
	assert_int_equal(last_event(late)->state, SANDBOX_RUNNING);
}

/* The timer itself, with the real clock. */
static void a_deadline_fires_by_itself(void **state)
{
	struct msg_create m = want();
	m.timeout = 1;
	create_with(&m);
	subscribe();
	for (int i = 0; i < 5000 && fake->live; i++)
		loop_turn(loop, 10);
	settle();
	assert_string_equal(last_event(last_id)->reason, "timeout");
}

static void a_step_of_the_wall_clock_moves_what_is_shown_only(void **state)
{
	subscribe();
	char id[33], never[33];
	memcpy(id, create(), sizeof(id));
	int64_t before = end_at(), deadline = live_find(node, str_of(id))->s.deadline;
	struct msg_create m = want();
	m.timeout = -1;
	memcpy(never, create_with(&m), sizeof(never));
	machine.wall_shift = 3600 * NS_PER_S;
	node_clock_stepped(node);
	node_expire(node);
	settle();
	assert_int_equal(fake_alive(), 2);
	int64_t moved = last_event(id)->end_at - before;
	assert_true(moved > 3599 * NS_PER_S && moved < 3601 * NS_PER_S);
	assert_int_equal(last_event(never)->end_at, INT64_MAX);
	assert_int_equal(live_find(node, str_of(id))->s.deadline, deadline);
	machine.wall_shift = -3600 * NS_PER_S;
	node_clock_stepped(node);
	settle();
	moved = last_event(id)->end_at - before;
	assert_true(moved < -3599 * NS_PER_S && moved > -3601 * NS_PER_S);
	/* A step while no node runs is made good at the next start. */
	machine.wall_shift = 0;
	restart();
	subscribe();
	moved = last_event(id)->end_at - before;
	assert_true(moved > -NS_PER_S && moved < NS_PER_S);
	assert_int_equal(fake_alive(), 2);
	machine.boot_shift = 301 * NS_PER_S;
	node_expire(node);
	settle();
	assert_string_equal(last_event(id)->reason, "timeout");
	assert_int_equal(fake_alive(), 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(deadlines_follow_the_table),
		T(the_deadline_needs_no_front),
		T(a_deadline_fires_by_itself),
		T(a_step_of_the_wall_clock_moves_what_is_shown_only),
	};
	return node_world_run(tests);
}
