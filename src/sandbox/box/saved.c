#include "sandbox/box/saved.h"
#include "sandbox/box/host.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "sys/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

enum {
	LOCK_TRIES = 10000, /* of a ms each */
	/* linux/fs/ext4/ext4.h: the superblock, and two of its fields. */
	SUPERBLOCK = 1024,
	S_STATE = 0x3a,
	S_INCOMPAT = 0x60,
	STATE_VALID = 1,
	INCOMPAT_RECOVER = 4,
	FSCK_FIXED = 1, /* e2fsck(8): exit status */
};

/* "directory/NAME": NAME; anything else is no image of ours: NULL. */
static const char *name_in(const char *directory, const char *image)
{
	size_t n = strlen(directory);
	const char *name = strncmp(image, directory, n) == 0 ? image + n : NULL;
	return name && *name && *name != '.' && !strchr(name, '/') ? name : NULL;
}

static const char *name_of(const char *image)
{
	return name_in("saved/", image);
}

bool saved_is_layer(const char *image)
{
	return name_in("images/", image) != NULL;
}

int saved_lock(int image, struct error *err)
{
	int r = -1;
	for (int i = 0; i < LOCK_TRIES && (r = flock(image, LOCK_EX | LOCK_NB)) < 0 && (errno == EWOULDBLOCK || errno == EINTR); i++)
		usleep(1000);
	if (r == 0)
		return 0;
	return errno == EWOULDBLOCK ? error_set(err, -EBUSY, 500, "the disk is still mounted") : error_errno(err, -errno, "disk image");
}

/* 1: it was unmounted cleanly, and no error was seen before. */
static int is_clean(int image)
{
	unsigned char super[128];
	if (pread(image, super, sizeof(super), SUPERBLOCK) != sizeof(super))
		return -EIO;
	unsigned state = super[S_STATE] | (unsigned)super[S_STATE + 1] << 8, incompat = super[S_INCOMPAT];
	return state == STATE_VALID && !(incompat & INCOMPAT_RECOVER);
}

/* The file belongs to the unprivileged id for so long, because a path to a descriptor is opened anew. */
static int check(int image, uid_t id, struct error *err)
{
	char uid[32], gid[32];
	cleanup_buf struct buf said = BUF_INIT;
	struct error how = {0};
	snprintf(uid, sizeof(uid), "--reuid=%u", (unsigned)id);
	snprintf(gid, sizeof(gid), "--regid=%u", (unsigned)id);
	const char *const argv[] = {"setpriv", uid, gid, "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "e2fsck", "-p", "-f", "/proc/self/fd/0", NULL};
	if (fchown(image, id, id) < 0)
		return error_errno(err, -errno, "disk image");
	int r = program_run_on(argv, image, &said, &how);
	if (fchown(image, 0, 0) < 0)
		log_error("a disk image keeps the owner %u: %s", (unsigned)id, strerror(errno));
	if (r < 0)
		return error_set(err, r, 500, "e2fsck: %s", how.message);
	log_info("e2fsck of a disk that was not unmounted (status %d): %.*s", r, (int)MIN(buf_len(&said), (size_t)1000), buf_str(&said).p);
	return r <= FSCK_FIXED ? 0 : error_set(err, -EUCLEAN, 500, "e2fsck cannot repair its disk (status %d)", r);
}

static int settle(int image, const uid_t *unprivileged, struct error *err)
{
	int r = saved_lock(image, err);
	if (r < 0)
		return r;
	int clean = is_clean(image);
	if (clean < 0)
		return error_errno(err, clean, "disk image");
	r = clean || !unprivileged ? 0 : check(image, *unprivileged, err);
	if (r == 0 && fsync(image) < 0)
		r = error_errno(err, -errno, "disk image");
	return r;
}

int saved_keep(struct host *h, const char *name, const char *image, const uid_t *unprivileged, struct error *err)
{
	struct stat st;
	const char *to = saved_is_layer(image) ? name_in("images/", image) : name_of(image);
	if (!to)
		return error_set(err, -EINVAL, 500, "'%s' is no name of a saved image", image);
	int dir = saved_is_layer(image) ? h->images : h->saved;
	if (fstatat(dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	cleanup_fd int fd = openat(h->disks, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "disk image %s", name);
	int r = settle(fd, unprivileged, err);
	if (r < 0)
		return r;
	if (renameat(h->disks, name, dir, to) < 0 || fsync(dir) < 0 || fsync(h->disks) < 0)
		return error_errno(err, -errno, "saving disk image %s", name);
	return 0;
}

int saved_link(struct host *h, const char *image, const char *name, struct error *err)
{
	const char *from = name_of(image);
	if (!from)
		return error_set(err, -EINVAL, 500, "'%s' is no name of a saved image", image);
	unlinkat(h->disks, name, 0);
	if (linkat(h->saved, from, h->disks, name, 0) < 0)
		return error_errno(err, -errno, "the sandbox's saved disk");
	int fd = openat(h->disks, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		fd = error_errno(err, -errno, "the sandbox's saved disk");
		unlinkat(h->disks, name, 0);
	}
	return fd;
}
