#include "sandbox/microvm/module_file.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <archive.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <zlib.h>

enum { PIECE = 64 << 10 };

struct kind {
	const char *suffix;
	int filter;
	int (*support)(struct archive *a);
};

static const struct kind kinds[] = {
	{".xz", ARCHIVE_FILTER_XZ, archive_read_support_filter_xz},
	{".zst", ARCHIVE_FILTER_ZSTD, archive_read_support_filter_zstd},
	{".gz", ARCHIVE_FILTER_GZIP, archive_read_support_filter_gzip},
};

/* NULL: not compressed. */
static const struct kind *kind_of(struct str path)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (str_ends(path, str_of(kinds[i].suffix)))
			return &kinds[i];
	return NULL;
}

bool module_file_name(struct str path, struct str *ret_name)
{
	const struct kind *k = kind_of(path);
	struct str name = str_n(path.p, path.n - (k ? strlen(k->suffix) : 0));
	if (!str_ends(name, STR(".ko")))
		return false;
	for (size_t i = name.n; i > 0; i--)
		if (name.p[i - 1] == '/') {
			name = str_from(name, i);
			break;
		}
	*ret_name = name;
	return true;
}

static int too_large(const char *path, struct error *err)
{
	return error_set(err, -EFBIG, 500, "%s holds more than %d MiB, which no kernel module does", path, MODULE_FILE_MAX >> 20);
}

static int damaged(const char *path, const char *how, struct error *err)
{
	return error_set(err, -EBADMSG, 500, "%s cannot be decompressed, it is damaged or cut: %s", path, how ? how : "its end is missing");
}

/* What gzip has at its end, of which the library looks at neither: a sum and a length. A file of a module is one member. */
static bool gzip_ends_well(int fd, struct str bytes)
{
	uint32_t end[2];
	off_t size = lseek(fd, 0, SEEK_END);
	if (size < (off_t)sizeof(end) || pread(fd, end, sizeof(end), size - (off_t)sizeof(end)) != sizeof(end))
		return false;
	return le32toh(end[0]) == crc32_z(0, (const unsigned char *)bytes.p, bytes.n) && le32toh(end[1]) == bytes.n;
}

static int decompress(struct archive *a, int fd, const struct kind *k, const char *path, struct buf *to, struct error *err)
{
	struct archive_entry *e;
	const void *p;
	size_t n;
	la_int64_t offset;
	int r;
	/* A warning: this library has to run a program for it. */
	if (k->support(a) != ARCHIVE_OK || archive_read_support_format_raw(a) != ARCHIVE_OK)
		return error_set(err, -ENOTSUP, 500, "%s: this machine's libarchive cannot decompress %s", path, k->suffix);
	if (archive_read_open_fd(a, fd, PIECE) != ARCHIVE_OK || archive_read_next_header(a, &e) != ARCHIVE_OK)
		return damaged(path, archive_error_string(a), err);
	/* The library looks at the bytes, and takes what it does not know for what it is to give. The second filter is the file. */
	if (archive_filter_count(a) != 2 || archive_filter_code(a, 0) != k->filter)
		return damaged(path, "it is not what its name says", err);
	while ((r = archive_read_data_block(a, &p, &n, &offset)) == ARCHIVE_OK) {
		if (n > MODULE_FILE_MAX - buf_len(to))
			return too_large(path, err);
		if (buf_add(to, p, n) < 0)
			return error_errno(err, -ENOMEM, "%s", path);
	}
	if (r != ARCHIVE_EOF)
		return damaged(path, archive_error_string(a), err);
	return k->filter != ARCHIVE_FILTER_GZIP || gzip_ends_well(fd, buf_str(to)) ? 0 : damaged(path, "its checksum is wrong", err);
}

int module_file_read(const char *path, struct buf *to, struct error *err)
{
	const struct kind *k = kind_of(str_of(path));
	int r;
	if (!k) {
		r = file_read(AT_FDCWD, path, MODULE_FILE_MAX, to);
		return r == -EFBIG ? too_large(path, err) : r < 0 ? error_errno(err, r, "%s", path) : 0;
	}
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "%s", path);
	struct archive *a = archive_read_new();
	r = a ? decompress(a, fd, k, path, to, err) : error_errno(err, -ENOMEM, "%s", path);
	archive_read_free(a);
	return r;
}
