/* Private to the backend's loop side: backend.c and the files of a box. */
#ifndef CUBICLE_SANDBOX_BOX_IMPL_H
#define CUBICLE_SANDBOX_BOX_IMPL_H

#include "io/loop.h"
#include "io/workq.h"
#include "sandbox/backend.h"
#include "sandbox/box/host.h"
#include "sandbox/box/numbers.h"
#include "sandbox/namespace/pool.h"
#include "sandbox/box/slot.h"

struct backend {
	struct loop *loop;
	struct backend_config config;
	struct host *host;
	struct numbers *numbers;
	struct pool *pool;
	struct opener *opener;
	struct workq *booters;  /* creates of microVMs: each waits until its kernel is up */
	struct workq *workers;  /* creates, adoptions, spawners */
	struct workq *reapers;  /* kills, that somebody waits for */
	struct workq *cleaners; /* what is left of dead slots */
	struct workq *readers;  /* of statistics: files of the kernel that may make it work for ms */
	struct workq *slow;     /* what waits for a disk: trim, sync */
	struct workq *copiers;  /* copies of disks, images that go */
	struct opening *openings; /* connections into microVMs that are being made */
	unsigned n_openings;
	struct box *boxes;
	struct discard *late;  /* slots whose processes do not die, between two tries */
	unsigned discarding;   /* slots that a cleaner has or will get, boxes that are being released, and the drain itself; atomic */
	void (*drained)(void *arg);
	void *drained_arg;
};

/* Has a cleaner release the slot and give its number back. From any thread. */
void backend_discard(struct backend *b, struct slot *s);
/* The drain waits from begin to end for one more thing. begin: from any thread; end: on the loop, may call drained(). */
void backend_hold_drain(struct backend *b);
void backend_let_drain(struct backend *b);
/* Frees what is left of the boxes without touching the sandboxes (end of the backend). */
void boxes_leave(struct backend *b);

#endif
