/*
 * One split virtqueue (virtio 1.2, 2.7), seen from the device. Every index, length, flag and address that the guest gives is read once and checked here, and nowhere else: a device gets
 * pointers into the guest's memory that are valid for their lengths. Not thread-safe: used on the loop that owns the device.
 */
#ifndef CUBICLE_VMM_VIRTQUEUE_H
#define CUBICLE_VMM_VIRTQUEUE_H

#include "base/buf.h"
#include "vmm/memory.h"

#include <stdbool.h>
#include <sys/uio.h>

enum {
	VIRTQUEUE_SIZE_MAX = 256, /* entries; every queue of ours offers this */
	CHAIN_PARTS_MAX = 256,    /* buffers of a chain, indirect ones too: a longer chain is an error of the guest */
};

struct virtqueue {
	const struct guest_memory *memory;
	uint16_t size;                 /* a power of two, as the guest chose; 0 < size <= VIRTQUEUE_SIZE_MAX when ready */
	uint64_t desc, avail, used;    /* guest addresses */
	uint16_t next_avail, next_used;
	uint16_t signalled;            /* value of next_used at the last interrupt, for event_idx */
	bool ready;
	bool event_idx;                /* VIRTIO_F_EVENT_IDX was accepted */
	bool broken;                   /* the guest broke a rule: nothing is read or written until it is reset */
};

/* Buffers of one request: first what the device reads, then what it writes (2.7.4.2: an order that the guest has to keep). */
struct chain {
	uint16_t head;
	unsigned n_in, n_out;            /* parts */
	struct iovec in[CHAIN_PARTS_MAX];  /* the device reads them */
	struct iovec out[CHAIN_PARTS_MAX]; /* the device writes them */
	size_t in_bytes, out_bytes;        /* sums; each at most UINT32_MAX */
};

/* The guest says that the queue is ready: are its three parts whole and aligned? 0 or -EINVAL (then it is not ready). */
int virtqueue_enable(struct virtqueue *q);
void virtqueue_reset(struct virtqueue *q);

/* Takes the next chain. 1, 0 (there is none), or -EPROTO: the guest broke a rule, the queue is broken from now on. */
int virtqueue_pop(struct virtqueue *q, struct chain *ret);
/* Is there a chain to pop? */
bool virtqueue_has(const struct virtqueue *q);
/* How many are there? More than `size` when the guest lies. */
unsigned virtqueue_waiting(const struct virtqueue *q);
/* Undoes the last virtqueue_pop(), before the next one; then the one before it, and so on, as long as nothing was pushed since. */
void virtqueue_unpop(struct virtqueue *q);
/* Gives a chain back, `written` bytes of its `out` were filled. */
void virtqueue_push(struct virtqueue *q, uint16_t head, uint32_t written);
/* Must the guest be interrupted for what was pushed since it was last? Call once after a batch of pushes. */
bool virtqueue_wants_interrupt(struct virtqueue *q);
/* Asks to be notified of new chains (`on`), beyond those that are there, or not to be while a batch is worked on. After turning it on look again with virtqueue_has() (or _waiting()):
 * one may have come before. */
void virtqueue_notifications(struct virtqueue *q, bool on);

/* Copies between a chain's parts and memory of ours, from `offset` of the sum on: the number of bytes, less when the parts end. */
size_t chain_read(const struct chain *c, size_t offset, void *to, size_t n);
size_t chain_write(const struct chain *c, size_t offset, const void *from, size_t n);

#endif
