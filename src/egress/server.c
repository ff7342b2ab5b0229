#include "egress/server_impl.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

#include <stdio.h>
#include <sys/socket.h>

enum {
	ASKS_PER_SLOT = 128, /* queries under way */
	DATAGRAMS_PER_TURN = 32,
};

/* 500 queries a second, 500 at once. */
static const int64_t price = NS_PER_S / 500, credit = NS_PER_S, accept_pause = 100 * NS_PER_MS;

bool slot_may_take(const struct dns_slot *s, int64_t now)
{
	return s->n_asks < ASKS_PER_SLOT && s->paid_until - now < credit;
}

static void pay(struct dns_slot *s, int64_t now)
{
	s->paid_until = MAX(s->paid_until, now) + price;
}

void slot_update(struct dns_slot *s)
{
	int64_t now = clock_boottime();
	bool take = slot_may_take(s, now);
	loop_fd_set(s->udp_source, take ? EPOLLIN : 0);
	loop_fd_set(s->tcp_source, s->accept_paused ? 0 : EPOLLIN);
	if (s->accept_paused)
		loop_timer_at(s->timer, now + accept_pause);
	else if (!take && s->n_asks < ASKS_PER_SLOT)
		loop_timer_at(s->timer, s->paid_until - credit + price);
}

static void resume_clients(struct dns_slot *s)
{
	for (struct client *c = s->clients, *next; c; c = next) {
		next = client_next(c);
		client_settle(c);
	}
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct dns_slot *s = arg;
	s->accept_paused = false;
	resume_clients(s);
	slot_update(s);
}

/* Answers */

static void answer(struct dns_slot *s, struct client *c, const struct sockaddr_in *to, struct str message)
{
	if (c) {
		client_answer(c, message);
		return;
	}
	/* The sandbox's receive buffer may be full, or the socket gone: a datagram may be lost. */
	ssize_t r = sendto(s->udp, message.p, message.n, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)to, sizeof(*to));
	(void)r;
}

static void answer_without_records(struct dns_slot *s, struct client *c, const struct sockaddr_in *to, const struct dns_query *q, enum dns_rcode rcode,
	bool truncated)
{
	unsigned char reply[DNS_HEADER + DNS_QUESTION_MAX];
	answer(s, c, to, str_n(reply, dns_reply(q, rcode, truncated, reply)));
}

static void ask_unlink(struct ask *a)
{
	struct dns_slot *s = a->slot;
	*(a->prev ? &a->prev->next : &s->asks) = a->next;
	if (a->next)
		a->next->prev = a->prev;
	s->n_asks--;
	if (a->client)
		client_ask_ended(a->client);
}

void ask_drop(struct ask *a)
{
	forward_cancel(a->forward);
	ask_unlink(a);
	free(a);
}

static void on_answer(struct str message, enum dns_rcode rcode, void *arg)
{
	struct ask *a = arg;
	struct dns_slot *s = a->slot;
	struct client *c = a->client;
	if (!message.n)
		answer_without_records(s, c, &a->from, &a->query, rcode, false);
	else if (!c && message.n > a->query.udp_size)
		answer_without_records(s, c, &a->from, &a->query, rcode, true);
	else
		answer(s, c, &a->from, message);
	ask_unlink(a);
	free(a);
	if (c)
		client_settle(c);
	if (s->n_asks == ASKS_PER_SLOT - 1)
		resume_clients(s);
	slot_update(s);
}

/* Queries */

/* The client's resolver asks again after some seconds while the first query is still under way. */
static bool asked_already(const struct dns_slot *s, const struct sockaddr_in *from, const struct dns_query *q)
{
	for (const struct ask *a = s->asks; a; a = a->next)
		if (!a->client && a->query.id == q->id && a->from.sin_port == from->sin_port && a->from.sin_addr.s_addr == from->sin_addr.s_addr &&
			a->query.question_n == q->question_n && !memcmp(a->query.question, q->question, q->question_n))
			return true;
	return false;
}

static bool ask(struct dns_slot *s, struct client *c, const struct sockaddr_in *from, const struct dns_query *q)
{
	struct ask *a = calloc(1, sizeof(*a));
	if (!a)
		return false;
	*a = (struct ask){.slot = s, .client = c, .query = *q};
	if (from)
		a->from = *from;
	a->forward = forward_start(s->server->forwarder, q, c != NULL, on_answer, a);
	if (!a->forward) {
		free(a);
		return false;
	}
	a->next = s->asks;
	if (a->next)
		a->next->prev = a;
	s->asks = a;
	s->n_asks++;
	return true;
}

static void log_query(const struct dns_slot *s, const struct dns_query *q, int rcode)
{
	char name[DNS_TEXT_MAX];
	struct log_ids ids = {.sandbox = str_of(s->sandbox)};
	log_write(LOG_DEBUG, &ids, "slot %llu asks for %s type %u: %s", (unsigned long long)s->number, dns_name_text(q, name), q->type,
		rcode ? "refused" : "forwarded");
}

int slot_take(struct dns_slot *s, struct client *c, const struct sockaddr_in *from, struct str message)
{
	struct dns_query q;
	pay(s, clock_boottime());
	int r = dns_query_parse(message, &q);
	if (r < 0)
		return r;
	if (r == DNS_NOERROR && !s->allow)
		r = DNS_REFUSED;
	log_query(s, &q, r);
	if (r == DNS_NOERROR && !c && asked_already(s, from, &q))
		return 1;
	if (r == DNS_NOERROR && ask(s, c, from, &q))
		return 0;
	answer_without_records(s, c, from, &q, r == DNS_NOERROR ? DNS_SERVFAIL : (enum dns_rcode)r, false);
	return 1;
}

/* One datagram off the socket; false when there is none. */
static bool take_datagram(struct dns_slot *s, int fd)
{
	char message[DNS_QUERY_MAX + 1];
	struct sockaddr_in from;
	socklen_t from_n = sizeof(from);
	ssize_t n = recvfrom(fd, message, sizeof(message), MSG_DONTWAIT, (struct sockaddr *)&from, &from_n);
	if (n < 0)
		return false;
	if (n <= DNS_QUERY_MAX && from_n == sizeof(from) && from.sin_family == AF_INET)
		slot_take(s, NULL, &from, str_n(message, (size_t)n));
	else
		pay(s, clock_boottime());
	return true;
}

static void on_datagram(struct loop_fd *w, uint32_t events, void *arg)
{
	struct dns_slot *s = arg;
	for (int i = 0; i < DATAGRAMS_PER_TURN && slot_may_take(s, clock_boottime()) && take_datagram(s, s->udp); i++)
		;
	slot_update(s);
}

static void on_connection(struct loop_fd *w, uint32_t events, void *arg)
{
	struct dns_slot *s = arg;
	int fd = accept4(s->tcp, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0) {
		client_accept(s, fd);
		return;
	}
	if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
		return;
	/* Out of descriptors or memory: the connection stays in the queue and would wake us at once again. */
	s->accept_paused = true;
	slot_update(s);
}

/* Slots */

static void slot_free(struct dns_slot *s)
{
	while (s->clients)
		client_free(s->clients);
	while (s->asks)
		ask_drop(s->asks);
	loop_fd_del(s->udp_source);
	loop_fd_del(s->tcp_source);
	loop_timer_free(s->timer);
	if (s->udp >= 0)
		close(s->udp);
	if (s->tcp >= 0)
		close(s->tcp);
	free(s);
}

struct dns_server *dns_server_new(struct loop *l, struct forwarder *f, unsigned clients_max)
{
	struct dns_server *s = calloc(1, sizeof(*s));
	if (s)
		*s = (struct dns_server){.loop = l, .forwarder = f, .clients_max = clients_max};
	return s;
}

void dns_server_free(struct dns_server *s)
{
	if (!s)
		return;
	map_foreach(&s->slots, m)
		slot_free(m->value);
	map_done(&s->slots);
	free(s);
}

static int slot_new(struct dns_server *server, uint64_t number, struct dns_slot **ret)
{
	struct dns_slot *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	*s = (struct dns_slot){.server = server, .number = number, .udp = -1, .tcp = -1, .timer = loop_timer_new(server->loop, on_timer, s)};
	int r = s->timer ? map_put(&server->slots, MAP_KEY(number), s, NULL) : -ENOMEM;
	if (r < 0)
		slot_free(s);
	else
		*ret = s;
	return r;
}

/* 0 on kernels that do not tell (before 5.14): then no two are the same. */
static uint64_t namespace_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t n = sizeof(cookie);
	return fd < 0 || getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &n) < 0 ? 0 : cookie;
}

static uint64_t socket_cookie(int fd)
{
	uint64_t cookie = 0;
	socklen_t n = sizeof(cookie);
	return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) < 0 ? 0 : cookie;
}

/* The kernel shares the queries out among sockets of the same address. A connected one gets only its peer's, of which there are none: what comes from now on goes
 * to the other socket, and nothing is lost with this one. The same socket may be given again. */
static void leave_group(int old, int with)
{
	struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	if (old >= 0 && socket_cookie(old) != socket_cookie(with) && connect(old, (struct sockaddr *)&nobody, sizeof(nobody)) < 0)
		log_warn("dns: an old socket stays beside the new one: %s", strerror(errno));
}

/* Puts new sockets in the place of the old ones, then takes what had come in there. */
static int slot_bind(struct dns_slot *s, int udp, int tcp)
{
	struct loop_fd *udp_source = loop_fd_add(s->server->loop, udp, EPOLLIN, on_datagram, s);
	struct loop_fd *tcp_source = loop_fd_add(s->server->loop, tcp, EPOLLIN, on_connection, s);
	if (!udp_source || !tcp_source) {
		loop_fd_del(udp_source);
		loop_fd_del(tcp_source);
		return -ENOMEM;
	}
	cleanup_fd int old_udp = s->udp, old_tcp = s->tcp;
	loop_fd_del(s->udp_source);
	loop_fd_del(s->tcp_source);
	s->udp = udp;
	s->tcp = tcp;
	s->udp_source = udp_source;
	s->tcp_source = tcp_source;
	leave_group(old_udp, udp);
	for (int i = 0; i < ASKS_PER_SLOT && old_udp >= 0 && take_datagram(s, old_udp); i++)
		;
	for (int fd; old_tcp >= 0 && (fd = accept4(old_tcp, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;)
		client_accept(s, fd);
	slot_update(s);
	return 0;
}

int dns_server_add(struct dns_server *server, uint64_t number, int udp, int tcp, bool allow)
{
	cleanup_fd int mine_udp = udp, mine_tcp = tcp;
	struct dns_slot *s = map_get(&server->slots, MAP_KEY(number));
	uint64_t space = namespace_of(udp);
	if (s && (!space || space != namespace_of(s->udp))) {
		dns_server_remove(server, number);
		s = NULL;
	}
	int r = fd_set_nonblock(tcp, true);
	if (r == 0 && !s)
		r = slot_new(server, number, &s);
	if (r < 0)
		return r;
	s->allow = allow;
	s->orphan = false;
	r = slot_bind(s, udp, tcp);
	if (r < 0)
		return r;
	steal_fd(&mine_udp);
	steal_fd(&mine_tcp);
	return 0;
}

void dns_server_policy(struct dns_server *server, uint64_t slot, bool allow, struct str sandbox)
{
	struct dns_slot *s = map_get(&server->slots, MAP_KEY(slot));
	if (!s)
		return;
	s->allow = allow;
	snprintf(s->sandbox, sizeof(s->sandbox), "%.*s", STR_FMT(sandbox));
	while (!allow && s->asks) {
		struct ask *a = s->asks;
		struct client *c = a->client;
		answer_without_records(s, c, &a->from, &a->query, DNS_REFUSED, false);
		ask_drop(a);
		if (c)
			client_settle(c);
	}
	slot_update(s);
}

void dns_server_remove(struct dns_server *server, uint64_t slot)
{
	struct dns_slot *s = map_del(&server->slots, MAP_KEY(slot));
	if (s)
		slot_free(s);
}

void dns_server_orphan(struct dns_server *server)
{
	map_foreach(&server->slots, m)
		((struct dns_slot *)m->value)->orphan = true;
}

static struct dns_slot *next_orphan(const struct dns_server *server)
{
	map_foreach(&server->slots, m)
		if (((struct dns_slot *)m->value)->orphan)
			return m->value;
	return NULL;
}

void dns_server_reap(struct dns_server *server)
{
	for (struct dns_slot *s; (s = next_orphan(server));)
		dns_server_remove(server, s->number);
}
