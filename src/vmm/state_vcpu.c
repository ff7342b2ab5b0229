#include "vmm/state_vcpu.h"
#include "base/cleanup.h"

#include <string.h>

enum {
	IRQCHIPS = 3, /* the two PICs, the IOAPIC */
	XSAVE_MAX = 1 << 20,
	MSRS_MAX = 4096,
	MSR_TSC_DEADLINE = 0x6e0,
};

/* Not in the kernel's list, but a processor's memory types are a state. */
static const uint32_t memory_types[] = {0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, 0x208, 0x209, 0x20a, 0x20b, 0x20c, 0x20d, 0x20e, 0x20f, 0x250, 0x258, 0x259, 0x268, 0x269,
	0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f, 0x2ff};

/* What is a struct of a fixed size: how it is read, how it is written. In the order of reading. */
static const struct part {
	enum state_kind kind;
	const char *name;
	unsigned long get, set;
	size_t size;
} parts[] = {
	/* First: reading it lets KVM take in what waits for the processor (INIT, SIPI). */
	{STATE_MP_STATE, "MP_STATE", KVM_GET_MP_STATE, KVM_SET_MP_STATE, sizeof(struct kvm_mp_state)},
	{STATE_REGS, "REGS", KVM_GET_REGS, KVM_SET_REGS, sizeof(struct kvm_regs)},
	{STATE_SREGS, "SREGS", KVM_GET_SREGS, KVM_SET_SREGS, sizeof(struct kvm_sregs)},
	{STATE_XCRS, "XCRS", KVM_GET_XCRS, KVM_SET_XCRS, sizeof(struct kvm_xcrs)},
	{STATE_DEBUGREGS, "DEBUGREGS", KVM_GET_DEBUGREGS, KVM_SET_DEBUGREGS, sizeof(struct kvm_debugregs)},
	{STATE_LAPIC, "LAPIC", KVM_GET_LAPIC, KVM_SET_LAPIC, sizeof(struct kvm_lapic_state)},
	{STATE_EVENTS, "VCPU_EVENTS", KVM_GET_VCPU_EVENTS, KVM_SET_VCPU_EVENTS, sizeof(struct kvm_vcpu_events)},
};

union any_part {
	struct kvm_mp_state mp_state;
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debugregs;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
};

uint32_t state_tsc_khz(const struct vcpus *v)
{
	int r = kvm_ioctl(vcpus_fd(v, 0), KVM_GET_TSC_KHZ, NULL);
	return r > 0 ? (uint32_t)r : 0;
}

/* MSRs: those that cannot be read are left out. */

static void save_msr(int vcpu, uint32_t index, struct buf *to)
{
	uint64_t value;
	if (kvm_get_msr(vcpu, index, &value) < 0)
		return;
	state_put(to, index, 4);
	state_put(to, value, 8);
}

static int save_msrs(const struct kvm_msr_list *list, int vcpu, unsigned i, struct buf *to)
{
	cleanup_buf struct buf b = BUF_INIT;
	for (uint32_t k = 0; k < list->nmsrs; k++)
		if (list->indices[k] != MSR_TSC_DEADLINE)
			save_msr(vcpu, list->indices[k], &b);
	for (size_t k = 0; k < ARRAY_SIZE(memory_types); k++)
		save_msr(vcpu, memory_types[k], &b);
	/* The last: a deadline that was set before the rest is forgotten again. */
	save_msr(vcpu, MSR_TSC_DEADLINE, &b);
	if (b.failed)
		return -ENOMEM;
	state_add(to, STATE_MSRS, i, b.data + b.start, buf_len(&b));
	return 0;
}

static int restore_msrs(int vcpu, unsigned i, struct str file, struct error *err)
{
	struct str rest;
	uint64_t index, value, is;
	int r = state_find(file, STATE_MSRS, i, &rest, err);
	if (r == 0 && rest.n > MSRS_MAX * 12)
		r = error_set(err, -EINVAL, 500, "saved state: too much of processor %u", i);
	while (r == 0 && state_take(&rest, 4, &index) && state_take(&rest, 8, &value))
		/* One that cannot be set is no matter when it has that value anyway. */
		if ((r = kvm_set_msr(vcpu, (uint32_t)index, value)) < 0) {
			if (kvm_get_msr(vcpu, (uint32_t)index, &is) == 0 && is == value)
				r = 0;
			else
				error_errno(err, r, "processor %u: MSR 0x%x to 0x%llx", i, (unsigned)index, (unsigned long long)value);
		}
	return r;
}

/* A processor. */

static int save_xsave(const struct kvm *k, int vcpu, unsigned i, struct buf *to, struct error *err)
{
	cleanup_free void *area = calloc(1, k->xsave_size);
	if (!area)
		return error_errno(err, -ENOMEM, "processor %u", i);
	int r = kvm_ioctl(vcpu, k->xsave_size > sizeof(struct kvm_xsave) ? KVM_GET_XSAVE2 : KVM_GET_XSAVE, area);
	if (r < 0)
		return error_errno(err, r, "processor %u: KVM_GET_XSAVE", i);
	state_add(to, STATE_XSAVE, i, area, k->xsave_size);
	return 0;
}

static int restore_xsave(const struct kvm *k, int vcpu, unsigned i, struct str file, struct error *err)
{
	struct str block;
	int r = state_find(file, STATE_XSAVE, i, &block, err);
	if (r < 0)
		return r;
	if (block.n > XSAVE_MAX)
		return error_set(err, -EINVAL, 500, "saved state: too much of processor %u", i);
	/* The kernel reads as much as this machine has. */
	cleanup_free void *area = calloc(1, MAX(block.n, k->xsave_size));
	if (!area)
		return error_errno(err, -ENOMEM, "processor %u", i);
	memcpy(area, block.p, block.n);
	r = kvm_ioctl(vcpu, KVM_SET_XSAVE, area);
	return r < 0 ? error_errno(err, r, "processor %u: KVM_SET_XSAVE", i) : 0;
}

static int save_vcpu(const struct kvm *k, const struct kvm_msr_list *list, int vcpu, unsigned i, struct buf *to, struct error *err)
{
	for (size_t p = 0; p < ARRAY_SIZE(parts); p++) {
		union any_part any = {0};
		if (parts[p].kind == STATE_XCRS && !k->xcrs)
			continue;
		int r = kvm_ioctl(vcpu, parts[p].get, &any);
		if (r < 0)
			return error_errno(err, r, "processor %u: KVM_GET_%s", i, parts[p].name);
		state_add(to, parts[p].kind, i, &any, parts[p].size);
	}
	int r = save_xsave(k, vcpu, i, to, err);
	if (r == 0 && (r = save_msrs(list, vcpu, i, to)) < 0)
		error_errno(err, r, "processor %u", i);
	return r;
}

static int restore_part(int vcpu, unsigned i, enum state_kind kind, struct str file, struct error *err)
{
	union any_part any;
	const struct part *p = parts;
	while (p->kind != kind)
		p++;
	int r = state_get(file, kind, i, &any, p->size, err);
	if (r < 0)
		return r;
	r = kvm_ioctl(vcpu, p->set, &any);
	return r < 0 ? error_errno(err, r, "processor %u: KVM_SET_%s", i, p->name) : 0;
}

/* The order is one that works: the local APIC is of the mode that SREGS sets, its timer is lost when the MSRs come before it, and the events are what is changed by the rest. */
static int restore_vcpu(const struct kvm *k, int vcpu, unsigned i, struct cpuid *cpuid, struct str file, struct error *err)
{
	cpuid_number(cpuid, i);
	int r = kvm_ioctl(vcpu, KVM_SET_CPUID2, cpuid);
	if (r < 0)
		return error_errno(err, r, "processor %u: KVM_SET_CPUID2", i);
	if ((r = restore_part(vcpu, i, STATE_SREGS, file, err)) < 0 || (r = restore_part(vcpu, i, STATE_REGS, file, err)) < 0 ||
		(k->xcrs && (r = restore_part(vcpu, i, STATE_XCRS, file, err)) < 0) || (r = restore_xsave(k, vcpu, i, file, err)) < 0 ||
		(r = restore_part(vcpu, i, STATE_LAPIC, file, err)) < 0 || (r = restore_msrs(vcpu, i, file, err)) < 0 ||
		(r = restore_part(vcpu, i, STATE_DEBUGREGS, file, err)) < 0 || (r = restore_part(vcpu, i, STATE_EVENTS, file, err)) < 0)
		return r;
	return restore_part(vcpu, i, STATE_MP_STATE, file, err);
}

/* The machine. */

int state_save_kernel(const struct kvm *k, const struct vcpus *v, struct buf *to, struct error *err)
{
	cleanup_free struct kvm_msr_list *list = kvm_msr_list(k, err);
	if (!list)
		return -EIO;
	for (unsigned i = 0; i < vcpus_count(v); i++) {
		int r = save_vcpu(k, list, vcpus_fd(v, i), i, to, err);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < IRQCHIPS; i++) {
		struct kvm_irqchip chip = {.chip_id = i};
		int r = kvm_ioctl(k->vm, KVM_GET_IRQCHIP, &chip);
		if (r < 0)
			return error_errno(err, r, "KVM_GET_IRQCHIP %u", i);
		state_add(to, STATE_IRQCHIP, i, &chip, sizeof(chip));
	}
	struct kvm_clock_data clock = {0};
	int r = kvm_ioctl(k->vm, KVM_GET_CLOCK, &clock);
	if (r < 0)
		return error_errno(err, r, "KVM_GET_CLOCK");
	state_add(to, STATE_CLOCK, 0, &clock, sizeof(clock));
	return 0;
}

/* The guest's monotonic clock goes on from where it stood: without the flag that would add the time that has passed on the wall. */
static int restore_clock(const struct kvm *k, struct str file, struct error *err)
{
	struct kvm_clock_data was, clock = {0};
	int r = state_get(file, STATE_CLOCK, 0, &was, sizeof(was), err);
	if (r < 0)
		return r;
	clock.clock = was.clock;
	r = kvm_ioctl(k->vm, KVM_SET_CLOCK, &clock);
	return r < 0 ? error_errno(err, r, "KVM_SET_CLOCK") : 0;
}

int state_restore_kernel(const struct kvm *k, const struct vcpus *v, struct cpuid *cpuid, struct str file, struct error *err)
{
	for (uint32_t i = 0; i < IRQCHIPS; i++) {
		struct kvm_irqchip chip;
		int r = state_get(file, STATE_IRQCHIP, i, &chip, sizeof(chip), err);
		if (r < 0)
			return r;
		chip.chip_id = i;
		if ((r = kvm_ioctl(k->vm, KVM_SET_IRQCHIP, &chip)) < 0)
			return error_errno(err, r, "KVM_SET_IRQCHIP %u", i);
	}
	int r = restore_clock(k, file, err);
	for (unsigned i = 0; r == 0 && i < vcpus_count(v); i++)
		r = restore_vcpu(k, vcpus_fd(v, i), i, cpuid, file, err);
	return r;
}
