/* Randomness for the guest (virtio 1.2, 5.4): the kernel's, as much as a buffer holds, up to a bound. */
#include "vmm/devices.h"

#include "base/cleanup.h"
#include "base/random.h"

enum {
	REQUEST_BYTES = 4096, /* a driver asks again when it wants more; a guest cannot have the monitor make gigabytes */
	REQUESTS_A_TURN = 64,
};

struct entropy {
	struct virtio_device d;
	struct chain chain;
};

static uint32_t fill(const struct chain *c)
{
	size_t done = 0;
	for (unsigned i = 0; i < c->n_out && done < REQUEST_BYTES; i++) {
		size_t some = MIN(c->out[i].iov_len, REQUEST_BYTES - done);
		random_bytes(c->out[i].iov_base, some);
		done += some;
	}
	return (uint32_t)done;
}

static void entropy_notify(struct virtio_device *d, unsigned queue)
{
	struct chain *c = &container_of(d, struct entropy, d)->chain;
	struct virtqueue *q = &d->queue[queue];
	int r = 0;
	for (unsigned i = 0; i < REQUESTS_A_TURN && (r = virtqueue_pop(q, c)) == 1; i++)
		virtqueue_push(q, c->head, fill(c));
	if (r < 0) {
		virtio_broken(d, "a buffer for randomness that is none");
		return;
	}
	virtqueue_notifications(q, true);
	if (virtqueue_has(q))
		virtio_again(d);
	virtio_used(d, q);
}

static const struct virtio_ops ops = {
	.id = VIRTIO_ENTROPY,
	.name = "entropy",
	.notify = entropy_notify,
};

struct virtio_device *entropy_new(struct loop *l, const struct guest_memory *m, struct error *err)
{
	struct entropy *e = calloc(1, sizeof(*e));
	if (!e) {
		error_errno(err, -ENOMEM, "entropy device");
		return NULL;
	}
	e->d = (struct virtio_device){.ops = &ops, .n_queues = 1};
	return virtio_made(&e->d, virtio_init(&e->d, l, m, err));
}
