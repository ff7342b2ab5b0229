/*
 * A sandbox's writable disk: a sparse ext4 image on a direct-I/O loop device (docs/architecture.md). Formatted once per size as a "master", then copied sparsely.
 * The file system holds `upper`, `work` and a little room for the next mount (`spare`). All of this blocks: on a worker that has entered the host (host_enter()).
 */
#ifndef CUBICLE_SANDBOX_BOX_DISK_H
#define CUBICLE_SANDBOX_BOX_DISK_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct host;
struct masters;

struct disk {
	char name[32];  /* file in <dir>/disks; empty: there is none */
	uint32_t size_mb;
	bool unbound;   /* only the image is there: `loop` is nothing */
	unsigned loop;
	int mount;      /* the detached mount, idmapped, until a sandbox's root is made of it; -1 */
	int root;       /* descriptor on the mounted root: keeps the mount, for trim, syncfs, freeze */
};
#define DISK_NONE ((struct disk){.mount = -1, .root = -1})

int masters_new(struct host *h, struct masters **ret, struct error *err);
void masters_free(struct masters *m);

/* Makes the image `name`, attaches and mounts it with ids shifted to the user namespace. 0 or -errno (-ENOSPC: no room for a guaranteed disk). */
int disk_make(struct host *h, const char *name, uint32_t size_mb, int userns, struct disk *ret, struct error *err);
/* A new image, or (`saved` not NULL) a saved one, that is not mounted here: a descriptor, which holds the lock for all that it is given to; or -errno. */
int disk_image(struct host *h, const char *name, uint32_t size_mb, const char *saved, struct disk *ret, struct error *err);
/* Regains a disk that a living sandbox has mounted: the same loop device gives the same file system. Thaws it: a node that ended in the middle of a copy has left it
 * frozen, and then what writes to it can neither go on nor die. */
int disk_adopt(struct host *h, const char *name, unsigned loop, struct disk *ret, struct error *err);
/* Ends a freeze of the mounted file system that whoever began it has not ended; `root`: a descriptor on it. */
void disk_thaw(int root);
/* Nothing of it is wanted any more: when the kernel would write back much, or finds no room for it, it is told not to. Before it is unmounted anywhere. */
void disk_abandon(struct host *h, struct disk *d);
/* Lets go and deletes the image; what is dirty is thrown away. The loop device is given back when the kernel lets go of it. */
void disk_drop(struct host *h, struct disk *d);
/* A saved image (saved.h) as a disk: as disk_make(), but for what it holds. -EBUSY: it is still mounted somewhere. */
int disk_take(struct host *h, const char *image, const char *name, int userns, struct disk *ret, struct error *err);
/* A root has been made of d->mount: sets room for the next time aside again, as far as there is any. */
void disk_mounted(const struct disk *d);
/* The image stays; its loop device is given back. */
void disk_unbind(struct host *h, struct disk *d);
/* Closes descriptors only. */
/* Gives the host back what files that were deleted have left, unless the disk is preallocated. Nothing writes to it. */
void disk_trim(const struct host *h, const struct disk *d);
void disk_leave(struct disk *d);

#endif
