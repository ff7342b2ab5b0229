#include "sandbox/namespace/box.h"
#include "sandbox/namespace/copy.h"
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
	int root, image; /* descriptors on the mounted root and on the image file */
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

static int make_copy(struct copy_job *j)
{
	char temporary[PATH_MAX];
	struct stat st;
	if ((size_t)snprintf(temporary, sizeof(temporary), "%s.new", j->path) >= sizeof(temporary))
		return -ENAMETOOLONG;
	if (stopped(j))
		return -ECANCELED;
	cleanup_fd int dir = open_parent(j->path);
	if (dir < 0)
		return dir;
	unlink(temporary);
	cleanup_fd int to = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	prepare(j);
	int r = copy_frozen(j, to);
	if (r == 0)
		r = stopped(j) ? -ECANCELED : keep(to, dir, temporary, j->path);
	if (r == 0) {
		FAULT(copy_kept);
		r = fstat(to, &st) < 0 ? -errno : 0;
	}
	if (r == 0)
		j->result.size = (uint64_t)st.st_blocks * 512;
	else
		unlink(temporary);
	return r;
}

static void copy_work(void *arg)
{
	struct copy_job *j = arg;
	int r = make_copy(j);
	if (r == -ECANCELED)
		error_set(&j->err, r, 404, "the sandbox ended while its disk was copied");
	else if (r == -ENOSPC || r == -EDQUOT)
		error_set(&j->err, r, 507, "the server's disk has no room for a copy of the sandbox's disk");
	else if (r < 0)
		error_set(&j->err, r, 500, "copying the sandbox's disk: %s", strerror(-r));
}

static void copy_done(void *arg)
{
	struct copy_job *j = arg;
	if (j->box)
		j->box->copy = NULL;
	if (j->err.code)
		j->done(NULL, &j->err, j->arg);
	else
		j->done(&j->result, NULL, j->arg);
	job_free(j);
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
	*j = (struct copy_job){.backend = b->backend, .box = b, .wanted = b->frozen, .guaranteed = h->options->disk_guarantee, .loop = b->slot->disk.loop,
		.root = fcntl(b->slot->disk.root, F_DUPFD_CLOEXEC, 3), .image = openat(h->disks, b->slot->disk.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC),
		.path = str_dup(str_of(path)), .done = done, .arg = arg};
	memcpy(j->group, b->slot->name, sizeof(j->group));
	pthread_mutex_init(&j->lock, NULL);
	int r = !j->path ? -ENOMEM : j->root < 0 || j->image < 0 ? -errno : workq_push(b->backend->copiers, b->backend->loop, copy_work, copy_done, j);
	if (r < 0) {
		job_free(j);
		return r;
	}
	b->copy = j;
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
