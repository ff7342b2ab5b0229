/*
 * Mounts that the host makes inside a sandbox's mount namespace, with the host's credentials: nothing inside can undo them. On a worker that has
 * entered the host; the worker visits the namespace and comes back.
 */
#ifndef CUBICLE_SANDBOX_NAMESPACE_INSIDE_H
#define CUBICLE_SANDBOX_NAMESPACE_INSIDE_H

#include "sandbox/backend.h"

#include <stddef.h>

struct host;
struct slot;

/* While parked: /dev, /sys, the masks over /proc and /sys, in the parked init's own small root. */
int inside_park(struct host *h, struct slot *s, struct error *err);
/* Detached mounts that have served. Closing one waits for the kernel's other CPUs: to be done when nobody waits for us. */
struct inside_rest {
	int fds[BOX_MAX_LAYERS + 1];
	size_t n;
};
void inside_rest_close(struct inside_rest *r);

/* The template's layers and the disk become the root at /new, and proc, sys, dev, run move there. Takes the disk's mount. *rest is filled on failure too. */
int inside_root(struct host *h, struct slot *s, const char *const *layers, size_t n_layers, struct inside_rest *rest, struct error *err);

#endif
