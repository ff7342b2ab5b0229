/*
 * A guest of a few instructions. In ring 0 it does all that a monitor has to do with: ports, devices, interrupts (a paravirtual KVM interprets that, slowly, which is enough); in ring 3 it is
 * run by any processor itself, and only counts.
 * Memory of 2 MiB; its addresses are the physical ones, and so are the pages of virtio devices and of the interrupt controllers.
 */
#ifndef CUBICLE_TESTS_VMM_MINI_H
#define CUBICLE_TESTS_VMM_MINI_H

#include "vmm/kvm.h"

enum {
	MINI_MEMORY = 2 << 20,
	MINI_CODE = 0x10000,
	MINI_DATA = 0x20000,   /* the programs' results are here */
	MINI_DIRTY = 0x40000,  /* pages that dirty_pages writes */
	MINI_VECTOR = 0x40,    /* what an interrupt comes as */
	MINI_PORT = 0x510,     /* programs say a byte there */
	MINI_PORT_IN = 0x520,
};

/* The words at MINI_DATA. */
struct mini_data {
	uint64_t counter;     /* of the program `count` */
	uint64_t interrupts;  /* that were handled */
	uint32_t port, quick, slow; /* read by the program `accesses` */
};

/* Programs: each says its name's first letter at MINI_PORT when it is done, and counts from then on. */
enum mini_program {
	MINI_COUNT,    /* only counts */
	MINI_QUIET,    /* likewise, and does not even say so: also for ring 3 */
	MINI_ACCESSES, /* reads MINI_PORT_IN, LAYOUT_MMIO + 0x60 and + 0x100 (4 bytes each), writes 0x11223344 to LAYOUT_MMIO + 0x104, 5 to + 0x50 */
	MINI_DIRTIES,  /* writes MINI_DIRTY and the page after the next */
	MINI_SERIAL,   /* says "mini\n" on the serial port */
	MINI_OFF,      /* turns itself off by the ACPI port */
	MINI_FAULTS,   /* an exception without a handler: a triple fault */
	MINI_WILD,     /* executes what is at a device's address */
};

/* Sets up memory and the processor, so that it begins with the program. 0 or -errno. */
int mini_set(const struct kvm *k, int vcpu, const struct guest_memory *m, enum mini_program p, unsigned ring);
struct mini_data *mini_data(const struct guest_memory *m);

#endif
