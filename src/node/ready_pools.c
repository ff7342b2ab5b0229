#include "base/cleanup.h"
#include "base/clock.h"
#include "node/ready_impl.h"

#include <unistd.h>

/* Which pools there are, and what is asked of them. */

enum {
	FEW_CPUS = 4,       /* up to so many, one is started at a time */
	PARALLEL_MOST = 8,
	PAGE_POOLS = 57344 / sizeof(struct pool_info),
};

struct ready_pool *ready_pool_of(const struct node *n, struct str template_id)
{
	struct ready_pool *p = n->ready->pools;
	while (p && !str_is(template_id, p->template_id))
		p = p->next;
	return p;
}

static struct ready_pool *pool_new(struct node *n, const char *template_id)
{
	struct ready_pool *p = calloc(1, sizeof(*p));
	if (!p)
		abort(); /* see records.c: without memory the node starts anew */
	*p = (struct ready_pool){.node = n, .used = ready_now(n)};
	sandbox_copy(p->template_id, sizeof(p->template_id), str_of(template_id));
	struct ready_pool **at = &n->ready->pools;
	while (*at)
		at = &(*at)->next;
	*at = p;
	return p;
}

static void pool_free(struct ready_pool *p)
{
	struct ready *y = p->node->ready;
	struct ready_pool **at = &y->pools;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	for (struct member *m = y->first; m; m = m->next)
		if (m->pool == p)
			m->pool = NULL;
	free(p);
}

static void use_defaults(struct ready_pool *p)
{
	const struct options *o = p->node->options;
	uint32_t max = (uint32_t)o->ready_max, min = MIN((uint32_t)o->ready_min, max);
	sizing_bounds(p, false, min, min, max);
}

/* A pool that is not set is there for every template with services, unless the server has none by default. */
static bool has_default(const struct ready_pool *p)
{
	return p->exists && p->node->options->ready_max > 0;
}

struct ready_pool *ready_use_pool(struct node *n, const char *template_id)
{
	struct ready_pool *p = ready_pool_of(n, str_of(template_id));
	const struct template *t = templates_find(n->templates, str_of(template_id));
	if (p)
		return p;
	p = pool_new(n, template_id);
	p->exists = t && t->n_services > 0;
	return p;
}

void ready_use_defaults(struct ready_pool *p)
{
	use_defaults(p);
	if (has_default(p))
		return;
	members_end(p, "its pool is not set any more");
	pool_free(p);
}

/* Templates of teams get one with their first create: of many most are never used. */
static void use_template(struct node *n, const struct template *t, bool gone, bool wanted)
{
	struct ready_pool *p = ready_pool_of(n, str_of(t->id));
	bool exists = !gone && t->n_services > 0;
	if (!p && (!exists || n->options->ready_max == 0 || (*t->team && !wanted)))
		return;
	if (!p)
		use_defaults(p = pool_new(n, t->id));
	p->exists = exists;
	if (!p->set && !has_default(p))
		pool_free(p);
}

void ready_template(struct node *n, const struct template *t, bool gone)
{
	struct ready_pool *p = ready_pool_of(n, str_of(t->id));
	if (p) {
		members_end(p, gone ? "its template is gone" : "its template was replaced");
		p->not_before = p->back_off = 0;
	}
	use_template(n, t, gone, false);
	ready_look(n);
}

bool ready_claim(struct live *l)
{
	struct node *n = l->node;
	const struct template *t = *l->s.origin ? NULL : templates_find(n->templates, str_of(l->s.template_id));
	/* Those that wait are of the build that the default tag means. */
	if (!t || !n->ready->running || strcmp(t->build_id, l->s.build) != 0)
		return false;
	use_template(n, t, false, true);
	struct ready_pool *p = ready_pool_of(n, str_of(t->id));
	if (!p)
		return false;
	if (l->claims == 0) {
		sizing_taken(p);
		ready_look(n);
	}
	return member_claim(p, l);
}

void ready_missed(struct live *l)
{
	struct ready_pool *p = *l->s.origin ? NULL : ready_pool_of(l->node, str_of(l->s.template_id));
	if (p)
		p->misses++, p->node->figures.ready_misses++;
}

void ready_creating(struct node *n, bool begins)
{
	struct ready *y = n->ready;
	y->creating += begins ? 1u : -1u;
	y->created = ready_now(n);
	if (!y->creating)
		ready_look(n);
}

/* Requests */

void ready_describe(const struct ready_pool *p, struct pool_info *to)
{
	*to = (struct pool_info){
		.set = p->set, .min = p->min, .size = sizing_target(p), .max = p->max, .ready = p->n[MEMBER_READY], .starting = p->n[MEMBER_STARTING],
		.block = sizing_block(p), .hits = p->hits, .misses = p->misses, .failed = p->failed, .evicted = p->evicted,
		.refill_ms = (uint64_t)(p->refill / NS_PER_MS), .memory_mb = p->memory_mb,
	};
	memcpy(to->template_id, p->template_id, sizeof(to->template_id));
}

void ready_list(struct node *n, struct request *r)
{
	static struct pool_info found[PAGE_POOLS];
	size_t n_found = 0;
	/* Those that were set come first, should there ever be more than go into a page. */
	for (int set = 1; set >= 0; set--)
		for (const struct ready_pool *p = n->ready->pools; p && n_found < PAGE_POOLS; p = p->next)
			if (p->set == (set == 1))
				ready_describe(p, &found[n_found++]);
	struct msg_pools_page page = {.pools = str_n(found, n_found * sizeof(found[0]))};
	request_answer(r, MSG_ID_pools_page, &page, -1);
}

void ready_figures(const struct node *n, struct node_figures *f)
{
	for (const struct ready_pool *p = n->ready->pools; p; p = p->next) {
		f->ready_parked += p->n[MEMBER_READY];
		f->ready_wanted += sizing_target(p);
	}
	f->ready_memory = n->ready->memory_mb << 20;
}

/* Life */

static void on_timer(struct loop_timer *t, void *arg)
{
	ready_tick(arg);
}

static void first_look(const struct template *t, void *arg)
{
	use_template(arg, t, false, false);
}

static void use_record(const struct pool_record *c, void *arg)
{
	sizing_bounds(ready_use_pool(arg, c->template_id), true, c->min, c->size, c->max);
}

int ready_init(struct node *n, struct error *err)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct ready *y = n->ready = calloc(1, sizeof(*y));
	if (!y || !(y->timer = loop_timer_new(n->loop, on_timer, n)))
		return error_errno(err, -ENOMEM, "ready pools");
	y->parallel = cpus > FEW_CPUS ? MIN((unsigned)cpus / FEW_CPUS, (unsigned)PARALLEL_MOST) : 1;
	return records_load_pools(n->records, use_record, n, err);
}

void ready_start(struct node *n)
{
	n->ready->running = true;
	templates_each(n->templates, first_look, n);
	ready_look(n);
}

void ready_stop(struct node *n)
{
	n->ready->running = false;
	for (struct ready_pool *p = n->ready->pools; p; p = p->next)
		members_end(p, "the node stops");
}

bool ready_stopped(const struct node *n)
{
	return !n->ready->first;
}

void ready_done(struct node *n)
{
	struct ready *y = n->ready;
	if (!y)
		return;
	members_free(n);
	while (y->pools)
		pool_free(y->pools);
	deadlines_done(&y->dues);
	loop_timer_free(y->timer);
	free(y);
	n->ready = NULL;
}
