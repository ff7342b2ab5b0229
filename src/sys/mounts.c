#include "sys/mounts.h"
#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

/* What the kernel wrote to the file-system context about a failure. errno must have been read before: this overwrites it. */
static void read_reason(int fs, char *to, size_t size)
{
	ssize_t n = read(fs, to, size - 1);
	if (n < 0)
		n = 0;
	to[n] = '\0';
	for (char *nl; (nl = strchr(to, '\n'));)
		*nl = ' ';
}

static int fs_fail(int fs, int code, const char *what, const char *type, struct error *err)
{
	char reason[256];
	read_reason(fs, reason, sizeof(reason));
	return error_errno(err, code, "%s %s%s%s", what, type, reason[0] ? ": " : "", reason);
}

static int finish(int fs, const char *type, unsigned attributes, struct error *err)
{
	if (fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return fs_fail(fs, -errno, "mount", type, err);
	int fd = fsmount(fs, FSMOUNT_CLOEXEC, attributes);
	return fd < 0 ? fs_fail(fs, -errno, "fsmount", type, err) : fd;
}

int mount_new(const char *type, const struct mount_option *options, size_t n, unsigned attributes, struct error *err)
{
	cleanup_fd int fs = fsopen(type, FSOPEN_CLOEXEC);
	if (fs < 0)
		return error_errno(err, -errno, "file system %s", type);
	for (size_t i = 0; i < n; i++) {
		const struct mount_option *o = &options[i];
		if (fsconfig(fs, o->value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, o->key, o->value, 0) < 0)
			return fs_fail(fs, -errno, o->key, type, err);
	}
	return finish(fs, type, attributes, err);
}

int mount_clone(int dirfd, const char *path, bool recursive, struct error *err)
{
	unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | (recursive ? AT_RECURSIVE : 0);
	int fd = open_tree(dirfd, path, flags);
	return fd < 0 ? error_errno(err, -errno, "open_tree %s", path) : fd;
}

int mount_idmap(int mount_fd, int userns_fd, struct error *err)
{
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (unsigned)userns_fd};
	return mount_setattr(mount_fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0 ? error_errno(err, -errno, "idmapped mount") : 0;
}

int mount_set(int mount_fd, unsigned attributes, bool recursive, struct error *err)
{
	struct mount_attr attr = {.attr_set = attributes};
	unsigned flags = AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0);
	return mount_setattr(mount_fd, "", flags, &attr, sizeof(attr)) < 0 ? error_errno(err, -errno, "mount_setattr") : 0;
}

int mount_attach(int mount_fd, int dirfd, const char *path, struct error *err)
{
	unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | (*path ? 0 : MOVE_MOUNT_T_EMPTY_PATH);
	return move_mount(mount_fd, "", dirfd, path, flags) < 0 ? error_errno(err, -errno, "move_mount to %s", path) : 0;
}

int mount_reconfigure(const char *path, const char *key, const char *value, struct error *err)
{
	cleanup_fd int fs = fspick(AT_FDCWD, path, FSPICK_CLOEXEC | FSPICK_SYMLINK_NOFOLLOW);
	if (fs < 0)
		return error_errno(err, -errno, "fspick %s", path);
	if (fsconfig(fs, FSCONFIG_SET_STRING, key, value, 0) < 0 || fsconfig(fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
		return fs_fail(fs, -errno, key, path, err);
	return 0;
}

/* Options every overlay of ours has; metacopy turns redirect_dir on too. */
static int overlay_options(int fs)
{
	if (fsconfig(fs, FSCONFIG_SET_STRING, "source", "overlay", 0) < 0 || fsconfig(fs, FSCONFIG_SET_STRING, "metacopy", "on", 0) < 0)
		return -errno;
	if (fsconfig(fs, FSCONFIG_SET_STRING, "index", "off", 0) < 0 && errno != EINVAL)
		return -errno;
	return 0;
}

static int overlay_by_descriptor(const struct mount_overlay *o, unsigned attributes, struct error *err)
{
	cleanup_fd int fs = fsopen("overlay", FSOPEN_CLOEXEC);
	if (fs < 0)
		return error_errno(err, -errno, "file system overlay");
	for (size_t i = o->n_lower; i-- > 0;)
		if (fsconfig(fs, FSCONFIG_SET_FD, "lowerdir+", NULL, o->lower[i]) < 0)
			return fs_fail(fs, -errno, "lowerdir+", "overlay", err);
	if (fsconfig(fs, FSCONFIG_SET_FD, "upperdir", NULL, o->upper) < 0 || fsconfig(fs, FSCONFIG_SET_FD, "workdir", NULL, o->work) < 0)
		return fs_fail(fs, -errno, "upperdir", "overlay", err);
	int r = overlay_options(fs);
	if (r < 0)
		return fs_fail(fs, r, "options", "overlay", err);
	return finish(fs, "overlay", attributes, err);
}

static int stage(int mount_fd, const char *dir, const char *name, struct error *err)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return mount_attach(mount_fd, AT_FDCWD, path, err);
}

static void unstage(const char *dir, const char *name)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	umount2(path, MNT_DETACH);
}

static int overlay_staged(const struct mount_overlay *o, const char *dir, unsigned attributes, struct error *err)
{
	cleanup_fd int fs = fsopen("overlay", FSOPEN_CLOEXEC);
	if (fs < 0)
		return error_errno(err, -errno, "file system overlay");
	char lower[240], upper[64], work[64];
	size_t at = 0;
	for (size_t i = o->n_lower; i-- > 0;)
		at += (size_t)snprintf(lower + at, at < sizeof(lower) ? sizeof(lower) - at : 0, "%s%s/%zu", at ? ":" : "", dir, i);
	snprintf(upper, sizeof(upper), "%s/w/upper", dir);
	snprintf(work, sizeof(work), "%s/w/work", dir);
	if (at >= sizeof(lower))
		return error_errno(err, -ENAMETOOLONG, "overlay layers");
	if (fsconfig(fs, FSCONFIG_SET_STRING, "lowerdir", lower, 0) < 0 || fsconfig(fs, FSCONFIG_SET_STRING, "upperdir", upper, 0) < 0 ||
		fsconfig(fs, FSCONFIG_SET_STRING, "workdir", work, 0) < 0)
		return fs_fail(fs, -errno, "layers by path", "overlay", err);
	int r = overlay_options(fs);
	if (r < 0)
		return fs_fail(fs, r, "options", "overlay", err);
	return finish(fs, "overlay", attributes, err);
}

static int overlay_by_path(const struct mount_overlay *o, const struct mount_staging *staging, unsigned attributes, struct error *err)
{
	char name[24];
	size_t staged = 0;
	int r = 0;
	for (; staged < o->n_lower && r == 0; staged++) {
		snprintf(name, sizeof(name), "%zu", staged);
		r = stage(o->lower[staged], staging->dir, name, err);
	}
	if (r == 0 && (r = stage(staging->writable, staging->dir, "w", err)) == 0) {
		r = overlay_staged(o, staging->dir, attributes, err);
		unstage(staging->dir, "w");
	}
	while (staged-- > 0) {
		snprintf(name, sizeof(name), "%zu", staged);
		unstage(staging->dir, name);
	}
	return r;
}

int mount_overlay(const struct mount_overlay *o, const struct mount_staging *staging, unsigned attributes, struct error *err)
{
	/* Learnt at the first refusal and kept: the answer is the kernel's, the same for every sandbox. */
	static bool by_path;
	if (!by_path) {
		struct error first = {0};
		int fd = overlay_by_descriptor(o, attributes, &first);
		if (fd >= 0)
			return fd;
		/* Linux 6.1 answers EOPNOTSUPP to any descriptor, 6.12 EBADF to one of O_PATH, as those of mounts are; and EINVAL is what such kernels say to the key. */
		if (fd != -EINVAL && fd != -EOPNOTSUPP && fd != -EBADF) {
			if (err)
				*err = first;
			return fd;
		}
		fd = overlay_by_path(o, staging, attributes, err);
		if (fd >= 0)
			by_path = true;
		return fd;
	}
	return overlay_by_path(o, staging, attributes, err);
}
