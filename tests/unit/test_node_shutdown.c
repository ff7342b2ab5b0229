#include "node_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* lifecycle.shutdownAfterSeconds (node/shutdown.c), and what a file of an older version says of it. */

#define DETAIL "shutdownAfterSeconds"

static int setup_shutdown(void **state)
{
	int r = setup(state);
	snprintf(fake->dir, sizeof(fake->dir), "%s", dir);
	return r;
}

static struct msg_create bounded(int64_t seconds)
{
	struct msg_create m = want();
	msg_set(&m, create, shutdown_after, seconds);
	return m;
}

static void make(char to[33], int64_t seconds)
{
	struct msg_create m = bounded(seconds);
	memcpy(to, create_with(&m), 33);
}

static uint64_t send_pause(const char *id, bool memory)
{
	struct msg_pause m = {.sandbox = str_of(id), .memory = memory};
	return send_front(MSG_ID_pause, &m);
}

static uint64_t send_resume(const char *id, int64_t timeout)
{
	struct msg_resume m = {.sandbox = str_of(id), .mode = RESUME_CONNECT, .timeout = timeout, .memory = true};
	return send_front(MSG_ID_resume, &m);
}

/* Both clocks: so many seconds pass. */
static void pass(int64_t seconds)
{
	machine.boot_shift += seconds * NS_PER_S;
	machine.wall_shift += seconds * NS_PER_S;
	node_expire(node);
	settle();
}

static enum sandbox_state state_of(const char *id)
{
	const struct live *l = live_find(node, str_of(id));
	return l ? l->s.state : SANDBOX_GONE;
}

static int64_t moment_of(const char *id)
{
	return live_find(node, str_of(id))->s.shutdown_at;
}

/* Nothing is left of it, and it says why. */
static void expect_ended(const char *id)
{
	settle();
	assert_int_equal(state_of(id), SANDBOX_GONE);
	assert_null(fake_find(id));
	subscribe();
	assert_string_equal(last_event(id)->reason, "timeout");
	assert_string_equal(last_event(id)->detail, DETAIL);
	assert_int_equal(rows("SELECT count(*) FROM ends WHERE reason = 'timeout' AND detail = '" DETAIL "'"), 1);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	assert_int_equal(node->admission.sandboxes, 0);
	assert_int_equal(node->admission.disk_mb, 0);
	char path[128];
	snprintf(path, sizeof(path), "%s/saved", dir);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		assert_true(e->d_name[0] == '.');
}

static void the_moment_is_told_and_recorded(void **state)
{
	char id[33];
	make(id, 100);
	int64_t at = got.sandbox.started_at + 100 * NS_PER_S;
	assert_int_equal(got.sandbox.shutdown_at, at);
	assert_int_equal(got.sandbox.end_at, at); /* the earlier of both */
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE shutdown_at = started_at + 100000000000 AND shutdown < 9223372036854775807"), 1);
	struct msg_create m = bounded(SHUTDOWN_AFTER_MOST);
	create_with(&m);
	assert_true(got.sandbox.end_at < got.sandbox.shutdown_at);
	assert_in_range(got.sandbox.end_at - got.sandbox.started_at, 299 * NS_PER_S, 310 * NS_PER_S);
	create();
	assert_false(msg_has(&got.sandbox, sandbox, shutdown_at));
	static const int64_t wrong[] = {0, -1, INT64_MIN, INT64_MAX, (int64_t)SHUTDOWN_AFTER_MOST + 1};
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		refuse_create(bounded(wrong[i]), 400, "shutdownAfterSeconds");
}

static void nothing_moves_it(void **state)
{
	char id[33];
	make(id, 1000);
	int64_t at = moment_of(id);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, -1), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.end_at, at);
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 86400), MSG_ID_sandbox);
	assert_int_equal(timeout_of(id, TIMEOUT_REFRESH, 3600), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.end_at, at);
	for (int memory = 0; memory < 2; memory++) {
		assert_int_equal(answer(send_pause(id, memory)), MSG_ID_ok);
		pass(100);
		assert_int_equal(answer(send_resume(id, -1)), MSG_ID_sandbox);
		assert_int_equal(got.sandbox.end_at, at);
		assert_int_equal(got.sandbox.shutdown_at, at);
	}
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 10), MSG_ID_sandbox);
	assert_true(got.sandbox.end_at < at);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 20000), MSG_ID_sandbox);
	pass(799);
	assert_int_equal(state_of(id), SANDBOX_RUNNING);
	pass(2);
	expect_ended(id);
}

static void the_deadline_before_it_counts(void **state)
{
	char id[33];
	make(id, 1000);
	subscribe();
	pass(301);
	assert_int_equal(state_of(id), SANDBOX_GONE);
	assert_string_equal(last_event(id)->detail, "its timeout passed");
	pass(1000);
}

static void it_comes_by_itself(void **state)
{
	char id[33];
	make(id, 1);
	for (int i = 0; i < 5000 && fake->live; i++)
		loop_turn(loop, 10);
	expect_ended(id);
	/* A paused one has no other deadline. */
	make(id, 2);
	assert_int_equal(answer(send_pause(id, true)), MSG_ID_ok);
	for (int i = 0; i < 5000 && fake->live; i++)
		loop_turn(loop, 10);
	settle();
	assert_int_equal(state_of(id), SANDBOX_GONE);
}

static void a_paused_one_ends(void **state)
{
	char id[33];
	for (int memory = 0; memory < 2; memory++) {
		make(id, 100);
		assert_int_equal(answer(send_pause(id, memory)), MSG_ID_ok);
		pass(99);
		assert_int_equal(state_of(id), SANDBOX_PAUSED);
		pass(2);
		if (memory == 0)
			expect_ended(id);
		assert_int_equal(state_of(id), SANDBOX_GONE);
		expect_error(answer(send_resume(id, 60)), 404, "not found");
	}
}

static void a_pause_at_the_deadline_does_not_save_it(void **state)
{
	struct msg_create m = bounded(100);
	m.auto_pause = true;
	m.timeout = 50;
	char id[33];
	memcpy(id, create_with(&m), sizeof(id));
	pass(51);
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	pass(50);
	expect_ended(id);
	/* Both at once, and the later one only. */
	m.timeout = 100;
	memcpy(id, create_with(&m), sizeof(id));
	pass(101);
	assert_int_equal(state_of(id), SANDBOX_GONE);
	m.timeout = 200;
	memcpy(id, create_with(&m), sizeof(id));
	pass(101);
	assert_int_equal(state_of(id), SANDBOX_GONE);
}

static void it_comes_in_the_middle_of_a_transition(void **state)
{
	char id[33];
	make(id, 100);
	fake->flush = FAKE_MANUAL;
	uint64_t request = send_pause(id, true);
	settle();
	machine.boot_shift += 101 * NS_PER_S;
	node_expire(node);
	expect_error(answer(request), 404, "not found");
	fake->flush = FAKE_AUTO;
	fake_step_flushes();
	settle();
	assert_int_equal(state_of(id), SANDBOX_GONE);

	make(id, 100);
	fake->copy = FAKE_MANUAL;
	struct msg_make_snapshot s = {.sandbox = str_of(id)};
	request = send_front(MSG_ID_make_snapshot, &s);
	settle();
	machine.boot_shift += 101 * NS_PER_S;
	node_expire(node);
	fake_step_copies();
	answer(request); /* the copy may be complete */
	fake->copy = FAKE_AUTO;
	settle();
	assert_int_equal(state_of(id), SANDBOX_GONE);

	make(id, 100);
	assert_int_equal(answer(send_pause(id, false)), MSG_ID_ok);
	fake->start = FAKE_MANUAL;
	request = send_resume(id, 60);
	settle();
	machine.boot_shift += 101 * NS_PER_S;
	node_expire(node);
	expect_error(answer(request), 404, "not found");
	fake_step_starts();
	fake->start = FAKE_AUTO;
	settle();
	assert_int_equal(state_of(id), SANDBOX_GONE);

	/* A kill is under way: its reason stays. */
	make(id, 100);
	subscribe();
	fake->kill = FAKE_MANUAL;
	request = send_kill(id);
	settle();
	machine.boot_shift += 101 * NS_PER_S;
	node_expire(node);
	fake_step_kills();
	assert_int_equal(answer(request), MSG_ID_ok);
	settle();
	assert_string_equal(last_event(id)->reason, "killed");
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
	assert_int_equal(fake_alive(), 0);
}

static void a_step_of_the_wall_clock_moves_what_is_shown_only(void **state)
{
	char id[33], paused[33];
	make(id, 100);
	make(paused, 100);
	assert_int_equal(answer(send_pause(paused, true)), MSG_ID_ok);
	int64_t at = moment_of(id), paused_at = moment_of(paused);
	machine.wall_shift += 3600 * NS_PER_S;
	node_clock_stepped(node);
	node_expire(node);
	settle();
	assert_in_range(moment_of(id) - at, 3599 * NS_PER_S, 3601 * NS_PER_S);
	assert_in_range(moment_of(paused) - paused_at, 3599 * NS_PER_S, 3601 * NS_PER_S);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE shutdown_at > started_at + 3600000000000"), 2);
	assert_int_equal(state_of(id), SANDBOX_RUNNING);
	assert_int_equal(state_of(paused), SANDBOX_PAUSED);
	/* While no node runs: made good at the next start, and recorded. */
	machine.wall_shift -= 3600 * NS_PER_S;
	restart();
	settle();
	assert_true(llabs(moment_of(id) - at) <= NS_PER_S && llabs(moment_of(paused) - paused_at) <= NS_PER_S);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE shutdown_at > started_at + 200000000000"), 0);
	pass(101);
	assert_int_equal(state_of(id), SANDBOX_GONE);
	assert_int_equal(state_of(paused), SANDBOX_GONE);
}

static void reboot(void)
{
	leave();
	host.boot_id[0]++;
	machine.boot_shift += 12345 * NS_PER_S; /* CLOCK_BOOTTIME is another one; the loop's own timers want it ahead of the real one */
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive) {
			fake->machine[i].alive = fake->machine[i].known = false;
			fake->machine[i].disk = true;
		}
	start();
	settle();
}

/* Only the wall time is known then: it is followed until the sandbox runs again. */
static void a_reboot_does_not_move_it(void **state)
{
	char id[33], kept[33];
	make(id, 1000);
	make(kept, 1000);
	assert_int_equal(answer(send_pause(id, false)), MSG_ID_ok);
	assert_int_equal(answer(send_pause(kept, true)), MSG_ID_ok);
	int64_t at = moment_of(id), kept_at = moment_of(kept);
	for (int i = 0; i < 2; i++) {
		machine.wall_shift += 100 * NS_PER_S;
		reboot();
		restart();
		settle();
		assert_int_equal(moment_of(id), at);
		assert_int_equal(moment_of(kept), kept_at);
		assert_int_equal(state_of(id), SANDBOX_PAUSED);
	}
	/* The machine had a wrong clock when it started. */
	machine.wall_shift -= 86400 * NS_PER_S;
	reboot();
	pass(5000);
	assert_int_equal(state_of(id), SANDBOX_PAUSED);
	machine.wall_shift += (86400 - 5000) * NS_PER_S;
	node_clock_stepped(node);
	settle();
	assert_int_equal(moment_of(id), at);
	/* It runs: from here on the clock of this boot counts, through steps. */
	assert_int_equal(answer(send_resume(id, -1)), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.end_at, at);
	machine.wall_shift += 86400 * NS_PER_S;
	node_clock_stepped(node);
	settle();
	assert_int_equal(state_of(id), SANDBOX_RUNNING);
	assert_int_equal(state_of(kept), SANDBOX_GONE);
	machine.wall_shift -= 86400 * NS_PER_S;
	node_clock_stepped(node);
	pass(780);
	assert_int_equal(state_of(id), SANDBOX_RUNNING);
	pass(30);
	assert_int_equal(state_of(id), SANDBOX_GONE);
}

static void one_that_passed_while_no_node_ran_ends_it(void **state)
{
	char id[33];
	for (int i = 0; i < 3; i++) {
		make(id, 100);
		if (i)
			assert_int_equal(answer(send_pause(id, i == 1)), MSG_ID_ok);
		leave();
		machine.boot_shift += 101 * NS_PER_S;
		machine.wall_shift += 101 * NS_PER_S;
		start();
		pass(0);
		if (i == 0)
			expect_ended(id);
		assert_int_equal(state_of(id), SANDBOX_GONE);
	}
	/* And while the machine was off. */
	make(id, 100);
	assert_int_equal(answer(send_pause(id, false)), MSG_ID_ok);
	machine.wall_shift += 101 * NS_PER_S;
	reboot();
	pass(0);
	assert_int_equal(state_of(id), SANDBOX_GONE);
	assert_int_equal(fake_alive(), 0);
}

static void forks_inherit_it_and_snapshots_do_not(void **state)
{
	char id[33], snapshot[33];
	make(id, 100);
	int64_t at = moment_of(id);
	machine.boot_shift += 30 * NS_PER_S;
	machine.wall_shift += 30 * NS_PER_S;
	struct msg_make_snapshot s = {.sandbox = str_of(id)};
	assert_int_equal(answer(send_front(MSG_ID_make_snapshot, &s)), MSG_ID_snapshot);
	sandbox_copy(snapshot, sizeof(snapshot), got.snapshot.id);
	struct msg_fork f = {.sandbox = str_of(id), .count = 2, .timeout = -1};
	assert_int_equal(answer(send_front(MSG_ID_fork, &f)), MSG_ID_forked);
	settle();
	assert_int_equal(node->live.count, 3);
	map_foreach(&node->live, slot) assert_int_equal(((struct live *)slot->value)->s.shutdown_at, at);
	struct msg_create m = want();
	m.template = str_of(snapshot);
	create_with(&m);
	assert_false(msg_has(&got.sandbox, sandbox, shutdown_at));
	/* A rollback is of the same sandbox. */
	struct msg_rollback b = {.sandbox = str_of(id), .snapshot = str_of(snapshot)};
	assert_int_equal(answer(send_front(MSG_ID_rollback, &b)), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.shutdown_at, at);
	restart();
	pass(71);
	assert_int_equal(node->live.count, 1);
	assert_int_equal(state_of(last_id), SANDBOX_RUNNING);
}

#ifdef CUBICLE_FAULT_POINTS
/* The node ends at that point of a pause, a resume, or of the end itself; the moment passes. */
static void a_crash_at_each_fault_point_does_not_save_it(void **state)
{
	static const struct {
		const char *point;
		int first, then; /* 0 nothing, 1 a pause with memory, 2 without, 3 a resume, 4 the end */
	} table[] = {
		{"pause_intended", 0, 1}, {"pause_frozen", 0, 1}, {"pause_synced", 0, 1}, {"pause_recorded", 0, 1},
		{"pause_intended", 0, 2}, {"pause_synced", 0, 2}, {"pause_moved", 0, 2}, {"pause_recorded", 0, 2},
		{"resume_recorded", 1, 3}, {"resume_thawed", 1, 3}, {"boot_started", 2, 3}, {"boot_recorded", 2, 3},
		{"kill_intended", 0, 4}, {"kill_intended", 1, 4}, {"kill_intended", 2, 4}, {"kill_image_gone", 2, 4},
	};
	char file[128], id[33];
	snprintf(file, sizeof(file), "%s/fault", dir);
	setenv("FAULT_POINT_FILE", file, 1);
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		make(id, 1000);
		if (table[i].first)
			assert_int_equal(answer(send_pause(id, table[i].first == 1)), MSG_ID_ok);
		settle();
		leave();
		assert_int_equal(file_replace(AT_FDCWD, file, str_of(table[i].point), 0600), 0);
		pid_t pid = fork();
		if (pid == 0) {
			start();
			settle();
			if (table[i].then == 4)
				pass(1001);
			else
				answer(table[i].then == 3 ? send_resume(id, 60) : send_pause(id, table[i].then == 1));
			settle();
			_exit(0);
		}
		int status;
		waitpid(pid, &status, 0);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			fail_msg("the node did not come to %s, status %x", table[i].point, status);
		machine.boot_shift += 1001 * NS_PER_S;
		machine.wall_shift += 1001 * NS_PER_S;
		start();
		settle(); /* moves of images are over */
		pass(0);
		assert_int_equal(state_of(id), SANDBOX_GONE);
		assert_int_equal(fake_alive(), 0);
		assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
		assert_int_equal(rows("SELECT count(*) FROM ends WHERE reason <> 'timeout'"), 0);
		assert_int_equal(rows("SELECT count(*) FROM ends"), (int64_t)i + 1);
	}
	unsetenv("FAULT_POINT_FILE");
}
#endif

/* As it was: never changed. */
static const char *const version_2[] = {
	"CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;"
	"CREATE TABLE sandboxes ("
	" id TEXT PRIMARY KEY, state INTEGER NOT NULL, team TEXT NOT NULL, template_id TEXT NOT NULL, alias TEXT NOT NULL, boot_id TEXT NOT NULL,"
	" started_at INTEGER NOT NULL, end_at INTEGER NOT NULL, deadline INTEGER NOT NULL,"
	" cpu_count INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_mb INTEGER NOT NULL, secure INTEGER NOT NULL, public_traffic INTEGER NOT NULL,"
	" internet INTEGER, auto_pause INTEGER NOT NULL, auto_resume INTEGER NOT NULL, metadata BLOB NOT NULL, generation TEXT NOT NULL,"
	" launch TEXT NOT NULL, handle TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL) STRICT;"
	"CREATE TABLE ends ("
	" id TEXT PRIMARY KEY, team TEXT NOT NULL, template_id TEXT NOT NULL, alias TEXT NOT NULL,"
	" started_at INTEGER NOT NULL, ended_at INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL) STRICT;"
	"CREATE INDEX ends_by_time ON ends (ended_at, id)",
	"ALTER TABLE sandboxes ADD COLUMN auto_pause_memory INTEGER NOT NULL DEFAULT 1;"
	"ALTER TABLE sandboxes ADD COLUMN memory_kept INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE sandboxes ADD COLUMN timeout INTEGER NOT NULL DEFAULT 300;"
	"ALTER TABLE sandboxes ADD COLUMN image TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE sandboxes ADD COLUMN resumed_from TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE sandboxes ADD COLUMN allow_out BLOB NOT NULL DEFAULT x'';"
	"ALTER TABLE sandboxes ADD COLUMN deny_out BLOB NOT NULL DEFAULT x'';"
	"ALTER TABLE sandboxes ADD COLUMN start BLOB NOT NULL DEFAULT x'';"
	"ALTER TABLE sandboxes ADD COLUMN origin TEXT NOT NULL DEFAULT '';"
	"CREATE TABLE snapshots ("
	" id TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, sandbox TEXT NOT NULL, template_id TEXT NOT NULL, created_at INTEGER NOT NULL,"
	" cpu_count INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_mb INTEGER NOT NULL, image TEXT NOT NULL, size INTEGER NOT NULL, start BLOB NOT NULL) STRICT",
};

#define COLUMNS_2                                                                                            \
	"id, state, team, template_id, alias, boot_id, started_at, end_at, deadline, cpu_count, memory_mb, disk_mb, secure, public_traffic, internet," \
	" auto_pause, auto_resume, metadata, generation, launch, handle, reason, detail, auto_pause_memory, memory_kept, timeout, image, resumed_from," \
	" allow_out, deny_out, start, origin"

static void a_file_of_version_2_is_taken_over(void **state)
{
	char running[33], paused[33], ended[33], snapshot[33], path[128], sql[512];
	struct store *s = NULL;
	memcpy(running, create(), sizeof(running));
	memcpy(paused, create(), sizeof(paused));
	memcpy(ended, create(), sizeof(ended));
	char token[65] = "";
	sandbox_copy(token, sizeof(token), got.sandbox.envd_token);
	struct msg_make_snapshot m = {.sandbox = str_of(running)};
	assert_int_equal(answer(send_front(MSG_ID_make_snapshot, &m)), MSG_ID_snapshot);
	sandbox_copy(snapshot, sizeof(snapshot), got.snapshot.id);
	assert_int_equal(answer(send_pause(paused, false)), MSG_ID_ok);
	assert_int_equal(answer(send_kill(ended)), MSG_ID_ok);
	leave();
	snprintf(path, sizeof(path), "%s/node.db", dir);
	snprintf(sql, sizeof(sql), "%s.new", path);
	assert_int_equal(rename(path, sql), 0);
	assert_int_equal(store_open(path, 0, version_2, 2, &s, NULL), 0);
	snprintf(sql, sizeof(sql), "ATTACH '%s.new' AS n", path);
	assert_int_equal(store_exec(s, sql, NULL), 0);
	assert_int_equal(store_exec(s, "INSERT INTO sandboxes (" COLUMNS_2 ") SELECT " COLUMNS_2 " FROM n.sandboxes;"
		"INSERT INTO ends SELECT * FROM n.ends; INSERT INTO snapshots SELECT * FROM n.snapshots; INSERT INTO meta SELECT * FROM n.meta; DETACH n", NULL), 0);
	store_free(s);
	start();
	settle();
	subscribe();
	assert_int_equal(last_event(running)->state, SANDBOX_RUNNING);
	assert_int_equal(last_event(paused)->state, SANDBOX_PAUSED);
	assert_string_equal(last_event(ended)->reason, "killed");
	assert_int_equal(n_snapshots, 1);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE idempotency = '' AND fingerprint = '' AND shutdown_at = 9223372036854775807"
		" AND shutdown = 9223372036854775807"), 2);
	assert_int_equal(rows("SELECT count(*) FROM pools"), 0);
	/* No bound, then and later. */
	pass(299);
	assert_int_equal(timeout_of(running, TIMEOUT_SET, -1), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.end_at, INT64_MAX);
	assert_false(msg_has(&got.sandbox, sandbox, shutdown_at));
	pass(100 * 86400);
	assert_int_equal(state_of(running), SANDBOX_RUNNING);
	assert_int_equal(answer(send_resume(paused, 60)), MSG_ID_sandbox);
	/* It is of this version from now on. */
	restart();
	settle();
	assert_int_equal(state_of(running), SANDBOX_RUNNING);
	assert_int_equal(answer(send_kill(running)), MSG_ID_ok);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup_shutdown, teardown)
	const struct CMUnitTest tests[] = {
		T(the_moment_is_told_and_recorded),
		T(nothing_moves_it),
		T(the_deadline_before_it_counts),
		T(it_comes_by_itself),
		T(a_paused_one_ends),
		T(a_pause_at_the_deadline_does_not_save_it),
		T(it_comes_in_the_middle_of_a_transition),
		T(a_step_of_the_wall_clock_moves_what_is_shown_only),
		T(a_reboot_does_not_move_it),
		T(one_that_passed_while_no_node_ran_ends_it),
		T(forks_inherit_it_and_snapshots_do_not),
#ifdef CUBICLE_FAULT_POINTS
		T(a_crash_at_each_fault_point_does_not_save_it),
#endif
		T(a_file_of_version_2_is_taken_over),
	};
	return node_world_run(tests);
}
