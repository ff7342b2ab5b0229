/* Makes one layer of a template on this machine, as one EROFS image: runs a recipe (image/recipe.h) in the tree of the layers below it. */
#ifndef CUBICLE_IMAGE_LAYER_H
#define CUBICLE_IMAGE_LAYER_H

#include "base/error.h"
#include "image/recipe.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LAYER_NEEDED_MB = 2500, /* free space that the work takes at its peak, with room to spare */
	LAYER_MAX_LOWER = 8,
};

struct layer_build {
	const struct recipe *recipe;
	const char *directory;    /* where the image goes and the work is done: root's alone; made when missing */
	const char *mirror;       /* URL, or NULL: this machine's own sources */
	const char *const *lower; /* paths of the images below, lowest first; at most LAYER_MAX_LOWER */
	size_t n_lower;
	/* A phase begins, and about once a second while it lasts. percent: a guess, of this layer. */
	void (*progress)(const char *phase, int percent, void *arg);
	void *arg;
};

struct layer_image {
	char name[80]; /* "<sha256>.erofs", in the directory */
	uint64_t size; /* bytes */
};

/*
 * Runs the recipe in mount and pid namespaces of their own. Needs root. SIGINT, SIGTERM and SIGHUP end it; whatever way it ends, no process, no mount and no
 * temporary file is left (those of a run that was killed are removed by the next one). The image is synced to the disk.
 * 0; -EPERM, -ENOENT (a program is missing), -ENOSPC, -EINTR, -ENETUNREACH (a mirror or registry did not answer), -EBADMSG (a file is not the one whose digest
 * the recipe knows), -EIO (with the last lines of the output), with *err.
 */
int layer_build(const struct layer_build *b, struct layer_image *ret, struct error *err);

#endif
