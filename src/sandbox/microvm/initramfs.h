/*
 * What a microVM's kernel begins with (docs/microvm.md): a cpio archive, "newc" (Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed: /init, /dev/console and
 * /modules/NN-name.ko, which guest/boot_modules.c inserts in that order.
 */
#ifndef CUBICLE_SANDBOX_MICROVM_INITRAMFS_H
#define CUBICLE_SANDBOX_MICROVM_INITRAMFS_H

#include "base/error.h"

struct initramfs_config {
	const char *modules; /* the kernel's directory of modules */
	const char *init;    /* path of cubicle-init */
	const char *const *more; /* further modules, up to a NULL; NULL = none */
};

/* Writes it to the descriptor, from its offset on. 0 or -errno. */
int initramfs_write(const struct initramfs_config *c, int fd, struct error *err);
/* A sealed file in memory. */
int initramfs_make(const struct initramfs_config *c, struct error *err);

#endif
