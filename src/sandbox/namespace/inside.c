#include "sandbox/namespace/inside.h"
#include "sandbox/box/host.h"
#include "sandbox/namespace/layers.h"
#include "sandbox/box/slot.h"
#include "base/cleanup.h"
#include "sys/mounts.h"
#include "sys/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { QUIET = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC };

/* Empty for those inside; what is absent on a kernel is passed over. */
static const char *const masked[] = {
	"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats", "/proc/driver", "/proc/kpagecount",
	"/proc/kpageflags", "/proc/kpagecgroup", "/proc/vmallocinfo", "/proc/kallsyms", "/proc/config.gz", "/proc/mtrr", "/proc/iomem",
	"/proc/ioports", "/proc/bus", "/sys/firmware", "/sys/devices/virtual/dmi", "/sys/devices/virtual/powercap", "/sys/devices/virtual/block",
	"/sys/kernel/boot_params", "/sys/kernel/debug", "/sys/kernel/notes", "/sys/kernel/slab", "/sys/kernel/tracing", "/sys/kernel/security",
	"/sys/kernel/vmcoreinfo", "/sys/fs/cgroup", "/sys/fs/ext4", "/sys/module", "/sys/block",
};

static const char *const read_only[] = {"/proc/sys", "/proc/fs", "/proc/irq"};


static int enter(struct host *h, struct slot *s, struct error *err)
{
	cleanup_fd int ns = process_namespace(s->pid, "mnt");
	if (ns < 0)
		return error_errno(err, ns, "mount namespace of slot %u", s->number);
	if (setns(ns, CLONE_NEWNS) < 0)
		return error_errno(err, -errno, "setns into slot %u", s->number);
	/* The namespace's own tmpfs knows only mapped ids. */
	host_fsid(host_uid(h, s->number));
	return 0;
}

static void leave(struct host *h)
{
	host_fsid(0);
	if (setns(h->stage, CLONE_NEWNS) < 0)
		abort(); /* a thread in the wrong place must not serve the next sandbox */
}

static int move(const char *from, const char *to, struct error *err)
{
	return move_mount(AT_FDCWD, from, AT_FDCWD, to, 0) < 0 ? error_errno(err, -errno, "moving %s to %s", from, to) : 0;
}

static int make_dev(struct error *err)
{
	static const struct {
		const char *path;
		unsigned major, minor;
	} nodes[] = {
		{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}, {"/dev/tty", 5, 0},
	};
	static const char *const links[][2] = {
		{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"},
	};
	static const char *const mounts[][2] = {{"/pts", "/dev/pts"}, {"/shm", "/dev/shm"}, {"/mqueue", "/dev/mqueue"}};
	/* The host's tmpfs: device nodes work on it, which they do not on one of the sandbox's own. */
	const struct mount_option options[] = {{"mode", "0755"}, {"size", "64k"}, {"nr_inodes", "256"}};
	cleanup_fd int fd = mount_new("tmpfs", options, ARRAY_SIZE(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, err);
	if (fd < 0)
		return fd;
	int r = mount_attach(fd, AT_FDCWD, "/dev", err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(nodes); i++)
		if (mknod(nodes[i].path, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0)
			return error_errno(err, -errno, "%s", nodes[i].path);
	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0)
			return error_errno(err, -errno, "%s", links[i][1]);
	for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
		if (mkdir(mounts[i][1], 0755) < 0)
			return error_errno(err, -errno, "%s", mounts[i][1]);
		if ((r = move(mounts[i][0], mounts[i][1], err)) < 0)
			return r;
	}
	return 0;
}

/* Covers the path with an empty read-only directory or with /dev/null. */
static int mask(const char *path, const char *empty, struct error *err)
{
	struct stat st;
	/* What only the host's root may open is closed already: no id in here is that. */
	if (lstat(path, &st) < 0 || S_ISLNK(st.st_mode) || (S_ISREG(st.st_mode) && !(st.st_mode & 0007)))
		return 0;
	cleanup_fd int fd = mount_clone(AT_FDCWD, S_ISDIR(st.st_mode) ? empty : "/dev/null", false, err);
	return fd < 0 ? fd : mount_attach(fd, AT_FDCWD, path, err);
}

static int make_read_only(const char *path, struct error *err)
{
	cleanup_fd int fd = mount_clone(AT_FDCWD, path, true, err);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return fd;
	int r = mount_set(fd, QUIET | MOUNT_ATTR_RDONLY, true, err);
	return r < 0 ? r : mount_attach(fd, AT_FDCWD, path, err);
}

static int make_masks(struct error *err)
{
	int r = 0;
	for (size_t i = 0; i < ARRAY_SIZE(read_only) && r == 0; i++)
		r = make_read_only(read_only[i], err);
	for (size_t i = 0; i < ARRAY_SIZE(masked) && r == 0; i++)
		r = mask(masked[i], "/empty", err);
	if (r < 0)
		return r;
	cleanup_fd int boot_id = mount_clone(AT_FDCWD, "/boot_id", false, err);
	if (boot_id < 0)
		return boot_id;
	r = mount_set(boot_id, QUIET | MOUNT_ATTR_RDONLY, false, err);
	return r < 0 ? r : mount_attach(boot_id, AT_FDCWD, "/proc/sys/kernel/random/boot_id", err);
}

/* sysfs shows the network of the namespace it is made in, which is the host's to own, so the sandbox cannot make it. */
static int new_sysfs(struct host *h, struct slot *s, struct error *err)
{
	if (setns(s->net.netns, CLONE_NEWNET) < 0)
		return error_errno(err, -errno, "network namespace of slot %u", s->number);
	int fd = mount_new("sysfs", NULL, 0, QUIET | MOUNT_ATTR_RDONLY, err);
	if (setns(h->net, CLONE_NEWNET) < 0)
		abort();
	return fd;
}

/* The memory file systems are charged to the sandbox anyway; a size of their own makes df, and programs that look, see what there is. */
static int size_memory(uint64_t memory, const char *shm, const char *run, struct error *err)
{
	char size[24];
	snprintf(size, sizeof(size), "%llu", (unsigned long long)memory);
	int r = mount_reconfigure(shm, "size", size, err);
	return r < 0 ? r : mount_reconfigure(run, "size", size, err);
}

int inside_park(struct host *h, struct slot *s, struct error *err)
{
	char path[512];
	snprintf(path, sizeof(path), "%.480s/mounts/empty", h->dir);
	cleanup_fd int sys = new_sysfs(h, s, err);
	if (sys < 0)
		return sys;
	cleanup_fd int empty = mount_clone(AT_FDCWD, path, false, err);
	if (empty < 0)
		return empty;
	int r = enter(h, s, err);
	if (r < 0)
		return r;
	r = mount_attach(sys, AT_FDCWD, "/sys", err);
	if (r == 0)
		r = mount_attach(empty, AT_FDCWD, "/empty", err);
	if (r == 0)
		r = make_dev(err);
	if (r == 0)
		r = make_masks(err);
	if (r == 0)
		r = size_memory(s->limits.memory, "/dev/shm", "/run", err);
	leave(h);
	return r;
}

/* A directory of the template to mount on; made where a small image has none. A link in its place would lead the mount astray: that, or a file, goes. */
static int mount_point(int root, const char *name, struct error *err)
{
	struct stat st;
	if (fstatat(root, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		if (S_ISDIR(st.st_mode))
			return 0;
		unlinkat(root, name, 0);
	}
	return mkdirat(root, name, 0755) < 0 ? error_errno(err, -errno, "/%s of the template", name) : 0;
}

static int assemble(struct host *h, struct slot *s, const int *layers, size_t n_layers, struct error *err)
{
	static const char *const moved[][2] = {{"/proc", "/new/proc"}, {"/sys", "/new/sys"}, {"/dev", "/new/dev"}, {"/run", "/new/run"}};
	cleanup_fd int upper = openat(s->disk.mount, "upper", O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int work = openat(s->disk.mount, "work", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (upper < 0 || work < 0)
		return error_errno(err, -errno, "disk of slot %u", s->number);
	struct mount_overlay o = {.lower = layers, .n_lower = n_layers, .upper = upper, .work = work};
	struct mount_staging staging = {.dir = "/stage", .writable = s->disk.mount};
	cleanup_fd int root = mount_overlay(&o, &staging, MOUNT_ATTR_NODEV, err);
	if (root < 0)
		return root;
	disk_mounted(&s->disk);
	int r = mount_attach(root, AT_FDCWD, "/new", err);
	for (size_t i = 0; i < ARRAY_SIZE(moved) && r == 0; i++) {
		r = mount_point(root, moved[i][0] + 1, err);
		if (r == 0)
			r = move(moved[i][0], moved[i][1], err);
	}
	return r;
}

int inside_size_memory(struct host *h, struct slot *s, bool entered, struct error *err)
{
	int r = enter(h, s, err);
	if (r < 0)
		return r;
	r = size_memory(s->limits.memory, entered ? "/dev/shm" : "/new/dev/shm", entered ? "/run" : "/new/run", err);
	leave(h);
	return r;
}

int inside_root(struct host *h, struct slot *s, const char *const *layers, size_t n_layers, struct error *err)
{
	struct slot_rest *rest = &s->rest;
	cleanup_fd int userns = process_namespace(s->pid, "user");
	if (userns < 0)
		return error_errno(err, userns, "user namespace of slot %u", s->number);
	for (size_t i = 0; i < n_layers; i++) {
		int fd = layers_clone(h, layers[i], userns, &s->root.layers[i], err);
		if (fd < 0)
			return fd;
		rest->fds[rest->n++] = fd;
	}
	s->root.n = n_layers;
	int r = enter(h, s, err);
	if (r < 0)
		return r;
	r = assemble(h, s, rest->fds, n_layers, err);
	leave(h);
	/* The sandbox's root keeps the mount; what the node needs of it goes through disk.root. */
	rest->fds[rest->n++] = steal_fd(&s->disk.mount);
	return r;
}
