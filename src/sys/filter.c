#include "sys/filter.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Absent from older headers. */
#ifndef IPPROTO_L2TP
#define IPPROTO_L2TP 115
#endif
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

/* Plain names; those that an architecture lacks are passed over. */
static const char *const allowed[] = {
	"_llseek", "_newselect", "accept", "accept4", "access", "adjtimex", "alarm", "arch_prctl", "bind", "brk", "capget", "capset", "chdir",
	"chmod", "chown", "chroot", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "close_range", "connect",
	"copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2",
	"epoll_wait", "eventfd", "eventfd2", "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64",
	"fallocate", "fchdir", "fchmod", "fchmodat", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock",
	"fork", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futex", "futimesat", "get_mempolicy",
	"get_robust_list", "get_thread_area", "getcpu", "getcwd", "getdents", "getdents64", "getegid", "geteuid", "getgid", "getgroups",
	"getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid",
	"getrlimit", "getrusage", "getsid", "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr",
	"inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "io_destroy", "io_getevents",
	"io_pgetevents", "io_setup", "io_submit", "ioctl", "ioprio_get", "ioprio_set", "kcmp", "kill", "landlock_add_rule",
	"landlock_create_ruleset", "landlock_restrict_self", "lchown", "lgetxattr", "link", "linkat", "listen", "listxattr",
	"llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "madvise", "mbind", "membarrier", "memfd_create", "memfd_secret",
	"mincore", "mkdir", "mkdirat", "mknod", "mknodat", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mq_getsetattr",
	"mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "mremap", "msgctl", "msgget", "msgrcv", "msgsnd",
	"msync", "munlock", "munlockall", "munmap", "name_to_handle_at", "nanosleep", "newfstatat", "open", "openat", "openat2",
	"pause", "personality", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free",
	"pkey_mprotect", "poll", "ppoll", "prctl", "pread64", "preadv", "preadv2", "process_madvise", "process_mrelease",
	"process_vm_readv", "process_vm_writev", "pselect6", "ptrace", "pwrite64", "pwritev", "pwritev2", "read", "readahead",
	"readlink", "readlinkat", "readv", "recvfrom", "recvmmsg", "recvmsg", "remap_file_pages", "removexattr", "rename", "renameat",
	"renameat2", "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
	"rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max", "sched_get_priority_min",
	"sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity",
	"sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "select", "semctl", "semget", "semop",
	"semtimedop", "sendfile", "sendmmsg", "sendmsg", "sendto", "set_mempolicy", "set_mempolicy_home_node", "set_robust_list",
	"set_thread_area", "set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups", "sethostname", "setitimer", "setpgid", "setpriority",
	"setregid", "setresgid", "setresuid", "setreuid", "setsid", "setsockopt", "setuid", "setxattr", "shmat", "shmctl",
	"shmdt", "shmget", "shutdown", "sigaltstack", "signalfd", "signalfd4", "splice", "stat", "statfs", "statx", "symlink",
	"symlinkat", "sync", "sync_file_range", "syncfs", "sysinfo", "tee", "tgkill", "time", "timer_create", "timer_delete",
	"timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "tkill",
	"truncate", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vfork", "vmsplice", "wait4", "waitid",
	"waitpid", "write", "writev", "fanotify_init", "fanotify_mark", "riscv_flush_icache", "futex_waitv",
};

/* Newer than the library's tables, the same number everywhere: cachestat, fchmodat2, map_shadow_stack, futex_wake, futex_wait, futex_requeue, mseal,
 * setxattrat, getxattrat, listxattrat, removexattrat. */
static const int allowed_new[] = {451, 452, 453, 454, 455, 456, 462, 463, 464, 465, 466};

static const char *const refused[] = {
	"acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "finit_module", "get_kernel_syms",
	"init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load",
	"keyctl", "lookup_dcookie", "migrate_pages", "move_pages", "nfsservctl", "open_by_handle_at", "perf_event_open", "query_module",
	"quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "settimeofday", "setns", "stime", "swapoff",
	"swapon", "sysfs", "syslog", "uselib", "userfaultfd", "ustat", "vhangup",
};

/* Refused, unless a nested user namespace may use them on its own mounts. */
static const char *const mounts[] = {
	"fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "pivot_root", "umount", "umount2",
};

static const uint64_t namespace_flags[] = {
	CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET,
};

/* The kernel cuts these arguments to 32 bits: compare no more. */
static struct scmp_arg_cmp equals(unsigned arg, uint64_t value)
{
	return SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, UINT64_C(0xffffffff), value);
}

static int add_names(scmp_filter_ctx f, uint32_t action, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int nr = seccomp_syscall_resolve_name(names[i]);
		if (nr < 0) /* unknown here, or not on this architecture */
			continue;
		int r = seccomp_rule_add(f, action, nr, 0);
		if (r < 0)
			return r;
	}
	return 0;
}

/* clone and unshare without namespaces are allowed; each namespace flag alone is enough to be refused. */
static int add_namespaces(scmp_filter_ctx f)
{
	uint64_t all = 0;
	for (size_t i = 0; i < ARRAY_SIZE(namespace_flags); i++)
		all |= namespace_flags[i];
	int r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, all, 0));
	if (r == 0) /* 0x80 is CLONE_NEWTIME for unshare, part of the exit signal for clone */
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(unshare), 1, SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, all | 0x80, 0));
	for (size_t i = 0; i < ARRAY_SIZE(namespace_flags) && r == 0; i++) {
		uint64_t bit = namespace_flags[i];
		r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1, SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, bit, bit));
		if (r == 0)
			r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(unshare), 1, SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, bit, bit));
	}
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(unshare), 1, SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, 0x80, 0x80));
	return r;
}

/*
 * Limits may be set, with two exceptions. Those named by a pid (they may be read): PID 1 has the same user as a root inside, who could leave it without
 * descriptors, and a filter does not know whose pid it is.
 * And cores, which stay off (guest/spawner.c): where the host pipes them to a handler, that one runs as the host's root, outside of every limit, whatever
 * the size allowed, unless that is 1 byte. Programs that turn cores off must not fail, so they are told that it was done.
 */
static int add_limits(scmp_filter_ctx f)
{
	int r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 2, SCMP_CMP64(0, SCMP_CMP_NE, 0), SCMP_CMP64(2, SCMP_CMP_EQ, 0));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 2, SCMP_CMP64(0, SCMP_CMP_NE, 0), SCMP_CMP64(2, SCMP_CMP_NE, 0));
	for (int resource = 0; resource < RLIM_NLIMITS && r == 0; resource++) {
		bool core = resource == RLIMIT_CORE;
		r = seccomp_rule_add(f, core ? SCMP_ACT_ERRNO(0) : SCMP_ACT_ALLOW, SCMP_SYS(setrlimit), 1, equals(0, (uint64_t)resource));
		if (r == 0 && !core)
			r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 2, equals(0, 0), equals(1, (uint64_t)resource));
		if (r == 0 && core) /* reading it is told the truth */
			r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 3, equals(0, 0), equals(1, RLIMIT_CORE), SCMP_CMP64(2, SCMP_CMP_EQ, 0));
		if (r == 0 && core)
			r = seccomp_rule_add(f, SCMP_ACT_ERRNO(0), SCMP_SYS(prlimit64), 3, equals(0, 0), equals(1, RLIMIT_CORE),
				SCMP_CMP64(2, SCMP_CMP_NE, 0));
	}
	return r;
}

static int add_sockets(scmp_filter_ctx f)
{
	/* Others, SCTP and DCCP among them, would only make the host load modules that hardly anybody has looked at. */
	static const int transports[] = {0, IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMPV6, IPPROTO_UDPLITE, IPPROTO_MPTCP};
	static const int others[] = {IPPROTO_DCCP, IPPROTO_L2TP, IPPROTO_SCTP, IPPROTO_RAW};
	static const int protocols[] = {NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_KOBJECT_UEVENT, NETLINK_GENERIC};
	static const int families[] = {AF_INET, AF_INET6};
	int r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, equals(0, AF_UNIX));
	for (size_t i = 0; i < ARRAY_SIZE(families) && r == 0; i++) {
		for (size_t k = 0; k < ARRAY_SIZE(transports) && r == 0; k++)
			r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, equals(0, (uint64_t)families[i]),
				equals(2, (uint64_t)transports[k]));
		for (size_t k = 0; k < ARRAY_SIZE(others) && r == 0; k++)
			r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2, equals(0, (uint64_t)families[i]),
				equals(2, (uint64_t)others[k]));
	}
	for (int family = 0; family < 64 && r == 0; family++)
		if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_NETLINK)
			r = seccomp_rule_add(f, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, equals(0, (uint64_t)family));
	for (int p = 0; p < 32 && r == 0; p++) {
		uint32_t action = SCMP_ACT_ERRNO(EPROTONOSUPPORT);
		for (size_t i = 0; i < ARRAY_SIZE(protocols); i++)
			if (protocols[i] == p)
				action = SCMP_ACT_ALLOW;
		r = seccomp_rule_add(f, action, SCMP_SYS(socket), 2, equals(0, AF_NETLINK), equals(2, (uint64_t)p));
	}
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1, equals(0, AF_UNIX));
	return r;
}

static int add_rules(scmp_filter_ctx f, unsigned flags)
{
	bool nested = flags & SECCOMP_NESTED_USERNS;
	int r = add_names(f, SCMP_ACT_ALLOW, allowed, ARRAY_SIZE(allowed));
	for (size_t i = 0; i < ARRAY_SIZE(allowed_new) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, allowed_new[i], 0);
	if (r == 0)
		r = add_names(f, SCMP_ACT_ERRNO(EPERM), refused, ARRAY_SIZE(refused));
	if (r == 0)
		r = add_names(f, nested ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EPERM), mounts, ARRAY_SIZE(mounts));
	/* clone3 is in no list, so it is ENOSYS: its arguments are in memory, where a filter cannot look, and C libraries then fall back to clone. */
	if (r == 0 && nested) {
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 0);
		if (r == 0)
			r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(unshare), 0);
	} else if (r == 0) {
		r = add_namespaces(f);
	}
	if (r == 0)
		r = add_limits(f);
	return r < 0 ? r : add_sockets(f);
}

static int export(scmp_filter_ctx f, struct buf *to)
{
	cleanup_fd int fd = memfd_create("seccomp", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	int r = seccomp_export_bpf(f, fd);
	off_t size = lseek(fd, 0, SEEK_END);
	if (r < 0 || size < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return r < 0 ? r : -errno;
	char *at = buf_reserve(to, (size_t)size);
	if (!at)
		return -ENOMEM;
	ssize_t n = fd_read_full(fd, at, (size_t)size);
	if (n != size)
		return n < 0 ? (int)n : -EIO;
	buf_commit(to, (size_t)size);
	return 0;
}

int seccomp_compile(unsigned flags, struct buf *to, struct error *err)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
	if (!f)
		return error_errno(err, -ENOMEM, "seccomp filter");
	int r = seccomp_attr_set(f, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
	if (r == 0) /* node's own privileges decide: init loads it while it has SYS_ADMIN, sudo must go on working */
		r = seccomp_attr_set(f, SCMP_FLTATR_CTL_NNP, 0);
	if (r == 0)
		r = seccomp_attr_set(f, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	if (r == 0)
		r = add_rules(f, flags);
	if (r == 0)
		r = export(f, to);
	seccomp_release(f);
	return r < 0 ? error_errno(err, r, "seccomp filter") : 0;
}
