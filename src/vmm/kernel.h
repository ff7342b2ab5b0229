/*
 * Puts a Linux kernel into a guest's memory: a bzImage by the 64-bit boot protocol (Documentation/arch/x86/boot.rst of the kernel), or a vmlinux (ELF), by PVH when it has an entry for
 * that, else like a bzImage at its 64-bit entry. With it an initramfs, the command line, the map of the memory, page tables and descriptors. The files may be anything: what does not fit
 * is an error "the guest kernel: ...".
 */
#ifndef CUBICLE_VMM_KERNEL_H
#define CUBICLE_VMM_KERNEL_H

#include "base/str.h"
#include "vmm/layout.h"
#include "vmm/memory.h"

#include <linux/kvm.h>

enum {
	KERNEL_COMMAND_LINE_MAX = 2047, /* bytes; COMMAND_LINE_SIZE of x86 without the NUL */
	KERNEL_MEMORY_MIN = MACHINE_MEMORY_MIN_MB << 20,   /* a guest of less is refused */
};

struct kernel_files {
	int kernel;    /* regular files, not owned, read with pread() */
	int initramfs; /* -1 = none */
	struct str command_line;
};

enum kernel_mode {
	KERNEL_LONG, /* 64 bits, identity page tables for 4 GiB; rsi = struct boot_params */
	KERNEL_PVH,  /* 32 bits, no paging; ebx = struct hvm_start_info */
};

/* What the boot processor begins with. */
struct kernel_entry {
	enum kernel_mode mode;
	uint64_t entry;      /* rip */
	uint64_t parameters; /* rsi or ebx */
	uint64_t cr3;        /* KERNEL_LONG only */
	uint64_t gdt;        /* address, and bytes - 1 */
	uint16_t gdt_limit;
};

/*
 * Loads it all. The parameters point to ACPI_RSDP (acpi.h), and what acpi_build() has written is reserved. Low memory up to 1 MiB, but
 * for that, is this function's. The memory is new (zeros). 0 or -errno.
 */
int kernel_load(const struct guest_memory *m, const struct kernel_files *f, struct kernel_entry *ret, struct error *err);

/* Sets the registers in what KVM_GET_SREGS said of the boot processor, and all general ones. The other processors wait for the kernel to start them: nothing is to be set there. */
void kernel_registers(const struct kernel_entry *e, struct kvm_sregs *sregs, struct kvm_regs *regs);

#endif
