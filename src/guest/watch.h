/*
 * What happens in a directory, or in the tree under it, from one inotify instance. Links are not followed; a
 * directory that appears is watched as soon as its event is read, and what was put into it before is told as
 * created. Directories are opened one component at a time and entered to be watched, so the process's working
 * directory changes ("/" when a call returns).
 */
#ifndef CUBICLE_GUEST_WATCH_H
#define CUBICLE_GUEST_WATCH_H

#include "base/str.h"
#include "io/connect.h"

enum { WATCH_MAX_DIRECTORIES = 131072, WATCH_MAX_LEVELS = 1024 };

/* In the order in which several that one event of the kernel holds are told. */
enum watch_op { WATCH_CREATE, WATCH_RENAME, WATCH_CHMOD, WATCH_WRITE, WATCH_REMOVE };

struct watch;

/* `name` is relative to the watched directory, "." for itself. RENAME has the old name. */
typedef void watch_fn(enum watch_op op, struct str name, void *arg);

/*
 * Watches the directory at `path` (absolute, links in it are followed). Under it, recursively, mounts of
 * proc, sysfs and cgroups are left out, and those of network file systems unless network_mounts. 0, or
 * -errno: those of open(2), -EREMOTE when the directory itself is on a network file system and network_mounts
 * is false, and those that watch_failure() explains.
 */
int watch_new(const char *path, bool recursive, bool network_mounts, struct watch **ret);
/* Takes NULL. */
void watch_free(struct watch *w);
/* Readable when something happened. */
int watch_fd(const struct watch *w);

/*
 * Tells what happened, a bounded part of it: 1 when there may be more, 0 when that was all, or a negative
 * errno (watch_failure()) after which events are missing and the watch is of no more use.
 */
int watch_read(struct watch *w, watch_fn *tell, void *arg);

/* What watch_read() does with the bytes of one read(): events as the kernel writes them. 1, or a negative errno (also -EIO: cut). */
int watch_take(struct watch *w, const void *bytes, size_t n, watch_fn *tell, void *arg);

/* Code and text for an error of the other calls. */
enum connect_code watch_failure(int r, const char **ret_text);

#endif
