/* How node governs a monitor: a listening SEQPACKET socket, messages vm_* of io/messages.h. One connection counts, the newest; the monitor goes on without one. */
#ifndef CUBICLE_VMM_ADMIN_H
#define CUBICLE_VMM_ADMIN_H

#include "vmm/machine.h"

struct admin;

/* `listening` is not owned. NULL with *err. */
struct admin *admin_new(struct loop *l, int listening, struct machine *m, struct error *err);
/* Takes NULL. */
void admin_free(struct admin *a);

#endif
