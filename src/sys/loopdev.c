#include "sys/loopdev.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

enum { ATTACH_TRIES = 64 };

struct loopdevs {
	pthread_mutex_t lock;
	int control;
	/* Idle numbers, oldest first: a device released long ago has surely wound down. */
	unsigned *idle;
	size_t head, count, cap;
};

int loopdevs_new(struct loopdevs **ret, struct error *err)
{
	struct loopdevs *l = calloc(1, sizeof(*l));
	if (!l)
		return error_errno(err, -ENOMEM, "loop devices");
	l->control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (l->control < 0) {
		int r = -errno;
		free(l);
		return error_errno(err, r, "/dev/loop-control");
	}
	pthread_mutex_init(&l->lock, NULL);
	*ret = l;
	return 0;
}

void loopdevs_free(struct loopdevs *l, bool remove)
{
	if (!l)
		return;
	/* The eight that a kernel starts with stay. */
	for (size_t i = 0; remove && i < l->count; i++)
		if (l->idle[(l->head + i) % l->cap] >= 8)
			ioctl(l->control, LOOP_CTL_REMOVE, (long)l->idle[(l->head + i) % l->cap]);
	close(l->control);
	pthread_mutex_destroy(&l->lock);
	free(l->idle);
	free(l);
}

static int take(struct loopdevs *l, unsigned *ret)
{
	int r = 0;
	pthread_mutex_lock(&l->lock);
	if (l->count) {
		*ret = l->idle[l->head];
		l->head = (l->head + 1) % l->cap;
		l->count--;
	} else {
		r = ioctl(l->control, LOOP_CTL_GET_FREE);
		if (r < 0)
			r = -errno;
		else
			*ret = (unsigned)r;
	}
	pthread_mutex_unlock(&l->lock);
	return r < 0 ? r : 0;
}

void loopdev_release(struct loopdevs *l, unsigned number)
{
	pthread_mutex_lock(&l->lock);
	if (l->count == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		unsigned *idle = malloc(cap * sizeof(*idle));
		if (idle) {
			for (size_t i = 0; i < l->count; i++)
				idle[i] = l->idle[(l->head + i) % l->cap];
			free(l->idle);
			l->idle = idle;
			l->cap = cap;
			l->head = 0;
		}
	}
	if (l->count < l->cap) { /* else forgotten: the kernel's search finds it again */
		l->idle[(l->head + l->count) % l->cap] = number;
		l->count++;
	}
	pthread_mutex_unlock(&l->lock);
}

const char *loopdev_path(char to[LOOPDEV_PATH_SIZE], unsigned number)
{
	snprintf(to, LOOPDEV_PATH_SIZE, "/dev/loop%u", number);
	return to;
}

int loopdev_attach(struct loopdevs *l, int backing_fd, bool read_only, unsigned *ret_number, struct error *err)
{
	struct loop_config config = {
		.fd = (unsigned)backing_fd,
		.block_size = 4096,
		.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO | (read_only ? LO_FLAGS_READ_ONLY : 0u),
	};
	int r = -EBUSY;
	for (int i = 0; i < ATTACH_TRIES; i++) {
		unsigned number = 0;
		char path[LOOPDEV_PATH_SIZE];
		r = take(l, &number);
		if (r < 0)
			break;
		int fd = open(loopdev_path(path, number), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		if (fd < 0) {
			r = -errno;
			continue;
		}
		if (ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
			*ret_number = number;
			return fd;
		}
		r = -errno;
		close(fd);
		/* Somebody else took the number, or it has not wound down: the next one. */
		if (r != -EBUSY)
			break;
	}
	return error_errno(err, r, "loop device");
}

int loopdev_backing(unsigned number, char *to, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/sys/block/loop%u/loop/backing_file", number);
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, path, 8192, &text);
	if (r < 0)
		return r;
	struct str s = buf_str(&text);
	if (s.n && s.p[s.n - 1] == '\n')
		s.n--;
	if (s.n >= size)
		return -ENAMETOOLONG;
	memcpy(to, s.p, s.n);
	to[s.n] = '\0';
	return 0;
}

int loopdev_detach(unsigned number)
{
	char path[LOOPDEV_PATH_SIZE];
	cleanup_fd int fd = open(loopdev_path(path, number), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return ioctl(fd, LOOP_CLR_FD) < 0 ? -errno : 0;
}
