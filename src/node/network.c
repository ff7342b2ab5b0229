#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "node/service.h"

/*
 * The egress policy of a running sandbox is replaced live: first it is put in force, then recorded, then told. Between the first two a crash brings the recorded one back,
 * and nobody was told of the new one. Changes of one sandbox wait for each other.
 */

struct network_change {
	struct network_change *next;
	struct request *request;
	struct buf allow_out, deny_out;
	bool has_internet, internet;
	bool started;   /* the box is told */
	bool recording; /* in force; recorded() follows in any case */
};

static void change_free(struct network_change *c)
{
	buf_done(&c->allow_out);
	buf_done(&c->deny_out);
	free(c);
}

static void start(struct live *l);

/* The first of those that wait is over. */
static void finish(struct live *l, const struct error *err)
{
	struct network_change *c = l->network;
	l->network = c->next;
	if (err)
		request_fail(c->request, err);
	else
		request_answer(c->request, MSG_ID_ok, NULL, -1);
	change_free(c);
}

static void not_running(const struct live *l, struct error *err)
{
	error_set(err, -EBUSY, 409, "Sandbox \"%s\" is not running", l->s.id);
}

void live_network_ended(struct live *l)
{
	struct error err;
	if (l->s.state == SANDBOX_KILLING || l->s.state == SANDBOX_GONE)
		error_set(&err, -ENOENT, 404, "sandbox %s not found", l->s.id);
	else
		not_running(l, &err);
	struct network_change *first = l->network && l->network->recording ? l->network : NULL;
	if (first)
		l->network = first->next;
	while (l->network)
		finish(l, &err);
	if (first) {
		first->next = NULL;
		l->network = first;
	}
}

void live_network_drop(struct live *l)
{
	while (l->network) {
		struct network_change *c = l->network;
		l->network = c->next;
		request_free(c->request);
		change_free(c);
	}
}

/* As with deadlines: a record that cannot be written is told to the client; the change then holds until a restart of the node. */
static void recorded(const struct error *err, void *arg)
{
	struct live *l = arg;
	FAULT(network_recorded);
	finish(l, err);
	start(l);
}

static void swap(struct buf *a, struct buf *b)
{
	struct buf t = *a;
	*a = *b;
	*b = t;
}

static void applied(const struct error *err, void *arg)
{
	struct live *l = arg;
	struct network_change *c = l->network;
	if (err) {
		live_log(LOG_WARN, l, "network policy: %s", err->message);
		finish(l, err);
		start(l);
		return;
	}
	FAULT(network_applied);
	c->recording = true;
	swap(&l->s.allow_out, &c->allow_out);
	swap(&l->s.deny_out, &c->deny_out);
	l->s.has_internet = c->has_internet;
	l->s.internet = c->internet;
	live_log(LOG_INFO, l, "network policy changed");
	node_event(l->node, &l->s);
	/* With fsync: a sandbox that is paused to disk later survives a power cut, and must not come back with less of a wall. */
	records_put_network(l->node->records, &l->s, recorded, l);
}

static void start(struct live *l)
{
	/* A rollback gives it another box: what is asked meanwhile waits, as it does for a copy of its disk. */
	while (l->network && l->s.state != SANDBOX_SNAPSHOTTING) {
		struct network_change *c = l->network;
		struct error err = {0};
		struct box_network policy = {{buf_str(&c->allow_out)}, {buf_str(&c->deny_out)}, !c->has_internet || c->internet};
		if (l->s.state != SANDBOX_RUNNING)
			not_running(l, &err);
		else if ((c->started = true) && box_network(l->box, &policy, applied, l, &err) == 0)
			return;
		finish(l, &err);
	}
}

void live_network_go_on(struct live *l)
{
	if (l->network && !l->network->started)
		start(l);
}

static struct network_change *change_new(struct request *r, const struct msg_network *m)
{
	struct network_change *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct network_change){.request = r, .has_internet = msg_has(m, network, internet), .internet = m->internet};
	if (buf_add_str(&c->allow_out, m->allow_out.raw) < 0 || buf_add_str(&c->deny_out, m->deny_out.raw) < 0) {
		change_free(c);
		return NULL;
	}
	return c;
}

void live_network(struct node *n, struct request *r, const struct msg_network *m)
{
	struct error err = {0};
	struct live *l = live_find(n, m->sandbox);
	struct network_change *c = NULL;
	if (!l || l->s.state == SANDBOX_CREATING)
		error_set(&err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
	else if (!sandbox_runs(&l->s))
		not_running(l, &err);
	else if (!(c = change_new(r, m)))
		error_errno(&err, -ENOMEM, "network policy");
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	struct network_change **at = &l->network;
	bool first = !*at;
	while (*at)
		at = &(*at)->next;
	*at = c;
	if (first)
		start(l);
}
