/*
 * A virtio device behind the MMIO transport (virtio 1.2, 4.2). A device lives on the monitor's loop: all of its functions are called there. The processors' threads only pass register
 * accesses on (vcpu.h) and wait for them, but for the interrupt status and its acknowledgement, which are atomic.
 */
#ifndef CUBICLE_VMM_VIRTIO_H
#define CUBICLE_VMM_VIRTIO_H

#include "io/loop.h"
#include "vmm/virtqueue.h"

#include <stdatomic.h>

enum { VIRTIO_QUEUES_MAX = 8 };

enum virtio_id { VIRTIO_NET = 1, VIRTIO_BLOCK = 2, VIRTIO_ENTROPY = 4, VIRTIO_BALLOON = 5, VIRTIO_VSOCK = 19 };

struct virtio_device;

/* What a kind of device is. Pointers may be NULL where nothing is said against it. */
struct virtio_ops {
	enum virtio_id id;
	const char *name;
	/* The driver is ready: queues are valid, `accepted` holds. */
	void (*activate)(struct virtio_device *d);
	/* The guest resets it: when this returns, nothing of the device touches the guest's memory any more. `active` is false already, the queues are reset after it. Also called
	 * before free and load, and for devices that are not active. */
	void (*reset)(struct virtio_device *d);
	/* Not NULL. The guest has put something into the queue. Called for active devices only; spurious calls happen. */
	void (*notify)(struct virtio_device *d, unsigned queue);
	/* The guest writes into its configuration space: `n` of 1, 2, 4, 8 bytes, checked to lie in `config_size`. */
	void (*config_write)(struct virtio_device *d, unsigned offset, const void *from, unsigned n);
	/* Waits until nothing is under way (requests that workers have): then the state of queues and device is what can be saved. Requests that come later wait until resume(). */
	void (*quiesce)(struct virtio_device *d);
	void (*resume)(struct virtio_device *d);
	/* The device's own state, beside what the transport saves. load(): 0 or -EINVAL; hostile bytes are possible (a damaged file). It comes after reset() and before activate(). */
	void (*save)(struct virtio_device *d, struct buf *to);
	int (*load)(struct virtio_device *d, struct str from);
	/* Frees the struct, too. NULL: free(d). */
	void (*free)(struct virtio_device *d);
};

/* The first member of every device's struct. */
struct virtio_device {
	const struct virtio_ops *ops;
	struct loop *loop;
	const struct guest_memory *memory;
	uint64_t offered;          /* features; the transport adds VERSION_1, INDIRECT_DESC and EVENT_IDX */
	unsigned n_queues, config_size;
	const void *config;        /* the configuration space, of that size: what the guest reads of it */
	/* The transport's, for devices to read: */
	uint64_t accepted;
	bool active;               /* DRIVER_OK, and neither reset nor broken since: whoever comes from elsewhere than notify() (a socket, a timer) looks here first */
	struct virtqueue queue[VIRTIO_QUEUES_MAX];
	int irq;                   /* eventfd that interrupts the guest; -1 in unit tests */
	int notified;              /* eventfd that the kernel writes when the guest notifies any queue (KVM_IOEVENTFD on QueueNotify without a data match); -1 in unit tests */
	struct loop_fd *watch;     /* of `notified` */
	/* The transport's own: */
	uint32_t status, features_select, driver_features_select, queue_select;
	uint64_t driver_features;
	uint32_t config_generation;
	unsigned complaints;       /* about the guest, that were logged */
	atomic_uint interrupt_status;
};

/* Fills the common part; the caller has set `ops`, `offered`, `n_queues`, `config_size`, `config`. Makes the eventfds and watches `notified`, unless loop is NULL (unit tests). 0 or -errno; virtio_free() is due
 * in both cases. */
int virtio_init(struct virtio_device *d, struct loop *l, const struct guest_memory *m, struct error *err);
/* Takes NULL. Resets, closes, calls ops->free. */
void virtio_free(struct virtio_device *d);
/* What the _new() of a device returns: d, or NULL when its making failed (r < 0), and then d is freed. */
struct virtio_device *virtio_made(struct virtio_device *d, int r);

/* A register access: offset below 0x100 + config_size else zeros and nothing; size 1, 2, 4, and 8 in the configuration space (registers are 4 bytes wide: other sizes below 0x100
 * read 0, do nothing). On the loop. */
void virtio_mmio_read(struct virtio_device *d, uint64_t offset, void *to, unsigned n);
void virtio_mmio_write(struct virtio_device *d, uint64_t offset, const void *from, unsigned n);
/* The two that need no loop, from any thread: InterruptStatus (0x60), and InterruptACK (0x64). True when it was one of them. */
bool virtio_mmio_quick(struct virtio_device *d, uint64_t offset, bool write, void *data, unsigned n);

/* Something was pushed: interrupts the guest if the queue wants it. */
void virtio_used(struct virtio_device *d, struct virtqueue *q);
/* Calls notify() for all queues on a later turn of the loop: for a device that has done enough in this one. */
void virtio_again(struct virtio_device *d);
/* The configuration has changed: new generation, interrupt. */
void virtio_config_changed(struct virtio_device *d);
/* The guest broke a rule: status DEVICE_NEEDS_RESET, `active` false, nothing more is done for it until it resets the device. Logs that, the first few times. */
void virtio_broken(struct virtio_device *d, const char *what);

/* Transport and queues and what ops->save() says, one block; version inside. load: 0 or -EINVAL; then the device is active again if it was. */
void virtio_save(struct virtio_device *d, struct buf *to);
int virtio_load(struct virtio_device *d, struct str from, struct error *err);

#endif
