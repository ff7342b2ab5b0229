#include "sandbox/namespace/pool.h"
#include "sandbox/namespace/host.h"
#include "sandbox/namespace/slot.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "sys/process.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum {
	NUMBERS = 65536,
	BACK_OFF_FIRST_MS = 250,
	BACK_OFF_MOST_MS = 30000,
	WINDOW_MS = 1000, /* takes are counted over this long */
};

struct pool {
	struct host *host;
	void (*discard)(struct slot *s, void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t wake, opened;
	pthread_t filler;
	bool open, closing, running;
	unsigned char *used; /* by number */
	unsigned next;       /* where the search for a free number goes on */
	struct slot *first, **last;
	unsigned parked;
	unsigned taken;      /* in the current window */
	double wanted;       /* the target, decaying from the last peak */
	int64_t window_end;
};

int slot_pool_new(struct host *h, void (*discard)(struct slot *s, void *arg), void *arg, struct pool **ret, struct error *err)
{
	struct pool *p = calloc(1, sizeof(*p));
	if (!p || !(p->used = calloc(NUMBERS, 1))) {
		free(p);
		return error_errno(err, -ENOMEM, "slot pool");
	}
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, &attr);
	pthread_cond_init(&p->opened, NULL);
	pthread_condattr_destroy(&attr);
	p->host = h;
	p->discard = discard;
	p->arg = arg;
	p->last = &p->first;
	p->wanted = (double)h->options->pool_min;
	*ret = p;
	return 0;
}

void slot_pool_free(struct pool *p)
{
	if (!p)
		return;
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->opened);
	pthread_mutex_destroy(&p->lock);
	free(p->used);
	free(p);
}

static int take_number(struct pool *p)
{
	/* Round robin: a number rests for long before it is used again, so what the kernel still winds down of it is gone. */
	for (unsigned i = 0; i < p->host->capacity; i++) {
		unsigned n = (p->next + i) % p->host->capacity;
		if (p->used[n])
			continue;
		p->used[n] = 1;
		p->next = n + 1;
		return (int)n;
	}
	return -EAGAIN;
}

int pool_take_number(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	int n = take_number(p);
	pthread_mutex_unlock(&p->lock);
	return n;
}

int pool_reserve_number(struct pool *p, unsigned number)
{
	/* The capacity may have been greater in an earlier run. */
	if (number >= NUMBERS)
		return -ERANGE;
	pthread_mutex_lock(&p->lock);
	int r = p->used[number] ? -EBUSY : 0;
	p->used[number] = 1;
	pthread_mutex_unlock(&p->lock);
	return r;
}

void pool_give_number(struct pool *p, unsigned number)
{
	pthread_mutex_lock(&p->lock);
	p->used[number] = 0;
	pthread_mutex_unlock(&p->lock);
}

bool pool_number_used(struct pool *p, unsigned number)
{
	pthread_mutex_lock(&p->lock);
	bool used = number < NUMBERS && p->used[number];
	pthread_mutex_unlock(&p->lock);
	return used;
}

/* Once a window: the target rises to what was taken in it at once, and falls slowly. */
static void resize(struct pool *p)
{
	int64_t now = clock_monotonic();
	if (now < p->window_end)
		return;
	const struct options *o = p->host->options;
	p->wanted = MAX(p->wanted * 0.95, (double)p->taken);
	p->wanted = MIN(MAX(p->wanted, (double)o->pool_min), (double)o->pool_max);
	p->taken = 0;
	p->window_end = now + WINDOW_MS * NS_PER_MS;
}

static struct slot *pop(struct pool *p)
{
	struct slot *s = p->first;
	if (s) {
		p->first = s->next;
		if (!p->first)
			p->last = &p->first;
		p->parked--;
	}
	return s;
}

static void push(struct pool *p, struct slot *s)
{
	s->next = NULL;
	*p->last = s;
	p->last = &s->next;
	p->parked++;
}

static void wait_ms(struct pool *p, int64_t ms)
{
	int64_t at = clock_monotonic() + ms * NS_PER_MS;
	struct timespec t = {at / NS_PER_S, at % NS_PER_S};
	pthread_cond_timedwait(&p->wake, &p->lock, &t);
}

/* Without the lock held. */
static int prepare_one(struct pool *p, int number, struct slot **ret, struct error *err)
{
	struct slot *s = slot_new((unsigned)number);
	if (!s) {
		pool_give_number(p, (unsigned)number);
		return error_errno(err, -ENOMEM, "slot");
	}
	int r = slot_prepare(p->host, s, err);
	if (r < 0)
		p->discard(s, p->arg);
	else
		*ret = s;
	return r;
}

/* One more slot; the lock is let go meanwhile. Returns the ms to wait before the next. */
static int64_t fill(struct pool *p, int64_t back_off)
{
	struct error err = {0};
	struct slot *s = NULL;
	int number = take_number(p);
	if (number < 0)
		return WINDOW_MS;
	pthread_mutex_unlock(&p->lock);
	int r = prepare_one(p, number, &s, &err);
	if (r < 0)
		log_warn("slot %d cannot be prepared: %s", number, err.message);
	pthread_mutex_lock(&p->lock);
	if (r < 0)
		return back_off ? MIN(back_off * 2, (int64_t)BACK_OFF_MOST_MS) : BACK_OFF_FIRST_MS;
	push(p, s);
	return 0;
}

static void *filler(void *arg)
{
	struct pool *p = arg;
	int64_t back_off = 0;
	pthread_mutex_lock(&p->lock);
	while (!p->closing) {
		resize(p);
		unsigned wanted = (unsigned)(p->wanted + 0.5);
		if (p->parked < wanted) {
			back_off = fill(p, back_off);
			if (back_off)
				wait_ms(p, back_off);
		} else if (p->parked > wanted + wanted / 4 + 1) {
			struct slot *s = pop(p);
			pthread_mutex_unlock(&p->lock);
			p->discard(s, p->arg);
			pthread_mutex_lock(&p->lock);
			wait_ms(p, WINDOW_MS / 4); /* a quiet pool shrinks without haste */
		} else {
			wait_ms(p, WINDOW_MS);
		}
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int pool_open(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->open = true;
	p->window_end = clock_monotonic() + WINDOW_MS * NS_PER_MS;
	int r = p->closing ? 0 : -pthread_create(&p->filler, NULL, filler, p);
	p->running = r == 0 && !p->closing;
	pthread_cond_broadcast(&p->opened);
	pthread_mutex_unlock(&p->lock);
	return r;
}

void pool_wait_open(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	while (!p->open && !p->closing)
		pthread_cond_wait(&p->opened, &p->lock);
	pthread_mutex_unlock(&p->lock);
}

struct slot *pool_take(struct pool *p)
{
	for (;;) {
		pthread_mutex_lock(&p->lock);
		struct slot *s = pop(p);
		p->taken++;
		pthread_cond_signal(&p->wake);
		pthread_mutex_unlock(&p->lock);
		if (!s || !process_ended(s->pidfd))
			return s;
		log_warn("the parked init of slot %u had ended", s->number);
		p->discard(s, p->arg);
	}
}

void pool_close(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	bool running = p->running;
	p->running = false;
	pthread_cond_broadcast(&p->wake);
	pthread_cond_broadcast(&p->opened);
	pthread_mutex_unlock(&p->lock);
	if (running)
		pthread_join(p->filler, NULL);
	for (struct slot *s; (s = pop(p));)
		p->discard(s, p->arg);
}
