#include "vsock_guest.h"
#include "base/cleanup.h"

#include <linux/virtio_ring.h>
#include <stdio.h>
#include <string.h>

#define must(condition)                                                                                      \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                      \
			abort();                                                                             \
		}                                                                                            \
	} while (0)

void vsock_guest_init(struct vsock_guest *g, int control, void (*up)(void *arg), void *arg)
{
	struct error err = {0};
	*g = (struct vsock_guest){.loop = loop_new(), .alloc = 256 * 1024};
	driver_memory(&g->memory, 1 << 20);
	g->device = vsock_new(g->loop, &g->memory, &(struct vsock_config){.control = control, .up = up, .arg = arg}, &err);
	must(g->device);
	driver_init(&g->d, g->device, &g->memory);
}

static void forget(struct vsock_guest *g)
{
	for (unsigned i = 0; i < g->n; i++) {
		buf_done(&g->conn[i]->got);
		free(g->conn[i]);
	}
	g->n = 0;
}

void vsock_guest_done(struct vsock_guest *g)
{
	virtio_free(g->device);
	loop_free(g->loop);
	driver_memory_done(&g->memory);
	forget(g);
}

static void offer(struct vsock_guest *g, unsigned queue, uint64_t address, uint32_t n, uint64_t *of_head)
{
	uint16_t head = driver_add(&g->d, queue, &(struct part){address, n, true}, 1);
	of_head[head] = address;
}

void vsock_guest_start(struct vsock_guest *g)
{
	forget(g);
	driver_start(&g->d, 1ull << VIRTIO_VSOCK_F_SEQPACKET | 1ull << VIRTIO_RING_F_EVENT_IDX, GUEST_QUEUE);
	memset(g->kicked, 0, sizeof(g->kicked));
	for (unsigned i = 0; i < GUEST_QUEUE; i++)
		offer(g, GUEST_RX, driver_alloc(&g->d, GUEST_BUFFER), GUEST_BUFFER, g->rx);
	for (unsigned i = 0; i < 8; i++)
		offer(g, GUEST_EVENT, driver_alloc(&g->d, sizeof(struct virtio_vsock_event)), sizeof(struct virtio_vsock_event), g->event);
	g->tx = driver_alloc(&g->d, sizeof(struct virtio_vsock_hdr) + GUEST_PACKET_MAX);
	vsock_guest_kick(g, GUEST_RX);
	vsock_guest_kick(g, GUEST_EVENT);
}

void vsock_guest_kick(struct vsock_guest *g, unsigned queue)
{
	struct driver_queue *q = &g->d.queue[queue];
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	uint16_t event = __atomic_load_n((uint16_t *)driver_at(&g->d, q->used + 4 + 8 * (uint64_t)q->size, 2), __ATOMIC_RELAXED), old = g->kicked[queue];
	g->kicked[queue] = q->next_avail;
	if (vring_need_event(event, q->next_avail, old))
		driver_notify(&g->d, queue);
}

void vsock_guest_raw(struct vsock_guest *g, const struct virtio_vsock_hdr *h, const void *data, size_t n)
{
	must(n <= GUEST_PACKET_MAX);
	memcpy(driver_at(&g->d, g->tx, sizeof(*h)), h, sizeof(*h));
	if (n)
		memcpy(driver_at(&g->d, g->tx + sizeof(*h), n), data, n);
	/* Header apart from the bytes, as old kernels have it, or the bytes in two parts. */
	struct part parts[3] = {{g->tx, sizeof(*h), false}, {g->tx + sizeof(*h), (uint32_t)n, false}};
	if (n > 100) {
		parts[0].n += 10;
		parts[1] = (struct part){parts[1].address + 10, (uint32_t)n / 2, false};
		parts[2] = (struct part){parts[1].address + parts[1].n, (uint32_t)n - 10 - parts[1].n, false};
	}
	driver_add(&g->d, GUEST_TX, parts, n > 100 ? 3 : n ? 2 : 1);
	vsock_guest_kick(g, GUEST_TX);
	while (!driver_used(&g->d, GUEST_TX, NULL, NULL))
		vsock_guest_turn(g, 20);
}

struct virtio_vsock_hdr vsock_guest_header(const struct vsock_guest *g, const struct guest_conn *c, uint16_t op)
{
	return (struct virtio_vsock_hdr){.src_cid = VSOCK_GUEST, .dst_cid = VSOCK_HOST, .src_port = c->port, .dst_port = c->host_port, .type = c->type, .op = op, .buf_alloc = g->alloc,
		.fwd_cnt = c->taken};
}

void vsock_guest_say(struct vsock_guest *g, struct guest_conn *c, uint16_t op, uint32_t flags)
{
	struct virtio_vsock_hdr h = vsock_guest_header(g, c, op);
	h.flags = flags;
	vsock_guest_raw(g, &h, NULL, 0);
}

uint32_t vsock_guest_credit(const struct guest_conn *c)
{
	must(c->sent - c->host_forwarded <= c->host_alloc);
	return c->host_alloc - (c->sent - c->host_forwarded);
}

size_t vsock_guest_send(struct vsock_guest *g, struct guest_conn *c, const void *data, size_t n, uint32_t flags)
{
	size_t some = MIN(MIN(n, vsock_guest_credit(c)), (size_t)GUEST_PACKET_MAX);
	struct virtio_vsock_hdr h = vsock_guest_header(g, c, VIRTIO_VSOCK_OP_RW);
	if (!some && n)
		return 0;
	h.len = (uint32_t)some;
	h.flags = some == n ? flags : 0;
	c->sent += h.len;
	vsock_guest_raw(g, &h, data, some);
	return some;
}

void vsock_guest_take(struct vsock_guest *g, struct guest_conn *c)
{
	c->taken = c->received;
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0);
}

static struct guest_conn *add(struct vsock_guest *g, uint32_t host_port, uint32_t port, uint16_t type)
{
	struct guest_conn *c = calloc(1, sizeof(*c));
	must(c && g->n < GUEST_CONNECTIONS);
	*c = (struct guest_conn){.host_port = host_port, .port = port, .type = type};
	g->conn[g->n++] = c;
	return c;
}

struct guest_conn *vsock_guest_up(struct vsock_guest *g)
{
	struct guest_conn *c = add(g, VSOCK_PORT_CONTROL, 70000 + g->n, VIRTIO_VSOCK_TYPE_STREAM);
	vsock_guest_say(g, c, VIRTIO_VSOCK_OP_REQUEST, 0);
	vsock_guest_until(g, c->open || c->gone);
	return c;
}

static struct guest_conn *find(struct vsock_guest *g, uint32_t host_port, uint32_t port)
{
	for (unsigned i = g->n; i-- > 0;)
		if (g->conn[i]->host_port == host_port && g->conn[i]->port == port && !g->conn[i]->gone)
			return g->conn[i];
	return NULL;
}

static void take_bytes(struct vsock_guest *g, struct guest_conn *c, const struct virtio_vsock_hdr *h, const char *data)
{
	must(c->open && !(c->shut & VIRTIO_VSOCK_SHUTDOWN_SEND));
	if (!c->received)
		c->strays_before = g->strays;
	c->received += h->len;
	must(c->received - c->taken <= g->alloc);
	buf_add(&c->got, data, h->len);
	c->last_flags = h->flags;
	if (h->flags & VIRTIO_VSOCK_SEQ_EOM && c->type == VIRTIO_VSOCK_TYPE_SEQPACKET) {
		must(c->messages < ARRAY_SIZE(c->message));
		c->message[c->messages++] = buf_len(&c->got) - c->message_start;
		c->message_start = buf_len(&c->got);
	}
	if (!c->hold && c->received - c->taken >= g->alloc / 2)
		vsock_guest_take(g, c);
}

static void packet(struct vsock_guest *g, const struct virtio_vsock_hdr *h, const char *data)
{
	must(h->src_cid == VSOCK_HOST && h->dst_cid == VSOCK_GUEST);
	struct guest_conn *c = find(g, h->src_port, h->dst_port);
	if (h->op == VIRTIO_VSOCK_OP_REQUEST) {
		must(!c && h->src_port >= 1024);
		c = add(g, h->src_port, h->dst_port, h->type);
		c->gone = g->refuses;
		c->open = !g->refuses;
		c->host_alloc = h->buf_alloc;
		vsock_guest_say(g, c, g->refuses ? VIRTIO_VSOCK_OP_RST : VIRTIO_VSOCK_OP_RESPONSE, 0);
		return;
	}
	if (!c) {
		g->strays++;
		g->stray = *h;
		return;
	}
	must(h->type == c->type);
	c->host_alloc = h->buf_alloc;
	c->host_forwarded = h->fwd_cnt;
	if (h->op == VIRTIO_VSOCK_OP_RESPONSE)
		c->open = true;
	else if (h->op == VIRTIO_VSOCK_OP_RST)
		c->gone = true;
	else if (h->op == VIRTIO_VSOCK_OP_SHUTDOWN)
		c->shut |= h->flags;
	else if (h->op == VIRTIO_VSOCK_OP_RW)
		take_bytes(g, c, h, data);
	else if (h->op == VIRTIO_VSOCK_OP_CREDIT_REQUEST) {
		c->credit_requests++;
		if (!c->hold)
			vsock_guest_take(g, c);
	} else
		must(h->op == VIRTIO_VSOCK_OP_CREDIT_UPDATE);
}

void vsock_guest_feed(struct vsock_guest *g)
{
	g->starves = false;
	vsock_guest_kick(g, GUEST_RX);
}

void vsock_guest_turn(struct vsock_guest *g, int ms)
{
	char copy[GUEST_BUFFER];
	struct virtio_vsock_hdr h;
	uint16_t head;
	uint32_t n;
	bool some = false;
	while (!g->starves && driver_used(&g->d, GUEST_RX, &head, &n)) {
		uint64_t address = g->rx[head];
		must(n >= sizeof(h) && n <= GUEST_BUFFER);
		memcpy(copy, driver_at(&g->d, address, n), n);
		memcpy(&h, copy, sizeof(h));
		must(h.len == n - sizeof(h));
		offer(g, GUEST_RX, address, GUEST_BUFFER, g->rx);
		vsock_guest_kick(g, GUEST_RX);
		packet(g, &h, copy + sizeof(h));
		some = true;
	}
	must(loop_turn(g->loop, some ? 0 : ms) == 0);
}
