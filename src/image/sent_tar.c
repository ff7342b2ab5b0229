#include "image/sent_tar.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

la_ssize_t sent_tar_give(struct archive *a, void *arg, const void **ret)
{
	struct sent_tar *t = arg;
	ssize_t n;
	do
		n = pread(t->fd, t->piece, sizeof(t->piece), t->at);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		archive_set_error(a, errno, "%s", strerror(errno));
	else
		t->at += n;
	*ret = t->piece;
	return n;
}

bool sent_tar_open(struct archive *a, void *arg, archive_read_callback *give)
{
	/* Only what the library does itself: no programs. */
	archive_read_support_format_tar(a);
	archive_read_support_format_empty(a);
	archive_read_support_filter_gzip(a);
	archive_read_support_filter_zstd(a);
	return archive_read_open(a, arg, NULL, give, NULL) == ARCHIVE_OK;
}
