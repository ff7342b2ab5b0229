/* The kernel that guests run: one of this machine's, or one that an option names. */
#ifndef CUBICLE_SANDBOX_MICROVM_GUEST_KERNEL_H
#define CUBICLE_SANDBOX_MICROVM_GUEST_KERNEL_H

#include "base/error.h"

struct guest_kernel {
	char *image;   /* path of vmlinuz */
	char *modules; /* path of its directory of modules */
	char *version;
};

/*
 * image: the path of a vmlinuz-VERSION; its modules are in ../lib/modules/VERSION beside its directory, or in ../usr/lib/modules/VERSION. NULL: the newest of <root>/boot that Debian calls a
 * cloud kernel, else the newest for amd64, of those whose modules are there. root: "" but in tests. 0, -ENOENT (the message says how to get one) or -errno.
 */
int guest_kernel_find(const char *image, const char *root, struct guest_kernel *ret, struct error *err);
void guest_kernel_done(struct guest_kernel *k);

#endif
