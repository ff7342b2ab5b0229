/* Virtqueues and the MMIO transport, with a device that reads and writes every byte of every chain that it is given. */
#include "vmm_ops.h"

enum { CONFIG = 12, QUEUES = 2 };

static struct {
	struct chain chain;
	uint16_t held[VIRTQUEUE_SIZE_MAX]; /* heads that go back later */
	unsigned n_held;
} state;

static size_t touch(struct virtio_device *d, const struct iovec *parts, unsigned n, bool write)
{
	const struct memory_region *m = &d->memory->region[0];
	size_t sum = 0;
	for (unsigned i = 0; i < n; i++) {
		volatile char *p = parts[i].iov_base;
		hold(parts[i].iov_len > 0);
		hold((char *)parts[i].iov_base >= m->host && (char *)parts[i].iov_base + parts[i].iov_len <= m->host + m->size);
		/* Not the whole of it, which the two ends tell of. */
		if (write)
			p[0] = p[parts[i].iov_len - 1] = 1;
		else
			(void)p[0], (void)p[parts[i].iov_len - 1];
		sum += parts[i].iov_len;
	}
	return sum;
}

static void notify(struct virtio_device *d, unsigned queue)
{
	struct virtqueue *q = &d->queue[queue];
	struct chain *c = &state.chain;
	int r;
	virtqueue_notifications(q, false);
	while ((r = virtqueue_pop(q, c)) == 1) {
		char byte = 0;
		hold(c->n_in + c->n_out > 0 && c->n_in + c->n_out <= CHAIN_PARTS_MAX && c->head < q->size);
		hold(touch(d, c->in, c->n_in, false) == c->in_bytes && touch(d, c->out, c->n_out, true) == c->out_bytes);
		hold(c->in_bytes <= UINT32_MAX && c->out_bytes <= UINT32_MAX);
		hold(chain_read(c, 0, &byte, 1) == (c->in_bytes > 0) && chain_read(c, c->in_bytes, &byte, 1) == 0);
		hold(chain_write(c, c->out_bytes, &byte, 1) == 0 && (!c->out_bytes || chain_write(c, c->out_bytes - 1, &byte, 1) == 1));
		/* The second queue keeps every third for a while. */
		if (queue == 1 && c->head % 3 == 0) {
			hold(state.n_held < VIRTQUEUE_SIZE_MAX);
			state.held[state.n_held++] = c->head;
		} else {
			virtqueue_push(q, c->head, (uint32_t)c->out_bytes);
		}
	}
	if (r < 0) {
		hold(q->broken && !virtqueue_has(q));
		virtio_broken(d, "fuzz");
		return;
	}
	if (queue == 0) {
		while (state.n_held && d->queue[1].ready)
			virtqueue_push(&d->queue[1], state.held[--state.n_held], 0);
		virtio_used(d, &d->queue[1]);
	}
	virtqueue_notifications(q, true);
	virtio_used(d, q);
}

/* As if what was taken out had never been, too: a saved state has no chains under way. */
static void reset(struct virtio_device *d)
{
	state.n_held = 0;
}

static void quiesce(struct virtio_device *d)
{
	while (state.n_held)
		virtqueue_push(&d->queue[1], state.held[--state.n_held], 0);
}

static void config_write(struct virtio_device *d, unsigned offset, const void *from, unsigned n)
{
	hold(offset <= CONFIG && n <= CONFIG - offset);
	virtio_config_changed(d);
}

static const struct virtio_ops ops = {
	.id = VIRTIO_NET,
	.name = "fuzz",
	.reset = reset,
	.notify = notify,
	.config_write = config_write,
	.quiesce = quiesce,
};

void fuzz_one(struct str input)
{
	/* Of its exact size: reading beyond it shows. */
	static const char config[CONFIG];
	struct ops_world w;
	struct virtio_device *d = calloc(1, sizeof(*d));
	hold(d);
	ops_begin(&w);
	*d = (struct virtio_device){.ops = &ops, .n_queues = QUEUES, .config_size = CONFIG, .config = config};
	hold(virtio_init(d, NULL, &w.memory, NULL) == 0);
	ops_run(&w, d, input);
	ops_again(&w);
	struct part parts[] = {{OPS_MEMORY - 8, 8, false}, {OPS_MEMORY - 16, 8, true}};
	uint32_t written = 0;
	uint16_t want = driver_add(&w.driver, 0, parts, 2), head = 0;
	driver_notify(&w.driver, 0);
	hold(driver_used(&w.driver, 0, &head, &written) && head == want && written == 8);
	virtio_free(d);
	ops_end(&w);
}
