#include "base/cleanup.h"
#include "base/map.h"
#include "guest/archive.h"
#include "guest/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

enum {
	GATHER = 128 * 1024, /* bytes that leave together */
	SMALL = 32 * 1024,   /* files up to this are gathered with their headers */
};

/* A directory that is being told. */
struct level {
	int fd;
	struct buf names; /* sorted below: each with its NUL */
	const char **sorted;
	size_t n, at;
	size_t path; /* length of its own name in the walk's */
};

struct walk {
	struct files_call *call;
	struct buf out;
	struct buf path; /* of the member, as the archive has it */
	struct map links; /* {device, inode} of files with more than one name: the first, owned */
	struct level *levels;
	size_t n_levels, cap_levels;
	/* Of the member. */
	struct buf attributes;
	struct tar_xattr xattrs[TAR_MAX_XATTRS];
	struct tar_extent *extents;
	size_t n_extents, cap_extents;
};

/* ---- bytes ---- */

static int flush(struct walk *w)
{
	if (!buf_len(&w->out))
		return 0;
	int r = files_send_chunk(w->call, buf_str(&w->out));
	buf_clear(&w->out);
	return r;
}

static int add_padding(struct walk *w, uint64_t n)
{
	static const char zeros[TAR_BLOCK];
	return buf_add(&w->out, zeros, tar_padding(n));
}

/* Large ones go from the file to the connection, without a copy: a chunk of their own. */
static int send_large(struct walk *w, int fd, const struct tar_extent *x)
{
	char line[32];
	int r = flush(w);
	snprintf(line, sizeof(line), "%llx\r\n", (unsigned long long)x->n);
	if (r == 0 && w->call->head.minor > 0)
		r = files_send(w->call, str_of(line));
	if (r == 0)
		r = files_send_file(w->call, fd, x->at, x->n);
	return r == 0 && w->call->head.minor > 0 ? files_send(w->call, STR("\r\n")) : r;
}

static int send_small(struct walk *w, int fd, const struct tar_extent *x)
{
	for (uint64_t done = 0; done < x->n;) {
		char *at = buf_reserve(&w->out, (size_t)(x->n - done));
		if (!at)
			return -ENOMEM;
		ssize_t n = pread(fd, at, (size_t)(x->n - done), (off_t)(x->at + done));
		if (n < 0 && errno == EINTR)
			continue;
		/* Shorter than was said: only a cut tells the client. */
		if (n <= 0)
			return n < 0 ? -errno : -EPIPE;
		buf_commit(&w->out, (size_t)n);
		done += (uint64_t)n;
	}
	return buf_len(&w->out) >= GATHER ? flush(w) : 0;
}

/* ---- members ---- */

/* Views of what stays in w->attributes. One that vanishes meanwhile is left out. */
static int read_xattrs(struct walk *w, int fd, struct tar_entry *e)
{
	char names[XATTR_LIST_MAX];
	size_t at[TAR_MAX_XATTRS];
	ssize_t total = flistxattr(fd, names, sizeof(names));
	buf_clear(&w->attributes);
	e->xattrs = w->xattrs;
	for (const char *name = names; total > 0 && name < names + total; name += strlen(name) + 1) {
		/* An '=' would end the name in an extended header. */
		if (!archive_carries(str_of(name)) || strchr(name, '=') || e->n_xattrs == TAR_MAX_XATTRS)
			continue;
		char *value = buf_reserve(&w->attributes, XATTR_SIZE_MAX);
		if (!value)
			return -ENOMEM;
		ssize_t n = fgetxattr(fd, name, value, XATTR_SIZE_MAX);
		if (n < 0)
			continue;
		at[e->n_xattrs] = buf_len(&w->attributes);
		buf_commit(&w->attributes, (size_t)n);
		w->xattrs[e->n_xattrs++] = (struct tar_xattr){str_n(NULL, (size_t)n), str_n(NULL, (size_t)n)};
		if (buf_add(&w->attributes, name, strlen(name)) < 0)
			return -ENOMEM;
		w->xattrs[e->n_xattrs - 1].name.n = strlen(name);
	}
	/* It may have moved while it grew. */
	for (size_t i = 0; i < e->n_xattrs; i++) {
		struct tar_xattr *x = &w->xattrs[i];
		x->value.p = buf_str(&w->attributes).p + at[i];
		x->name.p = x->value.p + x->value.n;
	}
	return 0;
}

static int add_extent(struct walk *w, uint64_t at, uint64_t n)
{
	if (w->n_extents == w->cap_extents) {
		size_t cap = w->cap_extents ? 2 * w->cap_extents : 64;
		struct tar_extent *grown = reallocarray(w->extents, cap, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		w->extents = grown;
		w->cap_extents = cap;
	}
	w->extents[w->n_extents++] = (struct tar_extent){at, n};
	return 0;
}

/* Where the file has data. 1 when it has holes that are worth a map. */
static int find_extents(struct walk *w, int fd, const struct stat *st)
{
	const off_t size = st->st_size;
	w->n_extents = 0;
	for (off_t at = 0; size && st->st_blocks < size / 512 && at < size && w->n_extents < TAR_MAX_EXTENTS;) {
		off_t data = lseek(fd, at, SEEK_DATA), hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
		if (data < 0 && errno == ENXIO)
			return w->n_extents ? 1 : add_extent(w, (uint64_t)size, 0) < 0 ? -ENOMEM : 1;
		if (data < 0 || hole < 0) {
			w->n_extents = 0; /* a file system that does not know */
			break;
		}
		hole = MIN(hole, size);
		if (data < size && add_extent(w, (uint64_t)data, (uint64_t)(hole - data)) < 0)
			return -ENOMEM;
		at = hole;
	}
	bool whole = w->n_extents == 0 || w->n_extents == TAR_MAX_EXTENTS || (w->n_extents == 1 && w->extents[0].n == (uint64_t)size);
	if (!whole)
		return 1;
	w->n_extents = 0;
	return size ? add_extent(w, 0, (uint64_t)size) : 0;
}

static struct tar_entry entry_of(const struct walk *w, const struct stat *st, enum tar_type type)
{
	const char *p = w->path.data + w->path.start;
	return (struct tar_entry){
		.type = type,
		.name = str_n(p, buf_len(&w->path)),
		.mode = st->st_mode & 07777,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.mtime = st->st_mtim.tv_sec,
		.mtime_ns = (uint32_t)st->st_mtim.tv_nsec,
	};
}

static int add_header(struct walk *w, const struct tar_entry *e)
{
	int r = tar_add_header(&w->out, e);
	return r == 0 && buf_len(&w->out) >= GATHER ? flush(w) : r;
}

/* The file's first name in this archive, or NULL: then this is. */
static int find_first_name(struct walk *w, const struct stat *st, const char **ret)
{
	const uint64_t id[2] = {st->st_dev, st->st_ino};
	*ret = NULL;
	if (st->st_nlink < 2)
		return 0;
	*ret = map_get(&w->links, MAP_KEY(id));
	if (*ret)
		return 0;
	char *copy = str_dup(buf_str(&w->path));
	int r = copy ? map_put(&w->links, MAP_KEY(id), copy, NULL) : -ENOMEM;
	if (r < 0)
		free(copy);
	return r;
}

static int tell_file(struct walk *w, int fd, const struct stat *st)
{
	const char *first;
	int r = find_first_name(w, st, &first);
	if (r < 0)
		return r;
	struct tar_entry e = entry_of(w, st, first ? TAR_HARDLINK : TAR_FILE);
	if (first) {
		e.link = str_of(first);
		return add_header(w, &e);
	}
	e.size = (uint64_t)st->st_size;
	if ((r = read_xattrs(w, fd, &e)) < 0 || (r = find_extents(w, fd, st)) < 0)
		return r;
	if (r > 0) {
		e.sparse = true;
		e.extents = w->extents;
		e.n_extents = w->n_extents;
	}
	r = add_header(w, &e);
	uint64_t stored = 0;
	for (size_t i = 0; r == 0 && i < w->n_extents; i++) {
		const struct tar_extent *x = &w->extents[i];
		stored += x->n;
		r = x->n > SMALL ? send_large(w, fd, x) : send_small(w, fd, x);
	}
	return r == 0 ? add_padding(w, stored) : r;
}

static int tell_link(struct walk *w, int dir, const char *name, const struct stat *st)
{
	char target[TAR_MAX_NAME + 1];
	ssize_t n = readlinkat(dir, name, target, sizeof(target));
	if (n < 0)
		return errno == ENOENT || errno == EINVAL ? 0 : -errno;
	struct tar_entry e = entry_of(w, st, TAR_SYMLINK);
	e.link = str_n(target, (size_t)n);
	return n && (size_t)n <= TAR_MAX_NAME ? add_header(w, &e) : -ENAMETOOLONG;
}

static int tell_directory(struct walk *w, int fd, const struct stat *st)
{
	struct tar_entry e = entry_of(w, st, TAR_DIRECTORY);
	int r = fd < 0 ? 0 : read_xattrs(w, fd, &e);
	if (r == 0)
		r = buf_add_c(&w->path, "/");
	e.name = buf_str(&w->path);
	return r == 0 ? add_header(w, &e) : r;
}

/* ---- the walk ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int read_names(int fd, struct level *l)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	if (!d) {
		int e = -errno;
		if (copy >= 0)
			close(copy);
		return e;
	}
	errno = 0;
	for (struct dirent *e; (e = readdir(d)); errno = 0) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		buf_add(&l->names, e->d_name, strlen(e->d_name) + 1);
		l->n++;
	}
	int r = errno ? -errno : l->names.failed ? -ENOMEM : 0;
	closedir(d);
	if (r < 0 || !l->n)
		return r;
	l->sorted = calloc(l->n, sizeof(*l->sorted));
	if (!l->sorted)
		return -ENOMEM;
	const char *at = l->names.data + l->names.start;
	for (size_t i = 0; i < l->n; i++, at += strlen(at) + 1)
		l->sorted[i] = at;
	qsort(l->sorted, l->n, sizeof(*l->sorted), by_name);
	return 0;
}

static void leave(struct walk *w)
{
	struct level *l = &w->levels[--w->n_levels];
	close(l->fd);
	buf_done(&l->names);
	free(l->sorted);
}

/* fd is owned from here. */
static int enter(struct walk *w, int fd)
{
	if (w->n_levels == w->cap_levels) {
		size_t cap = w->cap_levels ? 2 * w->cap_levels : 16;
		struct level *grown = reallocarray(w->levels, cap, sizeof(*grown));
		if (!grown) {
			close(fd);
			return -ENOMEM;
		}
		w->levels = grown;
		w->cap_levels = cap;
	}
	struct level *l = &w->levels[w->n_levels++];
	*l = (struct level){.fd = fd, .path = buf_len(&w->path)};
	return read_names(fd, l);
}

/* Opened, so that it is what it was said to be: descriptor; -EXDEV another mount; -ENOENT gone, or something else by now. */
static int open_member(int dir, const char *name, mode_t type, struct stat *st)
{
	cleanup_fd int fd = archive_open(dir, name, (S_ISDIR(type) ? O_RDONLY | O_DIRECTORY : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return fd == -ELOOP || fd == -ENOTDIR || fd == -ENXIO ? -ENOENT : fd;
	if (fstat(fd, st) < 0)
		return -errno;
	return (st->st_mode & S_IFMT) == (type & S_IFMT) ? steal_fd(&fd) : -ENOENT;
}

static int tell(struct walk *w, int dir, const char *name)
{
	struct stat st;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISLNK(st.st_mode))
		return tell_link(w, dir, name, &st);
	if (S_ISFIFO(st.st_mode)) {
		struct tar_entry e = entry_of(w, &st, TAR_FIFO);
		return add_header(w, &e);
	}
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return 0; /* devices and sockets */
	struct stat opened = st;
	cleanup_fd int fd = open_member(dir, name, st.st_mode, &opened);
	/* What is mounted is no part of the tree; the place for it is. */
	if (fd == -EXDEV)
		return S_ISDIR(st.st_mode) ? tell_directory(w, -1, &st) : 0;
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (S_ISREG(opened.st_mode))
		return tell_file(w, fd, &opened);
	int r = tell_directory(w, fd, &opened);
	return r == 0 ? enter(w, steal_fd(&fd)) : r;
}

static int tell_tree(struct walk *w)
{
	int r = 0;
	while (r == 0 && w->n_levels) {
		struct level *l = &w->levels[w->n_levels - 1];
		w->path.end = w->path.start + l->path;
		if (l->at == l->n) {
			leave(w);
			continue;
		}
		const char *name = l->sorted[l->at++];
		r = buf_add_c(&w->path, name);
		/* With the slash of a directory. */
		if (r == 0)
			r = buf_len(&w->path) < TAR_MAX_NAME ? tell(w, l->fd, name) : -ENAMETOOLONG;
	}
	return r;
}

/* What the path names: a tree, whose root is the member "./", or one member with the last part of its name. */
static int tell_all(struct walk *w, const char *path, bool follow)
{
	struct stat st;
	int r = files_start(w->call, 200, "Content-Type: application/x-tar\r\n", HTTP_BODY_CHUNKED, 0);
	if (r < 0)
		return r;
	if (fstatat(AT_FDCWD, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode)) {
		cleanup_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &st) < 0)
			return -errno;
		buf_add_c(&w->path, ".");
		r = tell_directory(w, fd, &st);
		/* Their names do not begin with it. */
		buf_clear(&w->path);
		if (r == 0)
			r = enter(w, steal_fd(&fd));
		return r == 0 ? tell_tree(w) : r;
	}
	buf_add_str(&w->path, files_base_name(str_of(path)));
	if (S_ISLNK(st.st_mode))
		return tell_link(w, AT_FDCWD, path, &st);
	if (S_ISFIFO(st.st_mode)) {
		struct tar_entry e = entry_of(w, &st, TAR_FIFO);
		return add_header(w, &e);
	}
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow ? 0 : O_NOFOLLOW));
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? tell_file(w, fd, &st) : -EPIPE;
}

static int check(struct files_call *c, const char *path, bool follow)
{
	struct stat st;
	if (fstatat(AT_FDCWD, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
		return files_fail_errno(c, errno, "error getting file info", path);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode) && !S_ISFIFO(st.st_mode))
		return files_fail(c, 400, "path is a device or a socket: %s", path);
	return 0;
}

int archive_get(struct files_call *c, const char *path, bool follow)
{
	struct walk w = {.call = c};
	int r = check(c, path, follow);
	if (r == 0 && (r = tell_all(&w, path, follow)) == 0 && (r = tar_add_end(&w.out)) == 0 && (r = flush(&w)) == 0)
		r = files_send_chunk(c, STR(""));
	while (w.n_levels)
		leave(&w);
	map_foreach(&w.links, s) free(s->value);
	map_done(&w.links);
	struct buf *all[] = {&w.out, &w.path, &w.attributes};
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		buf_done(all[i]);
	free(w.levels);
	free(w.extents);
	return r;
}
