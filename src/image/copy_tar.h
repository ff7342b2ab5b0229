/* The passes of a COPY over its archive (image/copy.h). */
#ifndef CUBICLE_IMAGE_COPY_TAR_H
#define CUBICLE_IMAGE_COPY_TAR_H

#include "base/map.h"
#include "image/copy.h"

struct copy_source {
	const char *path;
	bool whole;  /* the archive is this source: what another box gave for it */
	bool found;
	bool is_dir; /* once it was found */
};

struct copying {
	const struct envd *to;
	const struct copy *c;
	uid_t uid;
	gid_t gid;
	bool keep_owner;
	bool dest_exists; /* as a directory */
	bool into_dir;    /* what is no directory is placed in it */
	struct map dirs;  /* of the destination, by their absolute paths: they were there, or were placed */
	struct copy_done done;
};

/* Reads the archive once (of `from`, else of the copy's fd) and places what belongs to these sources, none of which is in another one. All must be found. */
int copy_pass(struct copying *y, struct envd_download *from, struct copy_source *sources, size_t n, struct error *err);

#endif
