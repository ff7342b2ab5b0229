/*
 * What PID 1 reads of the `work` cgroup that holds every command of its sandbox. Descriptors, opened before the host's tree is left; the files are world-readable
 * and opened for reading only. Version 1 and 2 have the same numbers under different names.
 */
#ifndef CUBICLE_GUEST_CGROUP_H
#define CUBICLE_GUEST_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

struct guest_cgroup {
	int usage, limit, stat, oom, cpu; /* -1 = not there */
	bool v1;
};

/* Opens what is there; directories may be NULL. */
void guest_cgroup_open(struct guest_cgroup *g, const char *memory_dir, const char *cpu_dir);
void guest_cgroup_close(struct guest_cgroup *g);

/* Each returns false when it cannot be read. */
bool guest_cgroup_memory(const struct guest_cgroup *g, uint64_t *ret_used, uint64_t *ret_cache);
/* False also when there is no limit. */
bool guest_cgroup_limit(const struct guest_cgroup *g, uint64_t *ret_limit);
/* Processes that the kernel has killed for lack of memory since the cgroup was made. */
bool guest_cgroup_oom_kills(const struct guest_cgroup *g, uint64_t *ret);
/* CPU time used, in ns. */
bool guest_cgroup_cpu(const struct guest_cgroup *g, uint64_t *ret_ns);

#endif
