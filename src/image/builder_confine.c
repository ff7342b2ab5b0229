#include "image/builder.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* What libcurl, its resolver's threads, OpenSSL, libarchive and the allocator use. Files are only read, but for those that came as descriptors. */
static const int allowed[] = {
	/* sockets */
	SCMP_SYS(bind), SCMP_SYS(connect), SCMP_SYS(getpeername), SCMP_SYS(getsockname), SCMP_SYS(getsockopt), SCMP_SYS(recvfrom), SCMP_SYS(recvmmsg),
	SCMP_SYS(recvmsg), SCMP_SYS(sendmmsg), SCMP_SYS(sendmsg), SCMP_SYS(sendto), SCMP_SYS(setsockopt), SCMP_SYS(shutdown), SCMP_SYS(socketpair),
	/* descriptors */
	SCMP_SYS(access), SCMP_SYS(close), SCMP_SYS(dup), SCMP_SYS(epoll_create1), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_pwait), SCMP_SYS(epoll_wait),
	SCMP_SYS(eventfd2), SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(fallocate), SCMP_SYS(fcntl), SCMP_SYS(fstat), SCMP_SYS(fstatfs),
	SCMP_SYS(fsync), SCMP_SYS(ftruncate), SCMP_SYS(getcwd), SCMP_SYS(getdents64), SCMP_SYS(ioctl), SCMP_SYS(lseek), SCMP_SYS(lstat),
	SCMP_SYS(memfd_create), SCMP_SYS(newfstatat), SCMP_SYS(pipe2), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(pread64), SCMP_SYS(pselect6),
	SCMP_SYS(pwrite64), SCMP_SYS(read), SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(readv), SCMP_SYS(select), SCMP_SYS(stat), SCMP_SYS(statx),
	SCMP_SYS(write), SCMP_SYS(writev),
	/* time, memory, threads, the end */
	SCMP_SYS(brk), SCMP_SYS(clock_getres), SCMP_SYS(clock_gettime), SCMP_SYS(clock_nanosleep), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(futex),
	SCMP_SYS(getegid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(getrandom), SCMP_SYS(getrlimit),
	SCMP_SYS(gettid), SCMP_SYS(gettimeofday), SCMP_SYS(getuid), SCMP_SYS(madvise), SCMP_SYS(mremap), SCMP_SYS(munmap), SCMP_SYS(nanosleep),
	SCMP_SYS(restart_syscall), SCMP_SYS(rseq), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sched_getaffinity),
	SCMP_SYS(sched_yield), SCMP_SYS(set_robust_list), SCMP_SYS(sigaltstack), SCMP_SYS(sysinfo), SCMP_SYS(tgkill), SCMP_SYS(uname),
};

static int add_rules(scmp_filter_ctx f)
{
	const scmp_datum_t writing = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, both = PROT_WRITE | PROT_EXEC;
	/* None of AF_UNIX: the machine's network namespace has its abstract sockets, too. */
	static const int families[] = {AF_INET, AF_INET6};
	int r = 0;
	for (size_t i = 0; i < ARRAY_SIZE(allowed) && r == 0; i++) {
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, allowed[i], 0);
		if (r == -EDOM || r == -EFAULT)
			r = 0; /* a call that this architecture does not have */
	}
	for (size_t i = 0; i < ARRAY_SIZE(families) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
	/* The resolver asks which addresses the machine has. */
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, SCMP_A0(SCMP_CMP_EQ, AF_NETLINK), SCMP_A2(SCMP_CMP_EQ, NETLINK_ROUTE));
	/* No new processes, but threads; clone3's arguments cannot be seen, and libc does without. */
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD | CLONE_VM, CLONE_THREAD | CLONE_VM));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, writing, 0));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1, SCMP_A0(SCMP_CMP_EQ, PR_SET_NAME));
	/* Nothing that is written and executed: the resolver's modules are files. */
	const int maps[] = {SCMP_SYS(mmap), SCMP_SYS(mprotect)};
	for (size_t i = 0; i < ARRAY_SIZE(maps) && r == 0; i++) {
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, maps[i], 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
		if (r == 0)
			r = seccomp_rule_add(f, SCMP_ACT_ALLOW, maps[i], 1, SCMP_A2(SCMP_CMP_MASKED_EQ, both, PROT_EXEC));
	}
	return r;
}

static int filter(struct error *err)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	if (!f)
		return error_errno(err, -ENOMEM, "system-call filter");
	int r = add_rules(f);
	if (r == 0)
		r = seccomp_load(f);
	seccomp_release(f);
	return r < 0 ? error_errno(err, r, "system-call filter") : 0;
}

int builder_confine(struct error *err)
{
	const struct rlimit none = {0, 0};
	if (setrlimit(RLIMIT_CORE, &none) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return error_errno(err, -errno, "no_new_privs");
	return filter(err);
}
