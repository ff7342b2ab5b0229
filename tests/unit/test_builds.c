/* Builds, from their start to their end. */
#include "builds_world.h"

#include "node/builder_impl.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>

static void a_build_makes_a_template(void **state)
{
	make("app");
	assert_string_equal(status(), "waiting");
	expect_error(create_of("team-1", template_id), 404, "not found"); /* nothing is ready */
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	assert_string_equal(status(), "building");
	expect_error(start_with(NULL), 400, "build is not in waiting state");
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	assert_str(got.build_begin.template, template_id);
	assert_non_null(memmem(got.build_begin.base.p, got.build_begin.base.n, "images/aa.erofs", 15));
	make_layer(s, "a blob");
	char text[512];
	snprintf(text, sizeof(text), LAYERS(BASE_LAYER ",{\"file\":\"%s\",\"size\":1}"), made_layer);
	finish(s, text);
	assert_string_equal(status(), "ready");
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_str(got.sandbox.template_id, template_id);
	assert_str(got.sandbox.alias, "app");
	assert_int_equal(create_of("team-1", "app"), MSG_ID_error); /* names are the front's */
	assert_int_equal(create_of("team-2", template_id), MSG_ID_error);
	/* After a restart all of it is there. */
	restart();
	assert_string_equal(status(), "ready");
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_true(exists(made_layer));
}

static void who_asks_for_the_build_chooses_the_isolation(void **state)
{
	char base_id[21];
	make("app");
	wanted_isolation = "vm";
	expect_error(start_with(TEMPLATE), 400, "isolation must be");
	wanted_isolation = "microvm";
	expect_error(start_with(TEMPLATE), 400, "no microVMs");
	assert_string_equal(status(), "waiting");
	fake->machines = true;
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	/* The builder has no say in it. */
	refused(done(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"isolation\":\"namespace\"}"), 400, "isolation");
	refused(done(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"isolation\":\"microvm\"}"), 400, "isolation");
	finish(s, LAYERS(BASE_LAYER));
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_str(got.sandbox.isolation, "microvm");
	restart();
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_str(got.sandbox.isolation, "microvm");
	/* As what it is made on, when nothing is said; something else, when that is asked for. */
	sandbox_copy(base_id, sizeof(base_id), str_of(template_id));
	make("on-it");
	wanted_isolation = NULL;
	assert_int_equal(start_with(base_id), MSG_ID_ok);
	s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	refused(done(s, LAYERS(BASE_LAYER)), 400, "isolation");
	finish(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"isolation\":\"microvm\"}");
	make("beside-it");
	wanted_isolation = "namespace";
	options.isolation = "microvm";
	expect_error(start_with(base_id), 400, "this server runs sandboxes in microVMs");
	options.isolation = "namespace";
	assert_int_equal(start_with(base_id), MSG_ID_ok);
	s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	finish(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"isolation\":\"microvm\"}");
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_str(got.sandbox.isolation, "namespace");
	wanted_isolation = NULL;
}

static void boxes_end_with_their_builder(void **state)
{
	struct seat *s = begin("app");
	struct msg_start_box box = {.user = STR("root"), .token = STR("0123456789abcdef0123")};
	cleanup_buf struct buf layers = BUF_INIT;
	msg_list_add(&layers, STR("images/aa.erofs"));
	box.layers.raw = buf_str(&layers);
	for (int i = 0; i < 4; i++)
		assert_int_equal(ask(s, MSG_ID_start_box, &box), MSG_ID_box_started);
	refused(ask(s, MSG_ID_start_box, &box), 400, "at most 4");
	assert_int_equal(fake_alive(), 4);
	struct msg_end_box end = {.box = got.box_started.box};
	end.box = 1;
	assert_int_equal(ask(s, MSG_ID_end_box, &end), MSG_ID_ok);
	assert_int_equal(fake_alive(), 3);
	kill(s->pid, SIGKILL);
	expect_error(await(), 400, "the builder was killed");
	settle();
	assert_int_equal(fake_alive(), 0);
	assert_int_equal(node->admission.sandboxes, 0);
	assert_int_equal(node->builds->running, 0);
}

static void a_builder_may_end_at_any_step(void **state)
{
	/* It says nothing. */
	struct seat *s = begin("one");
	seat_close(s);
	kill(s->pid, SIGKILL);
	expect_error(await(), 400, "killed");
	/* It says what is no message. */
	s = begin("two");
	assert_int_equal(write(s->fds[0], "garbage", 7), 7);
	expect_error(await(), 400, "nobody understands");
	/* It says what is not for it to say. */
	s = begin("three");
	struct msg_kill m = {.sandbox = STR("i")};
	say(s, MSG_ID_kill, &m);
	expect_error(await(), 400, "nobody understands");
	/* It gives up, with a reason and a step. */
	s = begin("four");
	struct msg_build_failed f = {.message = STR("exit status 7")};
	msg_set(&f, build_failed, step, STR("3"));
	assert_int_equal(ask(s, MSG_ID_build_failed, &f), MSG_ID_ok);
	expect_error(await(), 400, "exit status 7");
	assert_int_equal(status_page(0, 100), MSG_ID_build_page);
	assert_str(got.build_page.status, "error");
	assert_str(got.build_page.reason, "exit status 7");
	assert_str(got.build_page.step, "3");
	/* It cannot be started. */
	make("five");
	start_fails = true;
	assert_int_equal(start_with(NULL), MSG_ID_ok);
	expect_error(await(), 400, "no process can be started");
	settle();
	assert_int_equal(node->builds->running, 0);
	assert_int_equal(node->builds->busy, 0);
}

static void a_build_has_its_time(void **state)
{
	options.build_timeout = 60;
	begin("slow");
	machine.boot_shift += 61 * NS_PER_S;
	expect_error(await(), 400, "longer than 60 seconds");
}

static void a_build_has_its_room(void **state)
{
	options.build_disk = 64;
	struct seat *s = begin("big");
	struct msg_new_file m = {.size = 65 * MIB};
	refused(ask(s, MSG_ID_new_file, &m), 413, "build.disk");
	m.size = 40 * MIB;
	assert_int_equal(ask(s, MSG_ID_new_file, &m), MSG_ID_file_writer);
	refused(ask(s, MSG_ID_new_file, &m), 413, "build.disk");
	m.size = 1;
	machine.disk.free = 1000 * MIB;
	refused(ask(s, MSG_ID_new_file, &m), 507, "disk");
	/* What it writes without having said so counts all the same. */
	expect_error(await(), 400, "disk");
}

static void too_many_files_are_refused(void **state)
{
	struct seat *s = begin("many");
	struct msg_new_file m = {.size = 0};
	for (int i = 0; i < 256; i++)
		assert_int_equal(ask(s, MSG_ID_new_file, &m), MSG_ID_file_writer);
	refused(ask(s, MSG_ID_new_file, &m), 400, "at most 256");
}

static void builds_wait_for_their_turn(void **state)
{
	options.build_max = 1;
	struct seat *s = begin("first");
	char first[37], second[37];
	strcpy(first, build_id);
	make("second");
	strcpy(second, build_id);
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	settle();
	assert_int_equal(n_seats, 1);
	assert_string_equal(status(), "building");
	strcpy(build_id, first);
	finish(s, LAYERS(BASE_LAYER));
	kill(s->pid, SIGKILL); /* it ends */
	strcpy(build_id, second);
	s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	finish(s, LAYERS(BASE_LAYER));
}

/* Whoever has sent many: the next turn is another team's, and there is an end to it. */
static void turns_are_shared_between_teams(void **state)
{
	char name[16];
	options.build_max = 1;
	struct seat *first = begin("app");
	for (int i = 1; i < BUILDS_OF_TEAM; i++) {
		snprintf(name, sizeof(name), "app-%d", i);
		make(name);
		assert_int_equal(start_with(NULL), MSG_ID_ok);
	}
	make("app-more");
	expect_error(start_with(NULL), 429, "100 builds");
	builds_team = "team-2";
	make("app");
	assert_int_equal(start_with(NULL), MSG_ID_ok);
	builds_team = "team-1";
	settle();
	kill(first->pid, SIGKILL);
	struct seat *second = next_seat("builder");
	assert_int_equal(told(second, NULL, NULL), MSG_ID_build_begin);
	assert_true(str_is(got.build_begin.team, "team-2"));
	kill(second->pid, SIGKILL);
	assert_int_equal(told(next_seat("builder"), NULL, NULL), MSG_ID_build_begin);
	assert_true(str_is(got.build_begin.team, "team-1"));
}

static void logs_are_paged(void **state)
{
	struct seat *s = begin("talk");
	for (unsigned i = 0; i < 250; i++) {
		char text[32];
		snprintf(text, sizeof(text), "line %u", i);
		struct msg_build_log m = {.level = i % 4, .message = str_of(text)};
		msg_set(&m, build_log, step, STR("1"));
		say(s, MSG_ID_build_log, &m);
	}
	struct msg_build_progress p = {.phase = STR("UNPACKING"), .progress = 40};
	say(s, MSG_ID_build_progress, &p);
	settle();
	assert_int_equal(status_page(0, 100), MSG_ID_build_page);
	assert_int_equal(got.build_page.next, 100);
	assert_str(got.build_page.phase, "UNPACKING");
	assert_int_equal(got.build_page.progress, 40);
	assert_non_null(memmem(got.build_page.entries.p, got.build_page.entries.n, "\"message\":\"line 99\",\"step\":\"1\"", 30));
	assert_int_equal(status_page(200, 100), MSG_ID_build_page);
	assert_int_equal(got.build_page.next, 250);
	struct msg_build_status m = {.team = STR("team-1"), .build = str_of(build_id), .after = 1, .limit = 2};
	msg_set(&m, build_status, level, 3);
	msg_set(&m, build_status, backward, true);
	assert_int_equal(answer(send_front(MSG_ID_build_status, &m)), MSG_ID_build_page);
	assert_int_equal(got.build_page.next, 3);
	assert_null(memmem(got.build_page.entries.p, got.build_page.entries.n, "line 247", 8));
	assert_non_null(memmem(got.build_page.entries.p, got.build_page.entries.n, "line 243", 8));
	assert_non_null(memmem(got.build_page.entries.p, got.build_page.entries.n, "line 239", 8));
	finish(s, LAYERS(BASE_LAYER));
	settle();
	/* From the file, also for a node that starts anew. */
	restart();
	assert_int_equal(status_page(240, 100), MSG_ID_build_page);
	assert_int_equal(got.build_page.next, 250);
	assert_non_null(memmem(got.build_page.entries.p, got.build_page.entries.n, "line 249", 8));
	expect_error(status_page(0, 101), 400, "limit");
}

static void a_flood_of_logs_is_cut(void **state)
{
	struct seat *s = begin("flood");
	static char text[8000];
	memset(text, 1, sizeof(text));
	struct msg_build_log m = {.level = 1, .message = str_n(text, sizeof(text))};
	for (int i = 0; i < 1200; i++) {
		say(s, MSG_ID_build_log, &m);
		loop_turn(loop, 0);
	}
	settle();
	const struct build *b = map_get(&node->builds->by_id, str_of(build_id));
	assert_true(buf_len(&b->log.text) <= BUILD_LOG_MOST);
	assert_int_equal(status_page(0, 100), MSG_ID_build_page);
	assert_true(got.build_page.next >= 1);
	finish(s, LAYERS(BASE_LAYER));
}

static void a_restart_in_the_middle_leaves_an_error(void **state)
{
	begin("app");
	char building[37];
	strcpy(building, build_id);
	make("waits");
	restart();
	assert_string_equal(status(), "waiting");
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	strcpy(build_id, building);
	assert_int_equal(status_page(0, 1), MSG_ID_build_page);
	assert_str(got.build_page.status, "error");
	assert_str(got.build_page.reason, "the server was restarted");
	expect_error(await(), 400, "restarted");
}

static void stop_ends_builds(void **state)
{
	begin("app");
	stopped = false;
	node_stop(node, on_flag, &stopped);
	turn_until(&stopped);
	assert_int_equal(rows("SELECT count(*) FROM builds WHERE status = 4"), 1);
}

static void wrong_requests_are_refused(void **state)
{
	expect_error(make_named("team-1", "", "e2b", NULL), 400, "Name is required");
	expect_error(make_named("team-1", "x", "odd", NULL), 400, "kind");
	expect_error(make_named("team-1", "x", "e2b", "debian"), 400, "reference");
	expect_error(make_named("team-1", "", "image", NULL), 400, "reference");
	strcpy(build_id, "0f8fad5b-d9cb-469f-a165-70867728950e");
	expect_error(status_page(0, 1), 404, "not found");
	expect_error(start_with(NULL), 404, "not found");
	expect_error(await(), 404, "not found");
	make("x");
	expect_error(start_with("k3aaaaaaaaaaaaaaaaaa"), 404, "not found");
	assert_string_equal(status(), "waiting");
}

/* A snapshot as what a build is made on: it may be deleted then. */
static void a_build_stands_on_a_snapshot(void **state)
{
	create();
	struct msg_make_snapshot m = {.sandbox = str_of(last_id)};
	assert_int_equal(answer(send_front(MSG_ID_make_snapshot, &m)), MSG_ID_snapshot);
	char snapshot[33], image[64], text[512];
	sandbox_copy(snapshot, sizeof(snapshot), got.snapshot.id);
	snprintf(image, sizeof(image), "snapshots/%s.img", snapshot);
	make("frozen");
	assert_int_equal(start_with(snapshot), MSG_ID_ok);
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	assert_non_null(memmem(got.build_begin.base.p, got.build_begin.base.n, image, strlen(image)));
	struct msg_delete_snapshot gone = {.snapshot = str_of(snapshot)};
	assert_int_equal(answer(send_front(MSG_ID_delete_snapshot, &gone)), MSG_ID_ok);
	snprintf(text, sizeof(text), LAYERS(BASE_LAYER ",{\"file\":\"%s\",\"size\":1}"), image);
	finish(s, text);
	settle();
	restart();
	assert_true(exists(image));
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_int_equal(delete_template(NULL, true), MSG_ID_ok);
	assert_true(exists(image));
	assert_int_equal(answer(send_kill(last_id)), MSG_ID_ok);
	settle();
	assert_false(exists(image));
}

#define WITH_SERVICE "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"services\":[{\"name\":\"web\",\"command\":[\"/bin/web\"],\"user\":\"user\"}]}"

static void a_probe_decides(void **state)
{
	fake->prepare = FAKE_MANUAL;
	struct seat *s = begin("web");
	struct msg_build_done m = {.description = str_of(WITH_SERVICE)};
	msg_set(&m, build_done, probe, true);
	uint64_t request = say(s, MSG_ID_build_done, &m);
	settle();
	assert_int_equal(fake_alive(), 1);
	assert_string_equal(status(), "building");
	fake_prepare(true);
	assert_int_equal(reply(s, request, NULL), MSG_ID_ok);
	assert_int_equal(await(), MSG_ID_ok);
	settle();
	assert_int_equal(fake_alive(), 0);
	/* It ends instead of becoming ready. */
	s = begin("web");
	say(s, MSG_ID_build_done, &m);
	settle();
	for (size_t i = 0; i < FAKE_BOXES; i++)
		if (fake->machine[i].alive)
			fake_die(fake->machine[i].id, "crashed", "exit status 3");
	expect_error(await(), 400, "exit status 3");
}

static void a_probe_without_room_is_a_failure(void **state)
{
	struct msg_make_template big = {.team = STR("team-1"), .name = STR("big"), .kind = STR("e2b"), .tags = {STR("")}};
	msg_set(&big, make_template, memory_mb, 1048576);
	assert_int_equal(answer(send_front(MSG_ID_make_template, &big)), MSG_ID_build_made);
	sandbox_copy(build_id, sizeof(build_id), got.build_made.build);
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	struct msg_build_done m = {.description = str_of(WITH_SERVICE)};
	msg_set(&m, build_done, probe, true);
	say(s, MSG_ID_build_done, &m);
	expect_error(await(), 400, "memory");
	nothing_runs();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BUILD_TEST(a_build_makes_a_template),
		BUILD_TEST(who_asks_for_the_build_chooses_the_isolation),
		BUILD_TEST(boxes_end_with_their_builder),
		BUILD_TEST(a_builder_may_end_at_any_step),
		BUILD_TEST(a_build_has_its_time),
		BUILD_TEST(a_build_has_its_room),
		BUILD_TEST(too_many_files_are_refused),
		BUILD_TEST(builds_wait_for_their_turn),
		BUILD_TEST(logs_are_paged),
		BUILD_TEST(a_flood_of_logs_is_cut),
		BUILD_TEST(a_restart_in_the_middle_leaves_an_error),
		BUILD_TEST(stop_ends_builds),
		BUILD_TEST(wrong_requests_are_refused),
		BUILD_TEST(a_build_stands_on_a_snapshot),
		BUILD_TEST(a_probe_decides),
		BUILD_TEST(a_probe_without_room_is_a_failure),
		BUILD_TEST(turns_are_shared_between_teams),
	};
	return node_world_run(tests);
}
