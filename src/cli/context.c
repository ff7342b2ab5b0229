#include "cli/context.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"
#include "cli/output.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 128 * 1024 };

struct context {
	const char *root;
	const struct ignore *ignore;
	struct archive *to;
	EVP_MD_CTX *hash;
	int fd;		    /* of the tar */
	int write_failed;   /* of the first write that failed */
	uint64_t size, max; /* of the tar so far */
	size_t entries;
	char path[PATH_MAX]; /* relative, of the entry at hand */
	size_t length;
	/* Directories above it, from the root on; those that are ignored are only there when something in them is not. */
	struct above {
		size_t length;
		struct stat st;
		bool written;
	} above[CONTEXT_DEPTH];
	unsigned depth;
	char *piece;
	struct progress *progress;
	struct error *err;
};

static ssize_t take(struct archive *a, void *arg, const void *p, size_t n)
{
	struct context *c = arg;
	int r = fd_write_all(c->fd, p, n);
	if (r == 0) {
		c->size += n;
		progress_show(c->progress, "packing", -1, c->size, 0);
		return (ssize_t)n;
	}
	c->write_failed = r;
	archive_set_error(a, -r, "%s", strerror(-r));
	return -1;
}

static int archive_failed(struct context *c)
{
	if (c->write_failed)
		return error_errno(c->err, c->write_failed, "a temporary file (TMPDIR names another place)");
	return error_set(c->err, -EIO, 500, "%s: %s", c->path, archive_error_string(c->to) ? archive_error_string(c->to) : "cannot be packed");
}

static int too_big(struct context *c, uint64_t size)
{
	char text[24], most[24];
	return error_set(c->err, -EFBIG, 413, "the context is larger than %s (%s with %s): leave out what is not needed in .dockerignore", size_text(most, c->max), size_text(text, size), c->path);
}

/* Name, kind, mode and size, to the hash and to the tar. */
static int write_header(struct context *c, const char *path, const struct stat *st, const char *target)
{
	cleanup_buf struct buf line = BUF_INIT;
	struct archive_entry *e = archive_entry_new2(c->to);
	uint64_t size = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
	if (!e)
		return error_errno(c->err, -ENOMEM, "%s", path);
	if (size > c->max || c->size > c->max - size) {
		archive_entry_free(e);
		return too_big(c, c->size + size);
	}
	if (++c->entries > CONTEXT_ENTRIES) {
		archive_entry_free(e);
		return error_set(c->err, -E2BIG, 413, "the context has more than %d files: leave out what is not needed in .dockerignore", CONTEXT_ENTRIES);
	}
	buf_addf(&line, "%c %o %llu %zu:%s %zu:%s\n", S_ISDIR(st->st_mode) ? 'd' : target ? 'l' : 'f', (unsigned)st->st_mode & 07777, (unsigned long long)size, strlen(path), path,
		target ? strlen(target) : 0, target ? target : "");
	EVP_DigestUpdate(c->hash, buf_str(&line).p, buf_len(&line));
	archive_entry_set_pathname(e, path);
	archive_entry_set_mode(e, st->st_mode);
	archive_entry_set_size(e, (la_int64_t)size);
	archive_entry_set_mtime(e, st->st_mtim.tv_sec, 0);
	if (target)
		archive_entry_set_symlink(e, target);
	int r = line.failed ? error_errno(c->err, -ENOMEM, "%s", path) : archive_write_header(c->to, e) < ARCHIVE_WARN ? archive_failed(c) : 0;
	archive_entry_free(e);
	return r;
}

/* The directories that stand above the entry at hand, those of them that are not in the tar yet. */
static int write_above(struct context *c)
{
	for (unsigned i = 0; i < c->depth; i++) {
		struct above *a = &c->above[i];
		char path[PATH_MAX];
		if (a->written)
			continue;
		a->written = true;
		snprintf(path, sizeof(path), "%.*s", (int)a->length, c->path);
		int r = write_header(c, path, &a->st, NULL);
		if (r < 0)
			return r;
	}
	return 0;
}

static int write_file(struct context *c, int dir, const char *name)
{
	struct stat st;
	cleanup_fd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return error_errno(c->err, -errno, "%s", c->path);
	if (!S_ISREG(st.st_mode))
		return error_set(c->err, -EAGAIN, 500, "%s was changed while it was packed", c->path);
	int r = write_header(c, c->path, &st, NULL);
	uint64_t left = (uint64_t)st.st_size;
	while (r == 0 && left) {
		ssize_t n = fd_read_full(fd, c->piece, (size_t)MIN(left, (uint64_t)PIECE));
		if (n <= 0)
			return n < 0 ? error_errno(c->err, (int)n, "%s", c->path) : error_set(c->err, -EAGAIN, 500, "%s was changed while it was packed", c->path);
		EVP_DigestUpdate(c->hash, c->piece, (size_t)n);
		if (archive_write_data(c->to, c->piece, (size_t)n) != (la_ssize_t)n)
			return archive_failed(c);
		left -= (uint64_t)n;
	}
	return r;
}

static int write_link(struct context *c, int dir, const char *name, const struct stat *st)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);
	if (n < 0)
		return error_errno(c->err, -errno, "%s", c->path);
	target[n] = 0;
	return write_header(c, c->path, st, target);
}

static int walk(struct context *c, int dir);

static int enter(struct context *c, int dir, const char *name, const struct stat *st, bool ignored)
{
	if (c->depth == CONTEXT_DEPTH)
		return error_set(c->err, -E2BIG, 400, "%s: more than %d directories in each other", c->path, CONTEXT_DEPTH);
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return error_errno(c->err, -errno, "%s", c->path);
	c->above[c->depth++] = (struct above){.length = c->length, .st = *st};
	int r = ignored ? 0 : write_above(c);
	if (r == 0)
		r = walk(c, fd);
	c->depth--;
	close(fd);
	return r;
}

static int one(struct context *c, int dir, const char *name)
{
	struct stat st;
	bool ignored = ignore_match(c->ignore, str_n(c->path, c->length));
	if (ignored && !c->ignore->keeps)
		return 0;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return error_errno(c->err, -errno, "%s", c->path);
	if (S_ISDIR(st.st_mode))
		return enter(c, dir, name, &st, ignored);
	if (ignored)
		return 0;
	int r = write_above(c);
	if (r < 0)
		return r;
	if (S_ISREG(st.st_mode))
		return write_file(c, dir, name);
	if (S_ISLNK(st.st_mode))
		return write_link(c, dir, name, &st);
	return error_set(c->err, -EINVAL, 400, "%s is a %s: leave it out in .dockerignore", c->path,
		S_ISSOCK(st.st_mode) ? "socket" : S_ISFIFO(st.st_mode) ? "pipe" : "device");
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *d)
{
	return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

/* What is in the directory; c->path is its own, without a slash. */
static int walk(struct context *c, int dir)
{
	struct dirent **names = NULL;
	int n = scandirat(dir, ".", &names, no_dots, by_bytes), r = 0;
	size_t length = c->length;
	if (n < 0)
		return error_errno(c->err, -errno, "%s", length ? c->path : c->root);
	for (int i = 0; i < n; i++) {
		if (r == 0) {
			int k = snprintf(c->path + length, sizeof(c->path) - length, "%s%s", length ? "/" : "", names[i]->d_name);
			if ((size_t)k >= sizeof(c->path) - length)
				r = error_set(c->err, -ENAMETOOLONG, 400, "%.200s…: the path is too long", c->path);
			c->length = length + (size_t)k;
			if (r == 0)
				r = one(c, dir, names[i]->d_name);
		}
		free(names[i]);
	}
	free(names);
	c->length = length;
	c->path[length] = 0;
	return r;
}

static int pack_all(struct context *c, struct packed *ret)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	cleanup_fd int dir = open(c->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return error_errno(c->err, -errno, "%s", c->root);
	c->fd = pack_temporary(c->err);
	if (c->fd < 0)
		return c->fd;
	archive_write_set_format_pax_restricted(c->to);
	archive_write_set_bytes_per_block(c->to, PIECE);
	archive_write_set_bytes_in_last_block(c->to, 1);
	if (archive_write_open(c->to, c, NULL, take, NULL) != ARCHIVE_OK)
		return archive_failed(c);
	int r = walk(c, dir);
	if (r == 0 && archive_write_close(c->to) != ARCHIVE_OK)
		r = archive_failed(c);
	if (r < 0)
		return r;
	if (c->size > c->max)
		return too_big(c, c->size);
	EVP_DigestFinal_ex(c->hash, digest, NULL);
	hex_encode(ret->hash, digest, PACK_HASH / 2);
	ret->size = c->size;
	ret->fd = steal_fd(&c->fd);
	return 0;
}

int context_pack(const char *path, const struct ignore *ignore, uint64_t max, struct progress *progress, struct packed *ret, struct error *err)
{
	static const char begin[] = "cubicle context 1\n";
	struct context *c = calloc(1, sizeof(*c));
	if (!c)
		return error_errno(err, -ENOMEM, "%s", path);
	*c = (struct context){.root = path, .ignore = ignore, .max = max, .progress = progress, .err = err, .fd = -1};
	c->to = archive_write_new();
	c->hash = EVP_MD_CTX_new();
	c->piece = malloc(PIECE);
	int r = c->to && c->hash && c->piece && EVP_DigestInit_ex(c->hash, EVP_sha256(), NULL) ? 0 : error_errno(err, -ENOMEM, "%s", path);
	if (r == 0) {
		EVP_DigestUpdate(c->hash, begin, sizeof(begin) - 1);
		r = pack_all(c, ret);
	}
	archive_write_free(c->to);
	EVP_MD_CTX_free(c->hash);
	free(c->piece);
	if (c->fd >= 0)
		close(c->fd);
	free(c);
	return r;
}
