#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "vmm/acpi.h"
#include "vmm/kernel.h"
#include "vmm/layout.h"

#include <asm/bootparam.h>
#include <elf.h>
#include <stdio.h>
#include <sys/mman.h>

/* The loader and the guest's memory, with kernels of a few bytes made here. */

enum { MIB = 1 << 20, PREFERRED = 16 * MIB, SETUP = 1024, CODE = 0x300 };

static int file_of(const void *p, size_t n)
{
	int fd = memfd_create("file", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, p, n), 0);
	return fd;
}

static void map(struct guest_memory *m, uint64_t mib)
{
	struct error err = {0};
	assert_int_equal(memory_map(m, mib * MIB, -1, 0, &err), 0);
}

/* --- a bzImage --- */

struct bzimage {
	unsigned char setup[SETUP], code[CODE];
};

#define HEADER(b) ((struct setup_header *)((b)->setup + 0x1f1))

static void make_bzimage(struct bzimage *ret)
{
	memset(ret, 0xee, sizeof(*ret)); /* what is not the header must not be taken for it */
	struct setup_header *h = HEADER(ret);
	*h = (struct setup_header){
		.setup_sects = 1,
		.syssize = CODE / 16,
		.boot_flag = 0xaa55,
		.jump = 0x6aeb, /* a jump over 0x6a bytes: the header ends at 0x26c */
		.header = 0x53726448,
		.version = 0x020f,
		.loadflags = LOADED_HIGH,
		.initrd_addr_max = 0x7fffffff,
		.kernel_alignment = 2 * MIB,
		.relocatable_kernel = 1,
		.xloadflags = XLF_KERNEL_64,
		.cmdline_size = 2047,
		.pref_address = PREFERRED,
		.init_size = 4 * MIB,
	};
	for (size_t i = 0; i < CODE; i++)
		ret->code[i] = (unsigned char)(i * 7);
}

static int load(const struct guest_memory *m, const void *kernel, size_t n, const char *initramfs, const char *command_line, struct kernel_entry *ret, struct error *err)
{
	cleanup_fd int fd = file_of(kernel, n);
	cleanup_fd int other = initramfs ? file_of(initramfs, strlen(initramfs)) : -1;
	const struct kernel_files f = {.kernel = fd, .initramfs = other, .command_line = str_of(command_line)};
	return kernel_load(m, &f, ret, err);
}

static void check_range(const struct boot_params *p, unsigned i, uint64_t from, uint64_t size, unsigned type)
{
	assert_int_equal(p->e820_table[i].addr, from);
	assert_int_equal(p->e820_table[i].size, size);
	assert_int_equal(p->e820_table[i].type, type);
}

static uint64_t entry_of(const struct guest_memory *m, uint64_t table, uint64_t i)
{
	uint64_t value;
	memcpy(&value, memory_at(m, (table & ~0xfffull) + i * 8, 8), 8);
	return value;
}

static void test_bzimage(void **state)
{
	struct bzimage b;
	struct guest_memory m;
	struct kernel_entry e;
	struct error err = {0};
	make_bzimage(&b);
	map(&m, 128);
	assert_int_equal(load(&m, &b, sizeof(b), "an initramfs", "console=ttyS0 quiet", &e, &err), 0);
	assert_int_equal(e.mode, KERNEL_LONG);
	assert_int_equal(e.entry, PREFERRED + 0x200);
	assert_memory_equal(memory_at(&m, PREFERRED, CODE), b.code, CODE);

	const struct boot_params *p = memory_at(&m, e.parameters, sizeof(*p));
	assert_int_equal(p->hdr.header, 0x53726448);
	assert_int_equal(p->hdr.init_size, 4 * MIB);
	assert_int_equal(p->hdr.type_of_loader, 0xff);
	assert_int_equal(p->hdr.kernel_info_offset, 0);
	/* Neither what is before nor what is behind the header. */
	assert_int_equal(p->sentinel, 0);
	assert_int_equal(((const char *)p)[0x26c], 0);
	assert_int_equal(p->acpi_rsdp_addr, ACPI_RSDP);
	assert_string_equal(memory_at(&m, p->hdr.cmd_line_ptr, 32), "console=ttyS0 quiet");
	/* As high as it can be. */
	assert_int_equal(p->hdr.ramdisk_size, strlen("an initramfs"));
	assert_int_equal(p->hdr.ramdisk_image, 128 * MIB - 4096);
	assert_memory_equal(memory_at(&m, p->hdr.ramdisk_image, 12), "an initramfs", 12);
	assert_int_equal(p->e820_entries, 3);
	check_range(p, 0, 0, ACPI_GENERATION, 1);
	check_range(p, 1, ACPI_GENERATION, MIB - ACPI_GENERATION, 2);
	check_range(p, 2, MIB, 127 * MIB, 1);
	memory_unmap(&m);
}

static void test_long_registers(void **state)
{
	struct bzimage b;
	struct guest_memory m;
	struct kernel_entry e;
	struct kvm_sregs sregs = {.apic_base = 0xfee00900};
	struct kvm_regs regs;
	struct error err = {0};
	make_bzimage(&b);
	map(&m, 64);
	assert_int_equal(load(&m, &b, sizeof(b), NULL, "", &e, &err), 0);
	memset(&regs, 0xff, sizeof(regs));
	kernel_registers(&e, &sregs, &regs);
	assert_int_equal(sregs.apic_base, 0xfee00900);
	assert_int_equal(sregs.cr0, 0x80000011);
	assert_int_equal(sregs.cr4, 0x20);
	assert_int_equal(sregs.efer, 0x500);
	assert_true(sregs.cs.l && !sregs.cs.db && sregs.cs.selector == 0x10 && sregs.ds.selector == 0x18);
	assert_true(regs.rip == e.entry && regs.rsi == e.parameters && regs.rbx == 0 && regs.rsp == 0 && regs.rflags == 2);
	/* The selectors are what the table says. */
	assert_int_equal(sregs.gdt.limit, 5 * 8 - 1);
	assert_int_equal(entry_of(&m, sregs.gdt.base, 2), 0x00af9b000000ffff);
	assert_int_equal(entry_of(&m, sregs.gdt.base, 3), 0x00cf93000000ffff);
	/* Addresses are the same in all of 4 GiB. */
	for (uint64_t at = 0; at < 4ull << 30; at += 2 * MIB) {
		uint64_t table = entry_of(&m, sregs.cr3, at >> 39);
		table = entry_of(&m, table, at >> 30 & 511);
		assert_int_equal(entry_of(&m, table, at >> 21 & 511), at | 0x83);
	}
	assert_int_equal(entry_of(&m, sregs.cr3, 1), 0);
	memory_unmap(&m);
}

/* Each change to a good bzImage, and what is said of it. */
static void test_bad_bzimages(void **state)
{
	static const struct {
		size_t at; /* in the header */
		uint64_t value;
		size_t bytes;
		const char *message;
	} changes[] = {
		{offsetof(struct setup_header, version), 0x020b, 2, "the guest kernel: it has version 2.11 of the boot protocol, 2.12 is needed"},
		{offsetof(struct setup_header, xloadflags), XLF_EFI_HANDOVER_64, 2, "the guest kernel: it has no entry for 64 bits"},
		{offsetof(struct setup_header, loadflags), 0, 1, "the guest kernel: it has no entry for 64 bits"},
		{offsetof(struct setup_header, jump), 0x10eb, 2, "the guest kernel: its header is too short"},
		{offsetof(struct setup_header, setup_sects), 2, 1, "the guest kernel: it is cut short"},
		{offsetof(struct setup_header, setup_sects), 0, 1, "the guest kernel: it is cut short"},
		{offsetof(struct setup_header, syssize), CODE / 16 + 1, 4, "the guest kernel: it is cut short"},
		{offsetof(struct setup_header, init_size), 48 * MIB + 1, 4, "the guest kernel: it needs 50331649 bytes at 0x1000000, which this guest does not have"},
		{offsetof(struct setup_header, pref_address), MIB - 1, 8, "the guest kernel: it needs 4194304 bytes at 0xfffff, which this guest does not have"},
		{offsetof(struct setup_header, pref_address), UINT64_MAX, 8, "the guest kernel: it needs 4194304 bytes at 0xffffffffffffffff, which this guest does not have"},
		{offsetof(struct setup_header, header), 0, 4, "the guest kernel: it is neither a bzImage nor a vmlinux"},
		{offsetof(struct setup_header, initrd_addr_max), 20 * MIB, 4, "the guest's initramfs: its 12 bytes do not fit into the guest's memory"},
		{offsetof(struct setup_header, cmdline_size), 3, 4, "the guest kernel's command line is longer than 3 bytes, or has a NUL inside"},
	};
	struct guest_memory m;
	map(&m, 64);
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		struct bzimage b;
		struct kernel_entry e;
		struct error err = {0};
		make_bzimage(&b);
		memcpy((char *)HEADER(&b) + changes[i].at, &changes[i].value, changes[i].bytes);
		assert_int_equal(load(&m, &b, sizeof(b), "an initramfs", "quiet", &e, &err), -EINVAL);
		assert_string_equal(err.message, changes[i].message);
	}
	memory_unmap(&m);
}

static void test_initramfs_limits(void **state)
{
	struct bzimage b;
	struct guest_memory m;
	struct kernel_entry e;
	struct error err = {0};
	make_bzimage(&b);
	/* Above 3 GiB there is none of it, but more memory. */
	map(&m, 5 * 1024);
	HEADER(&b)->initrd_addr_max = UINT32_MAX;
	assert_int_equal(load(&m, &b, sizeof(b), "i", "", &e, &err), 0);
	const struct boot_params *p = memory_at(&m, e.parameters, sizeof(*p));
	assert_int_equal(p->hdr.ramdisk_image, LAYOUT_LOW_MEMORY_END - 4096);
	assert_int_equal(p->e820_entries, 4);
	check_range(p, 2, MIB, LAYOUT_LOW_MEMORY_END - MIB, 1);
	check_range(p, 3, LAYOUT_HIGH_MEMORY, 2ull << 30, 1);
	HEADER(&b)->initrd_addr_max = 0x37ffffff;
	assert_int_equal(load(&m, &b, sizeof(b), "i", "", &e, &err), 0);
	assert_int_equal(p->hdr.ramdisk_image, 0x37fff000);
	/* Just behind the kernel. */
	HEADER(&b)->initrd_addr_max = 20 * MIB + 4095;
	assert_int_equal(load(&m, &b, sizeof(b), "i", "", &e, &err), 0);
	assert_int_equal(p->hdr.ramdisk_image, 20 * MIB);
	assert_int_equal(load(&m, &b, sizeof(b), "", "", &e, &err), -EINVAL);
	assert_string_equal(err.message, "the guest's initramfs: it is empty or no regular file");
	memory_unmap(&m);
	map(&m, 62);
	assert_int_equal(load(&m, &b, sizeof(b), NULL, "", &e, &err), -EINVAL);
	assert_string_equal(err.message, "a guest needs at least 64 MiB of memory");
	memory_unmap(&m);
}

/* --- a vmlinux --- */

struct vmlinux {
	Elf64_Ehdr file;
	Elf64_Phdr segment[2];
	struct {
		Elf64_Nhdr other;
		char other_name[8], other_value[4];
		Elf64_Nhdr head;
		char name[4];
		uint64_t value;
	} __attribute__((packed)) notes;
	char code[16];
};

static void make_vmlinux(struct vmlinux *ret, bool pvh)
{
	*ret = (struct vmlinux){
		.file = {.e_type = ET_EXEC, .e_machine = EM_X86_64, .e_entry = PREFERRED + 1, .e_phoff = offsetof(struct vmlinux, segment), .e_phentsize = sizeof(Elf64_Phdr),
			.e_phnum = pvh ? 2 : 1},
		.segment = {
			{.p_type = PT_LOAD, .p_offset = offsetof(struct vmlinux, code), .p_paddr = PREFERRED, .p_filesz = 16, .p_memsz = MIB},
			{.p_type = PT_NOTE, .p_offset = offsetof(struct vmlinux, notes), .p_filesz = sizeof(ret->notes), .p_align = 4},
		},
		.notes = {{6, 3, 18}, "Other", "abc", {4, 8, 18}, "Xen", PREFERRED + 2},
		.code = "the kernel",
	};
	memcpy(ret->file.e_ident, "\x7f" "ELF\x02\x01\x01", 7);
}

static void test_pvh(void **state)
{
	struct vmlinux v;
	struct guest_memory m;
	struct kernel_entry e;
	struct kvm_sregs sregs = {0};
	struct kvm_regs regs;
	struct error err = {0};
	make_vmlinux(&v, true);
	map(&m, 64);
	assert_int_equal(load(&m, &v, sizeof(v), "initramfs", "quiet", &e, &err), 0);
	assert_int_equal(e.mode, KERNEL_PVH);
	assert_int_equal(e.entry, PREFERRED + 2);
	assert_string_equal(memory_at(&m, PREFERRED, 16), "the kernel");
	/* struct hvm_start_info */
	const uint32_t *info = memory_at(&m, e.parameters, 56);
	assert_int_equal(info[0], 0x336ec578);
	assert_int_equal(info[1], 1);
	assert_int_equal(info[3], 1);
	const uint64_t *where = (const uint64_t *)(info + 4);
	const uint64_t *module = memory_at(&m, where[0], 32);
	assert_true(module[0] == 64 * MIB - 4096 && module[1] == 9);
	assert_string_equal(memory_at(&m, where[1], 8), "quiet");
	assert_int_equal(where[2], ACPI_RSDP);
	const uint64_t *ranges = memory_at(&m, where[3], 3 * 24);
	assert_int_equal(info[12], 3);
	assert_true(ranges[0] == 0 && ranges[1] == ACPI_GENERATION && ranges[2] == 1);
	assert_true(ranges[3] == ACPI_GENERATION && ranges[4] == MIB - ACPI_GENERATION && ranges[5] == 2);
	assert_true(ranges[6] == MIB && ranges[7] == 63 * MIB && ranges[8] == 1);
	kernel_registers(&e, &sregs, &regs);
	assert_true(sregs.cr0 == 0x11 && sregs.cr3 == 0 && sregs.cr4 == 0 && sregs.efer == 0);
	assert_true(!sregs.cs.l && sregs.cs.db && sregs.cs.limit == UINT32_MAX && sregs.tr.limit == 0x67);
	assert_true(regs.rip == e.entry && regs.rbx == e.parameters && regs.rsi == 0 && regs.rflags == 2);
	memory_unmap(&m);
}

static void test_vmlinux_without_pvh(void **state)
{
	struct vmlinux v;
	struct guest_memory m;
	struct kernel_entry e;
	struct error err = {0};
	map(&m, 64);
	make_vmlinux(&v, false);
	assert_int_equal(load(&m, &v, sizeof(v), NULL, "quiet", &e, &err), 0);
	assert_true(e.mode == KERNEL_LONG && e.entry == PREFERRED + 1 && e.cr3 != 0);
	const struct boot_params *p = memory_at(&m, e.parameters, sizeof(*p));
	assert_true(p->hdr.boot_flag == 0xaa55 && p->hdr.header == 0x53726448 && p->hdr.ramdisk_size == 0);
	/* Notes of others only. */
	make_vmlinux(&v, true);
	v.notes.name[0] = 'x';
	assert_int_equal(load(&m, &v, sizeof(v), NULL, "quiet", &e, &err), 0);
	assert_int_equal(e.mode, KERNEL_LONG);
	memory_unmap(&m);
}

static void test_bad_vmlinux(void **state)
{
	static const struct {
		size_t at;
		uint64_t value;
		size_t bytes;
		const char *message;
	} changes[] = {
		{EI_CLASS, ELFCLASS32, 1, "the guest kernel: it is an ELF file, but no vmlinux for x86-64"},
		{offsetof(struct vmlinux, file.e_machine), EM_AARCH64, 2, "the guest kernel: it is an ELF file, but no vmlinux for x86-64"},
		{offsetof(struct vmlinux, file.e_phnum), 0, 2, "the guest kernel: it has no segments, or too many"},
		{offsetof(struct vmlinux, file.e_phnum), 65, 2, "the guest kernel: it has no segments, or too many"},
		{offsetof(struct vmlinux, file.e_phentsize), 32, 2, "the guest kernel: it has no segments, or too many"},
		{offsetof(struct vmlinux, file.e_phoff), UINT64_MAX, 8, "the guest kernel: it is cut short"},
		{offsetof(struct vmlinux, segment[0].p_offset), UINT64_MAX - 3, 8, "the guest kernel: it is cut short"},
		{offsetof(struct vmlinux, segment[0].p_filesz), MIB + 1, 8, "the guest kernel: a segment is smaller than its contents"},
		{offsetof(struct vmlinux, segment[0].p_paddr), 4096, 8, "the guest kernel: it needs 1048576 bytes at 0x1000, which this guest does not have"},
		{offsetof(struct vmlinux, segment[0].p_memsz), UINT64_MAX - 4096, 8, "the guest kernel: it needs 18446744073709547519 bytes at 0x1000000, which this guest does not have"},
		{offsetof(struct vmlinux, segment[1].p_filesz), 1 << 20, 8, "the guest kernel: its notes are too long"},
		{offsetof(struct vmlinux, segment[1].p_offset), 1 << 20, 8, "the guest kernel: it is cut short"},
		{offsetof(struct vmlinux, notes.value), PREFERRED + MIB, 8, "the guest kernel: its entry is outside of its segments"},
	};
	struct guest_memory m;
	map(&m, 64);
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		struct vmlinux v;
		struct kernel_entry e;
		struct error err = {0};
		make_vmlinux(&v, true);
		memcpy((char *)&v + changes[i].at, &changes[i].value, changes[i].bytes);
		assert_int_equal(load(&m, &v, sizeof(v), NULL, "quiet", &e, &err), -EINVAL);
		assert_string_equal(err.message, changes[i].message);
	}
	memory_unmap(&m);
}

/* No beginning of a kernel is one. */
static void test_cut(void **state)
{
	struct bzimage b;
	struct vmlinux v;
	struct guest_memory m;
	map(&m, 64);
	make_bzimage(&b);
	make_vmlinux(&v, true);
	for (size_t n = 0; n < sizeof(b); n += n < 0x2a0 ? 1 : 61) {
		struct kernel_entry e;
		struct error err = {0};
		assert_true(load(&m, &b, n, NULL, "", &e, &err) < 0);
		assert_memory_equal(err.message, "the guest kernel: ", 18);
		if (n < sizeof(v))
			assert_true(load(&m, &v, n, NULL, "", &e, &err) < 0);
	}
	memory_unmap(&m);
}

/* --- the memory --- */

static void test_memory_at(void **state)
{
	struct guest_memory m;
	map(&m, 4 * 1024);
	assert_int_equal(m.n, 2);
	assert_int_equal(memory_size(&m), 4ull << 30);
	char *low = memory_at(&m, 0, LAYOUT_LOW_MEMORY_END), *high = memory_at(&m, LAYOUT_HIGH_MEMORY, 1 << 30);
	assert_non_null(low);
	assert_non_null(high);
	assert_ptr_equal(memory_at(&m, LAYOUT_LOW_MEMORY_END - 1, 1), low + LAYOUT_LOW_MEMORY_END - 1);
	assert_ptr_equal(memory_at(&m, LAYOUT_HIGH_MEMORY + 4096, 8), high + 4096);
	assert_int_equal((uintptr_t)low % (2 * MIB), 0);
	assert_null(memory_at(&m, 0, 0));
	assert_null(memory_at(&m, LAYOUT_LOW_MEMORY_END - 1, 2));
	assert_null(memory_at(&m, LAYOUT_LOW_MEMORY_END, 1));
	assert_null(memory_at(&m, LAYOUT_HIGH_MEMORY - 1, 2));
	assert_null(memory_at(&m, LAYOUT_HIGH_MEMORY + (1 << 30), 1));
	assert_null(memory_at(&m, UINT64_MAX, 1));
	assert_null(memory_at(&m, 4096, UINT64_MAX));
	assert_null(memory_at(&m, UINT64_MAX - 4095, 8192));
	memory_unmap(&m);
	assert_int_equal(memory_size(&m), 0);
	assert_null(memory_at(&m, 0, 1));
}

static void test_memory_of_a_file(void **state)
{
	struct guest_memory m;
	struct error err = {0};
	cleanup_fd int fd = memfd_create("memory", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, 4096 + 2 * MIB), 0);
	assert_int_equal(pwrite(fd, "kept", 4, 4096 + 100), 4);
	assert_int_equal(memory_map(&m, 2 * MIB, fd, 4096, &err), 0);
	char *at = memory_at(&m, 100, 4);
	assert_memory_equal(at, "kept", 4);
	memcpy(at, "mine", 4);
	char there[4];
	assert_int_equal(pread(fd, there, 4, 4096 + 100), 4);
	assert_memory_equal(there, "kept", 4);
	memory_unmap(&m);
	assert_int_equal(memory_map(&m, 2 * MIB, fd, 8192, &err), -EINVAL);
	assert_int_equal(memory_map(&m, 4 * MIB, fd, 0, &err), -EINVAL);
	assert_int_equal(memory_map(&m, 2 * MIB, fd, UINT64_MAX - 4095, &err), -EINVAL);
	assert_int_equal(memory_map(&m, MIB, -1, 0, &err), -EINVAL);
	assert_int_equal(memory_map(&m, 0, -1, 0, &err), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bzimage),
		cmocka_unit_test(test_long_registers),
		cmocka_unit_test(test_bad_bzimages),
		cmocka_unit_test(test_initramfs_limits),
		cmocka_unit_test(test_pvh),
		cmocka_unit_test(test_vmlinux_without_pvh),
		cmocka_unit_test(test_bad_vmlinux),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_memory_at),
		cmocka_unit_test(test_memory_of_a_file),
	};
	return cmocka_run_group_tests_name("vmm kernel", tests, NULL, NULL);
}
