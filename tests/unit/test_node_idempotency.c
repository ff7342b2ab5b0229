#include "node_world.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The names that clients give to creates (node/idempotency.h). */

static int setup_names(void **state)
{
	int r = setup(state);
	snprintf(fake->dir, sizeof(fake->dir), "%s", dir);
	return r;
}

static struct msg_create named(const char *name, const char *fingerprint)
{
	struct msg_create m = want();
	msg_set(&m, create, idempotency, str_of(name));
	msg_set(&m, create, fingerprint, str_of(fingerprint));
	return m;
}

static uint64_t send_named(const char *name)
{
	struct msg_create m = named(name, "f1");
	return send_front(MSG_ID_create, &m);
}

/* The id that the create with this name answers; the state is in got. */
static const char *make(const char *name)
{
	static char id[33];
	unsigned type = answer(send_named(name));
	if (type != MSG_ID_sandbox)
		fail_msg("%s: %.*s", name, STR_FMT(got.error.message));
	sandbox_copy(id, sizeof(id), got.sandbox.id);
	return id;
}

/* The name is nobody's: a create with it makes a new one. */
static void expect_free(const char *name, const char *before)
{
	unsigned creates = fake->creates;
	const char *id = make(name);
	assert_string_not_equal(id, before);
	assert_int_equal(fake->creates, creates + 1);
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
}

static void the_same_name_is_the_same_sandbox(void **state)
{
	char a[33];
	memcpy(a, make("build-7"), sizeof(a));
	assert_str(got.sandbox.idempotency, "build-7");
	assert_str(got.sandbox.fingerprint, "f1");
	assert_string_equal(make("build-7"), a);
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	assert_int_equal(fake->creates, 1);
	assert_int_equal(node->admission.sandboxes, 1);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE idempotency = 'build-7' AND fingerprint = 'f1'"), 1);
	assert_string_not_equal(make("build-8"), a);
	assert_string_not_equal(make("Build-7"), a);
	/* Another team's, one that could be taken for it, and none. */
	struct msg_create m = named("build-7", "f1");
	m.team = STR("team-2");
	assert_string_not_equal(create_with(&m), a);
	m.team = STR("team-1\0build-7");
	m.idempotency = STR("x");
	expect_error(answer(send_front(MSG_ID_create, &m)), 400, "team");
	assert_string_not_equal(create(), a);
	assert_false(msg_has(&got.sandbox, sandbox, idempotency));
	assert_int_equal(fake_alive(), 5);
}

static void another_request_under_the_name_is_refused(void **state)
{
	const char *id = make("k");
	refuse_create(named("k", "f2"), 409, "Idempotency-Key");
	refuse_create(named("k", "f2"), 409, id);
	refuse_create(named("k", "f"), 409, "something else");
	assert_string_equal(make("k"), id);
}

static void wrong_names_are_refused(void **state)
{
	static char long_one[257];
	memset(long_one, 'x', 255);
	make(long_one);
	refuse_create(named("", "f1"), 400, "Idempotency-Key");
	refuse_create(named("a b", "f1"), 400, "visible ASCII");
	refuse_create(named("\xc3\xbc", "f1"), 400, "visible ASCII");
	refuse_create(named("\x7f", "f1"), 400, "visible ASCII");
	refuse_create(named("k", ""), 400, "fingerprint");
	struct msg_create m = named("k", "f1");
	m.idempotency = STR("a\0b");
	refuse_create(m, 400, "visible ASCII");
	assert_int_equal(node->names.count, 1);
}

/* The state does not matter, nor whether a new one would be admitted. */
static void a_name_finds_its_sandbox_in_every_state(void **state)
{
	char id[33];
	memcpy(id, make("k"), sizeof(id));
	struct msg_pause p = {.sandbox = str_of(id), .memory = true};
	fake->flush = FAKE_MANUAL;
	uint64_t pause = send_front(MSG_ID_pause, &p);
	settle();
	assert_string_equal(make("k"), id);
	assert_int_equal(got.sandbox.state, SANDBOX_PAUSING);
	fake_step_flushes();
	assert_int_equal(answer(pause), MSG_ID_ok);
	fake->flush = FAKE_AUTO;
	assert_string_equal(make("k"), id);
	assert_int_equal(got.sandbox.state, SANDBOX_PAUSED);
	machine.disk.free = 0;
	assert_string_equal(make("k"), id);
	machine.disk.free = 150000 * MIB;
	struct msg_resume r = {.sandbox = str_of(id), .mode = RESUME_CONNECT, .timeout = 60, .memory = true};
	assert_int_equal(answer(send_front(MSG_ID_resume, &r)), MSG_ID_sandbox);
	assert_string_equal(make("k"), id);
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	/* A copy is under way. */
	fake->copy = FAKE_MANUAL;
	struct msg_make_snapshot s = {.sandbox = str_of(id)};
	uint64_t copy = send_front(MSG_ID_make_snapshot, &s);
	settle();
	assert_string_equal(make("k"), id);
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	fake_step_copies();
	assert_int_equal(answer(copy), MSG_ID_snapshot);
	assert_int_equal(fake->creates, 1);
}

static void a_repeat_joins_a_create_under_way(void **state)
{
	uint64_t requests[20];
	fake->start = FAKE_MANUAL;
	for (size_t i = 0; i < ARRAY_SIZE(requests); i++)
		requests[i] = send_named("k");
	settle();
	assert_int_equal(fake->creates, 1);
	assert_int_equal(node->admission.sandboxes, 1);
	refuse_create(named("k", "f2"), 409, "Idempotency-Key");
	assert_int_equal(fake_step_starts(), 1);
	char id[33] = "";
	for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
		assert_int_equal(answer(requests[i]), MSG_ID_sandbox);
		assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
		assert_true(!*id || str_is(got.sandbox.id, id));
		sandbox_copy(id, sizeof(id), got.sandbox.id);
	}
	assert_int_equal(fake_alive(), 1);
}

/* Whoever joined is told what became of it; the next one tries anew. */
static void a_create_that_fails_frees_its_name(void **state)
{
	uint64_t requests[3];
	fake->start = FAKE_FAIL;
	for (int i = 0; i < 3; i++)
		requests[i] = send_named("k");
	for (int i = 0; i < 3; i++)
		expect_error(answer(requests[i]), 500, "refuses to start");
	assert_int_equal(fake->creates, 1);
	assert_int_equal(node->names.count, 0);
	/* Also one that was not even begun. */
	fake->start = FAKE_AUTO;
	fake->full = true;
	expect_error(answer(send_named("k")), 503, "no slot");
	fake->full = false;
	struct msg_create m = named("k", "f1");
	m.template = STR("nothing");
	refuse_create(m, 404, "template");
	machine.disk.free = 0;
	refuse_create(named("k", "f1"), 507, "disk");
	machine.disk.free = 150000 * MIB;
	/* And one that dies before it runs. */
	fake->start = FAKE_MANUAL;
	requests[0] = send_named("k");
	settle();
	requests[1] = send_named("k");
	settle();
	assert_int_equal(fake_step_starts(), 1);
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			fake_die(fake->machine[i].id, "oom_killed", "limit 256 MiB");
	expect_error(answer(requests[0]), 500, "oom_killed");
	expect_error(answer(requests[1]), 500, "oom_killed");
	fake->start = FAKE_AUTO;
	expect_free("k", "");
	settle();
	assert_int_equal(node->names.count, 0);
	assert_int_equal(node->admission.sandboxes, 0);
}

static void a_name_is_free_when_the_end_is_recorded(void **state)
{
	char id[33];
	memcpy(id, make("k"), sizeof(id));
	fake->kill = FAKE_MANUAL;
	uint64_t kill = send_kill(id), repeat = send_named("k");
	expect_error(answer(repeat), 409, "being ended");
	settle();
	refuse_create(named("k", "f1"), 409, "being ended");
	refuse_create(named("k", "f2"), 409, "something else");
	fake->kill = FAKE_AUTO;
	fake_step_kills();
	assert_int_equal(answer(kill), MSG_ID_ok);
	expect_free("k", id);
	/* Whichever way it ends. */
	memcpy(id, make("k"), sizeof(id));
	fake_die(id, "crashed", "");
	settle();
	expect_free("k", id);
	memcpy(id, make("k"), sizeof(id));
	machine.boot_shift += 301 * NS_PER_S;
	node_expire(node);
	settle();
	expect_free("k", id);
	settle();
	assert_int_equal(node->names.count, 0);
}

/* In one turn of the loop, in every order. */
static void kills_and_repeats_at_once_never_make_two(void **state)
{
	for (int i = 0; i < 40; i++) {
		char id[33];
		memcpy(id, make("k"), sizeof(id));
		uint64_t kill = 0, repeats[4];
		for (int j = 0; j < 4; j++) {
			if (j == i % 4)
				kill = send_kill(id);
			repeats[j] = send_named("k");
			if (i % 3 == 1)
				loop_turn(loop, 0);
		}
		unsigned same = 0, refused = 0, new = 0;
		bool killed = false;
		for (int left = 5, turn = 0; left && turn < 5000; turn++) {
			uint64_t request;
			unsigned type;
			loop_turn(loop, 5);
			while ((type = receive(&request))) {
				if (request == kill) {
					assert_int_equal(type, MSG_ID_ok);
					killed = true;
					left--;
				} else if (request && request >= repeats[0]) {
					same += type == MSG_ID_sandbox && str_is(got.sandbox.id, id);
					new += type == MSG_ID_sandbox && !str_is(got.sandbox.id, id);
					refused += type == MSG_ID_error && got.error.status == 409;
					left--;
				}
			}
		}
		assert_true(killed);
		assert_int_equal(same + refused + new, 4);
		assert_true(same >= (unsigned)(i % 4) || new > 0);
		settle();
		assert_int_equal(fake_alive(), new > 0);
		assert_int_equal(node->names.count, new > 0);
		if (new) {
			char next[33];
			memcpy(next, make("k"), sizeof(next));
			assert_int_equal(answer(send_kill(next)), MSG_ID_ok);
		}
	}
}

static void a_restarted_node_knows_the_names(void **state)
{
	char running[33], kept[33], disk[33];
	memcpy(running, make("running"), sizeof(running));
	memcpy(kept, make("kept"), sizeof(kept));
	memcpy(disk, make("disk"), sizeof(disk));
	struct msg_pause p = {.sandbox = str_of(kept), .memory = true};
	assert_int_equal(answer(send_front(MSG_ID_pause, &p)), MSG_ID_ok);
	p = (struct msg_pause){.sandbox = str_of(disk), .memory = false};
	assert_int_equal(answer(send_front(MSG_ID_pause, &p)), MSG_ID_ok);
	for (int i = 0; i < 2; i++) {
		restart();
		assert_string_equal(make("running"), running);
		assert_string_equal(make("kept"), kept);
		assert_int_equal(got.sandbox.state, SANDBOX_PAUSED);
		assert_string_equal(make("disk"), disk);
		refuse_create(named("kept", "f2"), 409, "Idempotency-Key");
	}
	/* The machine is started again: what was paused is there, what ran is lost, and its name free. */
	leave();
	host.boot_id[0] = '9';
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			fake->machine[i].alive = false, fake->machine[i].disk = true;
	start();
	settle();
	assert_string_equal(make("kept"), kept);
	assert_string_equal(make("disk"), disk);
	expect_free("running", running);
}

static void forks_and_snapshots_have_no_name(void **state)
{
	char id[33], snapshot[33];
	memcpy(id, make("k"), sizeof(id));
	struct msg_fork f = {.sandbox = str_of(id), .count = 3, .timeout = 300};
	assert_int_equal(answer(send_front(MSG_ID_fork, &f)), MSG_ID_forked);
	struct msg_make_snapshot s = {.sandbox = str_of(id)};
	assert_int_equal(answer(send_front(MSG_ID_make_snapshot, &s)), MSG_ID_snapshot);
	sandbox_copy(snapshot, sizeof(snapshot), got.snapshot.id);
	struct msg_create m = want();
	m.template = str_of(snapshot);
	create_with(&m);
	assert_false(msg_has(&got.sandbox, sandbox, idempotency));
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 5);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE idempotency <> '' OR fingerprint <> ''"), 1);
	/* A rollback leaves it its name. */
	struct msg_rollback b = {.sandbox = str_of(id), .snapshot = str_of(snapshot)};
	assert_int_equal(answer(send_front(MSG_ID_rollback, &b)), MSG_ID_sandbox);
	restart();
	assert_string_equal(make("k"), id);
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	expect_free("k", id);
}

/* A node in a child process that ends without a word at the given point of a create, or of the kill that follows. */
static void crash(enum fake_crash point, bool kills)
{
	leave();
	fake->crash = point;
	pid_t pid = fork();
	if (pid == 0) {
		start();
		const char *id = make("k");
		if (kills)
			answer(send_kill(id));
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	fake->crash = CRASH_NOWHERE;
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), FAKE_CRASHED);
	start();
}

static void a_crash_in_any_step_leaves_one_or_none(void **state)
{
	static const enum fake_crash points[] = {CRASH_IN_CREATE, CRASH_STARTED, CRASH_IN_KILL, CRASH_KILLED};
	for (size_t i = 0; i < ARRAY_SIZE(points); i++) {
		crash(points[i], points[i] >= CRASH_IN_KILL);
		/* At once, while a kill that was intended may be going on. */
		unsigned type = answer(send_named("k"));
		if (type == MSG_ID_error) {
			expect_error(type, 409, "being ended");
			settle();
			make("k");
		}
		settle();
		assert_int_equal(fake_alive(), 1);
		assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE idempotency = 'k'"), 1);
		char id[33];
		memcpy(id, make("k"), sizeof(id));
		restart();
		assert_string_equal(make("k"), id);
		assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
		settle();
		assert_int_equal(fake_alive(), 0);
		assert_int_equal(node->names.count, 0);
	}
}

/* A create that failed, whose record could not be taken away, has no claim on a name that was used again. */
static void what_is_left_of_a_failed_create_does_not_take_the_name(void **state)
{
	char id[33];
	memcpy(id, make("k"), sizeof(id));
	leave();
	static const char *const versions[RECORDS_VERSION] = {""};
	char path[128];
	struct store *s = NULL;
	snprintf(path, sizeof(path), "%s/node.db", dir);
	assert_int_equal(store_open(path, 0, versions, RECORDS_VERSION, &s, NULL), 0);
	assert_int_equal(store_exec(s, "CREATE TEMP TABLE one AS SELECT * FROM sandboxes;"
		"UPDATE one SET id = 'i00000000000000000000', state = 1, handle = '';"
		"UPDATE sandboxes SET rowid = 7; INSERT INTO sandboxes SELECT * FROM one; UPDATE sandboxes SET rowid = 1 WHERE state = 1", NULL), 0);
	store_free(s);
	start();
	settle();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 1);
	assert_string_equal(make("k"), id);
}

static void a_stopping_node_still_knows_what_it_made(void **state)
{
	char id[33];
	memcpy(id, make("k"), sizeof(id));
	fake->start = FAKE_MANUAL;
	uint64_t first = send_named("under-way");
	settle();
	stopped = false;
	node_stop(node, on_flag, &stopped);
	uint64_t second = send_named("under-way");
	settle();
	assert_false(stopped);
	assert_string_equal(make("k"), id);
	refuse_create(named("new", "f1"), 503, "stopping");
	assert_int_equal(fake_step_starts(), 1);
	assert_int_equal(answer(first), MSG_ID_sandbox);
	assert_int_equal(answer(second), MSG_ID_sandbox);
	settle();
	assert_true(stopped);
}

/* Who asked first is gone, who asks again gets it. */
static void a_repeat_after_the_front_has_ended(void **state)
{
	fake->start = FAKE_MANUAL;
	send_named("k");
	settle();
	close(steal_fd(&front));
	front_is_gone();
	open_front();
	uint64_t repeat = send_named("k");
	settle();
	assert_int_equal(fake_step_starts(), 1);
	assert_int_equal(answer(repeat), MSG_ID_sandbox);
	assert_int_equal(fake->creates, 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup_names, teardown)
	const struct CMUnitTest tests[] = {
		T(the_same_name_is_the_same_sandbox),
		T(another_request_under_the_name_is_refused),
		T(wrong_names_are_refused),
		T(a_name_finds_its_sandbox_in_every_state),
		T(a_repeat_joins_a_create_under_way),
		T(a_create_that_fails_frees_its_name),
		T(a_name_is_free_when_the_end_is_recorded),
		T(kills_and_repeats_at_once_never_make_two),
		T(a_restarted_node_knows_the_names),
		T(forks_and_snapshots_have_no_name),
		T(a_crash_in_any_step_leaves_one_or_none),
		T(what_is_left_of_a_failed_create_does_not_take_the_name),
		T(a_stopping_node_still_knows_what_it_made),
		T(a_repeat_after_the_front_has_ended),
	};
	return node_world_run(tests);
}
