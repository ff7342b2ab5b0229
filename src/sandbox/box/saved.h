/*
 * Images of sandboxes of which only the disk is kept: <dir>/saved. An image is one file with one or two names: while it is a slot's disk, it is in <dir>/disks; from the first unmount
 * to the record that says that it runs again it has its saved name, so that no crash in between loses it. Whoever attaches one holds flock(2) on the open file that the loop device
 * keeps, so nobody mounts it twice. All of this blocks: on a worker that has entered the host.
 */
#ifndef CUBICLE_SANDBOX_BOX_SAVED_H
#define CUBICLE_SANDBOX_BOX_SAVED_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct host;

/* The image becomes a layer ("images/NAME"). */
bool saved_is_layer(const char *image);
/* Waits until no loop device has the image any more, and locks it for this open file. 0, or -EBUSY after 10 s. */
int saved_lock(int image, struct error *err);
/* The image of an ended sandbox, <dir>/disks/<name>, becomes <dir>/<image> ("saved/NAME" or "images/NAME"): unmounted, checked if it was not unmounted cleanly (by a process with the id
 * *unprivileged, which nobody else has now; NULL: not at all, it is a microVM's, whose kernel reads it again), durable. 0, also when it stands there already. -EUCLEAN: e2fsck cannot repair it by itself. */
int saved_keep(struct host *h, const char *name, const char *image, const uid_t *unprivileged, struct error *err);
/* Gives a saved image the name <dir>/disks/<name>, too, and opens it. The descriptor or -errno. */
int saved_link(struct host *h, const char *image, const char *name, struct error *err);

#endif
