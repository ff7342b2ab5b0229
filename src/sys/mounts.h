/*
 * Mounts through descriptors: fsopen, open_tree, mount_setattr, move_mount. All new mounts are detached (visible nowhere) until mount_attach(); a detached
 * mount dies with its last descriptor. Errors are -errno with *err naming the call.
 */
#ifndef CUBICLE_SYS_MOUNTS_H
#define CUBICLE_SYS_MOUNTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/mount.h>

struct mount_option {
	const char *key;
	const char *value; /* NULL = a flag */
};

/* A new mount of file system `type`. attributes: MOUNT_ATTR_*. A descriptor. */
int mount_new(const char *type, const struct mount_option *options, size_t n, unsigned attributes, struct error *err);
/* A detached copy of the mount at dirfd/path ("" = dirfd itself); recursive takes the mounts below along. A descriptor. */
int mount_clone(int dirfd, const char *path, bool recursive, struct error *err);
/* Ids 0..n of a detached mount appear as the user namespace maps them. Only once per mount. */
int mount_idmap(int mount_fd, int userns_fd, struct error *err);
/* Sets MOUNT_ATTR_* on the mount behind the descriptor (AT_RECURSIVE when recursive). */
int mount_set(int mount_fd, unsigned attributes, bool recursive, struct error *err);
/* Hangs a detached mount (or moves an attached one that the descriptor names) to dirfd/path, never through a symlink at its end. */
int mount_attach(int mount_fd, int dirfd, const char *path, struct error *err);

/* Changes one option of the file system mounted at path, which stays mounted. */
int mount_reconfigure(const char *path, const char *key, const char *value, struct error *err);

struct mount_overlay {
	const int *lower; /* mounts, lowest layer first */
	size_t n_lower;
	int upper, work;  /* directories on the writable mount */
};

/* Where overlay takes no detached mounts as layers (Linux before 6.13), it must find them by path: directories of the current mount namespace that the
 * caller has made ready, "<dir>/0" ... for the lowers and "<dir>/w" for the writable mount, which then holds "upper" and "work" at its root. They are
 * detached again before mount_overlay() returns. */
struct mount_staging {
	const char *dir;
	int writable; /* the detached writable mount */
};

/* The overlay (redirect_dir and metacopy on), made with the caller's file-system ids. A descriptor of the detached mount. */
int mount_overlay(const struct mount_overlay *o, const struct mount_staging *staging, unsigned attributes, struct error *err);

#endif
