#include "base/cleanup.h"
#include "vmm/acpi.h"
#include "vmm/kernel_impl.h"
#include "vmm/layout.h"

#include <sys/stat.h>

/* Our own things in the guest's first megabyte. They are of use until the kernel has read them, and are RAM for it from then on. */
enum {
	AT_GDT = 0x1000,
	AT_START_INFO = 0x2000,
	AT_MODULE = 0x2100,
	AT_MEMORY_MAP = 0x2200,
	AT_PARAMETERS = 0x7000,
	AT_PML4 = 0x9000, /* one page each, then four of the directories */
	AT_PDPT = 0xa000,
	AT_DIRECTORIES = 0xb000,
	AT_COMMAND_LINE = 0x20000,
};

enum { PAGE = 4096, GIBIBYTES = 4, PTE_TABLE = 0x3, PTE_LARGE = 0x83 };
enum { SELECTOR_CODE = 0x10, SELECTOR_DATA = 0x18, SELECTOR_TASK = 0x20, GDT_ENTRIES = 5 }; /* __BOOT_CS and __BOOT_DS are the protocol's */
enum { SEGMENT_DATA = 3, SEGMENT_CODE = 11, SEGMENT_TASK = 11, TASK_LIMIT = 0x67 };
enum { CR0_PE = 1, CR0_ET = 1 << 4, CR4_PAE = 1 << 5, EFER_LME = 1 << 8, EFER_LMA = 1 << 10, RFLAGS_ALWAYS = 2 };
#define CR0_PG (1u << 31)

enum { RAM = 1, RESERVED = 2 }; /* of e820 and of PVH */
enum { RANGES_MAX = 4 };
enum { START_INFO_MAGIC = 0x336ec578, LOADER_UNDEFINED = 0xff };

/* xen/include/public/arch-x86/hvm/start_info.h, version 1 */
struct start_info {
	uint32_t magic, version, flags, modules;
	uint64_t module_list, command_line, rsdp, memory_map;
	uint32_t memory_map_entries, reserved;
};

struct start_info_module {
	uint64_t address, size, command_line, reserved;
};

struct start_info_range {
	uint64_t address, size;
	uint32_t type, reserved;
};

_Static_assert(sizeof(struct start_info) == 56 && sizeof(struct start_info_module) == 32 && sizeof(struct start_info_range) == 24, "PVH");
_Static_assert(sizeof(struct boot_params) == PAGE, "boot parameters");
_Static_assert(AT_MEMORY_MAP + RANGES_MAX * sizeof(struct start_info_range) <= AT_PARAMETERS && AT_COMMAND_LINE + KERNEL_COMMAND_LINE_MAX < ACPI_GENERATION, "places");

/* --- from files --- */

static int read_at(int fd, uint64_t offset, char *to, uint64_t n)
{
	while (n > 0) {
		ssize_t r = pread(fd, to, n, (off_t)offset);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? -errno : -EINVAL;
		to += r;
		offset += (uint64_t)r;
		n -= (uint64_t)r;
	}
	return 0;
}

int kernel_read(const struct kernel_image *k, uint64_t offset, void *to, uint64_t n, struct error *err)
{
	if (offset > k->size || n > k->size - offset)
		return error_set(err, -EINVAL, 500, "it is cut short");
	int r = read_at(k->fd, offset, to, n);
	return r < 0 ? error_errno(err, r, "it cannot be read") : 0;
}

int kernel_place(struct kernel_image *k, uint64_t offset, uint64_t n, uint64_t address, uint64_t room, struct error *err)
{
	if (address < KERNEL_LOWEST || address > k->ram_end || room > k->ram_end - address || n > room)
		return error_set(err, -EINVAL, 500, "it needs %llu bytes at 0x%llx, which this guest does not have", (unsigned long long)room, (unsigned long long)address);
	return n ? kernel_read(k, offset, memory_at(k->memory, address, n), n, err) : 0;
}

static int file_size(int fd, uint64_t *ret, struct error *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "it cannot be read");
	if (!S_ISREG(st.st_mode) || st.st_size <= 0)
		return error_set(err, -EINVAL, 500, "it is empty or no regular file");
	*ret = (uint64_t)st.st_size;
	return 0;
}

static int load_kernel(struct kernel_image *k, struct error *err)
{
	unsigned char start[0x206] = {0};
	int r = file_size(k->fd, &k->size, err);
	if (r == 0)
		r = kernel_read(k, 0, start, MIN(k->size, sizeof(start)), err);
	if (r < 0)
		return r;
	if (memcmp(start, "\x7f" "ELF", 4) == 0)
		return kernel_elf(k, err);
	if (start[0x1fe] == 0x55 && start[0x1ff] == 0xaa && memcmp(start + 0x202, "HdrS", 4) == 0)
		return kernel_bzimage(k, err);
	return error_set(err, -EINVAL, 500, "it is neither a bzImage nor a vmlinux");
}

/* As high as it may be: the kernel unpacks itself upwards. */
static int load_initramfs(const struct kernel_image *k, int fd, struct start_info_module *ret, struct error *err)
{
	uint64_t size, end = MIN(k->ram_end, k->initramfs_end);
	int r = file_size(fd, &size, err);
	if (r < 0)
		return r;
	uint64_t at = size <= end ? (end - size) / PAGE * PAGE : 0;
	if (at < k->end)
		return error_set(err, -EINVAL, 500, "its %llu bytes do not fit into the guest's memory", (unsigned long long)size);
	r = read_at(fd, 0, memory_at(k->memory, at, size), size);
	if (r < 0)
		return error_errno(err, r, "it cannot be read");
	*ret = (struct start_info_module){.address = at, .size = size};
	return 0;
}

/* --- what the kernel is told --- */

static void put(const struct guest_memory *m, uint64_t address, const void *p, size_t n)
{
	memcpy(memory_at(m, address, n), p, n);
}

/* From the generation's page on there is what PCs have there, and the ACPI tables. */
static unsigned memory_map_of(const struct guest_memory *m, struct start_info_range ret[RANGES_MAX])
{
	unsigned n = 0;
	ret[n++] = (struct start_info_range){0, ACPI_GENERATION, RAM, 0};
	ret[n++] = (struct start_info_range){ACPI_GENERATION, KERNEL_LOWEST - ACPI_GENERATION, RESERVED, 0};
	ret[n++] = (struct start_info_range){KERNEL_LOWEST, m->region[0].size - KERNEL_LOWEST, RAM, 0};
	if (m->n > 1)
		ret[n++] = (struct start_info_range){m->region[1].base, m->region[1].size, RAM, 0};
	return n;
}

static void tell_pvh(const struct guest_memory *m, const struct start_info_module *initramfs)
{
	struct start_info_range map[RANGES_MAX];
	const struct start_info info = {
		.magic = START_INFO_MAGIC,
		.version = 1,
		.modules = initramfs->size ? 1 : 0,
		.module_list = initramfs->size ? AT_MODULE : 0,
		.command_line = AT_COMMAND_LINE,
		.rsdp = ACPI_RSDP,
		.memory_map = AT_MEMORY_MAP,
		.memory_map_entries = memory_map_of(m, map),
	};
	put(m, AT_MEMORY_MAP, map, info.memory_map_entries * sizeof(map[0]));
	put(m, AT_MODULE, initramfs, sizeof(*initramfs));
	put(m, AT_START_INFO, &info, sizeof(info));
}

static void tell_long(const struct guest_memory *m, struct boot_params *p, const struct start_info_module *initramfs)
{
	struct start_info_range map[RANGES_MAX];
	p->hdr.type_of_loader = LOADER_UNDEFINED;
	p->hdr.cmd_line_ptr = AT_COMMAND_LINE;
	p->hdr.ramdisk_image = (uint32_t)initramfs->address;
	p->hdr.ramdisk_size = (uint32_t)initramfs->size;
	p->acpi_rsdp_addr = ACPI_RSDP;
	p->e820_entries = (uint8_t)memory_map_of(m, map);
	for (unsigned i = 0; i < p->e820_entries; i++)
		p->e820_table[i] = (struct boot_e820_entry){map[i].address, map[i].size, map[i].type};
	put(m, AT_PARAMETERS, p, sizeof(*p));
}

static void put_page_tables(const struct guest_memory *m)
{
	enum { ENTRIES = PAGE / sizeof(uint64_t) };
	const uint64_t pml4 = AT_PDPT | PTE_TABLE;
	put(m, AT_PML4, &pml4, sizeof(pml4));
	for (uint64_t i = 0; i < GIBIBYTES; i++) {
		const uint64_t directory = (AT_DIRECTORIES + i * PAGE) | PTE_TABLE;
		uint64_t entries[ENTRIES];
		for (uint64_t j = 0; j < ENTRIES; j++)
			entries[j] = (i * ENTRIES + j) << 21 | PTE_LARGE;
		put(m, AT_PDPT + i * sizeof(directory), &directory, sizeof(directory));
		put(m, AT_DIRECTORIES + i * PAGE, entries, sizeof(entries));
	}
}

/* Flat segments. The kernel loads its own soon; these are what reloading a selector before that finds. */
static void put_gdt(const struct guest_memory *m, enum kernel_mode mode)
{
	const uint64_t gdt[GDT_ENTRIES] = {
		[SELECTOR_CODE / 8] = mode == KERNEL_LONG ? 0x00af9b000000ffff : 0x00cf9b000000ffff,
		[SELECTOR_DATA / 8] = 0x00cf93000000ffff,
		[SELECTOR_TASK / 8] = 0x00008b0000000067,
	};
	put(m, AT_GDT, gdt, sizeof(gdt));
}

int kernel_load(const struct guest_memory *m, const struct kernel_files *f, struct kernel_entry *ret, struct error *err)
{
	struct kernel_image k = {.memory = m, .fd = f->kernel};
	struct start_info_module initramfs = {0};
	if (m->n < 1 || m->region[0].base != 0 || m->region[0].size < KERNEL_MEMORY_MIN)
		return error_set(err, -EINVAL, 500, "a guest needs at least %d MiB of memory", KERNEL_MEMORY_MIN >> 20);
	k.ram_end = m->region[0].size;
	int r = load_kernel(&k, err);
	if (r < 0)
		return error_wrap(err, r, "the guest kernel");
	if (f->command_line.n > k.command_line_max || str_chr(f->command_line, '\0') >= 0)
		return error_set(err, -EINVAL, 500, "the guest kernel's command line is longer than %zu bytes, or has a NUL inside", k.command_line_max);
	if (f->initramfs >= 0) {
		r = load_initramfs(&k, f->initramfs, &initramfs, err);
		if (r < 0)
			return error_wrap(err, r, "the guest's initramfs");
	}
	char command_line[KERNEL_COMMAND_LINE_MAX + 1] = "";
	if (f->command_line.n)
		memcpy(command_line, f->command_line.p, f->command_line.n);
	put(m, AT_COMMAND_LINE, command_line, f->command_line.n + 1);
	put_gdt(m, k.mode);
	if (k.mode == KERNEL_PVH) {
		tell_pvh(m, &initramfs);
	} else {
		put_page_tables(m);
		tell_long(m, &k.parameters, &initramfs);
	}
	*ret = (struct kernel_entry){
		.mode = k.mode,
		.entry = k.entry,
		.parameters = k.mode == KERNEL_PVH ? AT_START_INFO : AT_PARAMETERS,
		.cr3 = k.mode == KERNEL_PVH ? 0 : AT_PML4,
		.gdt = AT_GDT,
		.gdt_limit = GDT_ENTRIES * sizeof(uint64_t) - 1,
	};
	return 0;
}

void kernel_registers(const struct kernel_entry *e, struct kvm_sregs *sregs, struct kvm_regs *regs)
{
	bool wide = e->mode == KERNEL_LONG;
	const struct kvm_segment data = {.limit = UINT32_MAX, .selector = SELECTOR_DATA, .type = SEGMENT_DATA, .present = 1, .s = 1, .db = 1, .g = 1};
	sregs->cs = (struct kvm_segment){
		.limit = UINT32_MAX, .selector = SELECTOR_CODE, .type = SEGMENT_CODE, .present = 1, .s = 1, .db = !wide, .l = wide, .g = 1};
	sregs->ds = sregs->es = sregs->fs = sregs->gs = sregs->ss = data;
	sregs->tr = (struct kvm_segment){.limit = TASK_LIMIT, .selector = SELECTOR_TASK, .type = SEGMENT_TASK, .present = 1};
	sregs->gdt = (struct kvm_dtable){.base = e->gdt, .limit = e->gdt_limit};
	sregs->idt = (struct kvm_dtable){0};
	sregs->cr0 = CR0_PE | CR0_ET | (wide ? CR0_PG : 0);
	sregs->cr3 = e->cr3;
	sregs->cr4 = wide ? CR4_PAE : 0;
	sregs->efer = wide ? EFER_LME | EFER_LMA : 0;
	*regs = (struct kvm_regs){.rip = e->entry, .rflags = RFLAGS_ALWAYS};
	if (wide)
		regs->rsi = e->parameters;
	else
		regs->rbx = e->parameters;
}
