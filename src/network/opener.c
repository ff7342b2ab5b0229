/*
 * The opener: one thread with a loop of its own. It enters a sandbox's network namespace, makes a socket, starts to connect and leaves again; nothing in it
 * waits, so a sandbox that answers no SYN (full backlog) costs the others nothing.
 */
#include "network/slot.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/inner_port.h"
#include "io/loop.h"

#include <arpa/inet.h>
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum {
	TIMEOUT_MS = 2000,
	MAX_REQUESTS = 4096,      /* in all */
	MAX_WAITING_PER_NET = 64, /* connections without an answer, of one namespace */
};

struct request {
	struct opener *opener;
	struct request *prev, *next; /* in opener->waiting */
	void (*done)(int fd_or_error, void *arg);
	void *arg;
	struct loop_fd *source;
	struct loop_timer *timer;
	ino_t net;
	uint32_t guest_address;
	unsigned candidate; /* which address is being tried */
	int netns, fd;
	int result;
	uint16_t port;
};

struct opener {
	struct loop *owner; /* done() runs there */
	struct loop *loop;  /* of the thread */
	pthread_t thread;
	struct request *waiting;
	int home;
	atomic_uint requests;
	bool stopping;
};

static void free_request(struct request *q)
{
	if (q->netns >= 0)
		close(q->netns);
	if (q->fd >= 0)
		close(q->fd);
	free(q);
}

static void deliver(void *arg)
{
	struct request *q = arg;
	q->done(q->result, q->arg);
	free_request(q);
}

/* Takes the request out of the thread's hands and posts its result. */
static void complete(struct request *q, int result)
{
	struct opener *o = q->opener;
	if (q->source) {
		loop_fd_del(q->source);
		q->source = NULL;
		*(q->prev ? &q->prev->next : &o->waiting) = q->next;
		if (q->next)
			q->next->prev = q->prev;
	}
	loop_timer_free(q->timer);
	q->timer = NULL;
	q->result = result;
	atomic_fetch_sub(&o->requests, 1);
	/* Without memory for the post nobody ever learns of the result; the caller's own deadline ends its wait. */
	if (loop_post(o->owner, deliver, q) < 0) {
		if (result >= 0)
			close(result);
		free_request(q);
	}
}

static unsigned waiting_of(const struct opener *o, ino_t net)
{
	unsigned n = 0;
	for (const struct request *q = o->waiting; q; q = q->next)
		n += q->net == net;
	return n;
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg);
static void on_timeout(struct loop_timer *t, void *arg);

static void park(struct request *q)
{
	struct opener *o = q->opener;
	if (waiting_of(o, q->net) >= MAX_WAITING_PER_NET) {
		complete(q, -ETIMEDOUT);
		return;
	}
	q->timer = loop_timer_new(o->loop, on_timeout, q);
	q->source = loop_fd_add(o->loop, q->fd, EPOLLOUT, on_event, q);
	if (q->source) {
		q->prev = NULL;
		q->next = o->waiting;
		if (q->next)
			q->next->prev = q;
		o->waiting = q;
	}
	if (!q->timer || !q->source || loop_timer_in(q->timer, TIMEOUT_MS * NS_PER_MS) < 0)
		complete(q, -ENOMEM);
}

/* Tries the addresses from q->candidate on. Every error but "not yet" leads to the next one; the first address's error is what counts at the end. */
static void try_addresses(struct request *q)
{
	struct opener *o = q->opener;
	if (setns(q->netns, CLONE_NEWNET) < 0) {
		complete(q, -errno);
		return;
	}
	int r = -ECONNREFUSED;
	for (; q->candidate < 3; q->candidate++) {
		r = inner_port_begin(q->candidate, q->guest_address, q->port, &q->fd);
		if (r >= 0)
			break;
		if (q->fd >= 0)
			close(steal_fd(&q->fd));
	}
	/* Staying would keep a dead sandbox's namespace alive, and do the next one's work in it. */
	if (setns(o->home, CLONE_NEWNET) < 0)
		abort();
	if (r > 0)
		complete(q, steal_fd(&q->fd));
	else if (r == 0)
		park(q);
	else
		complete(q, -ECONNREFUSED);
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct request *q = arg;
	int r = inner_port_state(q->fd);
	if (r == 0)
		return;
	if (r > 0)
		complete(q, steal_fd(&q->fd));
	else
		complete(q, r == -ETIMEDOUT ? r : -ECONNREFUSED);
}

static void on_timeout(struct loop_timer *t, void *arg)
{
	complete(arg, -ETIMEDOUT);
}

static void begin(void *arg)
{
	struct request *q = arg;
	struct stat st;
	if (q->opener->stopping || fstat(q->netns, &st) < 0) {
		complete(q, q->opener->stopping ? -ECANCELED : -errno);
		return;
	}
	q->net = st.st_ino;
	try_addresses(q);
}

static void *run(void *arg)
{
	struct opener *o = arg;
	pthread_setname_np(pthread_self(), "opener");
	loop_run(o->loop);
	return NULL;
}

static void stop(void *arg)
{
	struct opener *o = arg;
	o->stopping = true;
	while (o->waiting)
		complete(o->waiting, -ECANCELED);
	loop_stop(o->loop);
}

struct opener *opener_new(struct loop *l)
{
	struct opener *o = calloc(1, sizeof(*o));
	if (!o)
		return NULL;
	o->owner = l;
	o->home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	o->loop = loop_new();
	if (o->home < 0 || !o->loop || pthread_create(&o->thread, NULL, run, o) != 0) {
		loop_free(o->loop);
		if (o->home >= 0)
			close(o->home);
		free(o);
		return NULL;
	}
	return o;
}

void opener_free(struct opener *o)
{
	if (!o)
		return;
	/* In the order of posting: behind every request. Without memory for it there is no way to stop the thread. */
	if (loop_post(o->loop, stop, o) < 0)
		abort();
	pthread_join(o->thread, NULL);
	loop_free(o->loop);
	close(o->home);
	free(o);
}

int opener_connect(struct opener *o, int netns, uint32_t guest_address, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	if (atomic_load(&o->requests) >= MAX_REQUESTS)
		return -EAGAIN;
	struct request *q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	*q = (struct request){.opener = o, .done = done, .arg = arg, .guest_address = guest_address, .port = port, .fd = -1};
	q->netns = fcntl(netns, F_DUPFD_CLOEXEC, 0);
	if (q->netns < 0) {
		free(q);
		return -EAGAIN;
	}
	atomic_fetch_add(&o->requests, 1);
	if (loop_post(o->loop, begin, q) < 0) {
		atomic_fetch_sub(&o->requests, 1);
		free_request(q);
		return -ENOMEM;
	}
	return 0;
}
