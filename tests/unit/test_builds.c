/* Templates of teams and their builds: the test is the front, and every builder and unpacker. */
#include "node_world.h"

#include "base/encode.h"
#include "base/sha256.h"
#include "node/builder_impl.h"
#include "node/layers.h"
#include "sandbox/rows.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* A process that the node has started: its descriptors are ours, its end is that of a child that does nothing. */
struct seat {
	char kind[16];
	int fds[8];
	size_t n_fds;
	pid_t pid;
};

static struct seat seats[64];
static size_t n_seats, n_taken;
static bool start_fails;
static pthread_mutex_t seats_lock = PTHREAD_MUTEX_INITIALIZER;

static int start_seat(const struct jail *j, struct jailed *ret, void *arg, struct error *err)
{
	if (start_fails)
		return error_set(err, -EPERM, 500, "no process can be started");
	pid_t pid = fork();
	if (pid == 0) {
		for (;;)
			pause();
	}
	pthread_mutex_lock(&seats_lock);
	assert_true(n_seats < ARRAY_SIZE(seats) && j->n_fds <= 8);
	struct seat *s = &seats[n_seats++];
	*s = (struct seat){.n_fds = j->n_fds, .pid = pid};
	snprintf(s->kind, sizeof(s->kind), "%s", j->argv[1]);
	for (size_t i = 0; i < j->n_fds; i++)
		s->fds[i] = fcntl(j->fds[i], F_DUPFD_CLOEXEC, 3);
	pthread_mutex_unlock(&seats_lock);
	*ret = (struct jailed){pid, (int)syscall(434, pid, 0)}; /* pidfd_open */
	return ret->pidfd < 0 ? -errno : 0;
}

static void seat_close(struct seat *s)
{
	for (size_t i = 0; i < s->n_fds; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	s->n_fds = 0;
}

static int setup_builds(void **state)
{
	n_seats = n_taken = 0;
	start_fails = false;
	world_start = start_seat;
	return setup(state);
}

/* Something is on its way that a node which leaves now would not hear of. */
static bool is_busy(void)
{
	bool busy = !records_idle(node->records);
	map_foreach(&node->builds->by_id, s)
	{
		const struct build *b = s->value;
		busy |= b->recording || b->log_busy || (b->builder && !b->builder->process.pid);
	}
	return busy;
}

static int teardown_builds(void **state)
{
	for (int i = 0; node && i < 2000 && is_busy(); i++)
		loop_turn(loop, 5);
	int r = teardown(state);
	for (size_t i = 0; i < n_seats; i++) {
		seat_close(&seats[i]);
		kill(seats[i].pid, SIGKILL);
		waitpid(seats[i].pid, NULL, 0);
	}
	return r;
}

/* The next process that is started. */
static struct seat *next_seat(const char *kind)
{
	for (int i = 0; i < 2000; i++) {
		pthread_mutex_lock(&seats_lock);
		struct seat *s = n_taken < n_seats ? &seats[n_taken] : NULL;
		pthread_mutex_unlock(&seats_lock);
		if (s) {
			n_taken++;
			assert_string_equal(s->kind, kind);
			return s;
		}
		loop_turn(loop, 5);
	}
	fail_msg("no %s is started", kind);
	return NULL;
}

/* What it is told next. */
static unsigned told(struct seat *s, uint64_t *ret_request, int *ret_fd)
{
	for (int i = 0; i < 2000; i++) {
		char byte;
		struct msg_header h;
		int fds[MSG_MAX_FDS];
		size_t n = 0;
		ssize_t r = recv(s->fds[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (r == 0)
			return 0;
		if (r > 0) {
			assert_int_equal(msg_receive_fd(s->fds[0], storage, &h, &got, fds, &n, NULL), 0);
			if (ret_request)
				*ret_request = h.request;
			if (n && ret_fd)
				*ret_fd = fds[0];
			else if (n)
				close(fds[0]);
			return h.type;
		}
		loop_turn(loop, 5);
	}
	fail_msg("nothing is said");
	return 0;
}

static uint64_t last_say;

static uint64_t say(struct seat *s, enum msg_id type, const void *m)
{
	struct error err = {0};
	if (msg_send_fd(s->fds[0], type, m, ++last_say, NULL, 0, &err) < 0)
		fail_msg("%s", err.message);
	return last_say;
}

/* Its answer. */
static unsigned reply(struct seat *s, uint64_t request, int *ret_fd)
{
	uint64_t id;
	unsigned type;
	while ((type = told(s, &id, ret_fd)) && id != request)
		;
	return type;
}

static unsigned ask(struct seat *s, enum msg_id type, const void *m)
{
	return reply(s, say(s, type, m), NULL);
}

static void refused(unsigned type, unsigned status, const char *text)
{
	assert_int_equal(type, MSG_ID_error);
	char message[513] = "";
	sandbox_copy(message, sizeof(message), got.error.message);
	if (got.error.status != status || !strstr(message, text))
		fail_msg("got %llu %s, expected %u %s", (unsigned long long)got.error.status, message, status, text);
}

/* The front's side */

static char template_id[21], build_id[37];
static const char *builds_team = "team-1";

static unsigned make_named(const char *team, const char *name, const char *kind, const char *reference)
{
	struct msg_make_template m = {.team = str_of(team), .name = str_of(name), .kind = str_of(kind), .tags = {STR("")}};
	if (reference)
		msg_set(&m, make_template, reference, str_of(reference));
	unsigned type = answer(send_front(MSG_ID_make_template, &m));
	if (type == MSG_ID_build_made) {
		sandbox_copy(template_id, sizeof(template_id), got.build_made.template);
		sandbox_copy(build_id, sizeof(build_id), got.build_made.build);
	}
	return type;
}

static void make(const char *name)
{
	assert_int_equal(make_named(builds_team, name, "e2b", NULL), MSG_ID_build_made);
	assert_true(got.build_made.made);
}

static const char *wanted_isolation;

static unsigned start_with(const char *base)
{
	struct error err = {0};
	struct msg_start_build m = {.team = str_of(builds_team), .build = str_of(build_id)};
	if (base)
		msg_set(&m, start_build, base, str_of(base));
	if (wanted_isolation)
		msg_set(&m, start_build, isolation, str_of(wanted_isolation));
	int spec = memfd_create("spec", MFD_CLOEXEC);
	assert_int_equal(write(spec, "{}", 2), 2);
	if (msg_send_fd(front, MSG_ID_start_build, &m, ++last_request, &spec, 1, &err) < 0)
		fail_msg("%s", err.message);
	close(spec);
	return answer(last_request);
}

/* A builder that has begun on template "base". */
static struct seat *begin(const char *name)
{
	make(name);
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	return s;
}

static unsigned status_page(uint64_t after, uint64_t limit)
{
	struct msg_build_status m = {.team = STR("team-1"), .build = str_of(build_id), .after = after, .limit = limit};
	return answer(send_front(MSG_ID_build_status, &m));
}

static const char *status(void)
{
	static char text[17];
	assert_int_equal(status_page(0, 1), MSG_ID_build_page);
	sandbox_copy(text, sizeof(text), got.build_page.status);
	return text;
}

/* Waits for the end: 0, or the error is in `got`. */
static unsigned await(void)
{
	struct msg_await_build m = {.team = STR("team-1"), .build = str_of(build_id)};
	return answer(send_front(MSG_ID_await_build, &m));
}

static void nothing_runs(void)
{
	for (int i = 0; i < 2000 && node->builds->running; i++)
		loop_turn(loop, 5);
	assert_int_equal(node->builds->running, 0);
}

/* The file of its log is there, or is not. */
static void log_file(bool there)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/builds/%s.log", node->directory, build_id);
	for (int i = 0; i < 2000 && (access(path, F_OK) == 0) != there; i++)
		loop_turn(loop, 5);
	assert_int_equal(access(path, F_OK) == 0, there);
}

#define LAYERS(files) "{\"layers\":[" files "],\"user\":\"user\"}"
#define BASE_LAYER "{\"file\":\"images/aa.erofs\",\"size\":1}"

static unsigned done(struct seat *s, const char *description)
{
	struct msg_build_done m = {.description = str_of(description)};
	return ask(s, MSG_ID_build_done, &m);
}

static void finish(struct seat *s, const char *description)
{
	unsigned type = done(s, description);
	if (type != MSG_ID_ok)
		fail_msg("%.*s", STR_FMT(got.error.message));
	assert_int_equal(await(), MSG_ID_ok);
}

static unsigned create_of(const char *team, const char *reference)
{
	struct msg_create m = want();
	m.team = str_of(team);
	m.template = str_of(reference);
	unsigned type = answer(send_front(MSG_ID_create, &m));
	if (type == MSG_ID_sandbox)
		sandbox_copy(last_id, sizeof(last_id), got.sandbox.id);
	return type;
}

static unsigned delete_template(const char *tag, bool force)
{
	struct msg_delete_template m = {.team = STR("team-1"), .template = str_of(template_id), .force = force};
	if (tag)
		msg_set(&m, delete_template, tag, str_of(tag));
	return answer(send_front(MSG_ID_delete_template, &m));
}

/* A layer of a blob */

static void digest_of(const char *bytes, char to[72])
{
	unsigned char d[SHA256_SIZE];
	sha256(str_of(bytes), d);
	strcpy(to, "sha256:");
	hex_encode(to + 7, d, sizeof(d));
}

static uint64_t new_file(struct seat *s, const char *bytes, bool keep_open)
{
	int fd = -1;
	struct msg_new_file m = {.size = strlen(bytes)};
	assert_int_equal(reply(s, say(s, MSG_ID_new_file, &m), &fd), MSG_ID_file_writer);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
	if (!keep_open)
		close(fd);
	return got.file_writer.writer;
}

static unsigned find(struct seat *s, const char *key, bool to_make)
{
	struct msg_find_layer m = {.key = str_of(key), .make = to_make};
	return ask(s, MSG_ID_find_layer, &m);
}

static uint64_t unpack(struct seat *s, const char *key, uint64_t file, const char *digest)
{
	static struct buf files, digests, diff_ids, formats;
	char number[24];
	buf_clear(&files), buf_clear(&digests), buf_clear(&diff_ids), buf_clear(&formats);
	snprintf(number, sizeof(number), "%llu", (unsigned long long)file);
	msg_list_add(&files, str_of(number));
	msg_list_add(&digests, str_of(digest));
	msg_list_add(&diff_ids, STR(""));
	msg_list_add(&formats, STR("tar"));
	struct msg_unpack_layer m = {.key = str_of(key), .files = {buf_str(&files)}, .digests = {buf_str(&digests)}, .diff_ids = {buf_str(&diff_ids)}, .formats = {buf_str(&formats)},
		.size_max = 1 << 20};
	uint64_t request = say(s, MSG_ID_unpack_layer, &m);
	buf_done(&files), buf_done(&digests), buf_done(&diff_ids), buf_done(&formats);
	return request;
}

/* The unpacker writes this image. */
static void unpacked(const char *image)
{
	struct seat *u = next_seat("unpack");
	assert_int_equal(told(u, NULL, NULL), MSG_ID_unpack_begin);
	assert_int_equal(u->n_fds, 3);
	assert_int_equal(write(u->fds[1], image, strlen(image)), strlen(image));
	struct msg_unpacked m = {.size = strlen(image), .entries = 1, .diff_ids = {STR("")}};
	say(u, MSG_ID_unpacked, &m);
}

static char made_layer[161];

/* Makes a layer of these bytes, from the start to its name. */
static void make_layer(struct seat *s, const char *bytes)
{
	char digest[72], key[80];
	digest_of(bytes, digest);
	snprintf(key, sizeof(key), "oci:%s", digest + 7);
	assert_int_equal(find(s, key, true), MSG_ID_layer);
	assert_false(msg_has(&got.layer, layer, file));
	uint64_t request = unpack(s, key, new_file(s, bytes, false), digest);
	unpacked("image of it");
	unsigned type = reply(s, request, NULL);
	if (type != MSG_ID_layer)
		fail_msg("%.*s", STR_FMT(got.error.message));
	sandbox_copy(made_layer, sizeof(made_layer), got.layer.file);
}

static bool exists(const char *file)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	return access(path, F_OK) == 0;
}

/* Tests */

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

/* Uploads */

static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static uint64_t write_file(const char *team, const char *bytes, uint64_t size)
{
	struct msg_write_file m = {.team = str_of(team), .hash = str_of(hash), .size = size};
	assert_int_equal(answer(send_front(MSG_ID_write_file, &m)), MSG_ID_file_writer);
	assert_true(got_fd >= 0);
	assert_int_equal(write(got_fd, bytes, strlen(bytes)), strlen(bytes));
	return got.file_writer.writer;
}

static unsigned keep_file(const char *team, uint64_t writer, bool whole)
{
	struct msg_keep_file m = {.team = str_of(team), .hash = str_of(hash), .writer = writer, .whole = whole};
	return answer(send_front(MSG_ID_keep_file, &m));
}

static bool found_file(const char *team)
{
	struct msg_find_file m = {.team = str_of(team), .hash = str_of(hash)};
	assert_int_equal(answer(send_front(MSG_ID_find_file, &m)), MSG_ID_file_found);
	return got.file_found.found;
}

static void files_are_kept_whole(void **state)
{
	assert_false(found_file("team-1"));
	uint64_t w = write_file("team-1", "abc", 4);
	expect_error(keep_file("team-1", w, true), 400, "another size");
	w = write_file("team-1", "abcd", 4);
	expect_error(keep_file("team-2", w, true), 404, "no such file");
	w = write_file("team-1", "abcd", 4);
	assert_int_equal(keep_file("team-1", w, false), MSG_ID_ok);
	assert_false(found_file("team-1"));
	w = write_file("team-1", "abcd", 0);
	assert_int_equal(keep_file("team-1", w, true), MSG_ID_ok);
	expect_error(keep_file("team-1", w, true), 404, "no such file");
	assert_true(found_file("team-1"));
	assert_false(found_file("team-2"));
	restart();
	assert_true(found_file("team-1"));
	struct seat *s = begin("app");
	struct msg_open_file m = {.hash = str_of(hash)};
	int fd = -1;
	char bytes[8] = "";
	assert_int_equal(reply(s, say(s, MSG_ID_open_file, &m), &fd), MSG_ID_file_reader);
	assert_int_equal(got.file_reader.size, 4);
	assert_int_equal(read(fd, bytes, 8), 4);
	assert_string_equal(bytes, "abcd");
	assert_int_equal(write(fd, "x", 1), -1);
	close(fd);
	machine.disk.free = 1000 * MIB;
	struct msg_write_file more = {.team = STR("team-1"), .hash = str_of(hash), .size = 4};
	expect_error(answer(send_front(MSG_ID_write_file, &more)), 507, "disk");
	more.size = ((uint64_t)options.build_upload_max << 20) + 1;
	expect_error(answer(send_front(MSG_ID_write_file, &more)), 413, "build.upload_max");
	more.hash = STR("ABC");
	expect_error(answer(send_front(MSG_ID_write_file, &more)), 400, "Invalid files hash");
}

static void a_front_that_goes_leaves_no_writers(void **state)
{
	write_file("team-1", "abc", 3);
	assert_int_equal(node->uploads.n_writers, 1);
	close(steal_fd(&front));
	front_is_gone();
	assert_int_equal(node->uploads.n_writers, 0);
	open_front();
}

static void a_team_leaves_others_their_turn(void **state)
{
	struct msg_write_file m = {.team = STR("team-1"), .hash = str_of(hash), .size = 4};
	for (int i = 0; i < FILE_WRITERS_OF_TEAM; i++) {
		assert_int_equal(answer(send_front(MSG_ID_write_file, &m)), MSG_ID_file_writer);
		assert_true(got.file_writer.reserve > 0);
	}
	expect_error(answer(send_front(MSG_ID_write_file, &m)), 503, "16 files already");
	m.team = STR("team-2");
	assert_int_equal(answer(send_front(MSG_ID_write_file, &m)), MSG_ID_file_writer);
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
#define T(name) cmocka_unit_test_setup_teardown(name, setup_builds, teardown_builds)
	const struct CMUnitTest tests[] = {
		T(a_build_makes_a_template), T(who_asks_for_the_build_chooses_the_isolation), T(what_a_builder_has_not_been_given_is_refused), T(a_blob_is_what_its_digest_says), T(an_unpacker_that_fails_leaves_nothing),
		T(who_waits_for_a_layer_gets_it), T(two_that_would_wait_for_each_other_do_not), T(step_layers_are_not_shared_between_teams), T(boxes_end_with_their_builder),
		T(a_builder_may_end_at_any_step), T(a_build_has_its_time), T(a_build_has_its_room), T(too_many_files_are_refused), T(builds_wait_for_their_turn), T(logs_are_paged),
		T(a_flood_of_logs_is_cut), T(tags_move_and_old_builds_go), T(delete_waits_for_sandboxes_or_is_forced), T(what_is_old_goes_by_itself), T(an_image_is_built_once),
		T(a_restart_in_the_middle_leaves_an_error), T(stop_ends_builds), T(names_move_within_a_team), T(deleting_ends_what_is_building), T(wrong_requests_are_refused),
		T(files_are_kept_whole), T(a_front_that_goes_leaves_no_writers), T(a_build_stands_on_a_snapshot), T(a_probe_decides), T(a_probe_without_room_is_a_failure), T(another_team_keeps_nobody_waiting), T(a_builder_locks_so_many_layers),
		T(a_builder_reads_what_it_asks_for), T(a_template_has_so_many_tags), T(a_team_leaves_others_their_turn), T(turns_are_shared_between_teams), T(records_of_schema_3_are_taken_over),
	};
	return node_world_run(tests);
}
