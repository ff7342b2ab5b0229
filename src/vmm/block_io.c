#include "vmm/block_io.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/virtio_blk.h>

/* Drops n bytes from the front of the buffers. */
static void advance(struct iovec **iov, unsigned *count, size_t n)
{
	while (n >= (*iov)->iov_len) {
		n -= (*iov)->iov_len;
		++*iov;
		if (--*count == 0)
			return;
	}
	**iov = (struct iovec){(char *)(*iov)->iov_base + n, (*iov)->iov_len - n};
}

static int transfer(struct block_request *r)
{
	struct iovec *iov = r->iov;
	unsigned n = r->n;
	for (uint64_t done = 0; done < r->bytes;) {
		off_t at = (off_t)(r->offset + done);
		ssize_t some = r->type == VIRTIO_BLK_T_IN ? preadv(r->file, iov, (int)n, at) : pwritev2(r->file, iov, (int)n, at, r->write_through ? RWF_DSYNC : 0);
		if (some < 0 && errno == EINTR)
			continue;
		if (some < 0)
			return -errno;
		if (some == 0) /* the file is shorter than it was */
			return -EIO;
		advance(&iov, &n, (size_t)some);
		done += (uint64_t)some;
	}
	return 0;
}

static int allocate(struct block_request *r, int mode)
{
	int x;
	do
		x = fallocate(r->file, mode | FALLOC_FL_KEEP_SIZE, (off_t)r->offset, (off_t)r->bytes);
	while (x < 0 && errno == EINTR);
	return x < 0 ? -errno : 0;
}

/* Zeros as bytes, where the file system has nothing better. */
static int write_zeros(struct block_request *r)
{
	static const char zeros[1 << 16];
	for (uint64_t done = 0; done < r->bytes;) {
		ssize_t some = pwrite(r->file, zeros, MIN(sizeof(zeros), r->bytes - done), (off_t)(r->offset + done));
		if (some < 0 && errno != EINTR)
			return -errno;
		done += some > 0 ? (uint64_t)some : 0;
	}
	return 0;
}

static int zero(struct block_request *r)
{
	int x = r->unmap ? allocate(r, FALLOC_FL_PUNCH_HOLE) : -EOPNOTSUPP;
	if (x == -EOPNOTSUPP)
		x = allocate(r, FALLOC_FL_ZERO_RANGE);
	return x == -EOPNOTSUPP ? write_zeros(r) : x;
}

void block_io(struct block_request *r)
{
	if (r->type == VIRTIO_BLK_T_FLUSH)
		r->error = fdatasync(r->file) < 0 ? -errno : 0;
	else if (r->bytes == 0)
		r->error = 0;
	else if (r->type == VIRTIO_BLK_T_DISCARD)
		r->error = allocate(r, FALLOC_FL_PUNCH_HOLE);
	else if (r->type == VIRTIO_BLK_T_WRITE_ZEROES)
		r->error = zero(r);
	else
		r->error = transfer(r);
	/* Without FLUSH agreed upon, what is done is on the disk. */
	if (r->error == 0 && r->write_through && (r->type == VIRTIO_BLK_T_DISCARD || r->type == VIRTIO_BLK_T_WRITE_ZEROES))
		r->error = fdatasync(r->file) < 0 ? -errno : 0;
}

bool block_io_cached(struct block_request *r)
{
	r->error = 0;
	return r->bytes == 0 || preadv2(r->file, r->iov, (int)r->n, (off_t)r->offset, RWF_NOWAIT) == (ssize_t)r->bytes;
}
