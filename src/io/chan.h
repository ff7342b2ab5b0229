/* A message channel: a connected SEQPACKET socket on a loop that speaks io/messages.h. */
#ifndef CUBICLE_IO_CHAN_H
#define CUBICLE_IO_CHAN_H

#include "io/loop.h"
#include "io/messages.h"

#include <sys/types.h>

struct chan;

struct chan_message {
	struct msg_header header;
	const union msg_any *body; /* views valid during the callback */
	int fds[MSG_MAX_FDS];      /* taken by setting the entry to -1; the rest is closed after the callback */
	size_t n_fds;
	pid_t sender; /* from SCM_CREDENTIALS when the channel was made with CHAN_CREDENTIALS, else 0 */
};

struct chan_ops {
	void (*message)(struct chan *c, struct chan_message *m, void *arg);
	/* The peer is gone, or sent something out of the table (err->code = -EPROTO); the last call. The channel is freed after it. */
	void (*closed)(struct chan *c, const struct error *err, void *arg);
	/* May be NULL. What had to wait for room is sent: a long answer goes on. */
	void (*drained)(struct chan *c, void *arg);
};

enum chan_flags {
	CHAN_NO_FDS = 1,      /* hostile peer: descriptors are never received (the kernel drops them) */
	CHAN_CREDENTIALS = 2, /* ask for the sender's pid with each message */
};

/* fd (owned from here) is a connected SOCK_SEQPACKET. `accept` is the MSG_FROM_... mask that the peer may send; anything else closes. NULL with errno. */
struct chan *chan_new(struct loop *l, int fd, uint32_t accept, unsigned flags, const struct chan_ops *ops, void *arg);

/* Sends or queues (at most 32 MiB queued: then -ENOBUFS and the channel closes). fds are duplicated by the kernel, not owned. n_fds must be what the table says.
 * 0, -EMSGSIZE with *err, -EPIPE after the end, -ENOMEM. */
int chan_send(struct chan *c, enum msg_id type, const void *m, uint64_t request, const int *fds, size_t n_fds, struct error *err);
/* chan_send of an error message made from *e. */
int chan_send_error(struct chan *c, uint64_t request, const struct error *e);

/* Bytes that wait for room. A sender of much stops at > 0 and goes on in drained(). */
size_t chan_queued(const struct chan *c);

/* Takes what has arrived already, without waiting for the loop: before a peer is ended from here. message() and closed() as always, so c may be gone afterwards. Takes NULL. */
void chan_take(struct chan *c);

/* Closes without calling closed(). Takes NULL. */
void chan_free(struct chan *c);

/* Blocking single exchanges for start-up and tools: send one datagram; receive one into storage of MSG_MAX bytes. 0 or -errno; receive: -EPIPE at end of file. */
int msg_send_fd(int fd, enum msg_id type, const void *m, uint64_t request, const int *fds, size_t n_fds, struct error *err);
int msg_receive_fd(int fd, char *storage, struct msg_header *ret_header, union msg_any *ret, int *ret_fds, size_t *n_fds, struct error *err);

#endif
