/* The devices of a guest. Each _new() takes over the descriptors it is given (also on failure) and returns NULL with *err. virtio_free() ends them. */
#ifndef CUBICLE_VMM_DEVICES_H
#define CUBICLE_VMM_DEVICES_H

#include "vmm/virtio.h"

/* --- block.c: a disk --- */
struct block_config {
	int file;                   /* a regular file or a block device */
	bool read_only;
	uint64_t bytes_per_second;  /* 0 = no limit; a burst of a second's worth is let through */
	uint64_t operations_per_second;
};
struct virtio_device *block_new(struct loop *l, const struct guest_memory *m, const struct block_config *c, struct error *err);

/* --- net.c: a tap with vnet headers --- */
struct net_config {
	int tap;                    /* IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, header of 12 bytes set, non-blocking */
	unsigned char mac[6];
	uint16_t mtu;
};
struct virtio_device *net_new(struct loop *l, const struct guest_memory *m, const struct net_config *c, struct error *err);

/* --- entropy.c --- */
struct virtio_device *entropy_new(struct loop *l, const struct guest_memory *m, struct error *err);

/* --- balloon.c: with free page reporting --- */
struct virtio_device *balloon_new(struct loop *l, const struct guest_memory *m, struct error *err);
/* How much memory the guest is asked to give up, in pages of 4 KiB; how much it has given up. */
void balloon_set_target(struct virtio_device *d, uint32_t pages);
uint32_t balloon_actual(const struct virtio_device *d);

/* --- vsock.c: connections to programs inside, multiplexed (layout.h) --- */
struct vsock_config {
	int control; /* a listening SEQPACKET socket: each connection to it becomes one to VSOCK_PORT_CONTROL inside, messages kept whole; -1 = none */
	/* The guest has connected to host port VSOCK_PORT_CONTROL for the first time; connections wait for that. NULL = nobody wants to know. */
	void (*up)(void *arg);
	void *arg;
};
struct virtio_device *vsock_new(struct loop *l, const struct guest_memory *m, const struct vsock_config *c, struct error *err);
/* Connects the socket (connected, stream; owned from here) to the port inside. When nobody listens there, or the guest is gone, the socket is closed. 0, or -EAGAIN when too many are open, or
 * -ENOMEM: then it is closed, too. */
int vsock_connect(struct virtio_device *d, int socket, uint32_t port);
/* After a restore, before the guest runs: connections that existed are dead for the guest (VIRTIO_VSOCK_EVENT_TRANSPORT_RESET), listeners inside live on. The
 * guest counts as up. Connections from the host are made when it has heard of that; those that came before this call are among them. */
void vsock_restored(struct virtio_device *d);

#endif
