/*
 * The layers that sandboxes of this machine are made of: one read-only mount each, attached in the stage namespace, cloned for every sandbox. EROFS images of templates,
 * and (name ends in .img) copies of writable disks, whose `upper` is the layer: ids on them are unshifted, overlay's whiteouts and attributes are in it. Thread-safe.
 */
#ifndef CUBICLE_SANDBOX_NAMESPACE_LAYERS_H
#define CUBICLE_SANDBOX_NAMESPACE_LAYERS_H

#include "base/error.h"

struct host;
struct layers;

int layers_new(struct host *h, struct layers **ret, struct error *err);
void layers_free(struct layers *l);

/* A detached clone of the layer's mount, ids shifted to the user namespace (-1: not). Mounts the image at first use and starts reading it in the background, so that
 * its pages belong to nobody's memory limit. A descriptor or -errno. The caller has entered the host. */
int layers_clone(struct host *h, const char *path, int userns, unsigned *ret_number, struct error *err);
/* The layer's root directory, for reading, ids as they are on it; mounted as long as it is open. A descriptor or -errno. The caller has entered the host. */
int layers_open(struct host *h, const char *path, struct error *err);
/* The image at the path is to go: its mount is forgotten. Sandboxes made of it hold clones of their own. The caller has entered the host. */
void layers_forget(struct host *h, const char *path);
/* The number that layers_clone() gives for the image that is at the path now, or -ENOENT: not mounted, or replaced since. Each mounted image has one of its own. Does
 * not wait: -EBUSY while an image is being mounted. */
int layers_number(struct host *h, const char *path);

#endif
