#include "ingress/upstream.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "io/http_server.h"
#include "io/sendq.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Shorter than what servers keep an idle connection for (Node and uvicorn: 5 s), so that a request rarely meets a closing one; envd keeps 620 s. */
#define IDLE_TIME (4 * NS_PER_S)
#define IDLE_TIME_ENVD (60 * NS_PER_S)
enum { ENVD_PORT = 49983, DIRECT_SIZE = 16 * 1024, READ_AHEAD = 64 * 1024 };

static void set_interest(struct upstream *u)
{
	uint32_t events = 0;
	if (u->is_idle && !u->draining)
		events = EPOLLIN | EPOLLRDHUP;
	else if (u->reading)
		events = EPOLLIN;
	if (u->blocked && !u->write_failed)
		events |= EPOLLOUT;
	/* ENOMEM only: the exchange then waits until its client gives up. */
	loop_fd_set(u->w, events);
}

void upstream_close(struct upstream *u, bool reset)
{
	if (!u)
		return;
	struct target *t = u->target;
	if (u->is_idle) {
		if (u->prev)
			u->prev->next = u->next;
		else
			t->idle = u->next;
		if (u->next)
			u->next->prev = u->prev;
		t->n_idle--;
		t->pool->n_idle--;
	}
	for (struct upstream **at = &t->pool->flush; u->flushing && *at; at = &(*at)->next_flush)
		if (*at == u) {
			*at = u->next_flush;
			break;
		}
	loop_fd_del(u->w);
	if (reset)
		setsockopt(u->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
	close(u->fd);
	buf_done(&u->in);
	buf_done(&u->out);
	free(u);
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct upstream *u = arg;
	if (u->is_idle) {
		struct target *t = u->target;
		u->blocked = false;
		if (u->draining)
			upstream_flush(u);
		if (u->draining && u->blocked && !(events & (EPOLLERR | EPOLLHUP)))
			return;
		/* Whatever it is, an idle connection that stirs is of no more use. */
		upstream_close(u, false);
		target_settle(t);
		return;
	}
	if (events & EPOLLOUT) {
		u->blocked = false;
		upstream_flush(u);
		if (u->throttled && buf_len(&u->out) < HTTP_LOW_WATER) {
			u->throttled = false;
			u->ops->drained(u, u->arg);
			return; /* it may be closed now; what else there is comes again */
		}
		set_interest(u);
	}
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		if (u->reading)
			u->ops->readable(u, u->arg);
		else
			loop_fd_set(u->w, 0); /* an end that nobody reads yet would spin; reading on brings it back */
	}
}

struct upstream *target_add(struct target *t, int fd, uint16_t port, const struct upstream_ops *ops, void *arg)
{
	const int one = 1, idle = 60;
	struct upstream *u = calloc(1, sizeof(*u));
	if (u) {
		*u = (struct upstream){.target = t, .ops = ops, .arg = arg, .fd = fd, .port = port, .reading = true};
		u->w = loop_fd_add(t->pool->loop, fd, EPOLLIN, on_event, u);
	}
	if (!u || !u->w) {
		free(u);
		close(fd);
		return NULL;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	return u;
}

struct upstream *target_take(struct target *t, uint16_t port, const struct upstream_ops *ops, void *arg)
{
	for (struct upstream *u = t->idle, *next; u; u = next) {
		next = u->next;
		if (u->port != port || u->draining)
			continue;
		char byte;
		if (recv(u->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) {
			upstream_close(u, false);
			continue;
		}
		if (u->prev)
			u->prev->next = u->next;
		else
			t->idle = u->next;
		if (u->next)
			u->next->prev = u->prev;
		u->prev = u->next = NULL;
		t->n_idle--;
		t->pool->n_idle--;
		u->is_idle = false;
		u->reused = u->reading = true;
		u->ops = ops;
		u->arg = arg;
		set_interest(u);
		return u;
	}
	return NULL;
}

/* Into the list of those without an exchange. */
static void shelve(struct upstream *u)
{
	struct target *t = u->target;
	buf_done(&u->in);
	u->is_idle = true;
	u->reading = u->throttled = false;
	u->ops = NULL;
	u->arg = NULL;
	u->idle_since = clock_boottime();
	u->next = t->idle;
	if (t->idle)
		t->idle->prev = u;
	t->idle = u;
	t->n_idle++;
	if (t->pool->n_idle++ == 0)
		loop_timer_in(t->pool->timer, NS_PER_S);
	set_interest(u);
}

void upstream_park(struct upstream *u)
{
	struct target *t = u->target;
	if (buf_len(&u->in) || buf_len(&u->out) || u->write_failed || u->shut || t->n_idle >= UPSTREAM_IDLE_PER_TARGET ||
		t->pool->n_idle >= UPSTREAM_IDLE_MAX) {
		upstream_close(u, false);
		return;
	}
	shelve(u);
}

void upstream_drain(struct upstream *u)
{
	if (buf_len(&u->out) == 0 || u->write_failed) {
		upstream_close(u, false);
		return;
	}
	u->draining = true;
	shelve(u);
}

int upstream_read(struct upstream *u)
{
	char *to = buf_reserve(&u->in, READ_AHEAD);
	if (!to)
		return -ENOMEM;
	ssize_t r;
	do {
		r = recv(u->fd, to, READ_AHEAD, MSG_DONTWAIT);
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return errno == EAGAIN ? 0 : -errno;
	if (r == 0)
		return -EPIPE;
	buf_commit(&u->in, (size_t)r);
	return 1;
}

void upstream_set_reading(struct upstream *u, bool on)
{
	u->reading = on;
	set_interest(u);
}

static void transmit(struct upstream *u, const struct iovec *parts, int n)
{
	if (u->write_failed)
		return;
	if (sendq_send(u->fd, &u->out, parts, n) < 0) {
		u->write_failed = true;
		buf_done(&u->out);
	}
	u->blocked = buf_len(&u->out) > 0;
	if (!u->blocked && !u->write_failed && u->shut_wanted && !u->shut) {
		shutdown(u->fd, SHUT_WR);
		u->shut = true;
	}
	set_interest(u);
}

static void on_deferred(void *arg)
{
	struct pool *p = arg;
	p->flush_deferred = false;
	while (p->flush) {
		struct upstream *u = p->flush;
		p->flush = u->next_flush;
		u->flushing = false;
		upstream_flush(u);
	}
	if (p->dead)
		free(p);
}

static void flush_later(struct upstream *u)
{
	struct pool *p = u->target->pool;
	if (u->flushing || u->blocked)
		return;
	if (!p->flush_deferred && loop_defer(p->loop, on_deferred, p) < 0) {
		upstream_flush(u);
		return;
	}
	p->flush_deferred = true;
	u->flushing = true;
	u->next_flush = p->flush;
	p->flush = u;
}

size_t upstream_send(struct upstream *u, struct str a, struct str b, struct str c)
{
	const struct str all[] = {a, b, c};
	if (u->write_failed)
		return 0;
	if (!u->blocked && buf_len(&u->out) + a.n + b.n + c.n >= DIRECT_SIZE) {
		struct iovec parts[ARRAY_SIZE(all)];
		for (size_t i = 0; i < ARRAY_SIZE(all); i++)
			parts[i] = (struct iovec){(void *)(uintptr_t)all[i].p, all[i].n};
		transmit(u, parts, ARRAY_SIZE(all));
	} else {
		for (size_t i = 0; i < ARRAY_SIZE(all); i++)
			buf_add_str(&u->out, all[i]);
		flush_later(u);
	}
	if (u->out.failed) {
		u->write_failed = true;
		buf_done(&u->out);
	}
	size_t queued = buf_len(&u->out);
	if (queued > HTTP_HIGH_WATER)
		u->throttled = true;
	return queued;
}

void upstream_flush(struct upstream *u)
{
	if (!u->blocked)
		transmit(u, NULL, 0);
}

void upstream_shutdown(struct upstream *u)
{
	u->shut_wanted = true;
	upstream_flush(u);
}

/* Targets */

void target_close_idle(struct target *t)
{
	while (t->idle)
		upstream_close(t->idle, false);
}

void target_settle(struct target *t)
{
	if (t->idle || t->exchanges)
		return;
	map_del(&t->pool->targets, str_of(t->key));
	free(t->key);
	free(t);
}

static char *make_key(struct str id, struct str generation)
{
	cleanup_buf struct buf b = BUF_INIT;
	buf_add_str(&b, id);
	buf_add_c(&b, ":");
	buf_add_str(&b, generation);
	return str_dup(buf_str(&b));
}

struct target *pool_find(struct pool *p, struct str id, struct str generation)
{
	cleanup_free char *key = make_key(id, generation);
	return key ? map_get(&p->targets, str_of(key)) : NULL;
}

bool target_is(const struct target *t, struct str id, struct str generation)
{
	cleanup_free char *key = make_key(id, generation);
	return key && strcmp(key, t->key) == 0;
}

struct target *pool_target(struct pool *p, struct str id, struct str generation)
{
	cleanup_free char *key = make_key(id, generation);
	if (!key)
		return NULL;
	struct target *t = map_get(&p->targets, str_of(key));
	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t || map_put(&p->targets, str_of(key), t, NULL) < 0) {
		free(t);
		return NULL;
	}
	*t = (struct target){.pool = p, .key = steal_pointer(&key)};
	return t;
}

/* The oldest connections stand at the end of each list; with at most UPSTREAM_IDLE_MAX in all a walk over everything is cheap. */
static void on_timer(struct loop_timer *timer, void *arg)
{
	struct pool *p = arg;
	int64_t now = clock_boottime();
	for (size_t i = 0; i < p->targets.cap; i++) {
		struct target *t = p->targets.slots[i].key ? p->targets.slots[i].value : NULL;
		for (struct upstream *u = t ? t->idle : NULL, *next; u; u = next) {
			next = u->next;
			if (now - u->idle_since > (u->port == ENVD_PORT ? IDLE_TIME_ENVD : IDLE_TIME))
				upstream_close(u, false);
		}
	}
	/* Freeing targets moves the map's entries: one at a time, from the start. */
	for (bool again = true; again;) {
		again = false;
		map_foreach(&p->targets, s) {
			struct target *t = s->value;
			if (t->idle || t->exchanges)
				continue;
			target_settle(t);
			again = true;
			break;
		}
	}
	if (p->n_idle)
		loop_timer_in(timer, NS_PER_S);
}

struct pool *pool_new(struct loop *l)
{
	struct pool *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->loop = l;
	p->timer = loop_timer_new(l, on_timer, p);
	if (!p->timer) {
		free(p);
		return NULL;
	}
	return p;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	while (p->targets.count)
		map_foreach(&p->targets, s) {
			struct target *t = s->value;
			target_close_idle(t);
			target_settle(t);
			break;
		}
	map_done(&p->targets);
	loop_timer_free(p->timer);
	p->dead = true;
	if (!p->flush_deferred)
		free(p);
}
