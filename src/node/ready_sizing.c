#include "base/cleanup.h"
#include "base/clock.h"
#include "node/ready_impl.h"

#include <errno.h>
#include <math.h>

/*
 * How many ready sandboxes a pool has, and when one more is started: as many as were taken while one becomes ready, falling slowly after a peak, between the bounds. A start takes seconds
 * of a processor, so it comes behind whoever waits for a create.
 */

#define MIB (UINT64_C(1) << 20)

enum {
	WINDOW_LEAST_S = 1,
	WINDOW_MOST_S = 30,
	QUIET_MS = 50,       /* since the last create */
	PATIENCE_MS = 1000,  /* then one is started although creates go on: else nobody would ever find one */
	BACK_OFF_FIRST_S = 1,
	BACK_OFF_MOST_S = 60,
	GOOD_S = 60,         /* one that stays ready so long ends the back-off */
	NO_ROOM_S = 5,
	OVERLAP_S = 60,      /* before one is too old, the next is started */
};

static const double decay = 0.95;

unsigned sizing_target(const struct ready_pool *p)
{
	unsigned target = (unsigned)(p->wanted + 0.5);
	return MIN(MAX(target, p->min), p->max);
}

enum pool_block sizing_block(const struct ready_pool *p)
{
	if (p->n[MEMBER_STARTING] || p->n[MEMBER_READY] >= sizing_target(p))
		return POOL_FREE;
	return p->no_room ? POOL_NO_ROOM : p->not_before > ready_now(p->node) ? POOL_FAILING : POOL_FREE;
}

static int64_t window(const struct ready_pool *p)
{
	return MIN(MAX(p->refill, (int64_t)WINDOW_LEAST_S * NS_PER_S), (int64_t)WINDOW_MOST_S * NS_PER_S);
}

void sizing_bounds(struct ready_pool *p, bool set, uint32_t min, uint32_t size, uint32_t max)
{
	p->set = set;
	p->min = min;
	p->max = max;
	p->wanted = size;
	p->window_end = ready_now(p->node) + window(p);
	p->not_before = p->back_off = 0;
	ready_look(p->node);
}

void sizing_taken(struct ready_pool *p)
{
	p->used = ready_now(p->node);
	p->taken++;
	p->wanted = MIN(MAX(p->wanted, (double)p->taken), (double)p->max);
}

void sizing_failed(struct ready_pool *p)
{
	p->failed++;
	p->node->figures.ready_failed++;
	p->back_off = p->back_off ? MIN(p->back_off * 2, BACK_OFF_MOST_S * NS_PER_S) : BACK_OFF_FIRST_S * NS_PER_S;
	p->not_before = ready_now(p->node) + p->back_off;
}

void sizing_refilled(struct ready_pool *p, int64_t ns)
{
	p->refill = p->refill ? (p->refill * 3 + ns) / 4 : ns;
	p->node->figures.ready_refills++;
	p->node->figures.ready_refill += (uint64_t)(ns / NS_PER_US);
}

/* Once a window: the target falls, but not below what was taken in it. */
static void resize(struct ready_pool *p, int64_t now)
{
	if (now < p->window_end)
		return;
	double windows = 1 + floor((double)(now - p->window_end) / (double)window(p));
	p->wanted = MAX(p->wanted * pow(decay, MIN(windows, 1000.0)), (double)p->taken);
	p->wanted = MIN(MAX(p->wanted, (double)p->min), (double)p->max);
	p->taken = 0;
	p->window_end = now + window(p);
	for (const struct member *m = p->node->ready->first; p->back_off && m; m = m->next)
		if (m->pool == p && m->state == MEMBER_READY && now - m->since > GOOD_S * NS_PER_S)
			p->back_off = 0;
}

/* The oldest of too many: one a window, without haste. */
static void shed(struct ready_pool *p)
{
	unsigned target = sizing_target(p);
	if (p->n[MEMBER_READY] <= target + target / 4 + (target && p->max > p->min))
		return;
	for (struct member *m = p->node->ready->first; m; m = m->next)
		if (m->pool == p && m->state == MEMBER_READY) {
			member_end(m, "fewer are wanted");
			return;
		}
}

/* Those that will be there for a while. */
static unsigned lasting(const struct ready_pool *p, int64_t now)
{
	unsigned n = p->n[MEMBER_STARTING];
	for (const struct member *m = p->node->ready->first; m; m = m->next)
		n += m->pool == p && m->state == MEMBER_READY && now - m->since < (READY_AGE_S - OVERLAP_S) * NS_PER_S;
	return n;
}

static bool is_short(struct ready_pool *p, int64_t now)
{
	if (!p->exists || lasting(p, now) >= sizing_target(p)) {
		p->short_since = 0;
		return false;
	}
	if (!p->short_since)
		p->short_since = now;
	return true;
}

/* Is there room for one more in what all pools may have? */
static bool within_share(const struct node *n, const struct template *t)
{
	const struct options *o = n->options;
	struct host_memory memory;
	uint64_t mb = t->memory_mb ? t->memory_mb : (uint64_t)o->sandbox_memory;
	if (n->host->memory(&memory, n->host->arg) < 0)
		return false;
	double most = (double)memory.total / (double)MIB * o->overcommit_memory * (double)o->ready_memory / 100;
	return (double)(n->ready->memory_mb + mb) <= most;
}

/* When the pool may start one, at the earliest; in the past: now. */
static int64_t start_at(const struct ready_pool *p)
{
	const struct ready *y = p->node->ready;
	int64_t quiet = y->creating ? INT64_MAX : y->created + QUIET_MS * NS_PER_MS;
	return MAX(p->not_before, MIN(quiet, p->short_since + PATIENCE_MS * NS_PER_MS));
}

/* Of those that are short the one with the smallest part of what it should have. */
static struct ready_pool *neediest(struct node *n, int64_t now)
{
	struct ready_pool *found = NULL;
	double least = 0;
	for (struct ready_pool *p = n->ready->pools; p; p = p->next) {
		if (!is_short(p, now) || start_at(p) > now)
			continue;
		double part = (double)lasting(p, now) / sizing_target(p);
		if (found && part >= least)
			continue;
		found = p;
		least = part;
	}
	return found;
}

static unsigned starting(const struct ready *y)
{
	unsigned n = 0;
	for (const struct ready_pool *p = y->pools; p; p = p->next)
		n += p->n[MEMBER_STARTING];
	return n;
}

static void refill(struct node *n, int64_t now)
{
	struct ready_pool *p;
	while (starting(n->ready) < n->ready->parallel && (p = neediest(n, now))) {
		const struct template *t = templates_find(n->templates, str_of(p->template_id));
		int r = t && within_share(n, t) ? member_start(p) : -EAGAIN;
		p->short_since = 0; /* the next one waits for itself */
		p->no_room = r == -EAGAIN || r == -ENOSPC;
		if (p->no_room)
			p->not_before = now + NO_ROOM_S * NS_PER_S;
		else if (r < 0 && p->not_before <= now)
			p->not_before = now + NO_ROOM_S * NS_PER_S;
	}
}

/* When something is to be done without anything happening before. */
static int64_t next_look(const struct node *n)
{
	const struct ready *y = n->ready;
	int64_t at = deadlines_next(&y->dues);
	bool full = starting(y) >= y->parallel;
	for (const struct ready_pool *p = y->pools; p; p = p->next) {
		if (p->taken || p->wanted > p->min || p->n[MEMBER_READY] > sizing_target(p))
			at = MIN(at, p->window_end);
		for (const struct member *m = y->first; p->n[MEMBER_READY] && m; m = m->next)
			if (m->pool == p && m->state == MEMBER_READY)
				at = MIN(at, m->since + (READY_AGE_S - OVERLAP_S) * NS_PER_S);
		if (p->short_since && !full)
			at = MIN(at, start_at(p));
	}
	return at;
}

void ready_look(struct node *n)
{
	if (n->ready->running)
		loop_timer_in(n->ready->timer, 0);
}

void ready_tick(struct node *n)
{
	struct ready *y = n->ready;
	struct deadline *d;
	int64_t now = ready_now(n);
	while ((d = deadlines_due(&y->dues, now)))
		member_due(container_of(d, struct member, due));
	if (!y->running)
		return;
	for (struct ready_pool *p = y->pools; p; p = p->next) {
		bool ends = now >= p->window_end;
		resize(p, now);
		if (ends)
			shed(p);
	}
	refill(n, now);
	int64_t at = next_look(n);
	if (at != INT64_MAX)
		loop_timer_in(y->timer, MAX(at - ready_now(n), NS_PER_MS));
}
