#include "sandbox/box/disk.h"
#include "sandbox/box/copy.h"
#include "sandbox/box/host.h"
#include "sandbox/box/saved.h"
#include "sandbox/space.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "sys/mounts.h"
#include "sys/spares.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

enum {
	MASTERS_MAX = 64,
	PENDING_LITTLE = 4 << 20,
	ROOM_LEAST = 1 << 30,
	ROOM_SHARE = 5, /* percent above the reserve */
};

struct master {
	uint32_t size_mb;
	int fd;
};

struct masters {
	pthread_mutex_t lock;
	struct master list[MASTERS_MAX];
	size_t n;
};

static const struct mount_option ext4_options[] = {
	{"errors", "continue"}, {"nobarrier", NULL}, {"noinit_itable", NULL},
};

int masters_new(struct host *h, struct masters **ret, struct error *err)
{
	struct masters *m = calloc(1, sizeof(*m));
	if (!m)
		return error_errno(err, -ENOMEM, "disks");
	pthread_mutex_init(&m->lock, NULL);
	*ret = m;
	return 0;
}

void masters_free(struct masters *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n; i++)
		close(m->list[i].fd);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

/* mkfs.ext4 on the image behind the descriptor; its output goes nowhere. */
static int format(struct host *h, int fd, struct error *err)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	char *const argv[] = {"mkfs.ext4", "-q", "-F", "-O", "^resize_inode", "-J", "size=16", "-i", "32768", "-b", "4096", "-E",
		"assume_storage_prezeroed=1,packed_meta_blocks=1", "-m", "0", path, NULL};
	char *const envp[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, fd); /* clears close-on-exec in the child */
	for (int i = 0; i < 3; i++)
		posix_spawn_file_actions_adddup2(&actions, h->null, i);
	pid_t pid;
	int r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, envp);
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		return error_errno(err, -r, "mkfs.ext4");
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return error_errno(err, -errno, "mkfs.ext4");
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : error_set(err, -EIO, 500, "mkfs.ext4 failed (status %d)", status);
}

static int mount_loop(unsigned loop, struct error *err)
{
	char path[LOOPDEV_PATH_SIZE];
	struct mount_option options[1 + ARRAY_SIZE(ext4_options)] = {{"source", loopdev_path(path, loop)}};
	memcpy(options + 1, ext4_options, sizeof(ext4_options));
	return mount_new("ext4", options, ARRAY_SIZE(options), MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, err);
}

static int open_root(int mount, struct error *err)
{
	int fd = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? error_errno(err, -errno, "root of a disk") : fd;
}

/* Waits until the last write-back of a loop device that is winding down has reached its file. */
static void wait_unbound(unsigned loop)
{
	char path[512];
	for (int i = 0; i < 2000 && loopdev_backing(loop, path, sizeof(path)) == 0; i++)
		usleep(1000);
}

static int make_directories(unsigned loop, struct error *err)
{
	cleanup_fd int mount = mount_loop(loop, err);
	if (mount < 0)
		return mount;
	if (mkdirat(mount, "upper", 0755) < 0 || mkdirat(mount, "work", 0755) < 0)
		return error_errno(err, -errno, "directories of a disk");
	spares_set_aside(mount);
	return 0;
}

void disk_mounted(const struct disk *d)
{
	spares_renew(d->mount);
}

/* The directories every copy needs; then an unmount, so that a copy has no journal to replay. */
static int furnish(struct host *h, int fd, struct error *err)
{
	unsigned loop;
	int device = loopdev_attach(h->loops, fd, false, &loop, err);
	if (device < 0)
		return device;
	int r = make_directories(loop, err);
	close(device);
	wait_unbound(loop);
	loopdev_release(h->loops, loop);
	return r;
}

static int make_master(struct host *h, uint32_t size_mb, struct error *err)
{
	/* Without a name: nothing to sweep after a crash. */
	cleanup_fd int fd = openat(h->disks, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "image of %u MiB", size_mb);
	if (ftruncate(fd, (off_t)size_mb << 20) < 0)
		return error_errno(err, -errno, "image of %u MiB", size_mb);
	int r = format(h, fd, err);
	if (r == 0)
		r = furnish(h, fd, err);
	return r < 0 ? r : steal_fd(&fd);
}

/* A new descriptor of the formatted image of that size. */
static int master_of(struct host *h, uint32_t size_mb, struct error *err)
{
	struct masters *m = h->masters;
	pthread_mutex_lock(&m->lock);
	int fd = -1;
	for (size_t i = 0; i < m->n && fd < 0; i++)
		if (m->list[i].size_mb == size_mb)
			fd = fcntl(m->list[i].fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0) {
		int made = make_master(h, size_mb, err);
		if (made < 0) {
			fd = made;
		} else {
			if (m->n == MASTERS_MAX) { /* many sizes: the oldest is made again when it is wanted again */
				close(m->list[0].fd);
				memmove(m->list, m->list + 1, sizeof(m->list[0]) * --m->n);
			}
			m->list[m->n++] = (struct master){size_mb, made};
			fd = fcntl(made, F_DUPFD_CLOEXEC, 3);
			if (fd < 0)
				fd = error_errno(err, -errno, "image of %u MiB", size_mb);
		}
	}
	pthread_mutex_unlock(&m->lock);
	return fd;
}

static int make_image(struct host *h, const char *name, uint32_t size_mb, struct error *err)
{
	cleanup_fd int master = master_of(h, size_mb, err);
	if (master < 0)
		return master;
	/* SEEK_DATA moves the offset that duplicates share: each copy needs an open file of its own. */
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", master);
	cleanup_fd int from = open(path, O_RDONLY | O_CLOEXEC);
	unlinkat(h->disks, name, 0);
	cleanup_fd int to = openat(h->disks, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (from < 0 || to < 0)
		return error_errno(err, -errno, "disk image %s", name);
	/* A shared block needs room when it is written, which a guaranteed disk may not. */
	int r = copy_sparse(from, to, (off_t)size_mb << 20, !h->options->disk_guarantee, NULL);
	if (r == 0 && h->options->disk_guarantee && fallocate(to, FALLOC_FL_KEEP_SIZE, 0, (off_t)size_mb << 20) < 0)
		r = -errno;
	if (r < 0) {
		unlinkat(h->disks, name, 0);
		return error_set(err, r, r == -ENOSPC ? 507 : 500, "disk image of %u MiB: %s", size_mb, strerror(-r));
	}
	return steal_fd(&to);
}

/* Has the file system read what the first writes need (bitmaps, inode tables): with direct I/O nothing of the image is in memory yet, and a
 * create would wait for the host's disk. The overlay makes directories in work and temporary files, people make files in upper. */
static void warm(int root)
{
	static const char *const dirs[] = {"work", "upper"};
	for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
		char inner[32], file[48];
		snprintf(inner, sizeof(inner), "%s/warm", dirs[i]);
		snprintf(file, sizeof(file), "%s/warm/file", dirs[i]);
		if (mkdirat(root, inner, 0700) < 0)
			continue;
		/* Not opened: a child that another thread clones now would hold it open for a moment, and a mount with a writer cannot be mapped. */
		if (mknodat(root, file, S_IFREG | 0600, 0) == 0)
			unlinkat(root, file, 0);
		unlinkat(root, inner, AT_REMOVEDIR);
	}
}

/* Attaches and mounts the image behind the descriptor, which is d->name; on failure it is dropped. */
static int bring_up(struct host *h, int image, int userns, struct disk *d, struct error *err)
{
	/* The device keeps this open file and so the lock: while somebody else has the image mounted, nobody gets it. */
	cleanup_fd int device = saved_lock(image, err) < 0 ? -EBUSY : loopdev_attach(h->loops, image, false, &d->loop, err);
	if (device < 0) {
		unlinkat(h->disks, d->name, 0);
		return device;
	}
	int r = d->mount = mount_loop(d->loop, err);
	if (r >= 0) {
		spares_spend(d->mount);
		warm(d->mount); /* with the ids of the disk: the mapped mount knows no root of the host */
		r = mount_idmap(d->mount, userns, err);
	}
	if (r >= 0)
		r = d->root = open_root(d->mount, err);
	if (r < 0)
		disk_drop(h, d);
	return r < 0 ? r : 0;
}

int disk_make(struct host *h, const char *name, uint32_t size_mb, int userns, struct disk *ret, struct error *err)
{
	struct disk d = DISK_NONE;
	cleanup_fd int image = make_image(h, name, size_mb, err);
	if (image < 0)
		return image;
	snprintf(d.name, sizeof(d.name), "%s", name);
	d.size_mb = size_mb;
	int r = bring_up(h, image, userns, &d, err);
	if (r == 0)
		*ret = d;
	return r;
}

int disk_take(struct host *h, const char *image, const char *name, int userns, struct disk *ret, struct error *err)
{
	struct disk d = DISK_NONE;
	struct stat st;
	cleanup_fd int fd = saved_link(h, image, name, err);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "%s", image);
	snprintf(d.name, sizeof(d.name), "%s", name);
	d.size_mb = (uint32_t)(st.st_size >> 20);
	FAULT(boot_taken);
	int r = bring_up(h, fd, userns, &d, err);
	if (r == 0)
		*ret = d;
	return r;
}

int disk_image(struct host *h, const char *name, uint32_t size_mb, const char *saved, struct disk *ret, struct error *err)
{
	struct disk d = DISK_NONE;
	struct stat st;
	cleanup_fd int fd = saved ? saved_link(h, saved, name, err) : make_image(h, name, size_mb, err);
	if (fd < 0)
		return fd;
	int r = fstat(fd, &st) < 0 ? error_errno(err, -errno, "disk image %s", name) : saved_lock(fd, err);
	if (r < 0) {
		unlinkat(h->disks, name, 0);
		return r;
	}
	FAULT(boot_taken);
	snprintf(d.name, sizeof(d.name), "%s", name);
	d.size_mb = (uint32_t)(st.st_size >> 20);
	d.unbound = true;
	*ret = d;
	return steal_fd(&fd);
}

int disk_adopt(struct host *h, const char *name, unsigned loop, struct disk *ret, struct error *err)
{
	struct disk d = DISK_NONE;
	struct stat file, bound;
	char path[512];
	int r = loopdev_backing(loop, path, sizeof(path));
	/* The number may mean another file by now; the file's identity tells. */
	if (r == 0 && (fstatat(h->disks, name, &file, AT_SYMLINK_NOFOLLOW) < 0 || stat(path, &bound) < 0))
		r = -errno;
	if (r == 0 && (file.st_dev != bound.st_dev || file.st_ino != bound.st_ino))
		r = -ESTALE;
	if (r < 0)
		return error_errno(err, r, "disk %s on loop%u", name, loop);
	snprintf(d.name, sizeof(d.name), "%s", name);
	d.loop = loop;
	d.size_mb = (uint32_t)(file.st_size >> 20);
	cleanup_fd int mount = mount_loop(loop, err);
	if (mount < 0)
		return mount;
	d.root = open_root(mount, err);
	if (d.root < 0)
		return d.root;
	disk_thaw(d.root);
	*ret = d;
	return 0;
}

void disk_thaw(int root)
{
	ioctl(root, FITHAW, 0);
}

void disk_trim(const struct host *h, const struct disk *d)
{
	struct fstrim_range all = {.len = UINT64_MAX};
	/* Blocks are free after the commit. */
	if (d->root >= 0 && !h->options->disk_guarantee && syncfs(d->root) == 0)
		ioctl(d->root, FITRIM, &all);
}

void disk_leave(struct disk *d)
{
	if (d->mount >= 0)
		close(d->mount);
	if (d->root >= 0)
		close(d->root);
	d->mount = d->root = -1;
}

/* What is dirty in a disk that is thrown away need not be written, and on a full host could not be. But the kernel reports a file system that is shut down
 * as a failure, on the console too, which holds everybody up: where little is pending and there is room, an unmount is cheaper. */
static bool must_shut_down(const struct host *h, const struct disk *d)
{
	struct box_space space;
	struct statvfs fs;
	if (space_read(d->loop, d->root, d->root, &space) < 0 || space.pending > PENDING_LITTLE || fstatvfs(h->disks, &fs) < 0)
		return true;
	uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize, total = (uint64_t)fs.f_blocks * fs.f_frsize;
	return room < ROOM_LEAST || room < total / 100 * (uint64_t)(h->options->disk_reserve + ROOM_SHARE);
}

void disk_abandon(struct host *h, struct disk *d)
{
	if (d->root >= 0 && must_shut_down(h, d))
		space_shutdown(d->root);
}

void disk_unbind(struct host *h, struct disk *d)
{
	if (!d->unbound)
		loopdev_release(h->loops, d->loop);
	d->unbound = true;
}

void disk_drop(struct host *h, struct disk *d)
{
	if (!d->name[0])
		return;
	disk_abandon(h, d);
	disk_leave(d);
	unlinkat(h->disks, d->name, 0);
	disk_unbind(h, d);
	d->name[0] = '\0';
}
