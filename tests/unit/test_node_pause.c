#include "node_world.h"

#include "base/fault.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

/* Pauses and resumes in the node's service (docs/lifecycle.md). */

static int setup_pause(void **state)
{
	int r = setup(state);
	snprintf(fake->dir, sizeof(fake->dir), "%s", dir);
	return r;
}

static uint64_t send_pause(const char *id, bool memory)
{
	struct msg_pause m = {.sandbox = str_of(id), .memory = memory};
	return send_front(MSG_ID_pause, &m);
}

static uint64_t send_resume(const char *id, enum resume_mode mode, int64_t timeout, bool memory)
{
	struct msg_resume m = {.sandbox = str_of(id), .mode = mode, .timeout = timeout, .memory = memory};
	return send_front(MSG_ID_resume, &m);
}

static void pause_it(const char *id, bool memory)
{
	unsigned type = answer(send_pause(id, memory));
	if (type != MSG_ID_ok)
		fail_msg("pause: %.*s", STR_FMT(got.error.message));
}

static void resume_it(const char *id)
{
	unsigned type = answer(send_resume(id, RESUME_CONNECT, 300, true));
	if (type != MSG_ID_sandbox)
		fail_msg("resume: %.*s", STR_FMT(got.error.message));
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
}

static enum sandbox_state state_of(const char *id)
{
	const struct live *l = live_find(node, str_of(id));
	return l ? l->s.state : SANDBOX_GONE;
}

static unsigned count_saved(void)
{
	char path[128];
	unsigned n = 0;
	snprintf(path, sizeof(path), "%s/saved", dir);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	return n;
}

/* What goes does so behind the answers. */
static unsigned saved_files(void)
{
	for (int i = 0; i < 5000 && node->removals; i++)
		loop_turn(loop, 10);
	return count_saved();
}

/* Nothing is left of it, anywhere. */
static void expect_gone(const char *id, const char *reason)
{
	settle();
	assert_int_equal(state_of(id), SANDBOX_GONE);
	assert_null(fake_find(id));
	assert_int_equal(saved_files(), 0);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	assert_int_equal(node->admission.sandboxes, 0);
	assert_int_equal(node->admission.memory_mb, 0);
	assert_int_equal(node->admission.disk_mb, 0);
	subscribe();
	assert_string_equal(last_event(id)->reason, reason);
}

static void expect_killed(const char *id)
{
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	expect_gone(id, "killed");
}

/* With memory */

static void a_pause_keeps_everything_and_stops_the_clock(void **state)
{
	subscribe();
	const char *id = create();
	char generation[64], token[65];
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	sandbox_copy(token, sizeof(token), got.sandbox.envd_token);
	int64_t started = got.sandbox.started_at, before = fake->creates;
	machine.boot_shift = machine.wall_shift = 100 * NS_PER_S;
	pause_it(id, true);
	settle();
	const struct fake_box *m = fake_find(id);
	assert_true(m->alive && m->frozen);
	assert_int_equal(m->syncs, 1);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 4 AND memory_kept = 1 AND image = ''"), 1);
	assert_int_equal(last_event(id)->state, SANDBOX_PAUSED);
	assert_in_range(last_event(id)->end_at, started + 100 * NS_PER_S, host.realtime(NULL));
	assert_int_equal(node->admission.memory_mb, 256);
	/* Nothing of a running one is to be had. */
	expect_error(answer(send_pause(id, true)), 409, "already paused");
	expect_error(answer(send_pause(id, false)), 409, "already paused");
	expect_error(timeout_of(id, TIMEOUT_SET, 10), 404, "not found");
	expect_error(timeout_of(id, TIMEOUT_REFRESH, 10), 404, "not found");
	struct msg_open o = {.sandbox = str_of(id), .port = 80};
	expect_error(answer(send_front(MSG_ID_open, &o)), 404, "not found");
	/* The deadline of before passes. */
	machine.boot_shift = machine.wall_shift = 1000 * NS_PER_S;
	node_expire(node);
	node_disk_tick(node);
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	assert_true(fake_find(id)->frozen);

	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 60, true)), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	assert_str(got.sandbox.resumed_from, "memory");
	assert_str(got.sandbox.envd_token, token);
	assert_false(str_is(got.sandbox.generation, generation));
	assert_in_range(got.sandbox.end_at - host.realtime(NULL), 50 * NS_PER_S, 60 * NS_PER_S);
	assert_true(got.sandbox.started_at > started);
	assert_false(fake_find(id)->frozen);
	assert_int_equal(fake->creates, before);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2 AND memory_kept = 0 AND resumed_from = 'memory'"), 1);
	/* Only who woke it is told that it was. */
	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 10, true)), MSG_ID_sandbox);
	assert_false(msg_has(&got.sandbox, sandbox, resumed_from));
	machine.boot_shift = machine.wall_shift = 1070 * NS_PER_S;
	node_expire(node);
	expect_gone(id, "timeout");
}

static void a_resume_sets_the_deadline_as_its_way_says(void **state)
{
	static const struct {
		int64_t created, asked;
		enum resume_mode mode;
		int64_t expected;
	} table[] = {
		{10, 0, RESUME_CONNECT, 300}, {10, 20, RESUME_CONNECT, 20}, {1000, 20, RESUME_CONNECT, 20}, {10, -1, RESUME_CONNECT, -1},
		{10, 20, RESUME_EXPLICIT, 20}, {10, -1, RESUME_EXPLICIT, -1},
		{10, 0, RESUME_TRAFFIC, 300}, {1000, 0, RESUME_TRAFFIC, 1000}, {-1, 0, RESUME_TRAFFIC, -1},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct msg_create m = want();
		m.timeout = table[i].created;
		create_with(&m);
		pause_it(last_id, i % 2);
		assert_int_equal(answer(send_resume(last_id, table[i].mode, table[i].asked, true)), MSG_ID_sandbox);
		if (table[i].expected < 0)
			assert_int_equal(got.sandbox.end_at, SANDBOX_NEVER);
		else
			assert_in_range(got.sandbox.end_at - host.realtime(NULL), (table[i].expected - 10) * NS_PER_S, table[i].expected * NS_PER_S);
		expect_killed(last_id);
	}
}

static void wrong_resumes_and_pauses_are_refused(void **state)
{
	const char *id = create();
	expect_error(answer(send_pause("inosuchsandbox0000000", true)), 404, "not found");
	expect_error(answer(send_resume("inosuchsandbox0000000", RESUME_CONNECT, 10, true)), 404, "not found");
	expect_error(answer(send_resume(id, RESUME_EXPLICIT, 10, true)), 409, "already running");
	expect_error(answer(send_resume(id, RESUME_TRAFFIC + 1, 10, true)), 400, "mode");
	for (int paused = 0; paused < 2; paused++) {
		expect_error(answer(send_resume(id, RESUME_EXPLICIT, 0, true)), 400, "greater than 0");
		expect_error(answer(send_resume(id, RESUME_EXPLICIT, -2, true)), 400, "greater than 0");
		expect_error(answer(send_resume(id, RESUME_CONNECT, -2, true)), 400, "timeout");
		expect_error(answer(send_resume(id, RESUME_CONNECT, options.timeout_max + 1, true)), 400, "timeout.max");
		if (!paused)
			pause_it(id, true);
	}
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	expect_killed(id);
	expect_error(answer(send_pause(id, true)), 404, "not found");
	expect_error(answer(send_resume(id, RESUME_CONNECT, 10, true)), 404, "not found");
}

static void a_resume_changes_what_happens_at_the_deadline(void **state)
{
	const char *id = create();
	pause_it(id, true);
	struct msg_resume m = {.sandbox = str_of(id), .mode = RESUME_EXPLICIT, .timeout = 10, .memory = true};
	msg_set(&m, resume, auto_pause, true);
	assert_int_equal(answer(send_front(MSG_ID_resume, &m)), MSG_ID_sandbox);
	assert_true(got.sandbox.auto_pause);
	machine.boot_shift = 11 * NS_PER_S;
	node_expire(node);
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	restart();
	resume_it(id);
	assert_true(got.sandbox.auto_pause);
	expect_killed(id);
}

/* The disk only */

static void only_the_disk_is_kept(void **state)
{
	struct msg_create m = want();
	const char *id = create_with(&m);
	char token[65];
	sandbox_copy(token, sizeof(token), got.sandbox.envd_token);
	pause_it(id, false);
	settle();
	assert_null(fake_find(id));
	assert_int_equal(saved_files(), 1);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 4 AND memory_kept = 0 AND image LIKE 'saved/%' AND handle = ''"), 1);
	/* Its memory is free for others, its disk is not. */
	assert_int_equal(node->admission.sandboxes, 0);
	assert_int_equal(node->admission.memory_mb, 0);
	assert_int_equal(node->admission.disk_mb, 1024);
	expect_error(answer(send_pause(id, false)), 409, "already paused");

	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 60, true)), MSG_ID_sandbox);
	assert_str(got.sandbox.resumed_from, "disk");
	assert_str(got.sandbox.envd_token, token);
	const struct fake_box *b = fake_find(id);
	assert_true(b->alive && str_starts(str_of(b->from), STR("saved/")));
	assert_non_null(strstr(b->envs, "A=1\n"));
	assert_non_null(strstr(b->layer, "/images/aa.erofs"));
	assert_true(str_is(got.sandbox.envd_token, b->token));
	settle();
	assert_int_equal(saved_files(), 0);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2 AND image = '' AND handle <> '' AND resumed_from = 'disk'"), 1);
	assert_int_equal(node->admission.sandboxes, 1);
	assert_int_equal(node->admission.disk_mb, 1024);
	/* And again. */
	pause_it(id, false);
	resume_it(id);
	expect_killed(id);
}

static void memory_that_is_kept_can_be_given_up(void **state)
{
	const char *id = create();
	pause_it(id, true);
	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 60, false)), MSG_ID_sandbox);
	assert_str(got.sandbox.resumed_from, "disk");
	assert_int_equal(fake->saves, 1);
	expect_killed(id);
}

/* Many at once */

static void all_who_ask_at_once_are_answered_by_one(void **state)
{
	enum { N = 10 };
	uint64_t asked[N];
	subscribe();
	for (int memory = 0; memory < 2; memory++) {
		const char *id = create();
		int64_t before = fake->creates;
		for (int i = 0; i < N; i++)
			asked[i] = send_pause(id, memory);
		for (int i = 0; i < N; i++)
			assert_int_equal(answer(asked[i]), MSG_ID_ok);
		expect_error(answer(send_pause(id, memory)), 409, "already paused");
		for (int i = 0; i < N; i++)
			asked[i] = send_resume(id, i % 2 ? RESUME_CONNECT : RESUME_TRAFFIC, 400 + i, true);
		char generation[64] = "";
		for (int i = 0; i < N; i++) {
			assert_int_equal(answer(asked[i]), MSG_ID_sandbox);
			assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
			if (i)
				assert_str(got.sandbox.generation, generation);
			sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
		}
		/* The longest that anybody asked for. */
		assert_in_range(last_event(id)->end_at - host.realtime(NULL), 399 * NS_PER_S, 409 * NS_PER_S);
		assert_int_equal(fake->creates, before + !memory);
		expect_killed(id);
	}
}

static void what_comes_in_the_middle_waits_its_turn(void **state)
{
	const char *id = create();
	fake->flush = FAKE_MANUAL;
	uint64_t first = send_pause(id, true), resume = send_resume(id, RESUME_CONNECT, 60, true);
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSING);
	expect_error(timeout_of(id, TIMEOUT_SET, 10), 409, "pausing");
	uint64_t second = send_pause(id, true); /* joins the first; the resume comes after both */
	settle();
	assert_int_equal(fake_step_flushes(), 1);
	assert_int_equal(answer(first), MSG_ID_ok);
	assert_int_equal(answer(second), MSG_ID_ok);
	assert_int_equal(answer(resume), MSG_ID_sandbox);
	assert_str(got.sandbox.resumed_from, "memory");
	fake->flush = FAKE_AUTO;

	/* A pause in the middle of a boot comes after it. */
	pause_it(id, false);
	fake->start = FAKE_MANUAL;
	resume = send_resume(id, RESUME_CONNECT, 60, true);
	settle();
	first = send_pause(id, true);
	second = send_pause(id, false);
	uint64_t other = send_resume(id, RESUME_EXPLICIT, 600, true);
	settle();
	assert_int_equal(fake_step_starts(), 1);
	assert_int_equal(answer(resume), MSG_ID_sandbox);
	assert_int_equal(answer(other), MSG_ID_sandbox);
	assert_int_equal(answer(first), MSG_ID_ok);
	assert_int_equal(answer(second), MSG_ID_ok);
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	assert_true(live_find(node, str_of(id))->s.memory_kept);
	fake->start = FAKE_AUTO;
	expect_killed(id);
}

static void a_kill_ends_every_state_at_once(void **state)
{
	uint64_t pause, resume;
	const char *id = create();
	fake->flush = FAKE_MANUAL; /* pausing, frozen */
	pause = send_pause(id, true);
	resume = send_resume(id, RESUME_CONNECT, 60, true);
	settle();
	uint64_t kill_1 = send_kill(id), kill_2 = send_kill(id);
	expect_error(answer(pause), 404, "not found");
	expect_error(answer(resume), 404, "not found");
	assert_int_equal(answer(kill_1), MSG_ID_ok);
	assert_int_equal(answer(kill_2), MSG_ID_ok);
	expect_gone(id, "killed");
	fake->flush = FAKE_AUTO;

	id = create();
	fake->save = FAKE_MANUAL; /* pausing, its disk is being moved */
	pause = send_pause(id, false);
	settle();
	kill_1 = send_kill(id);
	expect_error(answer(pause), 404, "not found");
	settle();
	assert_int_equal(fake_step_saves(), 1);
	assert_int_equal(answer(kill_1), MSG_ID_ok);
	expect_gone(id, "killed");
	fake->save = FAKE_AUTO;

	for (int memory = 0; memory < 2; memory++) { /* paused */
		id = create();
		pause_it(id, memory);
		expect_killed(id);
	}

	id = create();
	pause_it(id, false);
	fake->start = FAKE_MANUAL; /* being started from its disk */
	resume = send_resume(id, RESUME_CONNECT, 60, true);
	settle();
	kill_1 = send_kill(id);
	expect_error(answer(resume), 404, "not found");
	assert_int_equal(answer(kill_1), MSG_ID_ok);
	expect_gone(id, "killed");
	fake->start = FAKE_AUTO;

	id = create();
	pause_it(id, true);
	resume = send_resume(id, RESUME_CONNECT, 60, true); /* the record is on its way */
	kill_1 = send_kill(id);
	unsigned type = answer(resume);
	assert_true(type == MSG_ID_sandbox || (type == MSG_ID_error && got.error.status == 404));
	assert_int_equal(answer(kill_1), MSG_ID_ok);
	expect_gone(id, "killed");
}

/* Deadlines */

static void the_deadline_pauses_where_it_was_asked_for(void **state)
{
	for (int memory = 0; memory < 2; memory++) {
		struct msg_create m = want();
		m.auto_pause = true;
		m.auto_pause_memory = memory;
		m.timeout = 10;
		const char *id = create_with(&m);
		machine.boot_shift += 11 * NS_PER_S;
		node_expire(node);
		settle();
		assert_int_equal(state_of(id), SANDBOX_PAUSED);
		assert_int_equal(live_find(node, str_of(id))->s.memory_kept, memory);
		resume_it(id);
		/* Expired by hand it pauses, too; the answer does not wait for that. */
		assert_int_equal(timeout_of(id, TIMEOUT_SET, 0), MSG_ID_sandbox);
		settle();
		assert_int_equal(state_of(id), SANDBOX_PAUSED);
		resume_it(id);
		expect_killed(id);
	}
}

static void a_deadline_in_the_middle_of_a_transition_does_no_harm(void **state)
{
	struct msg_create m = want();
	m.timeout = 10;
	const char *id = create_with(&m);
	fake->flush = FAKE_MANUAL;
	uint64_t pause = send_pause(id, true);
	settle();
	machine.boot_shift = 60 * NS_PER_S;
	node_expire(node);
	settle();
	assert_int_equal(fake_step_flushes(), 1);
	assert_int_equal(answer(pause), MSG_ID_ok);
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	/* It counts where the pause comes to nothing. */
	fake->flush = FAKE_AUTO;
	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 10, true)), MSG_ID_sandbox);
	fake->flush = FAKE_MANUAL;
	fake->flush_result = -EIO;
	pause = send_pause(id, true);
	settle();
	machine.boot_shift = 120 * NS_PER_S;
	assert_int_equal(fake_step_flushes(), 1);
	expect_error(answer(pause), 500, "cannot be paused");
	settle();
	assert_int_equal(state_of(id), SANDBOX_RUNNING);
	machine.boot_shift = 130 * NS_PER_S;
	node_expire(node);
	expect_gone(id, "timeout");
}

/* What fails */

static bool log_says(const char *id, const char *text)
{
	assert_int_equal(answer(send_front(MSG_ID_logs, &(struct msg_logs){.sandbox = str_of(id)})), MSG_ID_log_page);
	cleanup_buf struct buf page = BUF_INIT;
	buf_add_str(&page, got.log_page.entries);
	return strstr(buf_cstr(&page), text);
}

/* A microVM on a full disk: what its kernel has in its memory finds no room. So it is not asked for that, and nothing ends that would lose it. */
static void a_pause_on_a_full_disk_asks_no_other_kernel_to_write(void **state)
{
	subscribe();
	char id[33];
	snprintf(id, sizeof(id), "%s", create());
	struct fake_box *box = fake_find(id);
	box->space.foreign = true;
	node_disk_tick(node);
	assert_int_equal(answer(send_pause(id, true)), MSG_ID_ok);
	assert_true(box->flush_room);
	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 600, true)), MSG_ID_sandbox);
	uint64_t free_bytes = machine.disk.free;
	machine.disk.free = 100 << 20;
	node_disk_tick(node);
	assert_true(box->frozen);
	assert_true(log_says(id, "frozen: the server's disk is nearly full"));
	/* Only the disk would be kept. */
	expect_error(answer(send_pause(id, false)), 507, "disk is full");
	assert_int_equal(state_of(id), SANDBOX_RUNNING);
	assert_true(box->frozen); /* not thawed for a moment, in which it would take more */
	node_disk_tick(node);
	assert_true(box->frozen);
	assert_int_equal(answer(send_pause(id, true)), MSG_ID_ok);
	assert_false(box->flush_room);
	assert_true(box->frozen);
	/* Resumed it stays so until there is room. */
	assert_int_equal(answer(send_resume(id, RESUME_CONNECT, 600, true)), MSG_ID_sandbox);
	assert_true(box->frozen);
	node_disk_tick(node);
	assert_true(box->frozen);
	machine.disk.free = free_bytes;
	node_disk_tick(node);
	assert_false(box->frozen);
	assert_true(log_says(id, "goes on: the server's disk has room again"));
	machine.disk.free = 100 << 20;
	node_disk_tick(node);
	assert_true(box->frozen);
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	machine.disk.free = free_bytes;
	expect_gone(id, "killed");
}

static void a_pause_that_fails_leaves_it_running(void **state)
{
	subscribe();
	const char *id = create();
	for (int memory = 0; memory < 2; memory++) {
		fake->flush_result = -ENOSPC;
		expect_error(answer(send_pause(id, memory)), 507, "cannot be paused");
		fake->flush_result = 0;
		fake->freeze_result = -EIO;
		expect_error(answer(send_pause(id, memory)), 500, "cannot be paused");
		fake->freeze_result = 0;
		settle();
		assert_int_equal(state_of(id), SANDBOX_RUNNING);
		assert_int_equal(last_event(id)->state, SANDBOX_RUNNING);
		assert_false(fake_find(id)->frozen);
		assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2 AND memory_kept = 0 AND image = ''"), 1);
	}
	/* One at the deadline is tried again, not at once. */
	live_find(node, str_of(id))->s.auto_pause = true;
	fake->flush_result = -EIO;
	machine.boot_shift = 301 * NS_PER_S;
	node_expire(node);
	settle();
	unsigned syncs = fake_find(id)->syncs;
	node_expire(node);
	settle();
	assert_int_equal(fake_find(id)->syncs, syncs);
	fake->flush_result = 0;
	machine.boot_shift += 6 * NS_PER_S;
	node_expire(node);
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	expect_killed(id);
}

static void a_disk_that_cannot_be_kept_ends_it(void **state)
{
	const char *id = create();
	fake->save = FAKE_FAIL;
	uint64_t pause = send_pause(id, false);
	expect_error(answer(pause), 404, "not found");
	expect_gone(id, "crashed");
	assert_string_equal(last_event(id)->detail, "the fake cannot keep its disk");
}

static void a_boot_that_fails_loses_nothing(void **state)
{
	const char *id = create();
	pause_it(id, false);
	fake->start = FAKE_FAIL;
	uint64_t first = send_resume(id, RESUME_CONNECT, 60, true), second = send_resume(id, RESUME_TRAFFIC, 0, true);
	expect_error(answer(first), 500, "refuses to start");
	expect_error(answer(second), 500, "refuses to start");
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	assert_int_equal(saved_files(), 1);
	assert_int_equal(node->admission.sandboxes, 0);
	fake->start = FAKE_AUTO;
	fake->full = true;
	expect_error(answer(send_resume(id, RESUME_CONNECT, 60, true)), 503, "no slot");
	fake->full = false;
	machine.memory.available = 1;
	node->admission.looked = 0;
	expect_error(answer(send_resume(id, RESUME_CONNECT, 60, true)), 503, "short of memory");
	machine.memory.available = 12000 * MIB;
	node->admission.looked = 0;
	/* It ends between its start and its record. */
	fake->start = FAKE_MANUAL;
	first = send_resume(id, RESUME_CONNECT, 60, true);
	settle();
	fake_step_starts();
	fake_die(id, "oom_killed", "too much");
	expect_error(answer(first), 500, "too much");
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 4 AND image <> '' AND handle = ''"), 1);
	fake->start = FAKE_AUTO;
	restart();
	resume_it(id);
	expect_killed(id);
}

static void one_that_dies_while_it_is_paused_keeps_its_disk(void **state)
{
	const char *id = create();
	pause_it(id, true);
	fake_die(id, "crashed", "somebody killed it");
	settle();
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	assert_null(fake_find(id));
	assert_int_equal(saved_files(), 1);
	assert_int_equal(node->admission.sandboxes, 0);
	resume_it(id);
	assert_str(got.sandbox.resumed_from, "disk");

	fake->flush = FAKE_MANUAL; /* while pausing */
	uint64_t pause = send_pause(id, true);
	settle();
	fake_die(id, "crashed", "somebody killed it");
	assert_int_equal(answer(pause), MSG_ID_ok);
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	fake->flush = FAKE_AUTO;
	resume_it(id);
	assert_str(got.sandbox.resumed_from, "disk");

	pause_it(id, true); /* while it is being resumed: who waits is answered by a boot */
	uint64_t resume = send_resume(id, RESUME_CONNECT, 60, true);
	for (int i = 0; i < 5000 && !live_find(node, str_of(id))->recording && state_of(id) == SANDBOX_PAUSED; i++)
		loop_turn(loop, 10);
	if (live_find(node, str_of(id))->recording) {
		fake_die(id, "crashed", "somebody killed it");
		assert_int_equal(answer(resume), MSG_ID_sandbox);
		assert_str(got.sandbox.resumed_from, "disk");
	}
	settle();
	expect_killed(id);
}

static void records_of_an_older_version_pause_with_memory_only(void **state)
{
	const char *id = create();
	buf_clear(&live_find(node, str_of(id))->s.start);
	expect_error(answer(send_pause(id, false)), 400, "older version");
	pause_it(id, true);
	expect_error(answer(send_resume(id, RESUME_CONNECT, 60, false)), 400, "older version");
	restart();
	resume_it(id);
	expect_killed(id);
}

/* Restarts */

static void a_restarted_node_finds_what_is_paused(void **state)
{
	char kept[33], disk[33];
	memcpy(kept, create(), sizeof(kept));
	memcpy(disk, create(), sizeof(disk));
	pause_it(kept, true);
	pause_it(disk, false);
	for (int i = 0; i < 2; i++) {
		machine.boot_shift = machine.wall_shift += 1000 * NS_PER_S;
		restart();
		settle();
		subscribe();
		assert_int_equal(last_event(kept)->state, SANDBOX_PAUSED);
		assert_int_equal(last_event(disk)->state, SANDBOX_PAUSED);
		assert_true(fake_find(kept)->frozen);
		assert_int_equal(node->admission.sandboxes, 1);
		assert_int_equal(node->admission.disk_mb, 2048);
		expect_error(answer(send_pause(kept, true)), 409, "already paused");
	}
	resume_it(kept);
	assert_str(got.sandbox.resumed_from, "memory");
	resume_it(disk);
	assert_str(got.sandbox.resumed_from, "disk");
	assert_int_equal(answer(send_kill(kept)), MSG_ID_ok);
	expect_killed(disk);
}

static void a_reboot_leaves_the_disks_of_what_was_paused(void **state)
{
	char kept[33], disk[33], running[33];
	memcpy(kept, create(), sizeof(kept));
	memcpy(disk, create(), sizeof(disk));
	memcpy(running, create(), sizeof(running));
	pause_it(kept, true);
	pause_it(disk, false);
	leave();
	for (size_t i = 0; i < FAKE_BOXES; i++)
		fake->machine[i].alive = false;
	memset(host.boot_id, '7', 8);
	start();
	settle();
	subscribe();
	assert_string_equal(last_event(running)->reason, "host_lost");
	assert_int_equal(last_event(kept)->state, SANDBOX_PAUSED);
	assert_int_equal(saved_files(), 2);
	resume_it(kept);
	assert_str(got.sandbox.resumed_from, "disk");
	resume_it(disk);
	restart(); /* they are of this boot now */
	settle();
	assert_int_equal(state_of(kept), SANDBOX_RUNNING);
	assert_int_equal(answer(send_kill(kept)), MSG_ID_ok);
	pause_it(disk, false);
	leave();
	char path[256];
	snprintf(path, sizeof(path), "%s/saved", dir);
	remove_tree(AT_FDCWD, path);
	start();
	expect_gone(disk, "host_lost");
}

static void images_that_no_record_names_are_swept(void **state)
{
	char path[256];
	const char *id = create();
	pause_it(id, false);
	snprintf(path, sizeof(path), "%s/saved/%s-0000000000000000.img", dir, id);
	assert_int_equal(file_replace(AT_FDCWD, path, STR("of another life"), 0600), 0);
	snprintf(path, sizeof(path), "%s/saved/iaaaaaaaaaaaaaaaaaaaa-0000000000000000.img", dir);
	assert_int_equal(file_replace(AT_FDCWD, path, STR("of nobody"), 0600), 0);
	restart();
	settle();
	assert_int_equal(saved_files(), 1);
	resume_it(id);
	expect_killed(id);
}

/* Whatever the moment of the end: the state is running, paused or gone, connect and kill work, nothing is left over. */
static void check_after_crash(const char *id)
{
	settle();
	enum sandbox_state now = state_of(id);
	if (now != SANDBOX_GONE) {
		assert_true(now == SANDBOX_RUNNING || now == SANDBOX_PAUSED);
		subscribe();
		assert_int_equal(last_event(id)->state, now);
		resume_it(id);
		assert_true(fake_find(id)->alive && !fake_find(id)->frozen);
		pause_it(id, false);
		resume_it(id);
		expect_killed(id);
	}
	assert_int_equal(fake->live, 0);
	assert_int_equal(saved_files(), 0);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
}

/* Runs doing() in a node of its own, which ends without a word somewhere in it. */
static void crash_in(const char *id, void (*doing)(const char *id))
{
	leave();
	pid_t pid = fork();
	if (pid == 0) {
		start();
		settle();
		doing(id);
		settle();
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	fake->crash = CRASH_NOWHERE;
	if (!(WIFEXITED(status) && WEXITSTATUS(status) == FAKE_CRASHED) && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
		fail_msg("the node did not come to the point, status %x", status);
	start();
}

static void do_pause(const char *id)
{
	answer(send_pause(id, true));
}

static void do_pause_disk(const char *id)
{
	answer(send_pause(id, false));
}

static void do_resume(const char *id)
{
	answer(send_resume(id, RESUME_CONNECT, 60, true));
}

static void do_kill(const char *id)
{
	answer(send_kill(id));
}

static void prepare_running(char to[33])
{
	memcpy(to, create(), 33);
}

static void prepare_paused(char to[33])
{
	memcpy(to, create(), 33);
	pause_it(to, true);
}

static void prepare_saved(char to[33])
{
	memcpy(to, create(), 33);
	pause_it(to, false);
}

static void a_crash_of_the_machine_side_leaves_nothing_stuck(void **state)
{
	static const struct {
		enum fake_crash point;
		void (*prepare)(char to[33]);
		void (*doing)(const char *id);
	} table[] = {
		{CRASH_IN_FLUSH, prepare_running, do_pause},
		{CRASH_IN_FLUSH, prepare_running, do_pause_disk},
		{CRASH_IN_SAVE, prepare_running, do_pause_disk},
		{CRASH_SAVE_KILLED, prepare_running, do_pause_disk},
		{CRASH_SAVED, prepare_running, do_pause_disk},
		{CRASH_IN_CREATE, prepare_saved, do_resume},
		{CRASH_STARTED, prepare_saved, do_resume},
		{CRASH_IN_KILL, prepare_paused, do_kill},
		{CRASH_KILLED, prepare_paused, do_kill},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		char id[33];
		table[i].prepare(id);
		fake->crash = table[i].point;
		crash_in(id, table[i].doing);
		check_after_crash(id);
	}
}

#ifdef CUBICLE_FAULT_POINTS
static void a_crash_at_each_fault_point_leaves_nothing_stuck(void **state)
{
	static const struct {
		const char *point;
		void (*prepare)(char to[33]);
		void (*doing)(const char *id);
	} table[] = {
		{"pause_intended", prepare_running, do_pause}, {"pause_frozen", prepare_running, do_pause}, {"pause_synced", prepare_running, do_pause},
		{"pause_recorded", prepare_running, do_pause},
		{"pause_intended", prepare_running, do_pause_disk}, {"pause_frozen", prepare_running, do_pause_disk}, {"pause_synced", prepare_running, do_pause_disk},
		{"pause_moved", prepare_running, do_pause_disk}, {"pause_recorded", prepare_running, do_pause_disk},
		{"resume_recorded", prepare_paused, do_resume}, {"resume_thawed", prepare_paused, do_resume},
		{"boot_started", prepare_saved, do_resume}, {"boot_recorded", prepare_saved, do_resume},
		{"kill_intended", prepare_running, do_kill}, {"kill_intended", prepare_paused, do_kill}, {"kill_intended", prepare_saved, do_kill},
		{"kill_image_gone", prepare_saved, do_kill},
	};
	char file[128];
	snprintf(file, sizeof(file), "%s/fault", dir);
	setenv("FAULT_POINT_FILE", file, 1);
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		char id[33];
		table[i].prepare(id);
		settle();
		assert_int_equal(file_replace(AT_FDCWD, file, str_of(table[i].point), 0600), 0);
		crash_in(id, table[i].doing);
		check_after_crash(id);
	}
	unsetenv("FAULT_POINT_FILE");
}
#endif

/* All are answered, in any order: done, or 404 or 409. */
static void expect_answers(const uint64_t *asked, unsigned n)
{
	unsigned missing = n;
	for (int i = 0; i < 5000 && missing; i++) {
		uint64_t request;
		unsigned type;
		while ((type = receive(&request))) {
			if (request < asked[0] || request > asked[n - 1])
				continue;
			missing--;
			assert_true(type == MSG_ID_ok || type == MSG_ID_sandbox || type == MSG_ID_error);
			if (type == MSG_ID_error && got.error.status != 404 && got.error.status != 409)
				fail_msg("%llu: %.*s", (unsigned long long)got.error.status, STR_FMT(got.error.message));
		}
		loop_turn(loop, 10);
	}
	assert_int_equal(missing, 0);
}

/* Everything against everything, and a node that is ended in the middle now and then. */
static void hundreds_of_races_end_in_a_state_that_can_be_left(void **state)
{
	unsigned seed = 7;
	for (int round = 0; round < 300; round++) {
		const char *id = create();
		unsigned n = 2 + (unsigned)rand_r(&seed) % 6;
		uint64_t asked[16];
		bool killed = false;
		for (unsigned i = 0; i < n; i++) {
			unsigned what = (unsigned)rand_r(&seed) % 8;
			struct msg_timeout t = {.sandbox = str_of(id), .mode = (unsigned)rand_r(&seed) % 3, .timeout = 100 + rand_r(&seed) % 500};
			killed |= what == 6;
			asked[i] = what < 3 ? send_pause(id, what) : what < 6 ? send_resume(id, (enum resume_mode)(what - 3), 100, rand_r(&seed) % 4)
					: what == 6 ? send_kill(id) : send_front(MSG_ID_timeout, &t);
			for (int turns = rand_r(&seed) % 4; turns > 0; turns--)
				loop_turn(loop, 0);
			if (rand_r(&seed) % 40 == 0 && fake_find(id) && fake_find(id)->alive)
				fake_die(id, "crashed", "on its own");
		}
		expect_answers(asked, n);
		settle();
		enum sandbox_state now = state_of(id);
		assert_true(now == SANDBOX_RUNNING || now == SANDBOX_PAUSED || now == SANDBOX_GONE);
		assert_true(!killed || now == SANDBOX_GONE);
		if (round % 10 == 0)
			restart();
		if (now != SANDBOX_GONE) {
			resume_it(id);
			assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
			settle();
		}
		assert_null(fake_find(id));
		assert_int_equal(saved_files(), 0);
		assert_int_equal(node->admission.disk_mb, 0);
		assert_int_equal(node->admission.sandboxes, 0);
	}
}

static void paused_ones_do_not_hold_a_stop_up(void **state)
{
	const char *id = create();
	pause_it(id, true);
	const char *other = create();
	fake->flush = FAKE_MANUAL;
	uint64_t pause = send_pause(other, true);
	settle();
	stopped = false;
	node_stop(node, on_flag, &stopped);
	settle();
	assert_false(stopped);
	expect_error(answer(send_resume(id, RESUME_CONNECT, 60, true)), 503, "stopping");
	fake_step_flushes();
	assert_int_equal(answer(pause), MSG_ID_ok);
	settle();
	assert_true(stopped);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup_pause, teardown)
	const struct CMUnitTest tests[] = {
		T(a_pause_keeps_everything_and_stops_the_clock),
		T(a_resume_sets_the_deadline_as_its_way_says),
		T(wrong_resumes_and_pauses_are_refused),
		T(a_resume_changes_what_happens_at_the_deadline),
		T(only_the_disk_is_kept),
		T(memory_that_is_kept_can_be_given_up),
		T(all_who_ask_at_once_are_answered_by_one),
		T(what_comes_in_the_middle_waits_its_turn),
		T(a_kill_ends_every_state_at_once),
		T(the_deadline_pauses_where_it_was_asked_for),
		T(a_deadline_in_the_middle_of_a_transition_does_no_harm),
		T(a_pause_on_a_full_disk_asks_no_other_kernel_to_write),
		T(a_pause_that_fails_leaves_it_running),
		T(a_disk_that_cannot_be_kept_ends_it),
		T(a_boot_that_fails_loses_nothing),
		T(one_that_dies_while_it_is_paused_keeps_its_disk),
		T(records_of_an_older_version_pause_with_memory_only),
		T(a_restarted_node_finds_what_is_paused),
		T(a_reboot_leaves_the_disks_of_what_was_paused),
		T(images_that_no_record_names_are_swept),
		T(a_crash_of_the_machine_side_leaves_nothing_stuck),
#ifdef CUBICLE_FAULT_POINTS
		T(a_crash_at_each_fault_point_leaves_nothing_stuck),
#endif
		T(hundreds_of_races_end_in_a_state_that_can_be_left),
		T(paused_ones_do_not_hold_a_stop_up),
	};
	return node_world_run(tests);
}
