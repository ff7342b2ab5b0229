#include "sandbox/box/numbers.h"
#include "base/cleanup.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { NUMBERS = 65536 };

struct numbers {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	unsigned capacity;
	unsigned next; /* where the search for a free one goes on */
	bool open, closing;
	unsigned char used[NUMBERS];
};

struct numbers *numbers_new(unsigned capacity)
{
	struct numbers *n = calloc(1, sizeof(*n));
	if (!n)
		return NULL;
	pthread_mutex_init(&n->lock, NULL);
	pthread_cond_init(&n->opened, NULL);
	n->capacity = capacity;
	return n;
}

void numbers_free(struct numbers *n)
{
	if (!n)
		return;
	pthread_cond_destroy(&n->opened);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

int numbers_take(struct numbers *n)
{
	int taken = -EAGAIN;
	pthread_mutex_lock(&n->lock);
	/* Round robin: a number rests for long before it is used again, so what the kernel still winds down of it is gone. */
	for (unsigned i = 0; i < n->capacity && taken < 0; i++) {
		unsigned at = (n->next + i) % n->capacity;
		if (n->used[at])
			continue;
		n->used[at] = 1;
		n->next = at + 1;
		taken = (int)at;
	}
	pthread_mutex_unlock(&n->lock);
	return taken;
}

int numbers_reserve(struct numbers *n, unsigned number)
{
	/* The capacity may have been greater in an earlier run. */
	if (number >= NUMBERS)
		return -ERANGE;
	pthread_mutex_lock(&n->lock);
	int r = n->used[number] ? -EBUSY : 0;
	n->used[number] = 1;
	pthread_mutex_unlock(&n->lock);
	return r;
}

void numbers_give(struct numbers *n, unsigned number)
{
	pthread_mutex_lock(&n->lock);
	n->used[number] = 0;
	pthread_mutex_unlock(&n->lock);
}

bool numbers_used(struct numbers *n, unsigned number)
{
	pthread_mutex_lock(&n->lock);
	bool used = number < NUMBERS && n->used[number];
	pthread_mutex_unlock(&n->lock);
	return used;
}

void numbers_wait_open(struct numbers *n)
{
	pthread_mutex_lock(&n->lock);
	while (!n->open && !n->closing)
		pthread_cond_wait(&n->opened, &n->lock);
	pthread_mutex_unlock(&n->lock);
}

static void let_go(struct numbers *n, bool *why)
{
	pthread_mutex_lock(&n->lock);
	*why = true;
	pthread_cond_broadcast(&n->opened);
	pthread_mutex_unlock(&n->lock);
}

void numbers_open(struct numbers *n)
{
	let_go(n, &n->open);
}

void numbers_close(struct numbers *n)
{
	let_go(n, &n->closing);
}
