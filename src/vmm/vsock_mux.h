/*
 * The connections of a virtio socket device (virtio 1.2, 5.10), apart from its queues: vsock_mux.c has the table of them and says which of them sends next, vsock_conn.c is one of them.
 *
 * A connection from the host has a host port that no other has or had: its slot in the low bits, a serial number above. Its bytes for the guest stay in the host's socket until the guest
 * has room for them; what the guest sends and the host's socket does not take is kept here, at most `buffer`, which is what the guest is told it may send (buf_alloc).
 */
#ifndef CUBICLE_VMM_VSOCK_MUX_H
#define CUBICLE_VMM_VSOCK_MUX_H

#include "io/loop.h"
#include "vmm/layout.h"
#include "vmm/virtqueue.h"

#include <linux/virtio_vsock.h>

enum {
	VSOCK_SLOT_BITS = 10,
	VSOCK_CONNECTIONS = 1 << VSOCK_SLOT_BITS,
	VSOCK_RESERVED = 16,                /* of them, for VSOCK_PORT_CONTROL only */
	VSOCK_BUFFER = 128 * 1024,          /* bytes; of streams that begin while there are many, less */
	VSOCK_MESSAGE_MAX = 64 * 1024,      /* bytes of a SEQPACKET message */
	VSOCK_PACKET_MAX = 64 * 1024,       /* bytes in one packet to the guest */
	VSOCK_REFUSALS = 256,
	VSOCK_HEADER = sizeof(struct virtio_vsock_hdr),
};

enum vsock_state {
	VSOCK_WAITING,   /* the guest knows nothing of it */
	VSOCK_REQUESTED, /* the guest is to answer */
	VSOCK_ACCEPTED,  /* we are to answer */
	VSOCK_OPEN,
	VSOCK_ENDING,    /* RST is to be sent, then it is freed; the host's socket is closed */
	VSOCK_LEFT,      /* the guest has forgotten it; what it sent before is being written to the host */
};

struct vsock_mux;

struct vsock_conn {
	struct vsock_mux *mux;
	struct vsock_conn *prev, *next; /* while it waits for its turn to send */
	bool queued;
	enum vsock_state state;
	bool seqpacket;
	bool kept;                     /* the guest's own, by which it says that it is up; has no descriptor */
	uint32_t host_port, guest_port, slot;
	int fd;                        /* -1 = closed */
	struct loop_fd *watch;         /* edge-triggered: `readable` and `writable` hold until EAGAIN */
	bool readable, writable;
	/* Host to guest */
	bool ended;                    /* nothing more comes from the host, or the guest wants no more */
	struct buf message;            /* SEQPACKET: what of a message is not yet sent */
	bool end_of_record;            /* of `message`: MSG_EOR */
	uint32_t sent;                 /* tx_cnt: bytes, all told */
	uint32_t peer_alloc, peer_forwarded; /* what the guest last said */
	bool asked;                    /* CREDIT_REQUEST was sent, and no credit came */
	/* Guest to host */
	bool deaf;                     /* the host takes nothing any more: what comes is dropped */
	bool ended_host;               /* the host was told that nothing more comes */
	struct buf in;                 /* not yet taken by the host; SEQPACKET: whole messages, each behind a uint32_t of length and flag */
	struct buf part;               /* SEQPACKET: of a message whose end has not come */
	uint32_t buffer;               /* bytes that may be held here */
	uint32_t received, forwarded;  /* bytes, all told; the difference is held here */
	uint32_t told;                 /* `forwarded` as the guest knows it */
	bool update;                   /* CREDIT_UPDATE is to be sent */
	/* VIRTIO_VSOCK_SHUTDOWN_... */
	uint32_t shut, shut_told;      /* ours: what holds, what the guest knows */
	uint32_t guest_shut;
};

struct vsock_mux {
	struct loop *loop;
	/* There may be something to send, or room for new connections. */
	void (*changed)(void *arg);
	/* The guest has connected to VSOCK_PORT_CONTROL. */
	void (*up_now)(void *arg);
	void *arg;
	bool seqpacket;                /* the guest knows SEQPACKET */
	bool up;                       /* connections from the host need not wait */
	bool held;                     /* but for this */
	uint32_t serial;               /* of the newest host port */
	unsigned n;
	struct vsock_conn *conn[VSOCK_CONNECTIONS];
	struct vsock_conn *kept;       /* one of them */
	struct vsock_conn *first, *last; /* wait for their turn */
	bool refused_last;             /* refusals and connections take turns */
	unsigned first_refusal, n_refusals;
	struct vsock_refusal {
		uint32_t host_port, guest_port;
		uint16_t type;
	} refusal[VSOCK_REFUSALS];
	char scratch[VSOCK_MESSAGE_MAX + 1];
};

/* --- vsock_mux.c --- */
void vsock_mux_init(struct vsock_mux *m, struct loop *l);
void vsock_mux_done(struct vsock_mux *m);
/* Takes over the socket, also on failure: 0, -EAGAIN (too many), -ENOMEM. */
int vsock_mux_connect(struct vsock_mux *m, int fd, bool seqpacket, uint32_t guest_port);
/* Is there room for one more to VSOCK_PORT_CONTROL, or to another port? */
bool vsock_mux_room(struct vsock_mux *m, bool control);
/* The guest knows of no connection any more: those that it knew are closed. It is not up. */
void vsock_mux_forget(struct vsock_mux *m);
/* `up` or `held` has changed. */
void vsock_mux_wake(struct vsock_mux *m);
/* A packet of the guest: its header, which was read once, and the chain that it begins. Only while not full. */
void vsock_mux_packet(struct vsock_mux *m, const struct virtio_vsock_hdr *h, const struct chain *from);
/* No packets can be taken until some of what waits is sent. */
bool vsock_mux_full(const struct vsock_mux *m);
/* Does something wait to be sent? (It may turn out that not.) */
bool vsock_mux_pending(const struct vsock_mux *m);
/* Writes the next packet to a chain with more room than a header: its size, 0 = there is none. */
size_t vsock_mux_emit(struct vsock_mux *m, const struct chain *to);

/* For vsock_conn.c: puts it into the queue of those that want to send; takes it out of the table. */
void vsock_mux_queue(struct vsock_conn *c);
void vsock_mux_remove(struct vsock_conn *c);

/* --- vsock_conn.c --- */
struct vsock_conn *vsock_conn_new(struct vsock_mux *m, int fd, enum vsock_state s);
void vsock_conn_free(struct vsock_conn *c);
/* Has it something to send? */
bool vsock_conn_wants(const struct vsock_conn *c);
/* As vsock_mux_emit(); may free the connection. Queues it again when it wants more. */
size_t vsock_conn_emit(struct vsock_conn *c, const struct chain *to);
/* May free the connection. */
void vsock_conn_packet(struct vsock_conn *c, const struct virtio_vsock_hdr *h, const struct chain *from);
/* Both directions are over, and all is sent but for the guest's RST. */
bool vsock_conn_over(const struct vsock_conn *c);
/* Fills in a header. */
struct virtio_vsock_hdr vsock_header(uint32_t host_port, uint32_t guest_port, uint16_t type, enum virtio_vsock_op op);

#endif
