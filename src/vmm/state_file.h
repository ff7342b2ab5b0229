/*
 * The form of a saved state: a header, then blocks. Everything but the guest's memory is in it (that is a file of its own). Numbers are little-endian.
 *
 * Header, 64 bytes: magic "CUBVMST\n"; u32 version; u32 0; u64 bytes of the whole file; u64 bytes of the guest's memory; SHA-256 of the whole file with this field zero.
 * Block: u32 kind, u32 index, u64 bytes, the bytes. What a kind holds is the affair of state.c: mostly the kernel's structs of linux/kvm.h as they are.
 */
#ifndef CUBICLE_VMM_STATE_FILE_H
#define CUBICLE_VMM_STATE_FILE_H

#include "base/buf.h"
#include "base/error.h"

enum {
	STATE_VERSION = 1,
	STATE_HEADER = 64,
	STATE_MAX = 64 << 20, /* bytes of a state file */
};

enum state_kind {
	STATE_MACHINE = 1,
	STATE_CPUID,
	STATE_IRQCHIP, /* index: the chip */
	STATE_CLOCK,
	STATE_REGS,    /* from here on index: the processor */
	STATE_SREGS,
	STATE_XCRS,
	STATE_XSAVE,
	STATE_LAPIC,
	STATE_MSRS,
	STATE_DEBUGREGS,
	STATE_EVENTS,
	STATE_MP_STATE,
	STATE_DEVICE = 32, /* index: the device's place */
	STATE_SERIAL,
};

/* Building: begin, blocks, seal: then the buffer's bytes are the file. 0 or -ENOMEM from the last alone. */
void state_begin(struct buf *b);
void state_add(struct buf *b, enum state_kind kind, uint32_t index, const void *p, size_t n);
int state_seal(struct buf *b, uint64_t memory);

/* Numbers within blocks. */
void state_put(struct buf *b, uint64_t v, unsigned bytes);
/* Takes a number off *rest: false when it is not that long. */
bool state_take(struct str *rest, unsigned bytes, uint64_t *ret);

/* Is it a whole state file of our version? 0, or -EINVAL with what is wrong with it. */
int state_check(struct str file, uint64_t *ret_memory, struct error *err);
/* The block of a checked file: 0, or -EINVAL when there is none. */
int state_find(struct str file, enum state_kind kind, uint32_t index, struct str *ret, struct error *err);
/* Likewise, with exactly so many bytes, copied. */
int state_get(struct str file, enum state_kind kind, uint32_t index, void *to, size_t n, struct error *err);

#endif
