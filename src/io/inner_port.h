/* Connecting to a TCP port of where the calling thread is, whatever address the program that serves it has chosen: 127.0.0.1, ::1, or the address of the link. Nothing here waits. */
#ifndef CUBICLE_IO_INNER_PORT_H
#define CUBICLE_IO_INNER_PORT_H

#include <stdint.h>

enum { INNER_PORT_ADDRESSES = 3 }; /* tried in this order; the last is the link's */

/* Begins to connect to the address of that number; link_address in host byte order. *ret_fd: a non-blocking socket, the caller's, or -1. As inner_port_state(). */
int inner_port_begin(unsigned address, uint32_t link_address, uint16_t port, int *ret_fd);
/* 1 = connected, 0 = not yet, or -errno. */
int inner_port_state(int fd);

#endif
