/*
 * Reads a tar archive as layers of images are: ustar, pax (POSIX.1-2017), GNU's long names and sparse files in all their forms, attributes as SCHILY.xattr.*. Names, link targets and attributes
 * come as the bytes that they are; libarchive would bring names to Unicode's normal form C, which are other names.
 *
 * Bytes are hostile. Errors: -EBADMSG 400 (malformed or truncated), -EDQUOT 413 (a limit), what the source returns. They name the entry where there is one.
 */
#ifndef CUBICLE_IMAGE_TAR_H
#define CUBICLE_IMAGE_TAR_H

#include "base/error.h"
#include "image/tree.h"

enum tar_type {
	TAR_ENTRY, /* anything but: */
	TAR_FILE,  /* a regular file, contents follow */
	TAR_LINK,  /* a hard link; target is its other name */
};

struct tar_limits {
	uint32_t header;  /* bytes of extended headers and long names of one entry */
	uint32_t extents; /* of a sparse file */
};

/* The next bytes, at least one and valid until the next call: 1; 0 at the end; -errno with *err. */
typedef int (*tar_source)(void *arg, struct str *ret, struct error *err);

struct tar;

/* NULL: no memory. */
struct tar *tar_new(const struct tar_limits *limits, tar_source source, void *arg);
/* Takes NULL. */
void tar_free(struct tar *t);

/* The next entry, valid until the next call; contents of the last one that were not taken are skipped. 1, or 0 at the end of the archive (the source may have more), or -errno. */
int tar_next(struct tar *t, enum tar_type *ret_type, struct tree_entry *ret, struct error *err);

/* The next piece of the file's contents, and where it belongs in the file: 1, 0 at its end, or -errno. */
int tar_data(struct tar *t, uint64_t *ret_offset, struct str *ret, struct error *err);

#endif
