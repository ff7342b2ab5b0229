#include "sandbox/box/impl.h"
#include "sandbox/box/box.h"
#include "sandbox/microvm/machines.h"
#include "sandbox/microvm/openings.h"
#include "sandbox/box/sweep.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <sched.h>

enum {
	WORKERS_LEAST = 4,
	WORKERS_MOST = 16,
	BOOTERS = 16,
	REAPERS = 2,
	CLEANERS = 2, /* few on purpose: the kernel's own clean-up of namespaces delays others' first wake-up */
	SLOW = 8,
	COPIERS = 3, /* few: each can keep the host's disk busy */
	QUEUE = 65536,
	READINGS = 256,
};

struct discard {
	struct discard *next; /* among those that wait for another try */
	struct backend *backend;
	struct slot *slot; /* NULL: it is gone */
	unsigned number;
	struct loop_timer *timer;
	bool late; /* workers need not wait for its end */
};

/* May take as long as the host's disk is busy (an unmount, an image that is deleted), which nothing can cut short. Who waits for a cleaner is the pool, and the end of the backend. */
static void discard_work(void *arg)
{
	struct discard *d = arg;
	if (slot_release(d->backend->host, d->slot, d->late ? 0 : SLOT_DIES_MS) < 0)
		return;
	d->slot = NULL;
	numbers_give(d->backend->numbers, d->number);
}

static void check_drained(struct backend *b)
{
	if (!b->drained || __atomic_load_n(&b->discarding, __ATOMIC_SEQ_CST))
		return;
	void (*drained)(void *) = b->drained;
	b->drained = NULL;
	drained(b->drained_arg);
}

void backend_hold_drain(struct backend *b)
{
	__atomic_add_fetch(&b->discarding, 1, __ATOMIC_SEQ_CST);
}

void backend_let_drain(struct backend *b)
{
	__atomic_sub_fetch(&b->discarding, 1, __ATOMIC_SEQ_CST);
	check_drained(b);
}

static void discard_done(void *arg);

static void leave_late(struct discard *d)
{
	struct discard **at = &d->backend->late;
	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	loop_timer_free(steal_pointer(&d->timer));
}

static void discard_again(struct loop_timer *t, void *arg)
{
	struct discard *d = arg;
	leave_late(d);
	if (workq_push(d->backend->cleaners, d->backend->loop, discard_work, discard_done, d) < 0)
		discard_done(d);
}

/* One that was no sandbox, and does not die. */
static bool discard_later(struct discard *d)
{
	d->timer = loop_timer_new(d->backend->loop, discard_again, d);
	if (!d->timer || loop_timer_in(d->timer, SLOT_DIES_AGAIN_MS * NS_PER_MS) < 0) {
		loop_timer_free(d->timer);
		return false;
	}
	d->late = true;
	d->next = d->backend->late;
	d->backend->late = d;
	log_warn("slot %u: its processes do not die", d->number);
	return true;
}

/* The sweep of the next start finds it; its number is not used until then. */
static void leave_behind(struct slot *s)
{
	log_error("slot %u is left behind: no memory", s->number);
	slot_leave(s);
}

static void discard_done(void *arg)
{
	struct discard *d = arg;
	struct backend *b = d->backend;
	if (d->slot && discard_later(d))
		return;
	if (d->slot)
		leave_behind(d->slot);
	free(d);
	backend_let_drain(b);
}

void backend_discard(struct backend *b, struct slot *s)
{
	struct discard *d = malloc(sizeof(*d));
	if (d) {
		*d = (struct discard){.backend = b, .slot = s, .number = s->number};
		backend_hold_drain(b);
		if (workq_push(b->cleaners, b->loop, discard_work, discard_done, d) == 0)
			return;
		__atomic_sub_fetch(&b->discarding, 1, __ATOMIC_SEQ_CST);
		free(d);
	}
	leave_behind(s);
}

static void discard_for_pool(struct slot *s, void *arg)
{
	backend_discard(arg, s);
}

static unsigned workers_wanted(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : WORKERS_LEAST;
	return (unsigned)MIN(MAX(n, WORKERS_LEAST), WORKERS_MOST);
}

int backend_new(struct loop *l, const struct backend_config *c, struct backend **ret, struct error *err)
{
	struct backend *b = calloc(1, sizeof(*b));
	if (!b)
		return error_errno(err, -ENOMEM, "namespace backend");
	b->loop = l;
	b->config = *c;
	int r = host_new(c, &b->host, err);
	if (r == 0 && !(b->numbers = numbers_new(b->host->capacity)))
		r = error_errno(err, -ENOMEM, "slot numbers");
	if (r == 0)
		r = slot_pool_new(b->host, b->numbers, discard_for_pool, b, &b->pool, err);
	if (r == 0) {
		b->opener = opener_new(l);
		b->workers = workq_new(workers_wanted(), QUEUE);
		b->booters = workq_new(BOOTERS, QUEUE);
		b->reapers = workq_new(REAPERS, QUEUE);
		b->cleaners = workq_new(CLEANERS, QUEUE);
		b->slow = workq_new(SLOW, QUEUE);
		b->copiers = workq_new(COPIERS, QUEUE);
		b->readers = workq_new(1, READINGS);
		if (!b->opener || !b->workers || !b->booters || !b->reapers || !b->cleaners || !b->slow || !b->copiers || !b->readers)
			r = error_errno(err, -ENOMEM, "threads of the namespace backend");
	}
	if (r < 0) {
		backend_free(b);
		return r;
	}
	log_info("namespace backend: cgroups %s, %u slots, ids from %lld", cgroups_kind(b->host->cgroups), b->host->capacity,
		(long long)c->options->uid_base);
	*ret = b;
	return 0;
}

static bool keep(unsigned number, void *arg)
{
	return numbers_used(arg, number);
}

static void ready_work(void *arg)
{
	struct backend *b = arg;
	struct error err = {0};
	if (host_enter(b->host, &err) < 0)
		log_error("%s", err.message);
	sweep(b->host, keep, b->numbers);
	numbers_open(b->numbers);
	int r = pool_open(b->pool);
	if (r < 0)
		log_error("the pool's thread: %s", strerror(-r));
}

void backend_ready(struct backend *b)
{
	if (workq_push(b->reapers, b->loop, ready_work, NULL, b) < 0)
		log_error("the pool is not opened: no memory");
}

static void close_pool(struct backend *b)
{
	numbers_close(b->numbers);
	pool_close(b->pool);
}

static void drain_work(void *arg)
{
	close_pool(arg);
}

static void drain_done(void *arg)
{
	backend_let_drain(arg);
}

void backend_drain(struct backend *b, void (*done)(void *arg), void *arg)
{
	b->drained = done;
	b->drained_arg = arg;
	backend_hold_drain(b);
	if (workq_push(b->reapers, b->loop, drain_work, drain_done, b) < 0) {
		close_pool(b);
		drain_done(b);
	}
}

void backend_free(struct backend *b)
{
	if (!b)
		return;
	if (b->pool)
		close_pool(b);
	for (struct box *x = b->boxes; x; x = x->next)
		box_copy_stop(x, false);
	workq_free(steal_pointer(&b->copiers));
	for (struct box *x = b->boxes; x; x = x->next)
		__atomic_store_n(&x->cancelled, true, __ATOMIC_RELAXED); /* a boot is not waited for */
	workq_free(b->booters);
	workq_free(b->workers);
	workq_free(b->reapers);
	workq_free(b->cleaners);
	workq_free(b->slow);
	workq_free(b->readers);
	opener_free(b->opener);
	openings_cancel(b);
	bool clean = !b->boxes && !b->late;
	for (struct discard *d; (d = b->late);) {
		leave_late(d);
		slot_leave(d->slot);
		free(d);
	}
	boxes_leave(b);
	slot_pool_free(b->pool);
	numbers_free(b->numbers);
	host_free(b->host, clean);
	free(b);
}

void backend_figures(const struct backend *b, struct backend_figures *ret)
{
	pool_figures(b->pool, ret);
}

const char *backend_isolation(const struct backend *b, struct str wanted, struct error *err)
{
	const struct machines *m = b->host->machines;
	if (!wanted.n || str_is(wanted, "auto"))
		wanted = str_of(b->config.options->isolation);
	if (str_is(wanted, "auto"))
		return m->why[0] ? namespace_runtime.isolation : microvm_runtime.isolation;
	if (str_is(wanted, microvm_runtime.isolation)) {
		if (!m->why[0])
			return microvm_runtime.isolation;
		error_set(err, -EOPNOTSUPP, 400, "isolation: no microVMs on this server: %s", m->why);
		return NULL;
	}
	return namespace_runtime.isolation;
}
