#include "vmm/virtio.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <sys/eventfd.h>

enum {
	MAGIC = 0x74726976,  /* "virt" */
	VENDOR = 0x49425543, /* "CUBI" */
	STATE_VERSION = 1,
	COMPLAINTS_MAX = 8, /* of a device, in the log: a guest can break and reset it as often as it likes */
	STATUS_OF_DRIVER = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_FAILED,
};

#define BIT(n) (UINT64_C(1) << (n))
#define TRANSPORT_FEATURES (BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_RING_F_INDIRECT_DESC) | BIT(VIRTIO_RING_F_EVENT_IDX))
/* Never offered: stands for every feature from 64 on that a driver claims to have seen. */
#define FEATURE_BEYOND BIT(63)

static uint64_t all_offered(const struct virtio_device *d)
{
	return d->offered | TRANSPORT_FEATURES;
}

/* --- interrupts --- */

static void signal_fd(int fd)
{
	uint64_t one = 1;
	ssize_t r = fd >= 0 ? write(fd, &one, sizeof(one)) : 0;
	(void)r; /* can only fail when the counter is full: then it is signalled */
}

static void interrupt(struct virtio_device *d, unsigned why)
{
	atomic_fetch_or(&d->interrupt_status, why);
	signal_fd(d->irq);
}

void virtio_used(struct virtio_device *d, struct virtqueue *q)
{
	if (d->active && virtqueue_wants_interrupt(q))
		interrupt(d, VIRTIO_MMIO_INT_VRING);
}

void virtio_again(struct virtio_device *d)
{
	signal_fd(d->notified);
}

void virtio_config_changed(struct virtio_device *d)
{
	d->config_generation++;
	if (d->status & VIRTIO_CONFIG_S_DRIVER_OK)
		interrupt(d, VIRTIO_MMIO_INT_CONFIG);
}

void virtio_broken(struct virtio_device *d, const char *what)
{
	if (d->status & VIRTIO_CONFIG_S_NEEDS_RESET)
		return;
	if (d->complaints < COMPLAINTS_MAX)
		log_warn("the guest's driver of the %s device broke a rule: %s; the device waits for a reset%s", d->ops->name, what,
			++d->complaints < COMPLAINTS_MAX ? "" : " (this is not said again)");
	d->active = false;
	d->status |= VIRTIO_CONFIG_S_NEEDS_RESET;
	if (d->status & VIRTIO_CONFIG_S_DRIVER_OK)
		interrupt(d, VIRTIO_MMIO_INT_CONFIG);
}

/* --- life --- */

static void on_notified(struct loop_fd *w, uint32_t events, void *arg)
{
	struct virtio_device *d = arg;
	uint64_t n;
	ssize_t r = read(d->notified, &n, sizeof(n));
	(void)r;
	for (unsigned i = 0; i < d->n_queues; i++)
		if (d->active && d->queue[i].ready)
			d->ops->notify(d, i);
}

static void reset(struct virtio_device *d)
{
	d->active = false;
	if (d->ops->reset)
		d->ops->reset(d);
	for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++)
		virtqueue_reset(&d->queue[i]);
	d->accepted = d->driver_features = 0;
	d->status = d->features_select = d->driver_features_select = d->queue_select = 0;
	atomic_store(&d->interrupt_status, 0);
}

int virtio_init(struct virtio_device *d, struct loop *l, const struct guest_memory *m, struct error *err)
{
	d->loop = l;
	d->memory = m;
	d->irq = d->notified = -1;
	for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++)
		d->queue[i].memory = m;
	if (!l)
		return 0;
	d->irq = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	d->notified = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->irq >= 0 && d->notified >= 0)
		d->watch = loop_fd_add(l, d->notified, EPOLLIN, on_notified, d);
	return d->watch ? 0 : error_errno(err, -errno, "%s device", d->ops->name);
}

void virtio_free(struct virtio_device *d)
{
	if (!d)
		return;
	loop_fd_del(d->watch);
	reset(d);
	cleanup_fd_p(&d->irq);
	cleanup_fd_p(&d->notified);
	if (d->ops->free)
		d->ops->free(d);
	else
		free(d);
}

struct virtio_device *virtio_made(struct virtio_device *d, int r)
{
	if (r == 0)
		return d;
	virtio_free(d);
	return NULL;
}

static void accept_features(struct virtio_device *d)
{
	d->accepted = d->driver_features;
	for (unsigned i = 0; i < d->n_queues; i++)
		d->queue[i].event_idx = d->accepted & BIT(VIRTIO_RING_F_EVENT_IDX);
}

static void activate(struct virtio_device *d)
{
	d->active = true;
	if (d->ops->activate)
		d->ops->activate(d);
}

/* The status register (2.1, 3.1.1): bits come in their order and only a reset takes them away. What may not be is not taken over, and the driver reads that. */
static void write_status(struct virtio_device *d, uint32_t value)
{
	if (value == 0) {
		reset(d);
		return;
	}
	value &= STATUS_OF_DRIVER;
	if (d->status & STATUS_OF_DRIVER & ~value)
		return;
	uint32_t fresh = value & ~d->status;
	if (fresh & VIRTIO_CONFIG_S_DRIVER && !(value & VIRTIO_CONFIG_S_ACKNOWLEDGE))
		value &= (uint32_t)~VIRTIO_CONFIG_S_DRIVER;
	if (fresh & VIRTIO_CONFIG_S_FEATURES_OK &&
		(!(value & VIRTIO_CONFIG_S_DRIVER) || d->driver_features & ~all_offered(d) || !(d->driver_features & BIT(VIRTIO_F_VERSION_1))))
		value &= (uint32_t)~VIRTIO_CONFIG_S_FEATURES_OK;
	if (fresh & VIRTIO_CONFIG_S_DRIVER_OK && (!(value & VIRTIO_CONFIG_S_FEATURES_OK) || value & VIRTIO_CONFIG_S_FAILED || d->status & VIRTIO_CONFIG_S_NEEDS_RESET))
		value &= (uint32_t)~VIRTIO_CONFIG_S_DRIVER_OK;
	fresh = value & ~d->status;
	d->status |= value;
	if (fresh & VIRTIO_CONFIG_S_FEATURES_OK)
		accept_features(d);
	if (fresh & VIRTIO_CONFIG_S_DRIVER_OK)
		activate(d);
}

/* --- registers --- */

static struct virtqueue *selected(struct virtio_device *d)
{
	return d->queue_select < d->n_queues ? &d->queue[d->queue_select] : NULL;
}

static uint32_t read_register(struct virtio_device *d, uint64_t offset)
{
	const struct virtqueue *q = selected(d);
	switch (offset) {
	case VIRTIO_MMIO_MAGIC_VALUE:
		return MAGIC;
	case VIRTIO_MMIO_VERSION:
		return 2;
	case VIRTIO_MMIO_DEVICE_ID:
		return d->ops->id;
	case VIRTIO_MMIO_VENDOR_ID:
		return VENDOR;
	case VIRTIO_MMIO_DEVICE_FEATURES:
		return d->features_select < 2 ? (uint32_t)(all_offered(d) >> (32 * d->features_select)) : 0;
	case VIRTIO_MMIO_QUEUE_NUM_MAX:
		return q ? VIRTQUEUE_SIZE_MAX : 0;
	case VIRTIO_MMIO_QUEUE_READY:
		return q && q->ready;
	case VIRTIO_MMIO_INTERRUPT_STATUS:
		return atomic_load(&d->interrupt_status);
	case VIRTIO_MMIO_STATUS:
		return d->status;
	case VIRTIO_MMIO_SHM_LEN_LOW:
	case VIRTIO_MMIO_SHM_LEN_HIGH:
	case VIRTIO_MMIO_SHM_BASE_LOW:
	case VIRTIO_MMIO_SHM_BASE_HIGH:
		return UINT32_MAX; /* 4.2.2: there is no such region */
	case VIRTIO_MMIO_CONFIG_GENERATION:
		return d->config_generation;
	default:
		return 0;
	}
}

static void write_features(struct virtio_device *d, uint32_t value)
{
	unsigned shift = 32 * (d->driver_features_select & 1);
	if (d->status & VIRTIO_CONFIG_S_FEATURES_OK)
		return;
	if (d->driver_features_select < 2)
		d->driver_features = (d->driver_features & ~((uint64_t)UINT32_MAX << shift)) | (uint64_t)value << shift;
	else if (value)
		d->driver_features |= FEATURE_BEYOND;
}

static void write_ready(struct virtio_device *d, struct virtqueue *q, uint32_t value)
{
	bool event_idx = q->event_idx;
	if (value & 1 && !q->ready && virtqueue_enable(q) < 0)
		virtio_broken(d, "a queue that is not whole, not aligned or not in memory");
	if (value & 1 || !q->ready)
		return;
	/* 4.2.3.2: when the driver has read back the zero, nothing of this queue touches memory. */
	if (d->ops->quiesce)
		d->ops->quiesce(d);
	virtqueue_reset(q);
	q->event_idx = event_idx;
	if (d->ops->resume)
		d->ops->resume(d);
}

static void set_half(uint64_t *address, bool high, uint32_t value)
{
	*address = high ? (*address & UINT32_MAX) | (uint64_t)value << 32 : (*address & ~(uint64_t)UINT32_MAX) | value;
}

/* Registers of the selected queue: from FEATURES_OK on, and while it is not ready (3.1.1, 4.2.3.2). */
static void write_queue(struct virtio_device *d, uint64_t offset, uint32_t value)
{
	struct virtqueue *q = selected(d);
	if (!q || !(d->status & VIRTIO_CONFIG_S_FEATURES_OK))
		return;
	if (offset == VIRTIO_MMIO_QUEUE_READY)
		write_ready(d, q, value);
	else if (q->ready)
		return;
	else if (offset == VIRTIO_MMIO_QUEUE_NUM)
		q->size = value <= VIRTQUEUE_SIZE_MAX ? (uint16_t)value : 0;
	else
		set_half(offset < VIRTIO_MMIO_QUEUE_AVAIL_LOW ? &q->desc :
			offset < VIRTIO_MMIO_QUEUE_USED_LOW   ? &q->avail :
								&q->used,
			offset & 4, value);
}

static void write_register(struct virtio_device *d, uint64_t offset, uint32_t value)
{
	switch (offset) {
	case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
		d->features_select = value;
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES:
		write_features(d, value);
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
		d->driver_features_select = value;
		break;
	case VIRTIO_MMIO_QUEUE_SEL:
		d->queue_select = value;
		break;
	case VIRTIO_MMIO_QUEUE_NUM:
	case VIRTIO_MMIO_QUEUE_READY:
	case VIRTIO_MMIO_QUEUE_DESC_LOW:
	case VIRTIO_MMIO_QUEUE_DESC_HIGH:
	case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
	case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
	case VIRTIO_MMIO_QUEUE_USED_LOW:
	case VIRTIO_MMIO_QUEUE_USED_HIGH:
		write_queue(d, offset, value);
		break;
	case VIRTIO_MMIO_QUEUE_NOTIFY:
		if (d->active && value < d->n_queues && d->queue[value].ready)
			d->ops->notify(d, value);
		break;
	case VIRTIO_MMIO_INTERRUPT_ACK:
		atomic_fetch_and(&d->interrupt_status, ~value);
		break;
	case VIRTIO_MMIO_STATUS:
		write_status(d, value);
		break;
	default: /* read-only, of an older version, or nothing */
		break;
	}
}

/* Where in the configuration space an access is. False: not wholly in it, or not of a size that there is. */
static bool in_config(const struct virtio_device *d, uint64_t offset, unsigned n, unsigned *ret)
{
	if (offset < VIRTIO_MMIO_CONFIG || (n != 1 && n != 2 && n != 4 && n != 8))
		return false;
	offset -= VIRTIO_MMIO_CONFIG;
	if (offset > d->config_size || n > d->config_size - offset)
		return false;
	*ret = (unsigned)offset;
	return true;
}

void virtio_mmio_read(struct virtio_device *d, uint64_t offset, void *to, unsigned n)
{
	unsigned at;
	memset(to, 0, n);
	if (in_config(d, offset, n, &at)) {
		memcpy(to, (const char *)d->config + at, n);
	} else if (offset < VIRTIO_MMIO_CONFIG && n == sizeof(uint32_t)) {
		uint32_t value = read_register(d, offset);
		memcpy(to, &value, n);
	}
}

void virtio_mmio_write(struct virtio_device *d, uint64_t offset, const void *from, unsigned n)
{
	unsigned at;
	if (in_config(d, offset, n, &at) && d->ops->config_write) {
		d->ops->config_write(d, at, from, n);
	} else if (offset < VIRTIO_MMIO_CONFIG && n == sizeof(uint32_t)) {
		uint32_t value;
		memcpy(&value, from, n);
		write_register(d, offset, value);
	}
}

bool virtio_mmio_quick(struct virtio_device *d, uint64_t offset, bool write, void *data, unsigned n)
{
	if (n != sizeof(uint32_t) || offset != (write ? VIRTIO_MMIO_INTERRUPT_ACK : VIRTIO_MMIO_INTERRUPT_STATUS))
		return false;
	uint32_t value;
	if (write) {
		memcpy(&value, data, n);
		atomic_fetch_and(&d->interrupt_status, ~value);
	} else {
		value = atomic_load(&d->interrupt_status);
		memcpy(data, &value, n);
	}
	return true;
}

/* --- saved state: of the host's byte order, it does not travel to other kinds of machines --- */

struct saved_queue {
	uint64_t desc, avail, used;
	uint16_t size, next_avail, next_used, signalled;
	uint16_t ready, broken;
	uint32_t zero;
};

struct saved {
	uint32_t version, id, n_queues, status;
	uint32_t features_select, driver_features_select, queue_select, config_generation;
	uint32_t interrupt_status, zero;
	uint64_t driver_features;
	struct saved_queue queue[VIRTIO_QUEUES_MAX];
};

void virtio_save(struct virtio_device *d, struct buf *to)
{
	struct saved s = {
		.version = STATE_VERSION,
		.id = d->ops->id,
		.n_queues = d->n_queues,
		.status = d->status,
		.features_select = d->features_select,
		.driver_features_select = d->driver_features_select,
		.queue_select = d->queue_select,
		.config_generation = d->config_generation,
		.interrupt_status = atomic_load(&d->interrupt_status),
		.driver_features = d->driver_features,
	};
	for (unsigned i = 0; i < d->n_queues; i++) {
		const struct virtqueue *q = &d->queue[i];
		s.queue[i] = (struct saved_queue){
			.desc = q->desc, .avail = q->avail, .used = q->used,
			.size = q->size, .next_avail = q->next_avail, .next_used = q->next_used, .signalled = q->signalled,
			.ready = q->ready, .broken = q->broken,
		};
	}
	buf_add(to, &s, sizeof(s));
	if (d->ops->save)
		d->ops->save(d, to);
}

static int load_queue(struct virtio_device *d, struct virtqueue *q, const struct saved_queue *s)
{
	if (s->ready > 1 || s->broken > 1 || s->size > VIRTQUEUE_SIZE_MAX || (uint16_t)(s->next_avail - s->next_used) > s->size)
		return -EINVAL;
	if (s->ready && !(d->status & VIRTIO_CONFIG_S_FEATURES_OK))
		return -EINVAL;
	q->desc = s->desc;
	q->avail = s->avail;
	q->used = s->used;
	q->size = s->size;
	q->next_avail = s->next_avail;
	q->next_used = s->next_used;
	q->signalled = s->signalled;
	q->broken = s->broken;
	return s->ready ? virtqueue_enable(q) : 0;
}

/* Could the status have come about by write_status()? */
static bool is_status(const struct virtio_device *d, const struct saved *s)
{
	static const uint32_t order[] = {VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_DRIVER_OK};
	if (s->status & ~(uint32_t)(STATUS_OF_DRIVER | VIRTIO_CONFIG_S_NEEDS_RESET))
		return false;
	for (size_t i = 1; i < ARRAY_SIZE(order); i++)
		if (s->status & order[i] && !(s->status & order[i - 1]))
			return false;
	return !(s->status & VIRTIO_CONFIG_S_FEATURES_OK) || (!(s->driver_features & ~all_offered(d)) && s->driver_features & BIT(VIRTIO_F_VERSION_1));
}

static int load(struct virtio_device *d, const struct saved *s, struct str own)
{
	if (s->version != STATE_VERSION || s->id != d->ops->id || s->n_queues != d->n_queues || !is_status(d, s))
		return -EINVAL;
	d->status = s->status;
	d->features_select = s->features_select;
	d->driver_features_select = s->driver_features_select;
	d->queue_select = s->queue_select;
	d->config_generation = s->config_generation;
	d->driver_features = s->driver_features;
	atomic_store(&d->interrupt_status, s->interrupt_status & (VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG));
	if (d->status & VIRTIO_CONFIG_S_FEATURES_OK)
		accept_features(d);
	for (unsigned i = 0; i < d->n_queues; i++)
		if (load_queue(d, &d->queue[i], &s->queue[i]) < 0)
			return -EINVAL;
	return d->ops->load ? d->ops->load(d, own) : own.n == 0 ? 0 : -EINVAL;
}

int virtio_load(struct virtio_device *d, struct str from, struct error *err)
{
	struct saved s;
	reset(d);
	int r = -EINVAL;
	if (from.n >= sizeof(s)) {
		memcpy(&s, from.p, sizeof(s));
		r = load(d, &s, str_from(from, sizeof(s)));
	}
	if (r < 0) {
		reset(d);
		return error_set(err, r, 500, "the saved state of the %s device is damaged or of another version", d->ops->name);
	}
	if (d->status & VIRTIO_CONFIG_S_DRIVER_OK && !(d->status & VIRTIO_CONFIG_S_NEEDS_RESET))
		activate(d);
	/* Notifications and interrupts that were on their way are lost. One too many does no harm. */
	virtio_again(d);
	if (atomic_load(&d->interrupt_status))
		signal_fd(d->irq);
	return 0;
}
