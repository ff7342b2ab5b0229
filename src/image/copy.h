/*
 * COPY, as a Dockerfile and the E2B builder mean it: chosen entries of a tar archive are placed in a build box.
 *
 * A source that is a directory gives its contents, merged into the destination (a directory, made when it is missing); any other source is placed at the
 * destination, or into it when that is a directory, ends with '/', or when there are several sources. Missing directories on the way are made (root, 0755). Symbolic
 * links are kept as links. Hard links stay links where both ends are copied, else the bytes are.
 */
#ifndef CUBICLE_IMAGE_COPY_H
#define CUBICLE_IMAGE_COPY_H

#include "image/envd.h"

enum {
	COPY_MAX_ENTRIES = 2000000,
};

struct copy {
	/* Where from: one of these. */
	int fd;                        /* a tar file (plain, gzip or zstd) that can be read at any place; -1 = not */
	const struct envd *from;       /* another box; the sources are absolute paths in it */

	/* What: paths in the archive, relative to its root, without globs ("" or "." = all of it); or of the box. */
	const char *const *sources;    /* NULL-terminated */
	/* Is this path of the archive (relative, without "./" and trailing '/') left out? May be NULL. Not asked with `from`. */
	bool (*exclude)(void *arg, struct str path);
	void *arg;

	/* Where to. */
	const char *dest;              /* absolute; a trailing '/' counts */
	const char *owner;             /* "user", "user:group", names or numbers of the box that it is copied to; NULL = as the archive says, or root with `fd` */
	long mode;                     /* of all but links; -1 = as the archive says */
	bool keep_owner;               /* without an owner also those of an archive are kept */
	bool user_is_group;            /* an owner without a group: the group of that name (E2B), else the user's own group (Docker) */
};

struct copy_done {
	uint64_t entries, bytes;
};

/* 0, or -errno with *err: -ENOENT names the source that is not there. */
int copy_into(const struct envd *to, const struct copy *c, struct copy_done *ret, struct error *err);

/* An E2B source without its glob part: "src/a*.py" is "src", "*" is "". "./" in front and '/' behind go as well. -EINVAL: it leaves the archive. */
int copy_strip_glob(struct str source, struct buf *to, struct error *err);

/* "u", "u:g" with names or numbers, by the texts of /etc/passwd and /etc/group. -ENOENT with *err naming what is unknown. */
int copy_owner(struct str owner, bool user_is_group, struct str passwd, struct str group, uid_t *ret_uid, gid_t *ret_gid, struct error *err);

#endif
