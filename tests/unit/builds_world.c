#include "builds_world.h"

#include "base/encode.h"
#include "base/sha256.h"
#include "node/builder_impl.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

static struct seat seats[64];
size_t n_seats, n_taken;
bool start_fails;
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

void seat_close(struct seat *s)
{
	for (size_t i = 0; i < s->n_fds; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	s->n_fds = 0;
}

int setup_builds(void **state)
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

int teardown_builds(void **state)
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

struct seat *next_seat(const char *kind)
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

unsigned told(struct seat *s, uint64_t *ret_request, int *ret_fd)
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

uint64_t last_say;

uint64_t say(struct seat *s, enum msg_id type, const void *m)
{
	struct error err = {0};
	if (msg_send_fd(s->fds[0], type, m, ++last_say, NULL, 0, &err) < 0)
		fail_msg("%s", err.message);
	return last_say;
}

unsigned reply(struct seat *s, uint64_t request, int *ret_fd)
{
	uint64_t id;
	unsigned type;
	while ((type = told(s, &id, ret_fd)) && id != request)
		;
	return type;
}

unsigned ask(struct seat *s, enum msg_id type, const void *m)
{
	return reply(s, say(s, type, m), NULL);
}

void refused(unsigned type, unsigned status, const char *text)
{
	assert_int_equal(type, MSG_ID_error);
	char message[513] = "";
	sandbox_copy(message, sizeof(message), got.error.message);
	if (got.error.status != status || !strstr(message, text))
		fail_msg("got %llu %s, expected %u %s", (unsigned long long)got.error.status, message, status, text);
}

/* The front's side */
char template_id[21], build_id[37];
const char *builds_team = "team-1";

unsigned make_named(const char *team, const char *name, const char *kind, const char *reference)
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

void make(const char *name)
{
	assert_int_equal(make_named(builds_team, name, "e2b", NULL), MSG_ID_build_made);
	assert_true(got.build_made.made);
}

const char *wanted_isolation;

unsigned start_with(const char *base)
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

struct seat *begin(const char *name)
{
	make(name);
	assert_int_equal(start_with(TEMPLATE), MSG_ID_ok);
	struct seat *s = next_seat("builder");
	assert_int_equal(told(s, NULL, NULL), MSG_ID_build_begin);
	return s;
}

unsigned status_page(uint64_t after, uint64_t limit)
{
	struct msg_build_status m = {.team = STR("team-1"), .build = str_of(build_id), .after = after, .limit = limit};
	return answer(send_front(MSG_ID_build_status, &m));
}

const char *status(void)
{
	static char text[17];
	assert_int_equal(status_page(0, 1), MSG_ID_build_page);
	sandbox_copy(text, sizeof(text), got.build_page.status);
	return text;
}

unsigned await(void)
{
	struct msg_await_build m = {.team = STR("team-1"), .build = str_of(build_id)};
	return answer(send_front(MSG_ID_await_build, &m));
}

void nothing_runs(void)
{
	for (int i = 0; i < 2000 && node->builds->running; i++)
		loop_turn(loop, 5);
	assert_int_equal(node->builds->running, 0);
}

void log_file(bool there)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/builds/%s.log", node->directory, build_id);
	for (int i = 0; i < 2000 && (access(path, F_OK) == 0) != there; i++)
		loop_turn(loop, 5);
	assert_int_equal(access(path, F_OK) == 0, there);
}

unsigned done(struct seat *s, const char *description)
{
	struct msg_build_done m = {.description = str_of(description)};
	return ask(s, MSG_ID_build_done, &m);
}

void finish(struct seat *s, const char *description)
{
	unsigned type = done(s, description);
	if (type != MSG_ID_ok)
		fail_msg("%.*s", STR_FMT(got.error.message));
	assert_int_equal(await(), MSG_ID_ok);
}

unsigned create_of(const char *team, const char *reference)
{
	struct msg_create m = want();
	m.team = str_of(team);
	m.template = str_of(reference);
	unsigned type = answer(send_front(MSG_ID_create, &m));
	if (type == MSG_ID_sandbox)
		sandbox_copy(last_id, sizeof(last_id), got.sandbox.id);
	return type;
}

unsigned delete_template(const char *tag, bool force)
{
	struct msg_delete_template m = {.team = STR("team-1"), .template = str_of(template_id), .force = force};
	if (tag)
		msg_set(&m, delete_template, tag, str_of(tag));
	return answer(send_front(MSG_ID_delete_template, &m));
}

/* A layer of a blob */

void digest_of(const char *bytes, char to[72])
{
	unsigned char d[SHA256_SIZE];
	sha256(str_of(bytes), d);
	strcpy(to, "sha256:");
	hex_encode(to + 7, d, sizeof(d));
}

uint64_t new_file(struct seat *s, const char *bytes, bool keep_open)
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

unsigned find(struct seat *s, const char *key, bool to_make)
{
	struct msg_find_layer m = {.key = str_of(key), .make = to_make};
	return ask(s, MSG_ID_find_layer, &m);
}

uint64_t unpack(struct seat *s, const char *key, uint64_t file, const char *digest)
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

void unpacked(const char *image)
{
	struct seat *u = next_seat("unpack");
	assert_int_equal(told(u, NULL, NULL), MSG_ID_unpack_begin);
	assert_int_equal(u->n_fds, 3);
	assert_int_equal(write(u->fds[1], image, strlen(image)), strlen(image));
	struct msg_unpacked m = {.size = strlen(image), .entries = 1, .diff_ids = {STR("")}};
	say(u, MSG_ID_unpacked, &m);
}

char made_layer[161];

void make_layer(struct seat *s, const char *bytes)
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

bool exists(const char *file)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	return access(path, F_OK) == 0;
}
