/* RUN --mount=type=…,target=…: what is asked for. */
#ifndef CUBICLE_IMAGE_DOCKERFILE_MOUNT_H
#define CUBICLE_IMAGE_DOCKERFILE_MOUNT_H

#include "base/error.h"
#include "base/str.h"

#include <sys/types.h>

enum dockerfile_mount_type { DF_MOUNT_BIND, DF_MOUNT_CACHE, DF_MOUNT_TMPFS };

/* Views of the text, unexpanded. */
struct dockerfile_mount {
	enum dockerfile_mount_type type;
	struct str from, source, target; /* from: a stage or an image, empty = the context; source: empty = all of it */
	uid_t uid;                       /* of a cache's directory, as mode */
	gid_t gid;
	mode_t mode;
};

/* 0; 400 what is wrong, 501 what is known and not done here: secrets, ssh, caches that begin with files. */
int dockerfile_mount_parse(struct str text, struct dockerfile_mount *ret, struct error *err);

#endif
