#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#define CGROUPS "/sys/fs/cgroup"

enum {
	AGENT_MB = 32,   /* what is set aside for this process and its helpers, on a machine that is not small */
	AGENT_PART = 8,  /* ... on a small one: this part */
	AGENT_PIDS = 256,
	FILES_MAX = 1048576,
};

const char boot_work_cgroup[] = CGROUPS "/work";

/* As in a namespace (network/slot.c, sys/host_limits.c), where the host sets them. */
static const struct {
	const char *path, *value;
} sysctls[] = {
	/* For links made from now on; lo exists and keeps ::1. */
	{"net/ipv6/conf/default/disable_ipv6", "1"},
	{"net/ipv4/ip_unprivileged_port_start", "0"},
	{"net/ipv4/ping_group_range", "0 4294967294"},
	{"net/ipv4/conf/all/accept_redirects", "0"},
	{"net/ipv4/conf/all/accept_source_route", "0"},
	{"net/ipv4/conf/all/route_localnet", "0"},
	{"fs/aio-max-nr", "1073741824"},
	{"kernel/pty/max", "1048576"},
	{"fs/inotify/max_user_instances", "8192"},
	{"fs/inotify/max_user_watches", "524288"},
	{"fs/inotify/max_queued_events", "65536"},
};

static void set_sysctls(void)
{
	cleanup_fd int dir = open("/proc/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = 0; i < ARRAY_SIZE(sysctls); i++) {
		int r = file_write_value(dir, sysctls[i].path, str_of(sysctls[i].value));
		if (r < 0 && r != -ENOENT)
			log_warn("/proc/sys/%s: %s", sysctls[i].path, strerror(-r));
	}
}

/* What commands inherit; the spawner lowers what programs take as the number of files to close. */
static void set_limits(void)
{
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){FILES_MAX, FILES_MAX});
	setrlimit(RLIMIT_NPROC, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}); /* pids.max is the bound */
}

/* The smallest of what the kernel has for processes; what is not there is no bound. */
static uint64_t processes_max(void)
{
	static const char *const files[] = {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"};
	uint64_t least = 32768, n;
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		cleanup_buf struct buf text = BUF_INIT;
		struct str line, rest;
		if (file_read(AT_FDCWD, files[i], 64, &text) == 0 && str_cut(buf_str(&text), '\n', &line, &rest) && str_to_u64(line, &n) == 0 && n < least)
			least = n;
	}
	return least;
}

static int set(int dir, const char *file, uint64_t value, struct error *err)
{
	char text[24];
	int n = snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	int r = file_write_value(dir, file, str_n(text, (size_t)n));
	return r < 0 ? error_errno(err, r, "%s of a cgroup", file) : 0;
}

/* All that there are, also for what those inside make. */
static int enable_controllers(int top, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(top, "cgroup.controllers", 4096, &text);
	if (r < 0)
		return error_errno(err, r, CGROUPS "/cgroup.controllers");
	struct str rest = buf_str(&text), name;
	while (rest.n) {
		char word[40];
		if (!str_cut(rest, ' ', &name, &rest)) {
			name = rest.p[rest.n - 1] == '\n' ? str_n(rest.p, rest.n - 1) : rest;
			rest = STR("");
		}
		int n = snprintf(word, sizeof(word), "+%.*s", STR_FMT(name));
		if ((r = file_write_value(top, "cgroup.subtree_control", str_n(word, (size_t)n))) < 0)
			log_warn("cgroup controller %.*s: %s", STR_FMT(name), strerror(-r));
	}
	return 0;
}

static int open_group(int top, const char *name, struct error *err)
{
	if (mkdirat(top, name, 0755) < 0 && errno != EEXIST)
		return error_errno(err, -errno, "cgroup %s", name);
	int fd = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? error_errno(err, -errno, "cgroup %s", name) : fd;
}

/* What programs can have now: the kernel's own is not among it. */
static uint64_t available_memory(uint64_t total)
{
	static const char name[] = "MemAvailable:";
	cleanup_buf struct buf text = BUF_INIT;
	const char *all = file_read(AT_FDCWD, "/proc/meminfo", 65536, &text) == 0 ? buf_cstr(&text) : NULL;
	const char *at = all ? strstr(all, name) : NULL;
	return at ? strtoull(at + sizeof(name) - 1, NULL, 10) << 10 : total;
}

/* Neither a full memory nor a fork bomb in work takes what the agent needs. The limit is met before the machine's memory is full: then only those in work are looked at, and wait. */
static int limit(int agent, int work, unsigned wanted, struct error *err)
{
	struct sysinfo info;
	if (sysinfo(&info) < 0)
		return error_errno(err, -errno, "memory");
	uint64_t memory = (uint64_t)info.totalram * info.mem_unit, available = available_memory(memory), pids = processes_max();
	uint64_t reserve = MIN((uint64_t)AGENT_MB << 20, memory / AGENT_PART);
	int r = set(work, "memory.max", MIN(memory - reserve, available - MIN(reserve, available) / 2), err);
	if (r == 0)
		r = set(work, "pids.max", MIN(pids - MIN(AGENT_PIDS, pids / AGENT_PART), wanted ? wanted : UINT64_MAX), err);
	return r == 0 ? set(agent, "memory.min", reserve, err) : r;
}

static int make_cgroups(unsigned pids, struct error *err)
{
	cleanup_fd int top = open(CGROUPS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return error_errno(err, -errno, CGROUPS);
	int r = enable_controllers(top, err);
	if (r < 0)
		return r;
	cleanup_fd int agent = open_group(top, "agent", err);
	if (agent < 0)
		return agent;
	cleanup_fd int work = open_group(top, "work", err);
	if (work < 0)
		return work;
	r = limit(agent, work, pids, err);
	if (r == 0 && (r = file_write_value(agent, "cgroup.procs", STR("0"))) < 0)
		error_errno(err, r, "joining the cgroup agent");
	return r < 0 ? r : steal_fd(&work);
}

int boot_kernel_settle(unsigned pids, struct error *err)
{
	set_limits();
	set_sysctls();
	/* Inherited by this process's helpers; the spawner offers itself, and commands more so. */
	int r = file_write_value(AT_FDCWD, "/proc/self/oom_score_adj", STR("-1000"));
	if (r < 0)
		log_warn("/proc/self/oom_score_adj: %s", strerror(-r));
	return make_cgroups(pids, err);
}
