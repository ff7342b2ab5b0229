#include "base/cleanup.h"
#include "base/clock.h"
#include "base/random.h"
#include "node/service.h"

#include <errno.h>

/* Reading what running sandboxes use, one after the other, spread over METRICS_EVERY_S. */

enum {
	BATCH = 64,           /* readings begun in one turn of the loop */
	SPREAD_MS = 500,      /* between a create and its base line */
	FIRST_MS = 1000,      /* from the base line to the first sample: clients want one soon (e2b.md A.5.4) */
	LOST_S = 30,
	AGAIN_MS = 250,       /* when the worker has enough to do */
	PAGE = 57344 / sizeof(struct metrics_sample),
};

static void arm(struct node *n)
{
	int64_t at = deadlines_next(&n->samplings);
	if (at == INT64_MAX)
		loop_timer_stop(n->sampling_timer);
	else
		loop_timer_in(n->sampling_timer, MAX(at - node_boottime(n), NS_PER_MS)); /* others get their turn between batches */
}

static int64_t within(int64_t ms)
{
	uint32_t x;
	random_bytes(&x, sizeof(x));
	return (int64_t)(x % (uint32_t)ms) * NS_PER_MS;
}

static bool is_sampled(const struct live *l)
{
	return l->box && sandbox_runs(&l->s);
}

static void next_in(struct live *l, int64_t ns)
{
	/* Without memory for the heap it is left out until something else changes. */
	deadlines_set(&l->node->samplings, &l->sampling.next, node_boottime(l->node) + ns);
}

/* The space account looks at disks often enough; a sandbox that it has not seen yet is looked at here. */
static struct box_space disk_of(const struct live *l)
{
	struct box_space space = {.total = (uint64_t)l->s.disk_mb << 20};
	if (l->disk.seen)
		space = l->disk.space;
	else
		box_space(l->box, &space);
	return space;
}

static uint32_t cpu_percent(const struct live *l, uint64_t usec, int64_t ns)
{
	double all = (double)ns / NS_PER_US * MAX(l->s.cpu_count, 1u);
	double part = all > 0 ? 10000.0 * (double)usec / all : 0;
	return part > 10000 ? 10000 : (uint32_t)part;
}

static void take(struct live *l, const struct box_stats *s)
{
	struct node *n = l->node;
	logs_tick(l);
	int64_t at = node_boottime(n);
	bool first = !l->sampling.looked || s->cpu_usec < l->sampling.cpu_usec;
	if (!first) {
		struct box_space disk = disk_of(l);
		uint64_t most = (uint64_t)l->s.memory_mb << 20;
		struct metrics_sample sample = {
			.at = node_realtime(n), .mem_used = s->memory_used, .mem_cache = s->memory_cache,
			.mem_total = s->memory_limit ? MIN(s->memory_limit, most) : most, .disk_used = disk.used, .disk_total = disk.total,
			.cpu_count = l->s.cpu_count, .cpu_percent = cpu_percent(l, s->cpu_usec - l->sampling.cpu_usec, at - l->sampling.looked),
		};
		metrics_add(&l->history, &sample);
		n->figures.cpu += s->cpu_usec - l->sampling.cpu_usec;
		n->figures.oom_kills += s->oom_kills > l->sampling.oom_kills ? s->oom_kills - l->sampling.oom_kills : 0;
	}
	l->sampling.looked = at;
	l->sampling.cpu_usec = s->cpu_usec;
	l->sampling.oom_kills = s->oom_kills;
	/* After the first sample somewhere in the interval: those of a burst of creates are spread. */
	bool begun = !first && l->history.fine.n > 1;
	next_in(l, first ? FIRST_MS * NS_PER_MS : begun ? METRICS_EVERY_S * NS_PER_S : METRICS_EVERY_S * NS_PER_S / 2 + within(METRICS_EVERY_S * 500));
}

static void read_one(const struct box_stats *s, void *arg)
{
	struct live *l = arg;
	if (is_sampled(l) && s)
		take(l, s);
	else if (is_sampled(l))
		next_in(l, METRICS_EVERY_S * NS_PER_S);
	arm(l->node);
}

void node_sample(struct node *n)
{
	struct deadline *d;
	for (int i = 0; i < BATCH && (d = deadlines_due(&n->samplings, node_boottime(n))); i++) {
		struct live *l = container_of(d, struct live, sampling.next);
		/* One that does not run (any more) falls out here; its history stays, and begins anew with a base line. */
		if (!is_sampled(l))
			l->sampling.looked = 0;
		else /* The answer, which sets it anew, may not come: a box can be replaced. */
			next_in(l, box_stats(l->box, read_one, l) < 0 ? AGAIN_MS * NS_PER_MS : LOST_S * NS_PER_S);
	}
	arm(n);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	node_sample(arg);
}

void sampling_note(struct live *l, bool adopted)
{
	struct node *n = l->node;
	if (!is_sampled(l)) {
		l->sampling.looked = 0;
		return;
	}
	if (l->sampling.looked || l->sampling.next.heap)
		return;
	next_in(l, within(adopted ? METRICS_EVERY_S * 1000 : SPREAD_MS));
	arm(n);
}

void sampling_free(struct live *l)
{
	deadlines_remove(&l->node->samplings, &l->sampling.next);
	metrics_done(&l->history);
}

int sampling_init(struct node *n)
{
	n->sampling_timer = loop_timer_new(n->loop, on_timer, n);
	return n->sampling_timer ? 0 : -ENOMEM;
}

void sampling_done(struct node *n)
{
	loop_timer_free(n->sampling_timer);
	deadlines_done(&n->samplings);
}

static void answer_several(struct node *n, struct request *r, struct msg_list ids)
{
	struct metrics_newest found[METRICS_BATCH];
	size_t n_found = 0;
	struct str rest = ids.raw, id;
	while (n_found < METRICS_BATCH && msg_list_next(&rest, &id)) {
		const struct live *l = live_find(n, id);
		struct metrics_newest *x = &found[n_found];
		*x = (struct metrics_newest){0};
		if (l && sandbox_copy(x->id, sizeof(x->id), id) && metrics_newest(&l->history, &x->sample))
			n_found++;
	}
	struct msg_metrics_page page = {.samples = str_n(found, n_found * sizeof(found[0]))};
	request_answer(r, MSG_ID_metrics_page, &page, -1);
}

void live_metrics(struct node *n, struct request *r, const struct msg_metrics *m)
{
	static struct metrics_sample found[PAGE];
	struct error err = {0};
	if (msg_has(m, metrics, sandboxes)) {
		answer_several(n, r, m->sandboxes);
		return;
	}
	const struct live *l = msg_has(m, metrics, sandbox) ? live_find(n, m->sandbox) : NULL;
	if (!l || l->s.state == SANDBOX_CREATING) {
		error_set(&err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
		request_fail(r, &err);
		return;
	}
	struct msg_metrics_page page = {0};
	size_t n_found = metrics_read(&l->history, m->start, m->end, found, PAGE, &page.more);
	page.samples = str_n(found, n_found * sizeof(found[0]));
	request_answer(r, MSG_ID_metrics_page, &page, -1);
}
