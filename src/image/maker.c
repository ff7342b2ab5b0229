#include "image/maker.h"
#include "base/cleanup.h"
#include "io/chan.h"

#include <fcntl.h>
#include <seccomp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

int maker_limit(uint64_t image_max, uint64_t memory, uint64_t seconds, struct error *err)
{
	const struct {
		__rlimit_resource_t resource;
		rlim_t most;
	} limits[] = {{RLIMIT_CORE, 0}, {RLIMIT_FSIZE, image_max}, {RLIMIT_AS, memory}, {RLIMIT_CPU, seconds}, {RLIMIT_MEMLOCK, 0}, {RLIMIT_MSGQUEUE, 0}};
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		struct rlimit l;
		if (getrlimit(limits[i].resource, &l) < 0)
			return error_errno(err, -errno, "resource limits");
		l.rlim_max = MIN(l.rlim_max, limits[i].most);
		l.rlim_cur = l.rlim_max;
		if (setrlimit(limits[i].resource, &l) < 0)
			return error_errno(err, -errno, "resource limits");
	}
	if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return error_errno(err, -errno, "no_new_privs");
	return 0;
}

static const int calls[] = {
	SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(ftruncate), SCMP_SYS(lseek), SCMP_SYS(newfstatat), SCMP_SYS(pread64), SCMP_SYS(pwrite64), SCMP_SYS(read), SCMP_SYS(recvmsg),
	SCMP_SYS(sendmsg), SCMP_SYS(write),
	/* memory, threads that are there, the end */
	SCMP_SYS(brk), SCMP_SYS(clock_gettime), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(futex), SCMP_SYS(getpid), SCMP_SYS(getrandom), SCMP_SYS(gettid), SCMP_SYS(madvise),
	SCMP_SYS(mremap), SCMP_SYS(munmap), SCMP_SYS(restart_syscall), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sched_yield), SCMP_SYS(tgkill),
};

static const int file_calls[] = {
	SCMP_SYS(fchdir), SCMP_SYS(fcntl), SCMP_SYS(fgetxattr), SCMP_SYS(flistxattr), SCMP_SYS(getdents64), SCMP_SYS(lgetxattr), SCMP_SYS(llistxattr), SCMP_SYS(openat2), SCMP_SYS(readlinkat),
};

static int add_rules(scmp_filter_ctx f, bool files)
{
	int r = 0;
	for (size_t i = 0; i < ARRAY_SIZE(calls) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[i], 0);
	for (size_t i = 0; files && i < ARRAY_SIZE(file_calls) && r == 0; i++)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, file_calls[i], 0);
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	if (r == 0)
		r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	if (r == 0)
		r = seccomp_attr_set(f, SCMP_FLTATR_CTL_TSYNC, 1);
	return r;
}

int maker_filter(bool files, struct error *err)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	if (!f)
		return error_errno(err, -ENOMEM, "seccomp");
	int r = add_rules(f, files);
	if (r == 0)
		r = seccomp_load(f);
	seccomp_release(f);
	return r < 0 ? error_errno(err, r, "seccomp") : 0;
}

int maker_receive(int channel, enum msg_id type, char *storage, union msg_any *ret, struct error *err)
{
	struct msg_header header;
	int fds[MSG_MAX_FDS];
	size_t n_fds = 0;
	int r = msg_receive_fd(channel, storage, &header, ret, fds, &n_fds, err);
	for (size_t i = 0; r == 0 && i < n_fds; i++)
		close(fds[i]);
	if (r == 0 && (header.type != type || !(msg_type(header.type)->directions & MSG_TO_BUILDER)))
		r = error_set(err, -EPROTO, 500, "the first message is another one than %s", msg_type(type)->name);
	return r;
}

int maker_fail(int channel, const struct error *err)
{
	struct msg_error m = {0};
	msg_set(&m, error, code, err->code);
	msg_set(&m, error, status, (uint64_t)err->status);
	msg_set(&m, error, message, str_of(err->message));
	/* When nobody listens any more, the exit status says it. */
	msg_send_fd(channel, MSG_ID_error, &m, 0, NULL, 0, NULL);
	return 1;
}
