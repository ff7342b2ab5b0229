/*
 * Connections into sandboxes, and what they are grouped by: a target is one generation of one sandbox. A connection belongs to one exchange or lies idle in
 * its target's pool; when the generation ends, all of them are closed at once, so that nothing of an earlier life is ever used again.
 */
#ifndef CUBICLE_INGRESS_UPSTREAM_H
#define CUBICLE_INGRESS_UPSTREAM_H

#include "base/map.h"
#include "io/http.h"
#include "io/loop.h"

struct exchange;
struct upstream;

enum { UPSTREAM_IDLE_PER_TARGET = 32, UPSTREAM_IDLE_MAX = 1024 };

struct target {
	struct pool *pool;
	char *key;                  /* id and generation */
	struct upstream *idle;      /* newest first */
	unsigned n_idle;
	struct exchange *exchanges; /* ingress.c's list */
	unsigned n_exchanges;
};

/* What the user of a connection is told, from the loop. */
struct upstream_ops {
	void (*readable)(struct upstream *u, void *arg); /* bytes, the end, or an error wait: upstream_read() tells */
	void (*drained)(struct upstream *u, void *arg);  /* the queue fell under HTTP_LOW_WATER after it was over HTTP_HIGH_WATER */
};

struct upstream {
	struct target *target;
	struct upstream *prev, *next; /* in target->idle */
	struct upstream *next_flush;
	const struct upstream_ops *ops;
	void *arg;
	struct loop_fd *w;
	int fd;
	uint16_t port;
	bool is_idle;  /* in target->idle: waiting for its next exchange, or draining */
	bool draining, reused, reading, blocked, throttled, flushing;
	bool write_failed; /* the peer takes no more; what it sent before can still be read */
	bool shut, shut_wanted;
	int64_t idle_since; /* CLOCK_BOOTTIME */
	struct buf in;      /* read, not used yet */
	struct buf out;
};

struct pool {
	struct loop *loop;
	struct map targets; /* key -> struct target */
	struct upstream *flush; /* to be flushed at the end of this turn */
	bool flush_deferred, dead;
	unsigned n_idle;
	struct loop_timer *timer;
};

/* NULL without memory. */
struct pool *pool_new(struct loop *l);
/* All targets must be without exchanges. Takes NULL. */
void pool_free(struct pool *p);

/* The target of a generation, made when there is none; NULL without memory. Give it back with target_settle() when exchanges have left it. */
struct target *pool_target(struct pool *p, struct str id, struct str generation);
struct target *pool_find(struct pool *p, struct str id, struct str generation);
bool target_is(const struct target *t, struct str id, struct str generation);
/* Closes idle connections. */
void target_close_idle(struct target *t);
/* Frees the target when nothing is left in it. */
void target_settle(struct target *t);

/* An idle connection to that port which is still open, or NULL. */
struct upstream *target_take(struct target *t, uint16_t port, const struct upstream_ops *ops, void *arg);
/* A fresh one: fd is owned from here; NULL with the descriptor closed. */
struct upstream *target_add(struct target *t, int fd, uint16_t port, const struct upstream_ops *ops, void *arg);

/* Puts a connection whose exchange is complete into the pool; closes it when it cannot serve again. */
void upstream_park(struct upstream *u);
/* Closes when what is queued has left. */
void upstream_drain(struct upstream *u);
/* Closes; `reset`: with a RST. Takes NULL. */
void upstream_close(struct upstream *u, bool reset);

/* Reads once: bytes are appended to u->in (1), nothing there (0), end of file (-EPIPE), another -errno. */
int upstream_read(struct upstream *u);
/* Whether readable() is told. */
void upstream_set_reading(struct upstream *u, bool on);

/* Sends or queues up to three parts; small ones leave at the end of the turn, or with upstream_flush(). Returns the bytes queued now. */
size_t upstream_send(struct upstream *u, struct str a, struct str b, struct str c);
void upstream_flush(struct upstream *u);
/* Closes the sending half when the queue is empty. */
void upstream_shutdown(struct upstream *u);

#endif
