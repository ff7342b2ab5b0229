#include "guest/rpc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A list of a million numbers costs fifty times its text once parsed; no message has a use for that many
 * values. */
enum { MAX_VALUES = 100000 };

static const char *const stream_headers = "Content-Type: application/connect+json\r\n";

static size_t count_values(struct str s)
{
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] != '"') {
			n += s.p[i] == ',' || s.p[i] == '[' || s.p[i] == '{';
			continue;
		}
		for (i++; i < s.n && s.p[i] != '"'; i++)
			if (s.p[i] == '\\')
				i++;
	}
	return n;
}

/* Bytes that the call keeps; they count against all calls. */
static bool hold(struct rpc *c, size_t n)
{
	if (!envd_hold(c->envd, n))
		return false;
	c->held += n;
	return true;
}

static void drop_body(struct rpc *c)
{
	buf_done(&c->body);
	payload_done(&c->payload);
	envd_release(c->envd, c->held);
	c->held = 0;
}

static void open_stream(struct rpc *c)
{
	if (c->opened)
		return;
	c->opened = true;
	http_start(c->req, 200, NULL, stream_headers, HTTP_BODY_CHUNKED, 0);
}

void rpc_reply(struct rpc *c, struct str json)
{
	c->answered = true;
	if (c->method->kind == RPC_UNARY) {
		http_respond(c->req, 200, "application/json", NULL, json);
		return;
	}
	cleanup_buf struct buf out = BUF_INIT;
	connect_envelope(&out, 0, json);
	connect_end(&out, 0, STR(""));
	open_stream(c);
	http_send(c->req, buf_str(&out).p, buf_len(&out));
	http_finish(c->req);
}

void rpc_fail(struct rpc *c, enum connect_code code, const char *fmt, ...)
{
	char text[2048];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	struct str message = str_n(text, MIN((size_t)MAX(n, 0), sizeof(text) - 1));
	cleanup_buf struct buf out = BUF_INIT;
	c->answered = true;
	if (c->method->kind == RPC_UNARY) {
		connect_error_json(&out, code, message);
		http_respond(c->req, connect_code_status(code), "application/json", NULL, buf_str(&out));
		return;
	}
	connect_end(&out, code, message);
	open_stream(c);
	http_send(c->req, buf_str(&out).p, buf_len(&out));
	http_finish(c->req);
}

bool rpc_event(struct rpc *c, struct str envelope)
{
	open_stream(c);
	return http_send(c->req, envelope.p, envelope.n) > ENVD_HIGH_WATER;
}

void rpc_end(struct rpc *c)
{
	cleanup_buf struct buf out = BUF_INIT;
	c->answered = true;
	connect_end(&out, 0, STR(""));
	open_stream(c);
	http_send(c->req, buf_str(&out).p, buf_len(&out));
	http_finish(c->req);
}

static void call(struct rpc *c, struct str text)
{
	struct error err = {0};
	if (c->payload.bad) {
		rpc_fail(c, CONNECT_INVALID_ARGUMENT,
			"a string of the message is too long, or should be base64 and is not");
		return;
	}
	if (count_values(text) > MAX_VALUES) {
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "the message has more than %d values", MAX_VALUES);
		return;
	}
	cleanup_json json_t *m = json_parse(text, c->method->max, "the message", &err);
	if (!m)
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "%s", err.message);
	else if (!json_is_object(m))
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "the message is no JSON object");
	else
		c->method->call(c, m);
}

/* Takes the next envelope off the body: 1 with *ret, 0 = not there yet, -EINVAL after the call was failed. */
static ssize_t next_envelope(struct rpc *c, struct str *ret)
{
	unsigned flags;
	ssize_t n = connect_parse_envelope(buf_str(&c->body), c->method->max, &flags, ret);
	if (n == -EMSGSIZE)
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED, "the message is longer than %zu bytes",
			c->method->max);
	else if (n > 0 && flags != 0)
		rpc_fail(c, CONNECT_INVALID_ARGUMENT,
			"envelope with flags 0x%02x: compression and ends of streams are not taken here",
			flags);
	return c->answered ? -EINVAL : n;
}

/* Gives the messages of a client stream that are there. */
static void pump(struct rpc *c)
{
	if (c->busy)
		return;
	c->busy = true;
	while (!c->answered && !c->paused) {
		struct str message;
		ssize_t n = next_envelope(c, &message);
		if (n <= 0)
			break;
		call(c, message);
		buf_consume(&c->body, (size_t)n);
	}
	if (!c->answered && !c->paused && c->eof) {
		if (buf_len(&c->body))
			rpc_fail(c, CONNECT_INVALID_ARGUMENT, "the request ends inside a message");
		else
			c->method->end(c);
	}
	c->busy = false;
}

void rpc_pause(struct rpc *c)
{
	c->paused = true;
}

void rpc_resume(struct rpc *c)
{
	if (!c->paused)
		return;
	c->paused = false;
	pump(c);
	if (!c->paused && !c->eof)
		http_req_resume(c->req);
}

/* Bytes that the call's buffers take. */
static int keep(struct rpc *c, const char *p, size_t n)
{
	size_t header = c->method->kind == RPC_UNARY ? 0 : CONNECT_HEADER;
	/* A client stream keeps at most the message that is coming in, and what arrived with its end. */
	if (c->method->kind != RPC_CLIENT_STREAM && c->held + n > c->method->max + header)
		return -EMSGSIZE;
	if (!hold(c, n))
		return -EDQUOT;
	if (!c->method->payload)
		return buf_add(&c->body, p, n);
	int r = payload_feed(&c->payload, p, n, &c->body);
	return r == 0 && buf_len(&c->body) > RPC_MAX_TEXT ? -EMSGSIZE : r;
}

static size_t on_body(struct http_req *r, const char *p, size_t n)
{
	struct rpc *c = r->arg;
	if (c->answered)
		return n; /* drained */
	if (c->paused)
		return 0;
	size_t before = buf_len(&c->body);
	int error = keep(c, p, n);
	if (error == -EMSGSIZE)
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED, "the message is longer than %zu bytes",
			c->method->max);
	else if (error == -EDQUOT)
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED,
			"too much input is waiting in this sandbox; try again when some was read");
	else if (error < 0)
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED, "no memory for the message");
	else if (c->method->kind == RPC_CLIENT_STREAM) {
		pump(c);
		size_t now = c->answered ? 0 : buf_len(&c->body);
		if (now < before + n) {
			envd_release(c->envd, before + n - now);
			c->held -= before + n - now;
		}
	}
	return n;
}

static void on_end(struct http_req *r)
{
	struct rpc *c = r->arg;
	struct str message = buf_str(&c->body);
	c->eof = true;
	if (c->answered)
		return;
	if (c->method->kind == RPC_CLIENT_STREAM) {
		pump(c);
		return;
	}
	if (c->method->kind == RPC_SERVER_STREAM) {
		ssize_t n = next_envelope(c, &message);
		if (n < 0)
			return;
		if (n == 0 || (size_t)n < buf_len(&c->body)) {
			rpc_fail(c, CONNECT_INVALID_ARGUMENT, "exactly one message expected");
			return;
		}
	}
	/* Its own copy: the call may be over, and this object gone, before it returns. */
	struct buf body = c->body;
	c->body = BUF_INIT;
	/* What the method keeps of it, it counts itself. */
	envd_release(c->envd, c->held);
	c->held = 0;
	call(c, message);
	buf_done(&body);
}

static void on_writable(struct http_req *r)
{
	struct rpc *c = r->arg;
	if (c->ops && !c->answered)
		c->ops->writable(c);
}

/* A client that closed its half while a stream runs is gone (as Go's server takes it); a unary call is
 * answered all the same. */
static void on_hangup(struct http_req *r)
{
	struct rpc *c = r->arg;
	if (c->method->kind == RPC_SERVER_STREAM)
		http_abort(r);
}

static void on_closed(struct http_req *r, bool complete)
{
	struct rpc *c = r->arg;
	if (c->ops && !c->answered)
		c->ops->gone(c);
	drop_body(c);
	free(c);
}

static const struct http_req_ops request_ops = {
	.body = on_body, .end = on_end, .writable = on_writable, .hangup = on_hangup, .closed = on_closed};

/* The media type must be exactly this, or with charset=utf-8. */
static bool content_type_is(struct str value, const char *wanted)
{
	struct str type = value, parameter;
	bool has_parameter = str_cut(value, ';', &type, &parameter);
	if (!str_eq_nocase(str_trim(type), str_of(wanted)))
		return false;
	return !has_parameter || str_eq_nocase(str_trim(parameter), STR("charset=utf-8"));
}

/* User of "Authorization: Basic": 1, 0 when the header is absent or of another scheme, -EINVAL. */
static int basic_user(const struct http_head *h, char *to, size_t size)
{
	struct str value = http_value(h, "Authorization"), user, password;
	if (value.n < 6 || !str_eq_nocase(str_n(value.p, 6), STR("basic ")))
		return 0;
	cleanup_buf struct buf text = BUF_INIT;
	if (base64_decode(&text, str_trim(str_from(value, 6))) < 0 ||
		!str_cut(buf_str(&text), ':', &user, &password))
		return -EINVAL;
	if (user.n >= size || memchr(user.p, '\0', user.n))
		return -EINVAL;
	memcpy(to, user.p, user.n);
	to[user.n] = '\0';
	return 1;
}

/* Connect-Timeout-Ms: up to ten digits; 0 and absent mean none. */
static int timeout_of(const struct http_head *h, int64_t *ret_ns)
{
	struct str value = http_value(h, "Connect-Timeout-Ms");
	uint64_t ms;
	if (!http_find(h, "Connect-Timeout-Ms"))
		return 0;
	if (value.n > 10 || str_to_u64(value, &ms) < 0)
		return -EINVAL;
	*ret_ns = (int64_t)ms * NS_PER_MS;
	return 0;
}

/* An answer in the form of the method for what is wrong with the headers; true when there was something. */
static bool refuse(struct rpc *c)
{
	const struct http_head *h = c->req->head;
	const char *encoding = c->method->kind == RPC_UNARY ? "Content-Encoding" : "Connect-Content-Encoding";
	struct str coding = http_value(h, encoding);
	int user = basic_user(h, c->user, sizeof(c->user));
	if (coding.n && !str_eq_nocase(coding, STR("identity")))
		rpc_fail(c, CONNECT_UNIMPLEMENTED, "unknown compression '%.*s': only identity is taken",
			(int)MIN(coding.n, 64), coding.p);
	else if (timeout_of(h, &c->timeout_ns) < 0)
		rpc_fail(c, CONNECT_INVALID_ARGUMENT,
			"Connect-Timeout-Ms must be a whole number of milliseconds, not '%.*s'",
			(int)MIN(http_value(h, "Connect-Timeout-Ms").n, 64),
			http_value(h, "Connect-Timeout-Ms").p);
	else if (user < 0)
		rpc_fail(c, CONNECT_UNAUTHENTICATED,
			"the Authorization header is no valid Basic authorization");
	return c->answered;
}

void rpc_begin(struct envd *e, const struct rpc_method *m, struct http_req *r)
{
	const char *wanted = m->kind == RPC_UNARY ? "application/json" : "application/connect+json";
	if (!content_type_is(http_value(r->head, "Content-Type"), wanted)) {
		char accept[64];
		snprintf(accept, sizeof(accept), "Accept-Post: %s\r\n", wanted);
		cleanup_buf struct buf body = BUF_INIT;
		buf_addf(&body, "{\"code\":415,\"message\":\"Content-Type must be %s\"}", wanted);
		http_respond(r, 415, "application/json", accept, buf_str(&body));
		return;
	}
	struct rpc *c = malloc(sizeof(*c));
	if (!c) {
		http_respond_error(r, 503, "no memory");
		return;
	}
	*c = (struct rpc){.req = r, .method = m, .envd = e};
	r->ops = &request_ops;
	r->arg = c;
	refuse(c);
}
