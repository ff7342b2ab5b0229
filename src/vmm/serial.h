/*
 * A serial port (16550A) as Linux's 8250 driver wants it: what the guest writes goes to a log, nothing ever comes in. Its eight registers are at LAYOUT_PORT_SERIAL, one byte each.
 * Thread-safe.
 */
#ifndef CUBICLE_VMM_SERIAL_H
#define CUBICLE_VMM_SERIAL_H

#include "base/buf.h"
#include "base/error.h"

enum {
	SERIAL_PORTS = 8,
	SERIAL_LOG_MAX = 256 * 1024, /* bytes of the log; when it is full, the newest half stays */
};

struct serial;

/*
 * log: a regular file open for reading and writing (what it holds is kept and counted), or something else that is just written to; -1 = nowhere. irq: an eventfd that interrupts the guest
 * (edge, LAYOUT_GSI_SERIAL); -1 = none. Both are owned from here, also on failure. NULL with *err.
 */
struct serial *serial_new(int log, int irq, struct error *err);
/* Takes NULL. Flushes. */
void serial_free(struct serial *s);

/* Register 0 to 7. */
uint8_t serial_read(struct serial *s, unsigned reg);
void serial_write(struct serial *s, unsigned reg, uint8_t value);

/* Writes out what has no line's end yet: before saving, and when the guest has ended. */
void serial_flush(struct serial *s);
/* The console has said that the kernel panicked. */
bool serial_panicked(struct serial *s);

/* The registers, not the log. load: 0 or -EINVAL; raises the interrupt again that the guest may be owed. */
void serial_save(struct serial *s, struct buf *to);
int serial_load(struct serial *s, struct str from);

#endif
