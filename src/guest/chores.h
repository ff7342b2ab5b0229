/* Work of PID 1 that may take its time: each piece is done by a child process, so that the loop waits for nothing. One after the other, in the order of asking. */
#ifndef CUBICLE_GUEST_CHORES_H
#define CUBICLE_GUEST_CHORES_H

#include "io/loop.h"

#include <stddef.h>
#include <stdint.h>

struct chores;

/* In the child, which has no descriptor but `keep` (and 0 to 2): 0 or -errno. */
typedef int chore_work(const void *arg);
/* The result of the work; -EIO when the child died. */
typedef void chore_done(int result, void *owner, uint64_t request);

/* NULL without memory. */
struct chores *chores_new(struct loop *l);
/* What runs is left to itself. Takes NULL. */
void chores_free(struct chores *c);

struct chore_order {
	chore_work *work;
	const void *arg;    /* of `size` bytes, copied */
	size_t size;
	int keep[2];        /* descriptors that the work needs; -1 = none */
	chore_done *done;   /* NULL = nobody wants to know */
	void *owner;
	uint64_t request;
};
/* 0, -EBUSY (many wait) or -ENOMEM. done() follows on the loop. */
int chores_add(struct chores *c, const struct chore_order *o);
/* This owner's done() are not called any more; its work is done nevertheless. Takes NULL. */
void chores_forget(struct chores *c, const void *owner);

#endif
