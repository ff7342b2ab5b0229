#include "sys/jail.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The root is data first, made by who may allocate; the child, a copy of one thread of a program with many, only makes system calls. */

enum step_kind { STEP_DIRECTORY, STEP_FILE, STEP_LINK, STEP_BIND };

struct step {
	enum step_kind kind;
	char to[64];      /* relative to the root */
	char from[PATH_MAX];
	bool device;
};

enum {
	STEPS = 96,
	THREADS = 1024,  /* of all that run as that user, where the kernel does not count them by user namespace */
	OOM_SCORE = 450, /* killed before anything of the machine's: a build can be made again */
};

struct plan {
	const struct jail *j;
	struct step *steps;
	size_t n;
	int exe, status, go, null;
	bool full;
};

static void add(struct plan *p, enum step_kind kind, const char *to, const char *from, bool device)
{
	if (p->n == STEPS || strlen(to) >= sizeof(p->steps->to) || strlen(from) >= sizeof(p->steps->from)) {
		p->full = true;
		return;
	}
	struct step *s = &p->steps[p->n++];
	*s = (struct step){.kind = kind, .device = device};
	strcpy(s->to, to);
	strcpy(s->from, from);
}

/* The same in the root: a directory or file bound there, a link as the link that it is. Missing ones are left out. */
static void add_same(struct plan *p, const char *path, bool device)
{
	struct stat st;
	char target[PATH_MAX];
	if (lstat(path, &st) < 0)
		return;
	if (S_ISLNK(st.st_mode)) {
		ssize_t n = readlink(path, target, sizeof(target) - 1);
		if (n > 0) {
			target[n] = '\0';
			add(p, STEP_LINK, path + 1, target, false);
		}
		return;
	}
	add(p, S_ISDIR(st.st_mode) ? STEP_DIRECTORY : STEP_FILE, path + 1, "", false);
	add(p, STEP_BIND, path + 1, path, device);
}

/* What a file is, wherever links lead to it. */
static void add_content(struct plan *p, const char *path)
{
	char real[PATH_MAX];
	struct stat st;
	if (!realpath(path, real) || stat(real, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	add(p, STEP_FILE, path + 1, "", false);
	add(p, STEP_BIND, path + 1, real, false);
}

static int make_plan(struct plan *p)
{
	static const char *const libraries[] = {"/lib", "/lib32", "/lib64", "/libx32"};
	static const char *const files[] = {"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/localtime",
		"/etc/ca-certificates.conf"};
	static const char *const directories[] = {"/etc/ssl", "/etc/pki", "/etc/crypto-policies", "/etc/ca-certificates", "/etc/alternatives"};
	bool net = p->j->flags & JAIL_NET;
	p->steps = calloc(STEPS, sizeof(*p->steps));
	if (!p->steps)
		return -ENOMEM;
	add(p, STEP_DIRECTORY, "usr", "", false);
	if (net) {
		add(p, STEP_BIND, "usr", "/usr", false);
	} else {
		static const char *const own[] = {"/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32"};
		for (size_t i = 0; i < ARRAY_SIZE(own); i++)
			add_same(p, own[i], false);
	}
	for (size_t i = 0; i < ARRAY_SIZE(libraries); i++)
		add_same(p, libraries[i], false);
	add(p, STEP_DIRECTORY, "etc", "", false);
	add_content(p, "/etc/ld.so.cache");
	for (size_t i = 0; net && i < ARRAY_SIZE(files); i++)
		add_content(p, files[i]);
	for (size_t i = 0; net && i < ARRAY_SIZE(directories); i++)
		add_same(p, directories[i], false);
	if (net) {
		add(p, STEP_DIRECTORY, "dev", "", false);
		add_same(p, "/dev/null", true);
		add_same(p, "/dev/zero", true);
		add_same(p, "/dev/urandom", true);
		add_same(p, "/dev/random", true);
	}
	return p->full ? -E2BIG : 0;
}

/* In the child: nothing but system calls. */

struct trouble {
	int step, error;
};

_Noreturn static void give_up(int status, int step)
{
	struct trouble t = {step, errno};
	if (syscall(SYS_write, status, &t, sizeof(t)) < 0)
		syscall(SYS_exit_group, 101);
	syscall(SYS_exit_group, 100);
	__builtin_unreachable();
}

/* Each to its number, in two steps, because a source may stand where another is to go. What follows them is closed. */
static int place_descriptors(const struct plan *p)
{
	int high[JAIL_FDS + 4], n = (int)p->j->n_fds, first = 3;
	for (int i = 0; i < n; i++)
		high[i] = p->j->fds[i];
	high[n] = p->exe;
	high[n + 1] = p->status;
	high[n + 2] = p->go;
	high[n + 3] = p->null;
	for (int i = 0; i < n + 4; i++)
		if ((high[i] = (int)syscall(SYS_fcntl, high[i], F_DUPFD, JAIL_FDS + 16)) < 0)
			return -1;
	for (int i = 0; i < 3; i++)
		if (syscall(SYS_dup3, high[n + 3], i, 0) < 0)
			return -1;
	for (int i = 0; i < n + 3; i++)
		if (syscall(SYS_dup3, high[i], first + i, i < n ? 0 : O_CLOEXEC) < 0)
			return -1;
	return (int)syscall(SYS_close_range, first + n + 3, ~0u, 0);
}

static int do_step(const struct step *s)
{
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (s->device ? 0 : MOUNT_ATTR_NODEV)};
	int fd;
	switch (s->kind) {
	case STEP_DIRECTORY:
		return mkdirat(AT_FDCWD, s->to, 0755) < 0 && errno != EEXIST ? -1 : 0;
	case STEP_FILE:
		fd = (int)syscall(SYS_openat, AT_FDCWD, s->to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
		return fd < 0 ? -1 : (int)syscall(SYS_close, fd);
	case STEP_LINK:
		return symlinkat(s->from, AT_FDCWD, s->to);
	case STEP_BIND:
		if (mount(s->from, s->to, NULL, MS_BIND | MS_REC, NULL) < 0)
			return -1;
		return (int)syscall(SYS_mount_setattr, AT_FDCWD, s->to, AT_RECURSIVE, &attr, sizeof(attr));
	}
	return -1;
}

static int make_root(const struct plan *p)
{
	/* It is another user who has to find its way there. */
	syscall(SYS_umask, 0022);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", p->j->stage, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,nr_inodes=256,mode=0755") < 0 ||
		chdir(p->j->stage) < 0)
		return -1;
	for (size_t i = 0; i < p->n; i++)
		if (do_step(&p->steps[i]) < 0)
			return -1;
	if (mount(NULL, ".", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
		return -1;
	if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return -1;
	return 0;
}

static int set_limit(int what, uint64_t value)
{
	struct rlimit l = {value, value};
	return (int)syscall(SYS_prlimit64, 0, what, &l, NULL);
}

static int drop_bounding(uint64_t keep)
{
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return -1;
	return 0;
}

static int limit_it(const struct jail *j)
{
	if (set_limit(RLIMIT_CORE, 0) < 0 || set_limit(RLIMIT_NOFILE, 1024) < 0 || set_limit(RLIMIT_AS, j->memory) < 0 || set_limit(RLIMIT_FSIZE, j->file_size) < 0 ||
		set_limit(RLIMIT_MEMLOCK, 0) < 0 || set_limit(RLIMIT_MSGQUEUE, 0) < 0)
		return -1;
	return (int)syscall(SYS_setpriority, PRIO_PROCESS, 0, j->nice);
}

_Noreturn static void run_child(const struct plan *p)
{
	const struct jail *j = p->j;
	int n = (int)j->n_fds, exe = 3 + n, status = 4 + n, go = 5 + n;
	uint64_t no_signals = 0;
	const char *const envp[] = {"PATH=/usr/bin:/bin", "LANG=C.UTF-8", NULL};
	char byte;
	bool merge = j->flags & JAIL_MERGE;
	/* At once: a descriptor that lingers here keeps others' mounts and sockets alive. */
	if (place_descriptors(p) < 0)
		give_up(p->status, 1);
	syscall(SYS_setsid);
	if (make_root(p) < 0)
		give_up(status, 2);
	if (sethostname("build", 5) < 0 || limit_it(j) < 0)
		give_up(status, 3);
	/* The mounts belong to the machine's user namespace: whatever it becomes in its own, it cannot change them. */
	if (!merge && syscall(SYS_unshare, CLONE_NEWUSER) < 0)
		give_up(status, 4);
	if (!merge && (syscall(SYS_write, status, "r", 1) != 1 || syscall(SYS_read, go, &byte, 1) != 1))
		give_up(status, 5);
	if (drop_bounding(merge ? UINT64_C(1) << CAP_SYS_ADMIN | UINT64_C(1) << CAP_DAC_READ_SEARCH : 0) < 0)
		give_up(status, 6);
	/* Not before it has a user namespace: that would be measured by what root has running. */
	if (!merge && set_limit(RLIMIT_NPROC, THREADS) < 0)
		give_up(status, 3);
	if (!merge && (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, j->gid, j->gid, j->gid) < 0 || syscall(SYS_setresuid, j->uid, j->uid, j->uid) < 0))
		give_up(status, 7);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		give_up(status, 8);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, sizeof(no_signals));
	syscall(SYS_execveat, exe, "", j->argv, envp, AT_EMPTY_PATH);
	give_up(status, 9);
}

/* In the parent */

static int write_map(pid_t pid, const char *file, unsigned id)
{
	char path[40], line[48];
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	int n = snprintf(line, sizeof(line), "%u %u 1\n", id, id);
	return file_write_value(AT_FDCWD, path, str_n(line, (size_t)n));
}

static int set_oom_score(pid_t pid)
{
	char path[40], text[8];
	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
	int n = snprintf(text, sizeof(text), "%d", OOM_SCORE);
	return file_write_value(AT_FDCWD, path, str_n(text, (size_t)n));
}

static int handshake(const struct jail *j, pid_t pid, int status, int go, struct error *err)
{
	static const char *const steps[] = {"?", "descriptors", "root", "limits", "user namespace", "start", "capabilities", "user", "privileges", "exec"};
	struct trouble t = {0};
	int r = 0;
	ssize_t n = 1;
	if (!(j->flags & JAIL_MERGE)) {
		char first[sizeof(t)];
		do
			n = read(status, first, sizeof(first));
		while (n < 0 && errno == EINTR);
		if (n == (ssize_t)sizeof(t)) {
			memcpy(&t, first, sizeof(t));
			return error_set(err, -t.error, 500, "starting %s %s: %s: %s", j->argv[0], j->argv[1], steps[t.step], strerror(t.error));
		}
		if (n != 1)
			return error_set(err, -EIO, 500, "starting %s %s: it ended", j->argv[0], j->argv[1]);
		if ((r = write_map(pid, "gid_map", j->gid)) < 0 || (r = write_map(pid, "uid_map", j->uid)) < 0)
			return error_errno(err, r, "id map of %s %s", j->argv[0], j->argv[1]);
		if ((r = fd_write_all(go, "g", 1)) < 0)
			return error_errno(err, r, "start of %s %s", j->argv[0], j->argv[1]);
	}
	/* It becomes the program, which closes this. */
	n = fd_read_full(status, &t, sizeof(t));
	if (n == 0)
		return 0;
	if (n != (ssize_t)sizeof(t) || t.step < 0 || (size_t)t.step >= ARRAY_SIZE(steps))
		return error_set(err, -EIO, 500, "starting %s %s: it ended", j->argv[0], j->argv[1]);
	return error_set(err, -t.error, 500, "starting %s %s: %s: %s", j->argv[0], j->argv[1], steps[t.step], strerror(t.error));
}

static int start(struct plan *p, struct jailed *ret, struct error *err)
{
	int status[2], go[2], pidfd = -1;
	if (pipe2(status, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int status_read = status[0];
	cleanup_fd int status_write = status[1];
	if (pipe2(go, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "pipe");
	cleanup_fd int go_read = go[0];
	cleanup_fd int go_write = go[1];
	p->status = status_write;
	p->go = go_read;
	struct clone_args args = {
		.flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_PIDFD | CLONE_CLEAR_SIGHAND | (p->j->flags & JAIL_NET ? 0 : CLONE_NEWNET),
		.pidfd = (uintptr_t)&pidfd,
		.exit_signal = SIGCHLD,
	};
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		run_child(p);
	if (pid < 0)
		return error_errno(err, -errno, "clone of %s %s", p->j->argv[0], p->j->argv[1]);
	struct jailed made = {pid, pidfd};
	close(steal_fd(&status_write));
	close(steal_fd(&go_read));
	int r = set_oom_score(pid);
	if (r < 0)
		error_errno(err, r, "memory score of %s %s", p->j->argv[0], p->j->argv[1]);
	else
		r = handshake(p->j, pid, status_read, go_write, err);
	if (r < 0) {
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
		jail_end(&made);
		return r;
	}
	*ret = made;
	return 0;
}

int jail_start(const struct jail *j, struct jailed *ret, struct error *err)
{
	struct plan p = {.j = j};
	if (j->n_fds > JAIL_FDS)
		return error_set(err, -E2BIG, 500, "too many descriptors");
	int r = make_plan(&p);
	cleanup_fd int exe = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	cleanup_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	p.exe = exe;
	p.null = null;
	if (r < 0 || exe < 0 || null < 0)
		r = error_errno(err, r < 0 ? r : -errno, "jail");
	else
		r = start(&p, ret, err);
	free(p.steps);
	return r;
}

int jail_end(struct jailed *j)
{
	siginfo_t info = {0};
	int r;
	while ((r = waitid(P_PIDFD, (id_t)j->pidfd, &info, WEXITED)) < 0 && errno == EINTR)
		;
	r = r < 0 ? -errno : info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
	close(j->pidfd);
	*j = (struct jailed){0, -1};
	return r;
}
