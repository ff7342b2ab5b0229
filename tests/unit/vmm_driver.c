#include "vmm_driver.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <stdio.h>
#include <stdlib.h>

#define must(condition)                                                                                      \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: the device breaks a rule: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                             \
		}                                                                                            \
	} while (0)

enum { PAGE = 4096 };

void driver_memory(struct guest_memory *ret, size_t bytes)
{
	char *host = aligned_alloc(PAGE, bytes);
	must(host && bytes % PAGE == 0);
	memset(host, 0, bytes);
	*ret = (struct guest_memory){.region = {{.size = bytes, .host = host}}, .n = 1};
}

void driver_memory_done(struct guest_memory *m)
{
	free(m->region[0].host);
}

void driver_init(struct driver *d, struct virtio_device *device, struct guest_memory *m)
{
	*d = (struct driver){.device = device, .memory = m};
}

void *driver_at(const struct driver *d, uint64_t address, size_t n)
{
	const struct memory_region *r = &d->memory->region[0];
	must(n <= r->size && address <= r->size - n);
	return r->host + address;
}

uint64_t driver_alloc(struct driver *d, size_t n)
{
	uint64_t at = (d->next + 15) & ~UINT64_C(15);
	driver_at(d, at, n);
	d->next = at + n;
	return at;
}

uint32_t driver_get(const struct driver *d, unsigned offset)
{
	uint32_t value;
	virtio_mmio_read(d->device, offset, &value, sizeof(value));
	return value;
}

void driver_set(const struct driver *d, unsigned offset, uint32_t value)
{
	virtio_mmio_write(d->device, offset, &value, sizeof(value));
}

static void add_status(const struct driver *d, uint32_t bit)
{
	driver_set(d, VIRTIO_MMIO_STATUS, driver_get(d, VIRTIO_MMIO_STATUS) | bit);
}

uint64_t driver_offered(const struct driver *d)
{
	uint64_t features = 0;
	for (unsigned half = 0; half < 2; half++) {
		driver_set(d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
		features |= (uint64_t)driver_get(d, VIRTIO_MMIO_DEVICE_FEATURES) << (32 * half);
	}
	return features;
}

bool driver_negotiate(struct driver *d, uint64_t features)
{
	driver_set(d, VIRTIO_MMIO_STATUS, 0);
	must(driver_get(d, VIRTIO_MMIO_STATUS) == 0);
	add_status(d, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	add_status(d, VIRTIO_CONFIG_S_DRIVER);
	for (unsigned half = 0; half < 2; half++) {
		driver_set(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
		driver_set(d, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)(features >> (32 * half)));
	}
	add_status(d, VIRTIO_CONFIG_S_FEATURES_OK);
	d->next = 0;
	return driver_get(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK;
}

static void set_address(const struct driver *d, unsigned low, uint64_t address)
{
	driver_set(d, low, (uint32_t)address);
	driver_set(d, low + 4, (uint32_t)(address >> 32));
}

void driver_queue(struct driver *d, unsigned index, uint16_t size)
{
	struct driver_queue *q = &d->queue[index];
	*q = (struct driver_queue){.size = size};
	q->desc = driver_alloc(d, sizeof(struct vring_desc) * size);
	q->avail = driver_alloc(d, 6 + 2 * (size_t)size);
	q->used = driver_alloc(d, 6 + 8 * (size_t)size);
	memset(driver_at(d, q->desc, q->used + 6 + 8 * (size_t)size - q->desc), 0, q->used + 6 + 8 * (size_t)size - q->desc);
	driver_set(d, VIRTIO_MMIO_QUEUE_SEL, index);
	must(driver_get(d, VIRTIO_MMIO_QUEUE_READY) == 0);
	must(driver_get(d, VIRTIO_MMIO_QUEUE_NUM_MAX) >= size);
	driver_set(d, VIRTIO_MMIO_QUEUE_NUM, size);
	set_address(d, VIRTIO_MMIO_QUEUE_DESC_LOW, q->desc);
	set_address(d, VIRTIO_MMIO_QUEUE_AVAIL_LOW, q->avail);
	set_address(d, VIRTIO_MMIO_QUEUE_USED_LOW, q->used);
	driver_set(d, VIRTIO_MMIO_QUEUE_READY, 1);
	must(driver_get(d, VIRTIO_MMIO_QUEUE_READY) == 1);
}

void driver_start(struct driver *d, uint64_t features, uint16_t size)
{
	must(driver_negotiate(d, features | UINT64_C(1) << VIRTIO_F_VERSION_1));
	for (unsigned i = 0; i < d->device->n_queues; i++)
		driver_queue(d, i, size);
	add_status(d, VIRTIO_CONFIG_S_DRIVER_OK);
	must(driver_get(d, VIRTIO_MMIO_STATUS) == (VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK));
}

void driver_descriptor(struct driver *d, unsigned queue, uint16_t i, uint64_t address, uint32_t n, uint16_t flags, uint16_t next)
{
	struct vring_desc desc = {.addr = address, .len = n, .flags = flags, .next = next};
	memcpy(driver_at(d, d->queue[queue].desc + i * sizeof(desc), sizeof(desc)), &desc, sizeof(desc));
}

void driver_offer(struct driver *d, unsigned queue, uint16_t head)
{
	struct driver_queue *q = &d->queue[queue];
	memcpy(driver_at(d, q->avail + 4 + 2 * (uint64_t)(q->next_avail % q->size), 2), &head, 2);
	q->next_avail++;
	__atomic_store_n((uint16_t *)driver_at(d, q->avail + 2, 2), q->next_avail, __ATOMIC_RELEASE);
}

static uint16_t flags_of(const struct part *p, bool last)
{
	return (uint16_t)((p->writes ? VRING_DESC_F_WRITE : 0) | (last ? 0 : VRING_DESC_F_NEXT));
}

uint16_t driver_add(struct driver *d, unsigned queue, const struct part *parts, unsigned n)
{
	struct driver_queue *q = &d->queue[queue];
	uint16_t head = q->next_desc;
	must(n > 0 && n <= q->size);
	for (unsigned i = 0; i < n; i++) {
		uint16_t at = q->next_desc, next = (uint16_t)((at + 1) % q->size);
		driver_descriptor(d, queue, at, parts[i].address, parts[i].n, flags_of(&parts[i], i + 1 == n), next);
		q->next_desc = next;
	}
	driver_offer(d, queue, head);
	return head;
}

uint16_t driver_add_indirect(struct driver *d, unsigned queue, const struct part *parts, unsigned n)
{
	struct driver_queue *q = &d->queue[queue];
	uint16_t head = q->next_desc;
	uint64_t table = driver_alloc(d, n * sizeof(struct vring_desc));
	for (unsigned i = 0; i < n; i++) {
		struct vring_desc desc = {.addr = parts[i].address, .len = parts[i].n, .flags = flags_of(&parts[i], i + 1 == n), .next = (uint16_t)(i + 1)};
		memcpy(driver_at(d, table + i * sizeof(desc), sizeof(desc)), &desc, sizeof(desc));
	}
	driver_descriptor(d, queue, head, table, (uint32_t)(n * sizeof(struct vring_desc)), VRING_DESC_F_INDIRECT, 0);
	q->next_desc = (uint16_t)((head + 1) % q->size);
	driver_offer(d, queue, head);
	return head;
}

void driver_notify(const struct driver *d, unsigned queue)
{
	driver_set(d, VIRTIO_MMIO_QUEUE_NOTIFY, queue);
}

bool driver_used(struct driver *d, unsigned queue, uint16_t *ret_head, uint32_t *ret_written)
{
	struct driver_queue *q = &d->queue[queue];
	struct vring_used_elem e;
	uint16_t index = __atomic_load_n((const uint16_t *)driver_at(d, q->used + 2, 2), __ATOMIC_ACQUIRE);
	must((uint16_t)(index - q->next_used) <= q->size);
	if (index == q->next_used)
		return false;
	memcpy(&e, driver_at(d, q->used + 4 + sizeof(e) * (q->next_used % q->size), sizeof(e)), sizeof(e));
	must(e.id < q->size);
	q->next_used++;
	if (ret_head)
		*ret_head = (uint16_t)e.id;
	if (ret_written)
		*ret_written = e.len;
	return true;
}

void driver_wait(struct driver *d, struct loop *l, unsigned queue, uint16_t *ret_head, uint32_t *ret_written)
{
	while (!driver_used(d, queue, ret_head, ret_written))
		must(loop_turn(l, -1) == 0);
}

uint32_t driver_interrupts(const struct driver *d)
{
	uint32_t status = driver_get(d, VIRTIO_MMIO_INTERRUPT_STATUS);
	driver_set(d, VIRTIO_MMIO_INTERRUPT_ACK, status);
	return status;
}
