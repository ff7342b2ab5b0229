/* TCP connections of sandboxes to the resolver (RFC 7766): length-prefixed messages, several under way, answered as they come. */
#include "egress/server_impl.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <sys/socket.h>

enum {
	CLIENTS_PER_SLOT = 16,
	ASKS_PER_CLIENT = 16,
	OUT_MAX = 512 * 1024, /* answers that a client does not take */
	READ_SIZE = 2 + DNS_QUERY_MAX,
};

/* Without a whole query, and without taking what waits for it. */
static const int64_t idle_limit = 10 * NS_PER_S;

struct client {
	struct dns_slot *slot;
	struct client *prev, *next;
	struct loop_fd *source;
	struct loop_timer *timer;
	struct buf in, out;
	unsigned asks;
	int fd;
	bool no_more; /* it has shut its side down */
	bool broken;
};

struct client *client_next(const struct client *c)
{
	return c->next;
}

void client_ask_ended(struct client *c)
{
	c->asks--;
}

void client_free(struct client *c)
{
	struct dns_slot *s = c->slot;
	for (struct ask *a = s->asks, *next; a; a = next) {
		next = a->next;
		if (a->client == c)
			ask_drop(a);
	}
	*(c->prev ? &c->prev->next : &s->clients) = c->next;
	if (c->next)
		c->next->prev = c->prev;
	s->n_clients--;
	s->server->n_clients--;
	loop_fd_del(c->source);
	loop_timer_free(c->timer);
	close(c->fd);
	buf_done(&c->in);
	buf_done(&c->out);
	free(c);
}

static void on_idle(struct loop_timer *t, void *arg)
{
	struct client *c = arg;
	if (c->asks && !buf_len(&c->out)) {
		/* It waits for us. */
		loop_timer_in(c->timer, idle_limit);
		return;
	}
	struct dns_slot *s = c->slot;
	client_free(c);
	slot_update(s);
}

void client_answer(struct client *c, struct str message)
{
	unsigned char length[2] = {(unsigned char)(message.n >> 8), (unsigned char)message.n};
	if (buf_len(&c->out) > OUT_MAX || buf_add(&c->out, length, 2) < 0 || buf_add_str(&c->out, message) < 0)
		c->broken = true;
}

static void take_messages(struct client *c)
{
	while (!c->broken && c->asks < ASKS_PER_CLIENT && slot_may_take(c->slot, clock_boottime())) {
		struct str in = buf_str(&c->in);
		const unsigned char *p = (const unsigned char *)in.p;
		size_t n = in.n < 2 ? 0 : (size_t)(p[0] << 8 | p[1]);
		if (n > DNS_QUERY_MAX) {
			c->broken = true;
			return;
		}
		if (in.n < 2 || in.n < 2 + n)
			return;
		int r = slot_take(c->slot, c, NULL, str_n(in.p + 2, n));
		if (r < 0) {
			c->broken = true;
			return;
		}
		c->asks += r == 0;
		buf_consume(&c->in, 2 + n);
		loop_timer_in(c->timer, idle_limit);
	}
}

static void send_answers(struct client *c)
{
	while (!c->broken && buf_len(&c->out)) {
		struct str out = buf_str(&c->out);
		ssize_t r = send(c->fd, out.p, out.n, MSG_NOSIGNAL);
		if (r < 0) {
			c->broken = errno != EAGAIN && errno != EINTR;
			return;
		}
		buf_consume(&c->out, (size_t)r);
		loop_timer_in(c->timer, idle_limit);
	}
}

static uint32_t wanted(const struct client *c)
{
	bool room = buf_len(&c->in) < READ_SIZE && !c->no_more && c->asks < ASKS_PER_CLIENT && slot_may_take(c->slot, clock_boottime());
	return (room ? EPOLLIN : 0u) | (buf_len(&c->out) ? EPOLLOUT : 0u);
}

void client_settle(struct client *c)
{
	take_messages(c);
	send_answers(c);
	bool over = c->no_more && !c->asks && !buf_len(&c->out) && slot_may_take(c->slot, clock_boottime());
	if (c->broken || over || loop_fd_set(c->source, wanted(c)) < 0)
		client_free(c);
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct client *c = arg;
	struct dns_slot *s = c->slot;
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		size_t room = READ_SIZE - MIN((size_t)READ_SIZE, buf_len(&c->in));
		char *to = room ? buf_reserve(&c->in, room) : NULL;
		ssize_t n = to ? recv(c->fd, to, room, 0) : 0;
		if (n > 0)
			buf_commit(&c->in, (size_t)n);
		else if (n == 0 && to)
			c->no_more = true;
		else if (!to || (errno != EAGAIN && errno != EINTR))
			c->broken = true;
	}
	client_settle(c);
	slot_update(s);
}

void client_accept(struct dns_slot *s, int fd)
{
	cleanup_fd int mine = fd;
	/* One more than its share: the sandbox sees a connection that ends, and asks again. */
	if (s->n_clients >= CLIENTS_PER_SLOT || s->server->n_clients >= s->server->clients_max)
		return;
	struct client *c = calloc(1, sizeof(*c));
	if (!c)
		return;
	*c = (struct client){.slot = s, .fd = fd, .timer = loop_timer_new(s->server->loop, on_idle, c)};
	c->source = loop_fd_add(s->server->loop, fd, EPOLLIN, on_event, c);
	if (!c->timer || !c->source || loop_timer_in(c->timer, idle_limit) < 0) {
		loop_fd_del(c->source);
		loop_timer_free(c->timer);
		free(c);
		return;
	}
	steal_fd(&mine);
	c->next = s->clients;
	if (c->next)
		c->next->prev = c;
	s->clients = c;
	s->n_clients++;
	s->server->n_clients++;
}
