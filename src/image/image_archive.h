/* Images in one tar: an OCI layout, or what `docker save` writes. The tar is read where it lies, nothing is unpacked. */
#ifndef CUBICLE_IMAGE_IMAGE_ARCHIVE_H
#define CUBICLE_IMAGE_IMAGE_ARCHIVE_H

#include "base/buf.h"
#include "base/error.h"
#include "image/manifest.h"
#include "image/source.h"

enum {
	ARCHIVE_MEMBERS_MAX = 65536,
	ARCHIVE_NAME_MAX = 1024, /* bytes of a member's path or link */
	ARCHIVE_LINKS = 8,       /* followed from one member */
};

struct image_archive;

/* Reads the heads of all members of the tar, a regular file (kept by the caller). -EINVAL no tar, or compressed, or truncated; -E2BIG limits; with *err. */
int image_archive_new(struct image_archive **ret, int fd, struct error *err);
void image_archive_free(struct image_archive *x);

/* Where a member's bytes lie; symbolic and hard links are followed inside the archive, "./" before a name does not count, of two of one name the last one is meant.
 * False: there is none that is a file. */
bool image_archive_find(const struct image_archive *x, struct str name, uint64_t *ret_offset, uint64_t *ret_size);

/* The bytes of a member, at most max: appended. -ENOENT, -E2BIG, -EIO with *err (400). */
int image_archive_read(const struct image_archive *x, struct str name, size_t max, struct buf *to, struct error *err);

/* The entry of an OCI layout's index.json (a parsed one) that `name` means (source_open_archive()): the places of all that it may be, of different platforms, in
 * ret; how many; or < 0: none or several different ones, which *err names. */
int image_archive_choose(const struct manifest *index, struct str name, size_t ret[MANIFEST_ENTRIES_MAX], struct error *err);

/* An image of a docker archive: names of members. */
struct docker_archive_image {
	char *config;
	char **layers; /* NULL at the end */
};

/* Parses manifest.json of a docker archive and chooses. -EINVAL malformed, or none or several of that name, which *err names. */
int docker_archive_choose(struct str json, struct str name, struct docker_archive_image *ret, struct error *err);
void docker_archive_image_done(struct docker_archive_image *i);

#endif
