/* What builders ask for: files, layers, and those of others. */
#include "builds_world.h"

#include "node/builder_impl.h"
#include "node/layers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

static void what_a_builder_has_not_been_given_is_refused(void **state)
{
	struct seat *s = begin("app");
	refused(done(s, LAYERS("{\"file\":\"images/bb.erofs\",\"size\":1}")), 400, "no layer");
	refused(done(s, LAYERS("{\"file\":\"images/../node.db\",\"size\":1}")), 400, "layers");
	refused(done(s, LAYERS("")), 400, "layers");
	refused(done(s, LAYERS(BASE_LAYER "," BASE_LAYER)), 400, "twice");
	refused(done(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"nested_userns\":true}"), 400, "nested_userns");
	refused(done(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"id\":\"k3abcdefghij0123456a\"}"), 400, "id");
	refused(done(s, "{\"layers\":[" BASE_LAYER "],\"user\":\"user\",\"surprise\":1}"), 400, "surprise");
	refused(done(s, "]"), 400, "description");
	struct msg_start_box box = {.user = STR("root"), .token = STR("0123456789abcdef0123")};
	cleanup_buf struct buf layers = BUF_INIT;
	msg_list_add(&layers, STR("images/bb.erofs"));
	box.layers.raw = buf_str(&layers);
	refused(ask(s, MSG_ID_start_box, &box), 400, "no layer");
	box.layers.raw = STR("");
	refused(ask(s, MSG_ID_start_box, &box), 400, "layers");
	struct msg_open_box open_box = {.box = 1, .port = 49983};
	refused(ask(s, MSG_ID_open_box, &open_box), 404, "no such sandbox");
	struct msg_seal_box seal = {.box = 7};
	refused(ask(s, MSG_ID_seal_box, &seal), 404, "no such sandbox");
	struct msg_open_file file = {.hash = STR("../../node.db")};
	refused(ask(s, MSG_ID_open_file, &file), 404, "not sent");
	struct msg_merge_layers merge = {.layers = {buf_str(&layers)}};
	refused(ask(s, MSG_ID_merge_layers, &merge), 400, "no layer");
	/* Of all that nothing remains: it goes on as if nothing had been. */
	finish(s, LAYERS(BASE_LAYER));
}

static void a_blob_is_what_its_digest_says(void **state)
{
	char right[72], other[72], key[80], other_key[80];
	struct seat *s = begin("app");
	digest_of("right", right);
	digest_of("other", other);
	snprintf(key, sizeof(key), "oci:%s", right + 7);
	snprintf(other_key, sizeof(other_key), "oci:%s", other + 7);
	uint64_t file = new_file(s, "right", false);
	refused(reply(s, unpack(s, key, file, right), NULL), 400, "has not given it");
	assert_int_equal(find(s, other_key, true), MSG_ID_layer);
	assert_int_equal(find(s, key, true), MSG_ID_layer);
	/* Its key must follow from the digest, the digest from the bytes. */
	refused(reply(s, unpack(s, other_key, file, right), NULL), 400, "key");
	refused(reply(s, unpack(s, other_key, file, other), NULL), 400, "digest");
	refused(reply(s, unpack(s, key, file + 1, right), NULL), 400, "no file");
	/* Nobody may be able to change them behind the check. */
	uint64_t open_one = new_file(s, "right", true);
	refused(reply(s, unpack(s, key, open_one, right), NULL), 400, "open for writing");
	uint64_t request = unpack(s, key, file, right);
	unpacked("image");
	assert_int_equal(reply(s, request, NULL), MSG_ID_layer);
	assert_int_equal(rows("SELECT count(*) FROM layers"), 1);
}

static void an_unpacker_that_fails_leaves_nothing(void **state)
{
	char digest[72], key[80];
	struct seat *s = begin("app");
	digest_of("blob", digest);
	snprintf(key, sizeof(key), "oci:%s", digest + 7);
	assert_int_equal(find(s, key, true), MSG_ID_layer);
	uint64_t file = new_file(s, "blob", false);
	/* It says why. */
	uint64_t request = unpack(s, key, file, digest);
	struct seat *u = next_seat("unpack");
	assert_int_equal(told(u, NULL, NULL), MSG_ID_unpack_begin);
	struct msg_error e = {.code = -EXDEV, .status = 409, .message = STR("a hard link to a file of a layer below")};
	say(u, MSG_ID_error, &e);
	refused(reply(s, request, NULL), 409, "hard link");
	/* It dies. */
	request = unpack(s, key, file, digest);
	u = next_seat("unpack");
	assert_int_equal(told(u, NULL, NULL), MSG_ID_unpack_begin);
	kill(u->pid, SIGKILL);
	refused(reply(s, request, NULL), 500, "unexpectedly");
	/* It lies. */
	request = unpack(s, key, file, digest);
	u = next_seat("unpack");
	assert_int_equal(told(u, NULL, NULL), MSG_ID_unpack_begin);
	struct msg_unpacked m = {.size = 4096, .entries = 1, .diff_ids = {STR("")}};
	say(u, MSG_ID_unpacked, &m);
	refused(reply(s, request, NULL), 500, "not 4096");
	/* It speaks out of turn. */
	request = unpack(s, key, file, digest);
	u = next_seat("unpack");
	assert_int_equal(told(u, NULL, NULL), MSG_ID_unpack_begin);
	assert_int_equal(write(u->fds[0], "garbage", 7), 7);
	refused(reply(s, request, NULL), 500, "unexpectedly");
	assert_int_equal(rows("SELECT count(*) FROM layers"), 0);
	request = unpack(s, key, file, digest);
	unpacked("image");
	assert_int_equal(reply(s, request, NULL), MSG_ID_layer);
}

/* One layer, made once; who waits has it, or makes it when the first does not. */
static void who_waits_for_a_layer_gets_it(void **state)
{
	char digest[72], key[80], first_build[37];
	options.build_max = 8;
	struct seat *all[5];
	for (int i = 0; i < 5; i++) {
		char name[16];
		snprintf(name, sizeof(name), "app-%d", i);
		all[i] = begin(name);
		if (i == 0)
			strcpy(first_build, build_id);
	}
	digest_of("blob", digest);
	snprintf(key, sizeof(key), "oci:%s", digest + 7);
	assert_int_equal(find(all[0], key, true), MSG_ID_layer);
	uint64_t waits[5];
	for (int i = 1; i < 5; i++) {
		struct msg_find_layer m = {.key = str_of(key), .make = true};
		waits[i] = say(all[i], MSG_ID_find_layer, &m);
	}
	settle();
	/* The holder dies: the next one makes it. */
	kill(all[0]->pid, SIGKILL);
	assert_int_equal(reply(all[1], waits[1], NULL), MSG_ID_layer);
	assert_false(msg_has(&got.layer, layer, file));
	strcpy(build_id, first_build);
	expect_error(await(), 400, "killed");
	/* That one gives it up. */
	struct msg_drop_layer drop = {.key = str_of(key)};
	assert_int_equal(ask(all[1], MSG_ID_drop_layer, &drop), MSG_ID_ok);
	assert_int_equal(reply(all[2], waits[2], NULL), MSG_ID_layer);
	assert_false(msg_has(&got.layer, layer, file));
	/* The third makes it. */
	uint64_t request = unpack(all[2], key, new_file(all[2], "blob", false), digest);
	unpacked("image");
	assert_int_equal(reply(all[2], request, NULL), MSG_ID_layer);
	for (int i = 3; i < 5; i++) {
		assert_int_equal(reply(all[i], waits[i], NULL), MSG_ID_layer);
		assert_true(got.layer.found && got.layer.file.n > 0);
	}
	assert_int_equal(node->layers.locks.count, 0);
	assert_int_equal(rows("SELECT count(*) FROM layers"), 1);
}

static void two_that_would_wait_for_each_other_do_not(void **state)
{
	struct seat *a = begin("a"), *b = begin("b");
	assert_int_equal(find(a, "oci:1111", true), MSG_ID_layer);
	assert_int_equal(find(b, "oci:2222", true), MSG_ID_layer);
	struct msg_find_layer m = {.key = STR("oci:2222"), .make = true};
	uint64_t waits = say(a, MSG_ID_find_layer, &m);
	settle();
	assert_int_equal(find(b, "oci:1111", true), MSG_ID_layer); /* and makes it, too */
	assert_false(msg_has(&got.layer, layer, file));
	struct msg_drop_layer drop = {.key = STR("oci:2222")};
	assert_int_equal(ask(b, MSG_ID_drop_layer, &drop), MSG_ID_ok);
	assert_int_equal(reply(a, waits, NULL), MSG_ID_layer);
}

/* What another team makes is waited for a while only: its registry may be as slow as it likes. */
static void another_team_keeps_nobody_waiting(void **state)
{
	options.build_max = 8;
	builds_team = "team-2";
	struct seat *slow = begin("slow");
	builds_team = "team-1";
	struct seat *a = begin("a"), *b = begin("b");
	assert_int_equal(find(slow, "oci:1111", true), MSG_ID_layer);
	struct msg_find_layer m = {.key = STR("oci:1111"), .make = true};
	uint64_t waits = say(a, MSG_ID_find_layer, &m);
	settle();
	assert_int_equal(find(a, "oci:2222", true), MSG_ID_layer);
	m.key = STR("oci:2222");
	uint64_t waits_too = say(b, MSG_ID_find_layer, &m);
	settle();
	machine.boot_shift += 61 * NS_PER_S;
	assert_int_equal(reply(a, waits, NULL), MSG_ID_layer); /* and makes it, too */
	assert_false(msg_has(&got.layer, layer, file));
	char digest[72];
	digest_of("blob", digest);
	refused(reply(a, unpack(a, "oci:1111", new_file(a, "blob", false), digest), NULL), 400, "that of these blobs is");
	/* The next one of theirs it does not wait for; of its own team it waits on. */
	assert_int_equal(find(slow, "oci:3333", true), MSG_ID_layer);
	assert_int_equal(find(a, "oci:3333", true), MSG_ID_layer);
	struct msg_drop_layer drop = {.key = STR("oci:2222")};
	assert_int_equal(ask(a, MSG_ID_drop_layer, &drop), MSG_ID_ok);
	assert_int_equal(reply(b, waits_too, NULL), MSG_ID_layer);
	kill(slow->pid, SIGKILL);
	kill(a->pid, SIGKILL);
	kill(b->pid, SIGKILL);
	nothing_runs();
	assert_int_equal(node->layers.locks.count, 0);
}

static void a_builder_locks_so_many_layers(void **state)
{
	struct seat *s = begin("greedy");
	char key[32];
	for (int i = 0; i < BUILDER_KEYS_MOST; i++) {
		snprintf(key, sizeof(key), "oci:%d", i);
		assert_int_equal(find(s, key, true), MSG_ID_layer);
	}
	refused(find(s, "oci:more", true), 400, "at most 2048");
	assert_int_equal(find(s, "oci:7", true), MSG_ID_error);
	assert_int_equal(find(s, "oci:more", false), MSG_ID_layer);
	struct msg_drop_layer drop = {.key = STR("oci:7")};
	assert_int_equal(ask(s, MSG_ID_drop_layer, &drop), MSG_ID_ok);
	assert_int_equal(find(s, "oci:more", true), MSG_ID_layer);
	kill(s->pid, SIGKILL);
	expect_error(await(), 400, "killed");
	settle();
	assert_int_equal(node->layers.locks.count, 0);
}

/* Answers hold memory and descriptors until they are read. */
static void a_builder_reads_what_it_asks_for(void **state)
{
	struct seat *s = begin("deaf");
	struct msg_open_file m = {.hash = STR("0000000000000000000000000000000000000000000000000000000000000000")};
	for (int i = 0; i < 100000 && msg_send_fd(s->fds[0], MSG_ID_open_file, &m, ++last_say, NULL, 0, NULL) >= 0; i++)
		loop_turn(loop, 0);
	expect_error(await(), 400, "does not read its answers");
}

/* What follows from steps is of one team. */
static void step_layers_are_not_shared_between_teams(void **state)
{
	struct seat *s = begin("app");
	struct msg_start_box box = {.user = STR("root"), .token = STR("0123456789abcdef0123")};
	cleanup_buf struct buf layers = BUF_INIT;
	msg_list_add(&layers, STR("images/aa.erofs"));
	box.layers.raw = buf_str(&layers);
	assert_int_equal(find(s, "step", true), MSG_ID_layer);
	assert_int_equal(ask(s, MSG_ID_start_box, &box), MSG_ID_box_started);
	uint64_t number = got.box_started.box;
	assert_int_equal(fake_alive(), 1);
	subscribe();
	assert_int_equal(n_events, 0); /* it is in no list */
	struct msg_open_box port = {.box = number, .port = 49983};
	int fd = -1;
	assert_int_equal(reply(s, say(s, MSG_ID_open_box, &port), &fd), MSG_ID_stream);
	close(fd);
	struct msg_seal_box seal = {.box = number};
	msg_set(&seal, seal_box, key, STR("oci:aaaa"));
	refused(ask(s, MSG_ID_seal_box, &seal), 400, "key");
	msg_set(&seal, seal_box, key, STR("step"));
	assert_int_equal(ask(s, MSG_ID_seal_box, &seal), MSG_ID_layer);
	char file[161], text[512];
	sandbox_copy(file, sizeof(file), got.layer.file);
	assert_true(exists(file));
	assert_int_equal(fake_alive(), 0);
	snprintf(text, sizeof(text), LAYERS(BASE_LAYER ",{\"file\":\"%s\",\"size\":1}"), file);
	finish(s, text);
	/* The same team finds it, another does not. */
	s = begin("again");
	assert_int_equal(find(s, "step", false), MSG_ID_layer);
	assert_true(got.layer.found);
	assert_str(got.layer.file, file);
	assert_int_equal(make_named("team-2", "theirs", "e2b", NULL), MSG_ID_build_made);
	struct msg_start_build m = {.team = STR("team-2"), .build = str_of(build_id)};
	msg_set(&m, start_build, base, STR(TEMPLATE));
	int spec = memfd_create("spec", MFD_CLOEXEC);
	assert_int_equal(msg_send_fd(front, MSG_ID_start_build, &m, ++last_request, &spec, 1, NULL), 0);
	close(spec);
	assert_int_equal(answer(last_request), MSG_ID_ok);
	struct seat *other = next_seat("builder");
	assert_int_equal(told(other, NULL, NULL), MSG_ID_build_begin);
	assert_int_equal(find(other, "step", false), MSG_ID_layer);
	assert_false(got.layer.found);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BUILD_TEST(what_a_builder_has_not_been_given_is_refused),
		BUILD_TEST(a_blob_is_what_its_digest_says),
		BUILD_TEST(an_unpacker_that_fails_leaves_nothing),
		BUILD_TEST(who_waits_for_a_layer_gets_it),
		BUILD_TEST(two_that_would_wait_for_each_other_do_not),
		BUILD_TEST(step_layers_are_not_shared_between_teams),
		BUILD_TEST(another_team_keeps_nobody_waiting),
		BUILD_TEST(a_builder_locks_so_many_layers),
		BUILD_TEST(a_builder_reads_what_it_asks_for),
	};
	return node_world_run(tests);
}
