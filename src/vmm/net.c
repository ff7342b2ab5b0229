/* VIRTIO_NET (virtio 1.2, 5.1): one pair of queues over a tap. The header before each packet is the tap's own (vnet header), so that checksums and segments are the kernel's affair. */
#include "vmm/devices.h"
#include "base/cleanup.h"

#include <endian.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <sys/ioctl.h>

enum {
	RX,
	TX,
	QUEUES,
	HEADER = sizeof(struct virtio_net_hdr_mrg_rxbuf),
	PACKET_MIN = HEADER + ETH_HLEN,
	PACKET_MAX = HEADER + ETH_HLEN + 4 + 65535, /* with a VLAN tag */
	PACKETS_PER_TURN = 64, /* each way: then the other way, and others on the loop, get their turn */
	CONFIG_SIZE = offsetof(struct virtio_net_config, mtu) + sizeof(uint16_t),
};

#define BIT(n) (UINT64_C(1) << (n))

struct net {
	struct virtio_device d;
	struct net_config config;
	struct virtio_net_config space; /* as the guest reads it */
	struct loop_fd *watch;  /* of the tap, while the guest has buffers; NULL = no tap, or it is gone */
	bool paused;
	size_t pending;         /* bytes of `packet`, for which the guest had too few buffers */
	struct chain first, chain;
	struct placed {
		uint16_t head;
		uint32_t n;
	} placed[VIRTQUEUE_SIZE_MAX];
	char packet[PACKET_MAX];
};

static struct net *of(struct virtio_device *d)
{
	return container_of(d, struct net, d);
}

/* 1, 0 or (the device is broken from now on) -EPROTO. */
static int pop(struct net *n, unsigned queue, struct chain *ret)
{
	int r = virtqueue_pop(&n->d.queue[queue], ret);
	if (r < 0)
		virtio_broken(&n->d, "a chain that is not valid");
	return r;
}

/* To the guest */

static void unplace(struct virtqueue *q, unsigned chains)
{
	while (chains--)
		virtqueue_unpop(q);
}

/*
 * Puts the first `bytes` of `packet` into one of the guest's chains, or into several when it agreed to that. 0; -ENOBUFS: it has too few, nothing was taken; -EMSGSIZE: its buffer is too
 * small; -EPROTO: the device is broken.
 */
static int place(struct net *n, size_t bytes)
{
	struct virtqueue *q = &n->d.queue[RX];
	bool several = n->d.accepted & BIT(VIRTIO_NET_F_MRG_RXBUF);
	size_t done = 0;
	unsigned chains = 0;
	while (done < bytes) {
		struct chain *c = chains ? &n->chain : &n->first;
		int r = chains < ARRAY_SIZE(n->placed) ? pop(n, RX, c) : 0;
		if (r < 0)
			return r;
		if (r == 0) {
			unplace(q, chains);
			/* When all that the queue can have are too few, waiting is in vain. */
			return chains < q->size ? -ENOBUFS : -EMSGSIZE;
		}
		if (c->out_bytes < HEADER) {
			virtio_broken(&n->d, "a buffer for packets without room for a header");
			return -EPROTO;
		}
		if (!several && c->out_bytes < bytes) {
			virtqueue_unpop(q);
			return -EMSGSIZE;
		}
		size_t some = chain_write(c, 0, n->packet + done, bytes - done);
		n->placed[chains++] = (struct placed){c->head, (uint32_t)some};
		done += some;
	}
	uint16_t count = htole16((uint16_t)chains);
	chain_write(&n->first, offsetof(struct virtio_net_hdr_mrg_rxbuf, num_buffers), &count, sizeof(count));
	for (unsigned i = 0; i < chains; i++)
		virtqueue_push(q, n->placed[i].head, n->placed[i].n);
	return 0;
}

static void tap_gone(struct net *n)
{
	loop_fd_del(steal_pointer(&n->watch));
}

/* The next packet of the tap into `pending`. False: there is none. */
static bool read_packet(struct net *n)
{
	ssize_t r;
	do
		r = read(n->config.tap, n->packet, sizeof(n->packet));
	while (r < 0 && errno == EINTR);
	/* An interface that is down says EFAULT. */
	if (r < 0 && errno != EAGAIN && errno != EFAULT)
		tap_gone(n);
	n->pending = r > 0 ? (size_t)r : 0;
	return r >= 0;
}

/* True: the guest has not the buffers for more. */
static bool receive_some(struct net *n, unsigned *left)
{
	struct virtqueue *q = &n->d.queue[RX];
	bool some = false, starved = false;
	for (; *left && n->watch && n->d.active && !starved; --*left) {
		if (!virtqueue_has(q))
			starved = true;
		else if (n->pending == 0 && !read_packet(n))
			break;
		else if (n->pending < PACKET_MIN)
			n->pending = 0;
		else {
			int r = place(n, n->pending);
			some |= r == 0;
			starved = r == -ENOBUFS;
			n->pending = starved ? n->pending : 0;
		}
	}
	if (some)
		virtio_used(&n->d, q);
	return starved;
}

/* While the guest has no buffers the tap is not watched: it tells when it gives some. */
static void receive(struct net *n)
{
	struct virtqueue *q = &n->d.queue[RX];
	unsigned left = PACKETS_PER_TURN, waiting;
	bool starved, more;
	if (!n->watch || n->paused || !n->d.active)
		return;
	virtqueue_notifications(q, false);
	do {
		more = false;
		starved = receive_some(n, &left);
		if (!starved)
			break;
		waiting = virtqueue_waiting(q);
		virtqueue_notifications(q, true);
		more = virtqueue_waiting(q) != waiting;
	} while (more && left);
	if (n->watch)
		loop_fd_set(n->watch, n->d.active && !starved ? EPOLLIN : 0);
	if (more)
		virtio_again(&n->d);
}

static void on_tap(struct loop_fd *w, uint32_t events, void *arg)
{
	struct net *n = arg;
	if (events & (EPOLLERR | EPOLLHUP))
		tap_gone(n);
	else
		receive(n);
}

/* From the guest */

/* Asks the header no more of this machine's kernel than was agreed upon? The tap itself takes every kind of segments. */
static bool is_agreed(const struct net *n, const struct virtio_net_hdr_mrg_rxbuf *h)
{
	uint64_t segments = h->hdr.gso_type == VIRTIO_NET_HDR_GSO_TCPV4 ? BIT(VIRTIO_NET_F_HOST_TSO4) :
		h->hdr.gso_type == VIRTIO_NET_HDR_GSO_TCPV6		? BIT(VIRTIO_NET_F_HOST_TSO6) :
									  0;
	if (h->hdr.flags & ~VIRTIO_NET_HDR_F_NEEDS_CSUM || (h->hdr.flags && !(n->d.accepted & BIT(VIRTIO_NET_F_CSUM))))
		return false;
	return h->hdr.gso_type == VIRTIO_NET_HDR_GSO_NONE || (h->hdr.flags && n->d.accepted & segments);
}

/* A packet that is not sent, or that the kernel does not take, full or displeased, is lost, as on any wire. */
static void send_packet(struct net *n)
{
	const struct chain *c = &n->chain;
	struct virtio_net_hdr_mrg_rxbuf header;
	struct iovec iov[CHAIN_PARTS_MAX + 1] = {{&header, HEADER}};
	int parts = 1;
	size_t skip = HEADER;
	ssize_t r;
	if (!n->watch || c->in_bytes < PACKET_MIN || c->in_bytes > PACKET_MAX)
		return;
	/* What is looked at is what is sent, whatever the guest makes of it meanwhile. */
	chain_read(c, 0, &header, HEADER);
	if (!is_agreed(n, &header))
		return;
	for (unsigned i = 0; i < c->n_in; i++) {
		size_t drop = MIN(skip, c->in[i].iov_len);
		skip -= drop;
		if (drop < c->in[i].iov_len)
			iov[parts++] = (struct iovec){(char *)c->in[i].iov_base + drop, c->in[i].iov_len - drop};
	}
	do
		r = writev(n->config.tap, iov, parts);
	while (r < 0 && errno == EINTR);
}

static void transmit(struct net *n)
{
	struct virtqueue *q = &n->d.queue[TX];
	unsigned left = PACKETS_PER_TURN;
	if (n->paused || !n->d.active)
		return;
	virtqueue_notifications(q, false);
	do {
		bool some = false;
		for (; left && pop(n, TX, &n->chain) > 0; left--) {
			send_packet(n);
			virtqueue_push(q, n->chain.head, 0);
			some = true;
		}
		if (some)
			virtio_used(&n->d, q);
		virtqueue_notifications(q, true);
	} while (left && virtqueue_has(q));
	if (virtqueue_has(q))
		virtio_again(&n->d);
}

/* The device */

/* What the tap may leave undone: the guest's kernel does it. */
static int set_offload(const struct net *n, unsigned flags)
{
	return n->config.tap >= 0 && ioctl(n->config.tap, TUNSETOFFLOAD, (unsigned long)flags) == 0 ? 0 : -errno;
}

static void activate(struct virtio_device *d)
{
	struct net *n = of(d);
	unsigned flags = 0;
	if (d->accepted & BIT(VIRTIO_NET_F_GUEST_CSUM))
		flags = TUN_F_CSUM | (d->accepted & BIT(VIRTIO_NET_F_GUEST_TSO4) ? TUN_F_TSO4 : 0);
	set_offload(n, flags);
	receive(n);
}

static void reset(struct virtio_device *d)
{
	struct net *n = of(d);
	n->pending = 0;
	if (n->watch)
		loop_fd_set(n->watch, 0);
}

static void notify(struct virtio_device *d, unsigned queue)
{
	struct net *n = of(d);
	if (queue == RX)
		receive(n);
	else
		transmit(n);
}

static void quiesce(struct virtio_device *d)
{
	struct net *n = of(d);
	n->paused = true;
	if (n->watch)
		loop_fd_set(n->watch, 0);
}

static void resume(struct virtio_device *d)
{
	struct net *n = of(d);
	n->paused = false;
	receive(n);
	transmit(n);
}

static void end(struct virtio_device *d)
{
	struct net *n = of(d);
	tap_gone(n);
	cleanup_fd_p(&n->config.tap);
	free(n);
}

static const struct virtio_ops ops = {
	.id = VIRTIO_NET,
	.name = "net",
	.activate = activate,
	.reset = reset,
	.notify = notify,
	.quiesce = quiesce,
	.resume = resume,
	.free = end,
};

/* Packets with unfinished checksums and segments pass through a tap only when it can give them, too. */
static uint64_t features(const struct net *n)
{
	uint64_t f = BIT(VIRTIO_NET_F_MAC) | BIT(VIRTIO_NET_F_STATUS) | BIT(VIRTIO_NET_F_MRG_RXBUF) | (n->config.mtu ? BIT(VIRTIO_NET_F_MTU) : 0);
	if (set_offload(n, TUN_F_CSUM) == 0)
		f |= BIT(VIRTIO_NET_F_CSUM) | BIT(VIRTIO_NET_F_GUEST_CSUM);
	if (set_offload(n, TUN_F_CSUM | TUN_F_TSO4) == 0)
		f |= BIT(VIRTIO_NET_F_HOST_TSO4) | BIT(VIRTIO_NET_F_GUEST_TSO4);
	if (set_offload(n, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) == 0)
		f |= BIT(VIRTIO_NET_F_HOST_TSO6);
	set_offload(n, 0);
	return f;
}

struct virtio_device *net_new(struct loop *l, const struct guest_memory *m, const struct net_config *c, struct error *err)
{
	cleanup_fd int tap = c->tap;
	struct net *n = calloc(1, sizeof(*n));
	if (!n) {
		error_errno(err, -ENOMEM, "net");
		return NULL;
	}
	n->config = *c;
	n->config.tap = steal_fd(&tap);
	n->space = (struct virtio_net_config){.status = htole16(VIRTIO_NET_S_LINK_UP), .max_virtqueue_pairs = htole16(1), .mtu = htole16(c->mtu)};
	memcpy(n->space.mac, c->mac, sizeof(n->space.mac));
	n->d = (struct virtio_device){.ops = &ops, .offered = features(n), .n_queues = QUEUES, .config_size = CONFIG_SIZE, .config = &n->space};
	int r = virtio_init(&n->d, l, m, err);
	if (r == 0 && n->config.tap >= 0 && !(n->watch = loop_fd_add(l, n->config.tap, 0, on_tap, n)))
		r = error_errno(err, -ENOMEM, "net");
	return virtio_made(&n->d, r);
}
