#include "base/cleanup.h"
#include "base/clock.h"
#include "ingress/exchange.h"
#include "ingress/forward.h"

enum { MAX_INTERIM = 16 }; /* 1xx answers passed on; a sandbox that sends more is not serious */

static void fail_bad_answer(struct exchange *x)
{
	exchange_fail(x, "The service on this port sent no valid HTTP answer", true);
}

/* The answer is complete. The connection serves again when it is in a known state. */
static void complete(struct exchange *x)
{
	struct upstream *u = steal_pointer(&x->up);
	cleanup_buf struct buf trailers = BUF_INIT;
	exchange_release(x);
	x->state = DONE;
	if (x->keep_alive && x->request_done)
		upstream_park(u);
	else
		upstream_close(u, false);
	if (forward_trailers(&trailers, buf_str(&x->trailers), NULL) < 0) {
		http_abort(x->req);
		return;
	}
	http_trailers(x->req, buf_str(&trailers));
	http_finish(x->req);
}

/* Whether the request may be sent once more when a connection that had served before was closed under it. */
static bool may_retry(const struct exchange *x)
{
	static const char *const idempotent[] = {"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PROPFIND", "QUERY"};
	if (!x->up->reused || x->retried || x->sent_body || x->interim)
		return false;
	if (buf_len(&x->up->out))
		return true; /* the head never left whole */
	for (size_t i = 0; i < ARRAY_SIZE(idempotent); i++)
		if (str_is(x->req->head->method, idempotent[i]))
			return true;
	return false;
}

static void on_drained(struct upstream *u, void *arg)
{
	struct exchange *x = arg;
	http_req_resume(x->req);
}

/* Sends on; false when the client is behind: then reading stops until on_writable(). */
static bool pass(struct exchange *x, struct str bytes)
{
	if (x->hung_up && x->state == BODY)
		exchange_set_timer(x, HANGUP_PATIENCE);
	if (bytes.n && http_send(x->req, bytes.p, bytes.n) > HTTP_HIGH_WATER) {
		upstream_set_reading(x->up, false);
		return false;
	}
	return true;
}

/* A 1xx other than 101. */
static void take_interim(struct exchange *x, const struct http_head *h)
{
	cleanup_buf struct buf lines = BUF_INIT;
	if (++x->interim > MAX_INTERIM || forward_response(&lines, h, false) < 0) {
		fail_bad_answer(x);
		return;
	}
	if (h->status == 100 && (x->continued || !x->req->head->expect_continue))
		return; /* said already, or not asked for */
	if (h->status == 100)
		x->continued = true;
	const char *text = buf_cstr(&lines);
	if (text)
		http_interim(x->req, h->status, text);
}

static void take_upgrade(struct exchange *x, const char *reason, const char *lines)
{
	if (!x->upgrade) {
		fail_bad_answer(x);
		return;
	}
	exchange_release(x);
	x->state = TUNNEL;
	http_upgrade(x->req, 101, reason, lines);
}

/* A final head (or a 101). */
static void take_head(struct exchange *x, const struct http_head *h)
{
	cleanup_buf struct buf lines = BUF_INIT, reason = BUF_INIT;
	buf_add_str(&reason, h->reason);
	const char *text = forward_response(&lines, h, x->head_request) < 0 ? NULL : buf_cstr(&lines), *words = buf_cstr(&reason);
	if (!text || !words) {
		exchange_fail(x, "The server is out of memory", false);
		return;
	}
	if (h->status == 101) {
		take_upgrade(x, *words ? words : NULL, text);
		return;
	}
	if (!x->hung_up)
		exchange_release(x);
	x->state = BODY;
	x->keep_alive = h->keep_alive;
	http_body_init(&x->body, h->framing, h->length);
	x->body.trailers = &x->trailers;
	/* A body that ends with the connection is chunked for the client, so that a cut stays a cut. */
	http_start(x->req, h->status, *words ? words : NULL, text, h->framing == HTTP_BODY_UNTIL_CLOSE ? HTTP_BODY_CHUNKED : h->framing, h->length);
}

/* One head off u->in. False when there is no whole one. */
static bool parse_head(struct exchange *x)
{
	struct http_head h;
	ssize_t n = http_parse_response(buf_str(&x->up->in), x->head_request, &h);
	if (n < 0)
		fail_bad_answer(x);
	if (n <= 0)
		return false;
	if (h.status < 200 && h.status != 101)
		take_interim(x, &h);
	else
		take_head(x, &h);
	if (x->up)
		buf_consume(&x->up->in, (size_t)n);
	return true;
}

/* Decodes what is in u->in. False when reading must stop. */
static bool parse_body(struct exchange *x)
{
	struct str in = buf_str(&x->up->in), run;
	size_t all = in.n;
	bool more = true;
	while (more && in.n && !x->body.done) {
		if (http_body_next(&x->body, &in, &run) < 0) {
			fail_bad_answer(x);
			return false;
		}
		more = pass(x, run);
	}
	buf_consume(&x->up->in, all - in.n);
	if (!x->body.done)
		return more;
	complete(x);
	return false;
}

/* Uses up what was read. False when the exchange is over or the client is behind. */
static bool process(struct exchange *x)
{
	while (x->state == WAITING)
		if (!parse_head(x))
			return x->state == WAITING;
	if (x->state == BODY)
		return parse_body(x);
	if (x->state != TUNNEL)
		return false;
	bool more = pass(x, buf_str(&x->up->in));
	buf_clear(&x->up->in);
	return more;
}

/* The connection ended: -EPIPE regularly, else by a failure. */
static void take_end(struct exchange *x, int why)
{
	if (x->state == TUNNEL && why == -EPIPE) {
		x->peer_done = true;
		upstream_set_reading(x->up, false);
		http_finish(x->req);
		return;
	}
	if (x->state == BODY && why == -EPIPE && x->body.framing == HTTP_BODY_UNTIL_CLOSE) {
		x->keep_alive = false;
		complete(x);
		return;
	}
	if (x->state == WAITING && buf_len(&x->up->in) == 0 && may_retry(x)) {
		x->retried = x->fresh_only = true;
		upstream_close(steal_pointer(&x->up), false);
		exchange_begin(x);
		return;
	}
	exchange_fail(x, "The service closed the connection without an answer", true);
}

static void on_readable(struct upstream *u, void *arg)
{
	struct exchange *x = arg;
	if (!process(x) || !u->reading)
		return;
	int r = upstream_read(u);
	if (r > 0)
		process(x);
	else if (r < 0)
		take_end(x, r);
}

const struct upstream_ops answer_ops = {on_readable, on_drained};
