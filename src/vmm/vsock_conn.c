#include "vmm/vsock_mux.h"
#include "base/cleanup.h"

#include <assert.h>
#include <endian.h>
#include <sys/socket.h>

enum {
	KEEP = 16 * 1024,              /* a buffer that grew beyond this gives its memory back when it is empty */
	UPDATE_AT = 4,                 /* a part of the buffer: the guest is told of room when it knows of so much too little */
	BOTH = VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND,
};
static const uint32_t RECORD_END = 1u << 31; /* in the length of a message in `in` */

static void on_event(struct loop_fd *w, uint32_t events, void *arg);

struct vsock_conn *vsock_conn_new(struct vsock_mux *m, int fd, enum vsock_state s)
{
	struct vsock_conn *c = malloc(sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct vsock_conn){.mux = m, .fd = fd, .state = s, .buffer = VSOCK_BUFFER, .kept = fd < 0, .deaf = fd < 0, .readable = true, .writable = true};
	if (fd >= 0 && !(c->watch = loop_fd_add(m->loop, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, on_event, c))) {
		free(c);
		return NULL;
	}
	return c;
}

static void close_host(struct vsock_conn *c)
{
	loop_fd_del(steal_pointer(&c->watch));
	if (c->fd >= 0)
		close(steal_fd(&c->fd));
	buf_done(&c->in);
	buf_done(&c->part);
	buf_done(&c->message);
}

void vsock_conn_free(struct vsock_conn *c)
{
	vsock_mux_remove(c);
	close_host(c);
	free(c);
}

static void set_state(struct vsock_conn *c, enum vsock_state s)
{
	static const unsigned from[] = {
		[VSOCK_REQUESTED] = 1 << VSOCK_WAITING,
		[VSOCK_OPEN] = 1 << VSOCK_REQUESTED | 1 << VSOCK_ACCEPTED,
		[VSOCK_ENDING] = 1 << VSOCK_REQUESTED | 1 << VSOCK_ACCEPTED | 1 << VSOCK_OPEN,
		[VSOCK_LEFT] = 1 << VSOCK_OPEN,
	};
	assert(from[s] & 1u << c->state);
	c->state = s;
}

/* Ends it for both sides; what is not delivered is lost. */
static void reset(struct vsock_conn *c)
{
	close_host(c);
	set_state(c, VSOCK_ENDING);
	vsock_mux_queue(c);
}

bool vsock_conn_over(const struct vsock_conn *c)
{
	return c->state == VSOCK_OPEN && c->shut_told == BOTH && c->fd < 0;
}

/* Credit */

static uint32_t credit(const struct vsock_conn *c)
{
	uint32_t under_way = c->sent - c->peer_forwarded;
	return under_way < c->peer_alloc ? c->peer_alloc - under_way : 0;
}

static void note_forwarded(struct vsock_conn *c, size_t n)
{
	c->forwarded += (uint32_t)n;
	if (c->forwarded - c->told >= c->buffer / UPDATE_AT)
		c->update = true;
}

/* To the host */

static void shrink(struct buf *b)
{
	if (buf_len(b) == 0 && b->cap > KEEP)
		buf_done(b);
}

static void stop_writing(struct vsock_conn *c)
{
	c->deaf = true;
	buf_done(&c->in);
	buf_done(&c->part);
	note_forwarded(c, c->received - c->forwarded);
}

/* The bytes that the socket took; 0 when it is full, or takes nothing any more. */
static size_t write_host(struct vsock_conn *c, struct iovec *iov, size_t n, int flags)
{
	struct msghdr h = {.msg_iov = iov, .msg_iovlen = n};
	ssize_t r;
	if (!c->writable || c->deaf)
		return 0;
	do
		r = sendmsg(c->fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
	while (r < 0 && errno == EINTR);
	if (r >= 0)
		return (size_t)r;
	if (errno == EAGAIN)
		c->writable = false;
	else
		stop_writing(c);
	return 0;
}

static size_t write_message(struct vsock_conn *c, struct str message, bool end_of_record)
{
	return write_host(c, &(struct iovec){(void *)(uintptr_t)message.p, message.n}, 1, end_of_record ? MSG_EOR : 0);
}

/* Writes what is kept, as far as the socket takes it. */
static void flush(struct vsock_conn *c)
{
	size_t done = 1;
	while (done && buf_len(&c->in)) {
		struct str s = buf_str(&c->in);
		if (c->seqpacket) {
			uint32_t length;
			memcpy(&length, s.p, sizeof(length));
			done = write_message(c, str_n(s.p + sizeof(length), length & ~RECORD_END), length & RECORD_END);
			buf_consume(&c->in, done ? sizeof(length) + done : 0);
		} else {
			done = write_host(c, &(struct iovec){(void *)(uintptr_t)s.p, s.n}, 1, 0);
			buf_consume(&c->in, done);
		}
		note_forwarded(c, done);
	}
	shrink(&c->in);
}

/* Draws the consequences of whatever has changed. May free the connection. */
static void settle(struct vsock_conn *c)
{
	if (c->state != VSOCK_OPEN && c->state != VSOCK_LEFT)
		return;
	flush(c);
	bool delivered = c->deaf || !buf_len(&c->in);
	bool guest_done = c->deaf || ((c->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND) && delivered);
	if (c->state == VSOCK_LEFT) {
		if (delivered)
			vsock_conn_free(c);
		return;
	}
	if (c->guest_shut == BOTH && guest_done) {
		reset(c);
		return;
	}
	if (c->fd >= 0) {
		if (guest_done && !c->ended_host) {
			c->ended_host = true;
			shutdown(c->fd, SHUT_WR);
		}
		if ((c->guest_shut & VIRTIO_VSOCK_SHUTDOWN_RCV) && !c->ended) {
			c->ended = true;
			buf_done(&c->message);
			shutdown(c->fd, SHUT_RD);
		}
		bool host_done = c->ended && !buf_len(&c->message);
		if (host_done)
			c->shut |= VIRTIO_VSOCK_SHUTDOWN_SEND;
		if (c->deaf || (guest_done && host_done))
			c->shut |= VIRTIO_VSOCK_SHUTDOWN_RCV;
		if (c->shut == BOTH) {
			close_host(c);
			c->deaf = true;
		}
	}
	if (vsock_conn_wants(c))
		vsock_mux_queue(c);
}

/* Closed before anything was said: nobody wants it any more. */
static bool given_up(const struct vsock_conn *c)
{
	char one;
	return recv(c->fd, &one, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct vsock_conn *c = arg;
	struct vsock_mux *m = c->mux;
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		c->readable = true;
	if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		c->writable = true;
	bool closed = events & EPOLLHUP;
	if (closed && c->state == VSOCK_WAITING && given_up(c))
		vsock_conn_free(c);
	else if (closed && c->state == VSOCK_REQUESTED && given_up(c))
		reset(c);
	else {
		if (closed)
			stop_writing(c);
		settle(c);
	}
	m->changed(m->arg);
}

/* From the guest */

/* The n bytes behind the header, which the chain has, go to the host, or into a buffer. 0 or -ENOMEM. */
static int take_stream(struct vsock_conn *c, const struct chain *from, size_t n)
{
	struct iovec iov[CHAIN_PARTS_MAX];
	size_t parts = 0, skip = VSOCK_HEADER, left = n;
	for (unsigned i = 0; i < from->n_in && left; i++) {
		size_t over = MIN(skip, from->in[i].iov_len), take = MIN(from->in[i].iov_len - over, left);
		skip -= over;
		left -= take;
		if (take)
			iov[parts++] = (struct iovec){(char *)from->in[i].iov_base + over, take};
	}
	size_t done = buf_len(&c->in) ? 0 : write_host(c, iov, parts, 0);
	if (c->deaf)
		return 0;
	note_forwarded(c, done);
	if (done == n)
		return 0;
	char *to = buf_reserve(&c->in, n - done);
	if (!to)
		return -ENOMEM;
	buf_commit(&c->in, chain_read(from, VSOCK_HEADER + done, to, n - done));
	return 0;
}

static int end_message(struct vsock_conn *c, bool end_of_record)
{
	struct str s = buf_str(&c->part);
	uint32_t length = (uint32_t)s.n | (end_of_record ? RECORD_END : 0);
	/* For the host an empty message would be an end. */
	size_t done = s.n == 0 || buf_len(&c->in) ? 0 : write_message(c, s, end_of_record);
	if (c->deaf)
		return 0;
	note_forwarded(c, done);
	if (s.n && !done && (buf_add(&c->in, &length, sizeof(length)) < 0 || buf_add_str(&c->in, s) < 0))
		return -ENOMEM;
	buf_clear(&c->part);
	shrink(&c->part);
	return 0;
}

static int take_part(struct vsock_conn *c, const struct chain *from, size_t n, uint32_t flags)
{
	if (buf_len(&c->part) + n > VSOCK_MESSAGE_MAX)
		return -EMSGSIZE;
	char *to = buf_reserve(&c->part, n);
	if (n && !to)
		return -ENOMEM;
	if (n)
		buf_commit(&c->part, chain_read(from, VSOCK_HEADER, to, n));
	return flags & VIRTIO_VSOCK_SEQ_EOM ? end_message(c, flags & VIRTIO_VSOCK_SEQ_EOR) : 0;
}

/* 0, or -errno: the guest broke a rule, or there is no memory. */
static int take(struct vsock_conn *c, const struct virtio_vsock_hdr *h, const struct chain *from)
{
	size_t n = le32toh(h->len);
	if (c->state != VSOCK_OPEN || n > from->in_bytes - VSOCK_HEADER || (c->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND))
		return -EPROTO;
	if (n > c->buffer - (c->received - c->forwarded))
		return -ENOBUFS;
	c->received += (uint32_t)n;
	if (c->deaf) {
		note_forwarded(c, n);
		return 0;
	}
	return c->seqpacket ? take_part(c, from, n, le32toh(h->flags)) : n ? take_stream(c, from, n) : 0;
}

/* The guest has forgotten it. */
static void leave(struct vsock_conn *c)
{
	if (c->state != VSOCK_OPEN || c->deaf) {
		vsock_conn_free(c);
		return;
	}
	set_state(c, VSOCK_LEFT);
	c->ended = true;
	buf_done(&c->part);
	buf_done(&c->message);
	settle(c);
}

void vsock_conn_packet(struct vsock_conn *c, const struct virtio_vsock_hdr *h, const struct chain *from)
{
	unsigned op = le16toh(h->op);
	int r = 0;
	if (op == VIRTIO_VSOCK_OP_RST) {
		leave(c);
		return;
	}
	if (c->state == VSOCK_ENDING)
		return;
	c->peer_alloc = le32toh(h->buf_alloc);
	c->peer_forwarded = le32toh(h->fwd_cnt);
	if (credit(c))
		c->asked = false;
	if (le16toh(h->type) != (c->seqpacket ? VIRTIO_VSOCK_TYPE_SEQPACKET : VIRTIO_VSOCK_TYPE_STREAM))
		r = -EPROTO;
	else if (op == VIRTIO_VSOCK_OP_RESPONSE && c->state == VSOCK_REQUESTED)
		set_state(c, VSOCK_OPEN);
	else if (op == VIRTIO_VSOCK_OP_RW)
		r = take(c, h, from);
	else if (op == VIRTIO_VSOCK_OP_SHUTDOWN && c->state == VSOCK_OPEN)
		c->guest_shut |= le32toh(h->flags) & BOTH;
	else if (op == VIRTIO_VSOCK_OP_CREDIT_REQUEST)
		c->update = true;
	else if (op != VIRTIO_VSOCK_OP_CREDIT_UPDATE)
		r = -EPROTO;
	if (r < 0)
		reset(c);
	else
		settle(c);
}

/* To the guest */

struct virtio_vsock_hdr vsock_header(uint32_t host_port, uint32_t guest_port, uint16_t type, enum virtio_vsock_op op)
{
	return (struct virtio_vsock_hdr){.src_cid = htole64(VSOCK_HOST), .dst_cid = htole64(VSOCK_GUEST), .src_port = htole32(host_port), .dst_port = htole32(guest_port), .type = htole16(type),
		.op = htole16(op)};
}

static size_t say(struct vsock_conn *c, enum virtio_vsock_op op, uint32_t flags, size_t n, const struct chain *to)
{
	struct virtio_vsock_hdr h = vsock_header(c->host_port, c->guest_port, c->seqpacket ? VIRTIO_VSOCK_TYPE_SEQPACKET : VIRTIO_VSOCK_TYPE_STREAM, op);
	h.len = htole32((uint32_t)n);
	h.flags = htole32(flags);
	h.buf_alloc = htole32(c->buffer);
	h.fwd_cnt = htole32(c->forwarded);
	c->told = c->forwarded;
	c->update = false;
	c->sent += (uint32_t)n;
	return chain_write(to, 0, &h, sizeof(h)) + n;
}

static void host_ended(struct vsock_conn *c, bool failed)
{
	c->ended = true;
	if (failed)
		stop_writing(c);
}

/* Bytes from the socket; 0: none now, or an end (c->ended). */
static size_t read_host(struct vsock_conn *c, struct msghdr *h)
{
	ssize_t r;
	do
		r = recvmsg(c->fd, h, MSG_DONTWAIT);
	while (r < 0 && errno == EINTR);
	if (r > 0)
		return (size_t)r;
	if (r < 0 && errno == EAGAIN)
		c->readable = false;
	else
		host_ended(c, r < 0);
	return 0;
}

static size_t emit_stream(struct vsock_conn *c, const struct chain *to)
{
	struct iovec iov[CHAIN_PARTS_MAX];
	struct msghdr h = {.msg_iov = iov};
	size_t skip = VSOCK_HEADER, left = MIN(credit(c), (uint32_t)VSOCK_PACKET_MAX);
	for (unsigned i = 0; i < to->n_out && left; i++) {
		size_t over = MIN(skip, to->out[i].iov_len), n = MIN(to->out[i].iov_len - over, left);
		skip -= over;
		left -= n;
		if (n)
			iov[h.msg_iovlen++] = (struct iovec){(char *)to->out[i].iov_base + over, n};
	}
	size_t n = read_host(c, &h);
	return n ? say(c, VIRTIO_VSOCK_OP_RW, 0, n, to) : 0;
}

/* The host's next message into `message`, whole. False: there is none, or the connection was reset. */
static bool next_message(struct vsock_conn *c)
{
	struct vsock_mux *m = c->mux;
	struct msghdr h = {.msg_iov = &(struct iovec){m->scratch, sizeof(m->scratch)}, .msg_iovlen = 1};
	size_t n = c->readable && !c->ended ? read_host(c, &h) : 0;
	c->end_of_record = h.msg_flags & MSG_EOR;
	if (n > VSOCK_MESSAGE_MAX || (n && buf_add(&c->message, m->scratch, n) < 0)) {
		reset(c);
		return false;
	}
	return n;
}

static size_t emit_message(struct vsock_conn *c, const struct chain *to)
{
	if (!buf_len(&c->message) && !next_message(c))
		return 0;
	struct str s = buf_str(&c->message);
	size_t n = chain_write(to, VSOCK_HEADER, s.p, MIN(s.n, credit(c)));
	uint32_t flags = n < s.n ? 0 : VIRTIO_VSOCK_SEQ_EOM | (c->end_of_record ? VIRTIO_VSOCK_SEQ_EOR : 0);
	buf_consume(&c->message, n);
	shrink(&c->message);
	return say(c, VIRTIO_VSOCK_OP_RW, flags, n, to);
}

static bool has_data(const struct vsock_conn *c)
{
	return buf_len(&c->message) || (c->readable && !c->ended);
}

bool vsock_conn_wants(const struct vsock_conn *c)
{
	switch (c->state) {
	case VSOCK_WAITING:
		return c->mux->up && !c->mux->held;
	case VSOCK_ACCEPTED:
	case VSOCK_ENDING:
		return true;
	case VSOCK_OPEN:
		return c->update || c->shut != c->shut_told || (c->fd >= 0 && has_data(c) && (credit(c) || !c->asked));
	case VSOCK_REQUESTED:
	case VSOCK_LEFT:
		break;
	}
	return false;
}

static size_t emit_open(struct vsock_conn *c, const struct chain *to)
{
	if (c->fd >= 0 && has_data(c) && credit(c)) {
		size_t n = c->seqpacket ? emit_message(c, to) : emit_stream(c, to);
		if (n)
			return n;
		/* An end may have been found, or a message that is too long. */
		if (c->state != VSOCK_OPEN)
			return 0;
	}
	settle(c);
	if (c->state != VSOCK_OPEN)
		return 0;
	if (c->shut != c->shut_told) {
		c->shut_told = c->shut;
		return say(c, VIRTIO_VSOCK_OP_SHUTDOWN, c->shut, 0, to);
	}
	if (c->update)
		return say(c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, 0, to);
	if (c->fd >= 0 && has_data(c) && !credit(c) && !c->asked) {
		c->asked = true;
		return say(c, VIRTIO_VSOCK_OP_CREDIT_REQUEST, 0, 0, to);
	}
	return 0;
}

size_t vsock_conn_emit(struct vsock_conn *c, const struct chain *to)
{
	size_t n = 0;
	switch (c->state) {
	case VSOCK_WAITING:
		if (!vsock_conn_wants(c))
			return 0;
		/* A guest without SEQPACKET will never have a listener for it. */
		if (c->seqpacket && !c->mux->seqpacket) {
			vsock_conn_free(c);
			return 0;
		}
		set_state(c, VSOCK_REQUESTED);
		return say(c, VIRTIO_VSOCK_OP_REQUEST, 0, 0, to);
	case VSOCK_ENDING:
		n = say(c, VIRTIO_VSOCK_OP_RST, 0, 0, to);
		vsock_conn_free(c);
		return n;
	case VSOCK_ACCEPTED:
		set_state(c, VSOCK_OPEN);
		n = say(c, VIRTIO_VSOCK_OP_RESPONSE, 0, 0, to);
		break;
	case VSOCK_OPEN:
		n = emit_open(c, to);
		break;
	case VSOCK_REQUESTED:
	case VSOCK_LEFT:
		break;
	}
	if (vsock_conn_wants(c))
		vsock_mux_queue(c);
	return n;
}
