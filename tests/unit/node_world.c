#include "node_world.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>

char dir[] = "/tmp/cubicle-test-node-XXXXXX";

struct machine machine;

struct options options;
struct host host;
struct loop *loop;
struct node *node;
int front = -1;       /* our end of the channel */
uint64_t last_request;
bool ready, stopped;

char storage[MSG_MAX];
union msg_any got;    /* views into storage */
int got_fd;

struct event events[4096];
size_t n_events, n_templates, n_templates_gone, n_snapshots, n_snapshots_gone;
bool synced;

static int64_t fake_boottime(void *arg)
{
	return (machine.still ? machine.still : clock_boottime()) + machine.boot_shift;
}

static int64_t fake_realtime(void *arg)
{
	return (machine.still ? machine.still : clock_realtime()) + machine.wall_shift;
}

static int fake_memory(struct host_memory *ret, void *arg)
{
	*ret = machine.memory;
	return 0;
}

static int fake_disk(struct host_disk *ret, void *arg)
{
	*ret = machine.disk;
	return 0;
}

/* In place of ballast.c, which would take real space. */
uint64_t ballast;

void node_ballast(uint64_t bytes, void *arg)
{
	ballast = bytes;
}

void node_ballast_drop(struct node *n)
{
	ballast = 0;
}

int (*world_start)(const struct jail *j, struct jailed *ret, void *arg, struct error *err);

void on_flag(void *arg)
{
	*(bool *)arg = true;
}

void turn_until(bool *flag)
{
	for (int i = 0; i < 5000 && !*flag; i++)
		loop_turn(loop, 10);
	assert_true(*flag);
}

void open_front(void)
{
	int pair[2];
	if (front >= 0)
		close(front);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	node_peer(node, STR("front"), pair[0]);
	front = pair[1];
	fd_set_nonblock(front, true);
}

/* A node on what is in the directory. */
void start(void)
{
	struct error err = {0};
	loop = loop_new();
	struct node_config c = {.loop = loop, .options = &options, .host = &host, .directory = dir, .init_path = "/bin/false", .build_uid = 65534, .build_gid = 65534,
		.start = world_start};
	if (node_new(&c, &node, &err) < 0 || (ready = false, node_start(node, on_flag, &ready, &err)) < 0)
		fail_msg("%s", err.message);
	turn_until(&ready);
	open_front();
}

void leave(void)
{
	/* A completion that the loop never runs would be lost memory. */
	loop_timer_stop(node->sampling_timer);
	do
		loop_turn(loop, 1);
	while (node->removals || node->saves);
	loop_turn(loop, 0);
	if (front >= 0)
		close(steal_fd(&front));
	node_free(node);
	node = NULL;
	loop_free(loop);
	loop = NULL;
}

void restart(void)
{
	leave();
	start();
}

static void note_sandbox(const struct msg_sandbox *m)
{
	struct event *e = &events[n_events++];
	assert_true(n_events <= ARRAY_SIZE(events));
	*e = (struct event){.state = (enum sandbox_state)m->state, .sequence = m->sequence, .end_at = m->end_at, .ended_at = m->ended_at};
	sandbox_copy(e->id, sizeof(e->id), m->id);
	sandbox_copy(e->reason, sizeof(e->reason), m->reason);
	sandbox_copy(e->detail, sizeof(e->detail), m->detail);
}

/* The next message that came, without waiting: its type, 0 when there is none. */
unsigned receive(uint64_t *ret_request)
{
	char byte;
	if (recv(front, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
		return 0;
	struct msg_header h;
	struct error err = {0};
	int fds[MSG_MAX_FDS];
	size_t n = 0;
	int r = msg_receive_fd(front, storage, &h, &got, fds, &n, &err);
	if (r < 0)
		fail_msg("%s", err.message);
	if (got_fd >= 0)
		close(got_fd);
	got_fd = n ? fds[0] : -1;
	*ret_request = h.request;
	if (h.request == 0 && h.type == MSG_ID_sandbox)
		note_sandbox(&got.sandbox);
	if (h.type == MSG_ID_template) {
		n_templates++;
		n_templates_gone += msg_has(&got.template, template, gone);
	}
	if (h.type == MSG_ID_snapshot && !h.request) {
		n_snapshots++;
		n_snapshots_gone += msg_has(&got.snapshot, snapshot, gone);
	}
	if (h.type == MSG_ID_synced)
		synced = true;
	return h.type;
}

/* The answer to a request; events on the way are noted. */
unsigned answer(uint64_t request)
{
	for (int i = 0; i < 5000; i++) {
		uint64_t id;
		unsigned type;
		while ((type = receive(&id)))
			if (id == request)
				return type;
		loop_turn(loop, 10);
	}
	fail_msg("no answer");
	return 0;
}

/* Lets the node work until nothing more happens. */
void settle(void)
{
	for (int quiet = 0; quiet < 5;) {
		uint64_t id;
		bool any = false;
		loop_turn(loop, 4);
		while (receive(&id))
			any = true;
		quiet = any || !records_idle(node->records) || node->removals ? 0 : quiet + 1; /* the worker of a removal takes its time, too */
	}
}

/* The node has seen that the front's channel ended. */
void front_is_gone(void)
{
	for (int i = 0; i < 5000 && node->front; i++)
		loop_turn(loop, 10);
	assert_null(node->front);
}

uint64_t send_front(enum msg_id type, const void *m)
{
	struct error err = {0};
	if (msg_send_fd(front, type, m, ++last_request, NULL, 0, &err) < 0)
		fail_msg("%s", err.message);
	return last_request;
}

struct buf metadata, envs;

struct msg_create want(void)
{
	buf_clear(&metadata), buf_clear(&envs);
	msg_map_add(&metadata, STR("k"), STR("v"));
	msg_map_add(&envs, STR("A"), STR("1"));
	msg_map_add(&envs, STR("E2B_SANDBOX_ID"), STR("forged"));
	return (struct msg_create){.template = STR("base"), .team = STR("team-1"), .timeout = 300, .secure = true, .public_traffic = true,
		.metadata = {buf_str(&metadata)}, .envs = {buf_str(&envs)}};
}

char last_id[33];

const char *create_with(struct msg_create *m)
{
	unsigned type = answer(send_front(MSG_ID_create, m));
	if (type != MSG_ID_sandbox)
		fail_msg("create: %u: %.*s", type, STR_FMT(got.error.message));
	assert_int_equal(got.sandbox.state, SANDBOX_RUNNING);
	sandbox_copy(last_id, sizeof(last_id), got.sandbox.id);
	return last_id;
}

const char *create(void)
{
	struct msg_create m = want();
	return create_with(&m);
}

void expect_error(unsigned type, unsigned status, const char *text)
{
	assert_int_equal(type, MSG_ID_error);
	char message[513] = "";
	sandbox_copy(message, sizeof(message), got.error.message);
	if (got.error.status != status || !strstr(message, text))
		fail_msg("got %llu %s, expected %u %s", (unsigned long long)got.error.status, message, status, text);
	assert_int_equal(msg_has(&got.error, error, retry_after), status == 503);
}

void refuse_create(struct msg_create m, unsigned status, const char *text)
{
	unsigned before = fake->creates;
	expect_error(answer(send_front(MSG_ID_create, &m)), status, text);
	assert_int_equal(fake->creates, before);
}

uint64_t send_kill(const char *id)
{
	struct msg_kill m = {.sandbox = str_of(id)};
	return send_front(MSG_ID_kill, &m);
}

unsigned timeout_of(const char *id, enum timeout_mode mode, int64_t seconds)
{
	struct msg_timeout m = {.sandbox = str_of(id), .mode = mode, .timeout = seconds};
	return answer(send_front(MSG_ID_timeout, &m));
}

int64_t end_at(void)
{
	assert_true(got.sandbox.state == SANDBOX_RUNNING);
	return got.sandbox.end_at;
}

void subscribe(void)
{
	struct msg_subscribe m = {0};
	synced = false;
	n_events = n_templates = n_templates_gone = n_snapshots = n_snapshots_gone = 0;
	assert_int_equal(msg_send_fd(front, MSG_ID_subscribe, &m, 0, NULL, 0, NULL), 0);
	for (int i = 0; i < 5000 && !synced; i++) {
		uint64_t id;
		loop_turn(loop, 10);
		while (receive(&id))
			;
	}
	assert_true(synced);
}

/* The last event about an id. */
const struct event *last_event(const char *id)
{
	for (size_t i = n_events; i--;)
		if (strcmp(events[i].id, id) == 0)
			return &events[i];
	return NULL;
}

int64_t rows(const char *sql)
{
	static const char *const versions[RECORDS_VERSION] = {""};
	char path[128];
	struct store *s = NULL;
	snprintf(path, sizeof(path), "%s/node.db", dir);
	assert_int_equal(store_open(path, STORE_READER, versions, RECORDS_VERSION, &s, NULL), 0);
	struct stmt *q = store_prepare(s, sql, NULL);
	assert_non_null(q);
	assert_int_equal(stmt_step(q, NULL), 1);
	int64_t n = stmt_get_i64(q, 0);
	stmt_done(q);
	store_free(s);
	return n;
}

void write_template(const char *id, const char *alias)
{
	char path[160], text[1024];
	snprintf(path, sizeof(path), "%s/templates", dir);
	assert_int_equal(make_dirs(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/templates/%s.json", dir, id);
	snprintf(text, sizeof(text),
		"{\"id\":\"%s\",\"alias\":\"%s\",\"createdAt\":\"2026-01-02T03:04:05Z\",\"buildId\":\"0f8fad5b-d9cb-469f-a165-70867728950e\","
		"\"memoryMB\":256,\"diskMB\":1024,\"layers\":[{\"file\":\"images/aa.erofs\",\"size\":12}],\"user\":\"user\"}", id, alias);
	assert_int_equal(file_replace(AT_FDCWD, path, str_of(text), 0600), 0);
}

int setup(void **state)
{
	char path[128];
	remove_tree(AT_FDCWD, dir);
	snprintf(path, sizeof(path), "%s/images", dir);
	assert_int_equal(make_dirs(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/images/aa.erofs", dir);
	assert_int_equal(file_replace(AT_FDCWD, path, STR("layer bytes!"), 0600), 0);
	write_template(TEMPLATE, "base");
	fake_reset();
	machine.boot_shift = machine.wall_shift = machine.still = 0;
	machine.memory = (struct host_memory){.total = 65536 * MIB, .available = 12000 * MIB};
	machine.disk = (struct host_disk){.total = 200000 * MIB, .free = 150000 * MIB};
	host = (struct host){fake_boottime, fake_realtime, fake_memory, fake_disk, .boot_id = "11111111-2222-3333-4444-555555555555"};
	assert_int_equal(options_init(&options), 0);
	n_events = 0;
	got_fd = -1;
	start();
	return 0;
}

int teardown(void **state)
{
	if (node)
		leave();
	options_done(&options);
	buf_done(&metadata), buf_done(&envs);
	return 0;
}

int node_world_begin(void)
{
	if (!mkdtemp(dir))
		return 1;
	log_setup("test", open("/dev/null", O_WRONLY | O_CLOEXEC), LOG_ERROR);
	if (getenv("TEST_LOG"))
		log_setup("test", 2, LOG_DEBUG);
	return 0;
}

int node_world_end(int result)
{
	remove_tree(AT_FDCWD, dir);
	return result;
}
