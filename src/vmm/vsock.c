#include "vmm/devices.h"
#include "vmm/vsock_mux.h"
#include "base/cleanup.h"

#include <endian.h>
#include <limits.h>
#include <sys/socket.h>

enum {
	RX,
	TX,
	EVENT,
	QUEUES,
	PACKETS_PER_TURN = 256, /* then others on the loop get their turn */
	ACCEPTS_PER_EVENT = 32,
	RETRY_MS = 100,         /* of accept() without descriptors or memory */
	STATE_VERSION = 1,
	F_STREAM = 0,           /* 5.10.3; not in the kernel's header */
};

struct vsock {
	struct virtio_device d;
	struct vsock_mux mux;
	struct vsock_config config;
	struct loop_fd *listener;  /* of config.control */
	struct loop_timer *retry;
	bool working, paused, was_up;
	bool tell_reset;           /* TRANSPORT_RESET is to be said when there is a buffer for it */
	unsigned buffers_then;     /* that the event queue had when it was said: when it has so many again, the guest has heard it */
	struct chain chain;
};

static struct vsock *of(struct virtio_device *d)
{
	return container_of(d, struct vsock, d);
}

/* Queues */

/* 1, 0 or (the device is broken from now on) -EPROTO. */
static int pop(struct vsock *v, unsigned queue)
{
	int r = virtqueue_pop(&v->d.queue[queue], &v->chain);
	if (r < 0)
		virtio_broken(&v->d, "a chain that is not valid");
	return r;
}

static bool take_packets(struct vsock *v, unsigned *left)
{
	struct virtqueue *q = &v->d.queue[TX];
	struct virtio_vsock_hdr h;
	bool some = false;
	while (*left && !vsock_mux_full(&v->mux) && pop(v, TX) > 0) {
		if (chain_read(&v->chain, 0, &h, sizeof(h)) == sizeof(h))
			vsock_mux_packet(&v->mux, &h, &v->chain);
		virtqueue_push(q, v->chain.head, 0);
		some = true;
		--*left;
	}
	if (some)
		virtio_used(&v->d, q);
	return some;
}

static bool give_packets(struct vsock *v, unsigned *left)
{
	struct virtqueue *q = &v->d.queue[RX];
	bool some = false;
	while (*left && vsock_mux_pending(&v->mux) && pop(v, RX) > 0) {
		/* A buffer that could not hold a byte of data is of no use. */
		size_t n = v->chain.out_bytes > VSOCK_HEADER ? vsock_mux_emit(&v->mux, &v->chain) : 0;
		if (!n && v->chain.out_bytes > VSOCK_HEADER) {
			virtqueue_unpop(q);
			break;
		}
		virtqueue_push(q, v->chain.head, (uint32_t)n);
		some = true;
		--*left;
	}
	if (some)
		virtio_used(&v->d, q);
	return some;
}

/* The guest has so many buffers for events again as when it was told: it has heard it, and connections that are made now outlive that. */
static void see_heard(struct vsock *v)
{
	struct virtqueue *q = &v->d.queue[EVENT];
	virtqueue_notifications(q, true);
	if (!v->tell_reset && v->mux.held && virtqueue_waiting(q) >= v->buffers_then) {
		v->mux.held = false;
		vsock_mux_wake(&v->mux);
	}
}

static void say_reset(struct vsock *v)
{
	struct virtqueue *q = &v->d.queue[EVENT];
	struct virtio_vsock_event e = {.id = htole32(VIRTIO_VSOCK_EVENT_TRANSPORT_RESET)};
	unsigned buffers = virtqueue_waiting(q);
	if (v->tell_reset && pop(v, EVENT) > 0) {
		virtqueue_push(q, v->chain.head, (uint32_t)chain_write(&v->chain, 0, &e, sizeof(e)));
		virtio_used(&v->d, q);
		v->tell_reset = false;
		v->buffers_then = buffers;
	}
	see_heard(v);
	/* It may have given the first one meanwhile. */
	if (v->tell_reset && v->d.active && virtqueue_has(q))
		say_reset(v);
}

/* The listener is watched while there is room. */
static void set_listening(struct vsock *v)
{
	if (v->listener)
		loop_fd_set(v->listener, vsock_mux_room(&v->mux, true) ? EPOLLIN : 0);
}

static void forget(struct vsock *v)
{
	v->mux.held = v->tell_reset = false;
	vsock_mux_forget(&v->mux);
	set_listening(v);
}

static bool more(struct vsock *v)
{
	return (virtqueue_has(&v->d.queue[TX]) && !vsock_mux_full(&v->mux)) || (virtqueue_has(&v->d.queue[RX]) && vsock_mux_pending(&v->mux));
}

/* Everything that can be done now, in both directions. */
static void work(struct vsock *v)
{
	struct virtqueue *rx = &v->d.queue[RX], *tx = &v->d.queue[TX];
	unsigned left = PACKETS_PER_TURN;
	if (v->working || v->paused || !v->d.active)
		return;
	v->working = true;
	virtqueue_notifications(rx, false);
	virtqueue_notifications(tx, false);
	do {
		bool some = true;
		while (some && left) {
			some = take_packets(v, &left);
			some |= give_packets(v, &left);
		}
		virtqueue_notifications(rx, vsock_mux_pending(&v->mux));
		virtqueue_notifications(tx, !vsock_mux_full(&v->mux));
	} while (left && v->d.active && more(v));
	v->working = false;
	if (!v->d.active)
		forget(v);
	else if (more(v))
		virtio_again(&v->d);
}

static void changed(void *arg)
{
	struct vsock *v = arg;
	work(v);
	set_listening(v);
}

static void on_retry(struct loop_timer *t, void *arg)
{
	changed(arg);
}

static void on_control(struct loop_fd *w, uint32_t events, void *arg)
{
	struct vsock *v = arg;
	for (int i = 0; i < ACCEPTS_PER_EVENT && vsock_mux_room(&v->mux, true); i++) {
		int fd = accept4(v->config.control, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			loop_fd_set(w, 0);
			loop_timer_in(v->retry, RETRY_MS * 1000000ll);
			return;
		}
		if (fd < 0)
			break;
		vsock_mux_connect(&v->mux, fd, true, VSOCK_PORT_CONTROL);
	}
	set_listening(v);
}

static void up_now(void *arg)
{
	struct vsock *v = arg;
	bool first = !v->was_up;
	v->was_up = true;
	if (first && v->config.up)
		v->config.up(v->config.arg);
}

/* The device */

static void activate(struct virtio_device *d)
{
	struct vsock *v = of(d);
	v->mux.seqpacket = d->accepted & 1ull << VIRTIO_VSOCK_F_SEQPACKET;
	say_reset(v);
	changed(v);
}

static void reset(struct virtio_device *d)
{
	forget(of(d));
}

static void notify(struct virtio_device *d, unsigned queue)
{
	struct vsock *v = of(d);
	if (v->paused)
		return;
	if (v->mux.held)
		say_reset(v);
	if (d->active)
		changed(v);
	else
		forget(v);
}

static void quiesce(struct virtio_device *d)
{
	of(d)->paused = true;
}

static void resume(struct virtio_device *d)
{
	struct vsock *v = of(d);
	v->paused = false;
	if (d->active)
		notify(d, TX);
}

static void save(struct virtio_device *d, struct buf *to)
{
	const struct vsock *v = of(d);
	const unsigned char bytes[] = {STATE_VERSION, v->mux.up};
	buf_add(to, bytes, sizeof(bytes));
}

static int load(struct virtio_device *d, struct str from)
{
	struct vsock *v = of(d);
	if (from.n != 2 || from.p[0] != STATE_VERSION || (from.p[1] & ~1))
		return -EINVAL;
	v->mux.up = from.p[1];
	v->mux.held = true; /* until vsock_restored() */
	v->buffers_then = UINT_MAX;
	return 0;
}

static void end(struct virtio_device *d)
{
	struct vsock *v = of(d);
	loop_fd_del(v->listener);
	if (v->retry)
		loop_timer_free(v->retry);
	if (v->config.control >= 0)
		close(v->config.control);
	vsock_mux_done(&v->mux);
	free(v);
}

static const struct virtio_ops ops = {
	.id = VIRTIO_VSOCK,
	.name = "vsock",
	.activate = activate,
	.reset = reset,
	.notify = notify,
	.quiesce = quiesce,
	.resume = resume,
	.save = save,
	.load = load,
	.free = end,
};

struct virtio_device *vsock_new(struct loop *l, const struct guest_memory *m, const struct vsock_config *c, struct error *err)
{
	static const struct virtio_vsock_config config = {.guest_cid = VSOCK_GUEST}; /* little-endian, as is every machine this runs on */
	cleanup_fd int control = c->control;
	struct vsock *v = calloc(1, sizeof(*v));
	if (!v) {
		error_errno(err, -ENOMEM, "vsock");
		return NULL;
	}
	v->d = (struct virtio_device){.ops = &ops, .offered = 1ull << F_STREAM | 1ull << VIRTIO_VSOCK_F_SEQPACKET, .n_queues = QUEUES, .config_size = sizeof(config), .config = &config};
	v->config = *c;
	v->config.control = -1;
	vsock_mux_init(&v->mux, l);
	v->mux.changed = changed;
	v->mux.up_now = up_now;
	v->mux.arg = v;
	int r = virtio_init(&v->d, l, m, err);
	if (r < 0)
		return virtio_made(&v->d, r);
	v->retry = loop_timer_new(l, on_retry, v);
	v->config.control = steal_fd(&control);
	if (c->control >= 0)
		v->listener = loop_fd_add(l, c->control, EPOLLIN, on_control, v);
	bool made = v->retry && (c->control < 0 || v->listener);
	return virtio_made(&v->d, made ? 0 : error_errno(err, -ENOMEM, "vsock"));
}

int vsock_connect(struct virtio_device *d, int socket, uint32_t port)
{
	return vsock_mux_connect(&of(d)->mux, socket, false, port);
}

void vsock_restored(struct virtio_device *d)
{
	struct vsock *v = of(d);
	forget(v);
	v->mux.up = v->was_up = true;
	v->tell_reset = v->mux.held = d->active;
	if (d->active)
		say_reset(v);
	vsock_mux_wake(&v->mux);
}
