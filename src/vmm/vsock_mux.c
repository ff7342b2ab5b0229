#include "vmm/vsock_mux.h"
#include "base/cleanup.h"
#include "base/random.h"

#include <assert.h>
#include <endian.h>

enum { SERIALS = 1u << (32 - VSOCK_SLOT_BITS) };

void vsock_mux_init(struct vsock_mux *m, struct loop *l)
{
	m->loop = l;
	random_bytes(&m->serial, sizeof(m->serial));
}

void vsock_mux_done(struct vsock_mux *m)
{
	for (unsigned i = 0; i < VSOCK_CONNECTIONS; i++)
		if (m->conn[i])
			vsock_conn_free(m->conn[i]);
}

/* Turns */

void vsock_mux_queue(struct vsock_conn *c)
{
	struct vsock_mux *m = c->mux;
	if (c->queued)
		return;
	c->queued = true;
	c->prev = m->last;
	c->next = NULL;
	*(m->last ? &m->last->next : &m->first) = c;
	m->last = c;
}

static void unqueue(struct vsock_conn *c)
{
	struct vsock_mux *m = c->mux;
	if (!c->queued)
		return;
	*(c->prev ? &c->prev->next : &m->first) = c->next;
	*(c->next ? &c->next->prev : &m->last) = c->prev;
	c->queued = false;
}

bool vsock_mux_pending(const struct vsock_mux *m)
{
	return m->first || m->n_refusals;
}

static size_t emit_refusal(struct vsock_mux *m, const struct chain *to)
{
	const struct vsock_refusal *r = &m->refusal[m->first_refusal];
	struct virtio_vsock_hdr h = vsock_header(r->host_port, r->guest_port, r->type, VIRTIO_VSOCK_OP_RST);
	m->first_refusal = (m->first_refusal + 1) % VSOCK_REFUSALS;
	m->n_refusals--;
	return chain_write(to, 0, &h, sizeof(h));
}

size_t vsock_mux_emit(struct vsock_mux *m, const struct chain *to)
{
	for (;;) {
		m->refused_last = m->n_refusals && (!m->first || !m->refused_last);
		if (m->refused_last)
			return emit_refusal(m, to);
		struct vsock_conn *c = m->first;
		if (!c)
			return 0;
		unqueue(c);
		size_t n = vsock_conn_emit(c, to);
		if (n)
			return n;
	}
}

/* The table */

/* A slot of those that are over and only wait for the guest to say so: the oldest's. The guest's word, when it comes, finds nothing and needs no answer. */
static void make_room(struct vsock_mux *m)
{
	struct vsock_conn *oldest = NULL;
	uint32_t age = 0;
	for (unsigned i = 0; i < VSOCK_CONNECTIONS; i++) {
		struct vsock_conn *c = m->conn[i];
		uint32_t a = c ? (m->serial - (c->host_port >> VSOCK_SLOT_BITS)) % SERIALS : 0;
		if (c && vsock_conn_over(c) && (!oldest || a > age)) {
			oldest = c;
			age = a;
		}
	}
	if (oldest)
		vsock_conn_free(oldest);
}

bool vsock_mux_room(struct vsock_mux *m, bool control)
{
	unsigned limit = control ? VSOCK_CONNECTIONS : VSOCK_CONNECTIONS - VSOCK_RESERVED;
	if (m->n >= limit)
		make_room(m);
	return m->n < limit;
}

/* Host port of a free slot; there is one. Serials 0 (ports that are well known) and the last (VMADDR_PORT_ANY) are left out. */
static void place(struct vsock_mux *m, struct vsock_conn *c)
{
	do
		m->serial = (m->serial + 1) % SERIALS;
	while (m->serial == 0 || m->serial == SERIALS - 1);
	c->slot = m->serial % VSOCK_CONNECTIONS;
	while (m->conn[c->slot])
		c->slot = (c->slot + 1) % VSOCK_CONNECTIONS;
	c->host_port = m->serial << VSOCK_SLOT_BITS | c->slot;
	m->conn[c->slot] = c;
	m->n++;
}

void vsock_mux_remove(struct vsock_conn *c)
{
	struct vsock_mux *m = c->mux;
	unqueue(c);
	if (c == m->kept)
		m->kept = NULL;
	if (m->conn[c->slot] == c) {
		m->conn[c->slot] = NULL;
		m->n--;
	}
}

/*
 * What a stream may have the monitor keep: a thousand with a host each that reads slowly, visitors of a port, come to 32 MiB, of the 64 that a sandbox has beside its guest's memory.
 * Fixed when it begins: a guest need not expect that what it was told becomes less. Messages have to fit whole.
 */
static uint32_t buffer_of(const struct vsock_mux *m, bool seqpacket)
{
	return seqpacket || m->n < 64 ? VSOCK_BUFFER : m->n < 256 ? VSOCK_BUFFER / 2 : VSOCK_BUFFER / 8;
}

int vsock_mux_connect(struct vsock_mux *m, int fd, bool seqpacket, uint32_t guest_port)
{
	cleanup_fd int owned = fd;
	if (!vsock_mux_room(m, seqpacket && guest_port == VSOCK_PORT_CONTROL))
		return -EAGAIN;
	struct vsock_conn *c = vsock_conn_new(m, owned, VSOCK_WAITING);
	if (!c)
		return -ENOMEM;
	steal_fd(&owned);
	c->seqpacket = seqpacket;
	c->buffer = buffer_of(m, seqpacket);
	c->guest_port = guest_port;
	place(m, c);
	if (vsock_conn_wants(c))
		vsock_mux_queue(c);
	m->changed(m->arg);
	return 0;
}

void vsock_mux_forget(struct vsock_mux *m)
{
	m->up = false;
	m->n_refusals = 0;
	for (unsigned i = 0; i < VSOCK_CONNECTIONS; i++)
		if (m->conn[i] && m->conn[i]->state != VSOCK_WAITING)
			vsock_conn_free(m->conn[i]);
	random_bytes(&m->serial, sizeof(m->serial));
}

void vsock_mux_wake(struct vsock_mux *m)
{
	for (unsigned i = 0; i < VSOCK_CONNECTIONS; i++)
		if (m->conn[i] && vsock_conn_wants(m->conn[i]))
			vsock_mux_queue(m->conn[i]);
	m->changed(m->arg);
}

/* Packets */

static struct vsock_conn *find(struct vsock_mux *m, uint32_t host_port, uint32_t guest_port)
{
	struct vsock_conn *c = host_port == VSOCK_PORT_CONTROL ? m->kept : m->conn[host_port % VSOCK_CONNECTIONS];
	bool known = c && c->host_port == host_port && c->guest_port == guest_port && c->state != VSOCK_WAITING && c->state != VSOCK_LEFT;
	return known ? c : NULL;
}

/* The one connection that the guest may make. False: not this one. */
static bool accept_guest(struct vsock_mux *m, const struct virtio_vsock_hdr *h)
{
	if (le16toh(h->op) != VIRTIO_VSOCK_OP_REQUEST || le16toh(h->type) != VIRTIO_VSOCK_TYPE_STREAM || le32toh(h->dst_port) != VSOCK_PORT_CONTROL || m->kept || !vsock_mux_room(m, true))
		return false;
	struct vsock_conn *c = vsock_conn_new(m, -1, VSOCK_ACCEPTED);
	if (!c)
		return false;
	place(m, c);
	c->host_port = VSOCK_PORT_CONTROL;
	c->guest_port = le32toh(h->src_port);
	m->kept = c;
	vsock_mux_queue(c);
	m->up = true;
	vsock_mux_wake(m);
	m->up_now(m->arg);
	return true;
}

bool vsock_mux_full(const struct vsock_mux *m)
{
	return m->n_refusals == VSOCK_REFUSALS;
}

static void refuse(struct vsock_mux *m, const struct virtio_vsock_hdr *h)
{
	assert(!vsock_mux_full(m));
	m->refusal[(m->first_refusal + m->n_refusals++) % VSOCK_REFUSALS] = (struct vsock_refusal){
		.host_port = le32toh(h->dst_port), .guest_port = le32toh(h->src_port), .type = le16toh(h->type)};
}

void vsock_mux_packet(struct vsock_mux *m, const struct virtio_vsock_hdr *h, const struct chain *from)
{
	/* There is nobody to answer. */
	if (le64toh(h->src_cid) != VSOCK_GUEST || le64toh(h->dst_cid) != VSOCK_HOST)
		return;
	struct vsock_conn *c = find(m, le32toh(h->dst_port), le32toh(h->src_port));
	if (c)
		vsock_conn_packet(c, h, from);
	else if (le16toh(h->op) != VIRTIO_VSOCK_OP_RST && !accept_guest(m, h))
		refuse(m, h);
}
