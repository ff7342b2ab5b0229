#include "node_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/wait.h>

/* Snapshots, forks and rollbacks of the node's service, with a fake backend: a copy of a disk is a file that holds the name of the sandbox. */

static char snapshot_id[33];

static uint64_t send_snapshot(const char *id, const char *name)
{
	struct msg_make_snapshot m = {.sandbox = str_of(id)};
	if (name)
		msg_set(&m, make_snapshot, name, str_of(name));
	return send_front(MSG_ID_make_snapshot, &m);
}

static const char *expect_snapshot(uint64_t request)
{
	unsigned type = answer(request);
	if (type != MSG_ID_snapshot)
		fail_msg("snapshot: %u: %.*s", type, STR_FMT(got.error.message));
	sandbox_copy(snapshot_id, sizeof(snapshot_id), got.snapshot.id);
	return snapshot_id;
}

static const char *snapshot(const char *id)
{
	return expect_snapshot(send_snapshot(id, NULL));
}

static uint64_t send_fork(const char *id, unsigned count)
{
	struct msg_fork m = {.sandbox = str_of(id), .count = count, .timeout = 60};
	return send_front(MSG_ID_fork, &m);
}

static uint64_t send_rollback(const char *id, const char *to)
{
	struct msg_rollback m = {.sandbox = str_of(id), .snapshot = str_of(to)};
	return send_front(MSG_ID_rollback, &m);
}

static unsigned drop(const char *id)
{
	struct msg_delete_snapshot m = {.snapshot = str_of(id)};
	return answer(send_front(MSG_ID_delete_snapshot, &m));
}

static unsigned images(void)
{
	char path[64];
	unsigned n = 0;
	snprintf(path, sizeof(path), "%s/snapshots", dir);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	return n;
}

static void kill_all(const char *id)
{
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
}

static const char *create_from(const char *from)
{
	struct msg_create m = want();
	m.template = str_of(from);
	return create_with(&m);
}

static void a_snapshot_is_kept_told_and_made_sandboxes_of(void **state)
{
	char parent[33], one[33];
	subscribe();
	strcpy(parent, create());
	expect_snapshot(send_snapshot(parent, "mine"));
	assert_int_equal(got.snapshot.id.n, SNAPSHOT_ID);
	assert_true(str_starts(got.snapshot.id, STR("snap-")));
	assert_str(got.snapshot.name, "mine");
	assert_str(got.snapshot.team, "team-1");
	assert_str(got.snapshot.sandbox, parent);
	assert_str(got.snapshot.template_id, TEMPLATE);
	assert_int_equal(got.snapshot.memory_mb, 256);
	assert_int_equal(got.snapshot.size, 4096);
	assert_int_equal(rows("SELECT count(*) FROM snapshots"), 1);
	assert_int_equal(n_snapshots, 1);
	/* The source never did anything but run. */
	assert_int_equal(n_events, 1);
	assert_int_equal(timeout_of(parent, TIMEOUT_SET, 100), MSG_ID_sandbox);

	strcpy(one, create_from(snapshot_id));
	assert_str(got.sandbox.origin, snapshot_id);
	assert_str(got.sandbox.template_id, TEMPLATE);
	assert_str(got.sandbox.alias, "base");
	assert_int_equal(got.sandbox.memory_mb, 256);
	const struct fake_box *m = fake_find(one);
	char want_layers[128];
	snprintf(want_layers, sizeof(want_layers), "images/aa.erofs snapshots/%s.img ", snapshot_id);
	assert_string_equal(m->layers, want_layers);
	assert_non_null(strstr(m->envs, "A=1\n"));

	/* Its own variables count, and those of what the snapshot was made of are there. */
	struct msg_create c = want();
	c.template = str_of(snapshot_id);
	buf_clear(&envs);
	msg_map_add(&envs, STR("B"), STR("2"));
	c.envs.raw = buf_str(&envs);
	m = fake_find(create_with(&c));
	assert_non_null(strstr(m->envs, "A=1\n"));
	assert_non_null(strstr(m->envs, "B=2\n"));
	assert_null(strstr(m->envs, parent));

	subscribe();
	assert_int_equal(n_snapshots, 1);
	restart();
	subscribe();
	assert_int_equal(n_snapshots, 1);
	create_from(snapshot_id);
}

static void another_teams_snapshot_is_not_found(void **state)
{
	snapshot(create());
	struct msg_create m = want();
	m.template = str_of(snapshot_id);
	m.team = STR("team-2");
	refuse_create(m, 404, "template 'snap-");
	m.template = STR("snap-aaaaaaaaaaaaaaaaaaaa");
	refuse_create(m, 404, "not found");
	char other[33];
	m = want();
	m.team = STR("team-2");
	strcpy(other, create_with(&m));
	expect_error(answer(send_rollback(other, snapshot_id)), 404, "not found");
}

/* Case 32. */
static void no_room_is_an_error_with_its_cause_and_no_phantom(void **state)
{
	char id[33];
	strcpy(id, create());
	fake_find(id)->space = (struct box_space){.total = 1024 * MIB, .used = 900 * MIB, .backed = 1000 * MIB, .pending = 50 * MIB};
	machine.disk.free = 20900 * MIB; /* the reserve is 20,000 */
	expect_error(answer(send_snapshot(id, NULL)), 507, "disk");
	assert_int_equal(fake->copies, 0);
	machine.disk.free = 21100 * MIB;
	snapshot(id);
	/* The copy itself finds no room. */
	fake->copy = FAKE_FAIL;
	expect_error(answer(send_snapshot(id, NULL)), 507, "room");
	expect_error(answer(send_fork(id, 2)), 507, "room");
	fake->copy = FAKE_AUTO;
	/* Two at once do not have the same room. */
	char other[33];
	machine.disk.free = 150000 * MIB;
	strcpy(other, create());
	fake_find(other)->space = fake_find(id)->space;
	machine.disk.free = 21100 * MIB;
	fake->copy = FAKE_MANUAL;
	uint64_t first = send_snapshot(id, NULL);
	settle();
	expect_error(answer(send_snapshot(other, NULL)), 507, "disk");
	assert_int_equal(fake_step_copies(), 1);
	expect_snapshot(first);
	assert_int_equal(rows("SELECT count(*) FROM snapshots"), 2);
	assert_int_equal(images(), 2);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
}

static void a_record_that_cannot_be_written_leaves_no_image(void **state)
{
	const char *id = create();
	assert_int_equal(rows("SELECT 1"), 1);
	char path[64];
	snprintf(path, sizeof(path), "%s/node.db", dir);
	struct store *s = NULL;
	static const char *const versions[RECORDS_VERSION] = {""};
	assert_int_equal(store_open(path, 0, versions, RECORDS_VERSION, &s, NULL), 0);
	struct stmt *q = store_prepare(s, "CREATE TRIGGER no BEFORE INSERT ON snapshots BEGIN SELECT RAISE(ABORT, 'the test says no'); END", NULL);
	assert_non_null(q);
	assert_true(stmt_step(q, NULL) >= 0);
	stmt_done(q);
	store_free(s);
	expect_error(answer(send_snapshot(id, NULL)), 500, "");
	settle();
	assert_int_equal(images(), 0);
	subscribe();
	assert_int_equal(n_snapshots, 0);
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
}

static void images_live_as_long_as_somebody_stands_on_them(void **state)
{
	char parent[33], one[33], two[33], first[33], second[33];
	strcpy(parent, create());
	strcpy(first, snapshot(parent));
	kill_all(parent);
	assert_int_equal(images(), 1);
	strcpy(one, create_from(first));
	strcpy(second, snapshot(one));
	kill_all(one);
	assert_int_equal(images(), 2);
	/* The second stands on the first. */
	assert_int_equal(drop(first), MSG_ID_ok);
	assert_int_equal(images(), 2);
	struct msg_create m = want();
	m.template = str_of(first);
	refuse_create(m, 404, "not found");
	expect_error(drop(first), 404, "not found");
	restart();
	assert_int_equal(images(), 2);
	strcpy(two, create_from(second));
	assert_int_equal(drop(second), MSG_ID_ok);
	assert_int_equal(images(), 2);
	assert_int_equal(rows("SELECT count(*) FROM snapshots"), 0);
	/* Paused, and with a node started anew. */
	struct msg_pause p = {.sandbox = str_of(two), .memory = false};
	assert_int_equal(answer(send_front(MSG_ID_pause, &p)), MSG_ID_ok);
	restart();
	assert_int_equal(images(), 2);
	struct msg_resume r = {.sandbox = str_of(two), .mode = RESUME_EXPLICIT, .timeout = 100, .memory = true};
	assert_int_equal(answer(send_front(MSG_ID_resume, &r)), MSG_ID_sandbox);
	kill_all(two);
	assert_int_equal(images(), 0);
}

static const char *result(unsigned at, unsigned *ret_status)
{
	static char id[33];
	struct str all = got.forked.results.raw, one, field;
	for (unsigned i = 0; i <= at; i++)
		assert_true(msg_list_next(&all, &one));
	assert_true(msg_list_next(&one, &field));
	sandbox_copy(id, sizeof(id), field);
	*ret_status = 0;
	if (!*id) {
		uint64_t status;
		assert_true(msg_list_next(&one, &field));
		assert_int_equal(str_to_u64(field, &status), 0);
		*ret_status = (unsigned)status;
	}
	return id;
}

static void a_fork_copies_once_and_its_children_are_like_the_parent(void **state)
{
	enum { N = 100 };
	char parent[33], token[65], generation[33], ids[N][33];
	unsigned status;
	struct msg_create c = want();
	c.public_traffic = false;
	msg_set(&c, create, internet, false);
	subscribe();
	strcpy(parent, create_with(&c));
	sandbox_copy(token, sizeof(token), got.sandbox.envd_token);
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	assert_int_equal(answer(send_fork(parent, N)), MSG_ID_forked);
	assert_int_equal(fake->copies, 1);
	assert_int_equal(images(), 1);
	assert_int_equal(rows("SELECT count(*) FROM snapshots"), 0);
	for (unsigned i = 0; i < N; i++) {
		strcpy(ids[i], result(i, &status));
		assert_int_equal(status, 0);
		for (unsigned k = 0; k < i; k++)
			assert_string_not_equal(ids[i], ids[k]);
		const struct fake_box *m = fake_find(ids[i]);
		char line[64];
		snprintf(line, sizeof(line), "E2B_SANDBOX_ID=%s\n", ids[i]);
		assert_non_null(strstr(m->envs, line));
		assert_non_null(strstr(m->envs, "A=1\n"));
		assert_null(strstr(m->envs, parent));
		assert_false(m->internet);
		assert_string_not_equal(m->token, token);
		assert_int_equal(last_event(ids[i])->state, SANDBOX_RUNNING);
	}
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 2"), N + 1);
	assert_int_equal(rows("SELECT count(DISTINCT generation) FROM sandboxes"), N + 1);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE origin <> ''"), N);
	kill_all(parent);
	restart();
	assert_int_equal(images(), 1);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(images(), 1);
		kill_all(ids[i]);
	}
	assert_int_equal(images(), 0);
}

/* Case 26, the node's part. */
static void forks_are_refused_by_number_and_state(void **state)
{
	char id[33];
	strcpy(id, create());
	expect_error(answer(send_fork(id, 0)), 400, "count");
	expect_error(answer(send_fork(id, 101)), 400, "count");
	struct msg_fork m = {.sandbox = str_of(id), .count = 1, .timeout = 0};
	expect_error(answer(send_front(MSG_ID_fork, &m)), 400, "Timeout");
	expect_error(answer(send_fork("iaaaaaaaaaaaaaaaaaaaa", 1)), 404, "not found");
	struct msg_pause p = {.sandbox = str_of(id), .memory = true};
	assert_int_equal(answer(send_front(MSG_ID_pause, &p)), MSG_ID_ok);
	expect_error(answer(send_fork(id, 1)), 409, "paused");
	expect_error(answer(send_snapshot(id, NULL)), 404, "not found");
	expect_error(answer(send_rollback(id, "snap-x")), 409, "paused");
	assert_int_equal(fake->copies, 0);
}

static void a_fork_that_succeeds_in_part_says_so_for_each(void **state)
{
	char id[33];
	unsigned status;
	options.max_sandboxes = 4;
	strcpy(id, create());
	assert_int_equal(answer(send_fork(id, 5)), MSG_ID_forked);
	for (unsigned i = 0; i < 5; i++) {
		const char *child = result(i, &status);
		assert_int_equal(!*child, i >= 3);
		assert_int_equal(status, i < 3 ? 0 : 503);
	}
	assert_int_equal(fake_alive(), 4);
	/* All of them fail while they start: nothing is left of it. */
	options.max_sandboxes = 1000;
	fake->start = FAKE_FAIL;
	assert_int_equal(answer(send_fork(id, 3)), MSG_ID_forked);
	for (unsigned i = 0; i < 3; i++) {
		assert_string_equal(result(i, &status), "");
		assert_int_equal(status, 500);
	}
	settle();
	assert_int_equal(images(), 1);
	assert_int_equal(fake_alive(), 4);
}

static void they_wait_for_each_other_and_a_pause_waits_for_them(void **state)
{
	char id[33];
	strcpy(id, create());
	fake->copy = FAKE_MANUAL;
	uint64_t first = send_snapshot(id, NULL), second = send_fork(id, 2), third = send_snapshot(id, NULL);
	settle();
	struct msg_pause p = {.sandbox = str_of(id), .memory = true};
	uint64_t pause = send_front(MSG_ID_pause, &p);
	settle();
	assert_int_equal(fake->copies, 1);
	/* It runs meanwhile: its deadline can be moved, its ports opened. */
	assert_int_equal(timeout_of(id, TIMEOUT_CONNECT, 1000), MSG_ID_sandbox);
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	assert_int_equal(fake_step_copies(), 1);
	expect_snapshot(first);
	settle();
	assert_int_equal(fake_step_copies(), 1);
	assert_int_equal(answer(second), MSG_ID_forked);
	settle();
	assert_int_equal(fake_step_copies(), 1);
	expect_snapshot(third);
	assert_int_equal(answer(pause), MSG_ID_ok);
	expect_error(answer(send_snapshot(id, NULL)), 404, "paused");
}

static void a_kill_ends_the_copy_and_who_waits(void **state)
{
	char id[33];
	strcpy(id, create());
	fake->copy = FAKE_MANUAL;
	uint64_t first = send_snapshot(id, NULL), second = send_fork(id, 2), third = send_snapshot(id, NULL);
	settle();
	uint64_t killing = send_kill(id);
	/* In the order in which the node tells them. */
	expect_error(answer(second), 404, "not found");
	expect_error(answer(third), 404, "not found");
	expect_error(answer(first), 404, "ended");
	assert_int_equal(answer(killing), MSG_ID_ok);
	assert_int_equal(images(), 0);
	assert_int_equal(rows("SELECT count(*) FROM snapshots"), 0);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
}

static void a_deadline_that_passes_meanwhile_counts(void **state)
{
	char id[33];
	strcpy(id, create());
	fake->copy = FAKE_MANUAL;
	uint64_t first = send_snapshot(id, NULL);
	settle();
	machine.boot_shift += 1000 * NS_PER_S;
	node_expire(node);
	expect_error(answer(first), 404, "ended");
	settle();
	assert_int_equal(fake_alive(), 0);
	machine.boot_shift = 0;
	struct msg_create m = want();
	m.auto_pause = m.auto_pause_memory = true;
	strcpy(id, create_with(&m));
	first = send_snapshot(id, NULL);
	settle();
	machine.boot_shift += 1000 * NS_PER_S;
	node_expire(node);
	settle();
	assert_int_equal(fake_step_copies(), 1);
	expect_snapshot(first);
	settle();
	node_expire(node);
	settle();
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 4"), 1);
}

/* Twenty layers are the most; the template has one. */
static void a_chain_has_an_end(void **state)
{
	char id[33];
	strcpy(id, create());
	for (int i = 1; i < BOX_MAX_LAYERS; i++) {
		snapshot(id);
		strcpy(id, create_from(snapshot_id));
	}
	expect_error(answer(send_snapshot(id, NULL)), 409, "19 snapshots");
	expect_error(answer(send_fork(id, 1)), 409, "19 snapshots");
	/* It goes on, and its first snapshot can be made sandboxes of. */
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
	create_from(snapshot_id);
}

static void a_rollback_keeps_the_sandbox_and_changes_its_box(void **state)
{
	char id[33], other[33], token[65], generation[33], layers[2048];
	strcpy(id, create());
	sandbox_copy(token, sizeof(token), got.sandbox.envd_token);
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	int64_t end_at = got.sandbox.end_at;
	snapshot(id);
	subscribe();
	assert_int_equal(answer(send_rollback(id, snapshot_id)), MSG_ID_sandbox);
	assert_str(got.sandbox.id, id);
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	assert_str(got.sandbox.envd_token, token);
	assert_false(str_is(got.sandbox.generation, generation));
	assert_int_equal(got.sandbox.end_at, end_at);
	settle();
	assert_int_equal(n_snapshots, 1);
	assert_int_equal(fake_alive(), 1);
	const struct fake_box *m = fake_find(id);
	snprintf(layers, sizeof(layers), "images/aa.erofs snapshots/%s.img ", snapshot_id);
	assert_string_equal(m->layers, layers);
	assert_int_equal(m->serial, 1);
	/* The new one is what a node that starts anew finds, with what it stands on. */
	assert_int_equal(drop(snapshot_id), MSG_ID_ok);
	restart();
	assert_int_equal(fake_alive(), 1);
	assert_int_equal(images(), 1);
	snapshot(id);
	assert_int_equal(answer(send_rollback(id, snapshot_id)), MSG_ID_sandbox);
	/* Of another sandbox. */
	strcpy(other, create());
	expect_error(answer(send_rollback(other, snapshot_id)), 409, "not made of");
	expect_error(answer(send_rollback(other, "snap-aaaaaaaaaaaaaaaaaaaa")), 404, "not found");
	kill_all(id);
	kill_all(other);
	assert_int_equal(drop(snapshot_id), MSG_ID_ok);
	assert_int_equal(images(), 0);
	assert_int_equal(fake_alive(), 0);
}

static void a_rollback_that_fails_changes_nothing(void **state)
{
	char id[33], generation[33];
	strcpy(id, create());
	sandbox_copy(generation, sizeof(generation), got.sandbox.generation);
	snapshot(id);
	fake->full = true;
	expect_error(answer(send_rollback(id, snapshot_id)), 503, "slot");
	fake->full = false;
	fake->start = FAKE_FAIL;
	expect_error(answer(send_rollback(id, snapshot_id)), 500, "refuses");
	fake->start = FAKE_AUTO;
	assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
	assert_str(got.sandbox.generation, generation);
	assert_int_equal(fake_alive(), 1);
	assert_int_equal(fake_find(id)->serial, 0);
	restart();
	assert_int_equal(fake_alive(), 1);
	/* It can still be done. */
	assert_int_equal(answer(send_rollback(id, snapshot_id)), MSG_ID_sandbox);
}

static void a_kill_in_a_rollback_ends_both_boxes_before_it_is_answered(void **state)
{
	char id[33];
	strcpy(id, create());
	snapshot(id);
	fake->start = fake->kill = FAKE_MANUAL;
	uint64_t rollback = send_rollback(id, snapshot_id);
	settle();
	uint64_t killing = send_kill(id);
	settle();
	assert_int_equal(fake->live, 2);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE state = 6"), 1);
	fake->kill = FAKE_AUTO;
	assert_int_equal(fake_step_kills(), 2);
	expect_error(answer(rollback), 404, "not found");
	assert_int_equal(answer(killing), MSG_ID_ok);
	assert_int_equal(fake->live, 0);

	/* While the first is on its way out. */
	fake->start = FAKE_AUTO;
	strcpy(id, create());
	snapshot(id);
	fake->kill = FAKE_MANUAL;
	assert_int_equal(answer(send_rollback(id, snapshot_id)), MSG_ID_sandbox);
	killing = send_kill(id);
	settle();
	assert_int_equal(fake->live, 2);
	assert_int_equal(fake_step_kills(), 2);
	assert_int_equal(answer(killing), MSG_ID_ok);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 0);
}

/* Layers of a template that is replaced stay as long as anything stands on them (case 28, the node's part). */
static void layers_of_templates_stay_as_long_as_they_are_needed(void **state)
{
	char id[33], path[64];
	snprintf(path, sizeof(path), "%s/images/aa.erofs", dir);
	strcpy(id, create());
	struct msg_pause p = {.sandbox = str_of(id), .memory = false};
	assert_int_equal(answer(send_front(MSG_ID_pause, &p)), MSG_ID_ok);
	char json[128];
	snprintf(json, sizeof(json), "%s/templates/" TEMPLATE ".json", dir);
	assert_int_equal(unlink(json), 0);
	struct msg_reload_templates m = {0};
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &m)), MSG_ID_ok);
	restart();
	assert_int_equal(access(path, F_OK), 0);
	struct msg_resume r = {.sandbox = str_of(id), .mode = RESUME_EXPLICIT, .timeout = 100, .memory = true};
	assert_int_equal(answer(send_front(MSG_ID_resume, &r)), MSG_ID_sandbox);
	snapshot(id);
	kill_all(id);
	assert_int_equal(access(path, F_OK), 0);
	create_from(snapshot_id);
	kill_all(last_id);
	assert_int_equal(drop(snapshot_id), MSG_ID_ok);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(images(), 0);
}

/* Of a description that was replaced while no node ran. */
static void layers_that_nobody_names_go_at_the_start(void **state)
{
	char path[64], other[64];
	snprintf(path, sizeof(path), "%s/images/old.erofs", dir);
	snprintf(other, sizeof(other), "%s/images/failed.log", dir);
	assert_int_equal(file_replace(AT_FDCWD, path, STR("x"), 0600), 0);
	assert_int_equal(file_replace(AT_FDCWD, other, STR("x"), 0600), 0);
	/* Somebody makes a template: it may be a part of that. */
	char images_dir[64];
	snprintf(images_dir, sizeof(images_dir), "%s/images", dir);
	int lock = open(images_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(flock(lock, LOCK_EX), 0);
	restart();
	assert_int_equal(access(path, F_OK), 0);
	close(lock);
	restart();
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(access(other, F_OK), 0);
	create();
}

static void a_broken_description_costs_no_layer(void **state)
{
	char path[64], json[128];
	snprintf(path, sizeof(path), "%s/images/aa.erofs", dir);
	snprintf(json, sizeof(json), "%s/templates/" TEMPLATE ".json", dir);
	assert_int_equal(file_replace(AT_FDCWD, json, STR("{}"), 0600), 0);
	struct msg_reload_templates m = {0};
	assert_int_equal(answer(send_front(MSG_ID_reload_templates, &m)), MSG_ID_ok);
	restart();
	assert_int_equal(access(path, F_OK), 0);
}

/* Crashes */

static void crash(enum fake_crash point, void (*doing)(void))
{
	leave();
	fake->crash = point;
	pid_t pid = fork();
	if (pid == 0) {
		start();
		doing();
		settle();
		_exit(0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), FAKE_CRASHED);
	fake->crash = CRASH_NOWHERE;
	start();
}

static void do_snapshot(void)
{
	send_snapshot(last_id, NULL);
	settle();
}

static void do_fork(void)
{
	send_fork(last_id, 3);
	settle();
}

static void do_rollback(void)
{
	send_rollback(last_id, snapshot_id);
	settle();
}

static void a_crash_in_any_step_leaves_nothing(void **state)
{
	char id[33];
	strcpy(id, create());
	static const enum fake_crash copying[] = {CRASH_IN_COPY, CRASH_COPIED};
	for (size_t i = 0; i < ARRAY_SIZE(copying); i++) {
		strcpy(last_id, id);
		crash(copying[i], do_snapshot);
		assert_int_equal(images(), 0);
		assert_int_equal(rows("SELECT count(*) FROM snapshots"), 0);
		crash(copying[i], do_fork);
		assert_int_equal(images(), 0);
		assert_int_equal(fake_alive(), 1);
		assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
	}
	static const enum fake_crash making[] = {CRASH_IN_CREATE, CRASH_STARTED};
	for (size_t i = 0; i < ARRAY_SIZE(making); i++) {
		crash(making[i], do_fork);
		settle();
		assert_int_equal(fake_alive(), 1);
		assert_int_equal(images(), 0);
		assert_int_equal(rows("SELECT count(*) FROM sandboxes"), 1);
	}
	snapshot(id);
	static const enum fake_crash rolling[] = {CRASH_IN_CREATE, CRASH_STARTED, CRASH_IN_KILL, CRASH_KILLED};
	for (size_t i = 0; i < ARRAY_SIZE(rolling); i++) {
		strcpy(last_id, id);
		crash(rolling[i], do_rollback);
		settle();
		assert_int_equal(fake_alive(), 1);
		assert_int_equal(timeout_of(id, TIMEOUT_SET, 100), MSG_ID_sandbox);
		/* The one or the other. */
		assert_int_equal(!!strstr(fake_find(id)->layers, "snapshots/"), rolling[i] == CRASH_IN_KILL || rolling[i] == CRASH_KILLED);
		assert_int_equal(images(), 1);
		if (strstr(fake_find(id)->layers, "snapshots/")) {
			kill_all(id);
			assert_int_equal(drop(snapshot_id), MSG_ID_ok);
			strcpy(id, create());
			snapshot(id);
		}
	}
}

static void a_stop_waits_for_a_snapshot(void **state)
{
	const char *id = create();
	fake->copy = FAKE_MANUAL;
	uint64_t first = send_snapshot(id, NULL);
	settle();
	stopped = false;
	node_stop(node, on_flag, &stopped);
	settle();
	assert_false(stopped);
	expect_error(answer(send_fork(id, 1)), 503, "stopping");
	assert_int_equal(fake_step_copies(), 1);
	expect_snapshot(first);
	settle();
	assert_true(stopped);
}

static void a_node_that_leaves_in_the_middle_leaves_nothing_open(void **state)
{
	const char *id = create();
	fake->copy = fake->start = FAKE_MANUAL;
	send_snapshot(id, NULL);
	send_fork(id, 1);
	settle();
	restart();
	assert_int_equal(images(), 0);
	fake->copy = FAKE_AUTO;
	send_fork(last_id, 3);
	settle();
	restart();
	assert_int_equal(images(), 0);
	assert_int_equal(fake_alive(), 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_snapshot_is_kept_told_and_made_sandboxes_of),
		T(another_teams_snapshot_is_not_found),
		T(no_room_is_an_error_with_its_cause_and_no_phantom),
		T(a_record_that_cannot_be_written_leaves_no_image),
		T(images_live_as_long_as_somebody_stands_on_them),
		T(a_fork_copies_once_and_its_children_are_like_the_parent),
		T(forks_are_refused_by_number_and_state),
		T(a_fork_that_succeeds_in_part_says_so_for_each),
		T(they_wait_for_each_other_and_a_pause_waits_for_them),
		T(a_kill_ends_the_copy_and_who_waits),
		T(a_deadline_that_passes_meanwhile_counts),
		T(a_chain_has_an_end),
		T(a_rollback_keeps_the_sandbox_and_changes_its_box),
		T(a_rollback_that_fails_changes_nothing),
		T(a_kill_in_a_rollback_ends_both_boxes_before_it_is_answered),
		T(layers_of_templates_stay_as_long_as_they_are_needed),
		T(layers_that_nobody_names_go_at_the_start),
		T(a_broken_description_costs_no_layer),
		T(a_crash_in_any_step_leaves_nothing),
		T(a_stop_waits_for_a_snapshot),
		T(a_node_that_leaves_in_the_middle_leaves_nothing_open),
	};
	return node_world_run(tests);
}
