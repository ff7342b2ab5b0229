#include "unit.h"

#include "api/node_client.h"
#include "base/clock.h"
#include "io/chan.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

static struct msg_sandbox sandbox(const char *id, int64_t started, uint64_t sequence)
{
	return (struct msg_sandbox){.id = str_of(id), .state = SANDBOX_RUNNING, .team = STR("default"), .template_id = STR("t"),
		.started_at = started, .end_at = INT64_MAX, .generation = STR("g1"), .isolation = STR("namespace"), .sequence = sequence};
}

static struct msg_sandbox gone(const char *id, const char *reason, uint64_t sequence)
{
	struct msg_sandbox m = sandbox(id, 1, sequence);
	m.state = SANDBOX_GONE;
	msg_set(&m, sandbox, reason, str_of(reason));
	return m;
}

static struct {
	unsigned n;
	char last[64];
} ended;

static void on_ended(const struct index_sandbox *s, void *arg)
{
	ended.n++;
	snprintf(ended.last, sizeof(ended.last), "%.*s/%.*s", STR_FMT(s->id), STR_FMT(s->generation));
}

static struct index_listener listener = {.ended = on_ended};

static struct sandbox_index *fresh(void)
{
	struct sandbox_index *ix = index_new();
	ended.n = 0;
	ended.last[0] = 0;
	index_listen(ix, &listener);
	index_begin(ix);
	return ix;
}

static void put(struct sandbox_index *ix, struct msg_sandbox m, bool event, int expected)
{
	assert_int_equal(index_put_sandbox(ix, &m, event), expected);
}

static void nothing_is_known_before_the_first_snapshot(void **state)
{
	struct sandbox_index *ix = fresh();
	assert_false(index_ready(ix));
	put(ix, sandbox("a", 1, 0), false, 0);
	assert_false(index_ready(ix));
	index_synced(ix, 0);
	assert_true(index_ready(ix));
	assert_non_null(index_find(ix, STR("a")));
	index_free(ix);
}

static void entries_are_sorted_by_start_then_id(void **state)
{
	struct sandbox_index *ix = fresh();
	put(ix, sandbox("b", 5, 0), false, 0);
	put(ix, sandbox("c", 2, 0), false, 0);
	put(ix, sandbox("a", 5, 0), false, 0);
	put(ix, sandbox("d", 9, 0), false, 0);
	put(ix, sandbox("d", 1, 0), false, 0); /* started anew: moved, not doubled */
	assert_int_equal(index_count(ix), 4);
	const char *order[] = {"d", "c", "a", "b"};
	for (size_t i = 0; i < 4; i++)
		assert_str(index_at(ix, i)->id, order[i]);
	assert_int_equal(index_position(ix, 5, STR("b")), 3);
	assert_int_equal(index_position(ix, 5, STR("")), 2);
	assert_int_equal(index_position(ix, 6, STR("")), 4);
	index_free(ix);
}

static void a_snapshot_replaces_what_was_known(void **state)
{
	struct sandbox_index *ix = fresh();
	struct msg_template t = {.id = STR("t1"), .build_id = STR("b")}, u = {.id = STR("t2"), .build_id = STR("b")};
	msg_set(&t, template, alias, STR("base"));
	put(ix, sandbox("a", 1, 0), false, 0);
	put(ix, sandbox("b", 2, 0), false, 0);
	index_put_template(ix, &t);
	index_put_template(ix, &u);
	index_synced(ix, 7);
	put(ix, sandbox("c", 3, 8), true, 0);
	index_begin(ix);
	assert_non_null(index_find(ix, STR("a"))); /* the last contents answer until the new ones are whole */
	put(ix, sandbox("b", 2, 1), false, 0);
	index_put_template(ix, &t);
	assert_int_equal(ended.n, 0);
	index_synced(ix, 1);
	assert_int_equal(index_count(ix), 1);
	assert_null(index_find(ix, STR("a")));
	assert_null(index_find(ix, STR("c")));
	assert_int_equal(ended.n, 2);
	assert_int_equal(index_template_count(ix), 1);
	assert_non_null(index_template_named(ix, STR(""), STR("base")));
	assert_null(index_template_find(ix, STR("t2")));
	put(ix, sandbox("e", 4, 2), true, 0); /* numbered from the new snapshot on */
	index_free(ix);
}

static void a_gap_in_the_events_is_noticed(void **state)
{
	struct sandbox_index *ix = fresh();
	index_synced(ix, 10);
	put(ix, sandbox("a", 1, 11), true, 0);
	put(ix, sandbox("b", 2, 13), true, -ESTALE);
	put(ix, sandbox("a", 1, 11), true, 0); /* known already */
	index_free(ix);
}

static void an_answer_never_goes_back_in_time(void **state)
{
	struct sandbox_index *ix = fresh();
	index_synced(ix, 0);
	struct msg_sandbox m = sandbox("a", 1, 1);
	put(ix, m, true, 0);
	m.sequence = 2;
	m.end_at = 500;
	put(ix, m, true, 0);
	m.sequence = 1;
	m.end_at = 100;
	put(ix, m, false, 0);
	assert_true(index_find(ix, STR("a"))->end_at == 500);
	put(ix, gone("a", "timeout", 3), true, 0);
	m.sequence = 2;
	put(ix, m, false, 0);
	assert_null(index_find(ix, STR("a"))); /* not raised from the dead */
	index_free(ix);
}

static void the_end_is_told_once_and_its_reason_kept(void **state)
{
	struct sandbox_index *ix = fresh();
	index_synced(ix, 0);
	put(ix, sandbox("a", 1, 1), true, 0);
	struct msg_sandbox m = sandbox("a", 1, 2);
	m.generation = STR("g2");
	put(ix, m, true, 0);
	assert_string_equal(ended.last, "a/g1");
	m.state = SANDBOX_KILLING;
	m.sequence = 3;
	msg_set(&m, sandbox, reason, STR("disk_full"));
	put(ix, m, true, 0);
	assert_str(index_end_of(ix, STR("a"), clock_realtime())->reason, "disk_full"); /* the intent, until more is known */
	assert_string_equal(ended.last, "a/g2");
	assert_int_equal(ended.n, 2);
	assert_false(index_is_running(index_find(ix, STR("a"))));
	struct msg_sandbox end = gone("a", "oom_killed", 4);
	int64_t at = clock_realtime();
	msg_set(&end, sandbox, ended_at, at);
	msg_set(&end, sandbox, detail, STR("limit 512 MB"));
	put(ix, end, true, 0);
	assert_int_equal(ended.n, 2);
	const struct index_end *e = index_end_of(ix, STR("a"), at + 1);
	assert_non_null(e);
	assert_str(e->reason, "oom_killed");
	assert_str(e->detail, "limit 512 MB");
	assert_non_null(index_end_of(ix, STR("a"), at + 24 * 3600 * NS_PER_S - 1));
	assert_null(index_end_of(ix, STR("a"), at + 24 * 3600 * NS_PER_S));
	index_free(ix);
}

static void a_kill_is_seen_before_its_event(void **state)
{
	struct sandbox_index *ix = fresh();
	index_synced(ix, 0);
	put(ix, sandbox("a", 1, 1), true, 0);
	index_killed(ix, STR("a"));
	assert_null(index_find(ix, STR("a")));
	assert_int_equal(ended.n, 1);
	assert_str(index_end_of(ix, STR("a"), clock_realtime())->reason, "killed");
	put(ix, gone("a", "timeout", 2), true, 0); /* the node knows better */
	assert_str(index_end_of(ix, STR("a"), clock_realtime())->reason, "timeout");
	index_free(ix);
}

static void many_ends_stay_bounded(void **state)
{
	struct sandbox_index *ix = fresh();
	index_synced(ix, 0);
	char id[16];
	for (unsigned i = 1; i <= 25000; i++) {
		snprintf(id, sizeof(id), "i%u", i);
		put(ix, gone(id, "killed", i), true, 0);
	}
	assert_null(index_end_of(ix, STR("i1"), clock_realtime()));
	assert_non_null(index_end_of(ix, STR("i25000"), clock_realtime()));
	index_free(ix);
}

/* The node's end of a channel, driven by hand. */
struct peer {
	struct loop *loop;
	struct sandbox_index *index;
	struct node_client *client;
	int fd;
	char storage[MSG_MAX];
	struct msg_header header;
	union msg_any body;
};

static void peer_attach(struct peer *p)
{
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	p->fd = fds[1];
	assert_int_equal(node_client_attach(p->client, fds[0]), 0);
}

static void peer_read(struct peer *p, unsigned type)
{
	assert_int_equal(msg_receive_fd(p->fd, p->storage, &p->header, &p->body, NULL, NULL, NULL), 0);
	assert_int_equal(p->header.type, type);
}

static void peer_new(struct peer *p)
{
	p->loop = loop_new();
	p->index = fresh();
	p->client = node_client_new(p->loop, p->index);
	p->fd = -1;
}

static void peer_done(struct peer *p)
{
	node_client_free(p->client);
	index_free(p->index);
	loop_free(p->loop);
	if (p->fd >= 0)
		close(p->fd);
}

struct seen {
	unsigned n;
	int status, code, retry_after, fd;
};

static void on_done(const struct node_answer *a, void *arg)
{
	struct seen *s = arg;
	s->n++;
	s->status = a->err ? a->err->status : 0;
	s->code = a->err ? a->err->code : 0;
	s->retry_after = a->err ? a->err->retry_after : 0;
	s->fd = a->fd;
}

static void calls_get_their_answers(void **state)
{
	struct peer p;
	peer_new(&p);
	struct error err = {0};
	struct seen a = {0}, b = {0}, c = {0};
	struct msg_kill kill = {.sandbox = STR("a")};
	assert_null(node_kill(p.client, &kill, on_done, &a, &err));
	assert_int_equal(err.status, 503);
	assert_int_equal(err.retry_after, NODE_RETRY_AFTER);
	peer_attach(&p);
	peer_read(&p, MSG_ID_hello);
	peer_read(&p, MSG_ID_subscribe);
	struct msg_sandbox s = sandbox("a", 1, 0);
	struct msg_synced synced = {.sequence = 0};
	msg_send_fd(p.fd, MSG_ID_sandbox, &s, p.header.request, NULL, 0, NULL);
	msg_send_fd(p.fd, MSG_ID_synced, &synced, p.header.request, NULL, 0, NULL);
	loop_turn(p.loop, 0);
	assert_non_null(index_find(p.index, STR("a")));

	assert_non_null(node_kill(p.client, &kill, on_done, &a, &err));
	peer_read(&p, MSG_ID_kill);
	uint64_t kill_request = p.header.request;
	assert_non_null(node_open(p.client, STR("a"), 80, on_done, &b, &err));
	peer_read(&p, MSG_ID_open);
	assert_int_equal(p.body.open.port, 80);
	struct msg_error refused = {.code = -ECONNREFUSED, .status = 502, .message = STR("closed")};
	msg_send_fd(p.fd, MSG_ID_error, &refused, p.header.request, NULL, 0, NULL);
	msg_send_fd(p.fd, MSG_ID_ok, &(struct msg_ok){0}, kill_request, NULL, 0, NULL);
	loop_turn(p.loop, 0);
	assert_int_equal(b.n, 1);
	assert_int_equal(b.status, 502);
	assert_int_equal(b.code, -ECONNREFUSED);
	assert_int_equal(a.n, 1);
	assert_int_equal(a.status, 0);
	assert_null(index_find(p.index, STR("a")));

	/* A descriptor goes to who asked; a cancelled call's is closed. */
	assert_non_null(node_open(p.client, STR("a"), 80, on_done, &c, &err));
	peer_read(&p, MSG_ID_open);
	int pipe_fds[2];
	assert_int_equal(pipe(pipe_fds), 0);
	struct msg_stream stream = {.generation = STR("g1")};
	msg_send_fd(p.fd, MSG_ID_stream, &stream, p.header.request, &pipe_fds[0], 1, NULL);
	loop_turn(p.loop, 0);
	assert_int_equal(c.n, 1);
	assert_true(c.fd >= 0);
	close(c.fd);
	struct node_call *cancelled = node_open(p.client, STR("a"), 80, on_done, &c, &err);
	node_call_cancel(cancelled);
	peer_read(&p, MSG_ID_open);
	msg_send_fd(p.fd, MSG_ID_stream, &stream, p.header.request, &pipe_fds[0], 1, NULL);
	close(pipe_fds[0]);
	loop_turn(p.loop, 0);
	assert_int_equal(c.n, 1);
	assert_int_equal(write(pipe_fds[1], "x", 1), -1); /* EPIPE: no reader is left */
	close(pipe_fds[1]);
	peer_done(&p);
}

static void a_lost_node_fails_its_calls_and_a_new_one_is_asked_again(void **state)
{
	struct peer p;
	peer_new(&p);
	struct error err = {0};
	struct seen a = {0}, b = {0};
	struct msg_kill kill = {.sandbox = STR("a")};
	peer_attach(&p);
	node_kill(p.client, &kill, on_done, &a, &err);
	close(p.fd);
	loop_turn(p.loop, 0);
	loop_turn(p.loop, 0);
	assert_int_equal(a.n, 1);
	assert_int_equal(a.status, 503);
	assert_int_equal(a.retry_after, NODE_RETRY_AFTER);
	assert_false(node_client_connected(p.client));
	peer_attach(&p);
	peer_read(&p, MSG_ID_hello);
	peer_read(&p, MSG_ID_subscribe);
	node_kill(p.client, &kill, on_done, &b, &err);
	int old = p.fd;
	peer_attach(&p); /* replaced while in flight */
	close(old);
	assert_int_equal(b.status, 503);
	/* A gap in the events leads to a new subscription. */
	peer_read(&p, MSG_ID_hello);
	peer_read(&p, MSG_ID_subscribe);
	msg_send_fd(p.fd, MSG_ID_synced, &(struct msg_synced){.sequence = 4}, p.header.request, NULL, 0, NULL);
	struct msg_sandbox s = sandbox("a", 1, 6);
	msg_send_fd(p.fd, MSG_ID_sandbox, &s, 0, NULL, 0, NULL);
	loop_turn(p.loop, 0);
	peer_read(&p, MSG_ID_subscribe);
	peer_done(&p);
}

static struct msg_snapshot snapshot(const char *id, const char *team, const char *name, int64_t at)
{
	struct msg_snapshot m = {.id = str_of(id), .team = str_of(team), .sandbox = STR("a"), .template_id = STR("t"), .created_at = at};
	if (name)
		msg_set(&m, snapshot, name, str_of(name));
	return m;
}

static void put_snapshot(struct sandbox_index *ix, struct msg_snapshot m)
{
	assert_int_equal(index_put_snapshot(ix, &m), 0);
}

static void snapshots_are_found_by_id_and_by_their_teams_names(void **state)
{
	struct sandbox_index *ix = fresh();
	put_snapshot(ix, snapshot("s2", "x", "name", 20));
	put_snapshot(ix, snapshot("s1", "x", "name", 10));
	put_snapshot(ix, snapshot("s3", "x", NULL, 20));
	put_snapshot(ix, snapshot("s4", "y", "name", 40));
	put_snapshot(ix, snapshot("s3", "x", NULL, 5)); /* told again: moved, not doubled */
	index_synced(ix, 0);
	assert_int_equal(index_snapshot_count(ix), 4);
	const char *order[] = {"s3", "s1", "s2", "s4"};
	for (size_t i = 0; i < 4; i++)
		assert_str(index_snapshot_at(ix, i)->id, order[i]);
	assert_int_equal(index_snapshot_position(ix, 20, STR("s2")), 2);
	assert_int_equal(index_snapshot_position(ix, 21, STR("")), 3);
	assert_str(index_snapshot_named(ix, STR("x"), STR("name"))->id, "s2");
	assert_str(index_snapshot_named(ix, STR("y"), STR("name"))->id, "s4");
	assert_null(index_snapshot_named(ix, STR("z"), STR("name")));
	assert_null(index_snapshot_named(ix, STR("x"), STR("")));
	index_snapshot_deleted(ix, STR("s2"));
	index_snapshot_deleted(ix, STR("s2"));
	assert_str(index_snapshot_named(ix, STR("x"), STR("name"))->id, "s1");
	struct msg_snapshot end = snapshot("s1", "x", "name", 10);
	msg_set(&end, snapshot, gone, true);
	put_snapshot(ix, end);
	assert_null(index_snapshot_named(ix, STR("x"), STR("name")));
	/* A new node names what it has. */
	index_begin(ix);
	put_snapshot(ix, snapshot("s4", "y", "name", 40));
	assert_non_null(index_snapshot_find(ix, STR("s3")));
	index_synced(ix, 0);
	assert_null(index_snapshot_find(ix, STR("s3")));
	assert_int_equal(index_snapshot_count(ix), 1);
	index_free(ix);
}

/* What runs in the eyes of a proxy: its sockets are closed when a pause begins, once, and not by a snapshot of it. */
static void a_pause_ends_a_generation(void **state)
{
	struct sandbox_index *ix = fresh();
	index_synced(ix, 0);
	struct msg_sandbox m = sandbox("a", 1, 1);
	put(ix, m, true, 0);
	static const struct {
		enum sandbox_state state;
		bool running, paused;
		unsigned ended;
	} steps[] = {{SANDBOX_SNAPSHOTTING, true, false, 0}, {SANDBOX_RUNNING, true, false, 0}, {SANDBOX_PAUSING, false, true, 1}, {SANDBOX_PAUSED, false, true, 1}};
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		m.state = steps[i].state;
		m.sequence++;
		put(ix, m, true, 0);
		assert_int_equal(index_is_running(index_find(ix, STR("a"))), steps[i].running);
		assert_int_equal(index_is_paused(index_find(ix, STR("a"))), steps[i].paused);
		assert_int_equal(ended.n, steps[i].ended);
	}
	assert_string_equal(ended.last, "a/g1");
	m.state = SANDBOX_RUNNING;
	m.generation = STR("g2");
	m.sequence++;
	msg_set(&m, sandbox, resumed_from, STR("memory"));
	put(ix, m, true, 0);
	assert_str(index_find(ix, STR("a"))->resumed_from, "memory");
	assert_int_equal(ended.n, 1);
	/* A rollback is another generation without a pause between. */
	m.generation = STR("g3");
	m.sequence++;
	put(ix, m, true, 0);
	assert_string_equal(ended.last, "a/g2");
	m.state = SANDBOX_PAUSED;
	m.sequence++;
	put(ix, m, true, 0);
	assert_string_equal(ended.last, "a/g3");
	index_killed(ix, STR("a")); /* paused: nothing of it is open */
	assert_int_equal(ended.n, 3);
	index_free(ix);
}

static struct msg_sandbox named(const char *id, const char *team, const char *name, uint64_t sequence)
{
	struct msg_sandbox m = sandbox(id, 1, sequence);
	m.team = str_of(team);
	msg_set(&m, sandbox, idempotency, str_of(name));
	msg_set(&m, sandbox, fingerprint, STR("f"));
	return m;
}

static void name_means(const struct sandbox_index *ix, const char *team, const char *name, const char *id)
{
	const struct index_sandbox *s = index_named(ix, str_of(team), str_of(name));
	if (!id)
		assert_null(s);
	else if (!s)
		fail_msg("%s of %s: nothing, not %s", name, team, id);
	else
		assert_str(s->id, id);
}

static void names_of_creates_follow_their_sandboxes(void **state)
{
	struct sandbox_index *ix = fresh();
	char longest[256];
	memset(longest, 'x', 255);
	longest[255] = 0;
	index_synced(ix, 0);
	put(ix, named("a", "t1", "n", 1), true, 0);
	put(ix, named("b", "t2", "n", 2), true, 0);
	put(ix, named("c", "t1", longest, 3), true, 0);
	put(ix, sandbox("d", 1, 4), true, 0);
	name_means(ix, "t1", "n", "a");
	name_means(ix, "t2", "n", "b");
	name_means(ix, "t1", longest, "c");
	name_means(ix, "t1", "", NULL);
	name_means(ix, "t", "1n", NULL);
	/* Another message about it takes the entry's place, and the name with it. */
	put(ix, named("a", "t1", "n", 5), true, 0);
	name_means(ix, "t1", "n", "a");
	/* The next one of the name came before the end of the last one: that does not take it away. */
	put(ix, named("e", "t1", "n", 6), true, 0);
	put(ix, gone("a", "killed", 7), true, 0);
	name_means(ix, "t1", "n", "e");
	index_killed(ix, STR("e"));
	name_means(ix, "t1", "n", NULL);
	/* A snapshot replaces them all. */
	index_begin(ix);
	put(ix, named("f", "t2", "n", 0), false, 0);
	index_synced(ix, 9);
	name_means(ix, "t2", "n", "f");
	name_means(ix, "t1", longest, NULL);
	assert_int_equal(index_count(ix), 1);
	index_free(ix);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_known_before_the_first_snapshot),
		cmocka_unit_test(entries_are_sorted_by_start_then_id),
		cmocka_unit_test(a_snapshot_replaces_what_was_known),
		cmocka_unit_test(a_gap_in_the_events_is_noticed),
		cmocka_unit_test(an_answer_never_goes_back_in_time),
		cmocka_unit_test(the_end_is_told_once_and_its_reason_kept),
		cmocka_unit_test(a_kill_is_seen_before_its_event),
		cmocka_unit_test(many_ends_stay_bounded),
		cmocka_unit_test(snapshots_are_found_by_id_and_by_their_teams_names),
		cmocka_unit_test(names_of_creates_follow_their_sandboxes),
		cmocka_unit_test(a_pause_ends_a_generation),
		cmocka_unit_test(calls_get_their_answers),
		cmocka_unit_test(a_lost_node_fails_its_calls_and_a_new_one_is_asked_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
