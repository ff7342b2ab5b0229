#include "node/metrics.h"
#include "base/clock.h"
#include "base/cleanup.h"

#include <stdlib.h>

enum { KIB = 1024, FIRST_CAP = 16 };

/* Pages and blocks are multiples of a KiB. */
struct metrics_point {
	int64_t at;
	uint32_t mem_used, mem_cache, disk_used; /* KiB */
	uint16_t cpu;
};

_Static_assert(sizeof(struct metrics_point) == 24, "docs/operations.md counts with it");
_Static_assert(sizeof(struct metrics_sample) == 56 && sizeof(struct metrics_newest) == 80, "no holes: it crosses a channel");

static struct metrics_point *point(const struct metrics_ring *r, uint32_t i)
{
	return &r->points[(r->first + i) % r->cap];
}

/* Room for one more, up to the most there may be; where there is no memory the ring stays as it is. */
static void grow(struct metrics_ring *r)
{
	uint32_t cap = MIN(r->cap ? r->cap * 2 : (uint32_t)FIRST_CAP, r->most);
	struct metrics_point *points = cap > r->cap ? malloc(cap * sizeof(*points)) : NULL;
	if (!points)
		return;
	for (uint32_t i = 0; i < r->n; i++)
		points[i] = *point(r, i);
	free(r->points);
	r->points = points;
	r->cap = cap;
	r->first = 0;
}

static void push(struct metrics_ring *r, const struct metrics_point *p)
{
	if (r->n == r->cap)
		grow(r);
	if (!r->cap)
		return;
	if (r->n == r->cap)
		r->first = (r->first + 1) % r->cap;
	else
		r->n++;
	*point(r, r->n - 1) = *p;
}

static uint32_t kib(uint64_t bytes)
{
	return (uint32_t)MIN(bytes / KIB, (uint64_t)UINT32_MAX);
}

/* A coarse point is written when the first sample of the next one comes, with the time of its own last. */
static void add_coarse(struct metrics_history *h, const struct metrics_point *p)
{
	int64_t bucket = p->at / (METRICS_COARSE_S * NS_PER_S);
	if (h->n_bucket && bucket != h->bucket && h->fine.n) {
		struct metrics_point mean = *point(&h->fine, h->fine.n - 1);
		mean.cpu = (uint16_t)(h->cpu_sum / h->n_bucket);
		mean.mem_used = h->mem_most;
		mean.mem_cache = h->cache_most;
		push(&h->coarse, &mean);
		h->n_bucket = 0;
	}
	if (!h->n_bucket)
		h->cpu_sum = h->mem_most = h->cache_most = 0;
	h->bucket = bucket;
	h->n_bucket++;
	h->cpu_sum += p->cpu;
	if (p->mem_used >= h->mem_most) {
		h->mem_most = p->mem_used;
		h->cache_most = p->mem_cache;
	}
}

void metrics_add(struct metrics_history *h, const struct metrics_sample *s)
{
	struct metrics_point p = {.at = s->at, .mem_used = kib(s->mem_used), .mem_cache = kib(s->mem_cache), .disk_used = kib(s->disk_used), .cpu = (uint16_t)MIN(s->cpu_percent, 10000u)};
	h->fine.most = METRICS_FINE;
	h->coarse.most = METRICS_COARSE;
	h->mem_total = s->mem_total;
	h->disk_total = s->disk_total;
	h->cpu_count = s->cpu_count;
	add_coarse(h, &p);
	push(&h->fine, &p);
}

static struct metrics_sample sample_of(const struct metrics_history *h, const struct metrics_point *p)
{
	return (struct metrics_sample){.at = p->at, .mem_used = (uint64_t)p->mem_used * KIB, .mem_cache = (uint64_t)p->mem_cache * KIB, .mem_total = h->mem_total,
		.disk_used = (uint64_t)p->disk_used * KIB, .disk_total = h->disk_total, .cpu_count = h->cpu_count, .cpu_percent = p->cpu};
}

size_t metrics_read(const struct metrics_history *h, int64_t start, int64_t end, struct metrics_sample *to, size_t most, bool *ret_more)
{
	size_t n = 0;
	int64_t fine_from = h->fine.n ? point(&h->fine, 0)->at : INT64_MAX;
	*ret_more = false;
	for (uint32_t i = 0; i < h->coarse.n + h->fine.n; i++) {
		bool coarse = i < h->coarse.n;
		const struct metrics_point *p = coarse ? point(&h->coarse, i) : point(&h->fine, i - h->coarse.n);
		if (p->at < start || p->at > end || (coarse && p->at >= fine_from))
			continue;
		if (n == most) {
			*ret_more = true;
			break;
		}
		to[n++] = sample_of(h, p);
	}
	return n;
}

bool metrics_newest(const struct metrics_history *h, struct metrics_sample *ret)
{
	if (!h->fine.n)
		return false;
	*ret = sample_of(h, point(&h->fine, h->fine.n - 1));
	return true;
}

size_t metrics_bytes(const struct metrics_history *h)
{
	return (size_t)(h->fine.cap + h->coarse.cap) * sizeof(struct metrics_point);
}

void metrics_done(struct metrics_history *h)
{
	free(h->fine.points);
	free(h->coarse.points);
	*h = (struct metrics_history){0};
}
