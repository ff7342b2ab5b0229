/* Paths as text: no file is looked at. */
#ifndef CUBICLE_IMAGE_PATH_H
#define CUBICLE_IMAGE_PATH_H

#include "base/buf.h"

/* Appends the shortest path that means the same when no part of it is a symbolic link: no `.`, no `//`, `..` taken back where it can be (`/..` is `/`), no
 * trailing slash; "." for nothing. Appends that fail set to->failed. */
void path_clean(struct buf *to, struct str path);

/* The clean path of `path` as seen from the absolute directory `from`. */
void path_join(struct buf *to, struct str from, struct str path);

#endif
