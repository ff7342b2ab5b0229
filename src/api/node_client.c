#include "api/node_client.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "io/chan.h"

#include <errno.h>
#include <stdlib.h>

struct node_call {
	struct node_client *client;
	struct node_call *previous, *next; /* all calls in flight */
	uint64_t request;
	int64_t deadline; /* CLOCK_BOOTTIME */
	uint16_t expects; /* message id of the answer; MSG_ID_ok where it brings nothing */
	char killed[33], deleted[65]; /* id of the sandbox; of the snapshot or template that leaves the index when the answer is ok */
	node_done_fn *done; /* NULL = cancelled: only the bookkeeping is left */
	void *arg;
	void (*ended)(void *arg); /* or NULL */
	void *ended_arg;
};

struct node_client {
	struct loop *loop;
	struct sandbox_index *index;
	struct chan *chan; /* NULL = no node */
	struct loop_timer *timer;
	struct map calls; /* request id -> struct node_call */
	struct node_call *first;
	uint64_t last_request;
	uint64_t subscription; /* request id of the newest subscribe */
	int64_t patience;      /* ns that a call may wait */
};

static void unlink_call(struct node_call *c)
{
	struct node_client *nc = c->client;
	map_del(&nc->calls, MAP_KEY(c->request));
	if (c->previous)
		c->previous->next = c->next;
	else
		nc->first = c->next;
	if (c->next)
		c->next->previous = c->previous;
	if (!nc->first)
		loop_timer_stop(nc->timer);
}

/* Takes the call out, tells its owner, frees it. A descriptor nobody wants is closed. */
static void finish(struct node_call *c, const struct node_answer *a)
{
	unlink_call(c);
	if (c->ended)
		c->ended(c->ended_arg);
	if (c->done)
		c->done(a, c->arg);
	else if (a->fd >= 0)
		close(a->fd);
	free(c);
}

static void fail(struct node_call *c, const struct error *err)
{
	struct node_answer a = {.err = err, .fd = -1};
	finish(c, &a);
}

static void set_away(struct error *err)
{
	error_set(err, -EPIPE, 503, "the node is not connected; try again");
	if (err)
		err->retry_after = NODE_RETRY_AFTER;
}

static void fail_all(struct node_client *nc)
{
	struct error err = {0};
	set_away(&err);
	/* A done() may start new calls: only those in flight now fail. */
	uint64_t newest = nc->last_request;
	for (;;) {
		struct node_call *c = nc->first;
		while (c && c->request > newest)
			c = c->next;
		if (!c)
			return;
		fail(c, &err);
	}
}

/* Looks at the calls in flight once a second: they are few, and what times out is rare. */
static void start_timer(struct node_client *nc)
{
	loop_timer_in(nc->timer, MIN(NS_PER_S, nc->patience));
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct node_client *nc = arg;
	int64_t now = clock_boottime();
	struct error err = {0};
	error_set(&err, -ETIMEDOUT, 504, "the node did not answer in time");
	for (;;) {
		struct node_call *c = nc->first;
		while (c && c->deadline > now)
			c = c->next;
		if (!c)
			break;
		fail(c, &err);
	}
	if (nc->first)
		start_timer(nc);
}

static void subscribe(struct node_client *nc)
{
	struct msg_subscribe m = {0};
	nc->subscription = ++nc->last_request;
	index_begin(nc->index);
	/* A failure closes the channel; closed() is told. */
	chan_send(nc->chan, MSG_ID_subscribe, &m, nc->subscription, NULL, 0, NULL);
}

static void take_sandbox(struct node_client *nc, const struct chan_message *m)
{
	int r = index_put_sandbox(nc->index, &m->body->sandbox, m->header.request == 0);
	if (r == -ESTALE) {
		log_warn("events of the node are missing before %llu: reading everything again",
			(unsigned long long)m->body->sandbox.sequence);
		subscribe(nc);
	} else if (r < 0) {
		log_error("no memory for sandbox %.*s in the index", STR_FMT(m->body->sandbox.id));
	}
}

static void answer(struct node_client *nc, struct chan_message *m)
{
	struct node_call *c = map_get(&nc->calls, MAP_KEY(m->header.request));
	if (!c) {
		if (m->header.request == nc->subscription && m->header.type == MSG_ID_error)
			log_error("the node refused the subscription: %.*s", STR_FMT(m->body->error.message));
		return;
	}
	struct error err = {0};
	struct node_answer a = {.body = m->body, .fd = -1};
	if (m->header.type == MSG_ID_error) {
		const struct msg_error *e = &m->body->error;
		int status = e->status >= 400 && e->status <= 599 ? (int)e->status : 500;
		error_set(&err, e->code < 0 && e->code > -4096 ? (int)e->code : -EIO, status, "%.*s", STR_FMT(e->message));
		if (msg_has(e, error, retry_after) && e->retry_after <= 3600)
			err.retry_after = (int)e->retry_after;
	} else if (m->header.type != c->expects) {
		error_set(&err, -EPROTO, 500, "the node answered with an unexpected message");
	}
	if (err.code) {
		a.err = &err;
		a.body = NULL;
	} else if (m->header.type == MSG_ID_stream || m->header.type == MSG_ID_file_writer) {
		a.fd = steal_fd(&m->fds[0]);
	} else if (m->header.type == MSG_ID_ok && c->killed[0]) {
		index_killed(nc->index, str_of(c->killed));
	} else if (m->header.type == MSG_ID_ok && c->deleted[0]) {
		index_snapshot_deleted(nc->index, str_of(c->deleted));
		index_template_deleted(nc->index, str_of(c->deleted));
	}
	finish(c, &a);
}

static void on_message(struct chan *chan, struct chan_message *m, void *arg)
{
	struct node_client *nc = arg;
	switch (m->header.type) {
	case MSG_ID_sandbox:
		take_sandbox(nc, m);
		break;
	case MSG_ID_template:
		if (index_put_template(nc->index, &m->body->template) < 0)
			log_error("no memory for template %.*s in the index", STR_FMT(m->body->template.id));
		break;
	case MSG_ID_snapshot:
		if (index_put_snapshot(nc->index, &m->body->snapshot) < 0)
			log_error("no memory for snapshot %.*s in the index", STR_FMT(m->body->snapshot.id));
		break;
	case MSG_ID_synced:
		/* Of the newest subscription; a node need not name it. */
		if (!m->header.request || m->header.request == nc->subscription)
			index_synced(nc->index, m->body->synced.sequence);
		break;
	default:
		break;
	}
	if (m->header.request)
		answer(nc, m);
}

static void on_closed(struct chan *chan, const struct error *err, void *arg)
{
	struct node_client *nc = arg;
	log_warn("the node's channel ended: %s", err->message);
	nc->chan = NULL;
	fail_all(nc);
}

static const struct chan_ops chan_ops = {.message = on_message, .closed = on_closed};

struct node_client *node_client_new(struct loop *l, struct sandbox_index *ix)
{
	struct node_client *nc = calloc(1, sizeof(*nc));
	if (!nc)
		return NULL;
	*nc = (struct node_client){.loop = l, .index = ix, .patience = NODE_CALL_SECONDS * NS_PER_S};
	nc->timer = loop_timer_new(l, on_timer, nc);
	if (!nc->timer) {
		free(nc);
		return NULL;
	}
	return nc;
}

void node_client_free(struct node_client *nc)
{
	if (!nc)
		return;
	chan_free(nc->chan);
	while (nc->first) {
		struct node_call *c = nc->first;
		nc->first = c->next;
		free(c);
	}
	map_done(&nc->calls);
	loop_timer_free(nc->timer);
	free(nc);
}

int node_client_attach(struct node_client *nc, int fd)
{
	chan_free(steal_pointer(&nc->chan));
	fail_all(nc);
	nc->chan = chan_new(nc->loop, fd, MSG_FROM_NODE, 0, &chan_ops, nc);
	if (!nc->chan)
		return -errno;
	struct msg_hello hello = {.version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION};
	int r = chan_send(nc->chan, MSG_ID_hello, &hello, 0, NULL, 0, NULL);
	if (r < 0)
		return r;
	subscribe(nc);
	return 0;
}

void node_client_set_patience(struct node_client *nc, int64_t ns)
{
	nc->patience = ns;
}

bool node_client_connected(const struct node_client *nc)
{
	return nc->chan != NULL;
}

/* fd -1: the message carries none. */
static struct node_call *call_with(struct node_client *nc, enum msg_id type, const void *m, int fd, enum msg_id expects, node_done_fn *done, void *arg,
	struct error *err)
{
	if (!nc->chan) {
		set_away(err);
		return NULL;
	}
	struct node_call *c = malloc(sizeof(*c));
	if (!c) {
		error_set(err, -ENOMEM, 503, "the server is out of memory");
		return NULL;
	}
	*c = (struct node_call){.client = nc, .next = nc->first, .request = ++nc->last_request, .expects = (uint16_t)expects,
		.deadline = clock_boottime() + nc->patience, .done = done, .arg = arg};
	if (map_put(&nc->calls, MAP_KEY(c->request), c, NULL) < 0) {
		free(c);
		error_set(err, -ENOMEM, 503, "the server is out of memory");
		return NULL;
	}
	int r = chan_send(nc->chan, type, m, c->request, &fd, fd >= 0, err);
	if (r < 0) {
		map_del(&nc->calls, MAP_KEY(c->request));
		free(c);
		if (r != -EMSGSIZE)
			set_away(err);
		return NULL;
	}
	if (!nc->first)
		start_timer(nc);
	else
		nc->first->previous = c;
	nc->first = c;
	return c;
}

static struct node_call *call(struct node_client *nc, enum msg_id type, const void *m, enum msg_id expects, node_done_fn *done, void *arg,
	struct error *err)
{
	return call_with(nc, type, m, -1, expects, done, arg, err);
}

struct node_call *node_create(struct node_client *nc, const struct msg_create *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_create, m, MSG_ID_sandbox, done, arg, err);
}

struct node_call *node_kill(struct node_client *nc, const struct msg_kill *m, node_done_fn *done, void *arg, struct error *err)
{
	struct node_call *c = call(nc, MSG_ID_kill, m, MSG_ID_ok, done, arg, err);
	if (c)
		memcpy(c->killed, m->sandbox.p, MIN(m->sandbox.n, sizeof(c->killed) - 1));
	return c;
}

struct node_call *node_timeout(struct node_client *nc, const struct msg_timeout *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_timeout, m, MSG_ID_sandbox, done, arg, err);
}

struct node_call *node_pause(struct node_client *nc, const struct msg_pause *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_pause, m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_resume(struct node_client *nc, const struct msg_resume *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_resume, m, MSG_ID_sandbox, done, arg, err);
}

struct node_call *node_network(struct node_client *nc, const struct msg_network *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_network, m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_snapshot(struct node_client *nc, const struct msg_make_snapshot *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_make_snapshot, m, MSG_ID_snapshot, done, arg, err);
}

struct node_call *node_delete_snapshot(struct node_client *nc, const struct msg_delete_snapshot *m, node_done_fn *done, void *arg, struct error *err)
{
	struct node_call *c = call(nc, MSG_ID_delete_snapshot, m, MSG_ID_ok, done, arg, err);
	if (c)
		memcpy(c->deleted, m->snapshot.p, MIN(m->snapshot.n, sizeof(c->deleted) - 1));
	return c;
}

struct node_call *node_fork(struct node_client *nc, const struct msg_fork *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_fork, m, MSG_ID_forked, done, arg, err);
}

struct node_call *node_rollback(struct node_client *nc, const struct msg_rollback *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_rollback, m, MSG_ID_sandbox, done, arg, err);
}

struct node_call *node_open(struct node_client *nc, struct str sandbox, uint16_t port, node_done_fn *done, void *arg, struct error *err)
{
	struct msg_open m = {.sandbox = sandbox, .port = port};
	return call(nc, MSG_ID_open, &m, MSG_ID_stream, done, arg, err);
}

struct node_call *node_logs(struct node_client *nc, const struct msg_logs *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_logs, m, MSG_ID_log_page, done, arg, err);
}

struct node_call *node_metrics(struct node_client *nc, const struct msg_metrics *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_metrics, m, MSG_ID_metrics_page, done, arg, err);
}

struct node_call *node_figures(struct node_client *nc, node_done_fn *done, void *arg, struct error *err)
{
	struct msg_figures m = {0};
	return call(nc, MSG_ID_figures, &m, MSG_ID_figures_page, done, arg, err);
}

struct node_call *node_pools(struct node_client *nc, node_done_fn *done, void *arg, struct error *err)
{
	struct msg_pools m = {0};
	return call(nc, MSG_ID_pools, &m, MSG_ID_pools_page, done, arg, err);
}

struct node_call *node_set_pool(struct node_client *nc, const struct msg_set_pool *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_set_pool, m, MSG_ID_pools_page, done, arg, err);
}

struct node_call *node_unset_pool(struct node_client *nc, const struct msg_unset_pool *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_unset_pool, m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_describe_template(struct node_client *nc, const struct msg_describe_template *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_describe_template, m, MSG_ID_template_description, done, arg, err);
}

struct node_call *node_reload_templates(struct node_client *nc, node_done_fn *done, void *arg, struct error *err)
{
	struct msg_reload_templates m = {0};
	return call(nc, MSG_ID_reload_templates, &m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_make_template(struct node_client *nc, const struct msg_make_template *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_make_template, m, MSG_ID_build_made, done, arg, err);
}

struct node_call *node_start_build(struct node_client *nc, const struct msg_start_build *m, int spec, node_done_fn *done, void *arg, struct error *err)
{
	return call_with(nc, MSG_ID_start_build, m, spec, MSG_ID_ok, done, arg, err);
}

struct node_call *node_build_status(struct node_client *nc, const struct msg_build_status *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_build_status, m, MSG_ID_build_page, done, arg, err);
}

struct node_call *node_await_build(struct node_client *nc, const struct msg_await_build *m, node_done_fn *done, void *arg, struct error *err)
{
	struct node_call *c = call(nc, MSG_ID_await_build, m, MSG_ID_ok, done, arg, err);
	if (c)
		c->deadline += (NODE_BUILD_SECONDS - NODE_CALL_SECONDS) * NS_PER_S;
	return c;
}

struct node_call *node_builds(struct node_client *nc, const struct msg_builds *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_builds, m, MSG_ID_builds_page, done, arg, err);
}

struct node_call *node_tag_template(struct node_client *nc, const struct msg_tag_template *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_tag_template, m, MSG_ID_build_made, done, arg, err);
}

struct node_call *node_untag_template(struct node_client *nc, const struct msg_untag_template *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_untag_template, m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_change_template(struct node_client *nc, const struct msg_change_template *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_change_template, m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_delete_template(struct node_client *nc, const struct msg_delete_template *m, node_done_fn *done, void *arg, struct error *err)
{
	struct node_call *c = call(nc, MSG_ID_delete_template, m, MSG_ID_ok, done, arg, err);
	if (c && !msg_has(m, delete_template, tag))
		memcpy(c->deleted, m->template.p, MIN(m->template.n, sizeof(c->deleted) - 1));
	return c;
}

struct node_call *node_find_file(struct node_client *nc, const struct msg_find_file *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_find_file, m, MSG_ID_file_found, done, arg, err);
}

struct node_call *node_write_file(struct node_client *nc, const struct msg_write_file *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_write_file, m, MSG_ID_file_writer, done, arg, err);
}

struct node_call *node_keep_file(struct node_client *nc, const struct msg_keep_file *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_keep_file, m, MSG_ID_ok, done, arg, err);
}

struct node_call *node_collect_images(struct node_client *nc, const struct msg_collect_images *m, node_done_fn *done, void *arg, struct error *err)
{
	return call(nc, MSG_ID_collect_images, m, MSG_ID_images_page, done, arg, err);
}

void node_call_watch(struct node_call *c, void (*ended)(void *arg), void *arg)
{
	c->ended = ended;
	c->ended_arg = arg;
}

void node_call_cancel(struct node_call *c)
{
	if (c)
		c->done = NULL;
}
