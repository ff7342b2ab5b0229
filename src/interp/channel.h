/* A ZeroMQ socket on our loop. */
#ifndef CUBICLE_INTERP_CHANNEL_H
#define CUBICLE_INTERP_CHANNEL_H

#include "interp/wire.h"
#include "io/loop.h"

#include <zmq.h>

/* A received message; kept as long as somebody holds a reference, so that its content can be passed on
 * without a copy. */
struct frames {
	unsigned refs;
	size_t n;
	zmq_msg_t parts[WIRE_MAX_FRAMES];
	struct str views[WIRE_MAX_FRAMES]; /* of the parts */
};
struct frames *frames_ref(struct frames *f);
/* Takes NULL. */
void frames_unref(struct frames *f);

struct channel;
/* May pause or free the channel. The frames are the channel's: take a reference to keep them. */
typedef void channel_fn(struct channel *c, struct frames *f, void *arg);

/* Whether more arrives than is read: told when that begins and ends. */
typedef void channel_behind_fn(bool behind, void *arg);

/* Connects a socket of `type` (ZMQ_DEALER; ZMQ_SUB subscribes to everything); the peer need not exist yet.
 * `behind` may be NULL. NULL with errno set. */
struct channel *channel_new(struct loop *l, void *zmq, int type, const char *endpoint, channel_fn *fn,
	channel_behind_fn *behind, void *arg);
/* Closes it; what was not sent is dropped. Takes NULL. */
void channel_free(struct channel *c);

/* Queues a message. 0 or -errno (-EAGAIN: the peer takes none, CHANNEL_QUEUE are waiting). */
int channel_send(struct channel *c, const struct str *frames, size_t n);

/* Stops and starts reading. While it is stopped at most CHANNEL_QUEUE messages wait here, then in the peer.
 * Afterwards it is behind until all that was read. */
void channel_pause(struct channel *c, bool on);

enum {
	CHANNEL_QUEUE = 4000,
	CHANNEL_MAX_FRAME = 128 << 20, /* a peer that sends a longer one is cut off */
};

#endif
