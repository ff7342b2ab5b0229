#include "egress/confine.h"
#include "base/cleanup.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <pwd.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static int become(const char *user, struct error *err)
{
	errno = 0;
	struct passwd *p = getpwnam(user);
	if (!p)
		return error_set(err, errno ? -errno : -ENOENT, 500, "user.egress: there is no system user '%s'", user);
	if (p->pw_uid == 0)
		return error_set(err, -EINVAL, 500, "user.egress: '%s' is root", user);
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
		if (prctl(PR_CAPBSET_DROP, cap) < 0)
			return error_errno(err, -errno, "capability %d", cap);
	/* Leaving uid 0 for good empties the permitted and effective sets; the inheritable one is emptied by nobody having filled it. */
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresgid(p->pw_gid, p->pw_gid, p->pw_gid) < 0 ||
		setresuid(p->pw_uid, p->pw_uid, p->pw_uid) < 0)
		return error_errno(err, -errno, "becoming user %s", user);
	if (setuid(0) == 0)
		return error_set(err, -EPERM, 500, "user.egress: still root after becoming %s", user);
	return 0;
}

static int limit(struct error *err)
{
	static const struct {
		__rlimit_resource_t resource;
		rlim_t most;
	} limits[] = {{RLIMIT_CORE, 0}, {RLIMIT_NPROC, 0}, {RLIMIT_MEMLOCK, 0}, {RLIMIT_MSGQUEUE, 0}};
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		struct rlimit l = {limits[i].most, limits[i].most};
		if (setrlimit(limits[i].resource, &l) < 0)
			return error_errno(err, -errno, "resource limits");
	}
	if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return error_errno(err, -errno, "no_new_privs");
	return 0;
}

/* The list of resolvers is read again when it changes; often it is a link into /run. */
static int hide_files(struct error *err)
{
	static const char *const visible[] = {"/etc", "/run"};
	/* The rights of the first version of Landlock, which all later ones know. */
	struct landlock_ruleset_attr attr = {.handled_access_fs = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1};
	cleanup_fd int rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr.handled_access_fs), 0);
	if (rules < 0)
		return errno == ENOSYS || errno == EOPNOTSUPP ? 0 : error_errno(err, -errno, "landlock");
	for (size_t i = 0; i < ARRAY_SIZE(visible); i++) {
		cleanup_fd int fd = open(visible[i], O_PATH | O_CLOEXEC);
		struct landlock_path_beneath_attr beneath = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE, .parent_fd = fd};
		if (fd >= 0 && syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) < 0)
			return error_errno(err, -errno, "landlock");
	}
	return syscall(SYS_landlock_restrict_self, rules, 0) < 0 ? error_errno(err, -errno, "landlock") : 0;
}

static const int calls[] = {
	/* sockets */
	SCMP_SYS(accept4), SCMP_SYS(bind), SCMP_SYS(connect), SCMP_SYS(getpeername), SCMP_SYS(getsockname), SCMP_SYS(getsockopt), SCMP_SYS(recvfrom),
	SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(sendto), SCMP_SYS(setsockopt), SCMP_SYS(shutdown),
	/* descriptors and the loop */
	SCMP_SYS(close), SCMP_SYS(dup), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_pwait), SCMP_SYS(epoll_wait), SCMP_SYS(fcntl), SCMP_SYS(fstat), SCMP_SYS(lseek),
	SCMP_SYS(newfstatat), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(pread64), SCMP_SYS(read), SCMP_SYS(statx), SCMP_SYS(timerfd_settime), SCMP_SYS(write),
	SCMP_SYS(writev),
	/* time, memory, the end */
	SCMP_SYS(brk), SCMP_SYS(clock_gettime), SCMP_SYS(clock_nanosleep), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(futex), SCMP_SYS(getpid),
	SCMP_SYS(getrandom), SCMP_SYS(gettid), SCMP_SYS(gettimeofday), SCMP_SYS(madvise), SCMP_SYS(mremap), SCMP_SYS(munmap), SCMP_SYS(restart_syscall),
	SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sched_yield), SCMP_SYS(sigaltstack), SCMP_SYS(tgkill),
};

static int add_rules(scmp_filter_ctx f)
{
	int r = 0;
	for (size_t i = 0; i < ARRAY_SIZE(calls) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[i], 0);
	/* No memory that is executable, no file for writing, no socket but the internet's. */
	const scmp_datum_t writing = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
	static const int families[] = {AF_INET, AF_INET6};
	for (size_t i = 0; i < ARRAY_SIZE(families) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, writing, 0));
	return r;
}

static int filter(struct error *err)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	if (!f)
		return error_errno(err, -ENOMEM, "seccomp");
	int r = add_rules(f);
	if (r == 0)
		r = seccomp_load(f);
	seccomp_release(f);
	return r < 0 ? error_errno(err, r, "seccomp") : 0;
}

int confine(const char *user, struct error *err)
{
	int r = become(user, err);
	if (r == 0)
		r = limit(err);
	if (r == 0)
		r = hide_files(err);
	return r < 0 ? r : filter(err);
}
