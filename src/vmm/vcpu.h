/*
 * The guest's processors: a thread each, which is in the kernel's KVM_RUN nearly always. What the guest does to ports and to addresses without memory goes to a bus.
 *
 * They are stopped and set going from the loop's thread. While they stand, none of them has an access to a port or to memory under way, so their state can be read.
 */
#ifndef CUBICLE_VMM_VCPU_H
#define CUBICLE_VMM_VCPU_H

#include "io/loop.h"
#include "vmm/kvm.h"

enum vcpu_end {
	VCPU_GOES_ON,
	VCPU_OFF,    /* the guest turned itself off */
	VCPU_RESET,  /* it reset itself: asked for it, or a triple fault */
	VCPU_FAILED, /* KVM cannot go on */
};

/* What is around the processors. n: 1, 2, 4 or 8 bytes. */
struct vcpu_bus {
	/* In the processors' threads, at the same time. They allocate nothing: with many threads the C library's allocator makes system calls that the jail has no reason to allow. */
	void (*begin)(void *arg, unsigned i); /* first thing in processor i's thread; may be NULL */
	void (*port_read)(void *arg, uint16_t port, void *to, unsigned n);
	enum vcpu_end (*port_write)(void *arg, uint16_t port, const void *from, unsigned n);
	bool (*quick)(void *arg, uint64_t address, bool write, void *data, unsigned n); /* true: done */
	/* On the loop, while the processor waits: what was not quick. */
	void (*memory)(void *arg, uint64_t address, bool write, void *data, unsigned n);
	/* On the loop: a processor has ended (why is not VCPU_GOES_ON); the others run still. `what` says more, for the log. */
	void (*ended)(void *arg, enum vcpu_end why, const char *what);
};

struct vcpus;

/* `n` processors that stand. Their state is the caller's to set (vcpus_fd) before vcpus_go(). NULL with *err. */
struct vcpus *vcpus_new(struct loop *l, const struct kvm *k, unsigned n, const struct vcpu_bus *bus, void *arg, struct error *err);
/* Takes NULL. Stops them first. */
void vcpus_free(struct vcpus *v);

unsigned vcpus_count(const struct vcpus *v);
/* The processor's descriptor, for its state. */
int vcpus_fd(const struct vcpus *v, unsigned i);

/* Makes the threads; the processors stand still. 0 or -errno. */
int vcpus_start(struct vcpus *v, struct error *err);
/* Sets all going. */
void vcpus_go(struct vcpus *v);
/* Stops all; when this returns they stand. Answers what they ask meanwhile. */
void vcpus_stop(struct vcpus *v);

#endif
