#include "sandbox/microvm/initramfs.h"
#include "sandbox/microvm/kernel_modules.h"
#include "sandbox/microvm/module_file.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
	INIT_MAX = 64 << 20,
	NEWC_HEADER = 110, /* 6 of magic, 13 fields of 8 hexadecimal digits */
};

/* What the guest cannot do without, or would miss. */
static const char *const wanted[] = {
	"virtio_mmio", "virtio_blk", "virtio_net", "virtio_rng", "virtio_balloon", "vmw_vsock_virtio_transport", "ext4", "erofs", "overlay",
};
/* Where there are any: VMGenID, and what ext4 asks for by name when it is a module. They go first. */
static const char *const welcome[] = {"crc32c_generic", "crc32c_intel", "vmgenid"};

struct archive {
	int fd;
	unsigned inode;
	uint64_t size; /* written so far */
};

static int put(struct archive *a, const void *p, size_t n)
{
	a->size += n;
	return fd_write_all(a->fd, p, n);
}

static int pad(struct archive *a)
{
	return put(a, "\0\0\0", (4 - a->size % 4) % 4);
}

struct entry {
	const char *name;
	unsigned mode, major, minor;
	uint32_t size;
};

static int put_head(struct archive *a, const struct entry *e)
{
	char head[NEWC_HEADER + 1];
	size_t n = strlen(e->name) + 1;
	/* inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the name, checksum */
	snprintf(head, sizeof(head), "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", ++a->inode, e->mode, 0u, 0u, S_ISDIR(e->mode) ? 2u : 1u, 0u, e->size, 0u, 0u, e->major,
		e->minor, (unsigned)n, 0u);
	int r = put(a, head, NEWC_HEADER);
	if (r == 0)
		r = put(a, e->name, n);
	return r == 0 ? pad(a) : r;
}

static int put_file(struct archive *a, const char *name, unsigned mode, struct str bytes, struct error *err)
{
	struct entry e = {.name = name, .mode = S_IFREG | mode, .size = (uint32_t)bytes.n};
	int r = put_head(a, &e);
	if (r == 0)
		r = put(a, bytes.p, bytes.n);
	if (r == 0)
		r = pad(a);
	return r < 0 ? error_errno(err, r, "%s into the initramfs", name) : 0;
}

static int put_others(struct archive *a, const struct entry *e, size_t n, struct error *err)
{
	int r = 0;
	for (size_t i = 0; i < n && r == 0; i++)
		r = put_head(a, &e[i]);
	return r < 0 ? error_errno(err, r, "initramfs") : 0;
}

static int choose(const struct initramfs_config *c, struct kernel_modules *k, struct error *err)
{
	int r = 0;
	for (size_t i = 0; i < ARRAY_SIZE(welcome) && r == 0; i++) {
		struct error first = {0};
		r = kernel_modules_need(k, welcome[i], &first);
		if (r == -ENOENT)
			r = 0;
		else if (r < 0)
			error_set(err, r, 500, "%s", first.message);
	}
	for (size_t i = 0; i < ARRAY_SIZE(wanted) && r == 0; i++)
		r = kernel_modules_need(k, wanted[i], err);
	for (const char *const *m = c->more; m && *m && r == 0; m++)
		r = kernel_modules_need(k, *m, err);
	return r;
}

static int put_init(struct archive *a, const char *path, struct error *err)
{
	cleanup_buf struct buf bytes = BUF_INIT;
	int r = file_read(AT_FDCWD, path, INIT_MAX, &bytes);
	return r < 0 ? error_errno(err, r, "%s", path) : put_file(a, "init", 0755, buf_str(&bytes), err);
}

static int put_module(struct archive *a, const char *directory, size_t number, struct str path, struct error *err)
{
	cleanup_buf struct buf bytes = BUF_INIT, from = BUF_INIT, to = BUF_INIT;
	struct str name;
	if (!module_file_name(path, &name)) /* kernel_modules.c took none of those */
		return error_errno(err, -ENOTSUP, "%.*s", STR_FMT(path));
	buf_addf(&from, "%s/%.*s", directory, STR_FMT(path));
	buf_addf(&to, "modules/%02zu-%.*s", number, STR_FMT(name));
	const char *file = buf_cstr(&from), *entry = buf_cstr(&to);
	int r = file && entry ? module_file_read(file, &bytes, err) : error_errno(err, -ENOMEM, "initramfs");
	return r < 0 ? r : put_file(a, entry, 0600, buf_str(&bytes), err);
}

static int put_modules(struct archive *a, const char *directory, const struct kernel_modules *k, struct error *err)
{
	int r = 0;
	for (size_t i = 0; i < k->n && r == 0; i++)
		r = put_module(a, directory, i, k->order[i], err);
	return r;
}

static int write_all(const struct initramfs_config *c, const struct kernel_modules *k, int fd, struct error *err)
{
	static const struct entry first[] = {
		{.name = "dev", .mode = S_IFDIR | 0755},
		{.name = "dev/console", .mode = S_IFCHR | 0600, .major = 5, .minor = 1},
		{.name = "modules", .mode = S_IFDIR | 0755},
	};
	static const struct entry last = {.name = "TRAILER!!!"};
	struct archive a = {.fd = fd};
	int r = put_others(&a, first, ARRAY_SIZE(first), err);
	if (r == 0)
		r = put_init(&a, c->init, err);
	if (r == 0)
		r = put_modules(&a, c->modules, k, err);
	return r == 0 ? put_others(&a, &last, 1, err) : r;
}

int initramfs_write(const struct initramfs_config *c, int fd, struct error *err)
{
	struct kernel_modules k;
	int r = kernel_modules_open(c->modules, &k, err);
	if (r < 0)
		return r;
	r = choose(c, &k, err);
	if (r == 0)
		r = write_all(c, &k, fd, err);
	kernel_modules_done(&k);
	return r;
}

int initramfs_make(const struct initramfs_config *c, struct error *err)
{
	cleanup_fd int fd = memfd_create("initramfs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return error_errno(err, -errno, "initramfs");
	int r = initramfs_write(c, fd, err);
	if (r < 0)
		return r;
	if (lseek(fd, 0, SEEK_SET) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return error_errno(err, -errno, "initramfs");
	return steal_fd(&fd);
}
