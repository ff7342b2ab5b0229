/* The directory that a Dockerfile's COPY and ADD take from, as one tar. */
#ifndef CUBICLE_CLI_CONTEXT_H
#define CUBICLE_CLI_CONTEXT_H

#include "cli/pack.h"
#include "image/ignore.h"

enum {
	CONTEXT_ENTRIES = 1000000,
	CONTEXT_DEPTH = 128,
};

/*
 * Packs what is below `path`, without what is ignored, in the order of names. Owners are left out (everything is root's), modes and times are kept, links are kept as links, a file of
 * several names is several files. ret->hash follows from names, modes, contents and targets of links, not from times: the same files are sent once.
 * 0, or -errno with *err: -EINVAL names a socket, device or pipe; -EFBIG more than max bytes.
 */
int context_pack(const char *path, const struct ignore *ignore, uint64_t max, struct progress *progress, struct packed *ret, struct error *err);

#endif
