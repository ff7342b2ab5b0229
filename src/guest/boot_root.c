#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/boot.h"
#include "guest/names.h"
#include "sys/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC };

/* In the initramfs: places where overlay finds the layers, and where the root is put together. */
#define STAGE "/stage"
#define NEW "/new"

static int make_stage(size_t layers)
{
	char path[32];
	if (mkdir(NEW, 0755) < 0 || mkdir(STAGE, 0755) < 0 || mkdir(STAGE "/w", 0755) < 0)
		return -errno;
	for (size_t i = 0; i < layers; i++) {
		snprintf(path, sizeof(path), STAGE "/%zu", i);
		if (mkdir(path, 0755) < 0)
			return -errno;
	}
	return 0;
}

/* Device files work in it, as on a machine's root. */
static int mount_root(const struct boot_disks *d, struct error *err)
{
	cleanup_fd int upper = openat(d->root, "upper", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_fd int work = openat(d->root, "work", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (upper < 0 || work < 0)
		return error_errno(err, -errno, "directories of the disk");
	int r = make_stage(d->n_layers);
	if (r < 0)
		return error_errno(err, r, STAGE);
	struct mount_overlay o = {.lower = d->layers, .n_lower = d->n_layers, .upper = upper, .work = work};
	struct mount_staging staging = {.dir = STAGE, .writable = d->writable};
	cleanup_fd int root = mount_overlay(&o, &staging, 0, err);
	return root < 0 ? root : mount_attach(root, AT_FDCWD, NEW, err);
}

/* Made where a small image has none. A link in its place would lead the mount astray: that, or a file, goes. */
static int mount_point(const char *path)
{
	struct stat st;
	if (lstat(path, &st) == 0) {
		if (S_ISDIR(st.st_mode))
			return 0;
		unlink(path);
	}
	return mkdir(path, 0755) < 0 ? -errno : 0;
}

static int mount_kernel_filesystems(struct error *err)
{
	static const struct {
		const char *type, *at, *options;
		unsigned long flags;
		bool optional;
	} mounts[] = {
		{"proc", NEW "/proc", NULL, QUIET, false},
		{"sysfs", NEW "/sys", NULL, QUIET, false},
		{"devtmpfs", NEW "/dev", "mode=0755", MS_NOSUID, false},
		{"devpts", NEW "/dev/pts", "ptmxmode=0666,mode=0620,gid=5", MS_NOSUID | MS_NOEXEC, false},
		{"tmpfs", NEW "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV, false},
		{"mqueue", NEW "/dev/mqueue", NULL, QUIET, true},
		{"tmpfs", NEW "/run", "mode=0755", MS_NOSUID | MS_NODEV, false},
		{"cgroup2", NEW "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot", QUIET, false},
	};
	for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
		/* What the kernel makes itself is there. */
		int r = mount_point(mounts[i].at);
		if (r == 0 && mount(mounts[i].type, mounts[i].at, mounts[i].type, mounts[i].flags, mounts[i].options) < 0)
			r = -errno;
		if (r < 0 && !mounts[i].optional)
			return error_errno(err, r, "%s", mounts[i].at + sizeof(NEW) - 1);
	}
	return 0;
}

/* What udev would make. */
static void link_devices(void)
{
	static const char *const links[][2] = {
		{"/proc/self/fd", NEW "/dev/fd"},
		{"/proc/self/fd/0", NEW "/dev/stdin"},
		{"/proc/self/fd/1", NEW "/dev/stdout"},
		{"/proc/self/fd/2", NEW "/dev/stderr"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0)
			log_warn("%s: %s", links[i][1], strerror(errno));
}

/* The initramfs is memory: what it holds goes, this program's own file only by name. */
static void free_initramfs(void)
{
	static const char *const gone[] = {"/proc", "/sys", "/dev"};
	for (size_t i = 0; i < ARRAY_SIZE(gone); i++)
		umount2(gone[i], MNT_DETACH);
	cleanup_dir DIR *d = opendir("/");
	for (struct dirent *e; d && (e = readdir(d));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, NEW + 1) != 0)
			remove_tree(dirfd(d), e->d_name);
}

/* The kernel's first root cannot be left by pivot_root(2). */
static int enter(struct error *err)
{
	if (chdir(NEW) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
		return error_errno(err, -errno, "changing to the root");
	return 0;
}

bool boot_root_is_initramfs(void)
{
	struct statfs fs;
	return statfs("/", &fs) == 0 && (fs.f_type == RAMFS_MAGIC || fs.f_type == TMPFS_MAGIC);
}

int boot_root_switch(const struct boot_disks *d, struct error *err)
{
	int r = mount_root(d, err);
	if (r == 0)
		r = mount_kernel_filesystems(err);
	if (r < 0)
		return r;
	link_devices();
	free_initramfs();
	if ((r = enter(err)) < 0)
		return r;
	r = names_make_places();
	if (r < 0)
		return error_errno(err, r, "/run and /tmp");
	names_touch();
	return 0;
}
