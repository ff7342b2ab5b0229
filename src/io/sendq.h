/* Sending on a non-blocking stream socket: what it does not take is queued. */
#ifndef CUBICLE_IO_SENDQ_H
#define CUBICLE_IO_SENDQ_H

#include "base/buf.h"

#include <sys/uio.h>

enum { SENDQ_PARTS = 3 };

/*
 * One sendmsg() of the queue and then the parts (at most SENDQ_PARTS; they are not copied when the socket takes them). The rest is queued: then the
 * socket is full, wait for EPOLLOUT. Returns the bytes sent, or -errno (-ENOMEM: the rest is lost); never raises SIGPIPE.
 */
ssize_t sendq_send(int fd, struct buf *queue, const struct iovec *parts, int n);

#endif
