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
	/* The rest is said to the programs, before they run: */
	uint32_t go;          /* to `waits`: enum mini_go */
	uint64_t address;     /* where `reads`, `rings` (memory) and `inputs` (a port) go */
	uint64_t answered;    /* `rings` goes on when this is not under `counter` */
};

enum mini_go { MINI_STAY, MINI_GO_OFF, MINI_GO_SAY_OFF, MINI_GO_SAY };

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
	/* For ring 3, too: */
	MINI_WAITS,    /* counts until `go` is said: then it turns itself off, says a line on the serial port and turns itself off, or says the line and counts */
	MINI_READS,    /* reads 4 bytes at `address` and counts, again and again */
	MINI_INPUTS,   /* the same with a byte of a port */
	MINI_POKES,    /* reads and writes each 4 bytes of each register of the devices up to `address`, with the values 15 down to -1; then counts from 1 << 32 */
	MINI_RINGS,    /* counts, writes 4 bytes at `address` and waits until that is answered, again and again */
};

/* Sets up memory and the processor, so that it begins with the program. 0 or -errno. */
int mini_set(const struct kvm *k, int vcpu, const struct guest_memory *m, enum mini_program p, unsigned ring);
struct mini_data *mini_data(const struct guest_memory *m);

#endif
