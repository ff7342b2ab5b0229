#include "guest/cgroup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static int open_one(const char *dir, const char *v2, const char *v1, bool *ret_v1)
{
	char path[4200];
	int fd = -1;
	for (int i = 0; dir && fd < 0 && i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, i ? v1 : v2);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && i && ret_v1)
			*ret_v1 = true;
	}
	return fd;
}

void guest_cgroup_open(struct guest_cgroup *g, const char *memory_dir, const char *cpu_dir)
{
	g->v1 = false;
	g->usage = open_one(memory_dir, "memory.current", "memory.usage_in_bytes", &g->v1);
	g->limit = open_one(memory_dir, "memory.max", "memory.limit_in_bytes", NULL);
	g->stat = open_one(memory_dir, "memory.stat", "memory.stat", NULL);
	g->oom = open_one(memory_dir, "memory.events", "memory.oom_control", NULL);
	g->cpu = open_one(cpu_dir, "cpuacct.usage", "cpu.stat", NULL);
}

void guest_cgroup_close(struct guest_cgroup *g)
{
	int *fds[] = {&g->usage, &g->limit, &g->stat, &g->oom, &g->cpu};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (*fds[i] >= 0)
			close(steal_fd(fds[i]));
}

/* The file from its start: the kernel makes it anew for each reading. */
static bool read_text(int fd, char *text, size_t size)
{
	ssize_t n = fd < 0 ? -1 : pread(fd, text, size - 1, 0);
	if (n <= 0)
		return false;
	text[n] = '\0';
	return true;
}

/* The number after a line's "name ", or after nothing when name is NULL. "max" is no number. */
static bool read_number(int fd, const char *name, uint64_t *ret)
{
	char text[4096], wanted[64];
	if (!read_text(fd, text, sizeof(text)))
		return false;
	const char *at = text;
	if (name) {
		snprintf(wanted, sizeof(wanted), "%s ", name);
		for (at = text; at && strncmp(at, wanted, strlen(wanted)) != 0;)
			if ((at = strchr(at, '\n')))
				at++;
		if (!at)
			return false;
		at += strlen(wanted);
	}
	char *end;
	errno = 0;
	*ret = strtoull(at, &end, 10);
	return end > at && !errno;
}

bool guest_cgroup_memory(const struct guest_cgroup *g, uint64_t *ret_used, uint64_t *ret_cache)
{
	return read_number(g->usage, NULL, ret_used) &&
	       read_number(g->stat, g->v1 ? "total_cache" : "file", ret_cache);
}

bool guest_cgroup_limit(const struct guest_cgroup *g, uint64_t *ret_limit)
{
	/* Version 1 writes "none" as a number close to 2^63. */
	return read_number(g->limit, NULL, ret_limit) && *ret_limit < UINT64_C(1) << 60;
}

bool guest_cgroup_oom_kills(const struct guest_cgroup *g, uint64_t *ret)
{
	return read_number(g->oom, "oom_kill", ret);
}

bool guest_cgroup_cpu(const struct guest_cgroup *g, uint64_t *ret_ns)
{
	if (read_number(g->cpu, "usage_usec", ret_ns)) {
		*ret_ns *= 1000;
		return true;
	}
	return read_number(g->cpu, NULL, ret_ns);
}
