#include "node/deadlines.h"

#include <errno.h>
#include <stdlib.h>

static void put(struct deadlines *d, size_t i, struct deadline *x)
{
	d->heap[i] = x;
	x->heap = i + 1;
}

static void up(struct deadlines *d, size_t i)
{
	struct deadline *x = d->heap[i];
	for (; i && d->heap[(i - 1) / 2]->at > x->at; i = (i - 1) / 2)
		put(d, i, d->heap[(i - 1) / 2]);
	put(d, i, x);
}

static void down(struct deadlines *d, size_t i)
{
	struct deadline *x = d->heap[i];
	for (size_t child; (child = 2 * i + 1) < d->n; i = child) {
		if (child + 1 < d->n && d->heap[child + 1]->at < d->heap[child]->at)
			child++;
		if (d->heap[child]->at >= x->at)
			break;
		put(d, i, d->heap[child]);
	}
	put(d, i, x);
}

void deadlines_remove(struct deadlines *d, struct deadline *x)
{
	if (!x->heap)
		return;
	size_t i = x->heap - 1;
	struct deadline *last = d->heap[--d->n];
	x->heap = 0;
	if (last == x)
		return;
	put(d, i, last);
	up(d, i);
	down(d, last->heap - 1);
}

int deadlines_set(struct deadlines *d, struct deadline *x, int64_t at)
{
	if (d->n == d->cap && !x->heap && at != INT64_MAX) {
		size_t cap = d->cap ? d->cap * 2 : 64;
		struct deadline **heap = realloc(d->heap, cap * sizeof(struct deadline *));
		if (!heap)
			return -ENOMEM;
		d->heap = heap;
		d->cap = cap;
	}
	deadlines_remove(d, x);
	x->at = at;
	if (at == INT64_MAX)
		return 0;
	put(d, d->n, x);
	up(d, d->n++);
	return 0;
}

int64_t deadlines_next(const struct deadlines *d)
{
	return d->n ? d->heap[0]->at : INT64_MAX;
}

struct deadline *deadlines_due(struct deadlines *d, int64_t now)
{
	if (!d->n || d->heap[0]->at > now)
		return NULL;
	struct deadline *x = d->heap[0];
	deadlines_remove(d, x);
	return x;
}

void deadlines_done(struct deadlines *d)
{
	free(d->heap);
	*d = (struct deadlines){0};
}
