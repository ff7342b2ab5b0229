/*
 * Connections from outside to TCP ports inside, of a machine of its own: node's monitor connects to a vsock port (vmm/layout.h), says in two bytes (little-endian) which port is meant, and is
 * answered with one: 0, it is connected, or an errno. Then the bytes of both sides are copied, each side's end as well.
 */
#ifndef CUBICLE_GUEST_PORTS_H
#define CUBICLE_GUEST_PORTS_H

#include "io/loop.h"

#include <stdint.h>

struct ports;

/* Serves the listening socket (owned by the caller, non-blocking from here on). own_address: the machine's, host byte order, tried behind 127.0.0.1 and ::1; 0 = none. NULL with errno. */
struct ports *ports_new(struct loop *l, int listen_fd, uint32_t own_address);
/* Ends all connections. Takes NULL. */
void ports_free(struct ports *p);

/* A process that does this alone, as a child of the caller. */
struct ports_keeper;
/* Starts it; listen_fd is owned from here. NULL with errno. */
struct ports_keeper *ports_keeper_new(int listen_fd, uint32_t own_address);
/* From now on it is started anew when it ends. 0 or -errno. */
int ports_keeper_watch(struct ports_keeper *k, struct loop *l);

#endif
