#include "base/cleanup.h"
#include "guest/boot.h"
#include "sys/mounts.h"
#include "sys/spares.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

enum {
	EROFS_MAGIC_AT = 1024,
	EROFS_MAGIC_VALUE = (int)0xe0f5e1e2,
};

/* Where a mount stands that another is cloned from: in the initramfs. */
#define STAND "/stand"

static const char *device(char to[16], unsigned number)
{
	snprintf(to, 16, "/dev/vd%c", (char)('a' + number));
	return to;
}

static bool all_there(const void *arg)
{
	const unsigned *n = arg;
	char path[16];
	for (unsigned i = 0; i < *n; i++)
		if (access(device(path, i), F_OK) < 0)
			return false;
	return true;
}

static int is_erofs(const char *path, struct error *err)
{
	int32_t magic = 0;
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, &magic, sizeof(magic), EROFS_MAGIC_AT) < 0)
		return error_errno(err, -errno, "%s", path);
	return magic == EROFS_MAGIC_VALUE; /* both are little-endian */
}

/* The image is a copy of a writable disk: its directory `upper` is the layer. It was made of a frozen file system, so there is no journal to replay. */
static int mount_copy(const char *path, struct error *err)
{
	struct mount_option options[] = {{"source", path}, {"ro", NULL}, {"noload", NULL}};
	cleanup_fd int whole = mount_new("ext4", options, ARRAY_SIZE(options), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, err);
	if (whole < 0)
		return whole;
	/* What is cloned must be attached. */
	int r = mount_attach(whole, AT_FDCWD, STAND, err);
	if (r < 0)
		return r;
	int fd = mount_clone(AT_FDCWD, STAND "/upper", false, err);
	umount2(STAND, MNT_DETACH);
	return fd;
}

static int mount_layer(const char *path, struct error *err)
{
	struct mount_option options[] = {{"source", path}, {"ro", NULL}};
	int r = is_erofs(path, err);
	if (r < 0)
		return r;
	r = r ? mount_new("erofs", options, ARRAY_SIZE(options), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, err) : mount_copy(path, err);
	return r < 0 ? error_wrap(err, r, "layer %s", path) : r;
}

void boot_disks_spare(const struct boot_disks *d)
{
	spares_renew(d->root);
}

/* The node makes upper and work where it makes the disk; a new file system is as good. */
static int mount_writable(const char *path, struct boot_disks *d, struct error *err)
{
	/* As sandbox/box/disk.c has it: what the node wants to be durable it writes itself. */
	struct mount_option options[] = {{"source", path}, {"errors", "continue"}, {"nobarrier", NULL}, {"noinit_itable", NULL}};
	d->writable = mount_new("ext4", options, ARRAY_SIZE(options), MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME, err);
	if (d->writable < 0)
		return error_wrap(err, d->writable, "disk %s", path);
	d->root = openat(d->writable, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->root < 0)
		return error_errno(err, -errno, "disk %s", path);
	spares_spend(d->root);
	if ((mkdirat(d->root, "upper", 0755) < 0 && errno != EEXIST) || (mkdirat(d->root, "work", 0755) < 0 && errno != EEXIST))
		return error_errno(err, -errno, "disk %s", path);
	return 0;
}

int boot_disks_mount(const struct boot_config *c, int events, struct boot_disks *ret, struct error *err)
{
	const unsigned n = c->layers + 1;
	char path[16];
	*ret = (struct boot_disks){.writable = -1, .root = -1};
	int r = boot_events_wait(events, all_there, &n);
	if (r < 0)
		return error_set(err, r, 500, "the %u disks of the command line are not there", n);
	if (mkdir(STAND, 0700) < 0)
		return error_errno(err, -errno, STAND);
	for (unsigned i = 0; i < c->layers; i++) {
		int fd = mount_layer(device(path, i), err);
		if (fd < 0)
			return fd;
		ret->layers[ret->n_layers++] = fd;
	}
	return mount_writable(device(path, c->layers), ret, err);
}
