#include "sys/cgroup_impl.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PERIOD_US = 100000 };

static const char *mount_of(const struct cgroups *c)
{
	return c->layout.v2;
}

/* Turns controllers on for the children of every directory from the root down to dir. */
static void enable(struct cgroups *c, const char *path, bool note)
{
	static const char *const wanted[] = {"memory", "cpu", "pids", "io"};
	char file[CGROUP_LONG_PATH];
	snprintf(file, sizeof(file), "%.600s/cgroup.subtree_control", path);
	cleanup_fd int fd = open(file, O_WRONLY | O_CLOEXEC);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		char text[16];
		int n = snprintf(text, sizeof(text), "+%s", wanted[i]);
		if ((fd < 0 || write(fd, text, (size_t)n) < 0) && note) {
			size_t at = strlen(c->missing);
			snprintf(c->missing + at, sizeof(c->missing) - at, "%s%s", at ? " " : "", wanted[i]);
		}
	}
}

/* One instruction of the classic "is it this device?" ladder. */
#define LOAD(dst, at) ((struct bpf_insn){.code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = (dst), .src_reg = BPF_REG_1, .off = (at)})
#define JUMP_NE(dst, value, skip) ((struct bpf_insn){.code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = (dst), .imm = (value), .off = (skip)})
#define SET(dst, value) ((struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (dst), .imm = (value)})
#define AND(dst, value) ((struct bpf_insn){.code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = (dst), .imm = (value)})
#define EXIT ((struct bpf_insn){.code = BPF_JMP | BPF_EXIT})

/* Allows the harmless character devices, as the v1 list does; everything else, mknod included, is refused. */
static int device_program(void)
{
	static const short minors_of_1[] = {3, 5, 7, 8, 9}, minors_of_5[] = {0, 2};
	struct bpf_insn p[48];
	size_t n = 0;
	p[n++] = LOAD(BPF_REG_2, offsetof(struct bpf_cgroup_dev_ctx, access_type));
	p[n++] = LOAD(BPF_REG_3, offsetof(struct bpf_cgroup_dev_ctx, major));
	p[n++] = LOAD(BPF_REG_4, offsetof(struct bpf_cgroup_dev_ctx, minor));
	p[n++] = AND(BPF_REG_2, 0xffff); /* low half: the type */
	p[n++] = JUMP_NE(BPF_REG_2, BPF_DEVCG_DEV_CHAR, 0);
	size_t refuse_jump = n - 1;
	p[n++] = JUMP_NE(BPF_REG_3, 136, 2);
	p[n++] = SET(BPF_REG_0, 1);
	p[n++] = EXIT;
	p[n++] = JUMP_NE(BPF_REG_3, 1, 3 * ARRAY_SIZE(minors_of_1));
	for (size_t i = 0; i < ARRAY_SIZE(minors_of_1); i++) {
		p[n++] = JUMP_NE(BPF_REG_4, minors_of_1[i], 2);
		p[n++] = SET(BPF_REG_0, 1);
		p[n++] = EXIT;
	}
	p[n++] = JUMP_NE(BPF_REG_3, 5, 3 * ARRAY_SIZE(minors_of_5));
	for (size_t i = 0; i < ARRAY_SIZE(minors_of_5); i++) {
		p[n++] = JUMP_NE(BPF_REG_4, minors_of_5[i], 2);
		p[n++] = SET(BPF_REG_0, 1);
		p[n++] = EXIT;
	}
	p[refuse_jump].off = (short)(n - refuse_jump - 1);
	p[n++] = SET(BPF_REG_0, 0);
	p[n++] = EXIT;
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE,
		.insns = (uintptr_t)p,
		.insn_cnt = (uint32_t)n,
		.license = (uintptr_t) "Apache-2.0",
	};
	int fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
	return fd < 0 ? -errno : fd;
}

static int forbid_devices(struct cgroups *c)
{
	char path[CGROUP_LONG_PATH];
	cleanup_fd int group = open(cgroup_path(path, mount_of(c), c, "", ""), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int program = device_program();
	if (group < 0)
		return -errno;
	if (program < 0)
		return program;
	/* Without flags an earlier program of ours is replaced; sub-groups inherit it. */
	union bpf_attr attr = {
		.target_fd = (uint32_t)group,
		.attach_bpf_fd = (uint32_t)program,
		.attach_type = BPF_CGROUP_DEVICE,
	};
	return syscall(SYS_bpf, BPF_PROG_ATTACH, &attr, sizeof(attr)) < 0 ? -errno : 0;
}

static int prepare(struct cgroups *c, struct error *err)
{
	char path[CGROUP_LONG_PATH], whole[CGROUP_LONG_PATH];
	cgroup_path(whole, mount_of(c), c, "", "");
	for (char *at = whole + strlen(mount_of(c)); at; at = strchr(at + 1, '/')) {
		snprintf(path, sizeof(path), "%.*s", (int)(at - whole), whole);
		enable(c, path, false);
	}
	enable(c, whole, true);
	if (strstr(c->missing, "memory") || strstr(c->missing, "pids"))
		return error_set(err, -ENODEV, 500, "cgroup v2: controllers that cannot be turned on in %s: %s", whole, c->missing);
	int r = forbid_devices(c);
	return r < 0 ? error_errno(err, r, "cgroup v2 device program on %s", whole) : 0;
}

static int create(struct cgroups *c, const char *name, struct error *err)
{
	char path[CGROUP_LONG_PATH];
	int r = cgroup_mkdir(mount_of(c), c, name);
	if (r < 0)
		return error_errno(err, r, "cgroup %s", name);
	if (!strchr(name, '/')) /* the groups below need the controllers */
		enable(c, cgroup_path(path, mount_of(c), c, name, ""), false);
	return 0;
}

static int set(struct cgroups *c, const char *dir, const char *file, const char *value, bool must, struct error *err)
{
	int r = cgroup_write(mount_of(c), c, dir, file, value);
	if (r < 0 && (must || r != -ENOENT))
		return error_errno(err, r, "cgroup %s/%s = %s", dir, file, value);
	return 0;
}

static const char *weight_of(uint32_t cpu_count, char to[24])
{
	snprintf(to, 24, "%u", cpu_count > 100 ? 10000 : cpu_count ? cpu_count * 100 : 12);
	return to;
}

static int limit(struct cgroups *c, const char *dir, const struct cgroup_limits *l, struct error *err)
{
	char memory[24], pids[24], cpu[48], weight[24];
	snprintf(memory, sizeof(memory), "%llu", (unsigned long long)l->memory);
	snprintf(pids, sizeof(pids), "%llu", (unsigned long long)l->pids);
	snprintf(cpu, sizeof(cpu), "%llu %d", (unsigned long long)l->cpu_count * PERIOD_US, PERIOD_US);
	int r = set(c, dir, "memory.max", memory, true, err);
	if (r == 0)
		r = set(c, dir, "memory.swap.max", "0", false, err);
	if (r == 0)
		r = set(c, dir, "pids.max", pids, true, err);
	if (r == 0)
		r = set(c, dir, "cpu.max", cpu, false, err);
	if (r == 0)
		r = set(c, dir, "cpu.weight", weight_of(l->cpu_count, weight), false, err);
	return r;
}

static int weigh(struct cgroups *c, const char *dir, uint32_t cpu_count)
{
	char weight[24];
	return cgroup_write(mount_of(c), c, dir, "cpu.weight", weight_of(cpu_count, weight));
}

static int attach(struct cgroups *c, const char *dir, pid_t pid, bool first, struct error *err)
{
	char text[16];
	snprintf(text, sizeof(text), "%d", (int)pid);
	int r = cgroup_write(mount_of(c), c, dir, "cgroup.procs", text);
	return r < 0 ? error_errno(err, r, "attach %d to cgroup %s", (int)pid, dir) : 0;
}

static int freeze(struct cgroups *c, const char *dir, bool on)
{
	return cgroup_write(mount_of(c), c, dir, "cgroup.freeze", on ? "1" : "0");
}

static int frozen(struct cgroups *c, const char *dir)
{
	uint64_t on = 0;
	int r = cgroup_read_key(mount_of(c), c, dir, "cgroup.events", "frozen", &on);
	return r < 0 ? r : on == 1;
}

static int kill_group(struct cgroups *c, const char *dir)
{
	int r = c->v2_kill ? cgroup_write(mount_of(c), c, dir, "cgroup.kill", "1") : cgroup_kill_listed(mount_of(c), c, dir);
	return r == -ENOENT ? 0 : r;
}

static int remove_group(struct cgroups *c, const char *dir)
{
	return cgroup_rmdir(mount_of(c), c, dir);
}

static int stats(struct cgroups *c, const char *dir, struct cgroup_stats *ret)
{
	const char *m = mount_of(c);
	uint64_t usage = 0, cache = 0, shared = 0;
	int r = cgroup_read_u64(m, c, dir, "memory.current", &usage);
	if (r < 0)
		return r;
	const struct cgroup_key keys[] = {{"file", &cache}, {"shmem", &shared}};
	cgroup_read_keys(m, c, dir, "memory.stat", keys, ARRAY_SIZE(keys));
	cgroup_read_key(m, c, dir, "cpu.stat", "usage_usec", &ret->cpu_usec);
	cgroup_read_u64(m, c, dir, "memory.max", &ret->memory_limit);
	cgroup_read_u64(m, c, dir, "pids.current", &ret->pids);
	cgroup_read_key(m, c, dir, "memory.events", "oom_kill", &ret->oom_kills);
	cgroup_split_memory(ret, usage, cache, shared);
	return 0;
}

static int dirty(struct cgroups *c, const char *dir, uint64_t *ret)
{
	const char *m = mount_of(c);
	uint64_t waiting = 0, under_way = 0;
	int r = cgroup_read_key(m, c, dir, "memory.stat", "file_dirty", &waiting);
	if (r == 0)
		r = cgroup_read_key(m, c, dir, "memory.stat", "file_writeback", &under_way);
	if (r == 0)
		*ret = waiting + under_way;
	return r;
}

const struct cgroup_ops cgroup_v2 = {prepare, create, limit, weigh, attach, freeze, frozen, kill_group, remove_group, stats, dirty};
