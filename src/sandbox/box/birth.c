#include "sandbox/box/birth.h"
#include "sandbox/box/host.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHILD_FIRST = 3, HIGH = BIRTH_FDS + 8 };

static int go_of(const struct birth *c)
{
	return CHILD_FIRST + (int)c->n_fds;
}

static int program_of(const struct birth *c)
{
	return go_of(c) + 1;
}

/* Moves the descriptors to their numbers in two steps, because a source may stand where another is to go. What was made ahead of the clone is only read. */
static int place_descriptors(const struct birth *c, int null, int go)
{
	int high[BIRTH_FDS];
	for (size_t i = 0; i < c->n_fds; i++)
		if ((high[i] = (int)syscall(SYS_fcntl, c->fds[i], F_DUPFD, HIGH)) < 0)
			return -1;
	int log = (int)syscall(SYS_fcntl, c->log < 0 ? null : c->log, F_DUPFD, HIGH);
	null = (int)syscall(SYS_fcntl, null, F_DUPFD, HIGH);
	go = (int)syscall(SYS_fcntl, go, F_DUPFD, HIGH);
	int program = (int)syscall(SYS_fcntl, c->program, F_DUPFD, HIGH);
	if (null < 0 || log < 0 || go < 0 || program < 0)
		return -1;
	for (int i = 0; i < CHILD_FIRST; i++)
		if (syscall(SYS_dup3, i == 2 ? log : null, i, 0) < 0)
			return -1;
	for (size_t i = 0; i < c->n_fds; i++)
		if (syscall(SYS_dup3, high[i], CHILD_FIRST + (int)i, 0) < 0)
			return -1;
	if (syscall(SYS_dup3, go, go_of(c), O_CLOEXEC) < 0 || syscall(SYS_dup3, program, program_of(c), O_CLOEXEC) < 0)
		return -1;
	return (int)syscall(SYS_close_range, program_of(c) + 1, ~0u, 0);
}

/* A copy of a thread of a program with many, so it may only make system calls. */
_Noreturn static void run_child(const struct birth *c, int null, int wait_end)
{
	char byte;
	uint64_t no_signals = 0;
	/* At once: a descriptor that lingers here keeps others' mounts and sockets alive. */
	if (place_descriptors(c, null, wait_end) < 0)
		syscall(SYS_exit_group, 101);
	if (syscall(SYS_read, go_of(c), &byte, 1) != 1)
		syscall(SYS_exit_group, 102);
	if (syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0)
		syscall(SYS_exit_group, 103);
	if (syscall(SYS_unshare, CLONE_NEWCGROUP) < 0)
		syscall(SYS_exit_group, 104);
	syscall(SYS_setsid);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, sizeof(no_signals));
	const char *envp[] = {NULL};
	syscall(SYS_execveat, program_of(c), "", c->argv, envp, AT_EMPTY_PATH);
	syscall(SYS_exit_group, 105);
	__builtin_unreachable();
}

static int write_map(pid_t pid, const char *file, uid_t first)
{
	char path[40], line[48];
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	int n = snprintf(line, sizeof(line), "0 %u %u\n", first, UID_RANGE);
	return file_write_value(AT_FDCWD, path, str_n(line, (size_t)n));
}

/* The clone itself, between entering and leaving what the child shall inherit. */
static pid_t clone_inside(struct host *h, uid_t uid, int netns, const struct birth *c, int wait_end, int *ret_pidfd)
{
	struct clone_args args = {
		.flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
		.pidfd = (uintptr_t)ret_pidfd,
		.exit_signal = SIGCHLD,
	};
	if (setns(netns, CLONE_NEWNET) < 0)
		return -errno;
	if (setns(h->birth, CLONE_NEWNS) < 0)
		return -errno;
	/* The kernel's limits per user count for the id that makes the user namespace. Only this thread's ids change, and its capabilities stay (securebits). */
	if (syscall(SYS_setresgid, -1, uid, -1) < 0 || syscall(SYS_setresuid, -1, uid, -1) < 0)
		return -errno;
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		run_child(c, h->null, wait_end);
	return pid < 0 ? -errno : pid;
}

static int come_back(struct host *h)
{
	if (syscall(SYS_setresuid, -1, 0, -1) < 0 || syscall(SYS_setresgid, -1, 0, -1) < 0)
		return -errno;
	if (setns(h->stage, CLONE_NEWNS) < 0 || setns(h->net, CLONE_NEWNET) < 0)
		return -errno;
	return 0;
}

int birth_clone(struct host *h, const struct birth *c, uid_t uid, int netns, struct newborn *ret, struct error *err)
{
	int pipes[2];
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int wait_end = pipes[0];
	cleanup_fd int go = pipes[1];
	int pidfd = -1;
	pid_t pid = clone_inside(h, uid, netns, c, wait_end, &pidfd);
	int r = come_back(h);
	if (r < 0) /* a thread in the wrong place must not serve the next sandbox */
		abort();
	if (pid < 0)
		return error_errno(err, pid, "clone of a sandbox");
	setpriority(PRIO_PROCESS, (id_t)pid, 0); /* the pool's filler runs behind everything; its sandboxes do not */
	if ((r = write_map(pid, "gid_map", uid)) < 0 || (r = write_map(pid, "uid_map", uid)) < 0) {
		close(steal_fd(&go)); /* it reads end of file and exits; the caller reaps through the pidfd */
		error_errno(err, r, "id map");
	}
	*ret = (struct newborn){.pid = pid, .pidfd = pidfd, .go = r < 0 ? -1 : steal_fd(&go)};
	return r;
}

int birth_init(struct host *h, const char *group, uid_t uid, int netns, int listener, struct newborn *ret, struct error *err)
{
	char memory[96], cpu[96];
	snprintf(memory, sizeof(memory), "memory=/cgroup/memory/%s/work", group);
	snprintf(cpu, sizeof(cpu), "cpu=/cgroup/cpu/%s/work", group);
	const char *const argv[] = {"cubicle-init", "3", memory, cpu, NULL};
	const struct birth c = {.program = h->init, .argv = argv, .fds = &listener, .n_fds = 1, .log = -1};
	return birth_clone(h, &c, uid, netns, ret, err);
}

int birth_start(struct newborn *n, struct error *err)
{
	int r = fd_write_all(n->go, "g", 1);
	close(n->go);
	n->go = -1;
	return r < 0 ? error_errno(err, r, "start of a sandbox") : 0;
}
