/* The kernel's virtual machine: its making, its memory, its interrupts. Its processors are vcpu.h's. */
#ifndef CUBICLE_VMM_KVM_H
#define CUBICLE_VMM_KVM_H

#include "vmm/memory.h"

#include <linux/kvm.h>
#include <stdbool.h>

struct kvm {
	int system;       /* /dev/kvm; not owned */
	int vm;
	size_t run_size;  /* of a processor's struct kvm_run */
	size_t xsave_size;
	unsigned vcpus_max;
	bool xcrs;        /* the processor has XSAVE, and thus a register XCR0 */
	bool tsc_deadline, tsc_control, log_dirty;
};

/* A machine with nothing in it: from a descriptor of /dev/kvm, which stays the caller's and open until kvm_done(). Every capability needed is looked
 * for, and the error says which is missing. 0 or -errno. */
int kvm_init(struct kvm *k, int system, struct error *err);
/* Its interrupt controller, after its memory, which some kernels take many times as long to register once there is one; before its processors. 0 or -errno. */
int kvm_add_interrupts(struct kvm *k, struct error *err);
void kvm_done(struct kvm *k);

/* Gives the machine its memory; with log_dirty kvm_dirty() works. 0 or -errno. */
int kvm_set_memory(struct kvm *k, const struct guest_memory *m, bool log_dirty, struct error *err);
/* Which pages of region i the guest has written since the last call: a bit each, size / 4096 / 64 words. What the monitor itself writes is not in it. 0 or -errno. */
int kvm_dirty(struct kvm *k, const struct guest_memory *m, size_t i, uint64_t *ret_bits);

/* Whatever is written to the eventfd `fd` is an (edge) interrupt on the line. 0 or -errno. */
int kvm_line(struct kvm *k, unsigned gsi, int fd, struct error *err);
/* A write of 4 bytes to the address writes the eventfd and nobody else hears of it. 0 or -errno. */
int kvm_doorbell(struct kvm *k, uint64_t address, int fd, struct error *err);

/* ioctl() through EINTR: its answer or -errno. */
int kvm_ioctl(int fd, unsigned long request, void *arg);

/* The list of the MSRs that this kernel would save, allocated; freed by the caller. NULL with *err. */
struct kvm_msr_list *kvm_msr_list(const struct kvm *k, struct error *err);

/* A processor's model-specific register. 0 or -errno: -EINVAL when it has none of that number, or not with that value. */
int kvm_get_msr(int vcpu, uint32_t index, uint64_t *ret);
int kvm_set_msr(int vcpu, uint32_t index, uint64_t value);

#endif
