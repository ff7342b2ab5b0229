#include "image/archive_file.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "image/path.h"
#include "image/sent_tar.h"

#include <archive_entry.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- made of texts ---- */

static int failed(struct archive *a, const char *what, struct error *err)
{
	const char *text = a ? archive_error_string(a) : NULL;
	return error_set(err, -EIO, 500, "%s: %s", what, text ? text : "no memory");
}

int archive_file_begin(struct archive_file *a, struct error *err)
{
	*a = (struct archive_file){.archive = archive_write_new(), .fd = memfd_create("files", MFD_CLOEXEC)};
	if (a->fd < 0)
		return error_errno(err, -errno, "memory for files");
	if (!a->archive || archive_write_set_format_pax_restricted(a->archive) != ARCHIVE_OK || archive_write_open_fd(a->archive, a->fd) != ARCHIVE_OK)
		return failed(a->archive, "files", err);
	return 0;
}

int archive_file_add(struct archive_file *a, const char *name, mode_t mode, struct str text, struct error *err)
{
	struct archive_entry *e = archive_entry_new2(a->archive);
	if (!e)
		return failed(NULL, name, err);
	archive_entry_set_pathname(e, name);
	archive_entry_set_mode(e, S_IFREG | mode);
	archive_entry_set_size(e, (la_int64_t)text.n);
	archive_entry_set_mtime(e, 0, 0);
	int r = archive_write_header(a->archive, e) < ARCHIVE_WARN || (text.n && archive_write_data(a->archive, text.p, text.n) != (la_ssize_t)text.n) ?
		failed(a->archive, name, err) : 0;
	archive_entry_free(e);
	return r;
}

int archive_file_end(struct archive_file *a, int *ret_fd, struct error *err)
{
	if (archive_write_close(a->archive) != ARCHIVE_OK)
		return failed(a->archive, "files", err);
	*ret_fd = steal_fd(&a->fd);
	return 0;
}

void archive_file_done(struct archive_file *a)
{
	archive_write_free(a->archive);
	if (a->fd >= 0)
		close(a->fd);
}

/* ---- in an archive ---- */

/* Contents of the outer archive's entry, as they come. */
static la_ssize_t give_entry(struct archive *a, void *arg, const void **ret)
{
	struct archive *outer = arg;
	size_t n;
	la_int64_t offset;
	int r = archive_read_data_block(outer, ret, &n, &offset);
	if (r == ARCHIVE_OK)
		return (la_ssize_t)n;
	if (r != ARCHIVE_EOF)
		archive_set_error(a, EIO, "%s", archive_error_string(outer) ? archive_error_string(outer) : "it cannot be read");
	return r == ARCHIVE_EOF ? 0 : -1;
}

static struct archive *open_outer(struct sent_tar *in, int fd)
{
	struct archive *a = archive_read_new();
	in->fd = fd;
	in->at = 0;
	if (a && !sent_tar_open(a, in, sent_tar_give)) {
		archive_read_free(a);
		return NULL;
	}
	return a;
}

/* Goes to the last entry of that name (the archive may have several): its number; -1: there is none. */
static long find(int fd, const char *path, struct sent_tar *in)
{
	long found = -1;
	struct archive_entry *e;
	struct archive *a = open_outer(in, fd);
	for (long k = 0; a && archive_read_next_header(a, &e) >= ARCHIVE_WARN; k++) {
		cleanup_buf struct buf clean = BUF_INIT;
		const char *name = archive_entry_pathname(e);
		path_join(&clean, STR("/"), str_of(name));
		if (name && strcmp(buf_cstr(&clean) ? buf_cstr(&clean) + 1 : "", path) == 0)
			found = archive_entry_hardlink(e) ? -1 : k;
	}
	archive_read_free(a);
	return found;
}

/* What is unpacked goes to `to`. 1: nothing that can be unpacked. */
static int unpack(struct archive *outer, int to, struct error *err)
{
	struct archive *a = archive_read_new();
	struct archive_entry *e;
	const void *p;
	size_t n;
	la_int64_t offset;
	int r, code = 0;
	if (!a)
		return failed(NULL, "archive", err);
	/* Only what the library does itself: no programs. */
	archive_read_support_filter_gzip(a);
	archive_read_support_filter_bzip2(a);
	archive_read_support_filter_xz(a);
	archive_read_support_filter_zstd(a);
	archive_read_support_format_raw(a);
	if (archive_read_open(a, outer, NULL, give_entry, NULL) != ARCHIVE_OK || archive_read_next_header(a, &e) != ARCHIVE_OK)
		code = 1;
	while (code == 0 && (r = archive_read_data_block(a, &p, &n, &offset)) != ARCHIVE_EOF) {
		code = r != ARCHIVE_OK ? 1 : fd_write_all(to, p, n);
		if (code < 0)
			error_errno(err, code, "unpacking");
	}
	archive_read_free(a);
	return code;
}

static bool is_tar(int fd, struct sent_tar *in)
{
	struct archive_entry *e;
	struct archive *a = archive_read_new();
	in->fd = fd;
	in->at = 0;
	bool is = a && archive_read_support_format_tar(a) == ARCHIVE_OK && archive_read_open(a, in, NULL, sent_tar_give, NULL) == ARCHIVE_OK && archive_read_next_header(a, &e) >= ARCHIVE_WARN;
	archive_read_free(a);
	return is;
}

int archive_file_unpack(struct ask *ask, int fd, const char *path, int *ret_fd, struct error *err)
{
	cleanup_free struct sent_tar *in = calloc(1, sizeof(*in));
	cleanup_fd int to = -1;
	struct archive_entry *e;
	uint64_t number;
	if (!in)
		return error_errno(err, -ENOMEM, "archive");
	long place = find(fd, path, in);
	if (place < 0)
		return 1;
	int r = ask_new_file(ask, 0, &number, &to, err);
	if (r < 0)
		return r;
	struct archive *outer = open_outer(in, fd);
	for (long k = 0; outer && r == 0 && k <= place; k++)
		r = archive_read_next_header(outer, &e) < ARCHIVE_WARN;
	if (!outer)
		r = failed(NULL, "context", err);
	if (r == 0)
		r = unpack(outer, to, err);
	archive_read_free(outer);
	if (r != 0)
		return r;
	if (!is_tar(to, in))
		return 1;
	*ret_fd = steal_fd(&to);
	return 0;
}
