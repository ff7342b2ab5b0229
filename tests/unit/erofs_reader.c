#include "erofs_reader.h"

#include "base/cleanup.h"
#include "image/erofs_format.h"

#include <endian.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { BLOCK = 4096 };

struct link_count {
	uint64_t inode;
	uint32_t said, seen;
};

struct image {
	const unsigned char *p;
	uint64_t size;
	struct buf *text;
	struct link_count *links;
	size_t n_links, inodes;
};

static int wrong(struct image *im, const char *what, uint64_t where)
{
	buf_clear(im->text);
	buf_addf(im->text, "%s at %" PRIu64, what, where);
	return -EBADMSG;
}

#define CHECK(condition, where)                                                                              \
	do {                                                                                                 \
		if (!(condition))                                                                            \
			return wrong(im, #condition, (where));                                               \
	} while (0)

struct node {
	uint64_t at, size, data; /* data: of the plain blocks */
	unsigned layout;
	mode_t mode;
	uint32_t where, uid, gid, links, mtime_ns;
	int64_t mtime;
	uint64_t after; /* the inode and its attributes */
	uint64_t attributes;
};

static int read_node(struct image *im, uint64_t number, struct node *ret)
{
	struct erofs_inode i;
	uint64_t at = number * EROFS_SLOT;
	CHECK(number < im->size / EROFS_SLOT && at + sizeof(i) <= im->size, at);
	memcpy(&i, im->p + at, sizeof(i));
	unsigned format = le16toh(i.format), count = le16toh(i.xattr_count);
	CHECK((format & 1) == EROFS_EXTENDED && format >> 4 == 0, at);
	*ret = (struct node){.at = at, .size = le64toh(i.size), .layout = format >> 1, .mode = le16toh(i.mode), .where = le32toh(i.where), .uid = le32toh(i.uid), .gid = le32toh(i.gid),
		.links = le32toh(i.links), .mtime_ns = le32toh(i.mtime_ns), .mtime = (int64_t)le64toh(i.mtime)};
	ret->attributes = at + sizeof(i);
	ret->after = ret->attributes + (count ? EROFS_XATTR_HEAD + 4 * (uint64_t)(count - 1) : 0);
	ret->data = (uint64_t)ret->where * BLOCK;
	CHECK(ret->after <= im->size && ret->mtime_ns < 1000000000, at);
	CHECK(ret->layout == EROFS_PLAIN || ret->layout == EROFS_INLINE || (ret->layout == EROFS_CHUNKED && S_ISREG(ret->mode)), at);
	return 0;
}

/* Where the byte of the file is in the image, and for how long; *ret_at 0: a hole. */
static int locate(struct image *im, const struct node *n, uint64_t offset, uint64_t *ret_at, uint64_t *ret_length)
{
	if (n->layout == EROFS_CHUNKED) {
		unsigned shift = 12 + (n->where & EROFS_CHUNK_BITS);
		uint64_t chunk = offset >> shift, map = n->after + 4 * chunk, begin = chunk << shift;
		uint32_t block;
		CHECK((n->where & ~(uint32_t)EROFS_CHUNK_BITS) == 0 && map + 4 <= im->size, n->at);
		memcpy(&block, im->p + map, 4);
		block = le32toh(block);
		*ret_length = MIN(begin + (UINT64_C(1) << shift), n->size) - offset;
		*ret_at = block == EROFS_HOLE ? 0 : (uint64_t)block * BLOCK + (offset - begin);
		CHECK(block == EROFS_HOLE || (block > 0 && *ret_at + *ret_length <= im->size), n->at);
		return 0;
	}
	uint64_t plain = n->layout == EROFS_INLINE ? (n->size - 1) / BLOCK * BLOCK : n->size;
	if (offset >= plain) {
		*ret_at = n->after + (offset - plain);
		*ret_length = n->size - offset;
		CHECK(n->after % BLOCK + (n->size - plain) <= BLOCK && n->after / BLOCK == (n->at + 63) / BLOCK, n->at);
	} else {
		*ret_at = n->data + offset;
		*ret_length = plain - offset;
		CHECK(n->where > 0 && *ret_at + *ret_length <= im->size, n->at);
	}
	CHECK(*ret_at + *ret_length <= im->size, n->at);
	return 0;
}

/* At most max bytes of the contents. All of them are located. */
static int contents(struct image *im, const struct node *n, uint64_t max, struct buf *to)
{
	uint64_t at = 0, length = 0;
	for (uint64_t offset = 0; offset < n->size; offset += length) {
		int r = locate(im, n, offset, &at, &length);
		if (r < 0)
			return r;
		CHECK(length > 0, n->at);
		static const char zeros[64];
		uint64_t piece = MIN(length, max - MIN(max, (uint64_t)buf_len(to)));
		if (!at)
			piece = MIN(piece, sizeof(zeros));
		buf_add(to, at ? (const char *)im->p + at : zeros, piece);
	}
	return 0;
}

static void quoted(struct buf *text, struct str s)
{
	buf_add_c(text, " '");
	for (size_t i = 0; i < s.n; i++)
		buf_addf(text, s.p[i] < 0x20 || s.p[i] == 0x7f || (s.p[i] & 0x80) ? "\\%02x" : "%c", (unsigned char)s.p[i]);
	buf_add_c(text, "'");
}

static int attributes(struct image *im, const struct node *n)
{
	static const char *const prefixes[] = {"?", "user.", "system.posix_acl_access", "system.posix_acl_default", "trusted.", "?", "security."};
	if (n->after == n->attributes)
		return 0;
	for (uint64_t at = n->attributes + EROFS_XATTR_HEAD; at < n->after;) {
		const unsigned char *p = im->p + at;
		CHECK(at + 4 <= n->after, n->at);
		unsigned size = p[2] | (unsigned)p[3] << 8;
		CHECK(p[1] < ARRAY_SIZE(prefixes) && at + 4 + p[0] + size <= n->after, n->at);
		buf_addf(im->text, " %s%.*s=", prefixes[p[1]], p[0], (const char *)p + 4);
		quoted(im->text, str_n(p + 4 + p[0], MIN(size, 40u)));
		at += (4 + (uint64_t)p[0] + size + 3) / 4 * 4;
	}
	return 0;
}

static int count_link(struct image *im, uint64_t number, const struct node *n)
{
	for (size_t i = 0; i < im->n_links; i++)
		if (im->links[i].inode == number) {
			im->links[i].seen++;
			return 0;
		}
	im->inodes++;
	if (n->links == 1)
		return 0;
	im->links = realloc(im->links, (im->n_links + 1) * sizeof(*im->links));
	if (!im->links)
		abort();
	im->links[im->n_links++] = (struct link_count){number, n->links, 1};
	return 0;
}

static int describe(struct image *im, struct str path, uint64_t number, const struct node *n)
{
	static const char types[] = "?pc?d?b?f?l?s???";
	cleanup_buf struct buf bytes = BUF_INIT;
	buf_addf(im->text, "%.*s %c %04o %u:%u %u", STR_FMT(path), types[(n->mode & S_IFMT) >> 12], n->mode & 07777, n->uid, n->gid, n->links);
	buf_addf(im->text, " %" PRId64 ".%09u", n->mtime, n->mtime_ns);
	int r = S_ISREG(n->mode) || S_ISLNK(n->mode) ? contents(im, n, S_ISLNK(n->mode) ? 4096 : 24, &bytes) : 0;
	if (r < 0)
		return r;
	if (S_ISREG(n->mode))
		buf_addf(im->text, " %" PRIu64, n->size);
	if (S_ISLNK(n->mode) || (S_ISREG(n->mode) && n->size > 0 && n->size <= 24))
		quoted(im->text, buf_str(&bytes));
	if (S_ISCHR(n->mode) || S_ISBLK(n->mode))
		buf_addf(im->text, " %u:%u", n->where >> 8 & 0xfff, (n->where & 0xff) | (n->where >> 12 & 0xfff00));
	r = attributes(im, n);
	buf_add_c(im->text, "\n");
	return r < 0 || S_ISDIR(n->mode) ? r : count_link(im, number, n);
}

static int list(struct image *im, struct str path, uint64_t number, uint64_t parent, unsigned depth);

struct walk {
	struct str path;
	uint64_t number, parent;
	unsigned depth, own; /* 1: ".", 2: ".." were seen */
	uint32_t links;
	struct buf last; /* name */
};

static int visit(struct image *im, struct walk *w, struct str name, uint64_t number, unsigned type)
{
	static const mode_t modes[] = {0, S_IFREG, S_IFDIR, S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK, S_IFLNK};
	struct node n;
	int r = read_node(im, number, &n);
	if (r < 0)
		return r;
	CHECK(name.n > 0 && name.n <= 255 && !memchr(name.p, 0, name.n) && !memchr(name.p, '/', name.n), number);
	CHECK(type < ARRAY_SIZE(modes) && modes[type] == (n.mode & S_IFMT), n.at);
	size_t common = MIN(name.n, buf_len(&w->last));
	int order = common ? memcmp(buf_str(&w->last).p, name.p, common) : -1;
	CHECK(order < 0 || (order == 0 && buf_len(&w->last) < name.n), n.at);
	buf_clear(&w->last);
	buf_add_str(&w->last, name);
	if (str_is(name, ".") || str_is(name, "..")) {
		CHECK(number == (name.n == 1 ? w->number : w->parent), n.at);
		w->own |= (unsigned)name.n;
		return 0;
	}
	cleanup_buf struct buf path = BUF_INIT;
	if (w->depth > 0)
		buf_addf(&path, "%.*s/", STR_FMT(w->path));
	buf_add_str(&path, name);
	if (!S_ISDIR(n.mode))
		return describe(im, buf_str(&path), number, &n);
	w->links++;
	return list(im, buf_str(&path), number, w->number, w->depth + 1);
}

static int visit_block(struct image *im, struct walk *w, const unsigned char *p, size_t size)
{
	struct erofs_dirent d, next;
	CHECK(size >= sizeof(d), w->number);
	memcpy(&d, p, sizeof(d));
	size_t n = le16toh(d.name) / sizeof(d);
	CHECK(n > 0 && le16toh(d.name) % sizeof(d) == 0 && n * sizeof(d) < size, w->number);
	for (size_t i = 0; i < n; i++) {
		memcpy(&d, p + i * sizeof(d), sizeof(d));
		memcpy(&next, p + MIN(i + 1, n - 1) * sizeof(d), sizeof(next));
		size_t from = le16toh(d.name), to = i + 1 < n ? le16toh(next.name) : size;
		CHECK(from < to && to <= size, w->number);
		if (i + 1 == n)
			to = from + strnlen((const char *)p + from, to - from);
		int r = visit(im, w, str_n(p + from, to - from), le64toh(d.inode), d.type);
		if (r < 0)
			return r;
	}
	return 0;
}

static int list(struct image *im, struct str path, uint64_t number, uint64_t parent, unsigned depth)
{
	struct node n;
	struct walk w = {.path = path, .number = number, .parent = parent, .depth = depth, .links = 2};
	int r = read_node(im, number, &n);
	if (r < 0)
		return r;
	CHECK(depth < 2000 && S_ISDIR(n.mode) && n.size > 0 && n.size < im->size, n.at);
	im->inodes++;
	r = describe(im, path, number, &n);
	for (uint64_t offset = 0, at = 0, length = 0; r == 0 && offset < n.size; offset += BLOCK) {
		r = locate(im, &n, offset, &at, &length);
		if (r == 0)
			r = visit_block(im, &w, im->p + at, (size_t)MIN(MIN(length, n.size - offset), (uint64_t)BLOCK));
	}
	buf_done(&w.last);
	if (r < 0)
		return r;
	CHECK(w.own == 3 && w.links == n.links, n.at);
	return 0;
}

static uint32_t crc32c(const unsigned char *p, size_t n)
{
	uint32_t crc = ~0u;
	while (n--) {
		crc ^= *p++;
		for (int k = 0; k < 8; k++)
			crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
	}
	return crc;
}

static int check(struct image *im)
{
	struct erofs_super s;
	unsigned char first[BLOCK - EROFS_SUPER];
	CHECK(im->size >= BLOCK && im->size % BLOCK == 0, im->size);
	memcpy(&s, im->p + EROFS_SUPER, sizeof(s));
	memcpy(first, im->p + EROFS_SUPER, sizeof(first));
	memset(first + 4, 0, 4);
	CHECK(le32toh(s.magic) == EROFS_MAGIC && s.block_bits == 12 && s.extra_slots == 0, 0);
	CHECK(le32toh(s.checksum) == crc32c(first, sizeof(first)), 0);
	CHECK(le32toh(s.blocks) == im->size / BLOCK && (le32toh(s.feature_incompat) & ~(uint32_t)EROFS_INCOMPAT_CHUNKED) == 0, 0);
	int r = list(im, STR("/"), le16toh(s.root), le16toh(s.root), 0);
	if (r < 0)
		return r;
	for (size_t i = 0; i < im->n_links; i++)
		CHECK(im->links[i].said == im->links[i].seen, im->links[i].inode);
	/* Others may be there that an archive has replaced. */
	CHECK(im->inodes <= le64toh(s.inodes), im->inodes);
	return 0;
}

int erofs_list(int fd, struct buf *text)
{
	struct stat st;
	if (fstat(fd, &st) < 0 || st.st_size == 0)
		return -EBADMSG;
	struct image im = {.size = (uint64_t)st.st_size, .text = text};
	void *p = mmap(NULL, im.size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	im.p = p;
	int r = check(&im);
	free(im.links);
	munmap(p, im.size);
	return r;
}
