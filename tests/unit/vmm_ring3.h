/*
 * A guest of a few instructions that runs in user mode (ring 3) from its first one on, with the right to use ports: any KVM runs that, also a paravirtual one, on which a guest's kernel crawls.
 * Memory of 2 MiB; its addresses are the physical ones, and so are the pages of virtio devices and of the interrupt controllers.
 */
#ifndef CUBICLE_TESTS_VMM_RING3_H
#define CUBICLE_TESTS_VMM_RING3_H

#include "vmm/kvm.h"

enum {
	RING3_MEMORY = 2 << 20,
	RING3_CODE = 0x10000,
	RING3_DATA = 0x20000,   /* the programs' results are here */
	RING3_DIRTY = 0x40000,  /* pages that dirty_pages writes */
	RING3_VECTOR = 0x40,    /* what an interrupt comes as */
	RING3_PORT = 0x510,     /* programs say a byte there */
	RING3_PORT_IN = 0x520,
};

/* The words at RING3_DATA. */
struct ring3_data {
	uint64_t counter;     /* of the program `count` */
	uint64_t interrupts;  /* that were handled */
	uint32_t port, quick, slow; /* read by the program `accesses` */
};

/* Programs: each says its name's first letter when it is done, and counts from then on. */
enum ring3_program {
	RING3_COUNT,    /* only counts */
	RING3_ACCESSES, /* reads RING3_PORT_IN, LAYOUT_MMIO + 0x60 and + 0x100 (4 bytes each), writes 0x11223344 to LAYOUT_MMIO + 0x104, 5 to + 0x50 */
	RING3_DIRTIES,  /* writes RING3_DIRTY and the page after the next */
	RING3_SERIAL,   /* says "mini\n" on the serial port */
	RING3_OFF,      /* turns itself off by the ACPI port */
	RING3_FAULTS,   /* an exception without a handler: a triple fault */
};

/* Sets up memory and the processor, so that it begins with the program. 0 or -errno. */
int ring3_set(const struct kvm *k, int vcpu, const struct guest_memory *m, enum ring3_program p);
struct ring3_data *ring3_data(const struct guest_memory *m);

#endif
