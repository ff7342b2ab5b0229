#include "image/envd.h"
#include "base/cleanup.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>

struct placing {
	struct envd_upload *up;
	struct error *err;
};

static la_ssize_t write_output(struct archive *a, void *arg, const void *bytes, size_t n)
{
	struct placing *p = arg;
	if (envd_upload_write(p->up, bytes, n, p->err) == 0)
		return (la_ssize_t)n;
	archive_set_error(a, EIO, "writing failed");
	return -1;
}

static int write_file(struct archive *a, const struct envd_file *f)
{
	struct archive_entry *e = archive_entry_new();
	if (!e)
		return -ENOMEM;
	archive_entry_copy_pathname(e, f->path);
	archive_entry_set_mode(e, f->mode);
	archive_entry_set_uid(e, f->uid);
	archive_entry_set_gid(e, f->gid);
	archive_entry_set_size(e, (la_int64_t)f->text.n);
	/* No time of its own: what is made twice is the same. */
	archive_entry_set_mtime(e, 0, 0);
	bool good = archive_write_header(a, e) == ARCHIVE_OK && (f->text.n == 0 || archive_write_data(a, f->text.p, f->text.n) == (la_ssize_t)f->text.n);
	archive_entry_free(e);
	return good ? 0 : -EIO;
}

int envd_place(const struct envd *e, const char *path, const struct envd_file *files, size_t n, struct error *err)
{
	struct error local = {0};
	struct placing p = {.err = &local};
	int r = envd_upload_open(e, path, &p.up, err);
	if (r < 0)
		return r;
	struct archive *a = archive_write_new();
	if (!a || archive_write_set_format_pax(a) != ARCHIVE_OK || archive_write_set_bytes_per_block(a, 0) != ARCHIVE_OK ||
		archive_write_open(a, &p, NULL, write_output, NULL) != ARCHIVE_OK)
		r = -ENOMEM;
	for (size_t i = 0; i < n && r == 0; i++)
		r = write_file(a, &files[i]);
	if (r == 0 && archive_write_close(a) != ARCHIVE_OK)
		r = -EIO;
	archive_write_free(a);
	if (r == 0)
		return envd_upload_finish(p.up, err);
	envd_upload_abort(p.up);
	return local.code < 0 ? error_set(err, local.code, local.status, "%s", local.message) : error_errno(err, r, "%s", path);
}
