#include "sandbox/box/host.h"
#include "sandbox/box/disk.h"
#include "sandbox/namespace/layers.h"
#include "sandbox/microvm/machines.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "sys/caps.h"
#include "sys/filter.h"
#include "sys/host_limits.h"
#include "sys/mounts.h"
#include "sys/process.h"
#include "sys/program.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum {
	SPARE_NUMBERS = 64,
};

static void log_repair(const char *what, void *arg)
{
	log_warn("%s", what);
}

/* What the network had to change on this machine, a line each. */
static void log_notes(const char *notes)
{
	struct str rest = str_of(notes), line;
	while (str_cut(rest, '\n', &line, &rest))
		log_info("%.*s", STR_FMT(line));
}

static int sub_dir(struct host *h, const char *name, int *ret, struct error *err)
{
	cleanup_fd int dir = open(h->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 || (mkdirat(dir, name, 0700) < 0 && errno != EEXIST))
		return error_errno(err, -errno, "%s/%s", h->dir, name);
	*ret = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return *ret < 0 ? error_errno(err, -errno, "%s/%s", h->dir, name) : 0;
}

/* A copy: a process knows where its program lies (/proc/self/maps, which a file worker would read out to a client), and that is no business of a sandbox. Nobody can write it or, inside,
 * read it: that is what makes PID 1 undumpable there (docs/architecture.md). */
static int copy_init(struct host *h, const char *path, struct error *err)
{
	h->init = program_copy(path, "cubicle-init", err);
	return MIN(h->init, 0);
}

static int compile(struct host *h, struct error *err)
{
	int r = seccomp_compile(0, &h->filter, err);
	if (r == 0)
		r = seccomp_compile(SECCOMP_NESTED_USERNS, &h->filter_nested, err);
	for (size_t i = 0; i < caps_never_inside_n && r == 0; i++) {
		char text[4];
		int n = snprintf(text, sizeof(text), "%u", caps_never_inside[i]);
		r = msg_list_add(&h->drop_caps, str_n(text, (size_t)n));
	}
	return r;
}

/* True when [first, first + count) overlaps the backend's ids. */
static bool overlaps(const struct host *h, uint64_t first, uint64_t count)
{
	uint64_t base = (uint64_t)h->options->uid_base, end = base + (uint64_t)h->capacity * UID_RANGE;
	return first < end && first + count > base;
}

/* Lines `name:x:id:...` (field 2) or `name:first:count` (fields 1 and 2). */
static int check_ids_file(const struct host *h, const char *path, bool ranges, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, path, 16 << 20, &text);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return error_errno(err, r, "%s", path);
	struct str all = buf_str(&text);
	while (all.n) {
		struct str line, rest = str_n("", 0), name, a, b, more;
		uint64_t first, count = 1;
		if (!str_cut(all, '\n', &line, &rest))
			line = all;
		all = rest;
		if (!str_cut(line, ':', &name, &more) || !str_cut(more, ':', &a, &b))
			continue;
		if (!ranges && str_cut(b, ':', &a, &more))
			b = a;
		if (str_to_u64(ranges ? a : b, &first) < 0 || (ranges && str_to_u64(b, &count) < 0))
			continue;
		if (overlaps(h, first, count))
			return error_set(err, -EEXIST, 400, "uid_base %lld: the sandboxes' ids overlap those of '%.*s' in %s; choose another uid_base",
				(long long)h->options->uid_base, STR_FMT(name), path);
	}
	return 0;
}

static int check_ids(struct host *h, struct error *err)
{
	uint64_t ranges = (UINT64_C(0xfffffffe) - (uint64_t)h->options->uid_base) / UID_RANGE;
	/* Twice: what was killed a moment ago still holds its number. */
	uint64_t wanted = 2 * (uint64_t)h->options->max_sandboxes + (uint64_t)h->options->pool_max + SPARE_NUMBERS;
	h->capacity = (unsigned)MIN(MIN(ranges, wanted), network_capacity(h->network));
	if (h->capacity == 0)
		return error_set(err, -EINVAL, 400, "uid_base or network.pool leaves room for no sandbox");
	int r = check_ids_file(h, "/etc/passwd", false, err);
	if (r == 0)
		r = check_ids_file(h, "/etc/group", false, err);
	if (r == 0)
		r = check_ids_file(h, "/etc/subuid", true, err);
	return r == 0 ? check_ids_file(h, "/etc/subgid", true, err) : r;
}

static int current_ns(const char *name)
{
	char path[48];
	snprintf(path, sizeof(path), "/proc/thread-self/ns/%s", name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* In the stage namespace: a tmpfs over <dir>/mounts, which is empty on the host. */
static int set_up_stage(struct host *h)
{
	char path[512];
	if (unshare(CLONE_FS | CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		return -errno;
	snprintf(path, sizeof(path), "%.480s/mounts", h->dir);
	if ((mkdir(path, 0700) < 0 && errno != EEXIST) || mount("cubicle", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") < 0 ||
		chdir(path) < 0)
		return -errno;
	if (mkdir("layers", 0700) < 0 || mkdir("empty", 0755) < 0)
		return -errno;
	if (mount("cubicle", "empty", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, "mode=0555,size=4k,nr_inodes=2") < 0)
		return -errno;
	h->stage = current_ns("mnt");
	return h->stage < 0 ? h->stage : 0;
}

/* What PID 1 may read of its own usage: our groups of one hierarchy, at /cgroup/<name>. */
static int show_cgroups(struct host *h, const char *controller, const char *name)
{
	char from[640];
	int r = cgroups_dir(h->cgroups, controller, from, sizeof(from));
	if (r < 0)
		return 0;
	if (mkdir(name, 0555) < 0 || mount(from, name, NULL, MS_BIND, NULL) < 0 ||
		mount(NULL, name, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return -errno;
	return 0;
}

/* Continues from the stage namespace in a new one: only a read-only tmpfs, with /proc (which a mount of proc inside wants to see) and a place to stand on. */
static int set_up_birth(struct host *h)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mkdir("birth", 0755) < 0 ||
		mount("cubicle", "birth", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=64k,nr_inodes=16") < 0 || chdir("birth") < 0)
		return -errno;
	if (mkdir("proc", 0555) < 0 || mkdir("mnt", 0755) < 0 || mkdir("cgroup", 0755) < 0 || chmod("cgroup", 0755) < 0 ||
		mount("/proc", "proc", NULL, MS_BIND, NULL) < 0)
		return -errno;
	int r = show_cgroups(h, "memory", "cgroup/memory");
	if (r == 0)
		r = show_cgroups(h, "cpuacct", "cgroup/cpu");
	if (r < 0)
		return r;
	if (mount(NULL, ".", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return -errno;
	if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
		return -errno;
	h->birth = current_ns("mnt");
	return h->birth < 0 ? h->birth : 0;
}

struct set_up {
	struct host *host;
	struct error error;
	int result;
};

/* A thread of its own: its namespaces outlive it through the descriptors. */
static void *set_up_namespaces(void *arg)
{
	struct set_up *s = arg;
	const char *what = "stage";
	s->result = set_up_stage(s->host);
	if (s->result == 0) {
		what = "birth";
		s->result = set_up_birth(s->host);
	}
	if (s->result < 0)
		error_errno(&s->error, s->result, "mount namespace %s", what);
	return NULL;
}

static int make_namespaces(struct host *h, struct error *err)
{
	struct set_up s = {.host = h};
	pthread_t thread;
	h->net = current_ns("net");
	if (h->net < 0)
		return error_errno(err, h->net, "network namespace of the host");
	int r = pthread_create(&thread, NULL, set_up_namespaces, &s);
	if (r)
		return error_errno(err, -r, "thread");
	pthread_join(thread, NULL);
	if (s.result < 0 && err)
		*err = s.error;
	return s.result;
}

int host_new(const struct backend_config *c, struct host **ret, struct error *err)
{
	struct host *h = calloc(1, sizeof(*h));
	if (!h)
		return error_errno(err, -ENOMEM, "namespace backend");
	h->control = h->disks = h->saved = h->images = h->init = h->null = h->stage = h->birth = h->net = -1;
	h->options = c->options;
	instance_of(c->options, &h->instance);
	int r = (h->dir = str_dup(str_of(c->state_dir))) ? 0 : error_errno(err, -ENOMEM, "namespace backend");
	if (r == 0 && (r = process_boot_id(h->boot_id)) < 0)
		error_errno(err, r, "boot id");
	if (r == 0)
		r = sub_dir(h, "control", &h->control, err);
	if (r == 0)
		r = sub_dir(h, "disks", &h->disks, err);
	if (r == 0)
		r = sub_dir(h, "saved", &h->saved, err);
	if (r == 0)
		r = sub_dir(h, "images", &h->images, err);
	if (r == 0)
		r = copy_init(h, c->init_path, err);
	if (r == 0 && (h->null = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0)
		r = error_errno(err, -errno, "/dev/null");
	if (r == 0)
		r = compile(h, err);
	if (r == 0)
		r = cgroups_new(h->instance.cgroup, &h->cgroups, err);
	if (r == 0)
		r = make_namespaces(h, err);
	if (r == 0)
		r = loopdevs_new(&h->loops, err);
	if (r == 0)
		r = network_new(&h->instance, h->options->network_pool, strcmp(h->options->network_pool, "100.96.0.0/16") != 0,
			h->options->network_private_open, &h->network, err);
	if (r == 0)
		r = network_guard(h->network, log_repair, NULL, err);
	if (r == 0)
		r = check_ids(h, err);
	if (r == 0)
		r = layers_new(h, &h->layers, err);
	if (r == 0)
		r = masters_new(h, &h->masters, err);
	if (r == 0)
		r = machines_new(c, &h->machines, err);
	if (r < 0) {
		host_free(h, false);
		return r;
	}
	h->parks = h->machines->why[0] || strcmp(h->options->isolation, "namespace") == 0;
	host_limits_raise();
	log_notes(network_notes(h->network));
	if (cgroups_missing(h->cgroups)[0])
		log_warn("cgroup controllers that this machine lacks: %s", cgroups_missing(h->cgroups));
	*ret = h;
	return 0;
}

void host_free(struct host *h, bool clean)
{
	if (!h)
		return;
	layers_free(h->layers);
	masters_free(h->masters);
	machines_free(h->machines);
	network_free(h->network, clean);
	loopdevs_free(h->loops, clean);
	cgroups_free(h->cgroups, clean);
	int *const fds[] = {&h->control, &h->disks, &h->saved, &h->images, &h->init, &h->null, &h->stage, &h->birth, &h->net};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (*fds[i] >= 0)
			close(*fds[i]);
	buf_done(&h->filter);
	buf_done(&h->filter_nested);
	buf_done(&h->drop_caps);
	free(h->dir);
	free(h);
}

int host_enter(struct host *h, struct error *err)
{
	static __thread const struct host *entered;
	if (entered == h)
		return 0;
	if (unshare(CLONE_FS) < 0 || setns(h->stage, CLONE_NEWNS) < 0)
		return error_errno(err, -errno, "stage namespace");
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0)
		return error_errno(err, -errno, "securebits");
	umask(0);
	entered = h;
	return 0;
}

void host_fsid(uid_t id)
{
	syscall(SYS_setfsgid, id);
	syscall(SYS_setfsuid, id);
}
