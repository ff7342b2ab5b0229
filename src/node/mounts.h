/* The node's own view of the machine's mounts. */
#ifndef CUBICLE_NODE_MOUNTS_H
#define CUBICLE_NODE_MOUNTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Whether a mount point belongs into the node's view: it holds or lies below one of what the node needs (system directories, and the n paths given). */
bool mounts_needed(const char *point, const char *const *paths, size_t n);

/*
 * Enters a mount namespace of its own: mounts made here stay here, those that the machine makes and takes away later still reach us (where its mounts are
 * shared), and what is not needed is taken out of the view, so that nothing of the machine stays in use because of us. 0 or -errno.
 */
int mounts_own(const char *const *paths, size_t n, struct error *err);

#endif
