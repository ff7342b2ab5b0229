/* Between the parts of the kernel loader (kernel.h). */
#ifndef CUBICLE_VMM_KERNEL_IMPL_H
#define CUBICLE_VMM_KERNEL_IMPL_H

#include "vmm/kernel.h"

#include <asm/bootparam.h>
#include <linux/const.h>
#include <stdbool.h>

enum { KERNEL_LOWEST = 1 << 20 }; /* below are our own things */

struct kernel_image {
	const struct guest_memory *memory;
	int fd;
	uint64_t size;    /* of the file */
	uint64_t ram_end; /* of low memory */
	/* What the file comes to. */
	enum kernel_mode mode;
	uint64_t entry;
	uint64_t end;              /* what the kernel itself needs ends here */
	uint64_t initramfs_end;    /* the initramfs has to end here */
	size_t command_line_max;   /* bytes without the NUL */
	struct boot_params parameters; /* with the setup header of a bzImage, else zeros */
};

/* Reads n bytes from offset: 0, or -errno with *err when they are not there. */
int kernel_read(const struct kernel_image *k, uint64_t offset, void *to, uint64_t n, struct error *err);
/* Loads them to the address, where `room` bytes (n at least) have to be RAM and not below KERNEL_LOWEST. */
int kernel_place(struct kernel_image *k, uint64_t offset, uint64_t n, uint64_t address, uint64_t room, struct error *err);

/* Messages do not say what file it is: kernel_load() puts that before. */
int kernel_bzimage(struct kernel_image *k, struct error *err);
int kernel_elf(struct kernel_image *k, struct error *err);

#endif
