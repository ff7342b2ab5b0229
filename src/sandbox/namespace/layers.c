#include "sandbox/namespace/layers.h"
#include "sandbox/box/host.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/map.h"
#include "sys/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/syscall.h>

struct layer {
	char *path;
	unsigned number; /* <dir>/mounts/layers/<number> */
	dev_t dev;       /* identity of the image: a path may be given to a new one */
	ino_t ino;
	bool loop;
	unsigned loop_number;
	bool disk;       /* a copy of a writable disk */
};

struct layers {
	pthread_mutex_t lock;
	struct map by_path;
	unsigned next;
};

int layers_new(struct host *h, struct layers **ret, struct error *err)
{
	struct layers *l = calloc(1, sizeof(*l));
	if (!l)
		return error_errno(err, -ENOMEM, "layers");
	pthread_mutex_init(&l->lock, NULL);
	*ret = l;
	return 0;
}

static void layer_free(struct layer *y)
{
	if (!y)
		return;
	free(y->path);
	free(y);
}

void layers_free(struct layers *l)
{
	if (!l)
		return;
	map_foreach (&l->by_path, s)
		layer_free(s->value);
	map_done(&l->by_path);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static const char *place(char to[512], const struct host *h, unsigned number)
{
	snprintf(to, 512, "%.460s/mounts/layers/%u", h->dir, number);
	return to;
}

static bool is_disk(const char *path)
{
	struct str s = str_of(path);
	return s.n > 4 && str_is(str_from(s, s.n - 4), ".img");
}

/* Reads files of the mounted layer until the budget is used up: what a node thread reads is charged to the node, not to the first sandbox. */
static void warm_dir(int dirfd, uint64_t *budget, int depth)
{
	cleanup_dir DIR *d = fdopendir(dirfd);
	if (!d) {
		close(dirfd);
		return;
	}
	for (struct dirent *e; *budget && (e = readdir(d));) {
		if (e->d_name[0] == '.' && (!e->d_name[1] || (e->d_name[1] == '.' && !e->d_name[2])))
			continue;
		if (e->d_type == DT_DIR && depth < 64) {
			int fd = openat(dirfd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			if (fd >= 0)
				warm_dir(fd, budget, depth + 1);
		} else if (e->d_type == DT_REG) {
			cleanup_fd int fd = openat(dirfd, e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOATIME);
			char bytes[65536];
			ssize_t n;
			while (fd >= 0 && *budget && (n = read(fd, bytes, sizeof(bytes))) > 0)
				*budget -= MIN(*budget, (uint64_t)n);
		}
	}
}

struct warming {
	sem_t apart; /* the thread has a file-system context of its own */
	int fd;
};

static void *warm(void *arg)
{
	struct warming *w = arg;
	cleanup_fd int fd = w->fd;
	/* A context shared with its maker, which is a worker, would keep the worker from entering another mount namespace. */
	int r = unshare(CLONE_FS);
	sem_post(&w->apart);
	struct sysinfo info;
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
	uint64_t budget = r == 0 && sysinfo(&info) == 0 ? (uint64_t)info.freeram * info.mem_unit / 8 : 0;
	warm_dir(steal_fd(&fd), &budget, 0);
	return NULL;
}

static void start_warming(const char *at)
{
	struct warming w = {.fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
	pthread_t thread;
	pthread_attr_t attr;
	if (w.fd < 0)
		return;
	sem_init(&w.apart, 0, 0);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 8 << 20);
	if (pthread_create(&thread, &attr, warm, &w))
		close(w.fd);
	else
		while (sem_wait(&w.apart) < 0)
			;
	pthread_attr_destroy(&attr);
	sem_destroy(&w.apart);
}

static int mount_erofs(const char *source, struct error *err)
{
	struct mount_option options[] = {{"source", source}, {"ro", NULL}};
	return mount_new("erofs", options, ARRAY_SIZE(options), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, err);
}

/* The copy was made of a frozen file system: there is no journal to replay. Never of a microVM's disk: this kernel has written it (docs/security.md). */
static int mount_disk(const char *source, struct error *err)
{
	struct mount_option options[] = {{"source", source}, {"ro", NULL}, {"noload", NULL}};
	return mount_new("ext4", options, ARRAY_SIZE(options), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, err);
}

static int mount_through_loop(struct host *h, struct layer *y, struct error *err)
{
	cleanup_fd int image = open(y->path, O_RDONLY | O_CLOEXEC);
	if (image < 0)
		return error_errno(err, -errno, "layer %s", y->path);
	cleanup_fd int device = loopdev_attach(h->loops, image, true, &y->loop_number, err);
	if (device < 0)
		return device;
	char path[LOOPDEV_PATH_SIZE];
	loopdev_path(path, y->loop_number);
	int fd = y->disk ? mount_disk(path, err) : mount_erofs(path, err);
	if (fd < 0) {
		loopdev_release(h->loops, y->loop_number);
		return error_wrap(err, fd, "layer %s", y->path);
	}
	y->loop = true;
	return fd;
}

/* From the file itself where the kernel can (EROFS, 6.12), else through a loop device. */
static int mount_image(struct host *h, struct layer *y, struct error *err)
{
	struct error first = {0};
	if (y->disk)
		return mount_through_loop(h, y, err);
	int fd = mount_erofs(y->path, &first);
	if (fd >= 0)
		return fd;
	if (fd != -ENOTBLK && fd != -EINVAL)
		return error_set(err, fd, 500, "layer %s: %s", y->path, first.message);
	return mount_through_loop(h, y, err);
}

/* Layers that were deleted or replaced on disk; sandboxes that use them keep clones of their own. */
static void forget(struct host *h, struct layer *y)
{
	char at[512];
	umount2(place(at, h, y->number), MNT_DETACH);
	rmdir(at);
	if (y->loop)
		loopdev_release(h->loops, y->loop_number);
	map_del(&h->layers->by_path, str_of(y->path));
	layer_free(y);
}

static bool is_same(const struct layer *y)
{
	struct stat st;
	return stat(y->path, &st) == 0 && st.st_dev == y->dev && st.st_ino == y->ino;
}

static void forget_stale(struct host *h)
{
	for (bool again = true; again;) {
		again = false;
		map_foreach (&h->layers->by_path, s)
			if (!is_same(s->value)) {
				forget(h, s->value);
				again = true;
				break;
			}
	}
}

static int add(struct host *h, const char *path, struct layer **ret, struct error *err)
{
	struct layers *l = h->layers;
	struct layer *y = calloc(1, sizeof(*y));
	struct stat st;
	char at[512];
	if (!y || !(y->path = str_dup(str_of(path)))) {
		layer_free(y);
		return error_errno(err, -ENOMEM, "layer");
	}
	int r = 0;
	if (stat(path, &st) < 0)
		r = error_errno(err, -errno, "layer %s", path);
	y->dev = st.st_dev;
	y->ino = st.st_ino;
	y->number = l->next++;
	y->disk = is_disk(path);
	cleanup_fd int fd = r < 0 ? r : mount_image(h, y, err);
	if (fd < 0)
		r = fd;
	else if (mkdir(place(at, h, y->number), 0700) < 0)
		r = error_errno(err, -errno, "%s", at);
	else
		r = mount_attach(fd, AT_FDCWD, at, err);
	if (r == 0 && map_put(&l->by_path, str_of(path), y, NULL) < 0)
		r = error_errno(err, -ENOMEM, "layer");
	if (r < 0) {
		layer_free(y);
		return r;
	}
	/* Of a disk each sandbox reads what it needs: it may be large, and used by few. */
	if (!y->disk)
		start_warming(at);
	*ret = y;
	return 0;
}

void layers_forget(struct host *h, const char *path)
{
	pthread_mutex_lock(&h->layers->lock);
	struct layer *y = map_get(&h->layers->by_path, str_of(path));
	if (y)
		forget(h, y);
	pthread_mutex_unlock(&h->layers->lock);
}

int layers_number(struct host *h, const char *path)
{
	struct layers *l = h->layers;
	if (pthread_mutex_trylock(&l->lock)) /* one is being mounted */
		return -EBUSY;
	const struct layer *y = map_get(&l->by_path, str_of(path));
	int r = y && is_same(y) ? (int)y->number : -ENOENT;
	pthread_mutex_unlock(&l->lock);
	return r;
}

int layers_clone(struct host *h, const char *path, int userns, unsigned *ret_number, struct error *err)
{
	struct layers *l = h->layers;
	char at[512];
	pthread_mutex_lock(&l->lock);
	struct layer *y = map_get(&l->by_path, str_of(path));
	int r = 0;
	if (y && !is_same(y)) {
		forget(h, y);
		y = NULL;
	}
	if (!y) {
		forget_stale(h);
		r = add(h, path, &y, err);
	}
	cleanup_fd int fd = r;
	if (r == 0) {
		/* Under the lock: it could be forgotten. */
		size_t n = strlen(place(at, h, y->number));
		snprintf(at + n, sizeof(at) - n, "%s", y->disk ? "/upper" : "");
		*ret_number = y->number;
		fd = mount_clone(AT_FDCWD, at, false, err);
	}
	pthread_mutex_unlock(&l->lock);
	if (fd < 0)
		return fd;
	r = userns < 0 ? 0 : mount_idmap(fd, userns, err);
	return r < 0 ? r : steal_fd(&fd);
}

int layers_open(struct host *h, const char *path, struct error *err)
{
	unsigned number;
	cleanup_fd int mount = layers_clone(h, path, -1, &number, err);
	if (mount < 0)
		return mount;
	int fd = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? error_errno(err, -errno, "layer %s", path) : fd;
}
