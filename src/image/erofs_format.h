/* The parts of EROFS' format that the writer and the reader use: all numbers little-endian, offsets in bytes. */
#ifndef CUBICLE_IMAGE_EROFS_FORMAT_H
#define CUBICLE_IMAGE_EROFS_FORMAT_H

#include <stdint.h>

enum {
	EROFS_SUPER = 1024,
	EROFS_MAGIC = 0xe0f5e1e2,
	EROFS_COMPAT_CHECKSUM = 1, /* of the superblock */
	EROFS_COMPAT_MTIME = 2,    /* the times of inodes are mtimes */
	EROFS_INCOMPAT_CHUNKED = 4,
	EROFS_SLOT = 32, /* an inode's number is its offset in these */
	EROFS_EXTENDED = 1,
	EROFS_PLAIN = 0,
	EROFS_INLINE = 2,
	EROFS_CHUNKED = 4,
	EROFS_CHUNK_BITS = 31,
	EROFS_DIRENT = 12,
	EROFS_HOLE = 0xffffffff,
	EROFS_XATTR_HEAD = 12,
};

struct erofs_super {
	uint32_t magic, checksum, feature_compat;
	uint8_t block_bits, extra_slots;
	uint16_t root;
	uint64_t inodes, time;
	uint32_t time_ns, blocks, meta_block, xattr_block;
	uint8_t uuid[16], name[16];
	uint32_t feature_incompat;
	uint8_t unused[44];
} __attribute__((packed));

struct erofs_inode {
	uint16_t format;
	uint16_t xattr_count; /* 0: none; else their size is 12 + 4 (n - 1) */
	uint16_t mode, unused;
	uint64_t size;
	uint32_t where; /* block of the data, device number, or form of the chunks */
	uint32_t number;
	uint32_t uid, gid;
	uint64_t mtime;
	uint32_t mtime_ns, links;
	uint8_t unused2[16];
} __attribute__((packed));

struct erofs_dirent {
	uint64_t inode;
	uint16_t name;
	uint8_t type, unused;
} __attribute__((packed));

_Static_assert(sizeof(struct erofs_super) == 128, "superblock");
_Static_assert(sizeof(struct erofs_inode) == 64, "inode");
_Static_assert(sizeof(struct erofs_dirent) == EROFS_DIRENT, "directory entry");

#endif
