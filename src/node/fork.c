#include "node/snapshots.h"
#include "base/cleanup.h"
#include "base/fault.h"

#include <stdio.h>

/* A fork: one copy, then as many creates from it. Each child succeeds or fails for itself. */

struct fork_result {
	char id[SANDBOX_ID + 1]; /* "" = failed */
	int status;
	char message[200];
};

static void answer(struct shot *x)
{
	cleanup_buf struct buf all = BUF_INIT, one = BUF_INIT;
	struct error err = {0};
	for (unsigned i = 0; i < x->count; i++) {
		const struct fork_result *f = &x->results[i];
		char status[12];
		buf_clear(&one);
		msg_list_add(&one, str_of(f->id));
		if (!*f->id) {
			snprintf(status, sizeof(status), "%d", f->status);
			msg_list_add(&one, str_of(status));
			msg_list_add(&one, str_of(f->message));
		}
		msg_list_add(&all, buf_str(&one));
	}
	if (all.failed || one.failed)
		error_errno(&err, -ENOMEM, "fork");
	struct msg_forked m = {.results = {buf_str(&all)}};
	shot_done(x, MSG_ID_forked, &m, err.code ? &err : NULL);
}

static void note(struct shot *x, unsigned at, const char *id, const struct error *err)
{
	struct fork_result *f = &x->results[at];
	if (err) {
		f->status = err->status ? err->status : 500;
		snprintf(f->message, sizeof(f->message), "%.*s", (int)sizeof(f->message) - 1, err->message);
	} else {
		memcpy(f->id, id, sizeof(f->id));
	}
	if (++x->made < x->count)
		return;
	FAULT(fork_made);
	answer(x);
}

void live_forked(struct live *l, const struct error *err)
{
	struct shot *x = steal_pointer(&l->fork);
	note(x, l->fork_at, l->s.id, err);
}

/* The child: its parent, with a name, tokens and a time of its own, on the copy. */
static int fill_child(struct shot *x, struct sandbox *s, struct error *err)
{
	struct node *n = x->node;
	struct msg_start start;
	cleanup_buf struct buf layers = BUF_INIT, envs = BUF_INIT;
	if (sandbox_clone(s, &x->parent) < 0)
		return error_errno(err, -ENOMEM, "fork");
	s->state = SANDBOX_CREATING;
	s->started_at = node_realtime(n);
	s->end_at = s->deadline = SANDBOX_NEVER;
	s->timeout = x->timeout;
	s->idempotency[0] = s->fingerprint[0] = 0;
	show_deadline(n, s->shutdown, &s->shutdown_at); /* its parent's; the wall clock may have been set during the copy */
	s->handle.text[0] = s->launch[0] = s->resumed_from[0] = s->image[0] = 0;
	memcpy(s->origin, x->parent.id, sizeof(x->parent.id));
	live_new_identity(n, s);
	int r = sandbox_start(&x->parent, &start) < 0 ? error_set(err, -EPROTO, 500, "the record of how to start the sandbox is damaged") : 0;
	if (r == 0)
		r = snapshot_layers(&x->record, &layers, err);
	if (r == 0)
		r = live_merge_envs(s, start.envs, &start.template_envs, (struct msg_map){STR("")}, &envs, err);
	if (r < 0)
		return r;
	start.layers.raw = buf_str(&layers);
	start.envs.raw = buf_str(&envs);
	buf_clear(&s->start);
	return msg_encode(MSG_ID_start, &start, 0, &s->start, err);
}

static void make_child(struct shot *x, unsigned at)
{
	struct sandbox s = {0};
	struct error err = {0};
	struct live *l = NULL;
	if (x->node->stopping)
		error_set(&err, -EAGAIN, 503, "the server is stopping");
	else if (fill_child(x, &s, &err) == 0 && !(l = live_new(x->node, &s)))
		error_errno(&err, -ENOMEM, "fork");
	if (!l) {
		sandbox_done(&s);
		note(x, at, NULL, &err);
		return;
	}
	memcpy(l->request, x->request->text, sizeof(l->request));
	l->fork = x;
	l->fork_at = at;
	live_launch(l);
}

void fork_copied(struct shot *x)
{
	struct error err = {0};
	x->results = calloc(x->count, sizeof(*x->results));
	if (!x->results) {
		error_errno(&err, -ENOMEM, "fork");
		shot_done(x, 0, NULL, &err);
		return;
	}
	/* The parent is free from here on; the children need the copy only. */
	shot_over(x);
	x->live = NULL;
	unsigned count = x->count;
	for (unsigned i = 0; i < count; i++)
		make_child(x, i); /* the last one may free x */
}
