#include "guest/tar.h"

#include "base/cleanup.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* What extended headers say of a member. Views into r->global and r->local. */
struct extended {
	bool has_path, has_link, has_size, has_uid, has_gid, has_mtime, has_realsize;
	struct str path, link;
	uint64_t size, uid, gid, realsize;
	int64_t mtime;
	uint32_t mtime_ns;
	uint64_t sparse_major, sparse_minor;
	bool sparse, sparse_name; /* sparse_name: the path is made up */
	bool has_offset;          /* GNU.sparse.offset came, its numbytes follows */
	uint64_t offset;
};

struct tar_reader {
	struct tar_source from;
	struct str in; /* received, not taken */
	char block[TAR_BLOCK];
	const char *why;
	struct buf global, local, long_name, long_link; /* of the member to come */
	struct buf name;
	struct tar_entry entry;
	struct extended x;
	struct tar_xattr xattrs[TAR_MAX_XATTRS];
	struct tar_extent *extents;
	size_t n_extents, cap_extents;
	/* Data of the current member. */
	uint64_t stored, padding; /* bytes of it, and behind it, that are still to come */
	size_t extent;            /* where we are */
	uint64_t extent_done;
};

struct tar_reader *tar_reader_new(const struct tar_source *from)
{
	struct tar_reader *r = calloc(1, sizeof(*r));
	if (r) {
		r->from = *from;
		r->why = "";
	}
	return r;
}

void tar_reader_free(struct tar_reader *r)
{
	if (!r)
		return;
	struct buf *all[] = {&r->global, &r->local, &r->long_name, &r->long_link, &r->name};
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		buf_done(all[i]);
	free(r->extents);
	free(r);
}

const char *tar_why(const struct tar_reader *r)
{
	return r->why;
}

static int bad(struct tar_reader *r, const char *why)
{
	r->why = why;
	return -EPROTO;
}

static int too_much(struct tar_reader *r, const char *why)
{
	r->why = why;
	return -EMSGSIZE;
}

/* ---- bytes ---- */

/* Something in r->in: 0, -EPIPE at the end. */
static int fill(struct tar_reader *r)
{
	while (!r->in.n) {
		int e = r->from.next(r->from.arg, &r->in);
		if (e == 0) {
			r->why = "it stops before its end";
			return -EPIPE;
		}
		if (e < 0)
			return e;
	}
	return 0;
}

/* At most n bytes, at least one. */
static int take(struct tar_reader *r, uint64_t n, struct str *ret)
{
	int e = fill(r);
	if (e < 0)
		return e;
	*ret = str_n(r->in.p, (size_t)MIN(n, (uint64_t)r->in.n));
	r->in = str_from(r->in, ret->n);
	return 0;
}

static int skip(struct tar_reader *r, uint64_t *n)
{
	while (*n) {
		struct str part;
		int e = take(r, *n, &part);
		if (e < 0)
			return e;
		*n -= part.n;
	}
	return 0;
}

static int read_block(struct tar_reader *r)
{
	for (size_t got = 0; got < TAR_BLOCK;) {
		struct str part;
		int e = take(r, TAR_BLOCK - got, &part);
		if (e < 0)
			return e;
		memcpy(r->block + got, part.p, part.n);
		got += part.n;
	}
	return 0;
}

/* The data of an extended header, of n bytes, and what pads it. */
static int read_into(struct tar_reader *r, uint64_t n, size_t max, struct buf *to)
{
	uint64_t padding = tar_padding(n);
	buf_clear(to);
	if (n > max)
		return too_much(r, "an extended header is too long");
	while (n) {
		struct str part;
		int e = take(r, n, &part);
		if (e == 0)
			e = buf_add_str(to, part);
		if (e < 0)
			return e;
		n -= part.n;
	}
	return skip(r, &padding);
}

/* ---- numbers ---- */

static int count(struct tar_reader *r, size_t at, size_t n, uint64_t *ret)
{
	return tar_natural(r->block + at, n, ret) < 0 ? bad(r, "a number of a header is malformed") : 0;
}

/* ---- extended headers ---- */

static int add_extent(struct tar_reader *r, uint64_t at, uint64_t n)
{
	if (r->n_extents == TAR_MAX_EXTENTS)
		return too_much(r, "a sparse file has too many parts");
	if (r->n_extents == r->cap_extents) {
		size_t cap = r->cap_extents ? 2 * r->cap_extents : 64;
		struct tar_extent *grown = reallocarray(r->extents, cap, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		r->extents = grown;
		r->cap_extents = cap;
	}
	r->extents[r->n_extents++] = (struct tar_extent){at, n};
	return 0;
}

static int read_sparse_list(struct tar_reader *r, struct str v)
{
	while (v.n) {
		uint64_t at, n;
		if (tar_sparse_pair(&v, &at, &n) < 0)
			return bad(r, "the map of a sparse file is malformed");
		int e = add_extent(r, at, n);
		if (e < 0)
			return e;
	}
	return 0;
}

static int take_sparse(struct tar_reader *r, struct str key, struct str v)
{
	struct extended *x = &r->x;
	uint64_t n = 0;
	bool is_number = str_to_u64(v, &n) == 0;
	if (str_is(key, "name")) {
		x->path = v;
		x->has_path = x->sparse_name = true;
		return 0;
	}
	x->sparse = true;
	if (str_is(key, "map"))
		return read_sparse_list(r, v);
	if (!is_number)
		return bad(r, "the map of a sparse file is malformed");
	if (str_is(key, "major")) {
		x->sparse_major = n;
	} else if (str_is(key, "minor")) {
		x->sparse_minor = n;
	} else if (str_is(key, "realsize") || str_is(key, "size")) {
		x->realsize = n;
		x->has_realsize = true;
	} else if (str_is(key, "offset")) {
		x->offset = n;
		x->has_offset = true;
	} else if (str_is(key, "numbytes")) {
		if (!x->has_offset)
			return bad(r, "the map of a sparse file is malformed");
		x->has_offset = false;
		return add_extent(r, x->offset, n);
	}
	return 0;
}

static int take_xattr(struct tar_reader *r, struct str name, struct str value)
{
	size_t i = 0;
	if (!name.n || memchr(name.p, '\0', name.n))
		return bad(r, "the name of an extended attribute is malformed");
	while (i < r->entry.n_xattrs && !str_eq(r->xattrs[i].name, name))
		i++;
	if (i == TAR_MAX_XATTRS)
		return too_much(r, "a member has too many extended attributes");
	r->xattrs[i] = (struct tar_xattr){name, value};
	r->entry.n_xattrs = MAX(r->entry.n_xattrs, i + 1);
	return 0;
}

static int take_number(struct tar_reader *r, struct str v, uint64_t *ret, bool *ret_has)
{
	if (!v.n) {
		*ret_has = false; /* an empty value: as if it had not been said before */
		return 0;
	}
	*ret_has = true;
	/* Some programs write fractions. */
	struct str rest;
	str_cut(v, '.', &v, &rest);
	return str_to_u64(v, ret) < 0 ? bad(r, "a number of an extended header is malformed") : 0;
}

static int take_record(struct tar_reader *r, struct str key, struct str v)
{
	const struct str xattr = STR("SCHILY.xattr."), sparse = STR("GNU.sparse.");
	struct extended *x = &r->x;
	if (str_is(key, "path")) {
		if (x->sparse_name)
			return 0;
		x->path = v;
		x->has_path = v.n > 0;
	} else if (str_is(key, "linkpath")) {
		x->link = v;
		x->has_link = v.n > 0;
	} else if (str_is(key, "size")) {
		return take_number(r, v, &x->size, &x->has_size);
	} else if (str_is(key, "uid")) {
		return take_number(r, v, &x->uid, &x->has_uid);
	} else if (str_is(key, "gid")) {
		return take_number(r, v, &x->gid, &x->has_gid);
	} else if (str_is(key, "mtime")) {
		x->has_mtime = v.n > 0;
		if (v.n && tar_time(v, &x->mtime, &x->mtime_ns) < 0)
			return bad(r, "a time of an extended header is malformed");
	} else if (str_starts(key, xattr)) {
		return take_xattr(r, str_from(key, xattr.n), v);
	} else if (str_starts(key, sparse)) {
		return take_sparse(r, str_from(key, sparse.n), v);
	}
	return 0; /* unknown keys are passed over (pax(1)) */
}

static int take_records(struct tar_reader *r, struct str all)
{
	while (all.n) {
		struct str key, value;
		if (tar_record(&all, &key, &value) < 0)
			return bad(r, "an extended header is malformed");
		int e = take_record(r, key, value);
		if (e < 0)
			return e;
	}
	return 0;
}

/* ---- members ---- */

static enum tar_type type_of(char flag, struct str name)
{
	switch (flag) {
	case '\0':
		return name.n && name.p[name.n - 1] == '/' ? TAR_DIRECTORY : TAR_FILE;
	case '0':
	case '7':
	case 'S':
		return TAR_FILE;
	case '1':
		return TAR_HARDLINK;
	case '2':
		return TAR_SYMLINK;
	case '3':
	case '4':
		return TAR_DEVICE;
	case '5':
	case 'D':
		return TAR_DIRECTORY;
	case '6':
		return TAR_FIFO;
	default:
		return TAR_OTHER;
	}
}

static bool has_data(char flag)
{
	return !(flag >= '1' && flag <= '6');
}

static int check_name(struct tar_reader *r, struct str name)
{
	if (name.n > TAR_MAX_NAME)
		return too_much(r, "a name is too long");
	return !name.n || memchr(name.p, '\0', name.n) ? bad(r, "a name is empty or holds a NUL") : 0;
}

static int set_names(struct tar_reader *r)
{
	struct tar_entry *e = &r->entry;
	struct str prefix = tar_field(r->block + TAR_AT_PREFIX, 155);
	buf_clear(&r->name);
	if (r->x.has_path) {
		e->name = r->x.path;
	} else if (buf_len(&r->long_name)) {
		e->name = str_n(buf_str(&r->long_name).p, strnlen(buf_str(&r->long_name).p, buf_len(&r->long_name)));
	} else {
		/* GNU's magic is "ustar  ": it has other things in the prefix's place. */
		if (memcmp(r->block + TAR_AT_MAGIC, "ustar", 6) == 0 && prefix.n) {
			buf_add_str(&r->name, prefix);
			buf_add_c(&r->name, "/");
		}
		if (buf_add_str(&r->name, tar_field(r->block + TAR_AT_NAME, 100)) < 0)
			return -ENOMEM;
		e->name = buf_str(&r->name);
	}
	if (r->x.has_link)
		e->link = r->x.link;
	else if (buf_len(&r->long_link))
		e->link = str_n(buf_str(&r->long_link).p, strnlen(buf_str(&r->long_link).p, buf_len(&r->long_link)));
	else
		e->link = tar_field(r->block + TAR_AT_LINK, 100);
	int x = check_name(r, e->name);
	return x == 0 && (e->type == TAR_HARDLINK || e->type == TAR_SYMLINK) ? check_name(r, e->link) : x;
}

static int set_numbers(struct tar_reader *r)
{
	struct tar_entry *e = &r->entry;
	const struct extended *x = &r->x;
	uint64_t mode = 0;
	int q = count(r, TAR_AT_MODE, 8, &mode);
	if (q == 0 && !x->has_uid)
		q = count(r, TAR_AT_UID, 8, &e->uid);
	if (q == 0 && !x->has_gid)
		q = count(r, TAR_AT_GID, 8, &e->gid);
	if (q == 0 && !x->has_mtime && tar_number(r->block + TAR_AT_MTIME, 12, &e->mtime) < 0)
		q = bad(r, "a number of a header is malformed");
	if (q < 0)
		return q;
	e->mode = mode & 07777;
	if (x->has_uid)
		e->uid = x->uid;
	if (x->has_gid)
		e->gid = x->gid;
	if (x->has_mtime) {
		e->mtime = x->mtime;
		e->mtime_ns = x->mtime_ns;
	}
	return 0;
}

static int old_extents(struct tar_reader *r, size_t at, size_t n)
{
	for (size_t i = 0; i < n && r->block[at + i * TAR_PAIR]; i++) {
		uint64_t from, length;
		int e = count(r, at + i * TAR_PAIR, 12, &from);
		if (e == 0)
			e = count(r, at + i * TAR_PAIR + 12, 12, &length);
		if (e == 0)
			e = add_extent(r, from, length);
		if (e < 0)
			return e;
	}
	return 0;
}

/* GNU's old form: in the header, and in blocks behind it. */
static int read_old_sparse(struct tar_reader *r)
{
	int e = count(r, TAR_AT_SPARSE_SIZE, 12, &r->entry.size);
	if (e == 0)
		e = old_extents(r, TAR_AT_SPARSE, TAR_PAIRS_OF_HEADER);
	bool more = r->block[TAR_AT_SPARSE_MORE];
	while (e == 0 && more) {
		if ((e = read_block(r)) == 0)
			e = old_extents(r, 0, TAR_PAIRS_OF_BLOCK);
		more = r->block[TAR_AT_EXTENSION_MORE];
	}
	return e;
}

/* A number and its newline, out of the data. */
static int stored_number(struct tar_reader *r, uint64_t *ret)
{
	uint64_t value = 0;
	for (unsigned digits = 0;; digits++) {
		struct str one;
		if (!r->stored || digits > 20)
			return bad(r, "the map of a sparse file is malformed");
		int e = take(r, 1, &one);
		if (e < 0)
			return e;
		r->stored--;
		if (*one.p == '\n' && digits)
			break;
		if (*one.p < '0' || *one.p > '9' || value > (UINT64_MAX - 9) / 10)
			return bad(r, "the map of a sparse file is malformed");
		value = 10 * value + (uint64_t)(*one.p - '0');
	}
	*ret = value;
	return 0;
}

/* Form 1.0: the map leads the data, padded to whole blocks. */
static int read_stored_map(struct tar_reader *r)
{
	uint64_t before = r->stored, n, at, length;
	int e = stored_number(r, &n);
	for (uint64_t i = 0; e == 0 && i < n; i++) {
		if ((e = stored_number(r, &at)) == 0 && (e = stored_number(r, &length)) == 0)
			e = add_extent(r, at, length);
	}
	if (e < 0)
		return e;
	uint64_t padding = tar_padding(before - r->stored);
	if (padding > r->stored)
		return bad(r, "the map of a sparse file is malformed");
	r->stored -= padding;
	return skip(r, &padding);
}

static int check_extents(struct tar_reader *r)
{
	uint64_t end = 0, sum = 0;
	for (size_t i = 0; i < r->n_extents; i++) {
		const struct tar_extent *x = &r->extents[i];
		if (x->at < end || x->n > r->entry.size || x->at > r->entry.size - x->n)
			return bad(r, "the map of a sparse file is malformed");
		end = x->at + x->n;
		sum += x->n;
	}
	if (sum != r->stored)
		return bad(r, "the map of a sparse file does not fit its data");
	r->entry.sparse = true;
	r->entry.extents = r->extents;
	r->entry.n_extents = r->n_extents;
	return 0;
}

static int set_data(struct tar_reader *r, char flag)
{
	struct extended *x = &r->x;
	int e = 0;
	if (!has_data(flag))
		return 0;
	if (x->has_size)
		r->stored = x->size;
	else
		e = count(r, TAR_AT_SIZE, 12, &r->stored);
	if (e < 0)
		return e;
	if (r->stored > INT64_MAX)
		return bad(r, "a size is impossible");
	r->padding = tar_padding(r->stored);
	r->entry.size = r->stored;
	if (r->entry.type != TAR_FILE)
		return 0;
	if (x->has_offset || (x->sparse && !x->has_realsize))
		return bad(r, "the map of a sparse file is malformed");
	if (x->sparse)
		r->entry.size = x->realsize;
	if (flag == 'S')
		e = read_old_sparse(r);
	else if (x->sparse && x->sparse_major == 1 && x->sparse_minor == 0)
		e = read_stored_map(r);
	else if (x->sparse && x->sparse_major != 0)
		e = bad(r, "a sparse file has an unknown form");
	if (e == 0 && r->entry.size > INT64_MAX)
		e = bad(r, "a size is impossible");
	return e == 0 && (flag == 'S' || x->sparse) ? check_extents(r) : e;
}

static int make_entry(struct tar_reader *r, char flag)
{
	r->entry = (struct tar_entry){.xattrs = r->xattrs};
	r->x = (struct extended){0};
	r->n_extents = r->extent = 0;
	r->extent_done = 0;
	int e = take_records(r, buf_str(&r->global));
	if (e == 0)
		e = take_records(r, buf_str(&r->local));
	if (e < 0)
		return e;
	r->entry.type = type_of(flag, tar_field(r->block + TAR_AT_NAME, 100));
	e = set_names(r);
	if (e == 0)
		e = set_numbers(r);
	return e == 0 ? set_data(r, flag) : e;
}

/* An extended header, for what comes: 1; 0 when it is none. */
static int read_extended(struct tar_reader *r, char flag)
{
	struct buf *to = flag == 'x' || flag == 'X' ? &r->local
			 : flag == 'g'              ? &r->global
			 : flag == 'L'              ? &r->long_name
			 : flag == 'K'              ? &r->long_link
						    : NULL;
	uint64_t size;
	if (!to)
		return 0;
	int e = count(r, TAR_AT_SIZE, 12, &size);
	/* With the NUL behind a long name. */
	if (e == 0)
		e = read_into(r, size, flag == 'L' || flag == 'K' ? TAR_MAX_NAME + 1 : flag == 'g' ? TAR_MAX_GLOBAL : TAR_MAX_HEADER, to);
	return e < 0 ? e : 1;
}

int tar_next(struct tar_reader *r, const struct tar_entry **ret)
{
	int e = skip(r, &r->stored);
	if (e == 0)
		e = skip(r, &r->padding);
	buf_clear(&r->local);
	buf_clear(&r->long_name);
	buf_clear(&r->long_link);
	for (bool announced = false; e == 0;) {
		if ((e = read_block(r)) < 0)
			break;
		if (tar_is_zero(r->block))
			return announced ? bad(r, "nothing follows an extended header") : 0;
		if (!tar_checksum_holds(r->block))
			return bad(r, "it is no tar archive, or damaged: a checksum is wrong");
		char flag = r->block[TAR_AT_TYPE];
		if ((e = read_extended(r, flag)) == 1) {
			announced = flag != 'g';
			e = 0;
			continue;
		}
		if (e == 0 && (e = make_entry(r, flag)) == 0) {
			*ret = &r->entry;
			return 1;
		}
	}
	return e;
}

int tar_data(struct tar_reader *r, struct str *ret, uint64_t *ret_at)
{
	uint64_t most = r->stored;
	if (!r->stored)
		return 0;
	if (r->entry.sparse) {
		while (r->extent_done == r->extents[r->extent].n) {
			r->extent++;
			r->extent_done = 0;
		}
		*ret_at = r->extents[r->extent].at + r->extent_done;
		most = r->extents[r->extent].n - r->extent_done;
	} else {
		*ret_at = r->entry.size - r->stored;
	}
	int e = take(r, most, ret);
	if (e < 0)
		return e;
	r->stored -= ret->n;
	r->extent_done += ret->n;
	return 1;
}
