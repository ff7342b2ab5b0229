#include "base/cleanup.h"
#include "base/log.h"
#include "io/workq.h"
#include "node/service.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

/* The ballast: a file that holds space which the node can give back at once when the disk runs full. Made and emptied on a thread, one change at a time. */

static void set_size(const char *path, uint64_t bytes, int *ret)
{
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		*ret = -errno;
		return;
	}
	*ret = bytes ? -posix_fallocate(fd, 0, (off_t)bytes) : 0;
	/* Emptied rather than removed, so that one fsync commits the freeing: before that ext4 gives the blocks to nobody. */
	if ((!bytes || *ret < 0) && ftruncate(fd, 0) < 0 && *ret == 0)
		*ret = -errno;
	if (fsync(fd) < 0 && *ret == 0)
		*ret = -errno;
}

static void work(void *arg)
{
	struct node *n = arg;
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/ballast", n->directory);
	set_size(path, n->ballast.setting, &n->ballast.result);
}

static void start(struct node *n);

static void done(void *arg)
{
	struct node *n = arg;
	n->ballast.busy = false;
	if (n->ballast.result < 0)
		log_warn("ballast file of %llu bytes: %s", (unsigned long long)n->ballast.setting, strerror(-n->ballast.result));
	if (n->ballast.wanted != n->ballast.setting)
		start(n);
}

static void start(struct node *n)
{
	n->ballast.setting = n->ballast.wanted;
	n->ballast.busy = workq_push(n->chores, n->loop, work, done, n) == 0;
}

void node_ballast(uint64_t bytes, void *arg)
{
	struct node *n = arg;
	n->ballast.wanted = bytes;
	if (!n->ballast.busy)
		start(n);
}

void node_ballast_drop(struct node *n)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/ballast", n->directory);
	unlink(path);
}
