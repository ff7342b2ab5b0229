#include "vmm/cpuid.h"
#include "base/cleanup.h"
#include "base/str.h"

#include <stdio.h>

#define BIT(n) (UINT32_C(1) << (n))

enum {
	LEAF_FEATURES = 1,
	LEAF_CACHES = 4,
	LEAF_MORE_FEATURES = 7,
	LEAF_PERFORMANCE = 0xa,
	LEAF_TOPOLOGY = 0xb,
	LEAF_XSAVE = 0xd,
	LEAF_ENCLAVES = 0x12,
	LEAF_TOPOLOGY_2 = 0x1f,
};
#define LEAF_KVM_FEATURES 0x40000001u
#define LEAF_AMD_FEATURES 0x80000001u
#define LEAF_AMD_SIZES 0x80000008u
#define LEAF_AMD_SVM 0x8000000au
#define LEAF_AMD_CACHES 0x8000001du
#define LEAF_AMD_TOPOLOGY 0x8000001eu
#define LEAF_AMD_PERFORMANCE 0x80000022u

struct kvm_cpuid_entry2 *cpuid_find(struct cpuid *c, uint32_t leaf, uint32_t subleaf)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct kvm_cpuid_entry2 *e = &c->entry[i];
		if (e->function == leaf && (!(e->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) || e->index == subleaf))
			return e;
	}
	return NULL;
}

static void drop(struct cpuid *c, uint32_t leaf)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < c->n; i++)
		if (c->entry[i].function != leaf)
			c->entry[kept++] = c->entry[i];
	c->n = kept;
}

static void add(struct cpuid *c, const struct kvm_cpuid_entry2 *e)
{
	if (c->n < CPUID_ENTRIES_MAX)
		c->entry[c->n++] = *e;
}

/* Bits of an APIC id that count processors. */
static unsigned id_bits(unsigned vcpus)
{
	unsigned bits = 0;
	while ((1u << bits) < vcpus)
		bits++;
	return bits;
}

static bool is_amd(struct cpuid *c)
{
	const struct kvm_cpuid_entry2 *e = cpuid_find(c, 0, 0);
	/* "AuthenticAMD", "HygonGenuine" */
	return e && (e->ebx == 0x68747541 || e->ebx == 0x6f677948);
}

static void adjust_features(struct cpuid *c, unsigned vcpus, bool tsc_deadline)
{
	struct kvm_cpuid_entry2 *e = cpuid_find(c, LEAF_FEATURES, 0);
	if (e) {
		e->ecx |= BIT(31) | BIT(21); /* under a hypervisor: KVM does not say so by itself, and Linux would not look for its clock; x2APIC */
		e->ecx &= ~(BIT(5) | BIT(3) | BIT(27)); /* no VMX, no MONITOR; OSXSAVE is KVM's to set */
		if (tsc_deadline)
			e->ecx |= BIT(24);
		e->ebx = (e->ebx & 0xff00) | vcpus << 16;
		e->edx = vcpus > 1 ? e->edx | BIT(28) : e->edx & ~BIT(28);
	}
	if ((e = cpuid_find(c, LEAF_MORE_FEATURES, 0)) != NULL) {
		e->ebx &= ~BIT(2); /* no SGX */
		e->ecx &= ~BIT(30);
	}
	if ((e = cpuid_find(c, LEAF_AMD_FEATURES, 0)) != NULL)
		e->ecx &= ~(BIT(2) | BIT(23) | BIT(24)); /* no SVM, no performance counters */
	/* Counters would be a state to save, and a channel between guests. */
	if ((e = cpuid_find(c, LEAF_PERFORMANCE, 0)) != NULL)
		e->eax = e->ebx = e->ecx = e->edx = 0;
	drop(c, LEAF_ENCLAVES);
	drop(c, LEAF_AMD_SVM);
	drop(c, LEAF_AMD_PERFORMANCE);
}

/* One socket of `vcpus` cores with a thread each; the caches of the first two levels are a core's own. */
static void adjust_topology(struct cpuid *c, unsigned vcpus)
{
	unsigned bits = id_bits(vcpus);
	bool amd = is_amd(c);
	const struct kvm_cpuid_entry2 *first = cpuid_find(c, 0, 0);
	uint32_t last_leaf = first ? first->eax : 0;
	drop(c, LEAF_TOPOLOGY);
	drop(c, LEAF_TOPOLOGY_2);
	if (last_leaf >= LEAF_TOPOLOGY) {
		const uint32_t flag = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
		add(c, &(struct kvm_cpuid_entry2){.function = LEAF_TOPOLOGY, .index = 0, .flags = flag, .eax = 0, .ebx = 1, .ecx = 0 | 1 << 8});
		add(c, &(struct kvm_cpuid_entry2){.function = LEAF_TOPOLOGY, .index = 1, .flags = flag, .eax = bits, .ebx = vcpus, .ecx = 1 | 2 << 8});
		add(c, &(struct kvm_cpuid_entry2){.function = LEAF_TOPOLOGY, .index = 2, .flags = flag, .ecx = 2});
	}
	for (uint32_t i = 0; i < c->n; i++) {
		struct kvm_cpuid_entry2 *e = &c->entry[i];
		if ((e->function == LEAF_CACHES || e->function == LEAF_AMD_CACHES) && (e->eax & 0x1f)) {
			bool shared = (e->eax >> 5 & 7) >= 3;
			e->eax = (e->eax & 0x3fff) | (shared ? (vcpus - 1) << 14 : 0);
			if (e->function == LEAF_CACHES)
				e->eax |= (BIT(bits) - 1) << 26; /* ids of cores that a socket has room for, less one */
		} else if (e->function == LEAF_AMD_SIZES && amd) {
			e->ecx = bits << 12 | (vcpus - 1);
		} else if (e->function == LEAF_AMD_TOPOLOGY) {
			e->ebx = e->ecx = 0;
		}
	}
}

void cpuid_adjust(struct cpuid *c, unsigned vcpus, bool tsc_deadline)
{
	adjust_features(c, vcpus, tsc_deadline);
	adjust_topology(c, vcpus);
	cpuid_number(c, 0);
}

void cpuid_number(struct cpuid *c, uint32_t id)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct kvm_cpuid_entry2 *e = &c->entry[i];
		if (e->function == LEAF_FEATURES) {
			e->ebx = (e->ebx & 0x00ffffff) | id << 24;
		} else if (e->function == LEAF_TOPOLOGY) {
			e->edx = id;
		} else if (e->function == LEAF_AMD_TOPOLOGY) {
			e->eax = id;
			e->ebx = id & 0xff;
		}
	}
}

int cpuid_make(const struct kvm *k, unsigned vcpus, struct cpuid *ret, struct error *err)
{
	*ret = (struct cpuid){.n = CPUID_ENTRIES_MAX};
	int r = kvm_ioctl(k->system, KVM_GET_SUPPORTED_CPUID, ret);
	if (r < 0)
		return error_errno(err, r, "KVM_GET_SUPPORTED_CPUID");
	cpuid_adjust(ret, vcpus, k->tsc_deadline);
	return 0;
}

/* Leaves and registers that are sets of features: all of what was given has to be there. */
static const struct {
	uint32_t leaf, subleaf;
	unsigned registers; /* bit 0 eax, 1 ebx, 2 ecx, 3 edx */
} feature_words[] = {
	{LEAF_FEATURES, 0, 1 << 2 | 1 << 3},
	{LEAF_MORE_FEATURES, 0, 1 << 1 | 1 << 2 | 1 << 3},
	{LEAF_MORE_FEATURES, 1, 1 << 0 | 1 << 3},
	{LEAF_XSAVE, 0, 1 << 0 | 1 << 3},
	{LEAF_XSAVE, 1, 1 << 0 | 1 << 2},
	{LEAF_KVM_FEATURES, 0, 1 << 0},
	{LEAF_AMD_FEATURES, 0, 1 << 2 | 1 << 3},
	{0x80000007u, 0, 1 << 3},
	{LEAF_AMD_SIZES, 0, 1 << 1},
};

static uint32_t word(const struct kvm_cpuid_entry2 *e, unsigned i)
{
	if (!e)
		return 0;
	return i == 0 ? e->eax : i == 1 ? e->ebx : i == 2 ? e->ecx : e->edx;
}

static void describe(struct cpuid *c, char to[64])
{
	const struct kvm_cpuid_entry2 *vendor = cpuid_find(c, 0, 0), *model = cpuid_find(c, LEAF_FEATURES, 0);
	uint32_t name[3] = {word(vendor, 1), word(vendor, 3), word(vendor, 2)}, v = word(model, 0);
	char text[13] = "";
	memcpy(text, name, 12);
	for (char *p = text; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	unsigned family = v >> 8 & 0xf;
	snprintf(to, 64, "%s family %u model %u stepping %u", text, family == 15 ? family + (v >> 20 & 0xff) : family, (v >> 4 & 0xf) | (v >> 12 & 0xf0), v & 0xf);
}

int cpuid_check(const struct cpuid *here_, const struct cpuid *given_, struct error *err)
{
	struct cpuid *here = (struct cpuid *)here_, *given = (struct cpuid *)given_;
	char a[64], b[64];
	describe(given, a);
	describe(here, b);
	if (strcmp(a, b) != 0)
		return error_set(err, -EXDEV, 500, "the state is of a guest on another CPU: %s; this one is %s", a, b);
	for (size_t i = 0; i < ARRAY_SIZE(feature_words); i++) {
		uint32_t leaf = feature_words[i].leaf, subleaf = feature_words[i].subleaf;
		const struct kvm_cpuid_entry2 *was = cpuid_find(given, leaf, subleaf), *is = cpuid_find(here, leaf, subleaf);
		for (unsigned r = 0; r < 4; r++)
			if (feature_words[i].registers & 1 << r && word(was, r) & ~word(is, r))
				return error_set(err, -EXDEV, 500, "the state is of a guest that was given features which this CPU or kernel lacks: CPUID 0x%x.%u %s 0x%x", leaf,
					subleaf, (const char *[]){"eax", "ebx", "ecx", "edx"}[r], word(was, r) & ~word(is, r));
	}
	return 0;
}
