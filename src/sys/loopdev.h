/*
 * Loop devices: direct I/O, 4096-byte blocks, autoclear. The kernel's own search for a free number slows with many devices, so numbers come from a list of
 * our own first. Thread-safe.
 */
#ifndef CUBICLE_SYS_LOOPDEV_H
#define CUBICLE_SYS_LOOPDEV_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { LOOPDEV_PATH_SIZE = 32 };

struct loopdevs;

int loopdevs_new(struct loopdevs **ret, struct error *err);
/* remove: also takes the idle device nodes that this list added away from the kernel. Takes NULL. */
void loopdevs_free(struct loopdevs *l, bool remove);

/* Binds a free device to the file. Returns an open descriptor of the device (autoclear: the binding goes when it and every mount are closed), its number in
 * *ret_number. -errno. */
int loopdev_attach(struct loopdevs *l, int backing_fd, bool read_only, unsigned *ret_number, struct error *err);
/* The user is done with the number; the device may still be winding down. */
void loopdev_release(struct loopdevs *l, unsigned number);

/* "/dev/loop<number>" */
const char *loopdev_path(char to[LOOPDEV_PATH_SIZE], unsigned number);
/* Path of the file a device is bound to, into to: 0, -ENOENT when it is free. */
int loopdev_backing(unsigned number, char *to, size_t size);
/* Unbinds by force (a device whose users are all gone). 0 or -errno. */
int loopdev_detach(unsigned number);

#endif
