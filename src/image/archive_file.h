/* Small archives that a build makes of texts, and archives that are in an archive. */
#ifndef CUBICLE_IMAGE_ARCHIVE_FILE_H
#define CUBICLE_IMAGE_ARCHIVE_FILE_H

#include "image/ask.h"

#include <sys/types.h>

struct archive;

/* A tar in memory, made of texts. */
struct archive_file {
	struct archive *archive;
	int fd;
};

int archive_file_begin(struct archive_file *a, struct error *err);
int archive_file_add(struct archive_file *a, const char *name, mode_t mode, struct str text, struct error *err);
/* *ret_fd: the whole, the caller's. */
int archive_file_end(struct archive_file *a, int *ret_fd, struct error *err);
/* In every case, also after a begin that failed. */
void archive_file_done(struct archive_file *a);

/*
 * The file `path` (as context_index.h has it) of the tar in fd, when it is itself a tar, perhaps compressed by gzip, bzip2, xz or zstd: 0 with *ret_fd, a plain tar in a file of node's, the
 * caller's. 1 when it is none. -errno with *err.
 */
int archive_file_unpack(struct ask *ask, int fd, const char *path, int *ret_fd, struct error *err);

#endif
