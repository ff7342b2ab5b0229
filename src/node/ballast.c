#include "base/cleanup.h"
#include "base/log.h"
#include "io/workq.h"
#include "node/service.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

/* The ballast: a file that holds space which the node can give back at once when the disk runs full. Made and removed on a thread. */

struct chore {
	char path[PATH_MAX];
	uint64_t bytes;
	int result;
};

static void work(void *arg)
{
	struct chore *c = arg;
	cleanup_fd int fd = open(c->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		c->result = -errno;
		return;
	}
	if (c->bytes)
		c->result = -posix_fallocate(fd, 0, (off_t)c->bytes);
	/* Truncated rather than removed, so that one fsync commits the freeing: before that ext4 gives the blocks to nobody. */
	if (!c->bytes || c->result < 0)
		c->result = ftruncate(fd, 0) < 0 ? -errno : c->result;
	if (fsync(fd) < 0 && c->result == 0)
		c->result = -errno;
}

static void done(void *arg)
{
	struct chore *c = arg;
	if (c->result < 0)
		log_warn("ballast file %s: %s", c->path, strerror(-c->result));
	free(c);
}

void node_ballast(uint64_t bytes, void *arg)
{
	struct node *n = arg;
	struct chore *c = calloc(1, sizeof(*c));
	if (!c)
		return;
	snprintf(c->path, sizeof(c->path), "%s/ballast", n->directory);
	c->bytes = bytes;
	if (workq_push(n->chores, n->loop, work, done, c) < 0)
		free(c);
}
