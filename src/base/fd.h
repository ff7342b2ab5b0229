/* File descriptors: whole reads and writes, whole files, flags. All new descriptors are close-on-exec. */
#ifndef CUBICLE_BASE_FD_H
#define CUBICLE_BASE_FD_H

#include "base/buf.h"
#include "base/cleanup.h"

#include <sys/types.h>

/* Writes all n bytes, through EINTR and partial writes (blocking descriptor): 0 or -errno. */
int fd_write_all(int fd, const void *p, size_t n);

/* Reads until n bytes or end of file: the count, or -errno. */
ssize_t fd_read_full(int fd, void *p, size_t n);

/* Appends the whole file at dirfd/path to `to`, at most `max` bytes (-EFBIG beyond): 0 or -errno. Does not trust st_size. */
int file_read(int dirfd, const char *path, size_t max, struct buf *to);

/* Writes the value with one write(2) into an existing file (sysfs, procfs, cgroupfs): 0 or -errno. */
int file_write_value(int dirfd, const char *path, struct str value);

/* Replaces dirfd/path by a new file: temporary name, write, fsync, rename, fsync of the directory. 0 or -errno. */
int file_replace(int dirfd, const char *path, struct str bytes, mode_t mode);

/* Gives an open file without a name (O_TMPFILE) the absolute name `path`, which nothing has, durably; its bytes are the caller's affair. 0 or -errno. */
int file_publish(int fd, const char *path);

/* mkdir -p of an absolute or relative path, new directories with `mode`: 0 or -errno. */
int make_dirs(const char *path, mode_t mode);

int fd_set_nonblock(int fd, bool on);
int fd_set_cloexec(int fd, bool on);

/* Closes every descriptor >= from except those in keep (sorted ascending, count n). Async-signal-safe. */
void fd_close_all_except(int from, const int *keep, size_t n);

/* Removes the tree at dirfd/name, never following a link and never crossing a mount: 0 (also when absent) or -errno. */
int remove_tree(int dirfd, const char *name);

/* Raises this process's limit of open files as far as it may, to 2^20 at most (what kernels allow unless told otherwise); root also over a low hard limit, as a
 * machine without systemd has it. Returns the limit that holds now. */
unsigned fd_raise_limit(void);

#endif
