#include "cli/pack.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 256 * 1024, MAGIC = 512 };

void packed_done(struct packed *p)
{
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
}

int pack_temporary(struct error *err)
{
	const char *dir = getenv("TMPDIR");
	if (!dir || !*dir)
		dir = "/var/tmp";
	int fd = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
		cleanup_free char *path = NULL;
		if (asprintf(&path, "%s/cubicle-XXXXXX", dir) < 0)
			return error_errno(err, -ENOMEM, "%s", dir);
		fd = mkostemp(path, O_CLOEXEC);
		if (fd >= 0)
			unlink(path);
	}
	return fd < 0 ? error_errno(err, -errno, "a temporary file in %s", dir) : fd;
}

/* Where a tar goes: a file, and its hash as it is written. */
struct sink {
	int fd;
	EVP_MD_CTX *hash;
	uint64_t size;
	struct progress *progress;
	int code; /* of the first failed write */
};

static int sink_init(struct sink *s, struct progress *progress, struct error *err)
{
	*s = (struct sink){.fd = pack_temporary(err), .progress = progress};
	if (s->fd < 0)
		return s->fd;
	s->hash = EVP_MD_CTX_new();
	return s->hash && EVP_DigestInit_ex(s->hash, EVP_sha256(), NULL) ? 0 : error_errno(err, -ENOMEM, "hash");
}

static void sink_done(struct sink *s)
{
	EVP_MD_CTX_free(s->hash);
	if (s->fd >= 0)
		close(s->fd);
}

static int sink_add(struct sink *s, const void *p, size_t n)
{
	int r = fd_write_all(s->fd, p, n);
	if (r < 0) {
		s->code = r;
		return r;
	}
	EVP_DigestUpdate(s->hash, p, n);
	s->size += n;
	progress_show(s->progress, "packing", -1, s->size, 0);
	return 0;
}

static int sink_full(const struct sink *s, struct error *err)
{
	return error_errno(err, s->code, "a temporary file (TMPDIR names another place)");
}

static void sink_finish(struct sink *s, struct packed *ret)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	EVP_DigestFinal_ex(s->hash, digest, NULL);
	hex_encode(ret->hash, digest, PACK_HASH / 2);
	ret->size = s->size;
	ret->fd = steal_fd(&s->fd);
}

static ssize_t write_archive(struct archive *a, void *arg, const void *p, size_t n)
{
	struct sink *s = arg;
	if (sink_add(s, p, n) == 0)
		return (ssize_t)n;
	archive_set_error(a, -s->code, "%s", strerror(-s->code));
	return -1;
}

/* The archives that one packing uses. */
struct packing {
	struct archive *from, *to;
	struct archive_entry_linkresolver *links;
	const char *root;
	size_t root_length;
	struct progress *progress;
};

static int archive_failed(struct archive *a, const char *what, struct error *err)
{
	int code = archive_errno(a);
	return error_set(err, code > 0 ? -code : -EIO, 500, "%s: %s", what, archive_error_string(a) ? archive_error_string(a) : "cannot be packed");
}

/* Holes are left out: the entry says where the data is. */
static int copy_data(struct packing *k, const char *name, struct error *err)
{
	const void *p;
	size_t n;
	la_int64_t offset, at = 0;
	static const char zeros[4096];
	int r;
	while ((r = archive_read_data_block(k->from, &p, &n, &offset)) == ARCHIVE_OK) {
		while (at < offset) {
			la_ssize_t w = archive_write_data(k->to, zeros, (size_t)MIN(offset - at, (la_int64_t)sizeof(zeros)));
			if (w <= 0)
				return archive_failed(k->to, name, err);
			at += w;
		}
		for (size_t done = 0; done < n;) {
			la_ssize_t w = archive_write_data(k->to, (const char *)p + done, n - done);
			if (w < 0)
				return archive_failed(k->to, name, err);
			if (w == 0)
				break; /* the file has grown: its entry says how much of it goes */
			done += (size_t)w;
		}
		at = offset + (la_int64_t)n;
	}
	return r == ARCHIVE_EOF ? 0 : archive_failed(k->from, name, err);
}

static int write_entry(struct packing *k, struct archive_entry *e, struct error *err)
{
	const char *name = archive_entry_pathname(e);
	if (archive_write_header(k->to, e) < ARCHIVE_WARN)
		return archive_failed(k->to, name, err);
	return archive_entry_size(e) > 0 ? copy_data(k, name, err) : 0;
}

static int pack_entry(struct packing *k, struct archive_entry *e, struct error *err)
{
	struct archive_entry *spare = NULL;
	const char *path = archive_entry_pathname(e);
	cleanup_free char *name = NULL;
	if (!path || strncmp(path, k->root, k->root_length) != 0)
		return error_set(err, -EIO, 500, "%s: unexpected name", k->root);
	path += k->root_length;
	while (*path == '/')
		path++;
	if (archive_entry_filetype(e) == AE_IFSOCK)
		return 0;
	if (asprintf(&name, "./%s", path) < 0)
		return error_errno(err, -ENOMEM, "%s", k->root);
	archive_entry_set_pathname(e, name);
	/* Names of this machine's users mean nothing elsewhere. */
	archive_entry_set_uname(e, NULL);
	archive_entry_set_gname(e, NULL);
	archive_entry_linkify(k->links, &e, &spare);
	return e ? write_entry(k, e, err) : 0;
}

static int pack_entries(struct packing *k, struct error *err)
{
	for (;;) {
		struct archive_entry *e = archive_entry_new2(k->from);
		if (!e)
			return error_errno(err, -ENOMEM, "%s", k->root);
		int r = archive_read_next_header2(k->from, e);
		if (r != ARCHIVE_EOF && r < ARCHIVE_WARN)
			archive_failed(k->from, k->root, err);
		else if (r != ARCHIVE_EOF && archive_read_disk_can_descend(k->from))
			archive_read_disk_descend(k->from);
		int code = r == ARCHIVE_EOF ? 1 : r < ARCHIVE_WARN ? -EIO : pack_entry(k, e, err);
		archive_entry_free(e);
		if (code)
			return code < 0 ? code : 0;
	}
}

static int pack_into(struct packing *k, struct sink *s, struct error *err)
{
	archive_entry_linkresolver_set_strategy(k->links, ARCHIVE_FORMAT_TAR_PAX_RESTRICTED);
	archive_read_disk_set_symlink_physical(k->from);
	archive_read_disk_set_behavior(k->from, ARCHIVE_READDISK_NO_TRAVERSE_MOUNTS | ARCHIVE_READDISK_NO_ACL | ARCHIVE_READDISK_NO_FFLAGS);
	archive_write_set_format_pax_restricted(k->to);
	archive_write_set_bytes_per_block(k->to, PIECE);
	archive_write_set_bytes_in_last_block(k->to, 1);
	if (archive_write_open(k->to, s, NULL, write_archive, NULL) != ARCHIVE_OK)
		return archive_failed(k->to, k->root, err);
	if (archive_read_disk_open(k->from, k->root) != ARCHIVE_OK)
		return archive_failed(k->from, k->root, err);
	int r = pack_entries(k, err);
	if (r == 0 && archive_write_close(k->to) != ARCHIVE_OK)
		r = archive_failed(k->to, k->root, err);
	return r < 0 && s->code ? sink_full(s, err) : r;
}

int pack_directory(const char *path, struct progress *progress, struct packed *ret, struct error *err)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "%s", path);
	if (!S_ISDIR(st.st_mode))
		return error_set(err, -ENOTDIR, 400, "%s is no directory", path);
	/* The end says: the directory that a link names. */
	cleanup_free char *root = realpath(path, NULL);
	struct sink s;
	if (!root)
		return error_errno(err, -errno, "%s", path);
	struct packing k = {.root = root, .root_length = strlen(root), .progress = progress};
	int r = sink_init(&s, progress, err);
	if (r == 0) {
		k.from = archive_read_disk_new();
		k.to = archive_write_new();
		k.links = archive_entry_linkresolver_new();
		r = k.from && k.to && k.links ? pack_into(&k, &s, err) : error_errno(err, -ENOMEM, "%s", path);
	}
	if (r == 0)
		sink_finish(&s, ret);
	archive_entry_linkresolver_free(k.links);
	archive_write_free(k.to);
	archive_read_free(k.from);
	sink_done(&s);
	return r;
}

int pack_descriptor(int fd, struct progress *progress, struct packed *ret, struct error *err)
{
	struct sink s = {.fd = fd, .hash = EVP_MD_CTX_new(), .progress = progress};
	cleanup_free char *piece = malloc(PIECE);
	struct stat st;
	int r = 0;
	if (!piece || !s.hash || !EVP_DigestInit_ex(s.hash, EVP_sha256(), NULL) || fstat(fd, &st) < 0)
		r = error_errno(err, -ENOMEM, "hash");
	while (r == 0) {
		ssize_t n = pread(fd, piece, PIECE, (off_t)s.size);
		if (n < 0)
			r = error_errno(err, -errno, "reading what is to be sent");
		if (n <= 0)
			break;
		EVP_DigestUpdate(s.hash, piece, (size_t)n);
		s.size += (uint64_t)n;
		progress_show(progress, "reading", -1, s.size, (uint64_t)st.st_size);
	}
	if (r == 0)
		sink_finish(&s, ret);
	sink_done(&s);
	return r;
}

static bool begins(const unsigned char *p, ssize_t n, const char *magic, size_t length)
{
	return n >= (ssize_t)length && memcmp(p, magic, length) == 0;
}

static bool is_tar(const unsigned char *p, ssize_t n)
{
	/* POSIX and GNU; a tar without any file is zeros. */
	static const unsigned char zeros[512];
	return n == 512 && (memcmp(p + 257, "ustar", 5) == 0 || memcmp(p, zeros, 512) == 0);
}

static int unpack_into(struct archive *a, struct sink *s, const char *path, int fd, struct error *err)
{
	struct archive_entry *e;
	const void *p;
	size_t n;
	la_int64_t offset;
	int r;
	archive_read_support_filter_all(a);
	archive_read_support_format_raw(a);
	if (archive_read_open_fd(a, fd, PIECE) != ARCHIVE_OK || archive_read_next_header(a, &e) != ARCHIVE_OK)
		return archive_failed(a, path, err);
	while ((r = archive_read_data_block(a, &p, &n, &offset)) == ARCHIVE_OK)
		if (sink_add(s, p, n) < 0)
			return sink_full(s, err);
	return r == ARCHIVE_EOF ? 0 : archive_failed(a, path, err);
}

static int unpacked(const char *path, int fd, struct progress *progress, struct packed *ret, struct error *err)
{
	struct sink s;
	unsigned char first[MAGIC];
	int r = sink_init(&s, progress, err);
	struct archive *a = r == 0 ? archive_read_new() : NULL;
	if (r == 0)
		r = a ? unpack_into(a, &s, path, fd, err) : error_errno(err, -ENOMEM, "%s", path);
	if (r == 0 && !is_tar(first, pread(s.fd, first, sizeof(first), 0)))
		r = error_set(err, -EINVAL, 400, "%s is no tar, and what is compressed in it is none", path);
	if (r == 0)
		sink_finish(&s, ret);
	archive_read_free(a);
	sink_done(&s);
	return r;
}

int pack_file(const char *path, bool plain, struct progress *progress, struct packed *ret, struct error *err)
{
	unsigned char first[MAGIC];
	struct stat st;
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return error_errno(err, -errno, "%s", path);
	if (!S_ISREG(st.st_mode))
		return error_set(err, -EINVAL, 400, "%s is no file", path);
	ssize_t n = pread(fd, first, sizeof(first), 0);
	if (n < 0)
		return error_errno(err, -errno, "%s", path);
	bool gzip = begins(first, n, "\x1f\x8b", 2), zstd = begins(first, n, "\x28\xb5\x2f\xfd", 4);
	if (is_tar(first, n) || (!plain && (gzip || zstd)))
		return pack_descriptor(steal_fd(&fd), progress, ret, err);
	if (gzip || zstd || begins(first, n, "\xfd" "7zXZ", 5) || begins(first, n, "BZh", 3) || begins(first, n, "\x04\x22\x4d\x18", 4))
		return unpacked(path, fd, progress, ret, err);
	return error_set(err, -EINVAL, 400, "%s is no tar", path);
}
