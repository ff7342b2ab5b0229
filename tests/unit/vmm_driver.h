/* The driver's side of a virtio device, for tests: guest memory, set-up by registers, queues. A rule that the device breaks ends the process with a line that says so. */
#ifndef CUBICLE_TESTS_VMM_DRIVER_H
#define CUBICLE_TESTS_VMM_DRIVER_H

#include "vmm/virtio.h"

struct driver_queue {
	uint64_t desc, avail, used; /* guest addresses */
	uint16_t size, next_desc, next_avail, next_used;
};

struct driver {
	struct virtio_device *device;
	struct guest_memory *memory;
	uint64_t next; /* guest memory from here on is free */
	struct driver_queue queue[VIRTIO_QUEUES_MAX];
};

/* A buffer of a chain. */
struct part {
	uint64_t address;
	uint32_t n;
	bool writes; /* the device writes it */
};

/* One region from address 0 of exactly this many bytes (whole pages), zeroed; the sanitizer sees every byte beyond it. */
void driver_memory(struct guest_memory *ret, size_t bytes);
void driver_memory_done(struct guest_memory *m);

void driver_init(struct driver *d, struct virtio_device *device, struct guest_memory *m);
/* `n` bytes of guest memory, aligned to 16; what is there. */
uint64_t driver_alloc(struct driver *d, size_t n);
void *driver_at(const struct driver *d, uint64_t address, size_t n);

uint32_t driver_get(const struct driver *d, unsigned offset);
void driver_set(const struct driver *d, unsigned offset, uint32_t value);
uint64_t driver_offered(const struct driver *d);

/* The whole initialization (virtio 1.2, 3.1.1): reset, features (VERSION_1 is added), all queues with `size` entries, DRIVER_OK. Memory given out before is forgotten. */
void driver_start(struct driver *d, uint64_t features, uint16_t size);
/* Its parts: up to FEATURES_OK (false: refused), a queue. */
bool driver_negotiate(struct driver *d, uint64_t features);
void driver_queue(struct driver *d, unsigned index, uint16_t size);

/* Puts a chain into the queue (direct or as an indirect table) and tells its head; does not notify. No more descriptors than the queue has are to be under way. */
uint16_t driver_add(struct driver *d, unsigned queue, const struct part *parts, unsigned n);
uint16_t driver_add_indirect(struct driver *d, unsigned queue, const struct part *parts, unsigned n);
/* Descriptor i as given, and its place in the ring of what is available: for chains that no driver would make. */
void driver_descriptor(struct driver *d, unsigned queue, uint16_t i, uint64_t address, uint32_t n, uint16_t flags, uint16_t next);
void driver_offer(struct driver *d, unsigned queue, uint16_t head);
void driver_notify(const struct driver *d, unsigned queue);
/* Takes the next chain that came back. False: none did. The outputs may be NULL. */
bool driver_used(struct driver *d, unsigned queue, uint16_t *ret_head, uint32_t *ret_written);
/* As driver_used(), after as many turns of the loop as it takes. */
void driver_wait(struct driver *d, struct loop *l, unsigned queue, uint16_t *ret_head, uint32_t *ret_written);
/* InterruptStatus, acknowledged. */
uint32_t driver_interrupts(const struct driver *d);

#endif
