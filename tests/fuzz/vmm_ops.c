#include "vmm_ops.h"

#include "base/log.h"

#include <linux/virtio_ring.h>

enum op { WRITE, READ, STORE, NOTIFY, TURN, START, CHAIN, SAVE, OPS };
enum { MAX_OPS = 256 };

/* The next bytes of the input, zeros beyond its end. */
static uint32_t take(struct str *input, size_t n)
{
	uint32_t value = 0;
	memcpy(&value, input->p, MIN(n, input->n));
	*input = str_from(*input, n);
	return value;
}

static void access_register(struct ops_world *w, enum op op, struct str *input)
{
	static const unsigned sizes[] = {4, 4, 4, 4, 4, 1, 2, 8};
	unsigned offset = take(input, 2) % 0x180, n = sizes[take(input, 1) % 8];
	/* Of its size, so that an access beyond it is seen. */
	cleanup_free unsigned char *bytes = calloc(1, n);
	hold(bytes);
	for (unsigned i = 0; op == WRITE && i < n; i++)
		bytes[i] = (unsigned char)take(input, 1);
	if (n == 4 && virtio_mmio_quick(w->driver.device, offset, op == WRITE, bytes, n))
		return;
	if (op == WRITE)
		virtio_mmio_write(w->driver.device, offset, bytes, n);
	else
		virtio_mmio_read(w->driver.device, offset, bytes, n);
}

static void store(struct ops_world *w, struct str *input)
{
	size_t at = take(input, 2), n = take(input, 1);
	n = MIN(MIN(n, input->n), OPS_MEMORY - at);
	if (n)
		memcpy(driver_at(&w->driver, at, n), input->p, n);
	*input = str_from(*input, n);
}

/* A chain whose parts may be anywhere, also outside; most are in order. */
static void chain(struct ops_world *w, struct str *input)
{
	unsigned queue = take(input, 1) % VIRTIO_QUEUES_MAX, n = 1 + take(input, 1) % 8;
	struct driver_queue *q = &w->driver.queue[queue];
	if (q->size == 0)
		return;
	uint16_t head = q->next_desc;
	for (unsigned i = 0; i < n; i++) {
		uint32_t what = take(input, 1), address = take(input, 2), length = take(input, 2);
		uint16_t next = (uint16_t)((q->next_desc + 1) % q->size);
		uint16_t flags = (uint16_t)((what & 1 ? VRING_DESC_F_WRITE : 0) | (what >> 4 == 15 ? VRING_DESC_F_INDIRECT : 0) | (i + 1 < n ? VRING_DESC_F_NEXT : 0));
		driver_descriptor(&w->driver, queue, q->next_desc, address + (what & 2 ? UINT64_C(1) << 32 : 0), length, flags, what & 4 ? (uint16_t)address : next);
		q->next_desc = next;
	}
	driver_offer(&w->driver, queue, head);
}

/* Features are named by what is left out, so that zeros accept all. */
static void start(struct ops_world *w, struct str *input)
{
	uint64_t features = UINT64_MAX ^ (uint64_t)take(input, 4);
	unsigned size_bits = take(input, 1);
	driver_start(&w->driver, features & driver_offered(&w->driver), (uint16_t)(1 << (size_bits % 8)));
}

/* Saved, damaged in one place or not, loaded. */
static void save(struct ops_world *w, struct str *input)
{
	struct virtio_device *d = w->driver.device;
	cleanup_buf struct buf saved = BUF_INIT;
	uint32_t at = take(input, 2), value = take(input, 1);
	if (d->ops->quiesce)
		d->ops->quiesce(d);
	virtio_save(d, &saved);
	hold(!saved.failed);
	saved.data[saved.start + at % buf_len(&saved)] ^= (char)value;
	int r = virtio_load(d, buf_str(&saved), NULL);
	hold(r == 0 || (r == -EINVAL && value));
	if (d->ops->resume)
		d->ops->resume(d);
}

/* Even: what is under way is waited for, so that the same input does the same. */
static void turn(struct ops_world *w, uint32_t how)
{
	struct virtio_device *d = w->driver.device;
	if (!(how & 1) && d->ops->quiesce) {
		d->ops->quiesce(d);
		if (d->ops->resume)
			d->ops->resume(d);
	}
	if (w->loop)
		loop_turn(w->loop, 0);
}

void ops_begin(struct ops_world *w)
{
	log_setup("fuzz", STDERR_FILENO, LOG_ERROR);
	*w = (struct ops_world){0};
	driver_memory(&w->memory, OPS_MEMORY);
}

void ops_run(struct ops_world *w, struct virtio_device *d, struct str input)
{
	driver_init(&w->driver, d, &w->memory);
	for (unsigned i = 0; i < MAX_OPS && input.n; i++) {
		enum op op = take(&input, 1) % OPS;
		switch (op) {
		case WRITE:
		case READ:
			access_register(w, op, &input);
			break;
		case STORE:
			store(w, &input);
			break;
		case NOTIFY:
			driver_notify(&w->driver, take(&input, 1) % (VIRTIO_QUEUES_MAX + 1));
			break;
		case TURN:
			turn(w, take(&input, 1));
			break;
		case START:
			start(w, &input);
			break;
		case CHAIN:
			chain(w, &input);
			break;
		case SAVE:
			save(w, &input);
			break;
		case OPS:
			break;
		}
	}
}

void ops_again(struct ops_world *w)
{
	driver_start(&w->driver, driver_offered(&w->driver), 16);
}

void ops_end(struct ops_world *w)
{
	loop_free(w->loop);
	driver_memory_done(&w->memory);
}
