#include "vmm/virtqueue.h"

#include "base/cleanup.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <linux/virtio_ring.h>
#include <stdatomic.h>

/* Sizes of the three parts (2.7); the two event fields are there whether or not they were agreed upon. */
static uint64_t desc_bytes(const struct virtqueue *q)
{
	return sizeof(struct vring_desc) * (uint64_t)q->size;
}

static uint64_t avail_bytes(const struct virtqueue *q)
{
	return 6 + 2 * (uint64_t)q->size;
}

static uint64_t used_bytes(const struct virtqueue *q)
{
	return 6 + 8 * (uint64_t)q->size;
}

/* The rings, which virtqueue_enable() has seen to lie in memory. */
static char *avail_ring(const struct virtqueue *q)
{
	char *p = memory_at(q->memory, q->avail, avail_bytes(q));
	assert(p);
	return p;
}

static char *used_ring(const struct virtqueue *q)
{
	char *p = memory_at(q->memory, q->used, used_bytes(q));
	assert(p);
	return p;
}

static uint16_t load16(const char *p, int order)
{
	return le16toh(__atomic_load_n((const uint16_t *)(const void *)p, order));
}

static void store16(char *p, uint16_t value, int order)
{
	__atomic_store_n((uint16_t *)(void *)p, htole16(value), order);
}

static void store32(char *p, uint32_t value)
{
	__atomic_store_n((uint32_t *)(void *)p, htole32(value), __ATOMIC_RELAXED);
}

static bool usable(const struct virtqueue *q)
{
	return q->ready && !q->broken;
}

int virtqueue_enable(struct virtqueue *q)
{
	q->ready = false;
	if (q->size == 0 || q->size > VIRTQUEUE_SIZE_MAX || (q->size & (q->size - 1)) != 0)
		return -EINVAL;
	if (q->desc % 16 || q->avail % 2 || q->used % 4)
		return -EINVAL;
	if (!memory_at(q->memory, q->desc, desc_bytes(q)) || !memory_at(q->memory, q->avail, avail_bytes(q)) || !memory_at(q->memory, q->used, used_bytes(q)))
		return -EINVAL;
	q->ready = true;
	return 0;
}

void virtqueue_reset(struct virtqueue *q)
{
	*q = (struct virtqueue){.memory = q->memory};
}

/* The index is read before what it says is there. */
static uint16_t avail_index(const struct virtqueue *q)
{
	return load16(avail_ring(q) + 2, __ATOMIC_ACQUIRE);
}

bool virtqueue_has(const struct virtqueue *q)
{
	return usable(q) && avail_index(q) != q->next_avail;
}

unsigned virtqueue_waiting(const struct virtqueue *q)
{
	return usable(q) ? (uint16_t)(avail_index(q) - q->next_avail) : 0;
}

/* One look at a descriptor, which need not be aligned in an indirect table; the fence keeps the compiler from looking again. */
static struct vring_desc read_desc(const char *table, size_t index)
{
	struct vring_desc d;
	memcpy(&d, table + index * sizeof(d), sizeof(d));
	atomic_signal_fence(memory_order_seq_cst);
	return (struct vring_desc){.addr = le64toh(d.addr), .len = le32toh(d.len), .flags = le16toh(d.flags), .next = le16toh(d.next)};
}

static int add_part(const struct virtqueue *q, struct chain *c, const struct vring_desc *d)
{
	bool writes = d->flags & VRING_DESC_F_WRITE;
	size_t *sum = writes ? &c->out_bytes : &c->in_bytes;
	if (c->n_in + c->n_out == CHAIN_PARTS_MAX || d->len > UINT32_MAX - *sum)
		return -EPROTO;
	if (!writes && c->n_out)
		return -EPROTO;
	void *p = memory_at(q->memory, d->addr, d->len);
	if (!p)
		return -EPROTO;
	*sum += d->len;
	*(writes ? &c->out[c->n_out++] : &c->in[c->n_in++]) = (struct iovec){p, d->len};
	return 0;
}

/* Ends on every input: each step adds one of CHAIN_PARTS_MAX parts, or enters the one indirect table that a chain may have. */
static int walk(const struct virtqueue *q, uint16_t head, struct chain *c)
{
	const char *table = memory_at(q->memory, q->desc, desc_bytes(q));
	size_t n = q->size, index = head;
	bool indirect = false;
	c->head = head;
	c->n_in = c->n_out = 0;
	c->in_bytes = c->out_bytes = 0;
	for (;;) {
		if (index >= n)
			return -EPROTO;
		struct vring_desc d = read_desc(table, index);
		if (d.flags & VRING_DESC_F_INDIRECT) {
			/* 2.7.5.3.1: not within another, the last of its chain. Whether it is "write-only" means nothing. */
			if (indirect || d.flags & VRING_DESC_F_NEXT || d.len % sizeof(d) != 0)
				return -EPROTO;
			table = memory_at(q->memory, d.addr, d.len);
			if (!table)
				return -EPROTO;
			n = d.len / sizeof(d);
			index = 0;
			indirect = true;
			continue;
		}
		int r = add_part(q, c, &d);
		if (r < 0 || !(d.flags & VRING_DESC_F_NEXT))
			return r;
		index = d.next;
	}
}

int virtqueue_pop(struct virtqueue *q, struct chain *ret)
{
	if (!usable(q))
		return 0;
	uint16_t n = (uint16_t)(avail_index(q) - q->next_avail);
	if (n == 0)
		return 0;
	/* As many chains as there are descriptors can be in the ring, and as many under way: this bounds what a device has to keep. */
	uint16_t under_way = (uint16_t)(q->next_avail - q->next_used);
	int r = n > q->size || under_way >= q->size ? -EPROTO : 0;
	if (r == 0)
		r = walk(q, load16(avail_ring(q) + 4 + 2 * (q->next_avail & (q->size - 1)), __ATOMIC_RELAXED), ret);
	if (r < 0) {
		q->broken = true;
		return r;
	}
	q->next_avail++;
	return 1;
}

void virtqueue_unpop(struct virtqueue *q)
{
	q->next_avail--;
}

void virtqueue_push(struct virtqueue *q, uint16_t head, uint32_t written)
{
	if (!usable(q))
		return;
	char *used = used_ring(q), *element = used + 4 + 8 * (size_t)(q->next_used & (q->size - 1));
	store32(element, head);
	store32(element + 4, written);
	q->next_used++;
	store16(used + 2, q->next_used, __ATOMIC_RELEASE);
}

bool virtqueue_wants_interrupt(struct virtqueue *q)
{
	uint16_t now = q->next_used, before = q->signalled;
	if (!usable(q) || now == before)
		return false;
	q->signalled = now;
	/* The new index is visible before the driver's wish is read; the driver does it the other way round (2.7.7). */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	const char *avail = avail_ring(q);
	if (!q->event_idx)
		return !(load16(avail, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT);
	return vring_need_event(load16(avail + 4 + 2 * (size_t)q->size, __ATOMIC_RELAXED), now, before);
}

void virtqueue_notifications(struct virtqueue *q, bool on)
{
	if (!usable(q))
		return;
	char *used = used_ring(q);
	if (!q->event_idx)
		store16(used, on ? 0 : VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
	else if (on)
		/* Of what comes after all that is there, looked at or not. */
		store16(used + 4 + 8 * (size_t)q->size, avail_index(q), __ATOMIC_RELAXED);
	/* With event_idx the wish for one notification is used up by itself. The caller's next look at the ring comes after the wish. */
	if (on)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

size_t chain_read(const struct chain *c, size_t offset, void *to, size_t n)
{
	size_t done = 0;
	for (unsigned i = 0; i < c->n_in && done < n; i++) {
		size_t have = c->in[i].iov_len;
		if (offset >= have) {
			offset -= have;
			continue;
		}
		size_t some = MIN(have - offset, n - done);
		memcpy((char *)to + done, (const char *)c->in[i].iov_base + offset, some);
		done += some;
		offset = 0;
	}
	atomic_signal_fence(memory_order_seq_cst);
	return done;
}

size_t chain_write(const struct chain *c, size_t offset, const void *from, size_t n)
{
	size_t done = 0;
	for (unsigned i = 0; i < c->n_out && done < n; i++) {
		size_t have = c->out[i].iov_len;
		if (offset >= have) {
			offset -= have;
			continue;
		}
		size_t some = MIN(have - offset, n - done);
		memcpy((char *)c->out[i].iov_base + offset, (const char *)from + done, some);
		done += some;
		offset = 0;
	}
	return done;
}
