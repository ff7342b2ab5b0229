#include "image/copy_tar.h"
#include "base/cleanup.h"
#include "image/sent_tar.h"

#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ZEROS = 64 * 1024 };
#define MAX_FILE (INT64_C(1) << 40) /* bytes, with holes */

/* Where an archive is read from: a file, or a download when there is one. */
struct input {
	struct sent_tar file;
	struct envd_download *from;
	struct error *err; /* set when reading failed */
};

struct pass {
	struct copying *y;
	struct copy_source *sources;
	size_t n;
	struct envd_upload *up;
	struct archive *out;
	const char *base;  /* absolute directory that the upload goes below */
	struct buf parent; /* when that is the destination's parent */
	struct buf name;   /* of the member that is being placed, relative to it */
	struct error *err;
};

/* ---- reading ---- */

static la_ssize_t read_input(struct archive *a, void *arg, const void **ret)
{
	struct input *in = arg;
	ssize_t n;
	if (in->from) {
		*ret = in->file.piece;
		n = envd_download_read(in->from, in->file.piece, sizeof(in->file.piece), in->err);
	} else {
		n = sent_tar_give(a, &in->file, ret);
		if (n < 0)
			error_errno(in->err, -archive_errno(a), "the uploaded files");
	}
	if (n < 0)
		archive_set_error(a, EIO, "reading failed");
	return n < 0 ? -1 : n;
}

/* *in: a new one, freed after the archive. */
static struct archive *open_input(int fd, struct envd_download *from, struct input **in, struct error *err)
{
	struct archive *a = archive_read_new();
	*in = calloc(1, sizeof(**in));
	if (*in) {
		(*in)->file.fd = fd;
		(*in)->from = from;
		(*in)->err = err;
	}
	if (a && (!*in || !sent_tar_open(a, *in, read_input))) {
		archive_read_free(a);
		return NULL;
	}
	return a;
}

static int broken(struct error *err, struct archive *a)
{
	if (err->code < 0)
		return err->code;
	return error_set(err, -EBADMSG, 400, "the uploaded files are no tar archive: %.200s", a && archive_error_string(a) ? archive_error_string(a) : "unknown format");
}

/* A name of the archive without "./" and slashes at its ends. -EINVAL: it leads out. */
static int clean_name(const char *name, struct buf *to)
{
	struct str rest = str_of(name), part;
	buf_clear(to);
	while (rest.n) {
		if (!str_cut(rest, '/', &part, &rest)) {
			part = rest;
			rest = STR("");
		}
		if (part.n == 0 || str_is(part, "."))
			continue;
		if (str_is(part, ".."))
			return -EINVAL;
		if (buf_len(to))
			buf_add_c(to, "/");
		buf_add_str(to, part);
	}
	return buf_cstr(to) ? 0 : -ENOMEM;
}

/* The next entry that is read in vain is an error; a warning (a name in an odd charset) is not. 1, 0 at the end. */
static int next_entry(struct archive *a, struct archive_entry **ret, struct error *err)
{
	int r = archive_read_next_header(a, ret);
	if (r == ARCHIVE_EOF)
		return 0;
	return r < ARCHIVE_WARN || !archive_entry_pathname(*ret) ? broken(err, a) : 1;
}

/* ---- choosing ---- */

/* What of the source the entry is: *ret_rel, "" = the source itself. */
static bool belongs(const struct copy_source *s, struct str name, struct str *ret_rel)
{
	size_t n = s->whole ? 0 : strlen(s->path);
	if (n == 0 || str_is(name, s->path)) {
		*ret_rel = n ? STR("") : name;
		return true;
	}
	if (name.n <= n || name.p[n] != '/' || memcmp(name.p, s->path, n) != 0)
		return false;
	*ret_rel = str_from(name, n + 1);
	return true;
}

static struct copy_source *source_of(const struct pass *p, struct str name, struct str *ret_rel)
{
	for (size_t i = 0; i < p->n; i++)
		if (belongs(&p->sources[i], name, ret_rel))
			return &p->sources[i];
	return NULL;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---- writing ---- */

static la_ssize_t write_output(struct archive *a, void *arg, const void *bytes, size_t n)
{
	struct pass *p = arg;
	if (envd_upload_write(p->up, bytes, n, p->err) == 0)
		return (la_ssize_t)n;
	archive_set_error(a, EIO, "writing failed");
	return -1;
}

static int failed(struct pass *p)
{
	if (p->err->code < 0)
		return p->err->code;
	return error_set(p->err, -EIO, 500, "COPY: %.200s", p->out && archive_error_string(p->out) ? archive_error_string(p->out) : "writing failed");
}

/* The first entry of a source settles what is sent where. */
static int open_output(struct pass *p, bool below_dest)
{
	const char *dest = p->y->c->dest;
	p->base = dest;
	if (!below_dest) {
		size_t n = (size_t)(last_part(dest) - dest);
		buf_add(&p->parent, dest, n > 1 ? n - 1 : n);
		p->base = buf_cstr(&p->parent);
	}
	if (!p->base)
		return error_errno(p->err, -ENOMEM, "COPY");
	int r = envd_upload_open(p->y->to, p->base, &p->up, p->err);
	if (r < 0)
		return r;
	p->out = archive_write_new();
	if (!p->out || archive_write_set_format_pax(p->out) != ARCHIVE_OK || archive_write_set_bytes_per_block(p->out, 0) != ARCHIVE_OK ||
		archive_write_open(p->out, p, NULL, write_output, NULL) != ARCHIVE_OK)
		return failed(p);
	return 0;
}

static void dress(const struct pass *p, struct archive_entry *e)
{
	const struct copying *y = p->y;
	archive_entry_set_uname(e, NULL);
	archive_entry_set_gname(e, NULL);
	archive_entry_set_fflags(e, 0, 0);
	archive_entry_unset_atime(e);
	archive_entry_unset_ctime(e);
	archive_entry_unset_birthtime(e);
	archive_entry_acl_clear(e);
	if (!y->keep_owner) {
		archive_entry_set_uid(e, y->uid);
		archive_entry_set_gid(e, y->gid);
	}
	if (y->c->mode >= 0 && archive_entry_filetype(e) != AE_IFLNK)
		archive_entry_set_perm(e, (mode_t)y->c->mode);
}

static int put_header(struct pass *p, struct archive_entry *e)
{
	if (++p->y->done.entries > COPY_MAX_ENTRIES)
		return error_set(p->err, -E2BIG, 413, "COPY: more than %d files", COPY_MAX_ENTRIES);
	return archive_write_header(p->out, e) < ARCHIVE_WARN ? failed(p) : 0;
}

static int put_bytes(struct pass *p, const void *bytes, size_t n)
{
	p->y->done.bytes += n;
	return archive_write_data(p->out, bytes, n) < 0 ? failed(p) : 0;
}

static int put_zeros(struct pass *p, int64_t n)
{
	static const char zeros[ZEROS];
	int r = 0;
	for (; n > 0 && r == 0; n -= ZEROS)
		r = archive_write_data(p->out, zeros, (size_t)MIN(n, (int64_t)ZEROS)) < 0 ? failed(p) : 0;
	return r;
}

static int put_data(struct pass *p, struct archive *in, int64_t size)
{
	int64_t at = 0;
	for (;;) {
		const void *bytes;
		size_t n;
		la_int64_t offset;
		int r = archive_read_data_block(in, &bytes, &n, &offset);
		if (r == ARCHIVE_EOF)
			return put_zeros(p, size - at);
		if (r < ARCHIVE_WARN || offset < at)
			return broken(p->err, in);
		r = put_zeros(p, offset - at);
		if (r == 0)
			r = put_bytes(p, bytes, n);
		if (r < 0)
			return r;
		at = offset + (int64_t)n;
	}
}

/* Was the directory there before, or was it placed already? A directory that is there keeps its owner and mode. */
static int dir_is_there(struct pass *p, struct str relative, bool *ret, struct error *err)
{
	static char there, placed; /* values of the map */
	struct copying *y = p->y;
	cleanup_buf struct buf path = BUF_INIT;
	struct str above = STR("");
	struct envd_stat st = {0};
	buf_add_c(&path, p->base);
	if (relative.n) {
		buf_add_c(&path, path.data[path.end - 1] == '/' ? "" : "/");
		buf_add_str(&path, relative);
	}
	const char *name = buf_cstr(&path);
	if (!name)
		return error_errno(err, -ENOMEM, "COPY");
	*ret = map_get(&y->dirs, buf_str(&path)) != NULL;
	if (*ret)
		return 0;
	const char *slash = memrchr(relative.p, '/', relative.n);
	if (slash)
		above = str_n(relative.p, (size_t)(slash - relative.p));
	/* In one that is new, nothing is there. */
	cleanup_buf struct buf up = BUF_INIT;
	buf_add_c(&up, p->base);
	if (above.n) {
		buf_add_c(&up, up.data[up.end - 1] == '/' ? "" : "/");
		buf_add_str(&up, above);
	}
	if (relative.n && map_get(&y->dirs, buf_str(&up)) == &placed) {
		*ret = false;
	} else if (!relative.n && p->base == y->c->dest) {
		/* Looked at before the upload began, which makes it. */
		*ret = y->dest_exists;
	} else {
		int r = envd_stat(y->to, name, &st, err);
		if (r < 0)
			return r;
		*ret = st.exists && st.is_dir;
	}
	return map_put(&y->dirs, buf_str(&path), *ret ? &there : &placed, NULL) < 0 ? error_errno(err, -ENOMEM, "COPY") : 0;
}

static int put_dir(struct pass *p, struct str relative, struct archive_entry *like)
{
	bool there = false;
	int r = dir_is_there(p, relative, &there, p->err);
	if (r < 0 || there)
		return r;
	cleanup_buf struct buf name = BUF_INIT;
	buf_add_c(&name, "./");
	buf_add_str(&name, relative);
	struct archive_entry *e = like ? archive_entry_clone(like) : archive_entry_new();
	if (!e || !buf_cstr(&name)) {
		archive_entry_free(e);
		return error_errno(p->err, -ENOMEM, "COPY");
	}
	if (!like)
		archive_entry_set_filetype(e, AE_IFDIR);
	archive_entry_set_size(e, 0);
	dress(p, e);
	/* The mode that was given is for what is copied. */
	if (!like)
		archive_entry_set_perm(e, 0755);
	archive_entry_copy_pathname(e, buf_cstr(&name));
	r = put_header(p, e);
	archive_entry_free(e);
	return r;
}

/* The directories above a member of a directory that is copied, the destination first: archives need not say anything of them. */
static int put_parents(struct pass *p, struct str relative)
{
	int r = put_dir(p, STR(""), NULL);
	for (size_t i = 0; i < relative.n && r == 0; i++)
		if (relative.p[i] == '/')
			r = put_dir(p, str_n(relative.p, i), NULL);
	return r;
}

/* ---- one entry ---- */

/* Its name below the upload's directory into p->name. */
static int name_member(struct pass *p, const struct copy_source *s, struct str rel)
{
	buf_clear(&p->name);
	if (s->is_dir)
		buf_add_str(&p->name, rel);
	else
		buf_add_c(&p->name, p->base == p->y->c->dest ? last_part(s->path) : last_part(p->y->c->dest));
	return buf_cstr(&p->name) ? 0 : error_errno(p->err, -ENOMEM, "COPY");
}

/* A further name of a file that is not copied itself: its bytes. */
static int put_target(struct pass *p, struct archive_entry *e, struct str target)
{
	cleanup_free struct input *in = NULL;
	struct archive *a = p->y->c->fd >= 0 ? open_input(p->y->c->fd, NULL, &in, p->err) : NULL;
	struct archive_entry *other;
	cleanup_buf struct buf name = BUF_INIT;
	int r = a ? 0 : broken(p->err, NULL);
	while (r == 0 && (r = next_entry(a, &other, p->err)) > 0) {
		r = clean_name(archive_entry_pathname(other), &name) == -ENOMEM ? error_errno(p->err, -ENOMEM, "COPY") : 0;
		if (r < 0 || !str_eq(buf_str(&name), target) || archive_entry_hardlink(other) || archive_entry_filetype(other) != AE_IFREG)
			continue;
		archive_entry_set_hardlink(e, NULL);
		archive_entry_set_filetype(e, AE_IFREG);
		archive_entry_set_size(e, archive_entry_size(other));
		r = put_header(p, e);
		if (r == 0)
			r = put_data(p, a, archive_entry_size(other));
		r = r < 0 ? r : 1;
		break;
	}
	archive_read_free(a);
	return r < 0 ? r : r > 0 ? 0 : error_set(p->err, -EBADMSG, 400, "COPY: '%.*s' is a hard link to nothing", (int)MIN(target.n, (size_t)200), target.p);
}

static int put_hardlink(struct pass *p, struct archive_entry *e)
{
	cleanup_buf struct buf target = BUF_INIT, name = BUF_INIT;
	struct str rel;
	int r = clean_name(archive_entry_hardlink(e), &target);
	if (r < 0)
		return error_set(p->err, -EBADMSG, 400, "COPY: a hard link leads out of the archive");
	struct copy_source *s = source_of(p, buf_str(&target), &rel);
	bool excluded = s && p->y->c->exclude && !p->y->c->from && p->y->c->exclude(p->y->c->arg, buf_str(&target));
	if (!s || !s->found || excluded || (s->is_dir && !rel.n))
		return put_target(p, e, buf_str(&target));
	buf_add_str(&name, buf_str(&p->name));
	r = name_member(p, s, rel);
	if (r < 0)
		return r;
	archive_entry_copy_hardlink(e, buf_cstr(&p->name));
	return put_header(p, e);
}

static int put_entry(struct pass *p, struct archive *in, struct archive_entry *e, struct copy_source *s, struct str rel)
{
	bool is_dir = archive_entry_filetype(e) == AE_IFDIR && !archive_entry_hardlink(e);
	if (!s->found) {
		s->found = true;
		s->is_dir = rel.n ? !s->whole || s->path[0] == '\0' : is_dir;
		if (!s->whole && !*s->path)
			s->is_dir = true;
	}
	if (!p->out) {
		int r = open_output(p, s->is_dir || p->y->into_dir);
		if (r < 0)
			return r;
	}
	int r = name_member(p, s, rel);
	if (r == 0)
		r = s->is_dir || p->base == p->y->c->dest ? put_parents(p, buf_str(&p->name)) : 0;
	if (r < 0)
		return r;
	if (is_dir)
		return put_dir(p, buf_str(&p->name), rel.n ? e : NULL);
	dress(p, e);
	archive_entry_copy_pathname(e, buf_cstr(&p->name));
	if (archive_entry_hardlink(e))
		return put_hardlink(p, e);
	int64_t size = archive_entry_filetype(e) == AE_IFREG ? archive_entry_size(e) : 0;
	if (size > MAX_FILE)
		return error_set(p->err, -EFBIG, 413, "COPY: '%.200s' is too large", buf_cstr(&p->name));
	archive_entry_set_size(e, size);
	r = put_header(p, e);
	return r < 0 || size == 0 ? r : put_data(p, in, size);
}

static int run(struct pass *p, struct archive *in)
{
	const struct copy *c = p->y->c;
	cleanup_buf struct buf name = BUF_INIT;
	struct archive_entry *e;
	int r;
	while ((r = next_entry(in, &e, p->err)) > 0) {
		struct str rel;
		r = clean_name(archive_entry_pathname(e), &name);
		if (r < 0)
			return error_set(p->err, -EBADMSG, 400, "COPY: the archive holds '%.200s'", archive_entry_pathname(e));
		struct copy_source *s = source_of(p, buf_str(&name), &rel);
		if (!s || (c->exclude && !c->from && buf_len(&name) && c->exclude(c->arg, buf_str(&name))))
			continue;
		r = put_entry(p, in, e, s, rel);
		if (r < 0)
			return r;
	}
	return r;
}

static int finish(struct pass *p, int r)
{
	for (size_t i = 0; i < p->n && r == 0; i++)
		if (!p->sources[i].found && *p->sources[i].path)
			r = error_set(p->err, -ENOENT, 400, "COPY: '%.200s' does not exist", p->sources[i].path);
	if (p->out && r == 0 && archive_write_close(p->out) != ARCHIVE_OK)
		r = failed(p);
	archive_write_free(p->out);
	if (r == 0 && p->up)
		r = envd_upload_finish(steal_pointer(&p->up), p->err);
	envd_upload_abort(p->up);
	return r;
}

int copy_pass(struct copying *y, struct envd_download *from, struct copy_source *sources, size_t n, struct error *err)
{
	cleanup_buf struct buf name = BUF_INIT;
	cleanup_free struct input *in = NULL;
	struct error local = {0};
	struct pass p = {.y = y, .sources = sources, .n = n, .err = &local};
	struct archive *a = open_input(y->c->fd, from, &in, &local);
	int r = a ? run(&p, a) : broken(&local, NULL);
	r = finish(&p, r);
	archive_read_free(a);
	buf_done(&p.parent);
	buf_done(&p.name);
	return r < 0 ? error_set(err, local.code, local.status, "%s", local.message) : 0;
}
