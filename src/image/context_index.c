#include "image/context_index.h"
#include "base/cleanup.h"
#include "base/map.h"
#include "image/path.h"
#include "image/sent_tar.h"

#include <archive_entry.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>

enum { MAGIC = 512 };

struct reading {
	struct context_index *ix;
	struct archive *a;
	size_t names, cap;
	struct map files; /* path to its place in the index + 1: what hard links lead to */
	struct error *err;
};

/* Paths so that everything in a directory follows it: a slash comes before all else. */
static int compare(struct str a, struct str b)
{
	size_t n = MIN(a.n, b.n);
	for (size_t i = 0; i < n; i++) {
		unsigned char x = (unsigned char)a.p[i], y = (unsigned char)b.p[i];
		if (x != y)
			return x == '/' ? -1 : y == '/' ? 1 : x < y ? -1 : 1;
	}
	return a.n < b.n ? -1 : a.n > b.n;
}

static int by_path(const void *a, const void *b)
{
	const struct context_entry *x = a, *y = b;
	int c = compare(str_of(x->path), str_of(y->path));
	return c ? c : x->order < y->order ? -1 : x->order > y->order;
}

static int broken(struct reading *r, const char *what)
{
	const char *text = archive_error_string(r->a);
	return error_set(r->err, -EINVAL, 400, "the context: %s%s%s", what, text ? ": " : "", text ? text : "");
}

static bool looks_packed(const unsigned char *p, size_t n)
{
	static const struct {
		const char *magic;
		size_t n;
	} known[] = {{"\x1f\x8b", 2}, {"BZh", 3}, {"\xfd" "7zXZ", 5}, {"\x28\xb5\x2f\xfd", 4}};
	for (size_t i = 0; i < ARRAY_SIZE(known); i++)
		if (n >= known[i].n && memcmp(p, known[i].magic, known[i].n) == 0)
			return true;
	return n >= MAGIC && memcmp(p + 257, "ustar", 5) == 0;
}

/* The digest of the contents; with holes that of the contents without them and of where the holes are, since a hole may claim any size. */
static int read_contents(struct reading *r, struct context_entry *e)
{
	unsigned char first[MAGIC], digest[EVP_MAX_MD_SIZE];
	size_t have = 0, n;
	const void *p;
	la_int64_t offset, at = 0;
	bool holes = false;
	int code;
	EVP_MD_CTX *hash = EVP_MD_CTX_new(), *places = EVP_MD_CTX_new();
	if (!hash || !places || !EVP_DigestInit_ex(hash, EVP_sha256(), NULL) || !EVP_DigestInit_ex(places, EVP_sha256(), NULL)) {
		EVP_MD_CTX_free(hash);
		EVP_MD_CTX_free(places);
		return error_errno(r->err, -ENOMEM, "context");
	}
	while ((code = archive_read_data_block(r->a, &p, &n, &offset)) == ARCHIVE_OK) {
		if (offset != at) {
			const la_int64_t hole[2] = {at, offset};
			EVP_DigestUpdate(places, hole, sizeof(hole));
			holes = true;
		}
		if (have < MAGIC && (uint64_t)offset == have) {
			memcpy(first + have, p, MIN(n, MAGIC - have));
			have += MIN(n, MAGIC - have);
		}
		EVP_DigestUpdate(hash, p, n);
		at = offset + (la_int64_t)n;
	}
	EVP_DigestFinal_ex(hash, digest, NULL);
	if (holes) {
		EVP_DigestUpdate(places, digest, SHA256_SIZE);
		EVP_DigestFinal_ex(places, digest, NULL);
	}
	EVP_MD_CTX_free(hash);
	EVP_MD_CTX_free(places);
	memcpy(e->digest, digest, SHA256_SIZE);
	e->packed = looks_packed(first, have);
	return code == ARCHIVE_EOF ? 0 : broken(r, e->path);
}

/* A hard link is what its target is; it came before. */
static int take_hard_link(struct reading *r, struct context_entry *e, const char *target)
{
	cleanup_buf struct buf clean = BUF_INIT;
	path_join(&clean, STR("/"), str_of(target));
	struct str path = str_from(buf_str(&clean), 1);
	uintptr_t at = (uintptr_t)map_get(&r->files, path);
	if (at) {
		const struct context_entry *o = &r->ix->entries[at - 1];
		e->mode = o->mode;
		e->size = o->size;
		e->packed = o->packed;
		memcpy(e->digest, o->digest, SHA256_SIZE);
		return 0;
	}
	return error_set(r->err, -EINVAL, 400, "the context: %.200s is a hard link to what is not there", e->path);
}

static int grow(struct reading *r)
{
	struct context_index *ix = r->ix;
	if (ix->n == CONTEXT_INDEX_ENTRIES || r->names > CONTEXT_INDEX_NAMES)
		return error_set(r->err, -E2BIG, 400, "the context has more than %d entries, or too long names", CONTEXT_INDEX_ENTRIES);
	if (ix->n == r->cap) {
		size_t cap = r->cap ? 2 * r->cap : 256;
		struct context_entry *more = reallocarray(ix->entries, cap, sizeof(*more));
		if (!more)
			return error_errno(r->err, -ENOMEM, "context");
		ix->entries = more;
		r->cap = cap;
	}
	return 0;
}

static int take_entry(struct reading *r, struct archive_entry *entry)
{
	cleanup_buf struct buf clean = BUF_INIT;
	const char *path = archive_entry_pathname(entry), *hard = archive_entry_hardlink(entry), *target = archive_entry_symlink(entry);
	if (!path)
		return broken(r, "an entry without a name");
	/* As if the archive was the root: nothing is above it. */
	path_join(&clean, STR("/"), str_of(path));
	struct str name = str_from(buf_str(&clean), 1);
	if (clean.failed)
		return error_errno(r->err, -ENOMEM, "context");
	if (name.n == 0)
		return 0;
	int code = grow(r);
	if (code < 0)
		return code;
	struct context_entry e = {.path = str_dup(name), .mode = archive_entry_mode(entry), .size = (uint64_t)MAX(archive_entry_size(entry), 0), .order = r->ix->n};
	if (target && S_ISLNK(e.mode))
		e.target = str_dup(str_of(target));
	r->names += name.n + (e.target ? strlen(e.target) : 0);
	code = !e.path || (S_ISLNK(e.mode) && !e.target) ? error_errno(r->err, -ENOMEM, "context") : hard ? take_hard_link(r, &e, hard) :
		S_ISREG(e.mode) ? read_contents(r, &e) : 0;
	if (code < 0) {
		free(e.path);
		free(e.target);
		return code;
	}
	r->ix->entries[r->ix->n++] = e;
	if (S_ISREG(e.mode) && map_put(&r->files, name, (void *)(uintptr_t)r->ix->n, NULL) < 0)
		return error_errno(r->err, -ENOMEM, "context");
	return 0;
}

/* Sorts; of a path that came several times the last one stays. */
static void settle(struct context_index *ix)
{
	size_t n = 0;
	if (ix->n)
		qsort(ix->entries, ix->n, sizeof(*ix->entries), by_path);
	for (size_t i = 0; i < ix->n; i++) {
		if (i + 1 < ix->n && strcmp(ix->entries[i].path, ix->entries[i + 1].path) == 0) {
			free(ix->entries[i].path);
			free(ix->entries[i].target);
		} else {
			ix->entries[n++] = ix->entries[i];
		}
	}
	ix->n = n;
}

static int read_all(struct reading *r, struct sent_tar *in)
{
	struct archive_entry *e;
	int code, k = 0;
	if (!sent_tar_open(r->a, in, sent_tar_give))
		return broken(r, "no tar");
	while (k == 0 && (code = archive_read_next_header(r->a, &e)) != ARCHIVE_EOF)
		k = code < ARCHIVE_WARN ? broken(r, "a broken tar") : take_entry(r, e);
	return k;
}

int context_index_read(struct context_index *ix, int fd, struct error *err)
{
	struct reading r = {.ix = ix, .a = archive_read_new(), .err = err};
	cleanup_free struct sent_tar *in = calloc(1, sizeof(*in));
	*ix = (struct context_index){0};
	if (in)
		in->fd = fd;
	int code = r.a && in ? read_all(&r, in) : error_errno(err, -ENOMEM, "context");
	archive_read_free(r.a);
	map_done(&r.files);
	settle(ix);
	return code;
}

void context_index_done(struct context_index *ix)
{
	for (size_t i = 0; i < ix->n; i++) {
		free(ix->entries[i].path);
		free(ix->entries[i].target);
	}
	free(ix->entries);
	*ix = (struct context_index){0};
}

/* The first entry that is not before the path. */
static size_t lower(const struct context_index *ix, struct str path)
{
	size_t low = 0, high = ix->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (compare(str_of(ix->entries[middle].path), path) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct context_entry *context_index_find(const struct context_index *ix, struct str path)
{
	size_t at = lower(ix, path);
	return at < ix->n && str_is(path, ix->entries[at].path) ? &ix->entries[at] : NULL;
}

static bool is_below(struct str dir, const char *path)
{
	struct str s = str_of(path);
	return str_starts(s, dir) && (s.n == dir.n || s.p[dir.n] == '/');
}

bool context_index_below(const struct context_index *ix, struct str path, size_t *ret_from, size_t *ret_to)
{
	bool all = str_is(path, ".");
	size_t from = all ? 0 : lower(ix, path), to = from;
	if (all)
		to = ix->n;
	while (to < ix->n && is_below(path, ix->entries[to].path))
		to++;
	*ret_from = from;
	*ret_to = to;
	return all || to > from;
}

int context_index_resolve(const struct context_index *ix, struct str path, struct buf *to)
{
	cleanup_buf struct buf done = BUF_INIT, rest = BUF_INIT;
	unsigned links = 0;
	size_t from, upto;
	path_join(&rest, STR("/"), path);
	buf_consume(&rest, 1);
	while (buf_len(&rest)) {
		struct str part = buf_str(&rest), tail = STR("");
		str_cut(buf_str(&rest), '/', &part, &tail);
		cleanup_buf struct buf next = BUF_INIT, left = BUF_INIT;
		path_join(&next, STR("/"), buf_str(&done));
		if (buf_len(&next) > 1)
			buf_add_c(&next, "/");
		buf_add_str(&next, part);
		struct str here = str_from(buf_str(&next), 1);
		const struct context_entry *e = context_index_find(ix, here);
		if (next.failed || rest.failed)
			return -ENOMEM;
		if (!e && !context_index_below(ix, here, &from, &upto))
			return -ENOENT;
		if (e && e->target) {
			if (++links > CONTEXT_INDEX_LINKS)
				return -ELOOP;
			/* The target from where the link stands, then the rest. */
			cleanup_buf struct buf dir = BUF_INIT, whole = BUF_INIT;
			path_join(&dir, STR("/"), buf_str(&done));
			path_join(&whole, buf_str(&dir), str_of(e->target));
			buf_add_c(&whole, "/");
			buf_add_str(&whole, tail);
			path_clean(&left, buf_str(&whole));
			buf_clear(&done);
			buf_clear(&rest);
			buf_add_str(&rest, str_from(buf_str(&left), 1));
		} else {
			buf_add_str(&left, tail);
			buf_clear(&done);
			buf_add_str(&done, here);
			buf_clear(&rest);
			buf_add_str(&rest, buf_str(&left));
		}
		if (left.failed || done.failed)
			return -ENOMEM;
	}
	return buf_add_str(to, buf_len(&done) ? buf_str(&done) : STR("."));
}
