/*
 * What may stand between the bytes of a connection and its socket: TLS (io/tls.h). The HTTP server knows only this, so that programs without TLS do not link it.
 * Nothing here waits; all calls for one connection come from its loop's thread.
 */
#ifndef CUBICLE_IO_TRANSPORT_H
#define CUBICLE_IO_TRANSPORT_H

#include "base/buf.h"

#include <sys/types.h>
#include <sys/uio.h>

struct transport;

/* Of a peer that lets more than this wait for it, read() takes nothing: -EAGAIN. */
enum { TRANSPORT_MAX_QUEUED = 128 * 1024 };

struct transport_ops {
	/*
	 * As recv(2): bytes, 0 when the peer ended its half regularly, or -errno. -EAGAIN: wait for the socket. -EPROTO: the peer broke the protocol, and was
	 * told so; -EPROTONOSUPPORT: its very first bytes are plain HTTP, the socket may be answered as such. An end of the socket that the peer
	 * did not announce is -ECONNRESET: what came before it may be cut.
	 */
	ssize_t (*read)(struct transport *t, void *p, size_t n);
	/* More can be read although the socket may have nothing: call read() again without waiting. */
	bool (*pending)(const struct transport *t);
	/* The peer closed and sent nothing before that. May read the socket; what comes is kept. */
	bool (*at_end)(struct transport *t);
	/* As sendq_send(). With a full socket some of the bytes may be inside here: see queued(). */
	ssize_t (*write)(struct transport *t, struct buf *queue, const struct iovec *parts, int n);
	/* Bytes inside that the socket has not taken; write() without parts goes on with them. */
	size_t (*queued)(const struct transport *t);
	/* The peer may be talked to; before that nothing may be written. */
	bool (*ready)(const struct transport *t);
	/* Queues the announcement that nothing more will be written. */
	void (*end)(struct transport *t);
	/* Does not close the socket. */
	void (*free)(struct transport *t);
};

struct transport {
	const struct transport_ops *ops;
};

/* Makes one for a socket that was just accepted (not owned). NULL: the connection is closed. */
typedef struct transport *transport_accept_fn(int fd, void *arg);

#endif
