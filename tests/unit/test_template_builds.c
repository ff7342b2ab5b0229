/* The templates that builds make: names, tags, and their ends. */
#include "builds_world.h"

#include "node/builder_impl.h"
#include "node/layers.h"
#include "sandbox/rows.h"

#include <stdio.h>

static unsigned tag(const char *from, const char *to)
{
	static struct buf tags;
	buf_clear(&tags);
	msg_list_add(&tags, str_of(to));
	struct msg_tag_template m = {.team = STR("team-1"), .template = str_of(template_id), .from = str_of(from), .tags = {buf_str(&tags)}};
	unsigned type = answer(send_front(MSG_ID_tag_template, &m));
	buf_done(&tags);
	return type;
}

static unsigned untag(const char *name)
{
	static struct buf tags;
	buf_clear(&tags);
	msg_list_add(&tags, str_of(name));
	struct msg_untag_template m = {.team = STR("team-1"), .template = str_of(template_id), .tags = {buf_str(&tags)}};
	unsigned type = answer(send_front(MSG_ID_untag_template, &m));
	buf_done(&tags);
	return type;
}

/* Case 90 of the clients' pitfalls: the same name is a new build of the same template; what runs keeps its old one. */
static void tags_move_and_old_builds_go(void **state)
{
	char first[21], reference[64], text[512], old_layer[161];
	struct seat *s = begin("app");
	strcpy(first, template_id);
	make_layer(s, "old");
	strcpy(old_layer, made_layer);
	snprintf(text, sizeof(text), LAYERS(BASE_LAYER ",{\"file\":\"%s\",\"size\":1}"), made_layer);
	finish(s, text);
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_int_equal(tag("default", "v1"), MSG_ID_build_made);
	expect_error(tag("v9", "v2"), 404, "Template 'app' with tag 'v9' not found");
	s = begin("app");
	assert_string_equal(first, template_id);
	finish(s, LAYERS(BASE_LAYER));
	snprintf(reference, sizeof(reference), "%s:v1", template_id);
	assert_int_equal(create_of("team-1", reference), MSG_ID_sandbox);
	assert_non_null(strstr(fake_find(last_id)->layers, old_layer));
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_null(strstr(fake_find(last_id)->layers, old_layer));
	expect_error(untag("default"), 400, "default");
	expect_error(untag("v7"), 404, "v7");
	assert_int_equal(untag("v1"), MSG_ID_ok);
	assert_int_equal(create_of("team-1", reference), MSG_ID_error);
	settle();
	assert_int_equal(rows("SELECT count(*) FROM builds WHERE description != ''"), 1);
	struct msg_builds list = {.team = STR("team-1"), .template = str_of(template_id), .limit = 1};
	assert_int_equal(answer(send_front(MSG_ID_builds, &list)), MSG_ID_builds_page);
	assert_true(got.builds_page.more);
}

/* Case 28: a template is not deleted under a sandbox, but by force; then what it needs stays. */
static void delete_waits_for_sandboxes_or_is_forced(void **state)
{
	char text[512], id[33], layer[161];
	struct seat *s = begin("app");
	make_layer(s, "bytes");
	strcpy(layer, made_layer);
	snprintf(text, sizeof(text), LAYERS(BASE_LAYER ",{\"file\":\"%s\",\"size\":1}"), made_layer);
	finish(s, text);
	settle();
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	strcpy(id, last_id);
	expect_error(delete_template(NULL, false), 409, "1 running or paused sandbox");
	struct msg_pause pause_it = {.sandbox = str_of(id), .memory = false};
	assert_int_equal(answer(send_front(MSG_ID_pause, &pause_it)), MSG_ID_ok);
	expect_error(delete_template(NULL, false), 409, "used by");
	assert_int_equal(delete_template(NULL, true), MSG_ID_ok);
	assert_int_equal(create_of("team-1", template_id), MSG_ID_error);
	assert_int_equal(rows("SELECT count(*) FROM templates"), 0);
	assert_int_equal(rows("SELECT count(*) FROM builds"), 0);
	assert_int_equal(rows("SELECT count(*) FROM tags"), 0);
	/* Nothing is collected that it stands on. */
	struct msg_collect_images gc = {.older_than = 0};
	assert_int_equal(answer(send_front(MSG_ID_collect_images, &gc)), MSG_ID_images_page);
	assert_int_equal(got.images_page.count, 0);
	restart();
	assert_true(exists(layer));
	struct msg_resume resume = {.sandbox = str_of(id), .mode = RESUME_CONNECT, .timeout = 300};
	assert_int_equal(answer(send_front(MSG_ID_resume, &resume)), MSG_ID_sandbox);
	assert_int_equal(answer(send_kill(id)), MSG_ID_ok);
	settle();
	gc.dry_run = true;
	assert_int_equal(answer(send_front(MSG_ID_collect_images, &gc)), MSG_ID_images_page);
	assert_int_equal(got.images_page.count, 1);
	assert_true(exists(layer));
	gc.dry_run = false;
	assert_int_equal(answer(send_front(MSG_ID_collect_images, &gc)), MSG_ID_images_page);
	settle();
	assert_false(exists(layer));
	assert_int_equal(rows("SELECT count(*) FROM layers"), 0);
	assert_true(exists("images/aa.erofs"));
}

static void what_is_old_goes_by_itself(void **state)
{
	struct seat *s = begin("app");
	make_layer(s, "bytes");
	finish(s, LAYERS(BASE_LAYER));
	settle();
	layers_tick(node);
	settle();
	assert_true(exists(made_layer));
	machine.wall_shift += (options.image_keep + 1) * 3600 * NS_PER_S;
	layers_tick(node);
	settle();
	assert_false(exists(made_layer));
}

/* A hundred creates of one image at once build it once. */
static void an_image_is_built_once(void **state)
{
	uint64_t requests[100];
	unsigned made = 0;
	for (int i = 0; i < 100; i++) {
		struct msg_make_template m = {.team = STR("team-1"), .name = STR(""), .kind = STR("image"), .tags = {STR("")}};
		msg_set(&m, make_template, reference, STR("docker.io/library/debian:12"));
		requests[i] = send_front(MSG_ID_make_template, &m);
	}
	bool seen[100] = {0};
	for (int n = 0; n < 100;) {
		uint64_t id;
		unsigned type;
		while ((type = receive(&id)))
			for (int i = 0; i < 100; i++)
				if (requests[i] == id && !seen[i]) {
					assert_int_equal(type, MSG_ID_build_made);
					seen[i] = true;
					n++;
					made += got.build_made.made;
					sandbox_copy(template_id, sizeof(template_id), got.build_made.template);
					sandbox_copy(build_id, sizeof(build_id), got.build_made.build);
				}
		loop_turn(loop, 5);
	}
	assert_int_equal(made, 1);
	assert_int_equal(rows("SELECT count(*) FROM templates"), 1);
	/* Nobody starts it: the next who asks does. */
	machine.wall_shift += 20 * NS_PER_S;
	assert_int_equal(make_named("team-1", "", "image", "docker.io/library/debian:12"), MSG_ID_build_made);
	assert_true(got.build_made.made);
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	/* Another team's is another one. */
	char mine[21], my_build[37];
	strcpy(mine, template_id), strcpy(my_build, build_id);
	assert_int_equal(make_named("team-2", "", "image", "docker.io/library/debian:12"), MSG_ID_build_made);
	assert_true(strcmp(mine, template_id) != 0);
	strcpy(template_id, mine), strcpy(build_id, my_build);
	finish(s, LAYERS(BASE_LAYER));
	assert_int_equal(make_named("team-1", "", "image", "docker.io/library/debian:12"), MSG_ID_build_made);
	assert_false(got.build_made.made);
}

static void names_move_within_a_team(void **state)
{
	finish(begin("one"), LAYERS(BASE_LAYER));
	char one[21];
	strcpy(one, template_id);
	finish(begin("two"), LAYERS(BASE_LAYER));
	struct msg_change_template m = {.team = STR("team-1"), .template = str_of(template_id)};
	msg_set(&m, change_template, name, STR("one"));
	msg_set(&m, change_template, public, true);
	assert_int_equal(answer(send_front(MSG_ID_change_template, &m)), MSG_ID_ok);
	assert_int_equal(rows("SELECT count(*) FROM templates WHERE name = 'one'"), 1);
	assert_int_equal(create_of("team-2", template_id), MSG_ID_sandbox); /* public now */
	assert_str(got.sandbox.alias, "one");
	assert_int_equal(create_of("team-2", one), MSG_ID_error);
	m.team = STR("team-2");
	expect_error(answer(send_front(MSG_ID_change_template, &m)), 404, "not found");
	char second[21];
	strcpy(second, template_id);
	make("one");
	assert_string_equal(template_id, second);
	restart();
	make("one");
	assert_string_equal(template_id, second);
}

static void deleting_ends_what_is_building(void **state)
{
	struct seat *s = begin("app");
	struct msg_build_log line = {.level = 1, .message = STR("hello")};
	say(s, MSG_ID_build_log, &line);
	log_file(true);
	say(s, MSG_ID_build_log, &line);
	assert_int_equal(delete_template(NULL, false), MSG_ID_ok);
	log_file(false);
	nothing_runs();
	assert_int_equal(told(s, NULL, NULL), 0); /* its channel is closed */
	assert_int_equal(node->builds->by_id.count, 0);
	assert_int_equal(node->builds->running, 0);
	assert_int_equal(rows("SELECT count(*) FROM builds"), 0);
	expect_error(delete_template(NULL, false), 404, "not found");
}

static void a_template_has_so_many_tags(void **state)
{
	cleanup_buf struct buf tags = BUF_INIT;
	char tag[16];
	struct msg_make_template m = {.team = STR("team-1"), .name = STR("tagged"), .kind = STR("e2b")};
	for (int i = 0; i < 64; i++) {
		buf_clear(&tags);
		snprintf(tag, sizeof(tag), "v%d", i);
		msg_list_add(&tags, str_of(tag));
		m.tags.raw = buf_str(&tags);
		assert_int_equal(answer(send_front(MSG_ID_make_template, &m)), MSG_ID_build_made);
	}
	buf_clear(&tags);
	msg_list_add(&tags, STR("v64"));
	m.tags.raw = buf_str(&tags);
	expect_error(answer(send_front(MSG_ID_make_template, &m)), 400, "more than 64");
	m.tags.raw = STR("");
	assert_int_equal(answer(send_front(MSG_ID_make_template, &m)), MSG_ID_build_made);
}

/* What an older server has left is there, and has room for templates. */
static void records_of_schema_3_are_taken_over(void **state)
{
	char path[128];
	struct store *s = NULL;
	leave();
	snprintf(path, sizeof(path), "%s/node.db", dir);
	assert_int_equal(unlink(path), 0);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/node.db%s", dir, i ? "-shm" : "-wal");
		unlink(path);
	}
	snprintf(path, sizeof(path), "%s/node.db", dir);
	assert_int_equal(store_open(path, 0, rows_migrations, 3, &s, NULL), 0);
	assert_int_equal(store_exec(s, "INSERT INTO snapshots VALUES ('snap-aaaaaaaaaaaaaaaaaaaa', 'team-1', 'kept', 'i', '" TEMPLATE "', 1, 1, 256, 1024, 'snapshots/x.img', 1, x'');"
		"INSERT INTO pools VALUES ('" TEMPLATE "', 0, 1, 2);"
		"INSERT INTO ends VALUES ('iaaaaaaaaaaaaaaaaaaaa', 'team-1', '" TEMPLATE "', 'base', 1, 9000000000000000000, 'killed', '')", NULL), 0);
	store_free(s);
	start();
	assert_int_equal(rows("SELECT count(*) FROM pools"), 1);
	assert_int_equal(rows("SELECT count(*) FROM ends"), 1);
	assert_int_equal(rows("SELECT count(*) FROM snapshots"), 1);
	assert_int_equal(rows("SELECT count(*) FROM templates"), 0);
	finish(begin("app"), LAYERS(BASE_LAYER));
	assert_int_equal(create_of("team-1", template_id), MSG_ID_sandbox);
	assert_int_equal(rows("SELECT count(*) FROM sandboxes WHERE build != ''"), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BUILD_TEST(tags_move_and_old_builds_go),
		BUILD_TEST(delete_waits_for_sandboxes_or_is_forced),
		BUILD_TEST(what_is_old_goes_by_itself),
		BUILD_TEST(an_image_is_built_once),
		BUILD_TEST(names_move_within_a_team),
		BUILD_TEST(deleting_ends_what_is_building),
		BUILD_TEST(a_template_has_so_many_tags),
		BUILD_TEST(records_of_schema_3_are_taken_over),
	};
	return node_world_run(tests);
}
