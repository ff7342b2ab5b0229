#include "vmm/kvm.h"
#include "base/cleanup.h"
#include "vmm/layout.h"

#include <string.h>
#include <sys/ioctl.h>

int kvm_ioctl(int fd, unsigned long request, void *arg)
{
	int r;
	do
		r = ioctl(fd, request, arg);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

static int has(int fd, unsigned long capability)
{
	int r = ioctl(fd, KVM_CHECK_EXTENSION, capability);
	return r < 0 ? 0 : r;
}

static int check_capabilities(struct kvm *k, struct error *err)
{
	static const struct {
		unsigned long capability;
		const char *name;
	} needed[] = {
		{KVM_CAP_IRQCHIP, "IRQCHIP"},
		{KVM_CAP_USER_MEMORY, "USER_MEMORY"},
		{KVM_CAP_EXT_CPUID, "EXT_CPUID"},
		{KVM_CAP_MP_STATE, "MP_STATE"},
		{KVM_CAP_IRQ_ROUTING, "IRQ_ROUTING"},
		{KVM_CAP_IRQFD, "IRQFD"},
		{KVM_CAP_IOEVENTFD, "IOEVENTFD"},
		{KVM_CAP_ADJUST_CLOCK, "ADJUST_CLOCK"},
		{KVM_CAP_VCPU_EVENTS, "VCPU_EVENTS"},
		{KVM_CAP_DEBUGREGS, "DEBUGREGS"},
		{KVM_CAP_XSAVE, "XSAVE"},
		{KVM_CAP_IMMEDIATE_EXIT, "IMMEDIATE_EXIT"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
		if (!has(k->system, needed[i].capability))
			return error_set(err, -EOPNOTSUPP, 500, "this kernel's KVM lacks %s", needed[i].name);
	return 0;
}

/* What KVM on Intel needs somewhere in the guest's address space; elsewhere it is a word without effect. Before the first processor. */
static int reserve_pages(struct kvm *k, struct error *err)
{
	uint64_t identity = LAYOUT_IDENTITY_MAP;
	int r = 0;
	if (has(k->system, KVM_CAP_SET_IDENTITY_MAP_ADDR))
		r = kvm_ioctl(k->vm, KVM_SET_IDENTITY_MAP_ADDR, &identity);
	if (r >= 0 && has(k->system, KVM_CAP_SET_TSS_ADDR))
		r = kvm_ioctl(k->vm, KVM_SET_TSS_ADDR, (void *)(uintptr_t)LAYOUT_TSS);
	return r < 0 ? error_errno(err, r, "reserving pages for KVM") : 0;
}

/* All lines go to the IOAPIC alone. By itself KVM sends the first 16 to its PICs as well, which are unmasked, have no vectors, and are nothing that a guest without them in its tables knows of. */
static int route_lines(struct kvm *k, struct error *err)
{
	struct { /* as struct kvm_irq_routing */
		uint32_t n, flags;
		struct kvm_irq_routing_entry line[LAYOUT_GSI_END];
	} routes = {.n = LAYOUT_GSI_END};
	for (uint32_t i = 0; i < LAYOUT_GSI_END; i++)
		routes.line[i] = (struct kvm_irq_routing_entry){.gsi = i, .type = KVM_IRQ_ROUTING_IRQCHIP, .u.irqchip = {.irqchip = KVM_IRQCHIP_IOAPIC, .pin = i}};
	int r = kvm_ioctl(k->vm, KVM_SET_GSI_ROUTING, &routes);
	return r < 0 ? error_errno(err, r, "routing interrupts") : 0;
}

int kvm_init(struct kvm *k, int system, struct error *err)
{
	*k = (struct kvm){.system = system, .vm = -1};
	int r = kvm_ioctl(system, KVM_GET_API_VERSION, NULL);
	if (r != KVM_API_VERSION)
		return r < 0 ? error_errno(err, r, "no KVM") : error_set(err, -EOPNOTSUPP, 500, "KVM speaks version %d of its interface, not %d", r, KVM_API_VERSION);
	if ((r = check_capabilities(k, err)) < 0)
		return r;
	if ((r = kvm_ioctl(system, KVM_GET_VCPU_MMAP_SIZE, NULL)) < (int)sizeof(struct kvm_run))
		return error_errno(err, r < 0 ? r : -EPROTO, "KVM_GET_VCPU_MMAP_SIZE");
	k->run_size = (size_t)r;
	if ((k->vm = kvm_ioctl(system, KVM_CREATE_VM, NULL)) < 0)
		return error_errno(err, k->vm, "making a virtual machine");
	/* Asked of the machine: the size depends on what its processors may have. */
	k->xsave_size = (size_t)MAX(has(k->vm, KVM_CAP_XSAVE2), (int)sizeof(struct kvm_xsave));
	k->vcpus_max = (unsigned)MAX(has(k->vm, KVM_CAP_MAX_VCPUS), 1);
	k->tsc_deadline = has(k->vm, KVM_CAP_TSC_DEADLINE_TIMER);
	k->xcrs = has(k->vm, KVM_CAP_XCRS);
	k->tsc_control = has(k->vm, KVM_CAP_TSC_CONTROL);
	/* Performance counters would be a state to save, and a channel between guests. Without them in CPUID (cpuid.c) Intel's are gone, AMD's oldest are not. */
	if (has(k->vm, KVM_CAP_PMU_CAPABILITY) & KVM_PMU_CAP_DISABLE)
		kvm_ioctl(k->vm, KVM_ENABLE_CAP, &(struct kvm_enable_cap){.cap = KVM_CAP_PMU_CAPABILITY, .args = {KVM_PMU_CAP_DISABLE}});
	r = reserve_pages(k, err);
	if (r < 0)
		kvm_done(k);
	return r;
}

int kvm_add_interrupts(struct kvm *k, struct error *err)
{
	int r = kvm_ioctl(k->vm, KVM_CREATE_IRQCHIP, NULL);
	return r < 0 ? error_errno(err, r, "making the interrupt controller") : route_lines(k, err);
}

void kvm_done(struct kvm *k)
{
	if (k->vm >= 0)
		close(steal_fd(&k->vm));
}

int kvm_set_memory(struct kvm *k, const struct guest_memory *m, bool log_dirty, struct error *err)
{
	k->log_dirty = log_dirty;
	for (size_t i = 0; i < m->n; i++) {
		struct kvm_userspace_memory_region slot = {
			.slot = (uint32_t)i,
			.flags = log_dirty ? KVM_MEM_LOG_DIRTY_PAGES : 0,
			.guest_phys_addr = m->region[i].base,
			.memory_size = m->region[i].size,
			.userspace_addr = (uintptr_t)m->region[i].host,
		};
		int r = kvm_ioctl(k->vm, KVM_SET_USER_MEMORY_REGION, &slot);
		if (r < 0)
			return error_errno(err, r, "giving the guest its memory");
	}
	return 0;
}

int kvm_dirty(struct kvm *k, const struct guest_memory *m, size_t i, uint64_t *ret_bits)
{
	if (!k->log_dirty || i >= m->n)
		return -EINVAL;
	struct kvm_dirty_log log = {.slot = (uint32_t)i, .dirty_bitmap = ret_bits};
	int r = kvm_ioctl(k->vm, KVM_GET_DIRTY_LOG, &log);
	return r < 0 ? r : 0;
}

int kvm_line(struct kvm *k, unsigned gsi, int fd, struct error *err)
{
	struct kvm_irqfd line = {.fd = (uint32_t)fd, .gsi = gsi};
	int r = kvm_ioctl(k->vm, KVM_IRQFD, &line);
	return r < 0 ? error_errno(err, r, "interrupt line %u", gsi) : 0;
}

int kvm_doorbell(struct kvm *k, uint64_t address, int fd, struct error *err)
{
	struct kvm_ioeventfd bell = {.addr = address, .len = 4, .fd = fd};
	int r = kvm_ioctl(k->vm, KVM_IOEVENTFD, &bell);
	return r < 0 ? error_errno(err, r, "notifications at 0x%llx", (unsigned long long)address) : 0;
}

struct kvm_msr_list *kvm_msr_list(const struct kvm *k, struct error *err)
{
	enum { SANE = 4096 };
	struct kvm_msr_list count = {0};
	int r = kvm_ioctl(k->system, KVM_GET_MSR_INDEX_LIST, &count);
	if (r != -E2BIG || count.nmsrs > SANE) {
		error_errno(err, r < 0 ? r : -EPROTO, "KVM_GET_MSR_INDEX_LIST");
		return NULL;
	}
	cleanup_free struct kvm_msr_list *list = calloc(1, sizeof(*list) + count.nmsrs * sizeof(list->indices[0]));
	if (!list) {
		error_errno(err, -ENOMEM, "list of MSRs");
		return NULL;
	}
	list->nmsrs = count.nmsrs;
	if ((r = kvm_ioctl(k->system, KVM_GET_MSR_INDEX_LIST, list)) < 0) {
		error_errno(err, r, "KVM_GET_MSR_INDEX_LIST");
		return NULL;
	}
	return steal_pointer(&list);
}

/* As struct kvm_msrs. */
struct one_msr {
	uint32_t n, padding;
	struct kvm_msr_entry entry;
};

int kvm_get_msr(int vcpu, uint32_t index, uint64_t *ret)
{
	struct one_msr m = {.n = 1, .entry.index = index};
	int r = kvm_ioctl(vcpu, KVM_GET_MSRS, &m);
	if (r == 1)
		*ret = m.entry.data;
	return r == 1 ? 0 : r < 0 ? r : -EINVAL;
}

int kvm_set_msr(int vcpu, uint32_t index, uint64_t value)
{
	struct one_msr m = {.n = 1, .entry = {.index = index, .data = value}};
	int r = kvm_ioctl(vcpu, KVM_SET_MSRS, &m);
	return r == 1 ? 0 : r < 0 ? r : -EINVAL;
}
