/*
 * What readers of tar archives share: blocks and numbers of POSIX.1-2017 ustar and pax (pax(1)), and of what GNU tar adds to them. Bytes are hostile. All return views into what they are given,
 * and 0 or negative errno where nothing else is said.
 */
#ifndef CUBICLE_IO_TAR_HEADER_H
#define CUBICLE_IO_TAR_HEADER_H

#include "base/str.h"

enum { TAR_BLOCK = 512 };

/* Places in a header block; GNU's old form of sparse files has its map in place of the prefix. */
enum {
	TAR_AT_NAME = 0,
	TAR_AT_MODE = 100,
	TAR_AT_UID = 108,
	TAR_AT_GID = 116,
	TAR_AT_SIZE = 124,
	TAR_AT_MTIME = 136,
	TAR_AT_CHECKSUM = 148,
	TAR_AT_TYPE = 156,
	TAR_AT_LINK = 157,
	TAR_AT_MAGIC = 257,
	TAR_AT_MAJOR = 329,
	TAR_AT_MINOR = 337,
	TAR_AT_PREFIX = 345,
	TAR_AT_SPARSE = 386,         /* pairs of offset and length, 12 bytes each */
	TAR_AT_SPARSE_MORE = 482,    /* not 0: blocks of more pairs follow, */
	TAR_AT_SPARSE_SIZE = 483,
	TAR_AT_EXTENSION_MORE = 504, /* each of which says at this place whether it is the last */
};
enum { TAR_PAIRS_OF_HEADER = 4, TAR_PAIRS_OF_BLOCK = 21, TAR_PAIR = 24 };

/* Octal digits between spaces, or GNU's base 256 when the first bit is set. -EINVAL, -ERANGE; the second: also when it is negative. */
int tar_number(const char *p, size_t n, int64_t *ret);
int tar_natural(const char *p, size_t n, uint64_t *ret);
/* The bytes of a field up to a NUL. */
struct str tar_field(const char *p, size_t n);
/* Zeros behind so many bytes of data. */
static inline size_t tar_padding(uint64_t n)
{
	return (size_t)(-n % TAR_BLOCK);
}

/* Of unsigned bytes, as the standard has it, or of signed ones, as some old programs do. */
bool tar_checksum_holds(const char *block);
bool tar_is_zero(const char *block);

/* pax: takes the first of "<length of all> <key>=<value>\n" off. -EINVAL. */
int tar_record(struct str *all, struct str *ret_key, struct str *ret_value);
/* "1234", "-1234.5": seconds, and what is behind the point to nanoseconds. -EINVAL, -ERANGE. */
int tar_time(struct str s, int64_t *ret, uint32_t *ret_ns);
/* GNU.sparse.map: takes the first "offset,length" off. -EINVAL. */
int tar_sparse_pair(struct str *map, uint64_t *ret_offset, uint64_t *ret_length);

#endif
