/* A guest's side of virtio sockets, for tests of the device: it answers requests, keeps to the credit it is given, and collects what comes. */
#ifndef CUBICLE_TESTS_VSOCK_GUEST_H
#define CUBICLE_TESTS_VSOCK_GUEST_H

#include "vmm_driver.h"
#include "base/buf.h"
#include "vmm/devices.h"
#include "vmm/layout.h"

#include <linux/virtio_vsock.h>

enum { GUEST_RX, GUEST_TX, GUEST_EVENT, GUEST_CONNECTIONS = 1200, GUEST_QUEUE = 64, GUEST_BUFFER = 4096, GUEST_PACKET_MAX = 64 * 1024 };

struct guest_conn {
	uint32_t host_port, port;
	uint16_t type;
	bool open, gone;               /* RESPONSE went either way; RST came */
	uint32_t shut;                 /* of the host */
	uint32_t received, taken;      /* by the guest: fwd_cnt */
	uint32_t sent, host_alloc, host_forwarded;
	struct buf got;
	unsigned messages, credit_requests;
	size_t message[64];            /* lengths of messages that are whole */
	size_t message_start;
	uint32_t last_flags;
	unsigned strays_before;        /* the first byte: packets for no connection that came before it */
	bool hold;                     /* nothing is taken from the host for now: the credit runs out */
};

struct vsock_guest {
	struct loop *loop;
	struct guest_memory memory;
	struct virtio_device *device;
	struct driver d;
	uint64_t rx[GUEST_QUEUE], tx, event[GUEST_QUEUE];
	uint16_t kicked[3];            /* next_avail at the last notification */
	bool refuses;                  /* no port has a listener */
	bool starves;                  /* buffers are not given back */
	uint32_t alloc;                /* buf_alloc of new connections */
	unsigned n, strays;            /* connections; packets for none */
	struct virtio_vsock_hdr stray; /* the last */
	struct guest_conn *conn[GUEST_CONNECTIONS];
};

/* A device and a guest that has no driver yet; control as in struct vsock_config. */
void vsock_guest_init(struct vsock_guest *g, int control, void (*up)(void *arg), void *arg);
void vsock_guest_done(struct vsock_guest *g);
/* The driver begins; buffers are given to rx and event. */
void vsock_guest_start(struct vsock_guest *g);
/* Connects to the host's control port: the first time the host's connections come. */
struct guest_conn *vsock_guest_up(struct vsock_guest *g);
/* Takes what came and gives the loop one turn of at most so long. */
void vsock_guest_turn(struct vsock_guest *g, int ms);
#define vsock_guest_until(g, condition) \
	while (!(condition))            \
	vsock_guest_turn(g, 20)
/* Notifies the device if it wants that (VIRTIO_F_EVENT_IDX is agreed upon). */
void vsock_guest_kick(struct vsock_guest *g, unsigned queue);
/* Sends a packet as it is. */
void vsock_guest_raw(struct vsock_guest *g, const struct virtio_vsock_hdr *h, const void *data, size_t n);
struct virtio_vsock_hdr vsock_guest_header(const struct vsock_guest *g, const struct guest_conn *c, uint16_t op);
void vsock_guest_say(struct vsock_guest *g, struct guest_conn *c, uint16_t op, uint32_t flags);
/* As much of the bytes as there is credit for, in one packet. */
size_t vsock_guest_send(struct vsock_guest *g, struct guest_conn *c, const void *data, size_t n, uint32_t flags);
uint32_t vsock_guest_credit(const struct guest_conn *c);
/* The guest's program reads what has come and throws it away. */
void vsock_guest_take(struct vsock_guest *g, struct guest_conn *c);
/* Buffers for packets that were kept back while it starved. */
void vsock_guest_feed(struct vsock_guest *g);

#endif
