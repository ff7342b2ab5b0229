#include "base/fd.h"
#include "base/log.h"
#include "base/map.h"
#include "guest/files_call.h"
#include "io/multipart.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

enum { MAX_FILES = 100000 };

struct upload {
	struct files_call *call;
	struct files_gunzip *gunzip; /* NULL = the body is as it is */
	bool has_path;
	struct buf path;   /* query `path`, resolved */
	int fd;            /* of the file being written, -1 = the part is not wanted */
	struct buf target; /* its path */
	struct files_meta meta;
	bool meta_kept;    /* by the file system of the file being written */
	struct map seen;   /* paths of this request */
	struct buf answer; /* JSON array without its end */
};

/*
 * Opens without O_CREAT first: with it the kernel refuses existing files of other users in sticky directories
 * (fs.protected_regular), so that root could not replace /tmp/x of the sandbox's user. Never waits for a
 * FIFO's reader. Truncates at once: an overlay would otherwise copy up the old content.
 */
static int open_target(struct files_call *c, const char *path, struct stat *ret_st)
{
	const int flags = O_WRONLY | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	if (stat(path, ret_st) == 0) {
		if (S_ISDIR(ret_st->st_mode))
			return files_fail(c, 400, "path is a directory: %s", path);
		if (!S_ISREG(ret_st->st_mode))
			return files_fail(c, 400, "path is not a regular file: %s", path);
	}
	for (int attempt = 0;; attempt++) {
		cleanup_fd int fd = open(path, flags);
		if (fd < 0 && errno == ENOENT)
			fd = open(path, flags | O_CREAT, 0666);
		/* Made by somebody else between the two. */
		if (fd < 0 && errno == EACCES && attempt == 0)
			continue;
		if (fd < 0 || fstat(fd, ret_st) < 0)
			return files_fail_errno(c, errno, "error opening file", path);
		if (!S_ISREG(ret_st->st_mode))
			return files_fail(c, 400, "path is not a regular file: %s", path);
		return steal_fd(&fd);
	}
}

int files_create(struct files_call *c, const char *path, const struct files_meta *meta, bool *ret_meta_kept)
{
	if (*path && path[strlen(path) - 1] == '/')
		return files_fail(c, 400, "path is a directory: %s", path);
	size_t bad = 0;
	int r = files_make_parents(c, path, &bad);
	if (r == -ENOTDIR)
		return files_fail(c, 500, "error ensuring directories: path is a file: %.*s", (int)bad, path);
	if (r < 0)
		return files_fail_errno(c, r, "error ensuring directories", path);

	struct stat st;
	cleanup_fd int fd = open_target(c, path, &st);
	if (fd < 0)
		return fd;
	gid_t gid = st.st_gid != c->user.gid && files_group_is_inherited(path) ? st.st_gid : c->user.gid;
	/* A needless chown would clear set-uid bits, and the mode is to be kept. */
	if ((st.st_uid != c->user.uid || st.st_gid != gid) && fchown(fd, c->user.uid, gid) < 0)
		return files_fail_errno(c, errno, "error changing file ownership", path);
	r = files_meta_write(meta, fd);
	if (r == -E2BIG)
		return files_fail(c, 400, "invalid metadata: more than the file system keeps for one file: %s", path);
	if (r < 0)
		return files_fail_errno(c, r, "error writing metadata", path);
	*ret_meta_kept = r > 0;
	return steal_fd(&fd);
}

static int begin_file(struct upload *u, struct str path)
{
	struct files_call *c = u->call;
	if (map_get(&u->seen, path))
		return files_fail(c, 400,
			"you cannot upload multiple files to the same path '%.*s' in one upload request, "
			"only the first specified file was uploaded",
			STR_FMT(path));
	if (u->seen.count >= MAX_FILES)
		return files_fail(c, 400, "more than %d files in one upload request", MAX_FILES);
	buf_clear(&u->target);
	buf_add_str(&u->target, path);
	const char *target = buf_cstr(&u->target);
	if (u->target.failed || !target || map_put(&u->seen, path, u, NULL) < 0)
		return -ENOMEM;
	int fd = files_create(c, target, &u->meta, &u->meta_kept);
	if (fd < 0)
		return fd;
	u->fd = fd;
	return 0;
}

static int write_file(struct upload *u, const char *p, size_t n)
{
	int r = fd_write_all(u->fd, p, n);
	return r < 0 ? files_fail_errno(u->call, r, "error writing file", buf_cstr(&u->target)) : 0;
}

static int end_file(struct upload *u)
{
	/* Some file systems tell of a full disk or quota only here. */
	if (close(steal_fd(&u->fd)) < 0 && errno != EINTR)
		return files_fail_errno(u->call, errno, "error writing file", buf_cstr(&u->target));
	buf_add_c(&u->answer, buf_len(&u->answer) ? "," : "[");
	buf_add_c(&u->answer, "{\"name\":");
	json_quote(&u->answer, files_base_name(buf_str(&u->target)));
	buf_add_c(&u->answer, ",\"path\":");
	json_quote(&u->answer, buf_str(&u->target));
	buf_add_c(&u->answer, ",\"type\":\"file\"");
	if (u->meta_kept)
		files_meta_add(&u->answer, &u->meta);
	buf_add_c(&u->answer, "}");
	return u->answer.failed ? -ENOMEM : 0;
}

static int resolve(struct files_call *c, struct str path, struct buf *ret)
{
	const char *why = NULL;
	int r = files_resolve(c, path, ret, &why);
	return r == -EINVAL ? files_fail(c, 400, "%s", why) : r;
}

static int next_run(struct upload *u, struct str *ret)
{
	return u->gunzip ? files_gunzip_next(u->call, u->gunzip, ret) : files_body_next(u->call, ret);
}

/* ---- multipart ---- */

static int on_part(const struct multipart_part *p, void *arg)
{
	struct upload *u = arg;
	u->fd = -1;
	if (!str_is(p->name, "file"))
		return 0;
	if (u->has_path)
		return begin_file(u, buf_str(&u->path));
	if (!p->has_filename || p->filename.n == 0)
		return files_fail(u->call, 400,
			"error getting multipart custom part file name: filename not found in "
			"Content-Disposition header");
	cleanup_buf struct buf path = BUF_INIT;
	int r = resolve(u->call, p->filename, &path);
	return r < 0 ? r : begin_file(u, buf_str(&path));
}

static int on_data(const char *p, size_t n, void *arg)
{
	struct upload *u = arg;
	return u->fd < 0 ? 0 : write_file(u, p, n);
}

static int on_part_end(void *arg)
{
	struct upload *u = arg;
	return u->fd < 0 ? 0 : end_file(u);
}

static void multipart_free_p(struct multipart **m)
{
	multipart_free(*m);
}

static int receive_multipart(struct upload *u, struct str content_type)
{
	static const struct multipart_ops ops = {.part = on_part, .data = on_data, .part_end = on_part_end};
	__attribute__((__cleanup__(multipart_free_p))) struct multipart *m =
		multipart_new(content_type, &ops, u);
	if (!m)
		return errno == ENOMEM
			       ? -ENOMEM
			       : files_fail(u->call, 400, "no usable multipart boundary in Content-Type");
	for (;;) {
		struct str run;
		int r = next_run(u, &run);
		if (r == 0)
			r = multipart_finish(m);
		else if (r > 0 && (r = multipart_feed(m, run.p, run.n)) == 0)
			continue;
		return r == -EPROTO ? files_fail(u->call, 400, "error reading form: malformed multipart body")
				    : r;
	}
}

/* ---- raw ---- */

static int receive_raw(struct upload *u)
{
	if (!u->has_path)
		return files_fail(u->call, 400, "path query parameter is required for raw body upload");
	int r = begin_file(u, buf_str(&u->path));
	if (r < 0)
		return r;
	struct str run;
	while ((r = next_run(u, &run)) > 0) {
		r = write_file(u, run.p, run.n);
		if (r < 0)
			return r;
	}
	return r < 0 ? r : end_file(u);
}

/* ---- the request ---- */

static int choose_coding(struct upload *u)
{
	struct str coding = http_value(&u->call->head, "Content-Encoding");
	if (str_eq_nocase(coding, STR("gzip")) || str_eq_nocase(coding, STR("x-gzip"))) {
		u->gunzip = files_gunzip_new();
		return u->gunzip ? 0 : -ENOMEM;
	}
	if (coding.n && !str_eq_nocase(coding, STR("identity")))
		return files_fail(u->call, 400, "unsupported content encoding: %.*s", STR_FMT(coding));
	return 0;
}

static int query_path(struct upload *u)
{
	cleanup_buf struct buf given = BUF_INIT;
	int r = url_query_get(u->call->head.query, "path", &given);
	if (r < 0)
		return r == -ENOMEM ? r : files_fail(u->call, 400, "malformed query string");
	u->has_path = r > 0;
	return r > 0 ? resolve(u->call, buf_str(&given), &u->path) : 0;
}

static int upload(struct upload *u)
{
	int r = choose_coding(u);
	if (r == 0)
		r = query_path(u);
	if (r == 0)
		r = files_meta_read(u->call, &u->meta);
	if (r < 0)
		return r;
	struct str content_type = http_value(&u->call->head, "Content-Type"), media = content_type,
		   parameters;
	str_cut(content_type, ';', &media, &parameters);
	media = str_trim(media);
	if (str_eq_nocase(media, STR("multipart/form-data")))
		r = receive_multipart(u, content_type);
	else if (str_eq_nocase(media, STR("application/octet-stream")))
		r = receive_raw(u);
	else
		return files_fail(u->call, 400, "unsupported content type: %.*s", STR_FMT(content_type));
	if (r < 0)
		return r;
	buf_add_c(&u->answer, buf_len(&u->answer) ? "]" : "[]");
	if (u->answer.failed)
		return -ENOMEM;
	return files_respond(u->call, 200, "application/json", NULL, buf_str(&u->answer));
}

/* The file is written in its place, as the reference does: it keeps inode, mode and links; an upload that
 * fails in its middle leaves what had arrived. */
int files_upload(struct files_call *c)
{
	struct upload u = {.call = c, .fd = -1};
	int r = upload(&u);
	cleanup_fd_p(&u.fd);
	buf_done(&u.path);
	buf_done(&u.target);
	buf_done(&u.answer);
	map_done(&u.seen);
	files_meta_done(&u.meta);
	files_gunzip_free(u.gunzip);
	return r;
}
