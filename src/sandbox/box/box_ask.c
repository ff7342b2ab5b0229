#include "sandbox/box/box.h"
#include "base/cleanup.h"
#include "io/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

bool box_is_usable(const struct box *b)
{
	return b->state == BOX_RUNNING || b->state == BOX_DEAD || (b->state == BOX_STARTING && b->claimed);
}

int box_freeze(struct box *b, bool on)
{
	if (!box_is_usable(b))
		return -EBUSY;
	int r = b->copy ? box_copy_freeze(b, on) : cgroups_freeze(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, on);
	if (r < 0)
		return r;
	b->frozen = on;
	if (b->chan && b->slot->knows_still)
		chan_send(b->chan, MSG_ID_still, &(struct msg_still){.on = on}, 0, NULL, 0, NULL);
	return 0;
}

int box_open_image(const struct box *b)
{
	int fd = openat(b->backend->host->disks, b->slot->disk.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int box_dirty(const struct box *b, uint64_t *ret)
{
	return box_is_usable(b) ? cgroups_dirty(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, ret) : -EBUSY;
}

int box_space(const struct box *b, struct box_space *ret)
{
	return box_is_usable(b) ? b->runtime->space(b, ret) : -EBUSY;
}

int box_brake(struct box *b, uint64_t most)
{
	return box_is_usable(b) ? b->runtime->brake(b, most) : -EBUSY;
}

int64_t box_disk_bytes(const struct box *b)
{
	struct stat st;
	if (!box_is_usable(b))
		return -EBUSY;
	return fstatat(b->backend->host->disks, b->slot->disk.name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : (int64_t)st.st_blocks * 512;
}

/* A reading of its cgroups on a worker. The name may be another sandbox's by then: the box that asked is gone in that case. */
struct stats_job {
	struct box *box; /* NULL: it is gone */
	struct cgroups *cgroups;
	char name[sizeof(((struct slot *)NULL)->name)];
	struct box_stats result;
	int error;
	box_stats_fn *done;
	void *arg;
};

static void stats_work(void *arg)
{
	struct stats_job *j = arg;
	struct cgroup_stats work = {0}, agent = {0};
	j->error = cgroups_stats(j->cgroups, j->name, CGROUP_WORK, &work);
	if (j->error == 0)
		j->error = cgroups_stats(j->cgroups, j->name, CGROUP_AGENT, &agent);
	j->result = (struct box_stats){
		.cpu_usec = work.cpu_usec + agent.cpu_usec,
		.memory_used = work.memory_used,
		.memory_limit = work.memory_limit,
		.memory_cache = work.memory_cache,
		.pids = work.pids,
		.oom_kills = work.oom_kills,
	};
}

static void stats_done(void *arg)
{
	struct stats_job *j = arg;
	if (j->box) {
		j->box->stats = NULL;
		j->done(j->error < 0 ? NULL : &j->result, j->arg);
	}
	free(j);
}

int box_stats(struct box *b, box_stats_fn *done, void *arg)
{
	if (!box_is_usable(b) || b->stats)
		return -EBUSY;
	struct stats_job *j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	*j = (struct stats_job){.box = b, .cgroups = b->backend->host->cgroups, .done = done, .arg = arg};
	memcpy(j->name, b->slot->name, sizeof(j->name));
	int r = workq_push(b->backend->readers, b->backend->loop, stats_work, stats_done, j);
	if (r < 0)
		free(j);
	else
		b->stats = j;
	return r;
}

void box_stats_cancel(struct box *b)
{
	if (b->stats)
		b->stats->box = NULL;
	b->stats = NULL;
}

void box_trim(struct box *b)
{
	/* A preallocated disk keeps what it was given: a trim would punch holes into the promise. */
	if (box_is_usable(b) && !b->backend->host->options->disk_guarantee)
		b->runtime->tidy(b, true);
}

void box_sync(struct box *b)
{
	if (box_is_usable(b))
		b->runtime->tidy(b, false);
}

int box_open(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	return b->state == BOX_RUNNING ? b->runtime->open(b, port, done, arg) : -EAGAIN;
}

int box_log(struct box *b, uint64_t after, box_log_fn *done, void *arg)
{
	return b->state == BOX_RUNNING && b->chan ? log_reads_ask(&b->log_reads, b->chan, after, done, arg) : -EAGAIN;
}

int box_follow_log(struct box *b, uint64_t after, box_log_fn *done, void *arg)
{
	return b->state == BOX_RUNNING && b->chan ? log_reads_follow(&b->log_reads, b->chan, after, done, arg) : -EAGAIN;
}

const char *box_isolation(const struct box *b)
{
	return b->runtime->isolation;
}

const char *box_launch(const struct box *b)
{
	return b->warm ? "warm" : "cold";
}
