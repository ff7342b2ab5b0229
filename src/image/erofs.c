#include "image/erofs.h"
#include "base/fd.h"
#include "image/erofs_format.h"

#include <endian.h>
#include <openssl/evp.h>
#include <sys/stat.h>

enum {
	BUFFER = 512 * 1024,
	META_BLOCKS = 16,
	META = META_BLOCKS * EROFS_BLOCK,
	ROOT_INODE = (EROFS_SUPER + 128) / EROFS_SLOT,
	CHUNKS_MAX = 1 << 20, /* of one file: 4 MiB of map */
};

struct file {
	struct erofs_attr attr;
	struct buf xattrs; /* attr's own copy */
	uint64_t size, written, expected;
	uint64_t data;   /* where it begins in the image */
	uint64_t inline_from; /* the rest goes to `tail` */
	unsigned char tail[EROFS_BLOCK];
	uint32_t *map; /* chunked: blocks, little-endian */
	size_t map_n;
	unsigned chunk_shift;
	uint64_t chunk, chunk_end; /* the open one, and where its room in the image ends */
};

/*
 * The image is a run of blocks given out in order: to contents, which go through `out`, and to blocks of inodes, which are filled in `meta` until nothing fits any more.
 * Invariant: end is the first byte not given out, a multiple of the block size between calls; out holds [out_start, out_start + out_n).
 */
struct erofs {
	int fd;
	uint64_t size_max, end;
	uint32_t inodes;
	bool chunked;
	EVP_MD_CTX *hash;
	uint64_t out_start;
	size_t out_n;
	uint64_t meta_start; /* 0 = none yet */
	uint16_t meta_fill[META_BLOCKS];
	struct file file;
	unsigned char first[EROFS_BLOCK]; /* block 0: superblock and root directory */
	unsigned char meta[META];
	unsigned char out[BUFFER];
};

static uint64_t align(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

int erofs_new(int fd, uint64_t size_max, struct erofs **ret)
{
	struct erofs *e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->fd = fd;
	/* Block numbers have 32 bits. */
	e->size_max = MIN(size_max, (uint64_t)(UINT32_MAX - 1) * EROFS_BLOCK);
	e->end = EROFS_BLOCK;
	e->out_start = EROFS_BLOCK;
	e->hash = EVP_MD_CTX_new();
	if (!e->hash || !EVP_DigestInit_ex(e->hash, EVP_sha256(), NULL)) {
		erofs_free(e);
		return -ENOMEM;
	}
	*ret = e;
	return 0;
}

static void file_done(struct file *f)
{
	buf_done(&f->xattrs);
	free(f->map);
	f->map = NULL;
}

void erofs_free(struct erofs *e)
{
	if (!e)
		return;
	file_done(&e->file);
	EVP_MD_CTX_free(e->hash);
	free(e);
}

uint64_t erofs_size(const struct erofs *e)
{
	return e->end;
}

static int write_at(struct erofs *e, uint64_t offset, const void *p, size_t n)
{
	for (const char *c = p; n > 0;) {
		ssize_t done = pwrite(e->fd, c, n, (off_t)offset);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done < 0 ? -errno : -EIO;
		c += done;
		offset += (uint64_t)done;
		n -= (size_t)done;
	}
	return 0;
}

static int out_flush(struct erofs *e)
{
	int r = write_at(e, e->out_start, e->out, e->out_n);
	e->out_start += e->out_n;
	e->out_n = 0;
	return r;
}

/* There is room for n more bytes. */
static int room(const struct erofs *e, uint64_t n)
{
	return n > e->size_max || e->end > e->size_max - n ? -EDQUOT : 0;
}

/* Gives out n bytes that nobody writes now; what nobody writes ever stays a hole in the image's file. */
static int skip(struct erofs *e, uint64_t n)
{
	int r = room(e, n);
	if (r < 0)
		return r;
	if (n <= sizeof(e->out) - e->out_n && n < EROFS_BLOCK) {
		memset(e->out + e->out_n, 0, n);
		e->out_n += n;
	} else {
		r = out_flush(e);
		e->out_start += n;
	}
	e->end += n;
	return r;
}

static int append(struct erofs *e, const void *p, size_t n)
{
	int r = room(e, n);
	e->end += n;
	if (r == 0 && n > sizeof(e->out) - e->out_n)
		r = out_flush(e);
	if (r < 0)
		return r;
	if (n >= sizeof(e->out) / 2 && e->out_n == 0) {
		r = write_at(e, e->out_start, p, n);
		e->out_start += n;
	} else if (n > 0) {
		memcpy(e->out + e->out_n, p, n);
		e->out_n += n;
	}
	return r;
}

static int pad(struct erofs *e)
{
	return skip(e, align(e->end, EROFS_BLOCK) - e->end);
}

static int hash(struct erofs *e, const void *p, size_t n)
{
	return EVP_DigestUpdate(e->hash, p, n) ? 0 : -ENOMEM;
}

static int meta_flush(struct erofs *e)
{
	if (!e->meta_start)
		return 0;
	size_t used = META_BLOCKS;
	while (used > 0 && e->meta_fill[used - 1] == 0)
		used--;
	used *= EROFS_BLOCK;
	int r = hash(e, e->meta, used);
	if (r == 0)
		r = write_at(e, e->meta_start, e->meta, used);
	/* What is not needed of the last blocks given out goes back. */
	if (e->meta_start + META == e->end && e->out_n == 0)
		e->end = e->out_start = e->meta_start + used;
	e->meta_start = 0;
	return r;
}

/* The block of the open ones that has room for n bytes, or -1. */
static int meta_find(const struct erofs *e, size_t n)
{
	for (int i = 0; e->meta_start && i < META_BLOCKS; i++)
		if (EROFS_BLOCK - e->meta_fill[i] >= (int)n)
			return i;
	return -1;
}

static size_t meta_used(const struct erofs *e)
{
	size_t used = 0;
	for (int i = 0; i < META_BLOCKS; i++)
		used += e->meta_fill[i];
	return used;
}

/* A place of n bytes within one block of inodes. */
static int meta_place(struct erofs *e, size_t n, uint64_t *ret_offset, unsigned char **ret)
{
	int i = meta_find(e, n);
	if (i < 0) {
		int r = meta_flush(e);
		uint64_t start = e->end;
		if (r == 0)
			r = skip(e, META);
		if (r < 0)
			return r;
		e->meta_start = start;
		memset(e->meta, 0, sizeof(e->meta));
		memset(e->meta_fill, 0, sizeof(e->meta_fill));
		i = 0;
	}
	size_t at = (size_t)i * EROFS_BLOCK + e->meta_fill[i];
	e->meta_fill[i] = (uint16_t)align(e->meta_fill[i] + n, EROFS_SLOT);
	*ret_offset = e->meta_start + at;
	*ret = e->meta + at;
	return 0;
}

/* Attributes */

static const struct {
	const char *prefix;
	uint8_t index;
	bool whole; /* it is the name itself */
} prefixes[] = {
	{"user.", 1, false},
	{"system.posix_acl_access", 2, true},
	{"system.posix_acl_default", 3, true},
	{"trusted.", 4, false},
	{"security.", 6, false},
};

int erofs_xattr_add(struct buf *xattrs, struct str name, struct str value)
{
	for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
		struct str prefix = str_of(prefixes[i].prefix), rest = str_from(name, prefix.n);
		if (!str_starts(name, prefix) || prefixes[i].whole != (rest.n == 0))
			continue;
		if (rest.n > UINT8_MAX || value.n > EROFS_XATTR_MAX || buf_len(xattrs) + 8 + rest.n + value.n > EROFS_XATTRS_MAX)
			return -E2BIG;
		uint16_t size = htole16((uint16_t)value.n);
		unsigned char head[4] = {(unsigned char)rest.n, prefixes[i].index};
		memcpy(head + 2, &size, 2);
		static const char zeros[4];
		size_t n = sizeof(head) + rest.n + value.n;
		buf_add(xattrs, head, sizeof(head));
		buf_add_str(xattrs, rest);
		buf_add_str(xattrs, value);
		return buf_add(xattrs, zeros, align(n, 4) - n) < 0 || xattrs->failed ? -ENOMEM : 0;
	}
	return -EOPNOTSUPP;
}

/* Inodes */

static size_t inode_size(const struct erofs_attr *attr)
{
	return sizeof(struct erofs_inode) + (attr->xattrs.n ? EROFS_XATTR_HEAD + attr->xattrs.n : 0);
}

/* Writes an inode and its attributes at `to`: inode_size(attr) bytes. */
static void inode_put(unsigned char *to, uint32_t number, const struct erofs_attr *attr, unsigned layout, uint64_t size, uint32_t where, uint32_t links)
{
	struct erofs_inode i = {
		.format = htole16((uint16_t)(EROFS_EXTENDED | layout << 1)),
		.xattr_count = htole16((uint16_t)(attr->xattrs.n ? 1 + attr->xattrs.n / 4 : 0)),
		.mode = htole16((uint16_t)attr->mode),
		.size = htole64(size),
		.where = htole32(where),
		.number = htole32(number),
		.uid = htole32(attr->uid),
		.gid = htole32(attr->gid),
		.mtime = htole64((uint64_t)attr->mtime),
		.mtime_ns = htole32(attr->mtime_ns),
		.links = htole32(links),
	};
	memcpy(to, &i, sizeof(i));
	if (attr->xattrs.n) {
		memset(to + sizeof(i), 0, EROFS_XATTR_HEAD);
		memcpy(to + sizeof(i) + EROFS_XATTR_HEAD, attr->xattrs.p, attr->xattrs.n);
	}
}

/* An inode, with what follows it within its block (tail) or in as many blocks as it takes (map). */
static int inode_add(struct erofs *e, const struct erofs_attr *attr, unsigned layout, uint64_t size, uint32_t where, struct str after, uint64_t *ret_inode)
{
	size_t head = inode_size(attr), n = head + after.n;
	uint64_t offset;
	int r;
	e->inodes++;
	if (n > EROFS_BLOCK) {
		cleanup_free unsigned char *whole = calloc(1, n);
		if (!whole)
			return -ENOMEM;
		inode_put(whole, e->inodes, attr, layout, size, where, 1);
		if (after.n)
			memcpy(whole + head, after.p, after.n);
		offset = e->end;
		r = hash(e, whole, n);
		if (r == 0)
			r = append(e, whole, n);
		if (r == 0)
			r = pad(e);
	} else {
		unsigned char *p;
		r = meta_place(e, n, &offset, &p);
		if (r == 0) {
			inode_put(p, e->inodes, attr, layout, size, where, 1);
			if (after.n)
				memcpy(p + head, after.p, after.n);
		}
	}
	if (r == 0)
		*ret_inode = offset / EROFS_SLOT;
	return r;
}

/* Whether the last bytes of a file go beside its inode: not where a group of blocks that has still much room would have to be closed for it. */
static bool worth_inlining(const struct erofs *e, const struct erofs_attr *attr, size_t tail)
{
	size_t n = inode_size(attr) + tail;
	return tail > 0 && n <= EROFS_BLOCK && (meta_find(e, n) >= 0 || !e->meta_start || meta_used(e) > META / 8 * 7);
}

/* Regular files */

/* Chunks as small as the map for them allows: a hole costs a word of the map for each, a piece of data up to two half empty ones. */
static int begin_chunks(struct erofs *e, uint64_t size, size_t n_extents)
{
	struct file *f = &e->file;
	unsigned shift = 12;
	while (shift < 40 && ((size >> shift) > CHUNKS_MAX || ((size >> shift) * 4 > ((uint64_t)n_extents << (shift + 1)))))
		shift++;
	f->chunk_shift = shift;
	f->map_n = (size_t)((size + (UINT64_C(1) << shift) - 1) >> shift);
	f->map = malloc(f->map_n * sizeof(*f->map));
	if (!f->map)
		return -ENOMEM;
	memset(f->map, 0xff, f->map_n * sizeof(*f->map));
	f->chunk = UINT64_MAX;
	f->chunk_end = e->end;
	e->chunked = true;
	return 0;
}

int erofs_file_begin(struct erofs *e, const struct erofs_attr *attr, uint64_t size, const struct erofs_extent *extents, size_t n_extents)
{
	struct file *f = &e->file;
	file_done(f);
	*f = (struct file){.attr = *attr, .size = size, .expected = size, .data = e->end, .inline_from = size / EROFS_BLOCK * EROFS_BLOCK};
	if (buf_add_str(&f->xattrs, attr->xattrs) < 0)
		return -ENOMEM;
	f->attr.xattrs = buf_str(&f->xattrs);
	if (!extents)
		return room(e, size);
	f->expected = 0;
	for (size_t i = 0; i < n_extents; i++)
		f->expected += extents[i].length;
	if (size == 0 || f->expected == size)
		return room(e, size);
	int r = room(e, f->expected);
	return r < 0 ? r : begin_chunks(e, size, n_extents);
}

static int chunk_close(struct erofs *e)
{
	uint64_t end = e->file.chunk_end;
	return end > e->end ? skip(e, end - e->end) : 0;
}

static int chunk_write(struct erofs *e, uint64_t offset, const char *p, size_t n)
{
	struct file *f = &e->file;
	uint64_t length = UINT64_C(1) << f->chunk_shift;
	for (int r; n > 0;) {
		uint64_t chunk = offset >> f->chunk_shift, begin = chunk << f->chunk_shift;
		if (chunk != f->chunk) {
			if ((r = chunk_close(e)) < 0)
				return r;
			f->chunk = chunk;
			f->chunk_end = e->end + align(MIN(length, f->size - begin), EROFS_BLOCK);
			f->map[chunk] = htole32((uint32_t)(e->end / EROFS_BLOCK));
			f->data = e->end;
		}
		uint64_t at = f->data + (offset - begin);
		size_t piece = (size_t)MIN((uint64_t)n, begin + length - offset);
		if (at > e->end && (r = skip(e, at - e->end)) < 0)
			return r;
		if ((r = append(e, p, piece)) < 0)
			return r;
		offset += piece;
		p += piece;
		n -= piece;
	}
	return 0;
}

int erofs_file_write(struct erofs *e, uint64_t offset, const void *p, size_t n)
{
	struct file *f = &e->file;
	if (n > f->expected - f->written || offset > f->size || n > f->size - offset)
		return -EINVAL;
	f->written += n;
	if (f->map)
		return chunk_write(e, offset, p, n);
	size_t plain = offset >= f->inline_from ? 0 : (size_t)MIN((uint64_t)n, f->inline_from - offset);
	int r = append(e, p, plain);
	if (n > plain)
		memcpy(f->tail + (offset + plain - f->inline_from), (const char *)p + plain, n - plain);
	return r;
}

static int end_chunks(struct erofs *e, uint64_t *ret_inode)
{
	struct file *f = &e->file;
	int r = chunk_close(e);
	if (r == 0)
		r = pad(e);
	return r < 0 ? r : inode_add(e, &f->attr, EROFS_CHUNKED, f->size, f->chunk_shift - 12, str_n(f->map, f->map_n * sizeof(*f->map)), ret_inode);
}

int erofs_file_end(struct erofs *e, uint64_t *ret_inode)
{
	struct file *f = &e->file;
	if (f->written != f->expected)
		return -EINVAL;
	int r;
	if (f->map) {
		r = end_chunks(e, ret_inode);
	} else {
		size_t tail = (size_t)(f->size - f->inline_from);
		bool inlined = worth_inlining(e, &f->attr, tail);
		r = inlined ? 0 : append(e, f->tail, tail);
		if (r == 0)
			r = pad(e);
		if (r == 0)
			r = inode_add(e, &f->attr, inlined ? EROFS_INLINE : EROFS_PLAIN, f->size, (uint32_t)(f->data / EROFS_BLOCK),
				inlined ? str_n(f->tail, tail) : STR(""), ret_inode);
	}
	file_done(f);
	return r;
}

int erofs_special(struct erofs *e, const struct erofs_attr *attr, struct str target, uint64_t *ret_inode)
{
	if (!S_ISLNK(attr->mode)) {
		uint32_t device = S_ISCHR(attr->mode) || S_ISBLK(attr->mode) ? (attr->minor & 0xff) | attr->major << 8 | (attr->minor & ~0xffu) << 12 : 0;
		return inode_add(e, attr, EROFS_PLAIN, 0, device, STR(""), ret_inode);
	}
	if (worth_inlining(e, attr, target.n))
		return inode_add(e, attr, EROFS_INLINE, target.n, 0, target, ret_inode);
	uint64_t data = e->end;
	int r = append(e, target.p, target.n);
	if (r == 0)
		r = pad(e);
	return r < 0 ? r : inode_add(e, attr, EROFS_PLAIN, target.n, (uint32_t)(data / EROFS_BLOCK), STR(""), ret_inode);
}

int erofs_set_links(struct erofs *e, uint64_t inode, uint32_t links)
{
	uint64_t at = inode * EROFS_SLOT + offsetof(struct erofs_inode, links);
	uint32_t value = htole32(links);
	if (e->meta_start && at >= e->meta_start && at < e->meta_start + META) {
		memcpy(e->meta + (at - e->meta_start), &value, sizeof(value));
		return 0;
	}
	int r = at >= e->out_start ? out_flush(e) : 0;
	if (r == 0)
		r = hash(e, &value, sizeof(value));
	return r < 0 ? r : write_at(e, at, &value, sizeof(value));
}

/* Directories */

static uint8_t file_type(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return 1;
	case S_IFDIR:
		return 2;
	case S_IFCHR:
		return 3;
	case S_IFBLK:
		return 4;
	case S_IFIFO:
		return 5;
	case S_IFSOCK:
		return 6;
	case S_IFLNK:
		return 7;
	default:
		return 0;
	}
}

/* How many of the names go into the next block of a directory, and their bytes. */
static size_t block_take(const struct erofs_name *names, size_t n, size_t *ret_bytes)
{
	size_t taken = 0, bytes = 0;
	while (taken < n && bytes + EROFS_DIRENT + names[taken].name.n <= EROFS_BLOCK)
		bytes += EROFS_DIRENT + names[taken++].name.n;
	*ret_bytes = bytes;
	return taken;
}

/* The entries first, then their names. */
static void block_put(unsigned char *to, const struct erofs_name *names, size_t n)
{
	size_t at = n * EROFS_DIRENT;
	for (size_t i = 0; i < n; i++) {
		struct erofs_dirent d = {.inode = htole64(names[i].inode), .name = htole16((uint16_t)at), .type = file_type(names[i].mode)};
		memcpy(to + i * EROFS_DIRENT, &d, sizeof(d));
		memcpy(to + at, names[i].name.p, names[i].name.n);
		at += names[i].name.n;
	}
}

int erofs_directory_place(struct erofs *e, const struct erofs_attr *attr, const struct erofs_name *names, size_t n, bool root, struct erofs_place *ret)
{
	uint64_t size = 0;
	size_t last = 0, head = inode_size(attr);
	for (size_t i = 0, taken; i < n; i += taken) {
		size = align(size, EROFS_BLOCK);
		taken = block_take(names + i, n - i, &last);
		size += last;
	}
	size_t available = root ? EROFS_BLOCK - ROOT_INODE * EROFS_SLOT : EROFS_BLOCK;
	if (head > available && root)
		return -E2BIG;
	struct erofs_place place = {.size = size, .inlined = head + last <= available};
	uint64_t outside = place.inlined ? size - last : align(size, EROFS_BLOCK), offset = ROOT_INODE * EROFS_SLOT;
	unsigned char *p;
	place.data = e->end;
	int r = outside ? skip(e, outside) : 0;
	if (r == 0 && !root && head > EROFS_BLOCK) {
		offset = e->end;
		r = skip(e, align(head, EROFS_BLOCK));
	} else if (r == 0 && !root) {
		r = meta_place(e, head + (place.inlined ? last : 0), &offset, &p);
	}
	e->inodes++;
	place.inode = offset / EROFS_SLOT;
	if (r == 0)
		*ret = place;
	return r;
}

/* Into the image, wherever the place is. */
static int put(struct erofs *e, uint64_t offset, const void *p, size_t n)
{
	int r = hash(e, p, n);
	if (r < 0)
		return r;
	if (offset < EROFS_BLOCK) {
		memcpy(e->first + offset, p, n);
		return 0;
	}
	return write_at(e, offset, p, n);
}

int erofs_directory_write(struct erofs *e, const struct erofs_attr *attr, uint32_t links, const struct erofs_name *names, size_t n, const struct erofs_place *place)
{
	unsigned char block[EROFS_BLOCK];
	size_t head = inode_size(attr), bytes = 0, i = 0;
	/* What was placed is zeros until now; it must not be written after this. */
	int r = meta_flush(e);
	if (r == 0 && e->out_n > 0)
		r = out_flush(e);
	cleanup_free unsigned char *inode = calloc(1, head + EROFS_BLOCK);
	if (!inode)
		return -ENOMEM;
	inode_put(inode, (uint32_t)place->inode, attr, place->inlined ? EROFS_INLINE : EROFS_PLAIN, place->size, (uint32_t)(place->data / EROFS_BLOCK), links);
	for (uint64_t at = 0; r == 0 && i < n; at += EROFS_BLOCK) {
		size_t taken = block_take(names + i, n - i, &bytes);
		bool beside = place->inlined && i + taken == n;
		memset(block, 0, sizeof(block));
		block_put(block, names + i, taken);
		i += taken;
		if (beside)
			memcpy(inode + head, block, bytes);
		else
			r = put(e, place->data + at, block, sizeof(block));
	}
	return r < 0 ? r : put(e, place->inode * EROFS_SLOT, inode, head + (place->inlined ? bytes : 0));
}

/* CRC-32C as the kernel computes it: seeded with ones and not inverted at the end. */
static uint32_t checksum(const unsigned char *p, size_t n)
{
	uint32_t crc = UINT32_MAX;
	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return crc;
}

int erofs_finish(struct erofs *e, uint64_t *ret_size)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	int r = meta_flush(e);
	if (r == 0)
		r = out_flush(e);
	if (r < 0)
		return r;
	if (!EVP_DigestFinal_ex(e->hash, digest, NULL))
		return -ENOMEM;
	struct erofs_super s = {
		.magic = htole32(EROFS_MAGIC),
		.feature_compat = htole32(EROFS_COMPAT_CHECKSUM | EROFS_COMPAT_MTIME),
		.block_bits = 12,
		.root = htole16(ROOT_INODE),
		.inodes = htole64(e->inodes),
		.blocks = htole32((uint32_t)(e->end / EROFS_BLOCK)),
		.feature_incompat = htole32(e->chunked ? EROFS_INCOMPAT_CHUNKED : 0),
	};
	memcpy(s.uuid, digest, sizeof(s.uuid));
	s.uuid[6] = (uint8_t)((s.uuid[6] & 0x0f) | 0x80); /* RFC 9562, version 8 */
	s.uuid[8] = (uint8_t)((s.uuid[8] & 0x3f) | 0x80);
	memcpy(e->first + EROFS_SUPER, &s, sizeof(s));
	s.checksum = htole32(checksum(e->first + EROFS_SUPER, EROFS_BLOCK - EROFS_SUPER));
	memcpy(e->first + EROFS_SUPER, &s, sizeof(s));
	r = write_at(e, 0, e->first, sizeof(e->first));
	if (r == 0 && ftruncate(e->fd, (off_t)e->end) < 0)
		r = -errno;
	if (r == 0)
		*ret_size = e->end;
	return r;
}
