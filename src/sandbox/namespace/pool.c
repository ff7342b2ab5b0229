#include "sandbox/namespace/pool.h"
#include "sandbox/box/host.h"
#include "sandbox/box/numbers.h"
#include "sandbox/namespace/namespace_slot.h"
#include "sandbox/namespace/recipes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "sys/process.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	BACK_OFF_FIRST_MS = 250,
	BACK_OFF_MOST_MS = 30000,
	WINDOW_MS = 1000, /* takes are counted over this long */
	PATIENCE_MS = 25, /* a pool that is half full is not filled while creates are coming in: they want the
			     processors and the kernel's locks */
	NICE = 5,
};

struct pool {
	struct host *host;
	struct numbers *numbers;
	void (*discard)(struct slot *s, void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t filler;
	bool closing, running;
	struct slot *first, **last;
	unsigned parked;
	unsigned taken; /* in the current window */
	double wanted;  /* the target, decaying from the last peak */
	int64_t window_end, last_take;
	struct recipes recipes;
};

static double pool_least(const struct pool *p)
{
	return p->host->parks ? (double)p->host->options->pool_min : 0;
}

int slot_pool_new(struct host *h, struct numbers *numbers, void (*discard)(struct slot *s, void *arg), void *arg, struct pool **ret,
	struct error *err)
{
	struct pool *p = calloc(1, sizeof(*p));
	if (!p)
		return error_errno(err, -ENOMEM, "slot pool");
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, &attr);
	pthread_condattr_destroy(&attr);
	p->host = h;
	p->numbers = numbers;
	p->discard = discard;
	p->arg = arg;
	p->last = &p->first;
	p->wanted = pool_least(p);
	*ret = p;
	return 0;
}

void slot_pool_free(struct pool *p)
{
	if (!p)
		return;
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	recipes_done(&p->recipes);
	free(p);
}

/* Once a window: the target rises to what was taken in it at once, and falls slowly. */
static void resize(struct pool *p)
{
	int64_t now = clock_monotonic();
	if (now < p->window_end)
		return;
	const struct options *o = p->host->options;
	p->wanted = MAX(p->wanted * 0.95, (double)p->taken);
	p->wanted = MIN(MAX(p->wanted, pool_least(p)), (double)o->pool_max);
	p->taken = 0;
	recipes_decay(&p->recipes);
	p->window_end = now + WINDOW_MS * NS_PER_MS;
}

static struct slot *unlink_slot(struct pool *p, struct slot **at)
{
	struct slot *s = *at;
	*at = s->next;
	if (!*at)
		p->last = at;
	p->parked--;
	return s;
}

static struct slot *pop(struct pool *p)
{
	return p->first ? unlink_slot(p, &p->first) : NULL;
}

/* The first slot with that root (without one: NULL). */
static struct slot *pop_with(struct pool *p, const struct slot_root *root)
{
	for (struct slot **at = &p->first; *at; at = &(*at)->next)
		if (root ? slot_root_eq(&(*at)->root, root) : (*at)->root.n == 0)
			return unlink_slot(p, at);
	return NULL;
}

/* The first slot whose root is another. */
static struct slot *pop_misfit(struct pool *p, const struct slot_root *root)
{
	for (struct slot **at = &p->first; *at; at = &(*at)->next)
		if ((*at)->root.n && !slot_root_eq(&(*at)->root, root))
			return unlink_slot(p, at);
	return NULL;
}

static unsigned count_dressed(const struct pool *p)
{
	unsigned n = 0;
	for (const struct slot *s = p->first; s; s = s->next)
		n += s->root.n > 0;
	return n;
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

/* What the filler works by, looked up without the lock. */
struct plan {
	size_t n; /* layers of the favourite; 0: none */
	char *layers[BOX_MAX_LAYERS];
	struct slot_root root;
	unsigned wanted, bare;
	bool unsure; /* root is not known just now */
};

static void plan_done(struct plan *plan)
{
	while (plan->n)
		free(plan->layers[--plan->n]);
}

/* Lets the lock go meanwhile. */
static void make_plan(struct pool *p, struct plan *plan)
{
	const struct recipe *f = p->recipes.favourite;
	*plan = (struct plan){.wanted = (unsigned)(p->wanted + 0.5)};
	plan->bare = recipes_bare(&p->recipes, plan->wanted);
	for (; f && plan->n < f->n; plan->n++)
		if (!(plan->layers[plan->n] = str_dup(str_of(f->layers[plan->n])))) {
			plan_done(plan);
			break;
		}
	if (!plan->n)
		return;
	pthread_mutex_unlock(&p->lock);
	plan->unsure = slot_root_of(p->host, (const char *const *)plan->layers, plan->n, &plan->root) == -EBUSY;
	pthread_mutex_lock(&p->lock);
}

/* One more of the parked may have the favourite's root. */
static bool may_dress(const struct pool *p, const struct plan *plan)
{
	return plan->n && count_dressed(p) + plan->bare < plan->wanted;
}

/* Without the lock held; the slot is gone on failure. */
static int dress(struct pool *p, struct slot *s, const struct plan *plan)
{
	struct error err = {0};
	int r = slot_dress(p->host, s, (const char *const *)plan->layers, plan->n, &err);
	if (r < 0) {
		log_warn("slot %u cannot be given its root: %s", s->number, err.message);
		p->discard(s, p->arg);
	}
	return r;
}

/* Without the lock held. */
static int prepare_one(struct pool *p, int number, struct slot **ret)
{
	struct error err = {0};
	struct slot *s = slot_new((unsigned)number);
	int r = s ? slot_prepare(p->host, s, &err) : error_errno(&err, -ENOMEM, "slot");
	if (r == 0) {
		*ret = s;
		return 0;
	}
	log_warn("slot %d cannot be prepared: %s", number, err.message);
	if (s)
		p->discard(s, p->arg);
	else
		numbers_give(p->numbers, (unsigned)number);
	return r;
}

/* One more slot; the lock is let go meanwhile. Returns the ms to wait before the next. */
static int64_t fill(struct pool *p, const struct plan *plan, int64_t back_off)
{
	struct slot *s = NULL;
	bool dressed = may_dress(p, plan);
	int number = numbers_take(p->numbers);
	if (number < 0)
		return WINDOW_MS;
	pthread_mutex_unlock(&p->lock);
	int r = prepare_one(p, number, &s), worn = r == 0 && dressed ? dress(p, s, plan) : 0;
	pthread_mutex_lock(&p->lock);
	if (worn < 0)
		recipes_forget_favourite(&p->recipes);
	if (r < 0 || worn < 0)
		return back_off ? MIN(back_off * 2, (int64_t)BACK_OFF_MOST_MS) : BACK_OFF_FIRST_MS;
	push(p, s);
	return 0;
}

/* A slot without a root gets the favourite's. */
static void dress_parked(struct pool *p, const struct plan *plan)
{
	struct slot *s = pop_with(p, NULL);
	pthread_mutex_unlock(&p->lock);
	int r = dress(p, s, plan);
	pthread_mutex_lock(&p->lock);
	if (r == 0)
		push(p, s);
	else
		recipes_forget_favourite(&p->recipes);
}

static void discard_one(struct pool *p, struct slot *s)
{
	pthread_mutex_unlock(&p->lock);
	p->discard(s, p->arg);
	pthread_mutex_lock(&p->lock);
	wait_ms(p, WINDOW_MS / 4); /* without haste: it costs the running ones something */
}

/* What is parked but should be something else: with a root that nobody asks for, or too many with one. */
static struct slot *pop_unwanted(struct pool *p, const struct plan *plan)
{
	struct slot *s = plan->unsure ? NULL : pop_misfit(p, &plan->root);
	if (s)
		return s;
	unsigned bare = p->parked - count_dressed(p);
	if (p->parked > plan->wanted + plan->wanted / 4 + 1)
		return bare > plan->bare ? pop_with(p, NULL) : pop(p);
	return bare + plan->wanted / 4 < plan->bare ? pop_with(p, &plan->root) : NULL;
}

/* The ms to wait before filling; 0: now. */
static int64_t patience(const struct pool *p, unsigned wanted)
{
	int64_t quiet = (clock_monotonic() - p->last_take) / NS_PER_MS;
	return p->parked * 2 >= wanted && quiet < PATIENCE_MS ? PATIENCE_MS - quiet : 0;
}

/* With the lock held. */
static void fill_or_tidy(struct pool *p, int64_t *back_off)
{
	struct plan plan;
	struct slot *s;
	int64_t wait;
	make_plan(p, &plan);
	if (p->closing)
		;
	else if ((wait = patience(p, plan.wanted)))
		wait_ms(p, wait);
	else if (p->parked < plan.wanted) {
		*back_off = fill(p, &plan, *back_off);
		if (*back_off)
			wait_ms(p, *back_off);
	} else if ((s = pop_unwanted(p, &plan)))
		discard_one(p, s);
	else if (may_dress(p, &plan) && count_dressed(p) < p->parked)
		dress_parked(p, &plan);
	else
		wait_ms(p, WINDOW_MS);
	plan_done(&plan);
}

static void *filler(void *arg)
{
	struct pool *p = arg;
	int64_t back_off = 0;
	/* Behind those whom somebody waits for. Not far behind: it takes locks of the kernel that they want
	 * too. */
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
	pthread_mutex_lock(&p->lock);
	while (!p->closing) {
		resize(p);
		fill_or_tidy(p, &back_off);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int pool_open(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->window_end = clock_monotonic() + WINDOW_MS * NS_PER_MS;
	int r = p->closing ? 0 : -pthread_create(&p->filler, NULL, filler, p);
	p->running = r == 0 && !p->closing;
	pthread_mutex_unlock(&p->lock);
	return r;
}

static struct slot *take_one(
	struct pool *p, const struct box_spec *spec, const struct slot_root *root, bool dressed)
{
	pthread_mutex_lock(&p->lock);
	struct slot *s = root->n ? pop_with(p, root) : NULL;
	if (!s && !dressed)
		s = pop_with(p, NULL);
	if (s || !dressed) {
		if (slot_may_be_dressed(p->host, spec))
			recipes_ask(&p->recipes, spec->layers, spec->n_layers);
		p->taken++;
		p->last_take = clock_monotonic();
		pthread_cond_signal(&p->wake);
	}
	pthread_mutex_unlock(&p->lock);
	return s;
}

static struct slot *take(struct pool *p, const struct box_spec *spec, bool dressed)
{
	struct slot_root root = {0};
	if (slot_may_be_dressed(p->host, spec))
		slot_root_of(p->host, spec->layers, spec->n_layers, &root);
	for (;;) {
		struct slot *s = take_one(p, spec, &root, dressed);
		if (!s || !process_ended(s->pidfd))
			return s;
		log_warn("the parked init of slot %u had ended", s->number);
		p->discard(s, p->arg);
	}
}

struct slot *pool_take(struct pool *p, const struct box_spec *spec)
{
	return take(p, spec, false);
}

struct slot *pool_take_dressed(struct pool *p, const struct box_spec *spec)
{
	return take(p, spec, true);
}

void pool_forget_layer(struct pool *p, const char *layer)
{
	pthread_mutex_lock(&p->lock);
	recipes_forget_layer(&p->recipes, layer);
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

void pool_figures(struct pool *p, struct backend_figures *ret)
{
	pthread_mutex_lock(&p->lock);
	*ret = (struct backend_figures){.parked = p->parked, .wanted = (uint64_t)p->wanted};
	pthread_mutex_unlock(&p->lock);
}

void pool_close(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	bool running = p->running;
	p->running = false;
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	if (running)
		pthread_join(p->filler, NULL);
	for (struct slot *s; (s = pop(p));)
		p->discard(s, p->arg);
}
