#include "guest/metrics.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/statvfs.h>

struct memory {
	uint64_t total, used, cache;
};

static uint64_t meminfo_value(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	unsigned long long kb = 0;
	return at && sscanf(at + strlen(name), " %llu", &kb) == 1 ? kb * 1024 : 0;
}

static int machine_memory(int proc, struct memory *m)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(proc, "meminfo", 64 * 1024, &text);
	const char *at = buf_cstr(&text);
	if (r < 0 || !at)
		return r < 0 ? r : -ENOMEM;
	uint64_t free = meminfo_value(at, "MemFree:");
	m->total = meminfo_value(at, "MemTotal:");
	m->cache = meminfo_value(at, "\nCached:") + meminfo_value(at, "Buffers:");
	m->used = m->total > free + m->cache ? m->total - free - m->cache : 0;
	return 0;
}

static int memory_of(const struct guest_cgroup *g, int proc, struct memory *m)
{
	uint64_t used, cache, limit;
	int r = machine_memory(proc, m);
	if (guest_cgroup_limit(g, &limit) && (r < 0 || limit < m->total))
		m->total = limit;
	if (!guest_cgroup_memory(g, &used, &cache))
		return r;
	m->cache = cache;
	m->used = used > cache ? used - cache : 0;
	return 0;
}

static int cpu_count(void)
{
	cpu_set_t set;
	return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Of all its processors together, since the last call; 0 for the first. */
static double cpu_percent(const struct guest_cgroup *g, int cpus, struct metrics_sample *last)
{
	struct metrics_sample now = {.at = clock_boottime()};
	if (!guest_cgroup_cpu(g, &now.cpu_ns))
		return 0;
	double percent = 0;
	if (last->at && now.at > last->at && now.cpu_ns >= last->cpu_ns)
		percent = 100.0 * (double)(now.cpu_ns - last->cpu_ns) / ((double)(now.at - last->at) * cpus);
	*last = now;
	return percent > 100 ? 100 : percent;
}

int metrics_json(const struct guest_cgroup *g, int proc, struct metrics_sample *last, struct buf *to)
{
	struct memory m = {0};
	struct statvfs disk;
	int r = memory_of(g, proc, &m);
	if (r < 0)
		return r;
	if (statvfs("/", &disk) < 0)
		return -errno;
	uint64_t total = (uint64_t)disk.f_blocks * disk.f_frsize,
		 free = (uint64_t)disk.f_bfree * disk.f_frsize;
	int cpus = cpu_count();
	return buf_addf(to,
		"{\"ts\":%lld,\"cpu_count\":%d,\"cpu_used_pct\":%.2f,\"mem_total\":%llu,\"mem_used\":%llu,"
		"\"mem_cache\":%llu,\"mem_total_mib\":%llu,"
		"\"mem_used_mib\":%llu,\"disk_used\":%llu,\"disk_total\":%llu}",
		(long long)(clock_realtime() / NS_PER_S), cpus, cpu_percent(g, cpus, last),
		(unsigned long long)m.total, (unsigned long long)m.used, (unsigned long long)m.cache,
		(unsigned long long)(m.total >> 20), (unsigned long long)(m.used >> 20),
		(unsigned long long)(total - free), (unsigned long long)total);
}
