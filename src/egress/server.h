/*
 * The resolver as sandboxes see it: for each slot a UDP socket and a TCP listener inside its network namespace. One sandbox's share of the work is limited: what is over it
 * waits in the socket and, when that is full, is lost; others do not notice.
 */
#ifndef CUBICLE_EGRESS_SERVER_H
#define CUBICLE_EGRESS_SERVER_H

#include "base/str.h"
#include "egress/forward.h"
#include "io/loop.h"

struct dns_server;

/* clients_max bounds the TCP connections of all slots. NULL without memory. */
struct dns_server *dns_server_new(struct loop *l, struct forwarder *f, unsigned clients_max);
void dns_server_free(struct dns_server *s);

/* Serves a slot with these sockets (owned from here, also on failure). When it is served already, sockets of the same network namespace replace the old ones without a query
 * being lost; those of another one mean another sandbox: all that was under way is dropped. 0 or -errno. */
int dns_server_add(struct dns_server *s, uint64_t slot, int udp, int tcp, bool allow);
/* allow false: every query is REFUSED, the ones under way too. `sandbox` (may be empty) is for the logs. An unknown slot is no error: it may just have been stopped. */
void dns_server_policy(struct dns_server *s, uint64_t slot, bool allow, struct str sandbox);
void dns_server_remove(struct dns_server *s, uint64_t slot);
/* Whoever gave the slots is gone. They are served on, so that names work while it starts again; those that were not given once more by the time of reap are removed. */
void dns_server_orphan(struct dns_server *s);
void dns_server_reap(struct dns_server *s);

#endif
