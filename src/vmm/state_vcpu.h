/* The part of a saved state that is the kernel's: processors, interrupt controller, clock. */
#ifndef CUBICLE_VMM_STATE_VCPU_H
#define CUBICLE_VMM_STATE_VCPU_H

#include "vmm/cpuid.h"
#include "vmm/state_file.h"
#include "vmm/vcpu.h"

/* Appends the blocks; the processors stand. 0 or -errno. */
int state_save_kernel(const struct kvm *k, const struct vcpus *v, struct buf *to, struct error *err);
/* From a checked file into processors that never ran; `cpuid` is what they were given, its numbers are changed. 0 or -errno. */
int state_restore_kernel(const struct kvm *k, const struct vcpus *v, struct cpuid *cpuid, struct str file, struct error *err);

/* How fast the processors' time-stamp counters run, kHz; 0 = unknown. */
uint32_t state_tsc_khz(const struct vcpus *v);

#endif
