#include "vmm_mini.h"
#include "base/cleanup.h"
#include "vmm/acpi.h"
#include "vmm/layout.h"

#include <string.h>

/* Where things are. */
enum { PORTS = 0x68 }; /* in the TSS: a bit for each port that ring 3 must not use */
enum { PML4 = 0x1000, PDPT = 0x2000, PD_LOW = 0x3000, PD_HIGH = 0x4000, GDT = 0x5000, IDT = 0x6000, TSS = 0x7000, TSS_LIMIT = PORTS + 8192, STACK = 0x30000 };

/* r8: the data, r9: the first device's page. */
__asm__(".pushsection .rodata\n"
	".globl mini_begin, mini_handler, mini_count, mini_quiet, mini_accesses, mini_dirties, mini_serial, mini_off, mini_faults, mini_wild, "
	"mini_waits, mini_reads, mini_inputs, mini_rings, mini_pokes, mini_end\n"
	"mini_begin:\n"
	"mini_handler:\n"
	"	lock incq 8(%r8)\n"
	"	iretq\n"
	"say:\n"
	"	mov $0x510, %dx\n"
	"	out %al, %dx\n"
	"mini_quiet:\n"
	"1:	lock incq (%r8)\n"
	"	pause\n"
	"	jmp 1b\n"
	"mini_count:\n"
	"	mov $'c', %al\n"
	"	jmp say\n"
	"mini_accesses:\n"
	"	mov $0x520, %dx\n"
	"	in %dx, %eax\n"
	"	mov %eax, 16(%r8)\n"
	"	mov 0x60(%r9), %eax\n"
	"	mov %eax, 20(%r8)\n"
	"	mov 0x100(%r9), %eax\n"
	"	mov %eax, 24(%r8)\n"
	"	mov $0x11223344, %eax\n"
	"	mov %eax, 0x104(%r9)\n"
	"	mov $5, %eax\n"
	"	mov %eax, 0x50(%r9)\n"
	"	mov $'a', %al\n"
	"	jmp say\n"
	"mini_dirties:\n"
	"	movb $1, 0x40000\n"
	"	movb $1, 0x42000\n"
	"	mov $'d', %al\n"
	"	jmp say\n"
	"mini_serial:\n"
	"	mov $0x3f8, %dx\n"
	"	mov $'m', %al\n	out %al, %dx\n"
	"	mov $'i', %al\n	out %al, %dx\n"
	"	mov $'n', %al\n	out %al, %dx\n"
	"	mov $'i', %al\n	out %al, %dx\n"
	"	mov $10, %al\n	out %al, %dx\n"
	"	mov $'s', %al\n"
	"	jmp say\n"
	"mini_off:\n"
	"	mov $0x600, %dx\n"
	"	mov $0x34, %al\n"
	"	out %al, %dx\n"
	"	jmp say\n"
	"mini_faults:\n"
	"	ud2\n"
	"mini_wild:\n"
	"	jmp *%r9\n"
	"mini_waits:\n"
	"1:	lock incq (%r8)\n"
	"	pause\n"
	"	mov 28(%r8), %ecx\n"
	"	test %ecx, %ecx\n"
	"	jz 1b\n"
	"	cmp $1, %ecx\n"
	"	je mini_off\n"
	"	mov $0x3f8, %dx\n"
	"	mov $'m', %al\n	out %al, %dx\n"
	"	mov $10, %al\n	out %al, %dx\n"
	"	cmp $2, %ecx\n"
	"	je mini_off\n"
	"	jmp mini_quiet\n"
	"mini_reads:\n"
	"	mov 32(%r8), %rbx\n"
	"1:	mov (%rbx), %eax\n"
	"	lock incq (%r8)\n"
	"	jmp 1b\n"
	"mini_inputs:\n"
	"	mov 32(%r8), %rdx\n"
	"1:	in %dx, %al\n"
	"	lock incq (%r8)\n"
	"	jmp 1b\n"
	"mini_rings:\n"
	"	mov 32(%r8), %rbx\n"
	"	mov $0, %eax\n"
	"1:	lock incq (%r8)\n"
	"	mov (%r8), %rcx\n"
	"	mov %eax, (%rbx)\n"
	"2:	pause\n"
	"	cmp %rcx, 40(%r8)\n"
	"	jb 2b\n"
	"	jmp 1b\n"
	"mini_pokes:\n"
	"	mov 32(%r8), %rsi\n"
	"	mov $15, %eax\n"
	"1:	mov %r9, %rbx\n"
	"2:	mov (%rbx), %ecx\n"
	"	mov %eax, (%rbx)\n"
	"	lock incq (%r8)\n"
	"	add $4, %rbx\n"
	"	mov %ebx, %ecx\n"
	"	and $0xfff, %ecx\n"
	"	cmp $0x180, %ecx\n"
	"	jne 3f\n"
	"	add $0xe80, %rbx\n"
	"3:	cmp %rsi, %rbx\n"
	"	jb 2b\n"
	"	dec %eax\n"
	"	cmp $-2, %eax\n"
	"	jne 1b\n"
	"	movl $1, 4(%r8)\n"
	"	jmp mini_quiet\n"
	"mini_end:\n"
	".popsection\n");
extern const char mini_begin[], mini_handler[], mini_count[], mini_quiet[], mini_accesses[], mini_dirties[], mini_serial[], mini_off[], mini_faults[], mini_wild[],
	mini_waits[], mini_reads[], mini_inputs[], mini_rings[], mini_pokes[], mini_end[];

static const char *const programs[] = {
	[MINI_COUNT] = mini_count,
	[MINI_QUIET] = mini_quiet,
	[MINI_ACCESSES] = mini_accesses,
	[MINI_DIRTIES] = mini_dirties,
	[MINI_SERIAL] = mini_serial,
	[MINI_OFF] = mini_off,
	[MINI_FAULTS] = mini_faults,
	[MINI_WILD] = mini_wild,
	[MINI_WAITS] = mini_waits,
	[MINI_READS] = mini_reads,
	[MINI_INPUTS] = mini_inputs,
	[MINI_RINGS] = mini_rings,
	[MINI_POKES] = mini_pokes,
};

_Static_assert(ACPI_POWER_OFF == 0x34 && LAYOUT_PORT_POWER == 0x600 && LAYOUT_PORT_SERIAL == 0x3f8 && MINI_PORT == 0x510 && MINI_PORT_IN == 0x520, "the programs know these");
_Static_assert(offsetof(struct mini_data, interrupts) == 8 && offsetof(struct mini_data, port) == 16, "the programs know these");
_Static_assert(offsetof(struct mini_data, go) == 28 && offsetof(struct mini_data, address) == 32 && offsetof(struct mini_data, answered) == 40, "the programs know these");

static void put(const struct guest_memory *m, uint64_t address, uint64_t value)
{
	memcpy(memory_at(m, address, 8), &value, 8);
}

enum { PRESENT = 1, WRITABLE = 2, USER = 4, LARGE = 0x80, NOT_CACHED = 0x18 };

static void set_tables(const struct guest_memory *m)
{
	put(m, PML4, PDPT | PRESENT | WRITABLE | USER);
	put(m, PDPT, PD_LOW | PRESENT | WRITABLE | USER);
	put(m, PDPT + 3 * 8, PD_HIGH | PRESENT | WRITABLE | USER);
	put(m, PD_LOW, 0 | LARGE | PRESENT | WRITABLE | USER);
	put(m, PD_HIGH + ((LAYOUT_MMIO >> 21) & 511) * 8, LAYOUT_MMIO | LARGE | NOT_CACHED | PRESENT | WRITABLE | USER);
}

/* One interrupt, for ring 0: no stack is changed. */
static void set_descriptors(const struct guest_memory *m)
{
	uint64_t handler = MINI_CODE + (uint64_t)(mini_handler - mini_begin);
	put(m, GDT + 8, 0x00af9b000000ffff); /* code, 64 bits */
	put(m, GDT + 16, 0x00cf93000000ffff); /* data */
	put(m, GDT + 24, 0x00affb000000ffff); /* the same for ring 3 */
	put(m, GDT + 32, 0x00cff3000000ffff);
	put(m, TSS + 0x60, (uint64_t)PORTS << 48);
	put(m, IDT + MINI_VECTOR * 16, (handler & 0xffff) | 0x08ull << 16 | 0x8e00ull << 32 | (handler >> 16 & 0xffff) << 48);
	put(m, IDT + MINI_VECTOR * 16 + 8, handler >> 32);
}

static int set_registers(int vcpu, enum mini_program p, unsigned ring)
{
	struct kvm_sregs s;
	int r = kvm_ioctl(vcpu, KVM_GET_SREGS, &s);
	if (r < 0)
		return r;
	s.cs = (struct kvm_segment){.limit = UINT32_MAX, .selector = (uint16_t)(ring ? 24 | ring : 8), .type = 11, .present = 1, .dpl = (uint8_t)ring, .s = 1, .l = 1, .g = 1};
	s.ss = (struct kvm_segment){.limit = UINT32_MAX, .selector = (uint16_t)(ring ? 32 | ring : 16), .type = 3, .present = 1, .dpl = (uint8_t)ring, .db = 1, .s = 1, .g = 1};
	s.ds = s.es = s.fs = s.gs = s.ss;
	s.tr = (struct kvm_segment){.base = TSS, .limit = TSS_LIMIT, .selector = 40, .type = 11, .present = 1};
	s.ldt = (struct kvm_segment){.unusable = 1};
	s.gdt = (struct kvm_dtable){.base = GDT, .limit = 55};
	s.idt = (struct kvm_dtable){.base = IDT, .limit = 0xfff};
	s.cr0 = 0x80050033; /* PG AM WP NE ET MP PE */
	s.cr3 = PML4;
	s.cr4 = 0x620;      /* PAE, SSE */
	s.efer = 0x500;     /* long mode, active */
	if ((r = kvm_ioctl(vcpu, KVM_SET_SREGS, &s)) < 0)
		return r;
	struct kvm_regs regs = {.rip = MINI_CODE + (uint64_t)(programs[p] - mini_begin), .rsp = STACK, .rflags = 0x202 /* IF */, .r8 = MINI_DATA, .r9 = LAYOUT_MMIO};
	return kvm_ioctl(vcpu, KVM_SET_REGS, &regs);
}

int mini_set(const struct kvm *k, int vcpu, const struct guest_memory *m, enum mini_program p, unsigned ring)
{
	struct {
		uint32_t n, padding;
		struct kvm_cpuid_entry2 entry[256];
	} cpuid = {.n = 256};
	int r = kvm_ioctl(k->system, KVM_GET_SUPPORTED_CPUID, &cpuid);
	if (r < 0 || (r = kvm_ioctl(vcpu, KVM_SET_CPUID2, &cpuid)) < 0)
		return r;
	memcpy(memory_at(m, MINI_CODE, 4096), mini_begin, (size_t)(mini_end - mini_begin));
	set_tables(m);
	set_descriptors(m);
	return set_registers(vcpu, p, ring);
}

struct mini_data *mini_data(const struct guest_memory *m)
{
	return memory_at(m, MINI_DATA, sizeof(struct mini_data));
}
