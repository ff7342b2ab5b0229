/* Files that a build needs, made ready to be sent: one descriptor, its size, and the SHA-256 that names it. */
#ifndef CUBICLE_CLI_PACK_H
#define CUBICLE_CLI_PACK_H

#include "base/error.h"
#include "cli/progress.h"

#include <stdbool.h>
#include <stdint.h>

enum { PACK_HASH = 64 };

struct packed {
	int fd; /* -1 = none; owned */
	uint64_t size;
	char hash[PACK_HASH + 1]; /* hexadecimal */
};

#define PACKED_NONE ((struct packed){.fd = -1})

void packed_done(struct packed *p);
#define cleanup_packed __attribute__((__cleanup__(packed_done)))

/*
 * The tree below a directory as a tar (pax) in a temporary file without a name ($TMPDIR, else /var/tmp): owners (as numbers), modes, times, links, extended attributes and holes
 * are kept, mounts below it are not entered, sockets are left out. 0 or -errno with *err.
 */
int pack_directory(const char *path, struct progress *progress, struct packed *ret, struct error *err);

/*
 * A file as it is, when it is a tar that is not compressed, or compressed by gzip or zstd and plain is false; else what it is unpacked (libarchive knows gzip, zstd, xz, bzip2, lz4), in a temporary file. 0 or -errno with
 * *err: -EINVAL when it is no tar.
 */
int pack_file(const char *path, bool plain, struct progress *progress, struct packed *ret, struct error *err);

/* Hashes what fd holds from its beginning, which goes to *ret. The descriptor becomes *ret's, also on failure. */
int pack_descriptor(int fd, struct progress *progress, struct packed *ret, struct error *err);

/* An empty temporary file without a name; a descriptor, or -errno with *err. */
int pack_temporary(struct error *err);

#endif
