/* Nodes that find what an earlier one left, however that ended. */
#include "node_world.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static bool log_says(const char *id, const char *text)
{
	struct msg_logs m = {.sandbox = str_of(id)};
	if (answer(send_front(MSG_ID_logs, &m)) != MSG_ID_log_page)
		return false;
	cleanup_buf struct buf page = BUF_INIT;
	buf_add_str(&page, got.log_page.entries);
	return strstr(buf_cstr(&page), text);
}

static void a_log_tells_why_it_ended_and_outlives_the_node(void **state)
{
	char id[33];
	snprintf(id, sizeof(id), "%s", create());
	struct fake_box *box = fake_find(id);
	snprintf(box->log, sizeof(box->log), "{\"n\":1,\"t\":5,\"message\":\"inside\"}\nrubbish\n");
	assert_true(log_says(id, "\"message\":\"created\""));
	assert_true(log_says(id, "-5 {\"message\":\"inside\"}\n"));
	assert_false(log_says(id, "rubbish"));
	fake_die(id, "oom_killed", "evidence");
	settle();
	assert_true(log_says(id, "\"reason\":\"oom_killed\",\"detail\":\"evidence\""));
	restart();
	assert_true(log_says(id, "\"reason\":\"oom_killed\",\"detail\":\"evidence\""));
	assert_true(log_says(id, "inside"));
	struct msg_logs unknown = {.sandbox = STR("iaaaaaaaaaaaaaaaaaaaa")}, forged = {.sandbox = STR("../node.db")};
	expect_error(answer(send_front(MSG_ID_logs, &unknown)), 404, "not found");
	expect_error(answer(send_front(MSG_ID_logs, &forged)), 404, "");
	/* After a day it goes. */
	machine.wall_shift += 25LL * 3600 * NS_PER_S;
	logs_prune(node);
	expect_error(answer(send_front(MSG_ID_logs, &(struct msg_logs){.sandbox = str_of(id)})), 404, "not found");
}

static void a_restarted_node_finds_its_sandboxes(void **state)
{
	struct msg_create m = want();
	m.public_traffic = false;
	char id[33], dead[33], envd[65], traffic[65], generation[33];
	memcpy(dead, create(), sizeof(dead));
	memcpy(id, create_with(&m), sizeof(id));
	sandbox_copy(envd, sizeof(envd), got.sandbox.envd_token);
	sandbox_copy(traffic, sizeof(traffic), got.sandbox.traffic_token);
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	int64_t ends = end_at();
	leave();
	fake_die(dead, "oom_killed", "while no node ran");
	fake_find(id)->frozen = true;
	fake_find(id)->brake = 0;
	start();
	assert_int_equal(fake->adopts, 2);
	assert_int_equal(fake->readies, 2);
	subscribe();
	assert_int_equal(n_events, 2);
	assert_int_equal(last_event(id)->state, SANDBOX_RUNNING);
	assert_string_equal(last_event(dead)->reason, "oom_killed");
	assert_string_equal(last_event(dead)->detail, "while no node ran");
	assert_false(fake_find(id)->frozen);
	assert_true(fake_find(id)->brake == BOX_NO_BRAKE);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 1), MSG_ID_sandbox);
	assert_str(got.sandbox.envd_token, envd);
	assert_str(got.sandbox.traffic_token, traffic);
	assert_str(got.sandbox.generation, generation);
	assert_str(got.sandbox.team, "team-1");
	struct str rest = got.sandbox.metadata.raw, key, value;
	assert_true(msg_map_next(&rest, &key, &value));
	assert_str(value, "v");
	assert_int_equal(end_at(), ends);
	assert_int_equal(node->admission.sandboxes, 1);
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	assert_int_equal(fake->live, 0);
}

static void a_deadline_that_passed_meanwhile_ends_it_at_once(void **state)
{
	create();
	leave();
	machine.boot_shift = 400 * NS_PER_S;
	start();
	node_expire(node);
	for (int i = 0; i < 5000 && fake->live; i++)
		loop_turn(loop, 10);
	settle();
	subscribe();
	assert_string_equal(last_event(last_id)->reason, "timeout");
}

static void after_a_reboot_all_is_host_lost(void **state)
{
	char a[33];
	memcpy(a, create(), sizeof(a));
	create();
	leave();
	host.boot_id[0] = '9';
	fake_reset();
	start();
	assert_int_equal(fake->adopts, 0);
	subscribe();
	assert_int_equal(n_events, 2);
	assert_string_equal(events[0].reason, "host_lost");
	assert_string_equal(events[1].reason, "host_lost");
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	expect_error(answer(send_kill(a)), 404, "not found");
}

static void a_silent_init_does_not_hold_up_the_node(void **state)
{
	create();
	char other[33];
	memcpy(other, last_id, sizeof(other));
	leave();
	fake->silent = true;
	struct error err = {0};
	loop = loop_new();
	struct node_config c = {loop, &options, &host, dir, "/bin/false"};
	assert_int_equal(node_new(&c, &node, &err), 0);
	node->adopt_patience = 50 * NS_PER_MS;
	ready = false;
	assert_int_equal(node_start(node, on_flag, &ready, &err), 0);
	turn_until(&ready);
	open_front();
	settle();
	subscribe();
	assert_string_equal(last_event(other)->reason, "crashed");
	assert_int_equal(fake->live, 0);
}

static void records_nobody_understands_are_resolved(void **state)
{
	static const char *const versions[RECORDS_VERSION] = {""};
	char path[128];
	create();
	create();
	create();
	leave();
	struct store *s = NULL;
	snprintf(path, sizeof(path), "%s/node.db", dir);
	assert_int_equal(store_open(path, 0, versions, RECORDS_VERSION, &s, NULL), 0);
	assert_int_equal(store_exec(s, "UPDATE sandboxes SET handle = 'from the future' WHERE rowid = 1", NULL), 0);
	assert_int_equal(store_exec(s, "UPDATE sandboxes SET state = 99 WHERE rowid = 2", NULL), 0);
	store_free(s);
	start();
	subscribe();
	unsigned crashed = 0;
	for (size_t i = 0; i < n_events; i++)
		crashed += strcmp(events[i].reason, "crashed") == 0;
	assert_int_equal(crashed, 2);
	assert_int_equal(fake_alive(), 1); /* the rest was swept */
}

/* A node in a child process that ends without a word at the given point. */
static void crash(enum fake_crash point, void (*doing)(void))
{
	leave();
	fake->crash = point;
	pid_t pid = fork();
	if (pid == 0) {
		start();
		doing();
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	fake->crash = CRASH_NOWHERE;
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), FAKE_CRASHED);
	start();
	settle();
}

static void do_create(void)
{
	struct msg_create m = want();
	answer(send_front(MSG_ID_create, &m));
}

static void do_kill(void)
{
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			answer(send_kill(fake->machine[i].id));
}

/* Whatever the moment: what runs is recorded, what is recorded runs, each can be killed. */
static void check_consistent(unsigned alive)
{
	subscribe();
	assert_int_equal(fake_alive(), alive);
	assert_int_equal(fake->live, alive);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), alive);
	assert_int_equal(node->live.count, alive);
	assert_int_equal(node->admission.sandboxes, alive);
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			assert_int_equal(last_event(fake->machine[i].id)->state, SANDBOX_RUNNING);
}

static void a_crash_in_any_step_leaves_nothing_stuck(void **state)
{
	crash(CRASH_IN_CREATE, do_create);
	check_consistent(0);
	crash(CRASH_STARTED, do_create);
	check_consistent(0); /* nobody was told of it; the sweep took it */
	create();
	crash(CRASH_IN_KILL, do_kill);
	check_consistent(0); /* the kill was intended, so it is done */
	assert_string_equal(last_event(last_id)->reason, "killed");
	create();
	crash(CRASH_KILLED, do_kill);
	check_consistent(0);
	assert_string_equal(last_event(last_id)->reason, "killed");
	create();
	check_consistent(1);
	assert_int_equal(answer(send_kill(last_id)), MSG_ID_ok);
	check_consistent(0);
}

static void churn(void)
{
	for (;;) {
		struct msg_create m = want();
		for (int i = 0; i < 8; i++)
			send_front(MSG_ID_create, &m);
		settle();
		for (size_t i = 0; i < FAKE_BOXES; i++)
			if (fake->machine[i].alive && i % 3)
				send_kill(fake->machine[i].id);
		for (int i = 0; i < 3; i++)
			loop_turn(loop, 1);
	}
}

static void kill_minus_nine_at_any_moment_is_survived(void **state)
{
	/* At least 20 times, and until something was under way when it was killed. */
	for (unsigned i = 0; i < 20 || (i < 500 && (fake->creates <= 20 || fake->kills <= 5)); i++) {
		leave();
		pid_t pid = fork();
		if (pid == 0) {
			start();
			churn();
		}
		usleep(10000 + i % 20 * 4700);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		start();
		settle();
		check_consistent(fake_alive());
	}
	assert_true(fake->creates > 20 && fake->kills > 5);
}

/* Stop */

static void stop_lets_sandboxes_run_and_waits_for_what_is_in_flight(void **state)
{
	create();
	struct msg_create m = want();
	fake->start = FAKE_MANUAL;
	uint64_t request = send_front(MSG_ID_create, &m);
	settle();
	stopped = false;
	node_stop(node, on_flag, &stopped);
	settle();
	assert_false(stopped);
	assert_int_equal(fake->drains, 0);
	refuse_create(m, 503, "stopping");
	assert_int_equal(fake_step_starts(), 1);
	assert_int_equal(answer(request), MSG_ID_sandbox);
	settle();
	assert_true(stopped);
	assert_int_equal(fake->drains, 1);
	fake->start = FAKE_AUTO;
	restart();
	check_consistent(2);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_log_tells_why_it_ended_and_outlives_the_node),
		T(a_restarted_node_finds_its_sandboxes),
		T(a_deadline_that_passed_meanwhile_ends_it_at_once),
		T(after_a_reboot_all_is_host_lost),
		T(a_silent_init_does_not_hold_up_the_node),
		T(records_nobody_understands_are_resolved),
		T(a_crash_in_any_step_leaves_nothing_stuck),
		T(kill_minus_nine_at_any_moment_is_survived),
		T(stop_lets_sandboxes_run_and_waits_for_what_is_in_flight),
	};
	return node_world_run(tests);
}
