#include "sandbox/box/copy.h"
#include "base/cleanup.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

enum { PIECE = 8 << 20 }; /* between two looks at `stop` */

static bool stopped(const bool *stop)
{
	return stop && __atomic_load_n(stop, __ATOMIC_RELAXED);
}

static int copy_range(int from, int to, off_t start, off_t end, const bool *stop)
{
	for (off_t in = start, out = start; in < end;) {
		if (stopped(stop))
			return -ECANCELED;
		ssize_t n = copy_file_range(from, &in, to, &out, (size_t)MIN(end - in, (off_t)PIECE), 0);
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
	}
	return 0;
}

int copy_sparse(int from, int to, off_t size, bool share, const bool *stop)
{
	if (stopped(stop))
		return -ECANCELED;
	if (share && ioctl(to, FICLONE, from) == 0)
		return 0;
	if (ftruncate(to, size) < 0)
		return -errno;
	for (off_t at = 0; at < size;) {
		off_t data = lseek(from, at, SEEK_DATA);
		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		off_t end = lseek(from, data, SEEK_HOLE);
		if (end < 0)
			return -errno;
		int r = copy_range(from, to, data, end, stop);
		if (r < 0)
			return r;
		at = end;
	}
	return 0;
}
