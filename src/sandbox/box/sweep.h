/* Takes away what an earlier run left and nobody adopted: processes, cgroups, disk images, control sockets, loop devices. */
#ifndef CUBICLE_SANDBOX_BOX_SWEEP_H
#define CUBICLE_SANDBOX_BOX_SWEEP_H

#include <stdbool.h>

struct host;

/* keep: whether a slot number is a living sandbox's. Blocks until the leftovers are gone (or some seconds, then it logs). On a worker that has entered the host. */
void sweep(struct host *h, bool (*keep)(unsigned number, void *arg), void *arg);

#endif
