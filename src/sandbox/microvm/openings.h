/* Connections to TCP ports inside microVMs, through their monitors (vmm/layout.h, VSOCK_PORT_OPEN). On the loop. */
#ifndef CUBICLE_SANDBOX_MICROVM_OPENINGS_H
#define CUBICLE_SANDBOX_MICROVM_OPENINGS_H

#include "sandbox/box/box.h"

/* As box_open(). What the monitor was asked when the connection to it breaks ends with -ECONNREFUSED. */
int opening_new(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg);
/* The box goes: what was begun sees the end of its stream. */
void openings_leave(struct box *b);
/* All that are under way end with -ECANCELED. */
void openings_cancel(struct backend *b);

#endif
