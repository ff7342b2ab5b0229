/*
 * What is in the archive that COPY and ADD of a Dockerfile take from: names, kinds and hashes of contents, read once. From it follow which entries a pattern means, and what
 * a cached layer follows from. The archive is hostile.
 */
#ifndef CUBICLE_IMAGE_CONTEXT_INDEX_H
#define CUBICLE_IMAGE_CONTEXT_INDEX_H

#include "base/buf.h"
#include "base/error.h"
#include "base/sha256.h"

#include <sys/types.h>

enum {
	CONTEXT_INDEX_ENTRIES = 1000000,
	CONTEXT_INDEX_NAMES = 256 * 1024 * 1024, /* bytes of all names and targets of links */
	CONTEXT_INDEX_LINKS = 40,		 /* followed for one path */
};

struct context_entry {
	char *path;   /* relative, clean */
	char *target; /* of a symbolic link, else NULL */
	uint64_t size;
	mode_t mode;  /* with the kind */
	bool packed;  /* begins as a tar or something compressed does */
	size_t order; /* in the archive */
	unsigned char digest[SHA256_SIZE]; /* of a file's contents */
};

struct context_index {
	struct context_entry *entries; /* in the order of paths, what is in a directory behind it */
	size_t n;
};

/* Reads all of fd, a tar (plain, gzip or zstd), at whatever offset it is. 0; 400 what is no such archive; -E2BIG, -ENOMEM. */
int context_index_read(struct context_index *ix, int fd, struct error *err);
void context_index_done(struct context_index *ix);
#define cleanup_context_index __attribute__((__cleanup__(context_index_done)))

/* The entry of a clean relative path, or NULL (also for a directory that only its contents tell of). */
const struct context_entry *context_index_find(const struct context_index *ix, struct str path);

/* The entries of a path and of all below it are entries[from] to entries[to - 1]; none: false. "." is everything. */
bool context_index_below(const struct context_index *ix, struct str path, size_t *ret_from, size_t *ret_to);

/* Appends what the path is when symbolic links, also those on the way, are followed as if the archive was the root. -ENOENT, -ELOOP. */
int context_index_resolve(const struct context_index *ix, struct str path, struct buf *to);

#endif
