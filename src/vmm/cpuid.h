/* What a guest's processors say of themselves (the CPUID instruction; Intel SDM vol. 2A and AMD APM vol. 3 have the leaves). */
#ifndef CUBICLE_VMM_CPUID_H
#define CUBICLE_VMM_CPUID_H

#include "vmm/kvm.h"

enum { CPUID_ENTRIES_MAX = 256 };

/* As struct kvm_cpuid2, with room. */
struct cpuid {
	uint32_t n, padding;
	struct kvm_cpuid_entry2 entry[CPUID_ENTRIES_MAX];
};

/* What this machine's KVM can give to the processors of a guest that has so many: the same for all but for cpuid_number(). 0 or -errno. */
int cpuid_make(const struct kvm *k, unsigned vcpus, struct cpuid *ret, struct error *err);
/* Changes what KVM supports into what a guest is given; part of the above, for tests. */
void cpuid_adjust(struct cpuid *c, unsigned vcpus, bool tsc_deadline);
/* Numbers the table for the processor: its APIC id. */
void cpuid_number(struct cpuid *c, uint32_t id);

/* May a guest that was given `given` go on on a machine that would give `here`? 0, or -EXDEV and which CPU differs in what. */
int cpuid_check(const struct cpuid *here, const struct cpuid *given, struct error *err);

/* The entry, or NULL. */
struct kvm_cpuid_entry2 *cpuid_find(struct cpuid *c, uint32_t leaf, uint32_t subleaf);

#endif
