#include "base/cleanup.h"
#include "vmm/kernel_impl.h"

#include <stddef.h>

/* Offsets in the file: "The Real-Mode Kernel Header" of boot.rst. */
enum {
	HEADER_FROM = 0x1f1,
	HEADER_LENGTH = 0x201, /* one byte: the header ends so many bytes behind 0x202 */
	HEADER_BASE = 0x202,
	HEADER_NEEDED = HEADER_FROM + offsetof(struct setup_header, handover_offset),
	HEADER_MAX = 0x290, /* where the next thing is in struct boot_params */
	VERSION_NEEDED = 0x020c, /* 2.12: xloadflags */
	ENTRY_64 = 0x200,
	SECTOR = 512,
	SETUP_SECTORS = 4, /* when it says 0 */
};

int kernel_bzimage(struct kernel_image *k, struct error *err)
{
	unsigned char start[HEADER_MAX];
	struct setup_header *h = &k->parameters.hdr;
	int r = kernel_read(k, 0, start, sizeof(start), err);
	if (r < 0)
		return r;
	size_t end = MIN(HEADER_BASE + (size_t)start[HEADER_LENGTH], (size_t)HEADER_MAX);
	if (end < HEADER_NEEDED)
		return error_set(err, -EINVAL, 500, "its header is too short");
	/* No more than the header: what is before and behind it means something else in struct boot_params. */
	memcpy((char *)&k->parameters + HEADER_FROM, start + HEADER_FROM, end - HEADER_FROM);
	if (h->version < VERSION_NEEDED)
		return error_set(err, -EINVAL, 500, "it has version %d.%d of the boot protocol, 2.12 is needed", h->version >> 8, h->version & 0xff);
	if (!(h->loadflags & LOADED_HIGH) || !(h->xloadflags & XLF_KERNEL_64))
		return error_set(err, -EINVAL, 500, "it has no entry for 64 bits");
	uint64_t setup = ((h->setup_sects ? h->setup_sects : SETUP_SECTORS) + 1u) * SECTOR;
	uint64_t n = k->size > setup ? k->size - setup : 0;
	/* Its size is given in paragraphs; the last one need not be whole. */
	if (n <= ENTRY_64 || h->syssize * 16ull > n + 15)
		return error_set(err, -EINVAL, 500, "it is cut short");
	uint64_t address = h->pref_address;
	r = kernel_place(k, setup, n, address, MAX(n, (uint64_t)h->init_size), err);
	if (r < 0)
		return r;
	k->mode = KERNEL_LONG;
	k->entry = address + ENTRY_64;
	k->end = address + MAX(n, (uint64_t)h->init_size);
	k->initramfs_end = h->initrd_addr_max + 1ull;
	k->command_line_max = MIN((size_t)h->cmdline_size, (size_t)KERNEL_COMMAND_LINE_MAX);
	h->code32_start = (uint32_t)address;
	/* The kernel's own, should the file say something. */
	h->setup_data = 0;
	return 0;
}
