/*
 * Requests to sandboxes that are paused and may be woken by traffic wait here (e2b.md A.8). All that wait for one sandbox share one resume; each is told of its
 * end. Who leaves stops nothing: a resume that was asked for goes on. What it waits with (bodies, time) is the waiter's affair.
 */
#ifndef CUBICLE_INGRESS_GATE_H
#define CUBICLE_INGRESS_GATE_H

#include "api/quota.h"

enum { GATE_WAITERS_MAX = 4096 }; /* of all sandboxes; each holds a client's connection and what it sent so far, which is not read on */

struct gates;
struct gate;

/* Part of who waits; zeroed before its first use. */
struct gate_waiter {
	struct gate *gate; /* NULL = waits for nothing */
	struct gate_waiter *prev, *next;
	/* The resume ended; *w may be used again, or freed. err NULL: the index knows the sandbox as it is now. Else status, message and retry_after are for the client. */
	void (*done)(const struct error *err, void *arg);
	void *arg;
};

/* Nothing is owned. `quota`, of the team that a resume counts for, may be NULL. NULL without memory. */
struct gates *gates_new(struct node_client *node, struct quota *quota);
/* Nobody may wait any more. Takes NULL. */
void gates_free(struct gates *g);

/* Resumes the sandbox on behalf of that request (its id, for the logs), or joins the resume under way: 0, and done() is called once, later, from the loop. Else
 * -errno with *err for the client. */
int gate_wait(struct gates *g, const struct index_sandbox *s, struct str request, struct gate_waiter *w, struct error *err);
/* done() will not be called. For one that waits for nothing too. */
void gate_leave(struct gate_waiter *w);
/* How many wait for this sandbox. */
unsigned gate_count(const struct gates *g, struct str sandbox);

#endif
