/*
 * Reads layer blobs one after the other, decompressed by a thread of its own: gzip (of any number of members), zstd (of any number of frames) or neither. Which one it is the blob's first bytes say,
 * whatever its media type was: registries have all kinds of mistakes there.
 *
 * Errors: -EBADMSG 400 (truncated, damaged, or something else follows), -EIO 500.
 */
#ifndef CUBICLE_IMAGE_BLOB_H
#define CUBICLE_IMAGE_BLOB_H

#include "base/error.h"
#include "base/str.h"

struct blobs;

/* Starts the thread; it runs when this returns and needs nothing any more that a filter of system calls would refuse. The descriptors are the caller's and must stay open. 0 or -errno. */
int blobs_new(const int *fds, size_t n, struct blobs **ret);
/* Takes NULL. Waits for the thread. */
void blobs_free(struct blobs *b);

/* The next bytes of the blob at hand, at least one and valid until the next call: 1; 0 at its end, the next call is about the next blob; -errno. */
int blobs_next(struct blobs *b, struct str *ret, struct error *err);

#endif
