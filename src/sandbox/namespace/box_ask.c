#include "sandbox/namespace/box.h"
#include "sandbox/space.h"
#include "base/cleanup.h"
#include "io/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static bool is_usable(const struct box *b)
{
	return b->state == BOX_RUNNING || b->state == BOX_DEAD;
}

int box_freeze(struct box *b, bool on)
{
	if (!is_usable(b))
		return -EBUSY;
	int r = b->copy ? box_copy_freeze(b, on) : cgroups_freeze(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, on);
	if (r == 0)
		b->frozen = on;
	return r;
}

static int open_image(const struct box *b)
{
	int fd = openat(b->backend->host->disks, b->slot->disk.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int box_space(const struct box *b, struct box_space *ret)
{
	if (!is_usable(b))
		return -EBUSY;
	cleanup_fd int image = open_image(b);
	return image < 0 ? image : space_read(b->slot->disk.loop, b->slot->disk.root, image, ret);
}

int box_dirty(const struct box *b, uint64_t *ret)
{
	return is_usable(b) ? cgroups_dirty(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, ret) : -EBUSY;
}

int box_brake(struct box *b, uint64_t most)
{
	return is_usable(b) ? space_brake(b->slot->disk.loop, b->slot->disk.root, most) : -EBUSY;
}

int64_t box_disk_bytes(const struct box *b)
{
	struct stat st;
	if (!is_usable(b))
		return -EBUSY;
	return fstatat(b->backend->host->disks, b->slot->disk.name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : (int64_t)st.st_blocks * 512;
}

int box_stats(struct box *b, struct box_stats *ret)
{
	struct cgroup_stats c, agent;
	struct box_space space;
	if (!is_usable(b))
		return -EBUSY;
	int r = cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, &c);
	if (r == 0)
		r = cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_AGENT, &agent);
	if (r == 0)
		r = box_space(b, &space);
	if (r < 0)
		return r;
	*ret = (struct box_stats){
		.cpu_usec = c.cpu_usec + agent.cpu_usec,
		.memory_used = c.memory_used,
		.memory_limit = c.memory_limit,
		.memory_cache = c.memory_cache,
		.disk_used = space.used,
		.disk_total = space.total,
		.pids = c.pids,
		.oom_kills = c.oom_kills,
	};
	return 0;
}

static void slow_work(void *arg)
{
	struct slow_job *j = arg;
	struct fstrim_range all = {.len = UINT64_MAX};
	if (j->trim)
		ioctl(j->root, FITRIM, &all);
	else
		syncfs(j->root);
}

static void slow_done(void *arg)
{
	struct slow_job *j = arg;
	if (j->box)
		j->box->slow = NULL;
	close(j->root);
	free(j);
}

static void start_slow(struct box *b, bool trim)
{
	if (!is_usable(b) || b->slow)
		return;
	struct slow_job *j = calloc(1, sizeof(*j));
	if (!j)
		return;
	*j = (struct slow_job){.box = b, .root = fcntl(b->slot->disk.root, F_DUPFD_CLOEXEC, 3), .trim = trim};
	if (j->root < 0 || workq_push(b->backend->slow, b->backend->loop, slow_work, slow_done, j) < 0) {
		if (j->root >= 0)
			close(j->root);
		free(j);
		return;
	}
	b->slow = j;
}

void box_trim(struct box *b)
{
	/* A preallocated disk keeps what it was given: a trim would punch holes into the promise. */
	if (!b->backend->host->options->disk_guarantee)
		start_slow(b, true);
}

void box_sync(struct box *b)
{
	start_slow(b, false);
}

int box_open(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	if (b->state != BOX_RUNNING)
		return -EAGAIN;
	return opener_connect(b->backend->opener, b->slot->net.netns, b->slot->net.guest_address, port, done, arg);
}

int box_log(struct box *b, uint64_t after, int64_t since, box_log_fn *done, void *arg)
{
	return b->state == BOX_RUNNING && b->chan ? log_reads_ask(&b->log_reads, b->chan, after, since, done, arg) : -EAGAIN;
}

const char *box_launch(const struct box *b)
{
	return b->warm ? "warm" : "cold";
}
