#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "node/ready_impl.h"

#include <assert.h>

/*
 * One ready sandbox, from its start to the create that takes it: then its box is handed over to that sandbox, and nothing is left here. It is taken from the list before
 * anything is done with it, so no two creates have the same one; whatever fails after that kills it.
 */

enum {
	START_PATIENCE_S = 180, /* behind all others, on a machine that is busy */
	CLAIM_PATIENCE_S = 10,
};

#define member_log(level, m, ...) log_write(level, &(struct log_ids){.sandbox = str_of((m)->s.id)}, __VA_ARGS__)

static void member_set_state(struct member *m, enum member_state to)
{
	static const bool may[MEMBER_STATES][MEMBER_STATES] = {
		[MEMBER_STARTING] = {[MEMBER_READY] = true, [MEMBER_ENDING] = true},
		[MEMBER_READY] = {[MEMBER_CLAIMED] = true, [MEMBER_ENDING] = true},
		[MEMBER_CLAIMED] = {[MEMBER_READY] = true, [MEMBER_ENDING] = true},
	};
	assert(may[m->state][to]);
	if (m->pool) {
		m->pool->n[m->state]--;
		m->pool->n[to]++;
	}
	m->state = to;
}

static void due_in(struct member *m, int64_t seconds)
{
	struct node *n = m->node;
	if (deadlines_set(&n->ready->dues, &m->due, ready_now(n) + seconds * NS_PER_S) < 0)
		abort(); /* it would stay for ever */
}

/* Its room is free, or is the sandbox's that it has become. */
static void leave_account(struct member *m)
{
	if (!m->admitted)
		return;
	m->admitted = false;
	m->node->ready->memory_mb -= m->s.memory_mb;
	if (m->pool)
		m->pool->memory_mb -= m->s.memory_mb;
}

static struct msg_list layers_of(const struct member *m)
{
	struct msg_start start;
	return sandbox_start(&m->s, &start) < 0 ? (struct msg_list){STR("")} : start.layers;
}

static void member_free(struct member *m)
{
	struct node *n = m->node;
	struct ready *y = n->ready;
	*(m->prev ? &m->prev->next : &y->first) = m->next;
	*(m->next ? &m->next->prev : &y->last) = m->prev;
	deadlines_remove(&y->dues, &m->due);
	disk_account_remove(n->disk, &m->disk);
	if (m->admitted) {
		admission_give(&n->admission, m->s.memory_mb);
		admission_give_disk(&n->admission, m->s.disk_mb);
	}
	leave_account(m);
	images_leave_all(&n->images, layers_of(m));
	if (m->pool)
		m->pool->n[m->state]--;
	if (m->live)
		m->live->member = NULL;
	sandbox_done(&m->s);
	free(m);
}

/* Its box is gone. */
static void member_gone(struct member *m)
{
	struct node *n = m->node;
	member_free(m);
	ready_look(n);
	ready_room_freed(n);
	node_stop_check(n);
}

static void kill_it(struct member *m)
{
	struct node *n = m->node;
	member_set_state(m, MEMBER_ENDING);
	deadlines_remove(&n->ready->dues, &m->due);
	disk_account_remove(n->disk, &m->disk);
	if (m->box)
		box_kill(m->box); /* released() follows */
}

void member_end(struct member *m, const char *why)
{
	if (m->state == MEMBER_ENDING || m->state == MEMBER_CLAIMED)
		return;
	member_log(LOG_INFO, m, "ready sandbox ends: %s", why);
	kill_it(m);
	ready_look(m->node);
}

/* It is of no use. The create that had it looks for another one. */
static void member_lost(struct member *m, const struct error *err)
{
	struct live *l = steal_pointer(&m->live);
	if (m->state == MEMBER_ENDING)
		return;
	member_log(LOG_WARN, m, "ready sandbox is lost: %s", err->message);
	if (m->pool)
		sizing_failed(m->pool);
	kill_it(m);
	ready_look(m->node);
	if (!l)
		return;
	l->member = NULL;
	live_unclaimed(l);
}

static void lost(struct member *m, const char *why)
{
	struct error err;
	error_set(&err, -ECONNRESET, 500, "%s", why);
	member_lost(m, &err);
}

void member_due(struct member *m)
{
	if (m->state == MEMBER_STARTING)
		lost(m, "its services were not ready in time");
	else if (m->state == MEMBER_CLAIMED)
		lost(m, "it did not take what a create adds in time");
	else
		member_end(m, "it is old");
}

/* What the box tells */

static void on_started(struct box *b, const struct box_handle *h, const struct error *err, void *arg)
{
	struct member *m = arg;
	struct node *n = m->node;
	if (err) {
		m->box = NULL;
		member_lost(m, err);
		member_gone(m);
		return;
	}
	if (m->state != MEMBER_STARTING)
		return;
	m->handle = *h;
	if (disk_account_add(n->disk, &m->disk, m->box, NULL, false) < 0)
		abort(); /* unwatched it could fill the host */
	if (!n->disk_awake || disk_account_zone(n->disk) != DISK_CALM)
		loop_timer_in(n->disk_timer, 0);
}

static void on_prepared(struct box *b, bool ready, const char *why, void *arg)
{
	struct member *m = arg;
	if (why && m->state == MEMBER_STARTING)
		lost(m, why);
	if (m->state == MEMBER_READY && !ready)
		lost(m, "a service of it has ended");
	if (m->state != MEMBER_STARTING || !ready)
		return;
	int64_t now = ready_now(m->node);
	if (m->pool)
		sizing_refilled(m->pool, now - m->since);
	member_log(LOG_INFO, m, "ready, of template %s", m->s.template_id);
	member_set_state(m, MEMBER_READY);
	m->since = now;
	due_in(m, READY_AGE_S);
	ready_look(m->node);
}

static void on_died(struct box *b, const struct box_death *d, void *arg)
{
	struct member *m = arg;
	lost(m, *d->detail ? d->detail : d->reason);
}

static void on_released(struct box *b, void *arg)
{
	struct member *m = arg;
	m->box = NULL;
	member_gone(m);
}

static const struct box_ops member_ops = {on_started, on_died, on_released, on_prepared};

/* Start */

static struct member *member_new(struct ready_pool *p)
{
	struct ready *y = p->node->ready;
	struct member *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	*m = (struct member){.prev = y->last, .node = p->node, .pool = p, .since = ready_now(p->node)};
	*(m->prev ? &m->prev->next : &y->first) = m;
	y->last = m;
	p->n[MEMBER_STARTING]++;
	return m;
}

/* With room for a sandbox of its size beside it: else the next create would only have it ended. */
static int take_room(struct member *m, struct error *err)
{
	struct admission *a = &m->node->admission;
	uint32_t memory = m->s.memory_mb, disk = m->s.disk_mb;
	int r = admission_take(a, memory, disk, err);
	if (r < 0)
		return r;
	r = admission_take(a, memory, disk, err);
	/* The second when there was room for both, else the first. */
	admission_give(a, memory);
	admission_give_disk(a, disk);
	return r;
}

int member_start(struct ready_pool *p)
{
	struct node *n = p->node;
	struct error err = {0};
	const struct template *t = templates_find(n->templates, str_of(p->template_id));
	struct member *m = t ? member_new(p) : NULL;
	if (!m)
		return -ENOMEM;
	int r = live_fill_ready(n, &m->s, t, &err);
	bool full = r == 0 && (r = take_room(m, &err)) < 0;
	if (r == 0) {
		m->admitted = true;
		n->ready->memory_mb += m->s.memory_mb;
		p->memory_mb += m->s.memory_mb;
	}
	images_use_all(&n->images, layers_of(m));
	if (r == 0) {
		due_in(m, START_PATIENCE_S);
		m->box = node_start_unassigned(n, &m->s, &member_ops, m, &err);
		r = m->box ? 0 : -EIO;
	}
	if (r == 0)
		return 0;
	log_write(full ? LOG_DEBUG : LOG_WARN, NULL, "no ready sandbox of template %s is started: %s", p->template_id, err.message);
	if (!full)
		sizing_failed(p);
	member_free(m);
	return r;
}

/* A create takes it */

static void assigned(const struct error *err, void *arg)
{
	struct member *m = arg;
	struct node *n = m->node;
	struct live *l = m->live;
	if (m->state != MEMBER_CLAIMED)
		return;
	if (err) {
		member_lost(m, err);
		return;
	}
	FAULT(claim_assigned);
	disk_account_move(n->disk, &m->disk, &l->disk, l);
	struct box *b = steal_pointer(&m->box);
	struct box_handle handle = m->handle;
	box_hand_over(b, &live_box_ops, l);
	if (m->pool) {
		m->pool->hits++;
		n->figures.ready_hits++;
		m->pool->back_off = 0;
	}
	leave_account(m);
	member_free(m);
	live_claimed(l, b, &handle);
	ready_look(n);
}

static void assign(struct member *m)
{
	struct msg_start start;
	struct error err;
	int r = sandbox_start(&m->live->s, &start);
	if (r == 0) {
		struct box_assignment a = {start.envs, start.template_envs, str_of(m->live->s.envd_token)};
		r = box_assign(m->box, &a, assigned, m);
	}
	if (r == 0)
		return;
	error_errno(&err, r, "assignment");
	member_lost(m, &err);
}

static void walled(const struct error *err, void *arg)
{
	struct member *m = arg;
	if (m->state != MEMBER_CLAIMED)
		return;
	if (err)
		member_lost(m, err);
	else
		assign(m);
}

/* Other than what it was started with. */
static bool has_policy(const struct sandbox *s)
{
	return (s->has_internet && !s->internet) || buf_len(&s->allow_out) || buf_len(&s->deny_out);
}

/* Before anything else: what the server refuses changes nothing. */
static void wall(struct member *m)
{
	struct error err = {0};
	struct live *l = m->live;
	const struct sandbox *s = &l->s;
	struct box_network policy = {{buf_str(&s->allow_out)}, {buf_str(&s->deny_out)}, !s->has_internet || s->internet};
	if (box_network(m->box, &policy, walled, m, &err) == 0)
		return;
	if (err.status != 400) {
		member_lost(m, &err);
		return;
	}
	m->live = NULL;
	l->member = NULL;
	member_set_state(m, MEMBER_READY);
	due_in(m, READY_AGE_S - (ready_now(m->node) - m->since) / NS_PER_S);
	live_refused(l, &err);
}

bool member_claim(struct ready_pool *p, struct live *l)
{
	struct node *n = p->node;
	struct member *m = n->ready->first;
	while (m && (m->pool != p || m->state != MEMBER_READY))
		m = m->next;
	if (!m)
		return false;
	member_set_state(m, MEMBER_CLAIMED);
	m->live = l;
	l->member = m;
	l->claims++;
	live_take_identity(l, m->s.id);
	FAULT(claim_taken);
	due_in(m, CLAIM_PATIENCE_S);
	ready_look(n);
	if (has_policy(&l->s))
		wall(m);
	else
		assign(m);
	return true;
}

void members_end(struct ready_pool *p, const char *why)
{
	for (struct member *m = p->node->ready->first, *next; m; m = next) {
		next = m->next;
		if (m->pool == p)
			member_end(m, why);
	}
}

bool ready_ended_for_disk(struct node *n, struct disk_entry *e, const char *detail)
{
	for (struct member *m = n->ready->first; m; m = m->next)
		if (&m->disk == e) {
			lost(m, detail);
			return true;
		}
	return false;
}

void ready_forget(struct live *l)
{
	if (l->member)
		l->member->live = NULL;
	l->member = NULL;
}

void members_free(struct node *n)
{
	while (n->ready->first)
		member_free(n->ready->first);
}
