#include "ingress/websocket.h"

#include "base/cleanup.h"
#include "base/encode.h"

#include <openssl/sha.h>

enum { KEY_BYTES = 16, MAX_REASON = 123, FRAME_CLOSE = 0x88 };

static bool is_token(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] >= 0x7f || strchr("()<>@,;:\\\"/[]?={}", s.p[i]))
			return false;
	return s.n > 0;
}

bool websocket_is_handshake(const struct http_head *h)
{
	cleanup_buf struct buf key = BUF_INIT;
	return h->minor >= 1 && h->upgrade && h->framing == HTTP_BODY_NONE && str_is(h->method, "GET") && http_lists(h, "Upgrade", "websocket") &&
	       str_is(http_value(h, "Sec-WebSocket-Version"), "13") && base64_decode(&key, http_value(h, "Sec-WebSocket-Key")) == 0 &&
	       buf_len(&key) == KEY_BYTES;
}

/* RFC 6455 §4.2.2. */
static void add_accept(struct buf *to, struct str key)
{
	cleanup_buf struct buf text = BUF_INIT;
	unsigned char digest[SHA_DIGEST_LENGTH];
	buf_add_str(&text, key);
	buf_add_c(&text, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
	struct str s = buf_str(&text);
	SHA1((const unsigned char *)s.p, s.n, digest);
	buf_add_c(to, "Sec-WebSocket-Accept: ");
	base64_encode(to, str_n(digest, sizeof(digest)));
	buf_add_c(to, "\r\n");
}

/* Browsers that named protocols want one of them in the answer. */
static void add_protocol(struct buf *to, struct str offered)
{
	struct str first = offered, rest;
	str_cut(offered, ',', &first, &rest);
	first = str_trim(first);
	if (is_token(first))
		http_add_header(to, "Sec-WebSocket-Protocol", first);
}

static void add_close(struct buf *to, unsigned code, struct str reason)
{
	if (reason.n > MAX_REASON) {
		reason.n = MAX_REASON;
		while (reason.n && ((unsigned char)reason.p[reason.n] & 0xc0) == 0x80)
			reason.n--;
	}
	const char frame[4] = {(char)FRAME_CLOSE, (char)(2 + reason.n), (char)(code >> 8), (char)code};
	buf_add(to, frame, sizeof(frame));
	buf_add_str(to, reason);
}

void websocket_refuse(struct http_req *r, unsigned code, struct str reason)
{
	cleanup_buf struct buf headers = BUF_INIT, frame = BUF_INIT;
	buf_add_c(&headers, "Upgrade: websocket\r\n");
	add_accept(&headers, http_value(r->head, "Sec-WebSocket-Key"));
	add_protocol(&headers, http_value(r->head, "Sec-WebSocket-Protocol"));
	add_close(&frame, code, reason);
	const char *lines = buf_cstr(&headers);
	if (!lines || frame.failed) {
		http_abort(r);
		return;
	}
	http_upgrade(r, 101, NULL, lines);
	http_send(r, buf_str(&frame).p, buf_len(&frame));
	r->closes = true;
	http_finish(r);
}
