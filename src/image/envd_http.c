#include "image/envd_http.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "base/fd.h"
#include "io/json.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { READ_PIECE = 64 * 1024, MAX_REFUSAL = 64 * 1024 };

static int lost(struct error *err, int code)
{
	if (code == -EAGAIN)
		return error_set(err, -ETIMEDOUT, 504, "the build's sandbox said nothing for %d seconds", ENVD_SILENCE_S);
	return error_set(err, -EPIPE, 500, "the build's sandbox ended");
}

int envd_http_user(struct buf *lines, const char *user)
{
	if (!user)
		return 0;
	cleanup_buf struct buf plain = BUF_INIT;
	buf_addf(&plain, "%s:", user);
	buf_add_c(lines, "Authorization: Basic ");
	if (plain.failed || base64_encode(lines, buf_str(&plain)) < 0)
		return -ENOMEM;
	return buf_add_c(lines, "\r\n");
}

int envd_http_open(struct envd_http *h, const struct envd *e, const char *method, const char *target, const char *lines, int64_t length, struct error *err)
{
	cleanup_buf struct buf head = BUF_INIT;
	const struct timeval patience = {.tv_sec = ENVD_SILENCE_S};
	h->fd = e->connect(e->arg, ENVD_PORT, err);
	if (h->fd < 0)
		return h->fd;
	fd_set_nonblock(h->fd, false);
	setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(h->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	buf_addf(&head, "%s %s HTTP/1.1\r\nHost: localhost\r\nX-Access-Token: %s\r\nConnection: close\r\n%s", method, target, e->token, lines);
	if (length >= 0)
		buf_addf(&head, "Content-Length: %lld\r\n\r\n", (long long)length);
	else
		buf_add_c(&head, "Transfer-Encoding: chunked\r\n\r\n");
	return head.failed ? error_errno(err, -ENOMEM, "%s", target) : envd_http_send(h, buf_str(&head), err);
}

int envd_http_send(struct envd_http *h, struct str bytes, struct error *err)
{
	while (bytes.n) {
		ssize_t n = send(h->fd, bytes.p, bytes.n, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return lost(err, -errno);
		bytes = str_from(bytes, (size_t)n);
	}
	return 0;
}

/* More bytes: 1, 0 at the end of the connection. */
static int receive(struct envd_http *h, struct error *err)
{
	char *to = buf_reserve(&h->in, READ_PIECE);
	ssize_t n;
	if (!to)
		return error_errno(err, -ENOMEM, "the build's sandbox");
	do
		n = recv(h->fd, to, READ_PIECE, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return lost(err, -errno);
	buf_commit(&h->in, (size_t)n);
	return n > 0;
}

int envd_http_answer(struct envd_http *h, struct error *err)
{
	struct http_head *head = malloc(sizeof(*head));
	int r = head ? 0 : error_errno(err, -ENOMEM, "the build's sandbox");
	while (r == 0) {
		ssize_t n = http_parse_response(buf_str(&h->in), false, head);
		if (n < 0) {
			r = error_set(err, -EPROTO, 502, "the build's sandbox answered something that is no HTTP");
		} else if (n > 0) {
			buf_consume(&h->in, (size_t)n);
			if (head->status < 200)
				continue;
			h->status = head->status;
			http_body_init(&h->body, head->framing, head->length);
			break;
		} else {
			r = receive(h, err);
			r = r > 0 ? 0 : r < 0 ? r : lost(err, 0);
		}
	}
	free(head);
	return r;
}

int envd_http_next(struct envd_http *h, struct str *ret, struct error *err)
{
	while (!h->body.done) {
		struct str in = buf_str(&h->in);
		size_t before = in.n;
		int r = http_body_next(&h->body, &in, ret);
		if (r < 0)
			return error_set(err, -EPROTO, 502, "the build's sandbox answered something that is no HTTP");
		/* What was taken stays where it is until the buffer is written to again. */
		buf_consume(&h->in, before - in.n);
		if (ret->n)
			return 1;
		if (h->body.done || in.n < before)
			continue;
		r = receive(h, err);
		if (r < 0)
			return r;
		if (r == 0 && h->body.framing == HTTP_BODY_UNTIL_CLOSE)
			return 0;
		if (r == 0)
			return lost(err, 0);
	}
	return 0;
}

int envd_http_body(struct envd_http *h, size_t max, struct buf *to, struct error *err)
{
	struct str piece;
	int r;
	while ((r = envd_http_next(h, &piece, err)) > 0) {
		if (piece.n > max - buf_len(to))
			return error_set(err, -EFBIG, 413, "an answer of the build's sandbox is longer than %zu bytes", max);
		if (buf_add_str(to, piece) < 0)
			return error_errno(err, -ENOMEM, "the build's sandbox");
	}
	return r;
}

int envd_http_refused(struct envd_http *h, const char *what, struct error *err)
{
	cleanup_buf struct buf body = BUF_INIT;
	struct error ignored = {0};
	int code = h->status == 404 ? -ENOENT : h->status == 401 || h->status == 403 ? -EACCES : h->status == 507 ? -ENOSPC : h->status == 501 ? -ENOSYS : -EIO;
	envd_http_body(h, MAX_REFUSAL, &body, &ignored);
	cleanup_json json_t *j = json_parse(buf_str(&body), MAX_REFUSAL, "answer", &ignored);
	struct str message = json_str(json_object_get(j, "message"));
	if (!message.n)
		return error_set(err, code, h->status, "%s: the build's sandbox answered with status %d", what, h->status);
	return error_set(err, code, h->status, "%s: %.*s", what, (int)MIN(message.n, (size_t)300), message.p);
}

void envd_http_close(struct envd_http *h)
{
	if (h->fd >= 0)
		close(h->fd);
	buf_done(&h->in);
	*h = ENVD_HTTP_INIT;
}
