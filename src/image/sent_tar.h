/* Tars that clients sent for a build, a context or the files of a COPY, read with libarchive. Their bytes are hostile. */
#ifndef CUBICLE_IMAGE_SENT_TAR_H
#define CUBICLE_IMAGE_SENT_TAR_H

#include <archive.h>
#include <stdbool.h>
#include <sys/types.h>

enum { SENT_TAR_PIECE = 128 * 1024 };

/* A file that libarchive reads from its start, whatever the place of its descriptor (which stays the caller's). Too large for a stack. */
struct sent_tar {
	int fd;
	off_t at;
	char piece[SENT_TAR_PIECE];
};

/* A read callback (archive_read_callback) whose argument is a struct sent_tar. */
la_ssize_t sent_tar_give(struct archive *a, void *arg, const void **ret);

/* Opens `a`, which is new, for a tar that is plain or compressed by gzip or zstd, or has no bytes at all. The callback's argument outlives `a`. false: archive_error_string() says why. */
bool sent_tar_open(struct archive *a, void *arg, archive_read_callback *give);

#endif
