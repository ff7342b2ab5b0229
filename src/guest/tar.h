/*
 * Archives in tar's format: POSIX.1-2017 ustar and pax (pax(1), "EXTENDED DESCRIPTION"), and of GNU tar's what is met: long names, numbers in base 256, sparse
 * files (old form 'S', and 0.0, 0.1, 1.0 in pax headers). Extended attributes are SCHILY.xattr.<name>, as GNU tar, libarchive and bsdtar write them. No I/O.
 */
#ifndef CUBICLE_GUEST_TAR_H
#define CUBICLE_GUEST_TAR_H

#include "base/buf.h"
#include "io/tar_header.h"

enum {
	TAR_MAX_NAME = 4095,           /* of a member, of what a link names */
	TAR_MAX_HEADER = 1024 * 1024,  /* an extended header */
	TAR_MAX_GLOBAL = 16 * 1024,    /* one that holds for all that follow it: it is read again with each */
	TAR_MAX_XATTRS = 128,          /* of a member */
	TAR_MAX_EXTENTS = 1024 * 1024, /* of a sparse member */
};

enum tar_type {
	TAR_FILE,
	TAR_HARDLINK,
	TAR_SYMLINK,
	TAR_DIRECTORY,
	TAR_FIFO,
	TAR_DEVICE,
	TAR_OTHER, /* volume labels and the like: nothing to be made of */
};

struct tar_xattr {
	struct str name, value; /* the name without the prefix, and without a NUL */
};

/* Data of a sparse file; what no extent holds is a hole. */
struct tar_extent {
	uint64_t at, n;
};

struct tar_entry {
	enum tar_type type;
	struct str name, link; /* not empty where they mean something, without a NUL, at most TAR_MAX_NAME */
	unsigned mode;         /* 07777 */
	uint64_t uid, gid;
	int64_t mtime; /* seconds since 1970 */
	uint32_t mtime_ns;
	uint64_t size; /* TAR_FILE: of the file with its holes */
	const struct tar_xattr *xattrs;
	size_t n_xattrs;
	bool sparse;
	const struct tar_extent *extents; /* ascending, apart, within size */
	size_t n_extents;
};

/* ---- reading ---- */

struct tar_source {
	/* The next bytes, valid until the next call: 1; 0 at the end; negative errno. */
	int (*next)(void *arg, struct str *ret);
	void *arg;
};

struct tar_reader;
/* NULL without memory. The second takes NULL. */
struct tar_reader *tar_reader_new(const struct tar_source *from);
void tar_reader_free(struct tar_reader *r);

/*
 * The next member, valid until the next call; data of the one before that was not taken is passed over. 1; 0 at the archive's end, its block of zeros; -EPROTO:
 * malformed, -EPIPE: it stops before its end, -EMSGSIZE: over a limit above (tar_why() says what is wrong), -ENOMEM, or what the source said.
 */
int tar_next(struct tar_reader *r, const struct tar_entry **ret);
/* The next bytes of a TAR_FILE and where in the file they belong; valid until the next call. 1; 0 at its end; negative errno as above. */
int tar_data(struct tar_reader *r, struct str *ret, uint64_t *ret_at);
/* What was wrong, in words. Static. */
const char *tar_why(const struct tar_reader *r);

/* ---- writing ---- */

/*
 * Appends what stands before a member's data: its header, with an extended one before it when that is needed, and the map of a sparse file. After it belong the
 * data (of a sparse file: of its extents, one after the other) and zeros up to a multiple of TAR_BLOCK (tar_padding()). 0 or -ENOMEM.
 */
int tar_add_header(struct buf *to, const struct tar_entry *e);
/* Appends the end of an archive. 0 or -ENOMEM. */
int tar_add_end(struct buf *to);

#endif
