/* Makes a root file system from Debian packages, as one EROFS image. */
#ifndef CUBICLE_IMAGE_DEBIAN_H
#define CUBICLE_IMAGE_DEBIAN_H

#include "base/error.h"

#include <limits.h>
#include <stdint.h>

enum { DEBIAN_NEEDED_MB = 1500 }; /* free space that the work takes at its peak, with room to spare */

struct debian_build {
	const char *directory; /* where the image goes and the work is done: root's alone; made when missing */
	const char *mirror;    /* URL, or NULL: this machine's own sources */
	/* A phase begins, and about once a second while it lasts. percent: a guess of the whole. */
	void (*progress)(const char *phase, int percent, void *arg);
	void *arg;
};

struct debian_image {
	char name[80]; /* "<sha256>.erofs", in the directory */
	uint64_t size; /* bytes */
};

/*
 * Runs mmdebstrap and mkfs.erofs in mount and pid namespaces of their own; takes about half a minute. Needs root. SIGINT, SIGTERM and SIGHUP end it; whatever way
 * it ends, no process and no temporary file is left (those of a run that was killed are removed by the next one). The image is synced to the disk.
 * 0; -EPERM, -ENOENT (a program is missing), -ENOSPC, -EINTR, -ENETUNREACH (no mirror answered), -EIO (with the last lines of the output), with *err.
 */
int debian_build(const struct debian_build *b, struct debian_image *ret, struct error *err);

#endif
