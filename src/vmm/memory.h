/*
 * The memory of a guest as the monitor sees it. What the guest gives as an address is looked up here and nowhere else.
 *
 * From 0 to 3 GiB, what is more from 4 GiB on; between them are the devices (layout.h).
 */
#ifndef CUBICLE_VMM_MEMORY_H
#define CUBICLE_VMM_MEMORY_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { MEMORY_REGIONS = 2 };

struct guest_memory {
	struct memory_region {
		uint64_t base, size; /* guest-physical, bytes */
		char *host;
	} region[MEMORY_REGIONS];
	size_t n;
};

/* The bytes [address, address + size) of the guest, or NULL when they do not lie wholly in one region. size 0: NULL. The guest may change them at any time: read each value once. */
void *memory_at(const struct guest_memory *m, uint64_t address, uint64_t size);

/* `size` bytes, a multiple of 2 MiB, of new memory (fd -1), or a private copy-on-write view of the file `fd`, in which the regions stand behind each other from `offset` on. 0 or -errno. */
int memory_map(struct guest_memory *ret, uint64_t size, int fd, uint64_t offset, struct error *err);
void memory_unmap(struct guest_memory *m);
uint64_t memory_size(const struct guest_memory *m);

#endif
