/*
 * What differs between boxes in namespaces and in microVMs: a table of functions for each, chosen when a box is created or adopted. All else of a box (its states, its records, its place in the
 * pool of numbers, network, cgroups, images) is the same for both.
 */
#ifndef CUBICLE_SANDBOX_BOX_RUNTIME_H
#define CUBICLE_SANDBOX_BOX_RUNTIME_H

#include "sandbox/backend.h"

struct box;
struct slot;

/* Of an answer from inside, once. err NULL: it is done; -ECANCELED: the box went first. */
typedef void runtime_done_fn(const struct error *err, void *arg);

struct runtime {
	const char *isolation; /* as answers tell it */
	bool kernel_inside; /* the group work is all of it, so a lack of memory there is its end, and its disk is not mounted by this kernel */

	/* Can there be such a one? 0, or -EINVAL with *err (400, names the field). */
	int (*check)(const struct box_spec *spec, struct error *err);
	/* On a worker that may take its time. Makes b->slot and all of it, up to the claim that was sent; what there is of it on failure is released by the caller. Gives up soon after
	 * b->cancelled. The result is b->error.code, too. */
	int (*start)(struct box *b);
	/* On the loop, before that: the same for a create that waits for nothing. 1: it does. NULL: all do. */
	int (*start_at_once)(struct box *b);
	/* On a worker: finds the living parts of b->slot again. -ESRCH: it is dead. */
	int (*adopt)(struct box *b);

	/* On the loop from here. The box has its channel: takes over what else there is to watch. 0 or -errno with *err. */
	int (*watch)(struct box *b, struct error *err);
	/* ... and is about to end, or to be left. */
	void (*unwatch)(struct box *b);
	/* A new spawner asks to be attached. */
	void (*attach)(struct box *b, pid_t spawner);
	/* How its first process ended. */
	void (*say_end)(const struct box *b, char *to, size_t size);
	/* As box_space(), box_brake(), box_open(). */
	int (*space)(const struct box *b, struct box_space *ret);
	int (*brake)(const struct box *b, uint64_t most);
	int (*open)(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg);
	/* Trims its disk, or begins to write it back. */
	void (*tidy)(struct box *b, bool trim);
	/* Has what is dirty inside written to the image, although the box is frozen: done() follows, perhaps at once. */
	void (*write_out)(struct box *b, runtime_done_fn *done, void *arg);
	/* on: nothing changes in the image from done() on until it is off again; off: error when that did not last; done NULL: nobody waits
	 * for it. For box_copy(), and for the end of a box that is saved. */
	void (*hold)(struct box *b, bool on, runtime_done_fn *done, void *arg);
};

extern const struct runtime namespace_runtime, microvm_runtime;

#endif
