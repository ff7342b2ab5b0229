#include "image/merge.h"
#include "base/cleanup.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

enum { READ = 1 << 20 };

struct work {
	const struct merge *m;
	struct tree *tree;
	struct buf path;  /* while walking: of the directory at hand */
	char *data;       /* READ bytes */
	struct buf names; /* of attributes, as the kernel lists them */
	struct buf values;
	struct tree_xattr xattrs[256];
	size_t n_xattrs;
	bool opaque, implied; /* what the attributes say beside */
	struct erofs_extent *extents;
	size_t n_extents, extents_cap;
	/* The directory that was used last: files are asked for in the order of their paths. */
	unsigned parent_layer;
	struct buf parent_path;
	int parent;
};

/* Below the directory, through no link and into no other mount. */
static int open_below(int dir, const char *path, int flags)
{
	struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV};
	long fd = syscall(SYS_openat2, dir, path, &how, sizeof(how));
	return fd < 0 ? -errno : (int)fd;
}

static int fail(int r, struct str path, struct error *err)
{
	char name[160];
	tree_quote(path, name, sizeof(name));
	return error_errno(err, r, "merging layers: %s", name);
}

/* Attributes */

/* By descriptor, or by name in the working directory when fd is -1. */
static ssize_t list_xattrs(int fd, const char *name, char *to, size_t n)
{
	ssize_t r = fd >= 0 ? flistxattr(fd, to, n) : llistxattr(name, to, n);
	return r < 0 ? (errno == EOPNOTSUPP ? 0 : -errno) : r;
}

static ssize_t get_xattr(int fd, const char *name, const char *xattr, char *to, size_t n)
{
	ssize_t r = fd >= 0 ? fgetxattr(fd, xattr, to, n) : lgetxattr(name, xattr, to, n);
	return r < 0 ? -errno : r;
}

/* Overlayfs' own: what it keeps for itself is left out, what would change the meaning of a layer is refused. */
static int overlay_xattr(struct work *w, struct str name, struct str value)
{
	static const char *const ignored[] = {"origin", "impure", "nlink", "upper", "uuid"};
	for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
		if (str_is(name, ignored[i]))
			return 0;
	if (!str_is(name, "opaque") || !str_is(value, "y"))
		return -EOPNOTSUPP;
	w->opaque = true;
	return 0;
}

/* 1: it is to be kept. */
static int take_xattr(struct work *w, struct str name, struct str value)
{
	static const struct str overlay = STR("trusted.overlay.");
	if (str_starts(name, overlay))
		return overlay_xattr(w, str_from(name, overlay.n), value);
	if (!str_is(name, TREE_IMPLIED))
		return 1;
	w->implied = true;
	return 0;
}

/* Into w->xattrs, valid until the next call. */
static int read_xattrs(struct work *w, int fd, const char *name)
{
	enum { NAMES = 65536, VALUE = 65536 };
	w->opaque = w->implied = false;
	w->n_xattrs = 0;
	buf_clear(&w->names);
	buf_clear(&w->values);
	char *names = buf_reserve(&w->names, NAMES);
	if (!names)
		return -ENOMEM;
	ssize_t all = list_xattrs(fd, name, names, NAMES);
	/* Values are moved when their buffer grows: it is made large enough first. */
	if (all <= 0)
		return (int)all;
	if (!buf_reserve(&w->values, EROFS_XATTRS_MAX + VALUE))
		return -ENOMEM;
	for (const char *x = names; x < names + all; x += strlen(x) + 1) {
		if (buf_len(&w->values) > EROFS_XATTRS_MAX || w->n_xattrs == ARRAY_SIZE(w->xattrs))
			return -E2BIG;
		char *to = buf_reserve(&w->values, VALUE);
		ssize_t n = to ? get_xattr(fd, name, x, to, VALUE) : -ENOMEM;
		if (n < 0)
			return (int)n;
		struct str key = str_of(x), value = str_n(to, (size_t)n);
		int r = take_xattr(w, key, value);
		if (r < 0)
			return r;
		if (r == 0)
			continue;
		buf_commit(&w->values, (size_t)n);
		w->xattrs[w->n_xattrs++] = (struct tree_xattr){key, value};
	}
	return 0;
}

static struct tree_entry entry_of(const struct work *w, const struct stat *st, struct str path)
{
	return (struct tree_entry){
		.path = path,
		.mode = st->st_mode,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.mtime = st->st_mtim.tv_sec,
		.mtime_ns = (uint32_t)st->st_mtim.tv_nsec,
		.major = major(st->st_rdev),
		.minor = minor(st->st_rdev),
		.size = (uint64_t)st->st_size,
		.xattrs = w->xattrs,
		.n_xattrs = w->n_xattrs,
	};
}

/* Walking */

static int walk(struct work *w, int fd, struct error *err);

static int walk_entry(struct work *w, int dir, const char *name, struct error *err)
{
	struct stat st;
	struct str path = buf_str(&w->path);
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return fail(-errno, path, err);
	if (S_ISDIR(st.st_mode)) {
		int fd = open_below(dir, name, O_RDONLY | O_DIRECTORY);
		return fd < 0 ? fail(fd, path, err) : walk(w, fd, err);
	}
	if (S_ISCHR(st.st_mode) && st.st_rdev == 0)
		return tree_whiteout(w->tree, path, err);
	return tree_later(w->tree, path, st.st_mode, st.st_nlink > 1 ? st.st_ino : 0, err);
}

/* The directory at w->path and what is below it. fd is taken. */
static int walk(struct work *w, int fd, struct error *err)
{
	struct stat st;
	cleanup_dir DIR *dir = fdopendir(fd);
	if (!dir) {
		int r = fail(-errno, buf_str(&w->path), err);
		close(fd);
		return r;
	}
	int r = fstat(fd, &st) < 0 ? -errno : read_xattrs(w, fd, NULL);
	if (r < 0)
		return fail(r, buf_str(&w->path), err);
	struct tree_entry entry = entry_of(w, &st, buf_str(&w->path));
	r = w->implied ? tree_imply(w->tree, entry.path, err) : tree_add(w->tree, &entry, err);
	if (r == 0 && w->opaque)
		r = tree_opaque(w->tree, buf_str(&w->path), err);
	size_t before = buf_len(&w->path);
	while (r == 0) {
		errno = 0;
		struct dirent *d = readdir(dir);
		if (!d)
			return errno ? fail(-errno, buf_str(&w->path), err) : 0;
		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
			continue;
		if (before > 0)
			buf_add_c(&w->path, "/");
		r = buf_add_c(&w->path, d->d_name) < 0 || w->path.failed ? error_errno(err, -ENOMEM, "merging layers") : walk_entry(w, fd, d->d_name, err);
		w->path.end = w->path.start + before;
	}
	return r;
}

/* Contents, of what is still there in the end */

static int add_extent(struct work *w, off_t from, off_t to)
{
	if (w->n_extents == w->extents_cap) {
		size_t cap = w->extents_cap ? w->extents_cap * 2 : 64;
		struct erofs_extent *grown = realloc(w->extents, cap * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		w->extents = grown;
		w->extents_cap = cap;
	}
	w->extents[w->n_extents++] = (struct erofs_extent){(uint64_t)from, (uint64_t)(to - from)};
	return 0;
}

/* Where the file has data. */
static int find_extents(struct work *w, int fd, off_t size)
{
	w->n_extents = 0;
	for (off_t at = 0; at < size;) {
		off_t from = lseek(fd, at, SEEK_DATA);
		if (from < 0)
			return errno == ENXIO ? 0 : -errno;
		off_t to = lseek(fd, from, SEEK_HOLE);
		if (to < 0)
			return -errno;
		at = MIN(to, size);
		int r = from < at ? add_extent(w, from, at) : -EIO;
		if (r < 0)
			return r;
	}
	return 0;
}

static int copy_extent(struct work *w, int fd, struct erofs_extent x, struct str path, struct error *err)
{
	while (x.length > 0) {
		ssize_t n = pread(fd, w->data, (size_t)MIN(x.length, (uint64_t)READ), (off_t)x.offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail(n < 0 ? -errno : -EIO, path, err);
		int r = tree_file_data(w->tree, x.offset, w->data, (size_t)n, err);
		if (r < 0)
			return r;
		x.offset += (uint64_t)n;
		x.length -= (uint64_t)n;
	}
	return 0;
}

static int fetch_file(struct work *w, const char *name, struct str path, struct error *err)
{
	struct stat st;
	cleanup_fd int fd = open_below(w->parent, name, O_RDONLY | O_NONBLOCK);
	int r = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : !S_ISREG(st.st_mode) ? -EIO : read_xattrs(w, fd, NULL);
	if (r == 0)
		r = find_extents(w, fd, st.st_size);
	if (r < 0)
		return fail(r, path, err);
	struct tree_entry entry = entry_of(w, &st, path);
	static const struct erofs_extent none[1];
	entry.extents = w->n_extents ? w->extents : none;
	entry.n_extents = w->n_extents;
	r = tree_file(w->tree, &entry, err);
	for (size_t i = 0; r == 0 && i < w->n_extents; i++)
		r = copy_extent(w, fd, w->extents[i], path, err);
	return r < 0 ? r : tree_file_end(w->tree, err);
}

static int fetch_special(struct work *w, const char *name, const struct stat *st, struct str path, struct error *err)
{
	char target[4097];
	/* Attributes of these are read by name only. */
	int r = fchdir(w->parent) < 0 ? -errno : read_xattrs(w, -1, name);
	ssize_t n = r == 0 && S_ISLNK(st->st_mode) ? readlinkat(w->parent, name, target, sizeof(target)) : 0;
	if (r == 0 && n < 0)
		r = -errno;
	if (r < 0)
		return fail(r, path, err);
	struct tree_entry entry = entry_of(w, st, path);
	entry.target = str_n(target, (size_t)n);
	return tree_add(w->tree, &entry, err);
}

static int open_parent(struct work *w, unsigned layer, struct str path)
{
	if (w->parent >= 0 && w->parent_layer == layer && str_eq(buf_str(&w->parent_path), path))
		return 0;
	if (w->parent >= 0)
		close(w->parent);
	w->parent = -1;
	buf_clear(&w->parent_path);
	if (buf_add_str(&w->parent_path, path.n ? path : STR(".")) < 0)
		return -ENOMEM;
	const char *name = buf_cstr(&w->parent_path);
	w->parent = name ? open_below(w->m->layers[layer], name, O_RDONLY | O_DIRECTORY) : -ENOMEM;
	w->parent_layer = layer;
	if (!path.n)
		buf_clear(&w->parent_path);
	return MIN(w->parent, 0);
}

static int fetch(struct tree *t, unsigned layer, struct str path, void *arg, struct error *err)
{
	struct work *w = arg;
	struct stat st;
	size_t n = path.n;
	while (n > 0 && path.p[n - 1] != '/')
		n--;
	cleanup_free char *name = str_dup(str_from(path, n));
	int r = name ? open_parent(w, layer, str_n(path.p, n ? n - 1 : 0)) : -ENOMEM;
	if (r == 0 && fstatat(w->parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		r = -errno;
	if (r < 0)
		return fail(r, path, err);
	return S_ISREG(st.st_mode) ? fetch_file(w, name, path, err) : fetch_special(w, name, &st, path, err);
}

/* What is below the image */

/* What a layer says of a path. */
struct found {
	bool covers;  /* layers below it are hidden there */
	bool implied; /* it only implies it */
	struct tree_entry entry; /* of a directory */
};

/* An opened directory, on the way or at the end (then its attributes are in w). */
static int step_into(struct work *w, int *dir, const char *name, bool last, struct found *ret)
{
	char value;
	int next = open_below(*dir, name, O_RDONLY | O_DIRECTORY);
	if (next < 0)
		return next;
	close(*dir);
	*dir = next;
	if (!last) {
		ret->covers = ret->covers || fgetxattr(next, "trusted.overlay.opaque", &value, 1) == 1;
		return 0;
	}
	struct stat st;
	int r = fstat(next, &st) < 0 ? -errno : read_xattrs(w, next, NULL);
	if (r < 0)
		return r;
	ret->implied = w->implied;
	ret->covers = ret->covers || w->opaque;
	ret->entry = entry_of(w, &st, STR(""));
	return 0;
}

/* 1 the layer has the name, 0 nothing below has it, -ENOENT it says nothing about it, another -errno. */
static int find_in(struct work *w, int layer, struct str path, struct found *ret)
{
	cleanup_fd int dir = open_below(layer, ".", O_RDONLY | O_DIRECTORY);
	*ret = (struct found){0};
	if (dir < 0)
		return dir;
	for (struct str part, rest = path; rest.n > 0;) {
		struct stat st;
		if (!str_cut(rest, '/', &part, &rest)) {
			part = rest;
			rest = str_n("", 0);
		}
		cleanup_free char *name = str_dup(part);
		if (!name)
			return -ENOMEM;
		if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return errno != ENOENT ? -errno : ret->covers ? 0 : -ENOENT;
		if (S_ISCHR(st.st_mode) && st.st_rdev == 0)
			return 0;
		if (!S_ISDIR(st.st_mode))
			return rest.n == 0;
		int r = step_into(w, &dir, name, rest.n == 0, ret);
		if (r < 0)
			return r;
	}
	return 1;
}

static int is_below(struct str path, struct tree_entry *ret, void *arg)
{
	struct work *w = arg;
	struct found found;
	for (size_t i = 0; i < w->m->n_below; i++) {
		int r = find_in(w, w->m->below[i], path, &found);
		if (r == -ENOENT || (r == 1 && ret && found.implied && !found.covers))
			continue;
		if (r == 1 && ret)
			*ret = found.entry;
		return r;
	}
	return 0;
}

int merge(const struct merge *m, struct tree_result *ret, struct error *err)
{
	struct work w = {.m = m, .parent = -1, .data = malloc(READ)};
	int r = w.data ? tree_new(m->image, &m->limits, 0, &w.tree) : -ENOMEM;
	if (r < 0)
		error_errno(err, r, "merging layers");
	for (size_t i = 0; r == 0 && i < m->n; i++) {
		int fd = open_below(m->layers[i], ".", O_RDONLY | O_DIRECTORY);
		if (i > 0)
			tree_next_layer(w.tree);
		r = fd < 0 ? fail(fd, STR(""), err) : walk(&w, fd, err);
	}
	const struct tree_finish how = {.lowest = m->n_below == 0, .fetch = fetch, .below = is_below, .arg = &w};
	if (r == 0)
		r = tree_finish(w.tree, &how, ret, err);
	if (w.parent >= 0)
		close(w.parent);
	buf_done(&w.path);
	buf_done(&w.names);
	buf_done(&w.values);
	buf_done(&w.parent_path);
	free(w.extents);
	free(w.data);
	tree_free(w.tree);
	return r;
}
