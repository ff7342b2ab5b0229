#include "io/loop.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

enum { EVENTS_PER_TURN = 128 };

struct loop_fd {
	struct loop *loop;
	loop_fd_fn *fn;
	void *arg;
	struct loop_fd *prev, *next;
	uint32_t events; /* 0 = not in the epoll set */
	int fd;
	bool dead;
};

struct loop_timer {
	struct loop *loop;
	loop_timer_fn *fn;
	void *arg;
	struct loop_timer *prev, *next;
	int64_t at;
	size_t heap; /* position + 1; 0 = not armed */
};

struct call {
	struct call *next;
	loop_post_fn *fn;
	void *arg;
};

/* Singly linked queue of calls. */
struct calls {
	struct call *first, **last;
};

struct loop {
	int epoll, wake, clock;
	bool stop;
	struct loop_fd *fds, *dead_fds;
	struct loop_timer *timers;
	struct loop_timer **heap;
	size_t heap_n, heap_cap;
	int64_t armed; /* what the timerfd is set to; 0 = nothing */
	struct calls deferred;
	pthread_mutex_t lock; /* of `posted` */
	struct calls posted;
	struct loop_fd *wake_source, *clock_source;
};

static int calls_add(struct calls *q, loop_post_fn *fn, void *arg)
{
	struct call *c = malloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	*c = (struct call){.fn = fn, .arg = arg};
	if (!q->first)
		q->last = &q->first;
	*q->last = c;
	q->last = &c->next;
	return 0;
}

static void calls_run(struct call *c)
{
	while (c) {
		struct call *next = c->next;
		c->fn(c->arg);
		free(c);
		c = next;
	}
}

static void calls_drop(struct call *c)
{
	while (c) {
		struct call *next = c->next;
		free(c);
		c = next;
	}
}

/* Timers: a binary heap by time. */

static void heap_put(struct loop *l, size_t i, struct loop_timer *t)
{
	l->heap[i] = t;
	t->heap = i + 1;
}

static void heap_up(struct loop *l, size_t i)
{
	struct loop_timer *t = l->heap[i];
	while (i && l->heap[(i - 1) / 2]->at > t->at) {
		heap_put(l, i, l->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_put(l, i, t);
}

static void heap_down(struct loop *l, size_t i)
{
	struct loop_timer *t = l->heap[i];
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= l->heap_n)
			break;
		if (child + 1 < l->heap_n && l->heap[child + 1]->at < l->heap[child]->at)
			child++;
		if (l->heap[child]->at >= t->at)
			break;
		heap_put(l, i, l->heap[child]);
		i = child;
	}
	heap_put(l, i, t);
}

/* Sets the timerfd when the earliest timer is earlier than what it is set to; a wake-up that is too early just sets it again. */
static void arm_clock(struct loop *l)
{
	if (!l->heap_n || (l->armed && l->armed <= l->heap[0]->at))
		return;
	int64_t at = MAX(l->heap[0]->at, 1);
	struct itimerspec spec = {.it_value = {at / NS_PER_S, at % NS_PER_S}};
	timerfd_settime(l->clock, TFD_TIMER_ABSTIME, &spec, NULL);
	l->armed = at;
}

static void on_clock(struct loop_fd *w, uint32_t events, void *arg)
{
	struct loop *l = arg;
	uint64_t n;
	ssize_t r = read(l->clock, &n, sizeof(n));
	(void)r;
	l->armed = 0;
	int64_t now = clock_boottime();
	/* Only what was due at the start of this run: a timer that arms itself for "now" must not starve the rest. */
	while (l->heap_n && l->heap[0]->at <= now) {
		struct loop_timer *t = l->heap[0];
		loop_timer_stop(t);
		t->fn(t, t->arg);
	}
	arm_clock(l);
}

struct loop_timer *loop_timer_new(struct loop *l, loop_timer_fn *fn, void *arg)
{
	struct loop_timer *t = malloc(sizeof(*t));
	if (!t)
		return NULL;
	*t = (struct loop_timer){.loop = l, .fn = fn, .arg = arg, .next = l->timers};
	if (l->timers)
		l->timers->prev = t;
	l->timers = t;
	return t;
}

int loop_timer_at(struct loop_timer *t, int64_t boottime_ns)
{
	struct loop *l = t->loop;
	loop_timer_stop(t);
	if (l->heap_n == l->heap_cap) {
		size_t cap = l->heap_cap ? l->heap_cap * 2 : 64;
		struct loop_timer **heap = realloc(l->heap, cap * sizeof(*heap));
		if (!heap)
			return -ENOMEM;
		l->heap = heap;
		l->heap_cap = cap;
	}
	t->at = boottime_ns;
	l->heap[l->heap_n] = t;
	heap_up(l, l->heap_n++);
	arm_clock(l);
	return 0;
}

int loop_timer_in(struct loop_timer *t, int64_t ns)
{
	return loop_timer_at(t, clock_boottime() + ns);
}

void loop_timer_stop(struct loop_timer *t)
{
	struct loop *l = t->loop;
	if (!t->heap)
		return;
	size_t i = t->heap - 1;
	t->heap = 0;
	struct loop_timer *last = l->heap[--l->heap_n];
	if (last == t)
		return;
	heap_put(l, i, last);
	heap_up(l, i);
	heap_down(l, last->heap - 1);
}

void loop_timer_free(struct loop_timer *t)
{
	if (!t)
		return;
	loop_timer_stop(t);
	if (t->prev)
		t->prev->next = t->next;
	else
		t->loop->timers = t->next;
	if (t->next)
		t->next->prev = t->prev;
	free(t);
}

/* Descriptors */

static int apply(struct loop_fd *w, uint32_t events)
{
	struct loop *l = w->loop;
	struct epoll_event e = {.events = events, .data.ptr = w};
	int op = !w->events ? EPOLL_CTL_ADD : !events ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
	if (op == EPOLL_CTL_MOD && (w->events & EPOLLEXCLUSIVE)) {
		/* The kernel refuses to modify an exclusive entry. */
		epoll_ctl(l->epoll, EPOLL_CTL_DEL, w->fd, NULL);
		op = EPOLL_CTL_ADD;
	}
	if (epoll_ctl(l->epoll, op, w->fd, &e) < 0)
		return -errno;
	w->events = events;
	return 0;
}

struct loop_fd *loop_fd_add(struct loop *l, int fd, uint32_t events, loop_fd_fn *fn, void *arg)
{
	struct loop_fd *w = malloc(sizeof(*w));
	if (!w)
		return NULL;
	*w = (struct loop_fd){.loop = l, .fd = fd, .fn = fn, .arg = arg, .next = l->fds};
	int r = events ? apply(w, events) : 0;
	if (r < 0) {
		free(w);
		errno = -r;
		return NULL;
	}
	if (l->fds)
		l->fds->prev = w;
	l->fds = w;
	return w;
}

int loop_fd_set(struct loop_fd *w, uint32_t events)
{
	return w->events == events ? 0 : apply(w, events);
}

void loop_fd_del(struct loop_fd *w)
{
	if (!w)
		return;
	assert(!w->dead);
	struct loop *l = w->loop;
	if (w->events)
		epoll_ctl(l->epoll, EPOLL_CTL_DEL, w->fd, NULL);
	if (w->prev)
		w->prev->next = w->next;
	else
		l->fds = w->next;
	if (w->next)
		w->next->prev = w->prev;
	w->dead = true;
	w->next = l->dead_fds;
	l->dead_fds = w;
}

int loop_fd_get(const struct loop_fd *w)
{
	return w->fd;
}

static void bury(struct loop *l)
{
	while (l->dead_fds) {
		struct loop_fd *w = l->dead_fds;
		l->dead_fds = w->next;
		free(w);
	}
}

/* Posts */

int loop_post(struct loop *l, loop_post_fn *fn, void *arg)
{
	pthread_mutex_lock(&l->lock);
	bool first = !l->posted.first;
	int r = calls_add(&l->posted, fn, arg);
	pthread_mutex_unlock(&l->lock);
	if (r == 0 && first) {
		uint64_t one = 1;
		ssize_t w = write(l->wake, &one, sizeof(one));
		(void)w; /* can only fail when the counter is full: then the loop wakes anyway */
	}
	return r;
}

static void on_wake(struct loop_fd *w, uint32_t events, void *arg)
{
	struct loop *l = arg;
	uint64_t n;
	ssize_t r = read(l->wake, &n, sizeof(n));
	(void)r;
	pthread_mutex_lock(&l->lock);
	struct call *calls = l->posted.first;
	l->posted.first = NULL;
	pthread_mutex_unlock(&l->lock);
	calls_run(calls);
}

int loop_defer(struct loop *l, loop_post_fn *fn, void *arg)
{
	return calls_add(&l->deferred, fn, arg);
}

/* The loop */

struct loop *loop_new(void)
{
	struct loop *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	pthread_mutex_init(&l->lock, NULL);
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	l->clock = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (l->epoll >= 0 && l->wake >= 0 && l->clock >= 0) {
		l->wake_source = loop_fd_add(l, l->wake, EPOLLIN, on_wake, l);
		l->clock_source = loop_fd_add(l, l->clock, EPOLLIN, on_clock, l);
	}
	if (!l->wake_source || !l->clock_source) {
		loop_free(l);
		return NULL;
	}
	return l;
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	while (l->fds)
		loop_fd_del(l->fds);
	bury(l);
	while (l->timers)
		loop_timer_free(l->timers);
	free(l->heap);
	calls_drop(l->posted.first);
	calls_drop(l->deferred.first);
	for (int *fd = (int[]){l->epoll, l->wake, l->clock, -1}; *fd >= 0; fd++)
		close(*fd);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static void run_deferred(struct loop *l)
{
	/* Calls may defer more; bounded, so that a pair that keeps deferring cannot starve the descriptors. */
	for (int round = 0; l->deferred.first && round < 16; round++) {
		struct call *calls = l->deferred.first;
		l->deferred.first = NULL;
		calls_run(calls);
	}
}

int loop_turn(struct loop *l, int timeout_ms)
{
	struct epoll_event events[EVENTS_PER_TURN];
	int n = epoll_wait(l->epoll, events, EVENTS_PER_TURN, l->deferred.first ? 0 : timeout_ms);
	if (n < 0 && errno != EINTR)
		return -errno;
	for (int i = 0; i < n; i++) {
		struct loop_fd *w = events[i].data.ptr;
		if (!w->dead && w->events)
			w->fn(w, events[i].events, w->arg);
	}
	run_deferred(l);
	bury(l);
	return 0;
}

int loop_run(struct loop *l)
{
	int r = 0;
	while (!l->stop && r == 0)
		r = loop_turn(l, -1);
	l->stop = false;
	return r;
}

void loop_stop(struct loop *l)
{
	l->stop = true;
}
