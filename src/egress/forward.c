#include "egress/forward.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

#include <stdlib.h>
#include <sys/socket.h>

enum { ATTEMPTS_MAX = 4 };

/* A client's resolver waits 5 s before it asks again: what happens here ends before that, and a dead first resolver costs one patience. */
static const int64_t patience = 800 * NS_PER_MS, deadline = 4500 * NS_PER_MS;

struct attempt {
	struct forward *owner;
	struct loop_fd *source;
	struct upstream *upstream; /* an entry of the list, whose contents may be another resolver's by now: */
	unsigned generation;       /* of the list then */
	struct buf in;             /* TCP: what came so far */
	size_t sent;               /* TCP: bytes of the framed query that are out; */
	bool all_sent;
	int fd;
	uint16_t id;
	bool over;
};

struct forward {
	struct forwarder *forwarder;
	forward_done_fn *done;
	void *arg;
	struct loop_timer *timer;
	int64_t started;
	size_t n_attempts;
	struct attempt attempts[ATTEMPTS_MAX];
	enum dns_rcode failure; /* the worst that an upstream said */
	bool tcp;
	struct dns_query query;
};

struct forwarder {
	struct loop *loop;
	struct upstreams *upstreams;
	unsigned sockets, sockets_max;
	int64_t complained;
	unsigned char answer[DNS_MESSAGE_MAX + 1];
};

struct forwarder *forwarder_new(struct loop *l, struct upstreams *u, unsigned sockets_max)
{
	struct forwarder *f = calloc(1, sizeof(*f));
	if (f) {
		f->loop = l;
		f->upstreams = u;
		f->sockets_max = sockets_max;
	}
	return f;
}

void forwarder_free(struct forwarder *f)
{
	free(f);
}

static void attempt_close(struct attempt *a)
{
	a->over = true;
	if (a->fd < 0)
		return;
	loop_fd_del(a->source);
	a->source = NULL;
	close(steal_fd(&a->fd));
	a->owner->forwarder->sockets--;
	buf_done(&a->in);
}

void forward_cancel(struct forward *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->n_attempts; i++)
		attempt_close(&w->attempts[i]);
	loop_timer_free(w->timer);
	free(w);
}

static void finish(struct forward *w, struct str answer, enum dns_rcode rcode)
{
	forward_done_fn *done = w->done;
	void *arg = w->arg;
	forward_cancel(w);
	done(answer, rcode, arg);
}

static void on_event(struct loop_fd *source, uint32_t events, void *arg);

static int attempt_send(struct attempt *a)
{
	unsigned char wire[2 + DNS_FORWARD_MAX];
	size_t n = dns_query_forward(&a->owner->query, a->id, wire + 2);
	wire[0] = (unsigned char)(n >> 8);
	wire[1] = (unsigned char)n;
	if (!a->owner->tcp)
		return send(a->fd, wire + 2, n, MSG_NOSIGNAL) < 0 ? -errno : 0;
	ssize_t r = send(a->fd, wire + a->sent, 2 + n - a->sent, MSG_NOSIGNAL);
	if (r < 0)
		return -errno;
	a->sent += (size_t)r;
	a->all_sent = a->sent == 2 + n;
	return a->all_sent ? loop_fd_set(a->source, EPOLLIN) : 0;
}

static int attempt_open(struct attempt *a)
{
	struct forward *w = a->owner;
	int type = w->tcp ? SOCK_STREAM : SOCK_DGRAM;
	a->fd = socket(a->upstream->address.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (a->fd < 0)
		return -errno;
	w->forwarder->sockets++;
	if (connect(a->fd, (struct sockaddr *)&a->upstream->address, a->upstream->length) < 0 && !(w->tcp && errno == EINPROGRESS))
		return -errno;
	a->source = loop_fd_add(w->forwarder->loop, a->fd, w->tcp ? EPOLLIN | EPOLLOUT : EPOLLIN, on_event, a);
	if (!a->source)
		return -errno;
	return w->tcp ? 0 : attempt_send(a);
}

static bool was_asked(const struct forward *w, const struct upstream *u)
{
	for (size_t i = 0; i < w->n_attempts; i++)
		if (w->attempts[i].upstream == u && w->attempts[i].generation == w->forwarder->upstreams->generation)
			return true;
	return false;
}

/* The best that was not asked yet (their order changes as they fail), else the best. */
static struct upstream *choose(struct forward *w, int64_t now)
{
	struct upstreams *all = w->forwarder->upstreams;
	for (size_t i = 0; i < all->n; i++)
		if (!was_asked(w, upstreams_nth(all, i, now)))
			return upstreams_nth(all, i, now);
	return upstreams_nth(all, w->n_attempts, now);
}

/* Asks the next resolver. False when there is nobody left to ask. */
static bool attempt_next(struct forward *w)
{
	struct forwarder *f = w->forwarder;
	int64_t now = clock_boottime();
	while (w->n_attempts < ATTEMPTS_MAX && f->sockets < f->sockets_max) {
		struct upstream *u = choose(w, now);
		if (!u)
			return false;
		struct attempt *a = &w->attempts[w->n_attempts++];
		*a = (struct attempt){.owner = w, .upstream = u, .generation = f->upstreams->generation, .fd = -1};
		random_bytes(&a->id, sizeof(a->id));
		if (attempt_open(a) == 0)
			return true;
		attempt_close(a);
	}
	return false;
}

static bool any_open(const struct forward *w)
{
	for (size_t i = 0; i < w->n_attempts; i++)
		if (!w->attempts[i].over)
			return true;
	return false;
}

/* Every resolver was asked at least once. */
static bool all_asked(const struct forward *w)
{
	return w->n_attempts >= w->forwarder->upstreams->n || w->n_attempts >= ATTEMPTS_MAX;
}

static void blame(struct attempt *a, int64_t now)
{
	if (a->generation == a->owner->forwarder->upstreams->generation)
		upstream_failed(a->upstream, now);
}

/* An attempt ended without a usable answer. May end the forward. */
static void attempt_failed(struct attempt *a, enum dns_rcode rcode, bool unreachable)
{
	struct forward *w = a->owner;
	attempt_close(a);
	if (unreachable)
		blame(a, clock_boottime());
	if (rcode != DNS_SERVFAIL || w->failure == DNS_NOERROR)
		w->failure = rcode;
	if (!all_asked(w) && attempt_next(w))
		return;
	if (!any_open(w))
		finish(w, str_n("", 0), w->failure);
}

static bool worth_another(int rcode)
{
	return rcode == DNS_SERVFAIL || rcode == DNS_REFUSED || rcode == DNS_NOTIMP || rcode == DNS_FORMERR;
}

/* The resolvers asked before this one that stayed silent: the next query asks them last. */
static void blame_the_silent(struct attempt *a)
{
	int64_t now = clock_boottime();
	if (a->generation == a->owner->forwarder->upstreams->generation)
		upstream_answered(a->upstream);
	for (struct attempt *b = a->owner->attempts; b < a; b++)
		if (!b->over && b->upstream != a->upstream)
			blame(b, now);
}

/* A whole message came. */
static void take_answer(struct attempt *a, unsigned char *message, size_t n)
{
	struct forward *w = a->owner;
	int rcode = dns_answer_check(str_n(message, n), &w->query, a->id);
	if (rcode < 0) {
		/* On a datagram socket somebody may be guessing: the right answer may still come. */
		if (w->tcp)
			attempt_failed(a, DNS_SERVFAIL, false);
		return;
	}
	if (worth_another(rcode)) {
		attempt_failed(a, (enum dns_rcode)rcode, false);
		return;
	}
	blame_the_silent(a);
	dns_set_id(message, w->query.id);
	finish(w, str_n(message, n), (enum dns_rcode)rcode);
}

static void on_datagram(struct attempt *a)
{
	struct forwarder *f = a->owner->forwarder;
	ssize_t n = recv(a->fd, f->answer, sizeof(f->answer), 0);
	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			attempt_failed(a, DNS_SERVFAIL, true);
		return;
	}
	take_answer(a, f->answer, (size_t)n);
}

static void on_stream(struct attempt *a, uint32_t events)
{
	if (!a->all_sent) {
		int r = attempt_send(a);
		if (r < 0 && r != -EAGAIN) {
			attempt_failed(a, DNS_SERVFAIL, true);
			return;
		}
	}
	if (!(events & (EPOLLIN | EPOLLHUP)))
		return;
	struct str have = buf_str(&a->in);
	const unsigned char *p = (const unsigned char *)have.p;
	size_t want = have.n < 2 ? 2 - have.n : 2 + (size_t)(p[0] << 8 | p[1]) - have.n;
	char *to = buf_reserve(&a->in, want);
	ssize_t n = to ? recv(a->fd, to, want, 0) : -1;
	if (n < 0 && to && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		attempt_failed(a, DNS_SERVFAIL, false);
		return;
	}
	buf_commit(&a->in, (size_t)n);
	have = buf_str(&a->in);
	p = (const unsigned char *)have.p;
	if (have.n < 2 || have.n < 2 + (size_t)(p[0] << 8 | p[1]))
		return;
	/* finish() releases the buffer: the message must not lie in it. */
	struct forwarder *f = a->owner->forwarder;
	size_t whole = have.n - 2;
	memcpy(f->answer, p + 2, whole);
	take_answer(a, f->answer, whole);
}

static void on_event(struct loop_fd *source, uint32_t events, void *arg)
{
	struct attempt *a = arg;
	if (a->owner->tcp)
		on_stream(a, events);
	else
		on_datagram(a);
}

static void complain(struct forwarder *f, int64_t now)
{
	if (f->complained && now - f->complained < 60 * NS_PER_S)
		return;
	f->complained = now;
	log_warn("no resolver answers (the first is %s)", f->upstreams->n ? f->upstreams->list[0].text : "not configured");
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct forward *w = arg;
	int64_t now = clock_boottime();
	if (now - w->started >= deadline) {
		if (!w->failure)
			complain(w->forwarder, now);
		finish(w, str_n("", 0), w->failure ? w->failure : DNS_SERVFAIL);
		return;
	}
	/* UDP may have been lost, so the same resolver is asked again after all others; TCP repeats itself. */
	if (!w->tcp || !all_asked(w))
		attempt_next(w);
	loop_timer_at(w->timer, w->n_attempts < ATTEMPTS_MAX ? MIN(now + patience, w->started + deadline) : w->started + deadline);
}

struct forward *forward_start(struct forwarder *f, const struct dns_query *q, bool tcp, forward_done_fn *done, void *arg)
{
	int64_t now = clock_boottime();
	upstreams_refresh(f->upstreams, now);
	struct forward *w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	*w = (struct forward){.forwarder = f, .done = done, .arg = arg, .started = now, .tcp = tcp, .query = *q};
	w->timer = loop_timer_new(f->loop, on_timer, w);
	if (!w->timer || !attempt_next(w) || loop_timer_in(w->timer, patience) < 0) {
		if (w->timer && !f->upstreams->n)
			complain(f, now);
		forward_cancel(w);
		return NULL;
	}
	return w;
}
