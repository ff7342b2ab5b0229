/* The doctor's checks of disks and mounts: small images are made on the state directory's file system and mounted as sandboxes mount theirs. */
#include "cli/doctor.h"
#include "base/cleanup.h"
#include "sys/loopdev.h"
#include "sys/mounts.h"
#include "sys/process.h"
#include "sys/program.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <linux/securebits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <linux/magic.h>

#ifndef EROFS_SUPER_MAGIC_V1
#define EROFS_SUPER_MAGIC_V1 0xe0f5e1e2
#endif

static int run(const char *const *argv, struct error *err)
{
	cleanup_buf struct buf output = BUF_INIT;
	int r = program_run(argv, STR(""), &output, err);
	return r <= 0 ? r : error_set(err, -EIO, 500, "%s: %.*s", argv[0], (int)MIN(buf_len(&output), 200u), buf_str(&output).p);
}

static const char *in_work(const struct doctor *d, char path[300], const char *name)
{
	snprintf(path, 300, "%s/%s", d->work, name);
	return path;
}

static int make_ext4(const struct doctor *d, char path[300], struct error *err)
{
	const char *const argv[] = {"mkfs.ext4", "-q", "-F", "-O", "^resize_inode", "-b", "4096", "-J", "size=4", path, NULL};
	in_work(d, path, "ext4");
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, 64 << 20) < 0)
		return error_errno(err, -errno, "%s", path);
	return run(argv, err);
}

static int make_erofs(const struct doctor *d, char path[300], struct error *err)
{
	char source[300], file[320];
	const char *const argv[] = {"mkfs.erofs", "-T0", "--quiet", path, source, NULL};
	in_work(d, path, "erofs");
	in_work(d, source, "tree");
	snprintf(file, sizeof(file), "%s/hello", source);
	mkdir(source, 0755);
	cleanup_fd int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return fd < 0 ? error_errno(err, -errno, "%s", file) : run(argv, err);
}

/* A user namespace that maps 0.. to uid_base.., as a sandbox's. */
static int make_userns(const struct doctor *d, struct error *err)
{
	int pipes[2];
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int from = pipes[0], to = pipes[1];
	pid_t pid = fork();
	if (pid == 0) {
		char ok = unshare(CLONE_NEWUSER) == 0;
		if (write(to, &ok, 1) == 1)
			pause();
		_exit(0);
	}
	char ok = 0;
	int r = pid < 0 || read(from, &ok, 1) != 1 || !ok ? -EPERM : 0;
	static const char *const files[] = {"uid_map", "gid_map"};
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(files); i++) {
		char path[64], line[64];
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
		int n = snprintf(line, sizeof(line), "0 %lld 65536\n", (long long)d->options->uid_base);
		cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
		r = fd < 0 || write(fd, line, (size_t)n) != n ? -errno : 0;
	}
	int ns = r == 0 ? process_namespace(pid, "user") : r;
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return ns < 0 ? error_errno(err, ns, "user namespace") : ns;
}

/* Mounts the image by a loop device. The mount keeps the device. */
static int mount_by_loop(const char *type, const char *path, bool read_only, struct error *err)
{
	struct loopdevs *loops;
	char device[LOOPDEV_PATH_SIZE];
	unsigned number;
	cleanup_fd int file = open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	if (file < 0)
		return error_errno(err, -errno, "%s", path);
	int r = loopdevs_new(&loops, err);
	if (r < 0)
		return r;
	cleanup_fd int loop = loopdev_attach(loops, file, read_only, &number, err);
	r = loop;
	if (loop >= 0) {
		struct mount_option options[] = {{"source", loopdev_path(device, number)}, {"ro", NULL}};
		r = mount_new(type, options, read_only ? 2 : 1, 0, err);
	}
	loopdevs_free(loops, false);
	return r;
}

static int mount_idmapped(const struct doctor *d, int mount, struct error *err)
{
	if (mount < 0)
		return mount;
	cleanup_fd int userns = make_userns(d, err);
	struct stat st;
	int r = userns < 0 ? userns : mount_idmap(mount, userns, err);
	if (r == 0 && (fstat(mount, &st) < 0 || st.st_uid != (uid_t)d->options->uid_base))
		return error_set(err, -EINVAL, 500, "the mapped mount shows uid %u instead of %lld", st.st_uid, (long long)d->options->uid_base);
	return r;
}

int doctor_try_loop(struct doctor *d, struct error *err)
{
	char path[300];
	struct loopdevs *loops;
	unsigned number;
	in_work(d, path, "loop");
	cleanup_fd int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, 16 << 20) < 0)
		return error_errno(err, -errno, "%s", path);
	int r = loopdevs_new(&loops, err);
	if (r < 0)
		return r;
	cleanup_fd int loop = loopdev_attach(loops, file, false, &number, err);
	loopdevs_free(loops, false);
	return loop < 0 ? loop : 0;
}

int doctor_try_ext4(struct doctor *d, struct error *err)
{
	char path[300];
	int r = make_ext4(d, path, err);
	if (r < 0)
		return r;
	cleanup_fd int mount = mount_by_loop("ext4", path, false, err);
	return mount_idmapped(d, mount, err);
}

int doctor_try_erofs_loop(struct doctor *d, struct error *err)
{
	char path[300];
	int r = make_erofs(d, path, err);
	if (r < 0)
		return r;
	cleanup_fd int mount = mount_by_loop("erofs", path, true, err);
	return mount_idmapped(d, mount, err);
}

int doctor_try_erofs_file(struct doctor *d, struct error *err)
{
	char path[300];
	int r = make_erofs(d, path, err);
	if (r < 0)
		return r;
	struct mount_option options[] = {{"source", path}};
	cleanup_fd int mount = mount_new("erofs", options, 1, 0, err);
	return mount_idmapped(d, mount, err);
}

int doctor_try_tmpfs(struct doctor *d, struct error *err)
{
	cleanup_fd int mount = mount_new("tmpfs", NULL, 0, 0, err);
	return mount_idmapped(d, mount, err);
}

/* The whole recipe: EROFS below, ext4 above, both idmapped, made with the file-system ids of the mapped root. */
int doctor_try_overlay(struct doctor *d, struct error *err)
{
	char path[300], staging[300], place[320];
	static const char *const places[] = {"0", "w"};
	uid_t first = (uid_t)d->options->uid_base;
	int r = make_erofs(d, path, err);
	if (r < 0)
		return r;
	cleanup_fd int lower = mount_by_loop("erofs", path, true, err);
	if ((r = mount_idmapped(d, lower, err)) < 0 || (r = make_ext4(d, path, err)) < 0)
		return r;
	cleanup_fd int disk = mount_by_loop("ext4", path, false, err);
	if (disk < 0)
		return disk;
	if (mkdirat(disk, "upper", 0755) < 0 || mkdirat(disk, "work", 0755) < 0)
		return error_errno(err, -errno, "directories of the upper layer");
	if ((r = mount_idmapped(d, disk, err)) < 0)
		return r;
	mkdir(in_work(d, staging, "staging"), 0711);
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		snprintf(place, sizeof(place), "%s/%s", staging, places[i]);
		mkdir(place, 0711);
	}
	prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP);
	setfsgid(first);
	setfsuid(first);
	cleanup_fd int upper = openat(disk, "upper", O_PATH | O_DIRECTORY | O_CLOEXEC), work = openat(disk, "work", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct mount_overlay o = {.lower = &lower, .n_lower = 1, .upper = upper, .work = work};
	struct mount_staging s = {.dir = staging, .writable = disk};
	cleanup_fd int overlay = mount_overlay(&o, &s, 0, err);
	if (overlay < 0)
		return overlay;
	cleanup_fd int file = openat(overlay, "hello", O_WRONLY | O_CLOEXEC);
	if (file < 0 || write(file, "x", 1) != 1)
		return error_errno(err, -errno, "writing through the overlay");
	return 0;
}

static const char *file_system(const char *path)
{
	struct statfs s;
	if (statfs(path, &s) < 0)
		return "unknown";
	switch ((unsigned long)s.f_type) {
	case EXT4_SUPER_MAGIC:
		return "ext4";
	case XFS_SUPER_MAGIC:
		return "xfs";
	case BTRFS_SUPER_MAGIC:
		return "btrfs";
	case TMPFS_MAGIC:
		return "tmpfs";
	case OVERLAYFS_SUPER_MAGIC:
		return "overlay";
	default:
		return "another file system";
	}
}

int doctor_try_reflink(struct doctor *d, struct error *err)
{
	char path[300];
	cleanup_fd int from = open(in_work(d, path, "reflink-a"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cleanup_fd int to = open(in_work(d, path, "reflink-b"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	char block[4096] = "x";
	if (from < 0 || to < 0 || write(from, block, sizeof(block)) != (ssize_t)sizeof(block))
		return error_errno(err, -errno, "%s", path);
	snprintf(d->note, sizeof(d->note), "%s", file_system(d->work));
	return ioctl(to, FICLONE, from) < 0 ? error_errno(err, -errno, "%s", file_system(d->work)) : 0;
}

int doctor_try_space(struct doctor *d, struct error *err)
{
	struct statvfs v;
	if (statvfs(d->work, &v) < 0)
		return error_errno(err, -errno, "%s", d->work);
	double total = (double)v.f_blocks * (double)v.f_frsize / 1e9, left = (double)v.f_bavail * (double)v.f_frsize / 1e9;
	double reserve = total * (double)d->options->disk_reserve / 100;
	snprintf(d->note, sizeof(d->note), "%.1f GB free on %s, of which %.1f GB are kept in reserve", left, d->options->state_dir, reserve);
	if (left - reserve < 1)
		return error_set(err, -ENOSPC, 507, "%.1f GB of %.1f are free; %.1f are kept in reserve (disk.reserve)", left, total, reserve);
	return 0;
}
