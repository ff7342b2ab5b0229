/* Saves a machine into files, and makes a machine what it was when it was saved. */
#ifndef CUBICLE_VMM_STATE_H
#define CUBICLE_VMM_STATE_H

#include "vmm/machine.h"

/* Of a paused machine, into two empty regular files; complete and on disk when this returns 0. Else -errno, and what was written is not valid: the state file's header comes last. */
int state_save(struct machine *m, int state, int memory, struct error *err);

/*
 * Of a new machine whose memory is a view of the saved memory file; before machine_start(). Of another version, another kind of machine, another CPU, damaged: refused, and why. 0 or -errno; after
 * an error the machine is of no use. The guest gets a new generation id, and finds its old connections dead.
 */
int state_restore(struct machine *m, int state, int memory, struct error *err);

#endif
