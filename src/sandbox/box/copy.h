/* Copies of images: sparse files. Blocks. */
#ifndef CUBICLE_SANDBOX_BOX_COPY_H
#define CUBICLE_SANDBOX_BOX_COPY_H

#include <stdbool.h>
#include <sys/types.h>

/* Makes the empty file `to` what `from` is, `size` bytes, holes left out. share: by reference where the file system can. Stops when *stop (NULL: never) becomes
 * true. Moves from's offset, so it must be an open file of the caller's own. 0, -ECANCELED when stopped, or -errno (-ENOSPC, -EDQUOT: no room). */
int copy_sparse(int from, int to, off_t size, bool share, const bool *stop);

#endif
