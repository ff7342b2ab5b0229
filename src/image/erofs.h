/*
 * Writes a read-only EROFS image (Linux, Documentation/filesystems/erofs.rst, fs/erofs/erofs_fs.h) that Linux 6.1 reads: uncompressed, 4 KiB blocks, extended inodes, attributes and short
 * tails inside the inodes' blocks, sparse files in chunks. One pass: contents go to the image as they come, with blocks of inodes between them, and memory is bounded.
 * The same calls in the same order give the same bytes.
 *
 * Every function returns 0 or a negative errno: -EDQUOT (the image would be larger than size_max), -E2BIG (attributes of one file), -ENOMEM, what writing gives (-ENOSPC, -EIO).
 * After an error only erofs_free() may follow.
 */
#ifndef CUBICLE_IMAGE_EROFS_H
#define CUBICLE_IMAGE_EROFS_H

#include "base/buf.h"

#include <sys/types.h>

enum {
	EROFS_BLOCK = 4096,
	EROFS_NAME_MAX = 255,
	EROFS_XATTR_MAX = 65535,      /* bytes of one value */
	EROFS_XATTRS_MAX = 128 * 1024, /* of all of one file, with their names */
	EROFS_ROOT_XATTRS_MAX = 2800, /* of the root directory */
};

struct erofs;

struct erofs_attr {
	mode_t mode; /* with the type */
	uint32_t uid, gid;
	int64_t mtime; /* seconds */
	uint32_t mtime_ns;
	uint32_t major, minor; /* of devices */
	struct str xattrs;     /* made by erofs_xattr_add(), or empty */
};

/* Where a sparse file has data. */
struct erofs_extent {
	uint64_t offset, length;
};

/* One name of a directory. */
struct erofs_name {
	struct str name; /* 1 to EROFS_NAME_MAX bytes, no slash */
	uint64_t inode;
	mode_t mode; /* the type */
};

/* Where a directory will be written. */
struct erofs_place {
	uint64_t inode; /* as in erofs_name */
	uint64_t data;  /* offset in the image of what is not inside the inode's block */
	uint64_t size;
	bool inlined;
};

/* Begins an image in fd: an empty regular file, the caller's; nothing else may write to it. */
int erofs_new(int fd, uint64_t size_max, struct erofs **ret);
/* Takes NULL. */
void erofs_free(struct erofs *e);

/* Appends one attribute to the set of a file: user.*, trusted.*, security.*, system.posix_acl_access and _default. -EOPNOTSUPP another name, -E2BIG. */
int erofs_xattr_add(struct buf *xattrs, struct str name, struct str value);

/* A regular file: begun, then its contents in order, then ended, which gives its inode. `extents` (ascending, within size, not overlapping) say where a sparse file has data; NULL: everywhere.
 * Data outside of them must not come, and all of `size` or of the extents must (-EINVAL). */
int erofs_file_begin(struct erofs *e, const struct erofs_attr *attr, uint64_t size, const struct erofs_extent *extents, size_t n_extents);
int erofs_file_write(struct erofs *e, uint64_t offset, const void *p, size_t n);
int erofs_file_end(struct erofs *e, uint64_t *ret_inode);

/* A symbolic link (target: 1 to 4095 bytes), device, FIFO or socket (target empty). */
int erofs_special(struct erofs *e, const struct erofs_attr *attr, struct str target, uint64_t *ret_inode);

/* An inode that is no directory has that many names (1 until this is said). */
int erofs_set_links(struct erofs *e, uint64_t inode, uint32_t links);

/*
 * Directories come when everything else is there: first each gets its place (names: all of them with "." and "..", sorted by their bytes; inodes are not looked at yet), the root directory too; then,
 * after the last place, each is written.
 */
int erofs_directory_place(struct erofs *e, const struct erofs_attr *attr, const struct erofs_name *names, size_t n, bool root, struct erofs_place *ret);
int erofs_directory_write(struct erofs *e, const struct erofs_attr *attr, uint32_t links, const struct erofs_name *names, size_t n, const struct erofs_place *place);

/* Writes what is still held and the superblock, with a UUID that follows from the inodes and names. Not synced. */
int erofs_finish(struct erofs *e, uint64_t *ret_size);

/* Bytes of the image until now. */
uint64_t erofs_size(const struct erofs *e);

#endif
