/*
 * `cubicle unpack`: the process that makes one EROFS image (image/erofs.h) of one or more layer blobs of an OCI or Docker image. The blobs are hostile; it has nothing
 * but its descriptors, so what breaks into it can spoil this one image.
 *
 * Descriptors at start: 3 the channel (SEQPACKET, io/messages.h), 4 the image (an empty regular file, open for reading and writing), from 5 on the blobs, lowest layer
 * first, open for reading. argv is {"cubicle", "unpack"}. No message but these passes:
 *   to it     unpack_begin {formats, diff_ids, size_max, lowest}
 *   from it   unpacked {size, entries, diff_ids, guessed}; the image is complete, but not synced. Or error. Then it ends, with status 0 or 1.
 * It limits and filters itself; ids, namespaces, capabilities and the root directory are the affair of who starts it (any user will do). Closing the channel does not end it: kill it.
 *
 * Errors (code, status): -EXDEV 409: an entry needs what is in a layer below, a hard link to a file of it, or a mark that hides all of it at the root. Ask again for the
 * blobs of *all* layers from the lowest to this one together, with `lowest`; when that was what was asked for, the image is broken. -EDQUOT 413: a limit, named with
 * its figure. -EBADMSG 400: the blob is not what it should be (truncated, not of its format, another diffID). -EINVAL 400: an entry that is refused, named. -ENOSPC 507. -EIO 500.
 *
 * `lowest` leaves out the whiteouts, so it makes another image of the same blobs: a key that an image is found by must tell it.
 *
 * `guessed`: an archive may hold "a/b" without saying anything of "a". Such a directory gets mode 0755 of root (1777 for tmp and var/tmp), which in the image hides what the layers below
 * say of it; the root directory does not count. `cubicle merge` of this image alone, told what is below, puts that right, and so it does with the whiteouts of several blobs that hide nothing below them.
 */
#ifndef CUBICLE_IMAGE_UNPACK_H
#define CUBICLE_IMAGE_UNPACK_H

#include "image/blob.h"
#include "image/tar.h"

enum {
	UNPACK_CHANNEL_FD = 3,
	UNPACK_IMAGE_FD = 4,
	UNPACK_BLOB_FD = 5,
	UNPACK_MAX_BLOBS = 128,
	UNPACK_DIGEST = 71, /* "sha256:" and 64 hexadecimal digits */
};

struct unpack {
	int image; /* an empty regular file */
	struct blobs *blobs;
	size_t n;                   /* blobs */
	const struct str *diff_ids; /* of each; empty: not known */
	struct tree_limits limits;
	uint64_t bytes_max; /* of all blobs, decompressed */
	bool lowest;
};

struct unpacked {
	struct tree_result image;
	char (*diff_ids)[UNPACK_DIGEST + 1]; /* of each blob, NUL-terminated; the caller's array */
};

/* Makes the image; errors as above. */
int unpack(const struct unpack *u, struct unpacked *ret, struct error *err);

/* The entries of one archive into the tree, until its end. */
int unpack_archive(struct tree *tree, tar_source source, void *arg, struct error *err);

/* The process; returns its exit status. */
int unpack_main(int argc, char **argv);

#endif
