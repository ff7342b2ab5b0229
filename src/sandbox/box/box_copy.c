#include "sandbox/box/box.h"
#include "sandbox/box/copy.h"
#include "sandbox/namespace/layers.h"
#include "sandbox/space.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static const uint64_t stale_much = UINT64_C(16) << 20;

/*
 * A copy of a running box's disk: written back, frozen (FIFREEZE), copied, thawed.
 *
 * The kernel freezes a file system when the last system call that is writing to it has ended, and holds all others up until then. One that waits for something else
 * (a splice out of an empty pipe) would hold them, and us, for as long as its program likes: so the work group is frozen for that moment, which ends such waits.
 */
struct copy_job {
	struct backend *backend;
	struct box *box; /* the loop's; NULL: it is gone, or goes */
	pthread_mutex_t lock;
	bool stop;       /* also read without the lock: atomic */
	bool holding;    /* the work group is frozen for us */
	bool wanted;     /* what the work group is to be after that */
	bool guaranteed;
	char group[16];
	int root, image; /* descriptors on the mounted root (-1: it is mounted inside only) and on the image file */
	int to;          /* the copy */
	int64_t held_at;
	unsigned loop;
	char *path;
	box_copied_fn *done;
	void *arg;
	struct box_copied result;
	struct error err;
};

static void job_free(struct copy_job *j)
{
	if (j->root >= 0)
		close(j->root);
	if (j->image >= 0)
		close(j->image);
	if (j->to >= 0)
		close(j->to);
	pthread_mutex_destroy(&j->lock);
	free(j->path);
	free(j);
}

static int freeze_group(struct copy_job *j, bool on)
{
	return cgroups_freeze(j->backend->host->cgroups, j->group, CGROUP_WORK, on);
}

static int hold_group(struct copy_job *j)
{
	pthread_mutex_lock(&j->lock);
	int r = j->stop ? -ECANCELED : freeze_group(j, true);
	j->holding = r == 0;
	pthread_mutex_unlock(&j->lock);
	return r;
}

static void let_group(struct copy_job *j)
{
	pthread_mutex_lock(&j->lock);
	if (j->holding)
		freeze_group(j, j->wanted);
	j->holding = false;
	pthread_mutex_unlock(&j->lock);
}

int box_copy_freeze(struct box *b, bool on)
{
	struct copy_job *j = b->copy;
	pthread_mutex_lock(&j->lock);
	j->wanted = on;
	int r = j->holding ? 0 : freeze_group(j, on);
	pthread_mutex_unlock(&j->lock);
	return r;
}

void box_copy_stop(struct box *b, bool killed)
{
	struct copy_job *j = steal_pointer(&b->copy);
	if (!j)
		return;
	pthread_mutex_lock(&j->lock);
	__atomic_store_n(&j->stop, true, __ATOMIC_RELAXED);
	if (killed && j->holding) {
		freeze_group(j, false);
		j->holding = false;
	}
	j->box = NULL;
	pthread_mutex_unlock(&j->lock);
}

static bool stopped(const struct copy_job *j)
{
	return __atomic_load_n(&j->stop, __ATOMIC_RELAXED);
}

/* What is written back before the freeze does not lengthen it, and what was deleted inside need not be copied (its blocks are free after the commit). */
static void prepare(const struct copy_job *j)
{
	struct box_space space;
	struct fstrim_range all = {.len = UINT64_MAX};
	syncfs(j->root);
	if (!j->guaranteed && space_read(j->loop, j->root, j->image, &space) == 0 && space.backed > space.used + stale_much)
		ioctl(j->root, FITRIM, &all);
}

static int copy_frozen(struct copy_job *j, int to)
{
	struct stat st;
	int64_t start = clock_monotonic();
	int r = hold_group(j);
	if (r < 0)
		return r;
	/* Waits for writers; those of a sandbox that is killed meanwhile end. */
	r = ioctl(j->root, FIFREEZE, 0) < 0 ? -errno : 0;
	let_group(j);
	if (r < 0)
		return r;
	FAULT(copy_frozen);
	/* By reference, the source needs room for what it writes from now on: not what was promised to a guaranteed disk. */
	r = fstat(j->image, &st) < 0 ? -errno : copy_sparse(j->image, to, st.st_size, !j->guaranteed, &j->stop);
	disk_thaw(j->root);
	j->result.paused = clock_monotonic() - start;
	FAULT(copy_thawed);
	return r;
}

/* The file has its name when all of it is on the disk, and the name is durable. */
static int keep(int fd, int dir, const char *temporary, const char *path)
{
	if (fsync(fd) < 0 || renameat(AT_FDCWD, temporary, AT_FDCWD, path) < 0 || fsync(dir) < 0)
		return -errno;
	return 0;
}

static int open_parent(const char *path)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(path, '/');
	snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int copy_held(const struct copy_job *j)
{
	struct stat st;
	FAULT(copy_frozen);
	return fstat(j->image, &st) < 0 ? -errno : copy_sparse(j->image, j->to, st.st_size, !j->guaranteed, &j->stop);
}

static int temporary_name(const struct copy_job *j, char to[PATH_MAX])
{
	return snprintf(to, PATH_MAX, "%s.new", j->path) >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int make_copy(struct copy_job *j)
{
	char temporary[PATH_MAX];
	int r = temporary_name(j, temporary);
	if (r < 0)
		return r;
	if (stopped(j))
		return -ECANCELED;
	unlink(temporary);
	j->to = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (j->to < 0)
		return -errno;
	if (j->root < 0)
		return copy_held(j);
	prepare(j);
	return copy_frozen(j, j->to);
}

static int keep_copy(struct copy_job *j)
{
	char temporary[PATH_MAX];
	struct stat st;
	int r = temporary_name(j, temporary);
	cleanup_fd int dir = r < 0 ? r : open_parent(j->path);
	if (dir < 0)
		return dir;
	r = stopped(j) ? -ECANCELED : keep(j->to, dir, temporary, j->path);
	if (r < 0)
		return r;
	FAULT(copy_kept);
	if (fstat(j->to, &st) < 0)
		return -errno;
	j->result.size = (uint64_t)st.st_blocks * 512;
	return 0;
}

static void fail(struct copy_job *j, int r)
{
	if (r == -ECANCELED)
		error_set(&j->err, r, 404, "the sandbox ended while its disk was copied");
	else if (r == -ENOSPC || r == -EDQUOT)
		error_set(&j->err, r, 507, "the server's disk has no room for a copy of the sandbox's disk");
	else if (r < 0)
		error_set(&j->err, r, 500, "copying the sandbox's disk: %s", strerror(-r));
}

static void copy_work(void *arg)
{
	struct copy_job *j = arg;
	fail(j, make_copy(j));
}

/* It becomes what was asked for, or goes. */
static void keep_work(void *arg)
{
	struct copy_job *j = arg;
	char temporary[PATH_MAX];
	if (!j->err.code)
		fail(j, keep_copy(j));
	if (j->err.code && temporary_name(j, temporary) == 0)
		unlink(temporary);
}

static void copy_done(void *arg)
{
	struct copy_job *j = arg;
	if (j->box)
		j->box->copy = NULL;
	if (!j->backend->copiers) /* as those that were on a worker then: nobody is told */
		;
	else if (j->err.code)
		j->done(NULL, &j->err, j->arg);
	else
		j->done(&j->result, NULL, j->arg);
	job_free(j);
}

static void take_error(struct copy_job *j, const struct error *err)
{
	if (err->code == -ECANCELED)
		fail(j, -ECANCELED);
	else
		j->err = *err;
}

static void push(struct copy_job *j, void (*work)(void *arg), void (*done)(void *arg))
{
	int r = workq_push(j->backend->copiers, j->backend->loop, work, done, j);
	if (r < 0) {
		fail(j, r);
		copy_done(j);
	}
}

static void let_go(const struct error *err, void *arg)
{
	struct copy_job *j = arg;
	if (err && !j->err.code)
		take_error(j, err);
	if (j->root < 0) {
		j->result.paused = clock_monotonic() - j->held_at;
		FAULT(copy_thawed);
	}
	if (j->backend->copiers) {
		push(j, keep_work, copy_done);
		return;
	}
	/* The backend ends. */
	fail(j, -ECANCELED);
	keep_work(j);
	copy_done(j);
}

static void copied(void *arg)
{
	struct copy_job *j = arg;
	if (j->box)
		j->box->runtime->hold(j->box, false, let_go, j);
	else
		let_go(NULL, j);
}

static void held(const struct error *err, void *arg)
{
	struct copy_job *j = arg;
	j->held_at = clock_monotonic();
	if (!err) {
		push(j, copy_work, copied);
		return;
	}
	/* It may come to it yet: not to stand still for nothing then. */
	if (err->code == -ETIMEDOUT && j->box)
		j->box->runtime->hold(j->box, false, NULL, NULL);
	take_error(j, err);
	copy_done(j);
}

int box_copy(struct box *b, const char *path, box_copied_fn *done, void *arg)
{
	if (b->state != BOX_RUNNING)
		return -EAGAIN;
	if (b->copy)
		return -EBUSY;
	struct copy_job *j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	struct host *h = b->backend->host;
	*j = (struct copy_job){.backend = b->backend, .box = b, .wanted = b->frozen, .guaranteed = h->options->disk_guarantee, .loop = b->slot->disk.loop, .to = -1,
		.root = b->slot->disk.root < 0 ? -1 : fcntl(b->slot->disk.root, F_DUPFD_CLOEXEC, 3), .image = box_open_image(b), .path = str_dup(str_of(path)), .done = done, .arg = arg};
	memcpy(j->group, b->slot->name, sizeof(j->group));
	pthread_mutex_init(&j->lock, NULL);
	if (!j->path || j->image < 0 || (j->root < 0 && b->slot->disk.root >= 0)) {
		int r = !j->path ? -ENOMEM : j->image < 0 ? j->image : -EMFILE;
		job_free(j);
		return r;
	}
	b->copy = j;
	b->runtime->hold(b, true, held, j);
	return 0;
}

struct drop {
	struct backend *backend;
	char path[];
};

static void drop_work(void *arg)
{
	struct drop *d = arg;
	struct error err = {0};
	if (host_enter(d->backend->host, &err) < 0)
		log_error("%s", err.message);
	/* Before the mount is forgotten: nobody can make it again then. */
	if (unlink(d->path) < 0 && errno != ENOENT)
		log_error("image %s stays: %s", d->path, strerror(errno));
	pool_forget_layer(d->backend->pool, d->path);
	layers_forget(d->backend->host, d->path);
}

static void drop_done(void *arg)
{
	struct drop *d = arg;
	struct backend *b = d->backend;
	free(d);
	backend_let_drain(b);
}

void backend_drop_image(struct backend *b, const char *path)
{
	size_t n = strlen(path) + 1;
	struct drop *d = malloc(sizeof(*d) + n);
	if (d) {
		d->backend = b;
		memcpy(d->path, path, n);
		backend_hold_drain(b);
		if (workq_push(b->copiers, b->loop, drop_work, drop_done, d) == 0)
			return;
		backend_let_drain(b);
	}
	free(d);
	/* The next start of the node sweeps it. */
	log_error("image %s stays for now: no memory", path);
}
