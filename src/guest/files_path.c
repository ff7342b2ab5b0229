#include "guest/files_call.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void files_clean(struct buf *to, struct str path)
{
	size_t start = buf_len(to);
	while (path.n) {
		struct str part = path;
		if (!str_cut(path, '/', &part, &path))
			path = str_n("", 0);
		if (part.n == 0 || str_is(part, "."))
			continue;
		if (!str_is(part, "..")) {
			buf_add_c(to, "/");
			buf_add_str(to, part);
			continue;
		}
		while (buf_len(to) > start && to->data[--to->end] != '/')
			;
	}
	if (buf_len(to) == start)
		buf_add_c(to, "/");
}

/* A path that memory ran out for must not pass for a shorter one. */
static int finish_path(struct buf *path)
{
	return path->failed || !buf_cstr(path) ? -ENOMEM : 0;
}

int files_resolve(const struct files_call *c, struct str path, struct buf *ret, const char **ret_why)
{
	if (memchr(path.p, '\0', path.n)) {
		*ret_why = "path must not hold NUL bytes";
		return -EINVAL;
	}
	if (path.n == 0 && c->request->default_workdir)
		path = str_of(c->request->default_workdir);
	struct str home = str_of(c->user.home);
	if (path.n && path.p[0] == '~') {
		if (path.n > 1 && path.p[1] != '/') {
			*ret_why = "cannot expand user-specific home dir";
			return -EINVAL;
		}
		path = str_from(path, 1);
		while (path.n && path.p[0] == '/')
			path = str_from(path, 1);
	} else if (path.n && path.p[0] == '/') {
		buf_add_str(ret, path);
		return finish_path(ret);
	}
	cleanup_buf struct buf joined = BUF_INIT;
	buf_add_str(&joined, home);
	buf_add_c(&joined, "/");
	buf_add_str(&joined, path);
	if (joined.failed)
		return -ENOMEM;
	files_clean(ret, buf_str(&joined));
	return finish_path(ret);
}

static struct str strip_slashes(struct str path)
{
	while (path.n > 1 && path.p[path.n - 1] == '/')
		path.n--;
	return path;
}

struct str files_base_name(struct str path)
{
	path = strip_slashes(path);
	for (size_t i = path.n; i > 0; i--) {
		if (path.p[i - 1] == '/')
			return path.n == 1 ? path : str_from(path, i);
	}
	return path;
}

/* One directory of the chain: there already, or made and given to the user. */
static int make_one(const struct files_call *c, const char *path)
{
	struct stat st;
	if (stat(path, &st) == 0)
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	if (errno != ENOENT)
		return -errno;
	if (mkdir(path, 0755) < 0) {
		if (errno != EEXIST)
			return -errno;
		/* Somebody else was faster, or a link leads nowhere. */
		if (stat(path, &st) < 0)
			return -errno;
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	}
	/* In a directory with set-group-ID it is born with that bit and that group, and keeps them. */
	gid_t gid = lstat(path, &st) == 0 && (st.st_mode & S_ISGID) ? st.st_gid : c->user.gid;
	return lchown(path, c->user.uid, gid) < 0 ? -errno : 0;
}

/* The directory that an absolute path is in, into to[PATH_MAX]; empty for the root and for what is too long. */
static void parent_of(struct str path, char *to)
{
	struct str parent = strip_slashes(path);
	parent.n -= files_base_name(parent).n;
	parent = strip_slashes(parent);
	if (parent.n >= PATH_MAX)
		parent.n = 0;
	memcpy(to, parent.p, parent.n);
	to[parent.n] = '\0';
}

bool files_group_is_inherited(const char *path)
{
	char parent[PATH_MAX];
	struct stat st;
	parent_of(str_of(path), parent);
	return *parent && stat(parent, &st) == 0 && (st.st_mode & S_ISGID);
}

static int make_chain(const struct files_call *c, struct str path, size_t *ret_bad)
{
	if (path.n >= PATH_MAX)
		return -ENAMETOOLONG;
	char prefix[PATH_MAX];
	memcpy(prefix, path.p, path.n);
	prefix[path.n] = '\0';
	for (size_t i = 1; i <= path.n; i++) {
		if (i < path.n && (prefix[i] != '/' || prefix[i - 1] == '/'))
			continue;
		prefix[i] = '\0';
		int r = make_one(c, prefix);
		if (r < 0) {
			*ret_bad = i;
			return r;
		}
		if (i < path.n)
			prefix[i] = '/';
	}
	return 0;
}

int files_make_dirs(const struct files_call *c, const char *path, size_t *ret_bad)
{
	/* The usual case costs one look. */
	struct stat st;
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return 0;
	return make_chain(c, str_of(path), ret_bad);
}

int files_make_parents(const struct files_call *c, const char *path, size_t *ret_bad)
{
	char parent[PATH_MAX];
	if (strlen(path) >= PATH_MAX)
		return -ENAMETOOLONG;
	parent_of(str_of(path), parent);
	return *parent ? files_make_dirs(c, parent, ret_bad) : 0;
}
