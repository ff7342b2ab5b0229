#include "guest/files_call.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "guest/cors.h"

#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

static int record(struct files_call *c, int status, enum connect_code code, const char *fmt, va_list ap)
{
	if (c->status == 0) {
		c->status = status;
		c->code = code;
		buf_vaddf(&c->message, fmt, ap);
	}
	return -ECANCELED;
}

int files_fail(struct files_call *c, int status, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int r = record(c, status, 0, fmt, ap);
	va_end(ap);
	return r;
}

int files_fail_rpc(struct files_call *c, enum connect_code code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int r = record(c, connect_code_status(code), code, fmt, ap);
	va_end(ap);
	return r;
}

int files_fail_errno(struct files_call *c, int error, const char *what, const char *path)
{
	switch (error < 0 ? -error : error) {
	case ENOENT:
	case ENOTDIR:
		return files_fail(c, 404, "path '%s' does not exist", path);
	case EISDIR:
		return files_fail(c, 400, "path is a directory: %s", path);
	case ENOSPC:
	case EDQUOT:
		return files_fail(c, 507, "not enough disk space available");
	case ENAMETOOLONG:
		return files_fail(c, 400, "file name too long: %s", path);
	case ELOOP:
		return files_fail(c, 400, "too many levels of symbolic links: %s", path);
	case ENXIO: /* a FIFO without a reader, a socket */
	case EAGAIN:
		return files_fail(c, 400, "path is not a regular file: %s", path);
	case EACCES:
	case EPERM:
		return files_fail(c, 403, "%s '%s': permission denied", what, path);
	default:
		return files_fail(c, 500, "%s '%s': %s", what, path, strerror(error < 0 ? -error : error));
	}
}

int files_fail_rpc_errno(struct files_call *c, int error, const char *what, const char *path)
{
	enum connect_code code;
	switch (error < 0 ? -error : error) {
	case ENOENT:
	case ENOTDIR:
		code = CONNECT_NOT_FOUND;
		break;
	case ENAMETOOLONG:
	case EINVAL:
		code = CONNECT_INVALID_ARGUMENT;
		break;
	case ELOOP:
		code = CONNECT_FAILED_PRECONDITION;
		break;
	case EACCES:
	case EPERM:
		code = CONNECT_PERMISSION_DENIED;
		break;
	default: /* a full disk too: clients take resource_exhausted for a rate limit */
		code = CONNECT_INTERNAL;
	}
	return files_fail_rpc(c, code, "%s '%s': %s", what, path, strerror(error < 0 ? -error : error));
}

/* Bytes handed to the kernel that the peer has not taken yet. */
static int unsent(int fd)
{
	int n = 0;
	return ioctl(fd, SIOCOUTQ, &n) == 0 ? n : 0;
}

/*
 * Waits until the connection can be read or written. A slow reader seems idle for long: poll reports a large
 * send buffer only when a third of it is free (so as long as the kernel's queue shrinks the peer is not
 * idle), and the peer's kernel opens its window again only after megabytes were read, which takes five
 * minutes at 10 KB/s (cases.md 95). So a writer waits longer than a reader.
 */
static int await(struct files_call *c, short events)
{
	const int64_t limit_ns = events == POLLOUT ? 5 * c->idle_ns : c->idle_ns;
	int queued = unsent(c->request->conn);
	for (;;) {
		struct pollfd p = {.fd = c->request->conn, .events = events};
		int r = poll(&p, 1, (int)MIN(limit_ns / NS_PER_MS, INT_MAX));
		if (r > 0)
			return 0;
		if (r < 0 && errno != EINTR)
			return c->cut = -errno;
		if (r == 0) {
			int left = unsent(c->request->conn);
			if (left >= queued)
				return c->cut = -ETIMEDOUT;
			queued = left;
		}
	}
}

int files_send(struct files_call *c, struct str bytes)
{
	while (bytes.n && c->cut == 0) {
		ssize_t r = send(c->request->conn, bytes.p, bytes.n, MSG_NOSIGNAL);
		if (r >= 0)
			bytes = str_from(bytes, (size_t)r);
		else if (errno == EAGAIN)
			await(c, POLLOUT);
		else if (errno != EINTR)
			c->cut = -errno;
	}
	return c->cut;
}

/* More bytes behind what is in c->in: 0, -EPROTO when the buffer is full of what the decoder cannot use, or
 * the connection's end. */
static int receive(struct files_call *c)
{
	if (c->owes_continue) {
		c->owes_continue = false;
		int r = files_send(c, STR("HTTP/1.1 100 Continue\r\n\r\n"));
		if (r < 0)
			return r;
	}
	if (c->in.n >= FILES_BUFFER)
		return -EPROTO;
	if (c->in.n)
		memmove(c->buffer, c->in.p, c->in.n);
	c->in.p = c->buffer;
	while (c->cut == 0) {
		ssize_t r = recv(c->request->conn, c->buffer + c->in.n, FILES_BUFFER - c->in.n, 0);
		if (r > 0) {
			c->in.n += (size_t)r;
			return 0;
		}
		if (r == 0)
			c->cut = -ECONNRESET;
		else if (errno == EAGAIN)
			await(c, POLLIN);
		else if (errno != EINTR)
			c->cut = -errno;
	}
	return c->cut;
}

int files_body_next(struct files_call *c, struct str *ret)
{
	while (!c->body.done) {
		size_t before = c->in.n;
		struct str run = {0};
		int r = http_body_next(&c->body, &c->in, &run);
		if (r < 0)
			return r;
		if (run.n) {
			*ret = run;
			return 1;
		}
		if (!c->body.done && (c->in.n == 0 || c->in.n == before)) {
			r = receive(c);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

int files_body_read(struct files_call *c, size_t max, struct buf *to)
{
	for (;;) {
		struct str run;
		int r = files_body_next(c, &run);
		if (r <= 0)
			return r;
		if (run.n > max - buf_len(to))
			return -EMSGSIZE;
		r = buf_add_str(to, run);
		if (r < 0)
			return r;
	}
}

/* Takes what has arrived of a body that nobody wants, without waiting: a short one mostly is there, and the
 * connection can be kept. */
static void skip_received(struct files_call *c)
{
	struct str run;
	for (size_t taken = 0; !c->body.done && c->cut == 0 && taken < FILES_BUFFER;) {
		if (c->in.n == 0) {
			ssize_t r = recv(c->request->conn, c->buffer, FILES_BUFFER, MSG_DONTWAIT);
			if (r <= 0)
				return;
			c->in = str_n(c->buffer, (size_t)r);
		}
		size_t before = c->in.n;
		if (http_body_next(&c->body, &c->in, &run) < 0 || c->in.n == before)
			return;
		taken += before - c->in.n;
	}
}

/* Status line and the headers that every answer has. Decides whether the connection lives on: only when the
 * request was read whole. */
static void add_head(struct files_call *c, struct buf *to, int status, const char *headers, bool until_close)
{
	skip_received(c);
	c->keep_alive = c->head.keep_alive && c->body.done && !until_close;
	c->answered = true;
	char date[64];
	struct tm tm;
	time_t now = time(NULL);
	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
	buf_addf(to, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_reason(status), date);
	if (headers)
		buf_add_c(to, headers);
	cors_add(&c->head, to);
	if (!c->keep_alive)
		buf_add_c(to, "Connection: close\r\n");
	else if (c->head.minor == 0)
		buf_add_c(to, "Connection: keep-alive\r\n");
}

int files_respond(
	struct files_call *c, int status, const char *content_type, const char *headers, struct str body)
{
	cleanup_buf struct buf out = BUF_INIT;
	add_head(c, &out, status, headers, false);
	if (content_type)
		buf_addf(&out, "Content-Type: %s\r\n", content_type);
	if (status == 304)
		buf_add_c(&out, "\r\n");
	else
		buf_addf(&out, "Content-Length: %zu\r\n\r\n", body.n);
	if (out.failed)
		return c->cut = -ENOMEM;
	bool send_body = status != 304 && !str_is(c->head.method, "HEAD");
	/* Small answers leave in one segment; large ones are not copied. */
	if (send_body && body.n <= 16 * 1024 && buf_add_str(&out, body) == 0)
		send_body = false;
	int r = files_send(c, buf_str(&out));
	return r == 0 && send_body ? files_send(c, body) : r;
}

int files_start(
	struct files_call *c, int status, const char *headers, enum http_framing framing, uint64_t length)
{
	cleanup_buf struct buf out = BUF_INIT;
	add_head(c, &out, status, headers, framing == HTTP_BODY_CHUNKED && c->head.minor == 0);
	if (framing == HTTP_BODY_LENGTH)
		buf_addf(&out, "Content-Length: %llu\r\n", (unsigned long long)length);
	else if (c->head.minor > 0)
		buf_add_c(&out, "Transfer-Encoding: chunked\r\n");
	buf_add_c(&out, "\r\n");
	return out.failed ? (c->cut = -ENOMEM) : files_send(c, buf_str(&out));
}

int files_send_chunk(struct files_call *c, struct str bytes)
{
	if (c->head.minor == 0)
		return files_send(c, bytes);
	if (bytes.n == 0)
		return files_send(c, STR("0\r\n\r\n"));
	char line[32];
	snprintf(line, sizeof(line), "%zx\r\n", bytes.n);
	files_send(c, str_of(line));
	files_send(c, bytes);
	return files_send(c, STR("\r\n"));
}

int files_send_file(struct files_call *c, int fd, uint64_t from, uint64_t length)
{
	off_t at = (off_t)from;
	const uint64_t end = from + length;
	while ((uint64_t)at < end && c->cut == 0) {
		ssize_t r = sendfile(c->request->conn, fd, &at, (size_t)MIN(end - (uint64_t)at, 1U << 30));
		/* Shorter than announced: only a cut tells the client (cases.md: "shrinks while being sent").
		 */
		if (r == 0)
			c->cut = -EPIPE;
		else if (r < 0 && errno == EAGAIN)
			await(c, POLLOUT);
		else if (r < 0 && errno != EINTR)
			c->cut = -errno;
	}
	return c->cut;
}

int files_respond_failure(struct files_call *c)
{
	cleanup_buf struct buf body = BUF_INIT;
	const char *type = "application/json";
	if (c->stream && c->code) {
		c->status = 200;
		type = "application/connect+json";
		connect_end(&body, c->code, buf_str(&c->message));
	} else if (c->code) {
		connect_error_json(&body, c->code, buf_str(&c->message));
	} else {
		buf_addf(&body, "{\"code\":%d,\"message\":", c->status);
		json_quote(&body, buf_str(&c->message));
		buf_add_c(&body, "}");
	}
	if (body.failed || c->message.failed)
		return c->cut = -ENOMEM;
	const char *allow = c->status != 405                     ? NULL
			    : str_is(c->head.path, "/files")     ? "Allow: GET, HEAD, POST\r\n"
			    : str_is(c->head.path, "/archive")   ? "Allow: GET, PUT\r\n"
								 : "Allow: POST\r\n";
	return files_respond(c, c->status, type, allow, buf_str(&body));
}

/*
 * A client in the middle of an upload may read its answer only after it has sent everything (httpx), or lose
 * it to a reset when the socket is closed over unread bytes (Node). So the rest is read away while it keeps
 * coming, within bounds that no honest upload meets.
 */
void files_drain(struct files_call *c)
{
	uint64_t left = 1ULL << 36;
	struct str run;
	c->owes_continue = false;
	skip_received(c);
	if (c->body.done || c->cut)
		return;
	shutdown(c->request->conn, SHUT_WR);
	c->idle_ns = MIN(c->idle_ns, 30 * NS_PER_S);
	int r;
	while ((r = files_body_next(c, &run)) == 1 && left > run.n)
		left -= run.n;
	/* Where the framing is broken the bytes are read away as they are. */
	while (r == -EPROTO && c->cut == 0 && left > c->in.n) {
		left -= c->in.n;
		c->in.n = 0;
		receive(c);
	}
}
