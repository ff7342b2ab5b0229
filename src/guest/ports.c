#include "guest/ports.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/inner_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
	MAX_CONNECTIONS = 1024,
	TIMEOUT_MS = 2000,
	CANDIDATES = 3, /* addresses to try */
	/* Bytes at a time: fewer when much is held for those that read slowly. */
	PIECE = 65536,
	SMALL_PIECE = 4096,
	HELD_MUCH = 8 << 20,
};

/* One direction: what was read and could not be written yet. */
struct flow {
	char *bytes; /* NULL = nothing waits */
	size_t at, n;
	bool ended;  /* the source has no more */
	bool passed; /* ... and the other side knows */
};

struct end {
	int fd;
	struct loop_fd *watch;
	struct flow out; /* what is to be written to it */
};

struct connection {
	struct connection *prev, *next;
	struct ports *ports;
	struct end outer, inner;
	struct loop_timer *timer; /* until it is connected */
	uint8_t asked[2];
	size_t n_asked;
	uint16_t port;
	unsigned candidate;
	bool connected;
};

struct ports {
	struct loop *loop;
	int listen_fd;
	uint32_t own_address;
	struct loop_fd *watch;
	struct connection *connections;
	size_t n;
	size_t held; /* bytes of all flows */
	char piece[PIECE];
};

static void end_done(struct ports *p, struct end *e)
{
	loop_fd_del(e->watch);
	if (e->fd >= 0)
		close(e->fd);
	p->held -= e->out.n;
	free(e->out.bytes);
}

static void connection_free(struct connection *c)
{
	struct ports *p = c->ports;
	*(c->prev ? &c->prev->next : &p->connections) = c->next;
	if (c->next)
		c->next->prev = c->prev;
	p->n--;
	end_done(p, &c->outer);
	end_done(p, &c->inner);
	loop_timer_free(c->timer);
	free(c);
}

/* The program inside learns that this was no end but a loss. */
static void break_off(struct connection *c)
{
	struct linger now = {.l_onoff = 1};
	if (c->inner.fd >= 0)
		setsockopt(c->inner.fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	connection_free(c);
}

static void refuse(struct connection *c, int error)
{
	uint8_t answer = (uint8_t)(error > 0 && error < 256 ? error : ECONNREFUSED);
	ssize_t n = send(c->outer.fd, &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)n; /* who does not take one byte does not want to know */
	connection_free(c);
}

static bool is_later(int error)
{
	return error == EAGAIN || error == EINTR;
}

/* Writes what waits for this end: 0 or -errno. */
static int drain(struct ports *p, struct end *to)
{
	struct flow *f = &to->out;
	while (f->n) {
		ssize_t n = send(to->fd, f->bytes + f->at, f->n, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0)
			return is_later(errno) ? 0 : -errno;
		f->at += (size_t)n;
		f->n -= (size_t)n;
		p->held -= (size_t)n;
	}
	free(steal_pointer(&f->bytes));
	if (f->ended && !f->passed) {
		f->passed = true;
		/* One that is gone will tell by itself. */
		shutdown(to->fd, SHUT_WR);
	}
	return 0;
}

static int keep(struct ports *p, struct flow *f, const char *bytes, size_t n)
{
	f->bytes = malloc(n);
	if (!f->bytes)
		return -ENOMEM;
	memcpy(f->bytes, bytes, n);
	f->at = 0;
	f->n = n;
	p->held += n;
	return 0;
}

/* One piece, when nothing waits: 0 or -errno. The event comes again while there is more. */
static int copy(struct ports *p, struct end *from, struct end *to)
{
	struct flow *f = &to->out;
	if (f->n || f->ended)
		return 0;
	ssize_t n = recv(from->fd, p->piece, p->held < HELD_MUCH ? PIECE : SMALL_PIECE, MSG_DONTWAIT);
	if (n < 0)
		return is_later(errno) ? 0 : -errno;
	if (n == 0) {
		f->ended = true;
		return drain(p, to);
	}
	ssize_t sent = send(to->fd, p->piece, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && !is_later(errno))
		return -errno;
	sent = MAX(sent, 0);
	return sent < n ? keep(p, f, p->piece + sent, (size_t)(n - sent)) : 0;
}

/* What is to be written to it cannot be any more: as if all had been. What it has said before is still passed on. */
static void give_up_writing(struct ports *p, struct end *e)
{
	p->held -= e->out.n;
	free(e->out.bytes);
	e->out = (struct flow){.ended = true, .passed = true};
}

/* The events an end is watched for. One that can neither be read nor written now is watched for its loss, which epoll tells with any interest; not when all was written to it: that both of its
 * directions are over is told like a loss. */
static uint32_t interest(const struct end *own, const struct end *other)
{
	uint32_t events = own->out.n ? EPOLLOUT : 0;
	if (!other->out.n && !other->out.ended)
		events |= EPOLLIN;
	return events ? events : own->out.passed ? 0 : EPOLLPRI;
}

static void watch_both(struct connection *c)
{
	if (loop_fd_set(c->outer.watch, interest(&c->outer, &c->inner)) < 0 || loop_fd_set(c->inner.watch, interest(&c->inner, &c->outer)) < 0)
		break_off(c);
}

static void on_event(struct connection *c, struct end *own, struct end *other, uint32_t events)
{
	struct ports *p = c->ports;
	int r = own->out.n ? drain(p, own) : 0;
	if (r == 0)
		r = copy(p, own, other);
	if (r == 0 && (events & (EPOLLHUP | EPOLLERR)) && !own->out.passed)
		give_up_writing(p, own);
	if (r < 0)
		break_off(c);
	else if (c->outer.out.passed && c->inner.out.passed)
		connection_free(c);
	else
		watch_both(c);
}

static void on_outer(struct loop_fd *w, uint32_t events, void *arg)
{
	struct connection *c = arg;
	on_event(c, &c->outer, &c->inner, events);
}

static void on_inner(struct loop_fd *w, uint32_t events, void *arg)
{
	struct connection *c = arg;
	on_event(c, &c->inner, &c->outer, events);
}

static int begin_connect(struct connection *c)
{
	const int one = 1;
	int r = inner_port_begin(c->candidate, c->ports->own_address, c->port, &c->inner.fd);
	/* What comes in pieces goes on in pieces, at once. */
	if (r >= 0)
		setsockopt(c->inner.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return r;
}

static void on_connecting(struct loop_fd *w, uint32_t events, void *arg);

static void begin_copying(struct connection *c)
{
	struct ports *p = c->ports;
	const uint8_t good = 0;
	c->connected = true;
	loop_timer_free(steal_pointer(&c->timer));
	loop_fd_del(c->inner.watch);
	loop_fd_del(c->outer.watch);
	c->outer.watch = loop_fd_add(p->loop, c->outer.fd, EPOLLIN, on_outer, c);
	c->inner.watch = loop_fd_add(p->loop, c->inner.fd, EPOLLIN, on_inner, c);
	if (!c->outer.watch || !c->inner.watch || send(c->outer.fd, &good, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
		break_off(c);
}

/* From c->candidate on. Every error but "not yet" leads to the next one. */
static void try_addresses(struct connection *c)
{
	for (; c->candidate < CANDIDATES; c->candidate++) {
		if (c->candidate == 2 && !c->ports->own_address)
			break;
		int r = begin_connect(c);
		if (r > 0) {
			begin_copying(c);
			return;
		}
		if (r == 0) {
			c->inner.watch = loop_fd_add(c->ports->loop, c->inner.fd, EPOLLOUT, on_connecting, c);
			if (!c->inner.watch)
				refuse(c, ENOMEM);
			return;
		}
		if (c->inner.fd >= 0)
			close(steal_fd(&c->inner.fd));
	}
	refuse(c, ECONNREFUSED);
}

static void on_connecting(struct loop_fd *w, uint32_t events, void *arg)
{
	struct connection *c = arg;
	int r = inner_port_state(c->inner.fd);
	if (r == 0)
		return;
	if (r > 0) {
		begin_copying(c);
		return;
	}
	loop_fd_del(steal_pointer(&c->inner.watch));
	close(steal_fd(&c->inner.fd));
	c->candidate++;
	try_addresses(c);
}

static void on_asked(struct loop_fd *w, uint32_t events, void *arg)
{
	struct connection *c = arg;
	ssize_t n = recv(c->outer.fd, c->asked + c->n_asked, sizeof(c->asked) - c->n_asked, MSG_DONTWAIT);
	if (n < 0 && is_later(errno))
		return;
	if (n <= 0) {
		connection_free(c);
		return;
	}
	c->n_asked += (size_t)n;
	if (c->n_asked < sizeof(c->asked))
		return;
	c->port = (uint16_t)(c->asked[0] | c->asked[1] << 8);
	/* Until it is connected only its end is of interest. */
	if (loop_fd_set(w, EPOLLPRI) < 0)
		refuse(c, ENOMEM);
	else if (!c->port)
		refuse(c, ECONNREFUSED);
	else
		try_addresses(c);
}

static void on_outer_before(struct loop_fd *w, uint32_t events, void *arg)
{
	struct connection *c = arg;
	if (c->n_asked < sizeof(c->asked))
		on_asked(w, events, arg);
	else
		connection_free(c);
}

static void on_timeout(struct loop_timer *t, void *arg)
{
	refuse(arg, ETIMEDOUT);
}

static void begin(struct ports *p, int fd)
{
	struct connection *c = p->n < MAX_CONNECTIONS ? calloc(1, sizeof(*c)) : NULL;
	if (!c) {
		close(fd);
		return;
	}
	c->ports = p;
	c->outer.fd = fd;
	c->inner.fd = -1;
	c->next = p->connections;
	if (c->next)
		c->next->prev = c;
	p->connections = c;
	p->n++;
	c->timer = loop_timer_new(p->loop, on_timeout, c);
	c->outer.watch = loop_fd_add(p->loop, fd, EPOLLIN, on_outer_before, c);
	if (!c->timer || !c->outer.watch || loop_timer_in(c->timer, TIMEOUT_MS * NS_PER_MS) < 0)
		connection_free(c);
}

static void on_connection(struct loop_fd *w, uint32_t events, void *arg)
{
	struct ports *p = arg;
	int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		begin(p, fd);
}

struct ports *ports_new(struct loop *l, int listen_fd, uint32_t own_address)
{
	struct ports *p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct ports){.loop = l, .listen_fd = listen_fd, .own_address = own_address};
	int r = fd_set_nonblock(listen_fd, true);
	p->watch = r < 0 ? NULL : loop_fd_add(l, listen_fd, EPOLLIN, on_connection, p);
	if (p->watch)
		return p;
	free(p);
	return NULL;
}

void ports_free(struct ports *p)
{
	if (!p)
		return;
	while (p->connections)
		connection_free(p->connections);
	loop_fd_del(p->watch);
	free(p);
}
