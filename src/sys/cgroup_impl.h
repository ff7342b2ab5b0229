/* Private to sys/cgroup*.c: the two back ends. */
#ifndef CUBICLE_SYS_CGROUP_IMPL_H
#define CUBICLE_SYS_CGROUP_IMPL_H

#include "sys/cgroup.h"

struct cgroup_ops {
	int (*prepare)(struct cgroups *c, struct error *err); /* <top>: controllers, devices */
	int (*create)(struct cgroups *c, const char *name, struct error *err);
	int (*limit)(struct cgroups *c, const char *dir, const struct cgroup_limits *l, struct error *err);
	int (*weigh)(struct cgroups *c, const char *dir, uint32_t cpu_count); /* -ENOENT: nobody shares processors by weight */
	/* first: the process is in no group of ours yet */
	int (*attach)(struct cgroups *c, const char *dir, pid_t pid, bool first, struct error *err);
	int (*freeze)(struct cgroups *c, const char *dir, bool on);
	int (*frozen)(struct cgroups *c, const char *dir);
	int (*kill)(struct cgroups *c, const char *dir);
	int (*remove)(struct cgroups *c, const char *dir);
	int (*stats)(struct cgroups *c, const char *dir, struct cgroup_stats *ret);
	int (*dirty)(struct cgroups *c, const char *dir, uint64_t *ret);
};

struct cgroups {
	const struct cgroup_ops *ops; /* limits and accounting */
	struct cgroup_layout layout;
	char top[128];
	char missing[128];
	bool pair; /* hybrid: v2 groups beside, for kill and freeze */
	bool v2_kill;
};

extern const struct cgroup_ops cgroup_v1, cgroup_v2;

/* <mount>/<top>/<dir>/<file> into to[CGROUP_LONG_PATH]; dir and file may be empty. */
enum { CGROUP_LONG_PATH = 640 };
const char *cgroup_path(char *to, const char *mount, const struct cgroups *c, const char *dir, const char *file);
/* Writes a value into a group's file: 0 or -errno. */
int cgroup_write(const char *mount, const struct cgroups *c, const char *dir, const char *file, const char *value);
/* Reads a file of one number ("max" is UINT64_MAX): 0 or -errno. */
int cgroup_read_u64(const char *mount, const struct cgroups *c, const char *dir, const char *file, uint64_t *ret);
/* The number after `key ` in a file of `key value` lines: 0, -ENOENT, -errno. */
int cgroup_read_key(const char *mount, const struct cgroups *c, const char *dir, const char *file, const char *key, uint64_t *ret);
/* The same for several keys, with one reading: what is not there stays as it is. 0 or -errno. */
struct cgroup_key {
	const char *name;
	uint64_t *value;
};
int cgroup_read_keys(const char *mount, const struct cgroups *c, const char *dir, const char *file, const struct cgroup_key *keys, size_t n);
/* Cache is what can be dropped; files in tmpfs, which count as cache, cannot. */
static inline void cgroup_split_memory(struct cgroup_stats *s, uint64_t usage, uint64_t cache, uint64_t shared)
{
	s->memory_cache = cache > shared ? cache - shared : 0;
	if (s->memory_cache > usage)
		s->memory_cache = usage;
	s->memory_used = usage - s->memory_cache;
}

/* mkdir of <top>/<dir> (existing is fine), rmdir (absent is fine): 0 or -errno. */
int cgroup_mkdir(const char *mount, const struct cgroups *c, const char *dir);
int cgroup_rmdir(const char *mount, const struct cgroups *c, const char *dir);
/* SIGKILL for each process listed in cgroup.procs. */
int cgroup_kill_listed(const char *mount, const struct cgroups *c, const char *dir);

#endif
