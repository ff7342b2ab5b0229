/* The doctor's checks of the kernel. */
#include "cli/doctor.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/cgroup.h"
#include "sys/filter.h"
#include "sys/process.h"
#include "sys/program.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

int doctor_try_root(struct doctor *d, struct error *err)
{
	return geteuid() == 0 ? 0 : error_set(err, -EPERM, 403, "this runs as uid %u", geteuid());
}

int doctor_try_kernel(struct doctor *d, struct error *err)
{
	struct utsname u;
	int major = 0, minor = 0;
	uname(&u);
	snprintf(d->note, sizeof(d->note), "Linux %s on %s", u.release, u.machine);
	if (sscanf(u.release, "%d.%d", &major, &minor) != 2 || major < 6 || (major == 6 && minor < 1))
		return error_set(err, -ENOSYS, 500, "Linux %s is older than 6.1", u.release);
	return 0;
}

/* clone3 of a child that waits to be killed; its pid. */
static pid_t clone_child(uint64_t flags, int cgroup)
{
	struct clone_args args = {.flags = flags, .exit_signal = SIGCHLD, .cgroup = (uint64_t)(cgroup >= 0 ? cgroup : 0)};
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		for (;;)
			pause();
	return pid < 0 ? -errno : pid;
}

static void end_child(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int map_ids(pid_t pid, uint32_t first, struct error *err)
{
	static const char *const files[] = {"uid_map", "gid_map"};
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		char path[64], line[64];
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
		snprintf(line, sizeof(line), "0 %u 65536\n", first);
		int r = file_write_value(AT_FDCWD, path, str_of(line));
		if (r < 0)
			return error_errno(err, r, "writing %s", files[i]);
	}
	return 0;
}

int doctor_try_namespaces(struct doctor *d, struct error *err)
{
	pid_t pid = clone_child(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP, -1);
	if (pid < 0)
		return error_errno(err, pid, "clone3 with new namespaces");
	int r = map_ids(pid, (uint32_t)d->options->uid_base, err);
	end_child(pid);
	return r;
}

int doctor_try_network_namespace(struct doctor *d, struct error *err)
{
	return unshare(CLONE_NEWNET) < 0 ? error_errno(err, -errno, "unshare of the network") : 0;
}

int doctor_try_pidfd(struct doctor *d, struct error *err)
{
	pid_t pid = clone_child(0, -1);
	if (pid < 0)
		return error_errno(err, pid, "clone3");
	cleanup_fd int fd = process_pidfd(pid);
	int r = fd < 0 ? fd : process_signal(fd, SIGKILL);
	end_child(pid);
	return r < 0 ? error_errno(err, r, "pidfd") : 0;
}

int doctor_try_openat2(struct doctor *d, struct error *err)
{
	struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
	cleanup_fd int root = open(d->work, O_PATH | O_DIRECTORY | O_CLOEXEC);
	cleanup_fd int fd = (int)syscall(SYS_openat2, root, "/../..", &how, sizeof(how));
	struct stat a, b;
	if (fd < 0)
		return error_errno(err, -errno, "openat2");
	if (fstat(root, &a) < 0 || fstat(fd, &b) < 0 || a.st_ino != b.st_ino)
		return error_set(err, -EINVAL, 500, "RESOLVE_IN_ROOT left its root");
	return 0;
}

int doctor_try_seccomp(struct doctor *d, struct error *err)
{
	cleanup_buf struct buf filter = BUF_INIT;
	int r = seccomp_compile(0, &filter, err);
	if (r < 0)
		return r;
	struct sock_fprog program = {.len = (unsigned short)(buf_len(&filter) / sizeof(struct sock_filter)), .filter = (struct sock_filter *)(filter.data + filter.start)};
	snprintf(d->note, sizeof(d->note), "%u instructions", program.len);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? error_errno(err, -errno, "loading the filter") : 0;
}

static int freeze_and_kill(struct cgroups *c, const char *name, struct error *err)
{
	struct cgroup_limits limits = {.memory = 64 << 20, .pids = 16, .cpu_count = 1};
	pid_t pid = clone_child(0, -1);
	if (pid < 0)
		return error_errno(err, pid, "clone3");
	int r = cgroups_limit(c, name, CGROUP_WORK, &limits, err);
	if (r == 0)
		r = cgroups_attach(c, name, CGROUP_WORK, pid, err);
	if (r == 0 && (r = cgroups_freeze(c, name, CGROUP_WORK, true)) < 0)
		error_errno(err, r, "freezing");
	if (r == 0 && (r = cgroups_kill(c, name)) < 0)
		error_errno(err, r, "killing");
	end_child(pid);
	return r;
}

int doctor_try_cgroups(struct doctor *d, struct error *err)
{
	struct cgroups *c;
	char top[64];
	snprintf(top, sizeof(top), "cubicle-doctor-%d", getpid());
	int r = cgroups_new(top, &c, err);
	if (r < 0)
		return r;
	const char *missing = cgroups_missing(c);
	r = cgroups_create(c, "check", err);
	if (r == 0)
		r = freeze_and_kill(c, "check", err);
	for (int i = 0; i < 100 && cgroups_remove(c, "check") == -EBUSY; i++)
		usleep(10000);
	snprintf(d->note, sizeof(d->note), "%s", cgroups_kind(c));
	if (r == 0 && *missing)
		r = error_set(err, -ENOENT, 500, "controllers are missing: %s", missing);
	cgroups_free(c, true);
	return r;
}

/* A group of the v2 hierarchy for the check; its directory. */
static int v2_group(char path[CGROUP_PATH + 64], struct error *err)
{
	cleanup_buf struct buf mounts = BUF_INIT;
	struct cgroup_layout layout;
	int r = file_read(AT_FDCWD, "/proc/self/mounts", 1 << 20, &mounts);
	if (r == 0)
		r = cgroup_layout_parse(buf_str(&mounts), &layout);
	if (r < 0)
		return error_errno(err, r, "/proc/self/mounts");
	if (!*layout.v2)
		return error_set(err, -ENOENT, 500, "no cgroup v2 tree is mounted");
	snprintf(path, CGROUP_PATH + 64, "%s/cubicle-doctor-%d", layout.v2, getpid());
	return mkdir(path, 0755) < 0 ? error_errno(err, -errno, "%s", path) : 0;
}

static void remove_group(const char *path)
{
	for (int i = 0; i < 100 && rmdir(path) < 0 && errno == EBUSY; i++)
		usleep(10000);
}

int doctor_try_cgroup_kill(struct doctor *d, struct error *err)
{
	char group[CGROUP_PATH + 64], file[CGROUP_PATH + 80];
	int r = v2_group(group, err);
	if (r < 0)
		return r;
	snprintf(file, sizeof(file), "%s/cgroup.kill", group);
	r = file_write_value(AT_FDCWD, file, STR("1"));
	remove_group(group);
	return r < 0 ? error_errno(err, r, "cgroup.kill") : 0;
}

int doctor_try_clone_into_cgroup(struct doctor *d, struct error *err)
{
	char group[CGROUP_PATH + 64];
	int r = v2_group(group, err);
	if (r < 0)
		return r;
	cleanup_buf struct buf mounts = BUF_INIT;
	struct cgroup_layout layout = {0};
	if (file_read(AT_FDCWD, "/proc/self/mounts", 1 << 20, &mounts) == 0)
		cgroup_layout_parse(buf_str(&mounts), &layout);
	cleanup_fd int fd = open(group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	pid_t pid = clone_child(CLONE_INTO_CGROUP, fd);
	if (pid > 0)
		end_child(pid);
	remove_group(group);
	if (pid < 0)
		return error_errno(err, pid, "clone3 with CLONE_INTO_CGROUP");
	/* It works on v2 only, and limits are v1's here. */
	return layout.n_v1 ? error_set(err, -EOPNOTSUPP, 500, "limits are with cgroup v1 here, which has it not") : 0;
}

int doctor_try_veth(struct doctor *d, struct error *err)
{
	static const char *const argv[] = {"ip", "link", "add", "cubicle-a", "type", "veth", "peer", "name", "cubicle-b", NULL};
	cleanup_buf struct buf output = BUF_INIT;
	if (unshare(CLONE_NEWNET) < 0)
		return error_errno(err, -errno, "unshare of the network");
	int r = program_run(argv, STR(""), &output, err);
	return r <= 0 ? r : error_set(err, -EIO, 500, "%.*s", (int)MIN(buf_len(&output), 200u), buf_str(&output).p);
}

int doctor_try_nft(struct doctor *d, struct error *err)
{
	static const char *const argv[] = {"nft", "-f", "-", NULL};
	static const char rules[] = "table inet cubicle {\nset s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }\n"
				    "chain c { type filter hook output priority 0; ip daddr @s reject; ct state established accept; }\n"
				    "chain n { type nat hook postrouting priority 100; masquerade; }\n}\n";
	cleanup_buf struct buf output = BUF_INIT;
	if (unshare(CLONE_NEWNET) < 0)
		return error_errno(err, -errno, "unshare of the network");
	int r = program_run(argv, STR(rules), &output, err);
	return r <= 0 ? r : error_set(err, -EIO, 500, "nft: %.*s", (int)MIN(buf_len(&output), 200u), buf_str(&output).p);
}
