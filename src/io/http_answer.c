#include "io/http_conn.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/sendq.h"

#include <stdio.h>

/* Less than this is gathered until the end of the turn instead of being sent by itself. */
enum { DIRECT_SIZE = 16 * 1024 };

size_t http_conn_queued(const struct http_conn *c)
{
	return buf_len(&c->out) + (c->transport ? c->transport->ops->queued(c->transport) : 0);
}

/* Sends the queue, then the parts; what the socket does not take is queued. */
static void send_parts(struct http_conn *c, const struct iovec *parts, int n)
{
	ssize_t r = c->transport ? c->transport->ops->write(c->transport, &c->out, parts, n) : sendq_send(c->fd, &c->out, parts, n);
	if (r < 0) {
		c->broken = true;
		http_conn_schedule(c);
		return;
	}
	if (r > 0)
		c->progress = clock_boottime();
	c->blocked = http_conn_queued(c) > 0;
}

void http_conn_flush(struct http_conn *c)
{
	if (http_conn_queued(c) && !c->broken)
		send_parts(c, NULL, 0);
}

/* Queues the parts, or sends them without a copy when they are worth a system call. */
static void put(struct http_conn *c, const struct iovec *parts, int n)
{
	size_t total = http_conn_queued(c);
	if (total == 0)
		c->progress = clock_boottime(); /* the peer's time to take it begins now */
	for (int i = 0; i < n; i++)
		total += parts[i].iov_len;
	if (!c->blocked && total >= DIRECT_SIZE)
		send_parts(c, parts, n);
	else
		for (int i = 0; i < n; i++)
			buf_add(&c->out, parts[i].iov_base, parts[i].iov_len);
	if (c->out.failed)
		c->broken = true;
	http_conn_schedule(c);
}

static bool has_line(const char *headers, struct str name)
{
	for (const char *p = headers; p && *p;) {
		struct str line = str_of(p);
		const char *end = strchr(p, '\n');
		if (line.n > name.n && p[name.n] == ':' && str_eq_nocase(str_n(p, name.n), name))
			return true;
		p = end ? end + 1 : NULL;
	}
	return false;
}

/* The answer's head into the queue, up to where framing headers go. */
static void status_line(struct http_conn *c, int status, const char *reason, const char *headers)
{
	buf_addf(&c->out, "HTTP/1.1 %d %s\r\n", status, reason ? reason : http_reason(status));
	if (!has_line(headers, STR("Date")))
		buf_addf(&c->out, "Date: %s\r\n", http_conn_date(c));
	if (http_conn_server_name(c))
		buf_addf(&c->out, "Server: %s\r\n", http_conn_server_name(c));
	if (headers)
		buf_add_c(&c->out, headers);
}

static bool status_has_no_body(int status)
{
	return status < 200 || status == 204 || status == 304;
}

/* Settles whether the connection stays and says so where the version's default is the other. */
static void connection_line(struct http_conn *c)
{
	/* A body that was not asked for with 100 may come or not: nothing can follow on this connection (RFC 9110 §10.1.1). */
	if (c->head->expect_continue && !c->continued && !c->body.done)
		c->last = true;
	if (!c->head->keep_alive)
		c->last = true;
	if (c->last)
		buf_add_c(&c->out, "Connection: close\r\n");
	else if (c->head->minor == 0)
		buf_add_c(&c->out, "Connection: keep-alive\r\n");
}

/* An answer may begin once; a second one is an owner's fault that must not mix two answers on the wire. */
static bool may_begin(struct http_conn *c)
{
	if (c->broken || c->phase != CONN_REQUEST)
		return false;
	if (c->answer == ANSWER_NONE)
		return true;
	log_error("a request was answered twice");
	c->broken = c->reset = true;
	http_conn_schedule(c);
	return false;
}

void http_start(struct http_req *r, int status, const char *reason, const char *headers, enum http_framing framing, uint64_t length)
{
	struct http_conn *c = r->conn;
	if (!may_begin(c))
		return;
	c->answer = ANSWER_OPEN;
	c->no_body = str_is(c->head->method, "HEAD") || status_has_no_body(status);
	if (framing == HTTP_BODY_CHUNKED && c->head->minor == 0 && !c->no_body)
		framing = HTTP_BODY_UNTIL_CLOSE;
	if (framing == HTTP_BODY_UNTIL_CLOSE)
		c->last = true;
	c->out_framing = framing;
	c->out_left = framing == HTTP_BODY_LENGTH ? length : 0;
	status_line(c, status, reason, headers);
	http_conn_add_headers(c);
	if (status >= 200 && status != 204) {
		if (framing == HTTP_BODY_CHUNKED && c->head->minor > 0)
			buf_add_c(&c->out, "Transfer-Encoding: chunked\r\n");
		else if (framing == HTTP_BODY_LENGTH)
			buf_addf(&c->out, "Content-Length: %llu\r\n", (unsigned long long)length);
		else if (framing == HTTP_BODY_NONE && !c->no_body)
			buf_add_c(&c->out, "Content-Length: 0\r\n");
	}
	connection_line(c);
	put(c, &(struct iovec){"\r\n", 2}, 1);
}

static void send_chunk(struct http_conn *c, const void *p, size_t n)
{
	char size[20];
	int digits = snprintf(size, sizeof(size), "%zx\r\n", n);
	put(c, (struct iovec[]){{size, (size_t)digits}, {(void *)(uintptr_t)p, n}, {"\r\n", 2}}, 3);
}

size_t http_send(struct http_req *r, const void *p, size_t n)
{
	struct http_conn *c = r->conn;
	if (c->broken || c->answer != ANSWER_OPEN)
		return 0;
	if (n == 0 || c->no_body)
		return http_conn_queued(c);
	if (c->out_framing == HTTP_BODY_CHUNKED) {
		send_chunk(c, p, n);
	} else {
		if (c->out_framing == HTTP_BODY_LENGTH || c->out_framing == HTTP_BODY_NONE) {
			if (n > c->out_left) {
				log_error("an answer has more bytes than it announced");
				http_abort(r);
				return 0;
			}
			c->out_left -= n;
		}
		put(c, &(struct iovec){(void *)(uintptr_t)p, n}, 1);
	}
	size_t queued = http_conn_queued(c);
	if (queued > http_conn_high_water(c))
		c->throttled = true;
	return queued;
}

void http_trailers(struct http_req *r, struct str lines)
{
	struct http_conn *c = r->conn;
	if (!c->broken && c->answer == ANSWER_OPEN && buf_add_str(&c->out_trailers, lines) < 0)
		c->broken = true;
}

struct str http_req_trailers(const struct http_req *r)
{
	return buf_str(&r->conn->trailers);
}

void http_finish(struct http_req *r)
{
	struct http_conn *c = r->conn;
	if (c->broken || c->answer != ANSWER_OPEN)
		return;
	if (c->out_framing == HTTP_BODY_LENGTH && c->out_left && !c->no_body) {
		http_abort(r);
		return;
	}
	if (c->out_framing == HTTP_BODY_CHUNKED && !c->no_body) {
		buf_add_c(&c->out, "0\r\n");
		buf_add_str(&c->out, buf_str(&c->out_trailers));
		buf_add_c(&c->out, "\r\n");
	}
	c->answer = ANSWER_DONE;
	if (c->out.failed)
		c->broken = true;
	if (!c->blocked)
		http_conn_flush(c);
	http_conn_schedule(c);
}

void http_respond(struct http_req *r, int status, const char *content_type, const char *headers, struct str body)
{
	cleanup_buf struct buf lines = BUF_INIT;
	if (content_type && http_add_header(&lines, "Content-Type", str_of(content_type)) == 0 && headers)
		buf_add_c(&lines, headers);
	const char *all = content_type ? buf_cstr(&lines) : headers;
	if (content_type && (!all || lines.failed)) {
		http_abort(r);
		return;
	}
	http_start(r, status, NULL, all, status_has_no_body(status) ? HTTP_BODY_NONE : HTTP_BODY_LENGTH, body.n);
	http_send(r, body.p, body.n);
	http_finish(r);
}

static void error_body(struct buf *to, int status, struct str message)
{
	buf_addf(to, "{\"code\":%d,\"message\":", status);
	json_quote(to, message);
	buf_add_c(to, "}");
}

void http_respond_error(struct http_req *r, int status, const char *fmt, ...)
{
	cleanup_buf struct buf message = BUF_INIT, body = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&message, fmt, ap);
	va_end(ap);
	error_body(&body, status, buf_str(&message));
	http_respond(r, status, "application/json", NULL, buf_str(&body));
}

void http_abort(struct http_req *r)
{
	struct http_conn *c = r->conn;
	if (c->broken)
		return;
	/* Without chunks or a length only a reset tells the peer that this was no regular end. */
	if (c->answer == ANSWER_OPEN && (c->raw || c->out_framing == HTTP_BODY_UNTIL_CLOSE))
		c->reset = true;
	else
		http_conn_flush(c);
	c->broken = true;
	http_conn_schedule(c);
}

void http_interim(struct http_req *r, int status, const char *headers)
{
	struct http_conn *c = r->conn;
	if (c->broken || c->phase != CONN_REQUEST || c->answer != ANSWER_NONE || c->head->minor == 0)
		return;
	if (status == 100)
		c->continued = true;
	buf_addf(&c->out, "HTTP/1.1 %d %s\r\n%s\r\n", status, http_reason(status), headers ? headers : "");
	if (!c->blocked)
		http_conn_flush(c);
	http_conn_schedule(c);
}

void http_upgrade(struct http_req *r, int status, const char *reason, const char *headers)
{
	struct http_conn *c = r->conn;
	if (!may_begin(c))
		return;
	if (!c->body.done || buf_len(&c->held)) {
		http_abort(r);
		return;
	}
	c->answer = ANSWER_OPEN;
	c->raw = c->last = true;
	c->paused = c->end_told = false;
	c->out_framing = HTTP_BODY_UNTIL_CLOSE;
	buf_addf(&c->out, "HTTP/1.1 %d %s\r\n", status, reason ? reason : http_reason(status));
	if (status == 101)
		buf_add_c(&c->out, "Connection: Upgrade\r\n");
	if (headers)
		buf_add_c(&c->out, headers);
	put(c, &(struct iovec){"\r\n", 2}, 1);
}

void http_conn_refuse(struct http_conn *c, int status, const char *content_type, struct str body)
{
	cleanup_buf struct buf json = BUF_INIT;
	if (!content_type) {
		content_type = "application/json";
		error_body(&json, status, body.n ? body : str_of(http_reason(status)));
		body = buf_str(&json);
	}
	status_line(c, status, NULL, NULL);
	buf_addf(&c->out, "Content-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", content_type, body.n);
	buf_add_str(&c->out, body);
	http_conn_flush(c);
}
