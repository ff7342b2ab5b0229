#include "ingress/gate.h"

#include "base/log.h"
#include "base/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct gate {
	struct gates *gates;
	char id[64];
	struct node_call *call;
	struct gate_waiter *first, *last;
	unsigned n;
};

struct gates {
	struct node_client *node;
	struct quota *quota; /* NULL = none counts */
	struct map open; /* sandbox id -> struct gate, one for each resume under way */
	unsigned waiting;
};

struct gates *gates_new(struct node_client *node, struct quota *quota)
{
	struct gates *g = malloc(sizeof(*g));
	if (g)
		*g = (struct gates){.node = node, .quota = quota};
	return g;
}

void gates_free(struct gates *g)
{
	if (!g)
		return;
	map_foreach(&g->open, s) {
		struct gate *gate = s->value;
		node_call_cancel(gate->call);
		free(gate);
	}
	map_done(&g->open);
	free(g);
}

void gate_leave(struct gate_waiter *w)
{
	struct gate *gate = w->gate;
	if (!gate)
		return;
	if (w->prev)
		w->prev->next = w->next;
	else
		gate->first = w->next;
	if (w->next)
		w->next->prev = w->prev;
	else
		gate->last = w->prev;
	gate->n--;
	gate->gates->waiting--;
	w->gate = NULL;
	w->prev = w->next = NULL;
}

/* In the order of coming: the first to wait is the first to be served. Told ones may wait again, for another resume. */
static void on_resumed(const struct node_answer *a, void *arg)
{
	struct gate *gate = arg;
	struct log_ids ids = {.sandbox = str_of(gate->id)};
	map_del(&gate->gates->open, str_of(gate->id));
	if (a->err)
		log_write(LOG_INFO, &ids, "not resumed by traffic: %s", a->err->message);
	while (gate->first) {
		struct gate_waiter *w = gate->first;
		gate_leave(w);
		w->done(a->err, w->arg);
	}
	free(gate);
}

static struct node_call *resume(struct gate *gate, const struct index_sandbox *s, struct str request, struct error *err)
{
	struct gates *g = gate->gates;
	struct quota_lease *lease = NULL;
	if (g->quota && quota_take_resume(g->quota, s, &lease, err) < 0)
		return NULL;
	struct msg_resume m = {.sandbox = s->id, .mode = RESUME_TRAFFIC, .memory = true};
	msg_set(&m, resume, request, request);
	struct node_call *call = node_resume(g->node, &m, on_resumed, gate, err);
	return lease ? quota_hold(lease, call) : call;
}

static struct gate *open_gate(struct gates *g, const struct index_sandbox *s, struct str request, struct error *err)
{
	struct gate *gate = calloc(1, sizeof(*gate));
	if (!gate || s->id.n >= sizeof(gate->id) || map_put(&g->open, s->id, gate, NULL) < 0) {
		free(gate);
		error_set(err, -ENOMEM, 503, "The server is out of memory");
		return NULL;
	}
	gate->gates = g;
	memcpy(gate->id, s->id.p, s->id.n);
	gate->call = resume(gate, s, request, err);
	if (!gate->call) {
		map_del(&g->open, s->id);
		free(gate);
		return NULL;
	}
	return gate;
}

int gate_wait(struct gates *g, const struct index_sandbox *s, struct str request, struct gate_waiter *w, struct error *err)
{
	if (g->waiting >= GATE_WAITERS_MAX) {
		error_set(err, -EAGAIN, 503, "Too many requests wait for sandboxes to resume");
		err->retry_after = NODE_RETRY_AFTER;
		return -EAGAIN;
	}
	struct gate *gate = map_get(&g->open, s->id);
	if (!gate)
		gate = open_gate(g, s, request, err);
	if (!gate)
		return err->code;
	w->gate = gate;
	w->prev = gate->last;
	w->next = NULL;
	if (gate->last)
		gate->last->next = w;
	else
		gate->first = w;
	gate->last = w;
	gate->n++;
	g->waiting++;
	return 0;
}

unsigned gate_count(const struct gates *g, struct str sandbox)
{
	const struct gate *gate = map_get(&g->open, sandbox);
	return gate ? gate->n : 0;
}
