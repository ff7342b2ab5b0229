#include "io/http_conn.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <sys/socket.h>

enum {
	HEAD_READ = 8 * 1024,
	READS_PER_EVENT = 4, /* then others get their turn */
	MAX_LINGER_BYTES = 64 * 1024 * 1024,
};

bool http_conn_discards(const struct http_conn *c)
{
	return (c->answer == ANSWER_DONE && !c->raw) || !c->req.ops || !c->req.ops->body;
}

bool http_conn_wants_body(const struct http_conn *c)
{
	if (c->phase != CONN_REQUEST || c->broken || (c->on_hold && c->answer != ANSWER_DONE))
		return false;
	if (c->raw)
		return !c->paused || http_conn_discards(c);
	if (c->body.done)
		return false;
	return http_conn_discards(c) ? c->drained <= HTTP_MAX_DRAIN : !c->paused;
}

/* Gives decoded bytes to the owner; false when it did not take all (the rest is held). */
static bool give(struct http_conn *c, struct str run)
{
	if (http_conn_discards(c)) {
		c->drained += run.n;
		return true;
	}
	c->paused = true; /* before the call: it may resume at once */
	size_t taken = c->req.ops->body(&c->req, run.p, run.n);
	if (taken >= run.n) {
		c->paused = false;
		return true;
	}
	buf_add(&c->held, run.p + taken, run.n - taken);
	if (c->held.failed)
		c->broken = true;
	return false;
}

static void bad_body(struct http_conn *c)
{
	if (c->answer != ANSWER_NONE || c->blocked) {
		c->broken = true;
		return;
	}
	http_conn_refuse(c, 400, NULL, STR(""));
	http_conn_end_request(c, false);
}

/* Bytes from the peer, in order. What is not for this request, or not taken, is kept in c->in. */
void http_conn_deliver(struct http_conn *c, struct str data)
{
	while (data.n && http_conn_wants_body(c)) {
		struct str run = data;
		if (c->raw)
			data.n = 0;
		else if (http_body_next(&c->body, &data, &run) < 0) {
			bad_body(c);
			return;
		}
		if (run.n && !give(c, run))
			break;
	}
	if (data.n && c->phase == CONN_REQUEST && buf_add_str(&c->in, data) < 0)
		c->broken = true;
}

/* Hands over what was held back or came early. The buffer is taken out first: the owner may cause changes to it. */
void http_conn_deliver_pending(struct http_conn *c)
{
	if (buf_len(&c->held) && !c->broken && (!c->paused || http_conn_discards(c))) {
		cleanup_buf struct buf held = c->held;
		c->held = BUF_INIT;
		give(c, buf_str(&held));
	}
	if (buf_len(&c->in) && !buf_len(&c->held) && http_conn_wants_body(c)) {
		cleanup_buf struct buf in = c->in;
		c->in = BUF_INIT;
		http_conn_deliver(c, buf_str(&in));
	}
	bool complete = c->raw ? c->eof && !buf_len(&c->in) : c->body.done;
	if (c->phase == CONN_REQUEST && complete && !buf_len(&c->held) && !c->end_told && !c->broken) {
		c->end_told = true;
		if (!c->on_hold && (c->answer != ANSWER_DONE || c->raw) && c->req.ops && c->req.ops->end)
			c->req.ops->end(&c->req);
	}
}

/* As recv(2), with -errno. */
static ssize_t receive_raw(struct http_conn *c, void *p, size_t n)
{
	ssize_t r;
	if (c->transport) {
		r = c->transport->ops->read(c->transport, p, n);
		c->blocked |= c->transport->ops->queued(c->transport) > 0;
		return r;
	}
	do {
		r = recv(c->fd, p, n, MSG_DONTWAIT);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

/* The peer does not speak our protocol: what it gets to hear has left, or is said in plain. Not closed at once, since a RST would overtake that. */
static void leave_transport(struct http_conn *c, bool plain)
{
	c->transport->ops->free(steal_pointer(&c->transport));
	c->blocked = false;
	buf_clear(&c->in);
	buf_clear(&c->out);
	http_conn_linger(c);
	if (plain)
		http_conn_refuse(c, 400, NULL, STR("This port speaks HTTPS: the address begins with https://"));
}

static ssize_t receive(struct http_conn *c, void *p, size_t n)
{
	ssize_t r = receive_raw(c, p, n);
	if (c->phase == CONN_HEAD && (r == -EPROTO || r == -EPROTONOSUPPORT))
		leave_transport(c, r == -EPROTONOSUPPORT);
	else if (r < 0 && r != -EAGAIN)
		c->broken = true;
	if (r == 0)
		c->eof = true;
	if (r > 0)
		c->progress = clock_boottime();
	return r;
}

static void read_head(struct http_conn *c)
{
	char *to = buf_reserve(&c->in, HEAD_READ);
	if (!to) {
		c->broken = true;
		return;
	}
	ssize_t r = receive(c, to, HEAD_READ);
	if (r > 0)
		buf_commit(&c->in, (size_t)r);
}

static void read_body(struct http_conn *c)
{
	for (int i = 0; i < READS_PER_EVENT && http_conn_wants_body(c) && !buf_len(&c->in) && !buf_len(&c->held); i++) {
		ssize_t r = receive(c, http_conn_scratch(c), HTTP_SCRATCH);
		if (r <= 0)
			break;
		http_conn_deliver(c, str_n(http_conn_scratch(c), (size_t)r));
		if (r < HTTP_SCRATCH)
			break;
	}
	/* A body that ends before its end is no body. */
	if (c->eof && c->phase == CONN_REQUEST && !c->raw && !c->body.done)
		c->broken = true;
}

static void read_away(struct http_conn *c)
{
	for (int i = 0; i < READS_PER_EVENT; i++) {
		ssize_t r = receive(c, http_conn_scratch(c), HTTP_SCRATCH);
		if (r <= 0)
			return;
		c->drained += (uint64_t)r;
	}
	if (c->drained > MAX_LINGER_BYTES)
		c->broken = true;
}

void http_conn_on_readable(struct http_conn *c)
{
	if (c->phase == CONN_HEAD)
		read_head(c);
	else if (c->phase == CONN_LINGER)
		read_away(c);
	else if (http_conn_wants_body(c) && !c->eof)
		read_body(c);
}

/* The peer has closed its half while an answer is due. Bytes that still wait belong to pipelined requests: then it is not gone. */
void http_conn_on_half_closed(struct http_conn *c)
{
	c->half_closed = true;
	if (c->phase != CONN_REQUEST || http_conn_wants_body(c) || c->raw || c->hangup_told || buf_len(&c->in) || buf_len(&c->held))
		return;
	char byte;
	if (c->transport ? !c->transport->ops->at_end(c->transport) : recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
		return;
	c->hangup_told = true;
	if (c->answer != ANSWER_DONE && c->req.ops && c->req.ops->hangup)
		c->req.ops->hangup(&c->req);
}
