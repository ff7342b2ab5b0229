/* What server.c (slots, datagrams) and client.c (TCP connections) share. */
#ifndef CUBICLE_EGRESS_SERVER_IMPL_H
#define CUBICLE_EGRESS_SERVER_IMPL_H

#include "base/map.h"
#include "egress/server.h"

#include <netinet/in.h>

struct dns_slot;
struct client;

/* A query under way. */
struct ask {
	struct dns_slot *slot;
	struct client *client; /* NULL: it came as a datagram from `from` */
	struct sockaddr_in from;
	struct forward *forward;
	struct ask *prev, *next; /* in slot->asks */
	struct dns_query query;
};

struct dns_slot {
	struct dns_server *server;
	uint64_t number;
	int udp, tcp;
	struct loop_fd *udp_source, *tcp_source;
	struct loop_timer *timer; /* resumes reading */
	struct ask *asks;
	struct client *clients;
	unsigned n_asks, n_clients;
	int64_t paid_until; /* CLOCK_BOOTTIME ns: how far the queries taken so far reach at the rate allowed */
	bool allow, accept_paused, orphan;
	char sandbox[33];
};

struct dns_server {
	struct loop *loop;
	struct forwarder *forwarder;
	struct map slots; /* key: uint64_t number */
	unsigned n_clients, clients_max;
};

/* server.c */
bool slot_may_take(const struct dns_slot *s, int64_t now);
/* Begins or ends reading, as the limits say. */
void slot_update(struct dns_slot *s);
/* One message from a client (NULL: a datagram from *from). Answers what can be answered at once. -EBADMSG: it was no query. */
int slot_take(struct dns_slot *s, struct client *c, const struct sockaddr_in *from, struct str message);
void ask_drop(struct ask *a);

/* client.c */
void client_accept(struct dns_slot *s, int fd);
void client_free(struct client *c);
/* Queues an answer. client_settle() sends it. */
void client_answer(struct client *c, struct str message);
/* Takes what was read and may be taken now, sends what waits, and frees the client when it is over. */
void client_settle(struct client *c);
struct client *client_next(const struct client *c);
/* A query of this client is over. */
void client_ask_ended(struct client *c);

#endif
