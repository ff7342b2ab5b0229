/* The lists of system calls, and their translation into what the kernel takes (classic BPF over struct seccomp_data). */
#include "vmm/jail.h"
#include "base/cleanup.h"

#include <assert.h>
#include <linux/audit.h>
#include <linux/if_tun.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

/* What every thread needs: to wait for others, to have memory, to end. */
static const int common[] = {SYS_futex, SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_clock_gettime, SYS_munmap, SYS_madvise, SYS_brk, SYS_ftruncate,
	SYS_gettid, SYS_getpid, SYS_tgkill, SYS_exit, SYS_exit_group, SYS_restart_syscall, SYS_sched_yield};
static const int of_main[] = {SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_ctl, SYS_readv, SYS_writev, SYS_preadv, SYS_preadv2, SYS_pwritev, SYS_recvmsg, SYS_sendmsg, SYS_recvfrom, SYS_sendto,
	SYS_accept4, SYS_close, SYS_shutdown, SYS_getsockopt, SYS_fcntl, SYS_fstat, SYS_newfstatat, SYS_fsync, SYS_fdatasync, SYS_timerfd_settime, SYS_getrandom, SYS_mremap,
	SYS_rt_sigaction, SYS_clock_nanosleep};
static const int of_worker[] = {SYS_preadv, SYS_preadv2, SYS_pwritev, SYS_pwritev2, SYS_fsync, SYS_fdatasync, SYS_fallocate, SYS_clock_nanosleep, SYS_ppoll, SYS_poll,
	SYS_set_robust_list, SYS_rseq};

static const uint32_t ioctl_of_vcpu[] = {KVM_RUN};
/* Saving, going on after a pause; net.c's answer to what the driver takes on. */
static const uint32_t ioctl_of_main[] = {KVM_GET_REGS, KVM_GET_SREGS, KVM_GET_XCRS, KVM_GET_XSAVE, KVM_GET_XSAVE2, KVM_GET_LAPIC, KVM_GET_MSRS, KVM_GET_DEBUGREGS, KVM_GET_VCPU_EVENTS,
	KVM_GET_MP_STATE, KVM_GET_IRQCHIP, KVM_GET_CLOCK, KVM_GET_TSC_KHZ, KVM_GET_MSR_INDEX_LIST, KVM_GET_DIRTY_LOG, KVM_KVMCLOCK_CTRL, TUNSETOFFLOAD};

static const struct {
	const int *calls;
	size_t n;
	const uint32_t *ioctls;
	size_t n_ioctls;
} roles[JAIL_ROLES] = {
	[JAIL_MAIN] = {of_main, ARRAY_SIZE(of_main), ioctl_of_main, ARRAY_SIZE(ioctl_of_main)},
	[JAIL_VCPU] = {NULL, 0, ioctl_of_vcpu, ARRAY_SIZE(ioctl_of_vcpu)},
	[JAIL_WORKER] = {of_worker, ARRAY_SIZE(of_worker), NULL, 0},
};

struct program {
	struct sock_filter *at;
	size_t n;
};

static void emit(struct program *p, uint16_t code, uint32_t k, uint8_t yes, uint8_t no)
{
	assert(p->n < JAIL_PROGRAM_MAX);
	p->at[p->n++] = (struct sock_filter){code, yes, no, k};
}

static void load(struct program *p, size_t offset)
{
	emit(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void answer(struct program *p, uint32_t what)
{
	emit(p, BPF_RET | BPF_K, what, 0, 0);
}

/* Equal: allowed. */
static void allow(struct program *p, uint32_t value)
{
	emit(p, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
	answer(p, SECCOMP_RET_ALLOW);
}

/* The call is allowed if none of the bits is in the argument's lower half; other calls go on behind. */
static void allow_without(struct program *p, uint32_t call, unsigned argument, uint32_t bits)
{
	emit(p, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
	load(p, offsetof(struct seccomp_data, args[argument]));
	emit(p, BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
	answer(p, SECCOMP_RET_KILL_PROCESS);
	answer(p, SECCOMP_RET_ALLOW);
}

size_t jail_program(enum jail_role role, struct sock_filter to[JAIL_PROGRAM_MAX])
{
	struct program p = {to, 0};
	load(&p, offsetof(struct seccomp_data, arch));
	emit(&p, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	answer(&p, SECCOMP_RET_KILL_PROCESS);
	load(&p, offsetof(struct seccomp_data, nr));
	/* First what is called most: KVM_RUN. The kernel reads ioctl's request as 32 bits. */
	emit(&p, BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, (uint8_t)(2 * roles[role].n_ioctls + 2));
	load(&p, offsetof(struct seccomp_data, args[1]));
	for (size_t i = 0; i < roles[role].n_ioctls; i++)
		allow(&p, roles[role].ioctls[i]);
	answer(&p, SECCOMP_RET_KILL_PROCESS);
	for (size_t i = 0; i < ARRAY_SIZE(common); i++)
		allow(&p, (uint32_t)common[i]);
	for (size_t i = 0; i < roles[role].n; i++)
		allow(&p, (uint32_t)roles[role].calls[i]);
	/* Memory, but nothing that can be executed. */
	allow_without(&p, SYS_mmap, 2, PROT_EXEC);
	allow_without(&p, SYS_mprotect, 2, PROT_EXEC);
	answer(&p, SECCOMP_RET_KILL_PROCESS);
	return p.n;
}
