#include "unit.h"
#include "base/fd.h"
#include "sys/caps.h"
#include "sys/cgroup.h"
#include "sys/process.h"
#include "sys/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void layout_of_a_hybrid_machine(void **state)
{
	struct cgroup_layout l;
	assert_int_equal(cgroup_layout_parse(STR("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
						 "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid,nsdelegate 0 0\n"
						 "cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n"
						 "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
						 "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
						 "cgroup /mnt/memory-again cgroup rw,memory 0 0\n"
						 "cgroup /sys/fs/cgroup/net_cls cgroup rw,net_cls,net_prio 0 0\n"
						 "cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0"),
				 &l),
		0);
	assert_string_equal(l.v2, "/sys/fs/cgroup/unified");
	assert_int_equal(l.n_v1, 3);
	assert_true(l.v1[0].cpu && l.v1[0].cpuacct && !l.v1[0].memory);
	assert_string_equal(l.v1[1].path, "/sys/fs/cgroup/memory");
	assert_true(l.v1[2].pids);
}

static void layout_of_a_pure_v2_machine(void **state)
{
	struct cgroup_layout l;
	assert_int_equal(cgroup_layout_parse(STR("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"), &l), 0);
	assert_string_equal(l.v2, "/sys/fs/cgroup");
	assert_int_equal(l.n_v1, 0);
}

static void layout_refuses_paths_it_cannot_tell(void **state)
{
	struct cgroup_layout l;
	assert_int_equal(cgroup_layout_parse(STR("cgroup /sys/fs/a\\040b cgroup rw,memory 0 0\n"), &l), -EINVAL);
	assert_int_equal(cgroup_layout_parse(STR("cgroup"), &l), 0);
	assert_int_equal(l.n_v1, 0);
}

/* Runs fn in a child under the filter; its result (0..100) is the child's exit status. */
static int under_filter(unsigned flags, int (*fn)(void))
{
	struct buf filter = BUF_INIT;
	struct error err = {0};
	if (seccomp_compile(flags, &filter, &err) < 0)
		fail_msg("%s", err.message);
	pid_t child = fork();
	if (child == 0) {
		struct sock_fprog prog = {(unsigned short)(buf_len(&filter) / sizeof(struct sock_filter)), (void *)(uintptr_t)buf_str(&filter).p};
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
			_exit(120);
		_exit(fn());
	}
	buf_done(&filter);
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status))
		fail_msg("the child died by signal %d", WTERMSIG(status));
	return WEXITSTATUS(status);
}

/* Each expectation has a number, which is what a failure shows. */
#define EXPECT(number, call, want)                                                                           \
	do {                                                                                                 \
		errno = 0;                                                                                   \
		long r_ = (long)(call);                                                                      \
		if ((want) ? (r_ != -1 || errno != (want)) : r_ == -1)                                       \
			return number;                                                                       \
	} while (0)

static int try_refusals(void)
{
	EXPECT(1, syscall(SYS_clone3, NULL, 0), ENOSYS);
	EXPECT(2, syscall(SYS_unshare, CLONE_NEWUSER), EPERM);
	EXPECT(3, syscall(SYS_unshare, 0x80), EPERM);
	EXPECT(4, syscall(SYS_unshare, CLONE_FS), 0);
	EXPECT(5, syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0), EPERM);
	EXPECT(6, syscall(SYS_setns, 0, 0), EPERM);
	EXPECT(7, syscall(SYS_mount, "x", "/nowhere", "tmpfs", 0, 0), EPERM);
	EXPECT(8, syscall(SYS_fsopen, "tmpfs", 0), EPERM);
	EXPECT(9, syscall(SYS_bpf, 0, 0, 0), EPERM);
	EXPECT(10, syscall(SYS_perf_event_open, 0, 0, 0, 0, 0), EPERM);
	EXPECT(11, syscall(SYS_userfaultfd, 0), EPERM);
	EXPECT(12, syscall(SYS_io_uring_setup, 1, 0), EPERM);
	EXPECT(13, syscall(SYS_keyctl, 0, 0, 0, 0, 0), EPERM);
	EXPECT(14, syscall(SYS_add_key, 0, 0, 0, 0, 0), EPERM);
	EXPECT(15, syscall(SYS_request_key, 0, 0, 0, 0), EPERM);
	EXPECT(16, syscall(SYS_open_by_handle_at, 0, 0, 0), EPERM);
	EXPECT(17, syscall(SYS_kexec_load, 0, 0, 0, 0), EPERM);
	EXPECT(18, syscall(SYS_init_module, 0, 0, 0), EPERM);
	EXPECT(19, syscall(SYS_umount2, "/nowhere", 0), EPERM);
	EXPECT(20, syscall(1023), ENOSYS);
	return 0;
}

static int try_sockets(void)
{
	EXPECT(1, socket(AF_INET, SOCK_STREAM, 0), 0);
	EXPECT(2, socket(AF_INET6, SOCK_DGRAM, 0), 0);
	EXPECT(3, socket(AF_UNIX, SOCK_STREAM, 0), 0);
	EXPECT(4, socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), 0);
	EXPECT(5, socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER), EPROTONOSUPPORT);
	/* The kernel looks at 32 bits of it: a filter that compares 64 would let this pass. */
	EXPECT(6, syscall(SYS_socket, AF_NETLINK, SOCK_RAW, 0x100000000L | NETLINK_NETFILTER), EPROTONOSUPPORT);
	EXPECT(7, socket(AF_PACKET, SOCK_RAW, 0), EAFNOSUPPORT);
	EXPECT(8, socket(AF_VSOCK, SOCK_STREAM, 0), EAFNOSUPPORT);
	EXPECT(9, socket(AF_ALG, SOCK_SEQPACKET, 0), EAFNOSUPPORT);
	EXPECT(10, syscall(SYS_socket, 0x100000000L | AF_ALG, SOCK_SEQPACKET, 0), EAFNOSUPPORT);
	EXPECT(11, syscall(SYS_socket, 0x100000000L | AF_PACKET, SOCK_RAW, 0), EAFNOSUPPORT);
	int pair[2];
	EXPECT(12, socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	EXPECT(13, socket(AF_INET, SOCK_STREAM, IPPROTO_TCP), 0);
	EXPECT(14, socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP), 0);
	EXPECT(15, socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP), EPROTONOSUPPORT);
	EXPECT(16, syscall(SYS_socket, AF_INET6, SOCK_SEQPACKET, 0x100000000L | IPPROTO_SCTP), EPROTONOSUPPORT);
	EXPECT(17, socket(AF_INET, SOCK_DCCP, IPPROTO_DCCP), EPROTONOSUPPORT);
	EXPECT(18, socket(AF_INET, SOCK_RAW, IPPROTO_RAW), EPROTONOSUPPORT);
	EXPECT(19, socket(AF_INET, SOCK_STREAM, 47), ENOSYS);
	return 0;
}

static int try_limits(void)
{
	struct rlimit l = {64, 64}, one = {1, 1}, none = {0, 0}, much = {1 << 20, 1 << 20};
	EXPECT(1, setrlimit(RLIMIT_NOFILE, &l), 0);
	EXPECT(2, syscall(SYS_setrlimit, RLIMIT_NPROC, &l), 0);
	/* What is told to have been done was not: this is what keeps the limit at 1. */
	EXPECT(3, syscall(SYS_prlimit64, 0, RLIMIT_CORE, &none, NULL), 0);
	EXPECT(4, syscall(SYS_setrlimit, RLIMIT_CORE, &much), 0);
	EXPECT(5, syscall(SYS_setrlimit, 0x100000000L | RLIMIT_CORE, &none), 0);
	EXPECT(6, syscall(SYS_prlimit64, 0x100000000L, 0x100000000L | RLIMIT_CORE, &none, NULL), EPERM); /* 0 for the kernel */
	EXPECT(7, getrlimit(RLIMIT_CORE, &l), 0);
	if (l.rlim_cur != one.rlim_cur || l.rlim_max != one.rlim_max)
		return 8;
	EXPECT(9, prlimit(0, RLIMIT_NPROC, NULL, &l), 0);
	EXPECT(10, prlimit(getppid(), RLIMIT_NOFILE, &l, NULL), EPERM);
	EXPECT(11, prlimit(getpid(), RLIMIT_NOFILE, &l, NULL), EPERM);
	EXPECT(12, syscall(SYS_prlimit64, -1, RLIMIT_NOFILE, &l, NULL), EPERM);
	EXPECT(13, prlimit(getpid(), RLIMIT_NOFILE, NULL, &l), 0);
	return 0;
}

static int try_ordinary_work(void)
{
	pid_t child = fork();
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(7);
	}
	int status;
	EXPECT(1, child, 0);
	EXPECT(2, waitpid(child, &status, 0), 0);
	if (!WIFSTOPPED(status))
		return 3;
	EXPECT(4, ptrace(PTRACE_CONT, child, 0, 0), 0);
	EXPECT(5, waitpid(child, &status, 0), 0);
	EXPECT(6, syscall(SYS_personality, 0x0040000), 0); /* gdb turns address randomisation off */
	EXPECT(7, syscall(SYS_futex, &status, 1 /* wake */, 1, 0, 0, 0), 0);
	return WIFEXITED(status) && WEXITSTATUS(status) == 7 ? 0 : 8;
}

static int try_nested(void)
{
	EXPECT(1, syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS), 0);
	EXPECT(2, mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	EXPECT(3, syscall(SYS_bpf, 0, 0, 0), EPERM);
	EXPECT(4, syscall(SYS_clone3, NULL, 0), ENOSYS);
	return 0;
}

#ifdef __x86_64__
static int try_foreign_calls(void)
{
	EXPECT(1, syscall(0x40000000 | SYS_getpid), ENOSYS); /* x32 */
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(20L) : "memory", "r8", "r9", "r10", "r11"); /* i386 getpid */
	return r == -ENOSYS ? 0 : 2;
}

static void filter_knows_no_foreign_calls(void **state)
{
	assert_int_equal(under_filter(0, try_foreign_calls), 0);
}
#endif

static void filter_refuses_what_it_must(void **state)
{
	assert_int_equal(under_filter(0, try_refusals), 0);
}

static void filter_allows_harmless_sockets_only(void **state)
{
	assert_int_equal(under_filter(0, try_sockets), 0);
	assert_int_equal(under_filter(SECCOMP_NESTED_USERNS, try_sockets), 0);
}

static void filter_keeps_cores_off_and_limits_of_others(void **state)
{
	struct rlimit before, one = {1, 1};
	assert_int_equal(getrlimit(RLIMIT_CORE, &before), 0);
	assert_int_equal(setrlimit(RLIMIT_CORE, &one), 0);
	assert_int_equal(under_filter(0, try_limits), 0);
	assert_int_equal(under_filter(SECCOMP_NESTED_USERNS, try_limits), 0);
}

static void filter_allows_ordinary_work_and_ptrace(void **state)
{
	assert_int_equal(under_filter(0, try_ordinary_work), 0);
}

static void nested_filter_allows_user_namespaces(void **state)
{
	assert_int_equal(under_filter(SECCOMP_NESTED_USERNS, try_nested), 0);
}

static void filter_fits_its_message(void **state)
{
	struct buf filter = BUF_INIT;
	assert_int_equal(seccomp_compile(0, &filter, NULL), 0);
	assert_in_range(buf_len(&filter), 8, 20480);
	assert_int_equal(buf_len(&filter) % sizeof(struct sock_filter), 0);
	buf_done(&filter);
}

static void start_time_names_a_process(void **state)
{
	uint64_t a, b;
	assert_int_equal(process_start_time(getpid(), &a), 0);
	assert_int_equal(process_start_time(getpid(), &b), 0);
	assert_true(a == b && a > 0);
	/* A name made to confuse the parser. */
	prctl(PR_SET_NAME, "x) R 1 1 1");
	assert_int_equal(process_start_time(getpid(), &b), 0);
	assert_true(a == b);
	assert_int_equal(process_start_time(0x7ffffff0, &b), -ESRCH);
}

static void bounding_set_keeps_what_people_need(void **state)
{
	static const char *const kept[] = {"CAP_CHOWN", "CAP_SETUID", "CAP_SYS_PTRACE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SYS_CHROOT"};
	static const char *const gone[] = {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_BPF", "CAP_PERFMON"};
	size_t found = 0;
	for (size_t i = 0; i < caps_never_inside_n; i++) {
		for (size_t j = 0; j < ARRAY_SIZE(kept); j++)
			assert_string_not_equal(caps_name(caps_never_inside[i]), kept[j]);
		for (size_t j = 0; j < ARRAY_SIZE(gone); j++)
			found += strcmp(caps_name(caps_never_inside[i]), gone[j]) == 0;
	}
	assert_int_equal(found, ARRAY_SIZE(gone));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout_of_a_hybrid_machine),
		cmocka_unit_test(layout_of_a_pure_v2_machine),
		cmocka_unit_test(layout_refuses_paths_it_cannot_tell),
		cmocka_unit_test(filter_refuses_what_it_must),
		cmocka_unit_test(filter_allows_harmless_sockets_only),
		cmocka_unit_test(filter_keeps_cores_off_and_limits_of_others),
		cmocka_unit_test(filter_allows_ordinary_work_and_ptrace),
		cmocka_unit_test(nested_filter_allows_user_namespaces),
#ifdef __x86_64__
		cmocka_unit_test(filter_knows_no_foreign_calls),
#endif
		cmocka_unit_test(filter_fits_its_message),
		cmocka_unit_test(start_time_names_a_process),
		cmocka_unit_test(bounding_set_keeps_what_people_need),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
