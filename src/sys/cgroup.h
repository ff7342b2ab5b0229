/*
 * The cgroups of sandboxes, on cgroup v1, v2 or both mounted together. Per sandbox a directory <top>/<name> with two groups:
 * `agent` (PID 1) and `work` (everything else). On a hybrid machine limits are v1's; kill and freeze are v2's.
 * Calls are thread-safe; those that write cgroup.procs may wait some ms for the kernel: off the request path.
 */
#ifndef CUBICLE_SYS_CGROUP_H
#define CUBICLE_SYS_CGROUP_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum cgroup_part { CGROUP_AGENT, CGROUP_WORK };

struct cgroup_limits {
	uint64_t memory;    /* bytes; swap is none where the kernel accounts it */
	uint64_t pids;
	uint32_t cpu_count; /* quota: that many CPUs; weight in proportion */
};

struct cgroup_stats {
	uint64_t cpu_usec, memory_used, memory_cache /* of files, which the kernel can drop: the sum of both is the usage */, memory_limit, pids, oom_kills;
};

enum { CGROUP_MAX_V1 = 12, CGROUP_PATH = 256 };

/* Where hierarchies are mounted, from the text of /proc/self/mounts. */
struct cgroup_layout {
	struct {
		char path[CGROUP_PATH];
		bool cpu, cpuacct, memory, pids, devices, freezer;
	} v1[CGROUP_MAX_V1]; /* those with a controller we use */
	size_t n_v1;
	char v2[CGROUP_PATH]; /* empty: not mounted */
};
/* 0, or -EINVAL for a mount point that cannot be told (escapes, too long). */
int cgroup_layout_parse(struct str mounts, struct cgroup_layout *ret);

struct cgroups;

/* Detects, makes <top> in every hierarchy, turns controllers on, forbids devices other than null zero full random urandom tty ptmx pts.
 * Controllers that the machine lacks are named by cgroups_missing(). 0 or -errno with *err. */
int cgroups_new(const char *top, struct cgroups **ret, struct error *err);
/* remove: takes <top> away too, when nothing is left below it. Takes NULL. */
void cgroups_free(struct cgroups *c, bool remove);
/* "v1", "v2" or "hybrid". */
const char *cgroups_kind(const struct cgroups *c);
/* Names of missing controllers, separated by spaces; empty = all there. */
const char *cgroups_missing(const struct cgroups *c);

/* The directory of <top> in the hierarchy that has the controller ("memory", "cpuacct"; on v2 they are one), into to: 0 or -ENOENT. */
int cgroups_dir(const struct cgroups *c, const char *controller, char *to, size_t size);

int cgroups_create(struct cgroups *c, const char *name, struct error *err);
int cgroups_limit(struct cgroups *c, const char *name, enum cgroup_part part, const struct cgroup_limits *l, struct error *err);
/* What the sandbox is worth against others when processors are short: in proportion to cpu_count; 0 = an eighth of one. Does not wait. 0 or -errno. */
int cgroups_weigh(struct cgroups *c, const char *name, uint32_t cpu_count);
/* Moves a process in: first into `agent`; one that is in a group of the sandbox already (a child of its PID 1) into `work`. */
int cgroups_attach(struct cgroups *c, const char *name, enum cgroup_part part, pid_t pid, struct error *err);
/* 0 or -errno. Thawing a group that is not frozen is fine. */
int cgroups_freeze(struct cgroups *c, const char *name, enum cgroup_part part, bool on);
/* 1: every process stands still; 0: not yet, or not frozen; or -errno. */
int cgroups_frozen(struct cgroups *c, const char *name, enum cgroup_part part);
/* Kills every process of both groups and lets frozen ones die. */
int cgroups_kill(struct cgroups *c, const char *name);
/* Removes both groups: 0 (also when absent), -EBUSY while a process is left. */
int cgroups_remove(struct cgroups *c, const char *name);
int cgroups_stats(struct cgroups *c, const char *name, enum cgroup_part part, struct cgroup_stats *ret);
/* Bytes of files that the group has written and that are not on a disk yet: 0, -ENOENT where nobody accounts memory, or -errno. */
int cgroups_dirty(struct cgroups *c, const char *name, enum cgroup_part part, uint64_t *ret);
/* Calls fn for the name of each directory below <top>, in any hierarchy (a name may come more than once). */
int cgroups_each(struct cgroups *c, void (*fn)(const char *name, void *arg), void *arg);

#endif
