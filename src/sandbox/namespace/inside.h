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
/* The template's layers and the disk become the root at /new, and proc, sys, dev, run move there. Fills s->root. Takes the disk's mount; it and the layers'
 * go to s->rest, on failure too. */
int inside_root(struct host *h, struct slot *s, const char *const *layers, size_t n_layers, struct error *err);
/* Sizes of the memory file systems, by s->limits; `entered`: below the sandbox's root already, not below /new. */
int inside_size_memory(struct host *h, struct slot *s, bool entered, struct error *err);

#endif
