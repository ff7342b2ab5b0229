#include "vmm/vcpu.h"
#include "base/cleanup.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

/* Who moves a processor on: its own thread, but for ASKING -> RUNNING (the loop). Guarded by vcpus.lock. */
enum vcpu_state {
	VCPU_STANDS,  /* waits for `go` */
	VCPU_RUNS,
	VCPU_ASKS,    /* waits for the loop to answer run->mmio */
	VCPU_ENDED,   /* waits for vcpus_free() */
};

struct vcpu {
	struct vcpus *all;
	struct kvm_run *run;
	pthread_t thread;
	pthread_cond_t wake; /* the state was changed, `going` or `quit` set */
	enum vcpu_state state;
	enum vcpu_end end;
	bool told;           /* of the end */
	int fd;
	char what[200];
};

struct vcpus {
	const struct kvm *kvm;
	const struct vcpu_bus *bus;
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a processor stands, asks, or has ended */
	bool going, quit;       /* under `lock` */
	int bell;               /* eventfd: the loop is to look */
	struct loop_fd *watch;
	unsigned n, started;
	struct vcpu vcpu[];
};

/* Makes KVM_RUN return, or not begin: of the thread that gets the signal. */
static _Thread_local struct kvm_run *this_run;

static void on_kick(int signal)
{
	if (this_run)
		__atomic_store_n(&this_run->immediate_exit, 1, __ATOMIC_SEQ_CST);
}

static int kick_signal(void)
{
	return SIGRTMIN;
}

static void ring(struct vcpus *v)
{
	uint64_t one = 1;
	ssize_t r = write(v->bell, &one, sizeof(one));
	(void)r;
}

/* The processor's thread. */

static void end(struct vcpu *c, enum vcpu_end why)
{
	if (c->end == VCPU_GOES_ON)
		c->end = why;
}

static void on_port(struct vcpu *c)
{
	struct kvm_run *run = c->run;
	const struct vcpus *v = c->all;
	char *at = (char *)run + run->io.data_offset;
	for (uint32_t i = 0; i < run->io.count; i++, at += run->io.size) {
		if (run->io.direction == KVM_EXIT_IO_IN)
			v->bus->port_read(v->arg, run->io.port, at, run->io.size);
		else
			end(c, v->bus->port_write(v->arg, run->io.port, at, run->io.size));
	}
}

static void on_memory(struct vcpu *c)
{
	struct vcpus *v = c->all;
	struct kvm_run *run = c->run;
	if (v->bus->quick(v->arg, run->mmio.phys_addr, run->mmio.is_write, run->mmio.data, run->mmio.len))
		return;
	pthread_mutex_lock(&v->lock);
	c->state = VCPU_ASKS;
	pthread_cond_signal(&v->changed);
	ring(v);
	while (c->state == VCPU_ASKS)
		pthread_cond_wait(&c->wake, &v->lock);
	pthread_mutex_unlock(&v->lock);
}

static void failed(struct vcpu *c)
{
	const struct kvm_run *run = c->run;
	size_t n = 0;
	if (run->exit_reason == KVM_EXIT_FAIL_ENTRY) {
		snprintf(c->what, sizeof(c->what), "the processor refused to enter the guest: hardware reason 0x%llx", (unsigned long long)run->fail_entry.hardware_entry_failure_reason);
	} else if (run->exit_reason == KVM_EXIT_INTERNAL_ERROR) {
		n = (size_t)snprintf(c->what, sizeof(c->what), "KVM internal error %u", run->internal.suberror);
		for (uint32_t i = 0; i < run->internal.ndata && i < ARRAY_SIZE(run->internal.data) && n < sizeof(c->what); i++)
			n += (size_t)snprintf(c->what + n, sizeof(c->what) - n, " 0x%llx", (unsigned long long)run->internal.data[i]);
	} else {
		snprintf(c->what, sizeof(c->what), "KVM left the guest for the unknown reason %u", run->exit_reason);
	}
	end(c, VCPU_FAILED);
}

static void on_exit_of_guest(struct vcpu *c)
{
	switch (c->run->exit_reason) {
	case KVM_EXIT_IO:
		on_port(c);
		break;
	case KVM_EXIT_MMIO:
		on_memory(c);
		break;
	case KVM_EXIT_INTR:
	case KVM_EXIT_IRQ_WINDOW_OPEN:
		break;
	case KVM_EXIT_SHUTDOWN:
		snprintf(c->what, sizeof(c->what), "triple fault");
		end(c, VCPU_RESET);
		break;
	case KVM_EXIT_SYSTEM_EVENT:
		end(c, c->run->system_event.type == KVM_SYSTEM_EVENT_SHUTDOWN ? VCPU_OFF : VCPU_RESET);
		break;
	default:
		failed(c);
	}
}

/* Once into the guest and back. False: it was not there, a signal wants the thread. */
static bool run(struct vcpu *c)
{
	if (ioctl(c->fd, KVM_RUN, 0) == 0) {
		on_exit_of_guest(c);
		return true;
	}
	if (errno != EINTR && errno != EAGAIN) {
		snprintf(c->what, sizeof(c->what), "KVM_RUN: %s", strerror(errno));
		if (c->run->exit_reason == KVM_EXIT_INTERNAL_ERROR || c->run->exit_reason == KVM_EXIT_FAIL_ENTRY)
			failed(c);
		end(c, VCPU_FAILED);
	}
	return false;
}

/* An access that was answered is finished by the next KVM_RUN: now, without a step of the guest's. It may be followed by its other half. */
static void finish_access(struct vcpu *c)
{
	do
		__atomic_store_n(&c->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
	while (c->end == VCPU_GOES_ON && run(c));
}

/* Waits until the processor may run, or is to run no more (false). */
static bool stand(struct vcpu *c)
{
	struct vcpus *v = c->all;
	pthread_mutex_lock(&v->lock);
	if (!v->going && !v->quit && c->end == VCPU_GOES_ON) {
		pthread_mutex_unlock(&v->lock);
		finish_access(c);
		pthread_mutex_lock(&v->lock);
	}
	while (!v->quit && (!v->going || c->end != VCPU_GOES_ON)) {
		enum vcpu_state state = c->end == VCPU_GOES_ON ? VCPU_STANDS : VCPU_ENDED;
		if (c->state != state) {
			c->state = state;
			pthread_cond_signal(&v->changed);
			if (state == VCPU_ENDED)
				ring(v);
		}
		pthread_cond_wait(&c->wake, &v->lock);
	}
	if (!v->quit)
		c->state = VCPU_RUNS;
	bool quit = v->quit;
	pthread_mutex_unlock(&v->lock);
	return !quit;
}

static void *vcpu_thread(void *arg)
{
	struct vcpu *c = arg;
	struct vcpus *v = c->all;
	this_run = c->run;
	if (v->bus->begin)
		v->bus->begin(v->arg, (unsigned)(c - v->vcpu));
	sigset_t kick;
	sigemptyset(&kick);
	sigaddset(&kick, kick_signal());
	pthread_sigmask(SIG_UNBLOCK, &kick, NULL);
	while (stand(c)) {
		for (;;) {
			if (!run(c)) {
				/* First the mark goes, then one looks: a stop that comes between sets the mark again. */
				__atomic_store_n(&c->run->immediate_exit, 0, __ATOMIC_SEQ_CST);
				break;
			}
			if (c->end != VCPU_GOES_ON)
				break;
		}
	}
	this_run = NULL;
	return NULL;
}

/* The loop's side. */

/* Answers all that ask. True when there was one. With the lock. */
static bool answer(struct vcpus *v)
{
	bool any = false;
	for (unsigned i = 0; i < v->n; i++) {
		struct vcpu *c = &v->vcpu[i];
		if (c->state != VCPU_ASKS)
			continue;
		pthread_mutex_unlock(&v->lock);
		v->bus->memory(v->arg, c->run->mmio.phys_addr, c->run->mmio.is_write, c->run->mmio.data, c->run->mmio.len);
		pthread_mutex_lock(&v->lock);
		c->state = VCPU_RUNS;
		pthread_cond_signal(&c->wake);
		any = true;
	}
	return any;
}

static void on_bell(struct loop_fd *w, uint32_t events, void *arg)
{
	struct vcpus *v = arg;
	uint64_t n;
	ssize_t r = read(v->bell, &n, sizeof(n));
	(void)r;
	struct vcpu *ended = NULL;
	pthread_mutex_lock(&v->lock);
	answer(v);
	for (unsigned i = 0; i < v->n && !ended; i++)
		if (v->vcpu[i].state == VCPU_ENDED && !v->vcpu[i].told)
			ended = &v->vcpu[i];
	if (ended)
		ended->told = true;
	pthread_mutex_unlock(&v->lock);
	if (ended) {
		ring(v); /* there may be more */
		v->bus->ended(v->arg, ended->end, ended->what);
	}
}

unsigned vcpus_count(const struct vcpus *v)
{
	return v->n;
}

int vcpus_fd(const struct vcpus *v, unsigned i)
{
	return v->vcpu[i].fd;
}

static int make_vcpu(struct vcpus *v, unsigned i, struct error *err)
{
	struct vcpu *c = &v->vcpu[i];
	*c = (struct vcpu){.all = v, .fd = kvm_ioctl(v->kvm->vm, KVM_CREATE_VCPU, (void *)(uintptr_t)i)};
	pthread_cond_init(&c->wake, NULL);
	v->n++;
	if (c->fd < 0)
		return error_errno(err, c->fd, "making processor %u", i);
	void *at = mmap(NULL, v->kvm->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
	if (at == MAP_FAILED)
		return error_errno(err, -errno, "processor %u", i);
	c->run = at;
	return 0;
}

struct vcpus *vcpus_new(struct loop *l, const struct kvm *k, unsigned n, const struct vcpu_bus *bus, void *arg, struct error *err)
{
	struct vcpus *v = calloc(1, sizeof(*v) + n * sizeof(v->vcpu[0]));
	if (!v) {
		error_errno(err, -ENOMEM, "processors");
		return NULL;
	}
	*v = (struct vcpus){.kvm = k, .bus = bus, .arg = arg, .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	pthread_mutex_init(&v->lock, NULL);
	pthread_cond_init(&v->changed, NULL);
	if (v->bell < 0 || !(v->watch = loop_fd_add(l, v->bell, EPOLLIN, on_bell, v))) {
		error_errno(err, -errno, "processors");
		vcpus_free(v);
		return NULL;
	}
	for (unsigned i = 0; i < n; i++)
		if (make_vcpu(v, i, err) < 0) {
			vcpus_free(v);
			return NULL;
		}
	return v;
}

/* Threads begin with all signals blocked: only the kick is theirs. */
int vcpus_start(struct vcpus *v, struct error *err)
{
	struct sigaction kick = {.sa_handler = on_kick, .sa_flags = SA_RESTART};
	sigset_t all, before;
	sigfillset(&all);
	if (sigaction(kick_signal(), &kick, NULL) < 0)
		return error_errno(err, -errno, "processors' signal");
	pthread_sigmask(SIG_BLOCK, &all, &before);
	int r = 0;
	while (r == 0 && v->started < v->n) {
		r = pthread_create(&v->vcpu[v->started].thread, NULL, vcpu_thread, &v->vcpu[v->started]);
		if (r == 0)
			v->started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r ? error_errno(err, -r, "processors' threads") : 0;
}

void vcpus_go(struct vcpus *v)
{
	pthread_mutex_lock(&v->lock);
	v->going = true;
	for (unsigned i = 0; i < v->n; i++)
		pthread_cond_signal(&v->vcpu[i].wake);
	pthread_mutex_unlock(&v->lock);
}

static bool all_stand(const struct vcpus *v)
{
	for (unsigned i = 0; i < v->started; i++)
		if (v->vcpu[i].state == VCPU_RUNS || v->vcpu[i].state == VCPU_ASKS)
			return false;
	return true;
}

void vcpus_stop(struct vcpus *v)
{
	pthread_mutex_lock(&v->lock);
	v->going = false;
	for (unsigned i = 0; i < v->started; i++)
		pthread_kill(v->vcpu[i].thread, kick_signal());
	while (!all_stand(v))
		if (!answer(v))
			pthread_cond_wait(&v->changed, &v->lock);
	pthread_mutex_unlock(&v->lock);
}

void vcpus_free(struct vcpus *v)
{
	if (!v)
		return;
	if (v->started)
		vcpus_stop(v);
	pthread_mutex_lock(&v->lock);
	v->quit = true;
	for (unsigned i = 0; i < v->n; i++)
		pthread_cond_signal(&v->vcpu[i].wake);
	pthread_mutex_unlock(&v->lock);
	for (unsigned i = 0; i < v->started; i++)
		pthread_join(v->vcpu[i].thread, NULL);
	loop_fd_del(v->watch);
	if (v->bell >= 0)
		close(v->bell);
	for (unsigned i = 0; i < v->n; i++) {
		struct vcpu *c = &v->vcpu[i];
		if (c->run)
			munmap(c->run, v->kvm->run_size);
		if (c->fd >= 0)
			close(c->fd);
		pthread_cond_destroy(&c->wake);
	}
	pthread_cond_destroy(&v->changed);
	pthread_mutex_destroy(&v->lock);
	free(v);
}
