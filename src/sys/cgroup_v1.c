#include "sys/cgroup_impl.h"
#include "base/fd.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	PERIOD_US = 100000,
	/* v1 counts buffers of sockets in an account of its own, and not at all unless that has a limit: then one sandbox fills the machine's (tcp_mem),
	 * and nobody's connections move any more. */
	SOCKETS_SHARE = 8,
	/* What the agent's connections may take when none of their peers reads; with less, a few silent clients would stop the others. */
	SOCKETS_LEAST_MB = 96,
};

#define each_hierarchy(c, h) for (__typeof__(&(c)->layout.v1[0]) h = (c)->layout.v1; h < (c)->layout.v1 + (c)->layout.n_v1; h++)

/* Those in which each sandbox has groups of its own. The list of devices is the same for all, so that <top> itself is the group for it; on a hybrid
 * machine v2 freezes. Each hierarchy less is three directories and two moves less for a sandbox. */
#define each_own_hierarchy(c, h)                                                                             \
	each_hierarchy (c, h)                                                                                \
		if (h->cpu || h->cpuacct || h->memory || h->pids || (h->freezer && !(c)->pair))

/* Mount of the hierarchy with a controller, or NULL. */
#define HIERARCHY(c, controller)                                                                             \
	({                                                                                                   \
		const char *found_ = NULL;                                                                   \
		each_hierarchy (c, h_)                                                                       \
			if (h_->controller)                                                                  \
				found_ = h_->path;                                 \
		found_;                                                                                      \
	})

static void note_missing(struct cgroups *c, const char *name, const char *mount)
{
	size_t at = strlen(c->missing);
	if (!mount)
		snprintf(c->missing + at, sizeof(c->missing) - at, "%s%s", at ? " " : "", name);
}

/* The list is inherited by sub-groups when they are made; "deny a" is refused once a sub-group exists, so an existing closed list is left as it is. */
static int forbid_devices(struct cgroups *c, const char *mount)
{
	static const char *const allowed[] = {"c 1:3 rw", "c 1:5 rw", "c 1:7 rw", "c 1:8 rw", "c 1:9 rw", "c 5:0 rw", "c 5:2 rw", "c 136:* rw"};
	int r = cgroup_write(mount, c, "", "devices.deny", "a");
	if (r < 0 && r != -EINVAL)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(allowed) && r == 0; i++)
		r = cgroup_write(mount, c, "", "devices.allow", allowed[i]);
	uint64_t unused;
	/* "a *:* rwm" is what an open list says. */
	return r == -EINVAL && cgroup_read_key(mount, c, "", "devices.list", "a", &unused) == -ENOENT ? 0 : r;
}

static int prepare(struct cgroups *c, struct error *err)
{
	note_missing(c, "memory", HIERARCHY(c, memory));
	note_missing(c, "pids", HIERARCHY(c, pids));
	note_missing(c, "cpu", HIERARCHY(c, cpu));
	note_missing(c, "cpuacct", HIERARCHY(c, cpuacct));
	note_missing(c, "devices", HIERARCHY(c, devices));
	if (!c->pair)
		note_missing(c, "freezer", HIERARCHY(c, freezer));
	if (!HIERARCHY(c, memory) || !HIERARCHY(c, pids) || !HIERARCHY(c, devices))
		return error_set(err, -ENODEV, 500, "cgroup v1: controllers that are not mounted: %s", c->missing);
	int r = forbid_devices(c, HIERARCHY(c, devices));
	return r < 0 ? error_errno(err, r, "cgroup v1 device list of %s", c->top) : 0;
}

static int create(struct cgroups *c, const char *name, struct error *err)
{
	int r = 0;
	each_own_hierarchy (c, h)
		if (r == 0)
			r = cgroup_mkdir(h->path, c, name);
	if (r == 0 && c->pair)
		r = cgroup_mkdir(c->layout.v2, c, name);
	return r < 0 ? error_errno(err, r, "cgroup %s", name) : 0;
}

static int set(const char *mount, struct cgroups *c, const char *dir, const char *file, const char *value, bool must, struct error *err)
{
	if (!mount)
		return 0;
	int r = cgroup_write(mount, c, dir, file, value);
	if (r < 0 && (must || r != -ENOENT))
		return error_errno(err, r, "cgroup %s/%s = %s", dir, file, value);
	return 0;
}

/* memory may not exceed memory+swap: which of the two is written first depends on the direction of the change. */
static int limit_memory(struct cgroups *c, const char *dir, uint64_t memory, struct error *err)
{
	const char *mount = HIERARCHY(c, memory);
	char text[24];
	uint64_t now = UINT64_MAX;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)memory);
	cgroup_read_u64(mount, c, dir, "memory.limit_in_bytes", &now);
	int r = 0;
	if (memory > now)
		r = set(mount, c, dir, "memory.memsw.limit_in_bytes", text, false, err);
	if (r == 0)
		r = set(mount, c, dir, "memory.limit_in_bytes", text, true, err);
	if (r == 0)
		r = set(mount, c, dir, "memory.memsw.limit_in_bytes", text, false, err);
	if (r == 0) /* without swap accounting this keeps anonymous memory from swap */
		r = set(mount, c, dir, "memory.swappiness", "0", false, err);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)MAX(memory / SOCKETS_SHARE, UINT64_C(1) * SOCKETS_LEAST_MB << 20));
	return r < 0 ? r : set(mount, c, dir, "memory.kmem.tcp.limit_in_bytes", text, false, err);
}

static const char *shares_of(uint32_t cpu_count, char to[24])
{
	snprintf(to, 24, "%u", cpu_count > 255 ? 262144 : cpu_count ? cpu_count * 1024 : 128);
	return to;
}

static int limit(struct cgroups *c, const char *dir, const struct cgroup_limits *l, struct error *err)
{
	char pids[24], quota[24], period[24], shares[24];
	snprintf(pids, sizeof(pids), "%llu", (unsigned long long)l->pids);
	snprintf(quota, sizeof(quota), "%llu", (unsigned long long)l->cpu_count * PERIOD_US);
	snprintf(period, sizeof(period), "%d", PERIOD_US);
	const char *cpu = HIERARCHY(c, cpu);
	int r = limit_memory(c, dir, l->memory, err);
	if (r == 0)
		r = set(HIERARCHY(c, pids), c, dir, "pids.max", pids, true, err);
	if (r == 0)
		r = set(cpu, c, dir, "cpu.cfs_period_us", period, false, err);
	if (r == 0)
		r = set(cpu, c, dir, "cpu.cfs_quota_us", quota, false, err);
	if (r == 0)
		r = set(cpu, c, dir, "cpu.shares", shares_of(l->cpu_count, shares), false, err);
	return r;
}

static int weigh(struct cgroups *c, const char *dir, uint32_t cpu_count)
{
	char shares[24];
	const char *cpu = HIERARCHY(c, cpu);
	return cpu ? cgroup_write(cpu, c, dir, "cpu.shares", shares_of(cpu_count, shares)) : -ENOENT;
}

static int attach(struct cgroups *c, const char *dir, pid_t pid, bool first, struct error *err)
{
	char text[16];
	int r = 0;
	snprintf(text, sizeof(text), "%d", (int)pid);
	if (first)
		r = cgroup_write(HIERARCHY(c, devices), c, "", "cgroup.procs", text);
	each_own_hierarchy (c, h)
		if (r == 0)
			r = cgroup_write(h->path, c, dir, "cgroup.procs", text);
	if (r == 0 && c->pair)
		r = cgroup_write(c->layout.v2, c, dir, "cgroup.procs", text);
	return r < 0 ? error_errno(err, r, "attach %d to cgroup %s", (int)pid, dir) : 0;
}

static int freeze(struct cgroups *c, const char *dir, bool on)
{
	if (c->pair)
		return cgroup_write(c->layout.v2, c, dir, "cgroup.freeze", on ? "1" : "0");
	const char *mount = HIERARCHY(c, freezer);
	return mount ? cgroup_write(mount, c, dir, "freezer.state", on ? "FROZEN" : "THAWED") : -EOPNOTSUPP;
}

static int frozen(struct cgroups *c, const char *dir)
{
	uint64_t on = 0;
	if (c->pair) {
		int r = cgroup_read_key(c->layout.v2, c, dir, "cgroup.events", "frozen", &on);
		return r < 0 ? r : on == 1;
	}
	char path[CGROUP_LONG_PATH];
	cleanup_buf struct buf text = BUF_INIT;
	const char *mount = HIERARCHY(c, freezer);
	if (!mount)
		return -EOPNOTSUPP;
	int r = file_read(AT_FDCWD, cgroup_path(path, mount, c, dir, "freezer.state"), 64, &text);
	return r < 0 ? r : str_is(str_trim(buf_str(&text)), "FROZEN");
}

static int kill_group(struct cgroups *c, const char *dir)
{
	if (c->pair && c->v2_kill) {
		int r = cgroup_write(c->layout.v2, c, dir, "cgroup.kill", "1");
		return r == -ENOENT ? 0 : r;
	}
	int r = cgroup_kill_listed(HIERARCHY(c, pids), c, dir);
	/* A process that the v1 freezer holds keeps its SIGKILL pending until it is thawed. */
	if (!c->pair && HIERARCHY(c, freezer))
		freeze(c, dir, false);
	return r;
}

static int remove_group(struct cgroups *c, const char *dir)
{
	int r = 0;
	each_hierarchy (c, h) {
		int one = cgroup_rmdir(h->path, c, dir);
		if (one < 0)
			r = one;
	}
	int one = c->pair ? cgroup_rmdir(c->layout.v2, c, dir) : 0;
	return one < 0 ? one : r;
}

static int stats(struct cgroups *c, const char *dir, struct cgroup_stats *ret)
{
	const char *memory = HIERARCHY(c, memory), *cpuacct = HIERARCHY(c, cpuacct);
	uint64_t usage = 0, cache = 0, shared = 0, ns = 0;
	int r = cgroup_read_u64(memory, c, dir, "memory.usage_in_bytes", &usage);
	if (r < 0)
		return r;
	const struct cgroup_key keys[] = {{"total_cache", &cache}, {"total_shmem", &shared}};
	cgroup_read_keys(memory, c, dir, "memory.stat", keys, ARRAY_SIZE(keys));
	cgroup_read_u64(memory, c, dir, "memory.limit_in_bytes", &ret->memory_limit);
	cgroup_read_key(memory, c, dir, "memory.oom_control", "oom_kill", &ret->oom_kills);
	cgroup_read_u64(HIERARCHY(c, pids), c, dir, "pids.current", &ret->pids);
	if (cpuacct)
		cgroup_read_u64(cpuacct, c, dir, "cpuacct.usage", &ns);
	ret->cpu_usec = ns / 1000;
	cgroup_split_memory(ret, usage, cache, shared);
	return 0;
}

static int dirty(struct cgroups *c, const char *dir, uint64_t *ret)
{
	const char *m = HIERARCHY(c, memory);
	uint64_t waiting = 0, under_way = 0;
	if (!m)
		return -ENOENT;
	int r = cgroup_read_key(m, c, dir, "memory.stat", "total_dirty", &waiting);
	if (r == 0)
		r = cgroup_read_key(m, c, dir, "memory.stat", "total_writeback", &under_way);
	if (r == 0)
		*ret = waiting + under_way;
	return r;
}

const struct cgroup_ops cgroup_v1 = {prepare, create, limit, weigh, attach, freeze, frozen, kill_group, remove_group, stats, dirty};
