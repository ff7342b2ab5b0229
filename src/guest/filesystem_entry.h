/* Entries of filesystem.Filesystem as JSON (e2b.md B.7), for the sources filesystem*.c only. */
#ifndef CUBICLE_GUEST_FILESYSTEM_ENTRY_H
#define CUBICLE_GUEST_FILESYSTEM_ENTRY_H

#include "guest/files_call.h"
#include "guest/user.h"

enum {
	LIST_MAX_ENTRIES = 100000,
	LIST_MAX_BYTES = 64 * 1024 * 1024, /* of JSON */
	LIST_MAX_LEVELS = 1024,            /* each holds a descriptor */
};

/* Appends the entry at dirfd/name, shown with that path, and tells whether it is itself a directory. 0,
 * -ENOENT and other errnos of stat, -ENOMEM. */
int entry_add(struct buf *to, const struct user_names *names, int dirfd, const char *name, struct str path,
	bool *ret_directory);

/*
 * Appends the entries under the directory at `path`, comma-separated: depth-first, parents before their
 * children, the names of each directory in bytewise order, links not descended (0 and 1 are the same depth).
 * What vanishes meanwhile is left out. Gives up at deadline (CLOCK_MONOTONIC, 0 = none).
 */
int list_add(struct files_call *c, struct buf *to, const struct user_names *names, const char *path,
	uint32_t depth, int64_t deadline);

#endif
