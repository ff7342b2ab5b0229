#include "api/request_counts.h"
#include "api/prometheus.h"
#include "api/routes.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <stdlib.h>

/* Upper ends in milliseconds; a create is promised in milliseconds, a call to the node may take 55 s. */
static const unsigned ends_ms[] = {1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000};

struct row {
	struct row *next;
	int status;
	uint64_t count, ns;
	uint64_t buckets[ARRAY_SIZE(ends_ms)]; /* each alone; they are added up when written */
};

/* rows[0]: without a route; then as in the table. */
struct request_counts {
	size_t n;
	struct row *rows[];
};

struct request_counts *request_counts_new(void)
{
	struct request_counts *c = calloc(1, sizeof(*c) + (api_n_routes + 1) * sizeof(c->rows[0]));
	if (c)
		c->n = api_n_routes + 1;
	return c;
}

void request_counts_free(struct request_counts *c)
{
	for (size_t i = 0; c && i < c->n; i++)
		while (c->rows[i]) {
			struct row *r = c->rows[i];
			c->rows[i] = r->next;
			free(r);
		}
	free(c);
}

static struct row *row_of(struct row **first, int status)
{
	struct row **at = first;
	while (*at && (*at)->status < status)
		at = &(*at)->next;
	if (*at && (*at)->status == status)
		return *at;
	struct row *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->status = status;
	r->next = *at;
	return *at = r;
}

void request_counts_add(struct request_counts *c, const struct route *route, int status, int64_t ns)
{
	size_t at = route >= api_routes && route < api_routes + api_n_routes ? (size_t)(route - api_routes) + 1 : 0;
	struct row *r = row_of(&c->rows[at], status);
	if (!r)
		return;
	r->count++;
	r->ns += (uint64_t)MAX(ns, 0);
	for (size_t i = 0; i < ARRAY_SIZE(ends_ms); i++)
		if (ns <= (int64_t)ends_ms[i] * NS_PER_MS) {
			r->buckets[i]++;
			break;
		}
}

static void write_row(const struct row *r, const char *name, const char *method, const char *pattern, struct buf *to)
{
	cleanup_buf struct buf labels = BUF_INIT;
	uint64_t sum = 0;
	prometheus_label(&labels, "method", str_of(method));
	prometheus_label(&labels, "route", str_of(pattern));
	buf_addf(&labels, ",status=\"%d\"", r->status);
	struct str l = buf_str(&labels);
	for (size_t i = 0; i < ARRAY_SIZE(ends_ms); i++) {
		sum += r->buckets[i];
		buf_addf(to, "%s_bucket{%.*s,le=\"%g\"} %llu\n", name, STR_FMT(l), ends_ms[i] / 1000.0, (unsigned long long)sum);
	}
	buf_addf(to, "%s_bucket{%.*s,le=\"+Inf\"} %llu\n", name, STR_FMT(l), (unsigned long long)r->count);
	buf_addf(to, "%s_sum{%.*s} %.6f\n", name, STR_FMT(l), (double)r->ns / (double)NS_PER_S);
	buf_addf(to, "%s_count{%.*s} %llu\n", name, STR_FMT(l), (unsigned long long)r->count);
}

void request_counts_write(const struct request_counts *c, const char *name, struct buf *to)
{
	for (size_t i = 0; i < c->n; i++)
		for (const struct row *r = c->rows[i]; r; r = r->next)
			write_row(r, name, i ? api_routes[i - 1].method : "", i ? api_routes[i - 1].pattern : "", to);
}
