#include "vmm/probe.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <linux/kvm.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

enum {
	PAGE = 4096,
	LIMIT_MS = 300,
	OWN_TIME_MS = 100, /* a trial that was cut and had less of the processor than that says nothing: the machine is busy */
	TRIALS = 3,
	SLOW_MS = 100,     /* done, and slow nevertheless */
	STOP_SIGNAL = SIGURG, /* blocked in the guest's thread but for KVM_RUN: no handler ever sees it */
};

/* 32 bits, ring 0, no paging: a loop of a million, then a word to port 0x10. */
static const unsigned char code[] = {
	0xb9, 0x40, 0x42, 0x0f, 0x00, /* mov $1000000, %ecx */
	0x49,                         /* 1: dec %ecx */
	0x75, 0xfd,                   /* jnz 1b */
	0xe6, 0x10,                   /* out %al, $0x10 */
	0xf4,                         /* hlt */
};

struct trial {
	int system, vm, vcpu;
	size_t run_size;
	void *page;
	struct kvm_run *run;
	pthread_mutex_t lock;
	pthread_cond_t finished;
	bool done;
	int result;         /* 0: it came to its end; -EINTR: it was cut; else -errno */
	const char *what;   /* what failed */
	int64_t ns, own_ns; /* wall clock; of this thread */
};

static int64_t own_time(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int failed(struct trial *t, const char *what)
{
	t->what = what;
	return -errno;
}

/* Flat segments of 4 GiB. */
static int set_registers(struct trial *t)
{
	struct kvm_sregs s;
	struct kvm_regs r = {.rip = 0, .rflags = 2};
	if (ioctl(t->vcpu, KVM_GET_SREGS, &s) < 0)
		return failed(t, "KVM_GET_SREGS");
	const struct kvm_segment data = {.limit = UINT32_MAX, .selector = 0x10, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1};
	s.ds = s.es = s.fs = s.gs = s.ss = s.cs = data;
	s.cs.selector = 8;
	s.cs.type = 11;
	s.cr0 |= 1;
	if (ioctl(t->vcpu, KVM_SET_SREGS, &s) < 0)
		return failed(t, "KVM_SET_SREGS");
	return ioctl(t->vcpu, KVM_SET_REGS, &r) < 0 ? failed(t, "KVM_SET_REGS") : 0;
}

static int make_guest(struct trial *t)
{
	int size = ioctl(t->system, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (ioctl(t->system, KVM_GET_API_VERSION, 0) != KVM_API_VERSION || size < (int)sizeof(struct kvm_run))
		return failed(t, "KVM_GET_API_VERSION");
	t->run_size = (size_t)size;
	if ((t->vm = ioctl(t->system, KVM_CREATE_VM, 0)) < 0)
		return failed(t, "KVM_CREATE_VM");
	t->page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (t->page == MAP_FAILED)
		return failed(t, "memory");
	memcpy(t->page, code, sizeof(code));
	struct kvm_userspace_memory_region slot = {.memory_size = PAGE, .userspace_addr = (uintptr_t)t->page};
	/* Intel's KVM wants these somewhere; elsewhere it is no matter if they are refused. */
	uint64_t identity = 0xfffbc000;
	ioctl(t->vm, KVM_SET_IDENTITY_MAP_ADDR, &identity);
	ioctl(t->vm, KVM_SET_TSS_ADDR, 0xfffbd000ul);
	if (ioctl(t->vm, KVM_SET_USER_MEMORY_REGION, &slot) < 0)
		return failed(t, "KVM_SET_USER_MEMORY_REGION");
	if ((t->vcpu = ioctl(t->vm, KVM_CREATE_VCPU, 0)) < 0)
		return failed(t, "KVM_CREATE_VCPU");
	t->run = mmap(NULL, t->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, t->vcpu, 0);
	if (t->run == MAP_FAILED)
		return failed(t, "KVM_CREATE_VCPU");
	return set_registers(t);
}

static void end_guest(struct trial *t)
{
	if (t->run != MAP_FAILED)
		munmap(t->run, t->run_size);
	if (t->vcpu >= 0)
		close(t->vcpu);
	if (t->vm >= 0)
		close(t->vm);
	if (t->page != MAP_FAILED)
		munmap(t->page, PAGE);
}

/* The thread has all signals blocked. In KVM_RUN it takes the one, which cuts the run; it goes with the thread. */
static int take_signal(struct trial *t)
{
	union {
		struct kvm_signal_mask head;
		char bytes[sizeof(struct kvm_signal_mask) + 8];
	} mask = {.head.len = 8};
	uint64_t blocked = ~(UINT64_C(1) << (STOP_SIGNAL - 1));
	memcpy(mask.bytes + sizeof(mask.head), &blocked, 8);
	return ioctl(t->vcpu, KVM_SET_SIGNAL_MASK, &mask) < 0 ? failed(t, "KVM_SET_SIGNAL_MASK") : 0;
}

static int run_guest(struct trial *t)
{
	int r = take_signal(t);
	if (r < 0)
		return r;
	int64_t begin = clock_monotonic(), own = own_time();
	r = ioctl(t->vcpu, KVM_RUN, 0) < 0 ? failed(t, "KVM_RUN") : 0;
	t->ns = clock_monotonic() - begin;
	t->own_ns = own_time() - own;
	if (r == 0 && t->run->exit_reason == KVM_EXIT_INTR)
		r = -EINTR;
	if (r == 0 && t->run->exit_reason != KVM_EXIT_IO) {
		t->what = "KVM_RUN came back otherwise than by the guest's end";
		r = -EIO;
	}
	return r;
}

static void *guest_thread(void *arg)
{
	struct trial *t = arg;
	int r = run_guest(t);
	pthread_mutex_lock(&t->lock);
	t->result = r;
	t->done = true;
	pthread_cond_signal(&t->finished);
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void wait_or_stop(struct trial *t, pthread_t thread)
{
	int64_t until = clock_monotonic() + LIMIT_MS * NS_PER_MS;
	const struct timespec at = {until / NS_PER_S, until % NS_PER_S};
	pthread_mutex_lock(&t->lock);
	while (!t->done && pthread_cond_clockwait(&t->finished, &t->lock, CLOCK_MONOTONIC, &at) == 0)
		;
	if (!t->done)
		pthread_kill(thread, STOP_SIGNAL);
	pthread_mutex_unlock(&t->lock);
	pthread_join(thread, NULL);
}

static void try(struct trial *t)
{
	pthread_t thread;
	sigset_t all, before;
	t->result = make_guest(t);
	if (t->result < 0)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	int r = pthread_create(&thread, NULL, guest_thread, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r) {
		errno = r;
		t->result = failed(t, "thread");
		return;
	}
	wait_or_stop(t, thread);
}

static enum vmm_probe judge(const struct trial *t, char *reason)
{
	if (t->result == -EINTR) {
		snprintf(reason, VMM_PROBE_REASON, "KVM interprets the guest's kernel: a million rounds of a loop in ring 0 took more than %d ms (hardware: about 1)", LIMIT_MS);
		return VMM_PROBE_INTERPRETED;
	}
	if (t->result < 0) {
		snprintf(reason, VMM_PROBE_REASON, "KVM does not work: %s: %s", t->what, strerror(-t->result));
		return VMM_PROBE_NONE;
	}
	bool slow = t->own_ns > SLOW_MS * NS_PER_MS;
	snprintf(reason, VMM_PROBE_REASON, "a million rounds of a loop in ring 0 of a guest took %lld us%s", (long long)(t->ns / NS_PER_US),
		slow ? ": KVM interprets the guest's kernel" : "");
	return slow ? VMM_PROBE_INTERPRETED : VMM_PROBE_HARDWARE;
}

enum vmm_probe vmm_probe(int kvm, char reason[VMM_PROBE_REASON])
{
	for (int i = 1;; i++) {
		struct trial t = {.system = kvm, .vm = -1, .vcpu = -1, .page = MAP_FAILED, .run = MAP_FAILED};
		pthread_mutex_init(&t.lock, NULL);
		pthread_cond_init(&t.finished, NULL);
		try(&t);
		enum vmm_probe answer = judge(&t, reason);
		end_guest(&t);
		pthread_cond_destroy(&t.finished);
		pthread_mutex_destroy(&t.lock);
		if (t.result != -EINTR || t.own_ns >= OWN_TIME_MS * NS_PER_MS || i == TRIALS)
			return answer;
	}
}
