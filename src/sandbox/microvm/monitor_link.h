/* Node's connection to a microVM's monitor, and its being made anew when it alone breaks. On the loop. */
#ifndef CUBICLE_SANDBOX_MICROVM_MONITOR_LINK_H
#define CUBICLE_SANDBOX_MICROVM_MONITOR_LINK_H

#include "sandbox/box/box.h"

struct monitor_link;

/* Over fd, which it owns from here, of the box's monitor. NULL with errno. */
struct monitor_link *monitor_link_new(struct box *b, int fd);
/* Takes NULL. */
void monitor_link_free(struct monitor_link *l);
/* Will the monitor be asked? 0, -ENOTCONN: the connection broke and is not there again yet; -EAGAIN: it has not taken what it was asked already. */
int monitor_link_ready(const struct monitor_link *l);
/* Has `fd` (duplicated) connected to a vsock port inside. What goes wrong from then on shows on fd. 0 or -errno. */
int monitor_link_open(struct monitor_link *l, unsigned port, int fd);

#endif
