/* What node asks of the writable disk of a machine of its own (guest/machine.h). */
#ifndef CUBICLE_GUEST_MACHINE_DISK_H
#define CUBICLE_GUEST_MACHINE_DISK_H

#include "guest/chores.h"

#include <stdbool.h>

struct machine_disk;

/* NULL without memory. For machine_get()'s disk. */
struct machine_disk *machine_disk_new(struct loop *l);
void machine_disk_free(struct machine_disk *d);

/* Each: 0, and done() follows; or -errno, and it does not. */

/* All that was written is on the device. When commands are to stand still, first waits until they do, a second at most. */
int machine_disk_sync(struct machine_disk *d, chore_done *done, void *owner, uint64_t request);
/*
 * The file system changes no more (what writes to it waits), until `off`. It thaws by itself when its owner is forgotten, and after 30 s, so that a node that was ended or hangs
 * leaves nobody waiting: then `off` tells -ETIMEDOUT, because what was read meanwhile may be no one state.
 */
int machine_disk_quiesce(struct machine_disk *d, bool on, chore_done *done, void *owner, uint64_t request);
int machine_disk_trim(struct machine_disk *d, chore_done *done, void *owner, uint64_t request);
/* No done() with this owner follows any more, and its quiet ends. Takes NULL. */
void machine_disk_forget(struct machine_disk *d, const void *owner);

#endif
