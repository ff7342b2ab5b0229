#include "guest/filesystem_entry.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

struct listing {
	struct files_call *call;
	struct buf *out;
	size_t first; /* where the first entry begins in it */
	const struct user_names *names;
	struct buf path; /* of the directory being read */
	uint32_t depth;
	size_t count; /* names read so far */
	int64_t deadline;
};

struct names {
	char **names;
	size_t n, cap;
};

static void names_done(struct names *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->names[i]);
	free(l->names);
}

static int bytewise(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_add(struct names *l, const char *name)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 32;
		char **grown = reallocarray(l->names, cap, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		l->names = grown;
		l->cap = cap;
	}
	l->names[l->n] = strdup(name);
	return l->names[l->n] ? (l->n++, 0) : -ENOMEM;
}

static int too_large(struct listing *l)
{
	return files_fail_rpc(l->call, CONNECT_RESOURCE_EXHAUSTED,
		"the listing has more than %d entries or %d MiB; list a smaller part or a smaller depth",
		LIST_MAX_ENTRIES, LIST_MAX_BYTES >> 20);
}

static int read_names(struct listing *l, DIR *dir, struct names *ret)
{
	for (;;) {
		errno = 0;
		struct dirent *e = readdir(dir);
		/* A directory removed while it is read has no more names. */
		if (!e)
			return errno && errno != ENOENT ? -errno : 0;
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (++l->count > LIST_MAX_ENTRIES)
			return too_large(l);
		int r = names_add(ret, e->d_name);
		if (r < 0)
			return r;
	}
}

static int list_directory(struct listing *l, int fd, uint32_t level);

/* What one entry may fail with and leave the others alone: it vanished or was replaced, its process ended,
 * its server is gone (FUSE, NFS). */
static bool spares_the_rest(int r)
{
	return r < 0 && r != -ENOMEM && r != -EMFILE && r != -ENFILE && r != -ECANCELED;
}

static int descend(struct listing *l, int dirfd, const char *name, uint32_t level)
{
	if (level > LIST_MAX_LEVELS)
		return files_fail_rpc(l->call, CONNECT_RESOURCE_EXHAUSTED,
			"the tree is deeper than %d directories", LIST_MAX_LEVELS);
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r = fd < 0 ? -errno : list_directory(l, fd, level);
	if (r == -EMFILE || r == -ENFILE)
		return files_fail_rpc(
			l->call, CONNECT_RESOURCE_EXHAUSTED, "the tree is deeper than descriptors are left");
	return spares_the_rest(r) ? 0 : r;
}

static void cut(struct buf *b, size_t length)
{
	b->end = b->start + length;
}

static int list_one(struct listing *l, int dirfd, const char *name, uint32_t level)
{
	size_t before = buf_len(&l->path), mark = buf_len(l->out);
	if (before != 1)
		buf_add_c(&l->path, "/");
	buf_add_c(&l->path, name);
	if (mark > l->first)
		buf_add_c(l->out, ",");
	bool directory = false;
	int r = l->path.failed ? -ENOMEM
			       : entry_add(l->out, l->names, dirfd, name, buf_str(&l->path), &directory);
	if (spares_the_rest(r)) {
		cut(l->out, mark);
		r = 0;
	} else if (r == 0 && buf_len(l->out) > LIST_MAX_BYTES) {
		r = too_large(l);
	}
	if (r == 0 && directory && level < l->depth)
		r = descend(l, dirfd, name, level + 1);
	cut(&l->path, before);
	return r;
}

/* Owns fd. */
static int list_directory(struct listing *l, int fd, uint32_t level)
{
	cleanup_dir DIR *dir = fdopendir(fd);
	if (!dir) {
		int r = -errno;
		close(fd);
		return r;
	}
	struct names names = {0};
	int r = read_names(l, dir, &names);
	if (r == 0 && names.n)
		qsort(names.names, names.n, sizeof(*names.names), bytewise);
	for (size_t i = 0; r == 0 && i < names.n; i++) {
		if (l->deadline && clock_monotonic() > l->deadline)
			r = files_fail_rpc(l->call, CONNECT_DEADLINE_EXCEEDED, "context deadline exceeded");
		else
			r = list_one(l, fd, names.names[i], level);
	}
	names_done(&names);
	return r;
}

static int open_root(struct files_call *c, const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	struct stat st;
	if (errno == ENOTDIR && stat(path, &st) == 0)
		return files_fail_rpc(c, CONNECT_INVALID_ARGUMENT, "path is not a directory: %s", path);
	if (errno == ENOENT || errno == ENOTDIR)
		return files_fail_rpc(c, CONNECT_NOT_FOUND, "directory not found: %s", path);
	if (errno == ELOOP)
		return files_fail_rpc(c, CONNECT_FAILED_PRECONDITION,
			"cyclic symlink or too long a chain of links at '%s'", path);
	return files_fail_rpc_errno(c, errno, "error opening directory", path);
}

int list_add(struct files_call *c, struct buf *to, const struct user_names *names, const char *path,
	uint32_t depth, int64_t deadline)
{
	int fd = open_root(c, path);
	if (fd < 0)
		return fd;
	struct listing l = {.call = c,
		.out = to,
		.first = buf_len(to),
		.names = names,
		.depth = depth ? depth : 1,
		.deadline = deadline};
	files_clean(&l.path, str_of(path));
	int r = list_directory(&l, fd, 1);
	buf_done(&l.path);
	return r == 0 || r == -ECANCELED ? r : files_fail_rpc_errno(c, r, "error reading directory", path);
}
