/*
 * The tree of one image while it is made: names and directories in memory, everything else in the image (image/erofs.h) as soon as it is seen. Entries come in any order, of one layer after the
 * other, lowest first; later ones replace earlier ones. Names are only names: a link is never followed, an entry below something that is no directory makes it one.
 *
 * The image shows what the layers together say, in overlayfs' terms (whiteouts, opaque directories), for what is below the image.
 *
 * Bytes are hostile: all is within the limits, and an error (status 400 or 413) names the entry. -EDQUOT 413 a limit, -EINVAL 400 refused, -EXDEV 409 it needs a layer below (image/unpack.h),
 * -EOPNOTSUPP, -ENOSPC 507, -ENOMEM and -EIO 500. After an error only tree_free() may follow.
 */
#ifndef CUBICLE_IMAGE_TREE_H
#define CUBICLE_IMAGE_TREE_H

#include "base/error.h"
#include "image/erofs.h"

struct tree_limits {
	uint64_t image;   /* bytes of the image */
	uint64_t entries; /* names seen, also of what is replaced */
	uint64_t memory;  /* bytes held */
	uint64_t file;    /* bytes of one file, holes too */
	uint32_t path;    /* bytes */
	uint32_t depth;   /* directories above an entry */
	uint32_t xattrs;  /* bytes of all attributes of one entry */
	uint32_t extents; /* of one sparse file */
};

/* What fits a machine of any size; `image` is the caller's to set. */
extern const struct tree_limits tree_limits_usual;

struct tree_xattr {
	struct str name, value;
};

struct tree_entry {
	struct str path; /* relative to the root, however it is written; ".." may not leave it */
	mode_t mode;     /* with the type */
	uint64_t uid, gid;
	int64_t mtime;
	uint32_t mtime_ns;
	uint32_t major, minor;
	struct str target; /* of a symbolic link */
	uint64_t size;     /* of a regular file */
	const struct erofs_extent *extents; /* of a sparse one: where it has data (erofs_file_begin()); NULL: everywhere */
	size_t n_extents;
	const struct tree_xattr *xattrs;
	size_t n_xattrs;
};

enum tree_flags {
	/*
	 * Entries are of an archive of an OCI image: whiteouts are names (".wh.NAME", ".wh..wh..opq"), devices are dropped (sandboxes have their own), and so are all attributes but user.* without user.overlay.*, of regular files
	 * and directories, and security.capability of regular files: trusted.* and overlayfs' are ours, labels and signatures in security.* and system.* belong to the machine that made the image.
	 * Without the flag: nothing is special and everything is kept; whiteouts are said by tree_whiteout() and tree_opaque().
	 */
	TREE_OCI = 1,
};

struct tree_result {
	uint64_t size;    /* bytes of the image */
	uint64_t entries; /* names in it */
	bool guessed;     /* it has directories (not the root) that no entry was about */
};

/* On directories whose attributes are made up, until the image meets the layers below it (image/merge.h). */
#define TREE_IMPLIED "trusted.cubicle.implied"

struct tree;

/* Into fd, an empty regular file, the caller's. 0 or -ENOMEM. */
int tree_new(int fd, const struct tree_limits *limits, unsigned flags, struct tree **ret);
/* Takes NULL. */
void tree_free(struct tree *t);

/* What follows is of the next layer up. The first one has begun. */
void tree_next_layer(struct tree *t);

/* Anything but a regular file. */
int tree_add(struct tree *t, const struct tree_entry *entry, struct error *err);
/* Another name of what is at `target`, which is there already and no directory (-EXDEV: it is not). */
int tree_link(struct tree *t, struct str path, struct str target, struct error *err);
/* A regular file: begun, its contents in order as in erofs_file_write(), ended. tree_file() returns 1 when the entry is not to be kept (a whiteout): then nothing else follows of it. */
int tree_file(struct tree *t, const struct tree_entry *entry, struct error *err);
int tree_file_data(struct tree *t, uint64_t offset, const void *p, size_t n, struct error *err);
int tree_file_end(struct tree *t, struct error *err);

/* A directory of which nothing is known but that it is there. */
int tree_imply(struct tree *t, struct str path, struct error *err);

/* Hides what layers below, of this tree and under the image, have of that name; not what this layer itself has. */
int tree_whiteout(struct tree *t, struct str path, struct error *err);
/* Hides what layers below have in that directory. */
int tree_opaque(struct tree *t, struct str path, struct error *err);

/*
 * A regular file, symbolic link, device, FIFO or socket whose contents are asked for at the end, when it is known to be still there. `identity`: the same in one layer: other names of the same file.
 */
int tree_later(struct tree *t, struct str path, mode_t type, uint64_t identity, struct error *err);

/* Gives what tree_later() was told: calls tree_add() or tree_file()... for it on this tree, with exactly this path. layer: its number, from 0. */
typedef int (*tree_fetch)(struct tree *t, unsigned layer, struct str path, void *arg, struct error *err);

/* Whether the layers below the image have that name: 1, 0 or -errno. With `ret` what they say of it as a directory, valid until the next call; its path is not looked at. */
typedef int (*tree_below)(struct str path, struct tree_entry *ret, void *arg);

struct tree_finish {
	bool lowest; /* nothing will be below the image: it has no marks */
	tree_fetch fetch; /* for tree_later() */
	tree_below below; /* NULL: not known. Then whiteouts stay that may hide nothing, and directories that were implied are marked (TREE_IMPLIED) */
	void *arg;
};

/* Completes the image (not synced). */
int tree_finish(struct tree *t, const struct tree_finish *how, struct tree_result *ret, struct error *err);

/* The path as it may stand in an error: text, cut to size bytes with its NUL (at least 8). */
void tree_quote(struct str path, char *to, size_t size);

#endif
