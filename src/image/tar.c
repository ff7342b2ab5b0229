#include "image/tar.h"
#include "base/cleanup.h"
#include "io/tar_header.h"

#include <sys/stat.h>

/* What extended headers have said of the entry at hand. */
struct said {
	bool path, link, size, uid, gid, mtime;
	struct str path_value, link_value;
	uint64_t size_value, uid_value, gid_value, real_size;
	int64_t mtime_value;
	uint32_t mtime_ns;
	bool sparse, sparse_1_0, real, sparse_name;
	struct str sparse_name_value;
};

struct tar {
	struct tar_limits limits;
	tar_source source;
	void *arg;
	struct str in;          /* not taken yet of what the source gave */
	uint64_t body, padding; /* of the entry at hand, not taken yet */
	char *extended;         /* headers of the entry, room for limits.header; views of `said` point into it */
	size_t extended_n;
	struct buf names;       /* path and target that are put together */
	struct said said;
	struct tree_xattr *xattrs;
	size_t n_xattrs, xattrs_cap;
	struct erofs_extent *extents;
	size_t n_extents, extents_cap;
	size_t extent; /* whose data is next */
	uint64_t within; /* of it, taken */
	bool half_extent; /* sparse 0.0: an offset without its length: */
	uint64_t pair_offset;
	char name[160];
};

struct tar *tar_new(const struct tar_limits *limits, tar_source source, void *arg)
{
	struct tar *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	*t = (struct tar){.limits = *limits, .source = source, .arg = arg, .extended = malloc((size_t)limits->header + 1)};
	if (t->extended)
		return t;
	free(t);
	return NULL;
}

void tar_free(struct tar *t)
{
	if (!t)
		return;
	free(t->extended);
	buf_done(&t->names);
	free(t->xattrs);
	free(t->extents);
	free(t);
}

static int malformed(const struct tar *t, const char *what, struct error *err)
{
	return t->name[0] ? error_set(err, -EBADMSG, 400, "%s: %s", t->name, what) : error_set(err, -EBADMSG, 400, "the tar archive: %s", what);
}

static int truncated(const struct tar *t, struct error *err)
{
	return malformed(t, "the archive ends within it", err);
}

/* Bytes */

/* At least one byte in t->in: 1, 0 at the end, -errno. */
static int fill(struct tar *t, struct error *err)
{
	return t->in.n > 0 ? 1 : t->source(t->arg, &t->in, err);
}

static int skip(struct tar *t, uint64_t n, struct error *err)
{
	while (n > 0) {
		int r = fill(t, err);
		if (r <= 0)
			return r < 0 ? r : truncated(t, err);
		size_t piece = (size_t)MIN(n, (uint64_t)t->in.n);
		t->in = str_from(t->in, piece);
		n -= piece;
	}
	return 0;
}

/* Exactly n bytes to `to`: 1, 0 at the end before the first, -errno. */
static int take(struct tar *t, char *to, size_t n, struct error *err)
{
	for (size_t done = 0; done < n;) {
		int r = fill(t, err);
		if (r < 0)
			return r;
		if (r == 0)
			return done ? truncated(t, err) : 0;
		size_t piece = MIN(n - done, t->in.n);
		memcpy(to + done, t->in.p, piece);
		t->in = str_from(t->in, piece);
		done += piece;
	}
	return 1;
}

/* The body of an extended header, kept until the next entry. */
static int take_extended(struct tar *t, struct str *ret, struct error *err)
{
	if (t->body > t->limits.header - t->extended_n)
		return error_set(err, -EDQUOT, 413, "the tar archive: an entry with more than %u bytes of headers", t->limits.header);
	size_t n = (size_t)t->body;
	char *to = t->extended + t->extended_n;
	int r = n ? take(t, to, n, err) : 1;
	if (r <= 0)
		return r < 0 ? r : truncated(t, err);
	t->extended_n += n;
	*ret = str_n(to, n);
	r = skip(t, t->padding, err);
	t->body = t->padding = 0;
	return r;
}

/* Sparse files */

static int add_extent(struct tar *t, uint64_t offset, uint64_t length, struct error *err)
{
	const struct erofs_extent *last = t->n_extents ? &t->extents[t->n_extents - 1] : NULL;
	if (length > UINT64_MAX / 4 || offset > UINT64_MAX / 4 || (last && offset < last->offset + last->length))
		return malformed(t, "its map of holes is wrong", err);
	if (length == 0)
		return 0;
	if (t->n_extents >= t->limits.extents)
		return error_set(err, -EDQUOT, 413, "%s: a sparse file of more than %u pieces", t->name, t->limits.extents);
	if (t->n_extents == t->extents_cap) {
		size_t cap = t->extents_cap ? t->extents_cap * 2 : 32;
		struct erofs_extent *grown = realloc(t->extents, cap * sizeof(*grown));
		if (!grown)
			return error_errno(err, -ENOMEM, "reading a tar archive");
		t->extents = grown;
		t->extents_cap = cap;
	}
	t->extents[t->n_extents++] = (struct erofs_extent){offset, length};
	return 0;
}

/* Pairs of offset and length, 24 bytes each; the first empty one ends them. */
static int old_map(struct tar *t, const char *p, size_t n, struct error *err)
{
	for (size_t i = 0; i < n; i++, p += TAR_PAIR) {
		uint64_t offset = 0, length = 0;
		if (p[0] == '\0')
			return 0;
		if (tar_natural(p, 12, &offset) < 0 || tar_natural(p + 12, 12, &length) < 0)
			return malformed(t, "its map of holes is wrong", err);
		int r = add_extent(t, offset, length, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* GNU's old form: four pairs in the header, and as many blocks of 21 as say that there is more. */
static int read_old_map(struct tar *t, const char *header, struct error *err)
{
	char block[TAR_BLOCK];
	uint64_t size = 0;
	if (tar_natural(header + TAR_AT_SPARSE_SIZE, 12, &size) < 0)
		return malformed(t, "its size is no number", err);
	t->said.sparse = t->said.real = true;
	t->said.real_size = size;
	int r = old_map(t, header + TAR_AT_SPARSE, TAR_PAIRS_OF_HEADER, err);
	for (bool more = header[TAR_AT_SPARSE_MORE]; r == 0 && more; more = block[TAR_AT_EXTENSION_MORE]) {
		r = take(t, block, sizeof(block), err);
		if (r <= 0)
			return r < 0 ? r : truncated(t, err);
		r = old_map(t, block, TAR_PAIRS_OF_BLOCK, err);
	}
	return r;
}

/* A line of the map in the body (sparse 1.0): a number. */
static int map_number(struct tar *t, uint64_t *ret, struct error *err)
{
	uint64_t v = 0;
	for (unsigned digits = 0;; digits++) {
		int r = t->body ? fill(t, err) : 0;
		if (r <= 0)
			return r < 0 ? r : malformed(t, "its map of holes is cut", err);
		char c = t->in.p[0];
		t->in = str_from(t->in, 1);
		t->body--;
		if (c == '\n' && digits > 0)
			break;
		if (c < '0' || c > '9' || digits > 18)
			return malformed(t, "its map of holes is wrong", err);
		v = v * 10 + (uint64_t)(c - '0');
	}
	*ret = v;
	return 0;
}

static int read_body_map(struct tar *t, struct error *err)
{
	uint64_t before = t->body, n, offset, length;
	int r = map_number(t, &n, err);
	for (; r == 0 && n > 0; n--) {
		r = map_number(t, &offset, err);
		if (r == 0)
			r = map_number(t, &length, err);
		if (r == 0)
			r = add_extent(t, offset, length, err);
	}
	uint64_t rest = tar_padding(before - t->body);
	if (r == 0 && rest > t->body)
		r = malformed(t, "its map of holes is cut", err);
	if (r == 0)
		r = skip(t, rest, err);
	t->body -= r == 0 ? rest : 0;
	return r;
}

/* Sparse 0.1. */
static int read_text_map(struct tar *t, struct str map, struct error *err)
{
	uint64_t offset, length;
	t->n_extents = 0;
	while (map.n > 0) {
		if (tar_sparse_pair(&map, &offset, &length) < 0)
			return malformed(t, "its map of holes is wrong", err);
		int r = add_extent(t, offset, length, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The form 0.0 gives pairs as records that follow each other. */
static int read_pair(struct tar *t, bool is_length, struct str value, struct error *err)
{
	uint64_t v;
	if (str_to_u64(value, &v) < 0 || is_length != t->half_extent)
		return malformed(t, "its map of holes is wrong", err);
	t->half_extent = !is_length;
	if (is_length)
		return add_extent(t, t->pair_offset, v, err);
	t->pair_offset = v;
	return 0;
}

/* pax */

static int add_xattr(struct tar *t, struct str name, struct str value, struct error *err)
{
	for (size_t i = 0; i < t->n_xattrs; i++)
		if (str_eq(t->xattrs[i].name, name)) {
			t->xattrs[i].value = value;
			return 0;
		}
	if (t->n_xattrs >= 256)
		return error_set(err, -EDQUOT, 413, "%s: more than 256 extended attributes", t->name[0] ? t->name : "the tar archive");
	if (t->n_xattrs == t->xattrs_cap) {
		size_t cap = t->xattrs_cap ? t->xattrs_cap * 2 : 8;
		struct tree_xattr *grown = realloc(t->xattrs, cap * sizeof(*grown));
		if (!grown)
			return error_errno(err, -ENOMEM, "reading a tar archive");
		t->xattrs = grown;
		t->xattrs_cap = cap;
	}
	t->xattrs[t->n_xattrs++] = (struct tree_xattr){name, value};
	return 0;
}

static int number_record(struct str value, bool *said, uint64_t *ret)
{
	*said = value.n > 0;
	return value.n > 0 ? str_to_u64(value, ret) : 0;
}

static int sparse_record(struct tar *t, struct str key, struct str value, struct error *err)
{
	struct said *s = &t->said;
	int r = 0;
	s->sparse = true;
	if (str_is(key, "name")) {
		s->sparse_name = true;
		s->sparse_name_value = value;
	} else if (str_is(key, "realsize") || str_is(key, "size")) {
		r = number_record(value, &s->real, &s->real_size);
	} else if (str_is(key, "major")) {
		s->sparse_1_0 = str_is(value, "1");
		r = s->sparse_1_0 || str_is(value, "0") ? 0 : -EINVAL;
	} else if (str_is(key, "map")) {
		return read_text_map(t, value, err);
	} else if (str_is(key, "offset")) {
		return read_pair(t, false, value, err);
	} else if (str_is(key, "numbytes")) {
		return read_pair(t, true, value, err);
	}
	return r < 0 ? malformed(t, "an extended header of a sparse file is wrong", err) : 0;
}

static int record(struct tar *t, struct str key, struct str value, struct error *err)
{
	static const struct str sparse = STR("GNU.sparse."), xattr = STR("SCHILY.xattr.");
	struct said *s = &t->said;
	int r = 0;
	if (str_is(key, "path")) {
		s->path = value.n > 0;
		s->path_value = value;
	} else if (str_is(key, "linkpath")) {
		s->link = value.n > 0;
		s->link_value = value;
	} else if (str_is(key, "size")) {
		r = number_record(value, &s->size, &s->size_value);
	} else if (str_is(key, "uid")) {
		r = number_record(value, &s->uid, &s->uid_value);
	} else if (str_is(key, "gid")) {
		r = number_record(value, &s->gid, &s->gid_value);
	} else if (str_is(key, "mtime")) {
		s->mtime = value.n > 0;
		r = value.n > 0 ? tar_time(value, &s->mtime_value, &s->mtime_ns) : 0;
	} else if (str_starts(key, sparse)) {
		return sparse_record(t, str_from(key, sparse.n), value, err);
	} else if (str_starts(key, xattr)) {
		return add_xattr(t, str_from(key, xattr.n), value, err);
	}
	return r < 0 ? malformed(t, "a number in an extended header is wrong", err) : 0;
}

static int read_pax(struct tar *t, struct str all, struct error *err)
{
	while (all.n > 0) {
		struct str key, value;
		if (tar_record(&all, &key, &value) < 0)
			return malformed(t, "an extended header is wrong", err);
		int r = record(t, key, value, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Headers */

/* The type, and the length of the body as the header has it. 1, 0 at the end, -errno. */
static int read_header(struct tar *t, char *h, struct error *err)
{
	int r = take(t, h, TAR_BLOCK, err);
	if (r <= 0 || tar_is_zero(h))
		return MIN(r, 0);
	if (!tar_checksum_holds(h))
		return malformed(t, "a header's checksum is wrong", err);
	uint64_t size = 0;
	if (tar_natural(h + TAR_AT_SIZE, 12, &size) < 0 || size > UINT64_MAX / 4)
		return malformed(t, "a size is no number", err);
	t->body = size;
	t->padding = tar_padding(size);
	return 1;
}

static void entry_begin(struct tar *t)
{
	t->extended_n = 0;
	t->said = (struct said){0};
	t->n_xattrs = t->n_extents = t->extent = 0;
	t->within = 0;
	t->half_extent = false;
	t->name[0] = '\0';
}

/* Headers that speak of the next entry. 1: it was one. */
static int read_extension(struct tar *t, const char *h, struct error *err)
{
	struct str body;
	int r;
	switch (h[TAR_AT_TYPE]) {
	case 'x':
	case 'X': /* Solaris */
		r = take_extended(t, &body, err);
		if (r == 0)
			r = read_pax(t, body, err);
		break;
	case 'L':
		r = take_extended(t, &body, err);
		t->said.path = true;
		t->said.path_value = r == 0 ? tar_field(body.p, body.n) : STR("");
		break;
	case 'K':
		r = take_extended(t, &body, err);
		t->said.link = true;
		t->said.link_value = r == 0 ? tar_field(body.p, body.n) : STR("");
		break;
	case 'g': /* of all that follow: comments, in practice; others of these readers pass them over too */
	case 'V': /* a name of the archive */
		r = skip(t, t->body + t->padding, err);
		t->body = t->padding = 0;
		break;
	default:
		return 0;
	}
	return r < 0 ? r : 1;
}

/* The names of the entry, that point into t->extended or t->names. */
static int entry_names(struct tar *t, const char *h, struct tree_entry *e, struct error *err)
{
	buf_clear(&t->names);
	struct str prefix = memcmp(h + TAR_AT_MAGIC, "ustar", 6) == 0 ? tar_field(h + TAR_AT_PREFIX, 155) : STR(""), name = tar_field(h + TAR_AT_NAME, 100), link = tar_field(h + TAR_AT_LINK, 100);
	if (prefix.n) {
		buf_add_str(&t->names, prefix);
		buf_add_c(&t->names, "/");
	}
	buf_add_str(&t->names, name);
	size_t n = buf_len(&t->names);
	if (buf_add_str(&t->names, link) < 0 || t->names.failed)
		return error_errno(err, -ENOMEM, "reading a tar archive");
	struct str both = buf_str(&t->names);
	e->path = t->said.sparse_name ? t->said.sparse_name_value : t->said.path ? t->said.path_value : str_n(both.p, n);
	e->target = t->said.link ? t->said.link_value : str_from(both, n);
	tree_quote(e->path, t->name, sizeof(t->name));
	return e->path.n ? 0 : malformed(t, "an entry without a name", err);
}

static int entry_numbers(struct tar *t, const char *h, struct tree_entry *e, struct error *err)
{
	const struct said *s = &t->said;
	uint64_t mode = 0, major = 0, minor = 0;
	bool device = h[TAR_AT_TYPE] == '3' || h[TAR_AT_TYPE] == '4';
	if (tar_natural(h + TAR_AT_MODE, 8, &mode) < 0 || (!s->uid && tar_natural(h + TAR_AT_UID, 8, &e->uid) < 0) || (!s->gid && tar_natural(h + TAR_AT_GID, 8, &e->gid) < 0) ||
		(!s->mtime && tar_number(h + TAR_AT_MTIME, 12, &e->mtime) < 0) || (device && (tar_natural(h + TAR_AT_MAJOR, 8, &major) < 0 || tar_natural(h + TAR_AT_MINOR, 8, &minor) < 0)))
		return malformed(t, "a number in its header is wrong", err);
	if (s->uid)
		e->uid = s->uid_value;
	if (s->gid)
		e->gid = s->gid_value;
	if (s->mtime) {
		e->mtime = s->mtime_value;
		e->mtime_ns = s->mtime_ns;
	}
	e->mode = (mode_t)(mode & 07777);
	e->major = (uint32_t)MIN(major, (uint64_t)UINT32_MAX);
	e->minor = (uint32_t)MIN(minor, (uint64_t)UINT32_MAX);
	return 0;
}

/* A regular file: how long it is and where it has data. */
static int entry_file(struct tar *t, const char *h, struct tree_entry *e, struct error *err)
{
	struct said *s = &t->said;
	int r = 0;
	e->mode |= S_IFREG;
	t->within = 0;
	if (h[TAR_AT_TYPE] == 'S')
		r = read_old_map(t, h, err);
	else if (s->sparse_1_0)
		r = read_body_map(t, err);
	if (r < 0)
		return r;
	e->size = s->sparse && s->real ? s->real_size : t->body;
	if (!s->sparse)
		return 0;
	uint64_t data = 0;
	for (size_t i = 0; i < t->n_extents; i++) {
		const struct erofs_extent *x = &t->extents[i];
		data += x->length;
		if (x->offset > e->size || x->length > e->size - x->offset || data > t->body)
			return malformed(t, "its map of holes is wrong", err);
	}
	if (data != t->body || t->half_extent)
		return malformed(t, "its map of holes is wrong", err);
	static const struct erofs_extent none[1];
	e->extents = t->n_extents ? t->extents : none;
	e->n_extents = t->n_extents;
	return 0;
}

static int entry_kind(struct tar *t, const char *h, enum tar_type *ret_type, struct tree_entry *e, struct error *err)
{
	static const mode_t kinds[] = {['2' - '2'] = S_IFLNK, S_IFCHR, S_IFBLK, S_IFDIR, S_IFIFO, S_IFREG};
	const char type = h[TAR_AT_TYPE];
	bool slash = e->path.n > 0 && e->path.p[e->path.n - 1] == '/';
	*ret_type = TAR_ENTRY;
	switch (type) {
	case '\0':
	case '0':
	case '7':
	case 'S':
		/* What the first tar had for directories. */
		if (slash && type != 'S') {
			e->mode |= S_IFDIR;
			return 0;
		}
		*ret_type = TAR_FILE;
		return entry_file(t, h, e, err);
	case 'D': /* GNU: a directory, with a list of its names as body */
		e->mode |= S_IFDIR;
		return 0;
	case '1':
		*ret_type = TAR_LINK;
		break;
	case '2':
	case '3':
	case '4':
	case '5':
	case '6':
		e->mode |= kinds[type - '2'];
		break;
	default:
		return malformed(t, "an entry of an unknown type", err);
	}
	/* These have no body, whatever their size says. */
	t->body = t->padding = 0;
	return 0;
}

int tar_next(struct tar *t, enum tar_type *ret_type, struct tree_entry *ret, struct error *err)
{
	char h[TAR_BLOCK];
	int r = skip(t, t->body + t->padding, err);
	t->body = t->padding = 0;
	entry_begin(t);
	bool extended = false;
	while (r == 0 && (r = read_header(t, h, err)) > 0) {
		r = read_extension(t, h, err);
		if (r == 0) {
			r = 1;
			break;
		}
		r = MIN(r, 0);
		extended = true;
	}
	if (r == 0 && extended)
		return truncated(t, err);
	if (r <= 0)
		return r;
	struct tree_entry e = {.xattrs = t->xattrs};
	if ((r = entry_names(t, h, &e, err)) < 0 || (r = entry_numbers(t, h, &e, err)) < 0)
		return r;
	if (t->said.size) {
		if (t->said.size_value > UINT64_MAX / 4)
			return malformed(t, "its size is no number", err);
		t->body = t->said.size_value;
		t->padding = tar_padding(t->body);
	}
	if ((r = entry_kind(t, h, ret_type, &e, err)) < 0)
		return r;
	e.n_xattrs = t->n_xattrs;
	*ret = e;
	return 1;
}

int tar_data(struct tar *t, uint64_t *ret_offset, struct str *ret, struct error *err)
{
	if (t->body == 0)
		return 0;
	int r = fill(t, err);
	if (r <= 0)
		return r < 0 ? r : truncated(t, err);
	uint64_t n = MIN(t->body, (uint64_t)t->in.n), offset = t->within;
	if (t->said.sparse) {
		const struct erofs_extent *x = &t->extents[t->extent];
		n = MIN(n, x->length - t->within);
		offset += x->offset;
	}
	*ret_offset = offset;
	*ret = str_n(t->in.p, (size_t)n);
	t->in = str_from(t->in, (size_t)n);
	t->body -= n;
	t->within += n;
	if (t->said.sparse && t->within == t->extents[t->extent].length) {
		t->extent++;
		t->within = 0;
	}
	return 1;
}
