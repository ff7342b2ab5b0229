/* Connections to TCP ports inside microVMs, through their monitors (vmm/layout.h, VSOCK_PORT_OPEN). On the loop. */
#ifndef CUBICLE_SANDBOX_MICROVM_OPENINGS_H
#define CUBICLE_SANDBOX_MICROVM_OPENINGS_H

#include "sandbox/namespace/box.h"

/* As box_open(). */
int opening_new(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg);
/* All that are under way end with -ECANCELED. */
void openings_cancel(struct backend *b);

#endif
