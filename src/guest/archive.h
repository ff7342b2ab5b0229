/*
 * Trees in and out of the sandbox as archives (docs/envd.md): GET /archive gives one of the file or tree at a path, PUT /archive places the members of one below a
 * directory. As root of the sandbox, in its root, by a worker like the file services' (guest/files.h), whose call they are served with.
 */
#ifndef CUBICLE_GUEST_ARCHIVE_H
#define CUBICLE_GUEST_ARCHIVE_H

#include "guest/files_call.h"

/* A request for /archive: by its method. 0, or as every step of a call (guest/files_call.h). */
int archive_serve(struct files_call *c);

/* archive_get.c, archive_put.c: the two of them, at this absolute path. */
int archive_get(struct files_call *c, const char *path, bool follow);
int archive_put(struct files_call *c, const char *path);

/* What of a file's extended attributes an archive carries: the user's, capabilities, and access control lists. Others belong to the kernel and to file systems. */
bool archive_carries(struct str xattr);

/*
 * Opens `path`, which is relative, below the directory, never through a symbolic link or onto another mount: descriptor, or -errno: -ELOOP a link, -EXDEV a mount.
 */
int archive_open(int dir, const char *path, int flags);

#endif
