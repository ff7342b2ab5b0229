/*
 * The balloon (virtio 1.2, 5.5): memory that the guest gives up, because it is asked to (inflate) or because it has no use for it at the moment (free page reporting).
 *
 * Both end in MADV_DONTNEED: the page costs nothing, and whoever touches it next, which the guest may do at any time, finds zeros; or, in memory that is a private view of a saved
 * state's file, the bytes of that file: what this guest, or the one it was copied from, had there when it was saved. Nobody else's, so nothing is given away. And nothing is
 * promised: what is in a page that comes back from the balloon is undefined, and so it is for a reported page, unless VIRTIO_BALLOON_F_PAGE_POISON is agreed upon, which is not
 * offered: a guest that relies on what free pages hold (init_on_free, poisoning) does without reporting then.
 *
 * MADV_REMOVE or a new anonymous mapping in its place would free no more, as a view's file pages are shared by all guests of that state, and splits the mapping.
 */
#include "vmm/devices.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <endian.h>
#include <linux/virtio_balloon.h>
#include <stddef.h>
#include <sys/mman.h>

enum {
	PAGE = 1 << VIRTIO_BALLOON_PFN_SHIFT,
	INFLATE = 0,
	DEFLATE = 1,
	/* Reporting has a number of its own, 4, in the standard; Linux and others count only queues that are there, which makes it 2. Each from here on is taken for it. */
	REPORTING = 2,
	QUEUES = 5,
	PAGES_A_CHAIN = 4096, /* Linux: 256 */
	CHAINS_A_TURN = 16,
	CONFIG_BYTES = offsetof(struct virtio_balloon_config, actual) + sizeof(uint32_t),
};

struct balloon {
	struct virtio_device d;
	struct virtio_balloon_config config; /* CONFIG_BYTES of it; `actual` is what the guest says */
	struct chain chain;
};

static struct balloon *balloon_of(struct virtio_device *d)
{
	return container_of(d, struct balloon, d);
}

/* Lets the whole pages of [at, at + n) go. */
static void drop(char *at, size_t n)
{
	size_t before = (size_t)(-(uintptr_t)at & (PAGE - 1));
	if (n < before)
		return;
	n = (n - before) & ~(size_t)(PAGE - 1);
	if (n && madvise(at + before, n, MADV_DONTNEED) < 0)
		log_debug("balloon: %s", strerror(errno));
}

/* Numbers of pages, 32 bits each; runs of them go together. False: too many, or not in memory. */
static bool inflate(struct balloon *b)
{
	struct chain *c = &b->chain;
	size_t n = c->in_bytes / sizeof(uint32_t), length = 0;
	char *run = NULL;
	if (n > PAGES_A_CHAIN || c->in_bytes % sizeof(uint32_t))
		return false;
	for (size_t i = 0; i < n; i++) {
		uint32_t number;
		chain_read(c, i * sizeof(number), &number, sizeof(number));
		char *page = memory_at(b->d.memory, (uint64_t)le32toh(number) << VIRTIO_BALLOON_PFN_SHIFT, PAGE);
		if (!page)
			return false;
		if (!run || page != run + length) {
			drop(run, length);
			run = page;
			length = 0;
		}
		length += PAGE;
	}
	drop(run, length);
	return true;
}

static void report(const struct chain *c)
{
	for (unsigned i = 0; i < c->n_out; i++)
		drop(c->out[i].iov_base, c->out[i].iov_len);
}

static void balloon_notify(struct virtio_device *d, unsigned queue)
{
	struct balloon *b = balloon_of(d);
	struct virtqueue *q = &d->queue[queue];
	int r = 0;
	for (unsigned i = 0; i < CHAINS_A_TURN && (r = virtqueue_pop(q, &b->chain)) == 1; i++) {
		/* Of pages that it takes back there is nothing to do: they come when they are touched. */
		if (queue >= REPORTING)
			report(&b->chain);
		else if (queue == INFLATE && !inflate(b))
			r = -EPROTO;
		if (r < 0)
			break;
		virtqueue_push(q, b->chain.head, 0);
	}
	if (r < 0) {
		virtio_broken(d, "pages that it does not have");
		return;
	}
	virtqueue_notifications(q, true);
	if (virtqueue_has(q))
		virtio_again(d);
	virtio_used(d, q);
}

static void balloon_reset(struct virtio_device *d)
{
	balloon_of(d)->config.actual = 0;
}

/* Only `actual`, only as a whole. */
static void balloon_config_write(struct virtio_device *d, unsigned offset, const void *from, unsigned n)
{
	if (offset == offsetof(struct virtio_balloon_config, actual) && n == sizeof(uint32_t))
		memcpy(&balloon_of(d)->config.actual, from, n);
}

static void balloon_save(struct virtio_device *d, struct buf *to)
{
	buf_add(to, &balloon_of(d)->config, CONFIG_BYTES);
}

static int balloon_load(struct virtio_device *d, struct str from)
{
	if (from.n != CONFIG_BYTES)
		return -EINVAL;
	memcpy(&balloon_of(d)->config, from.p, from.n);
	return 0;
}

static const struct virtio_ops ops = {
	.id = VIRTIO_BALLOON,
	.name = "balloon",
	.reset = balloon_reset,
	.notify = balloon_notify,
	.config_write = balloon_config_write,
	.save = balloon_save,
	.load = balloon_load,
};

struct virtio_device *balloon_new(struct loop *l, const struct guest_memory *m, struct error *err)
{
	struct balloon *b = calloc(1, sizeof(*b));
	if (!b) {
		error_errno(err, -ENOMEM, "balloon");
		return NULL;
	}
	/* Short of memory the guest takes back what it gave up rather than kill a process. */
	const uint64_t offered = UINT64_C(1) << VIRTIO_BALLOON_F_REPORTING | UINT64_C(1) << VIRTIO_BALLOON_F_DEFLATE_ON_OOM;
	b->d = (struct virtio_device){.ops = &ops, .offered = offered, .n_queues = QUEUES, .config_size = CONFIG_BYTES, .config = &b->config};
	return virtio_made(&b->d, virtio_init(&b->d, l, m, err));
}

void balloon_set_target(struct virtio_device *d, uint32_t pages)
{
	struct balloon *b = balloon_of(d);
	if (b->config.num_pages == htole32(pages))
		return;
	b->config.num_pages = htole32(pages);
	virtio_config_changed(d);
}

uint32_t balloon_actual(const struct virtio_device *d)
{
	return le32toh(container_of(d, struct balloon, d)->config.actual);
}
