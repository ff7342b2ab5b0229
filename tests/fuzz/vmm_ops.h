/*
 * What a guest may do to a virtio device, as the input of a fuzz target: a sequence of register accesses, bytes into memory, chains, notifications. Between them, so that an input gets
 * far, a driver's correct start; and what the monitor does: turns of the loop, save and load.
 */
#ifndef CUBICLE_TESTS_VMM_OPS_H
#define CUBICLE_TESTS_VMM_OPS_H

#include "../unit/vmm_driver.h"
#include "fuzz.h"

enum { OPS_MEMORY = 64 << 10 };

struct ops_world {
	struct guest_memory memory; /* of its exact size, on the heap */
	struct loop *loop;          /* may be NULL for devices that do without */
	struct driver driver;
};

void ops_begin(struct ops_world *w);
/* Gives the world its device, and does what the input says to it. */
void ops_run(struct ops_world *w, struct virtio_device *d, struct str input);
/* A device can always be reset and used again: starts it as a driver does, with all that is offered; then the target looks whether it works. */
void ops_again(struct ops_world *w);
void ops_end(struct ops_world *w);

#endif
