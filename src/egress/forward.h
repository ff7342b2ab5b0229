/*
 * Sends queries on to the upstreams and waits for their answers. Each attempt has a socket of its own: a random port from the kernel, a random id, and
 * connected, so that only that server can answer. A second resolver is asked when the first is silent or fails; all stay open for late answers.
 */
#ifndef CUBICLE_EGRESS_FORWARD_H
#define CUBICLE_EGRESS_FORWARD_H

#include "egress/dns.h"
#include "egress/upstream.h"
#include "io/loop.h"

struct forwarder;
struct forward;

/* sockets_max bounds the descriptors held at once. `u` outlives the forwarder. NULL without memory. */
struct forwarder *forwarder_new(struct loop *l, struct upstreams *u, unsigned sockets_max);
/* No forward may be left. Takes NULL. */
void forwarder_free(struct forwarder *f);

/* The answer with the client's id; empty: nobody gave one, answer with `rcode`. The forward is gone after the call. Never called from within forward_start(). */
typedef void forward_done_fn(struct str answer, enum dns_rcode rcode, void *arg);
/* Asks the upstreams over UDP or TCP. q is copied. NULL: it cannot even be tried (no resolver, no route, no descriptors, no memory): answer SERVFAIL. */
struct forward *forward_start(struct forwarder *f, const struct dns_query *q, bool tcp, forward_done_fn *done, void *arg);
void forward_cancel(struct forward *w);

#endif
