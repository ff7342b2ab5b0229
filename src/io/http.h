/*
 * Strict HTTP/1.1 parsing (RFC 9110, 9112). No I/O. Anything ambiguous about framing is refused (request smuggling):
 * CL with TE, several or odd CL, any TE other than exactly "chunked", bare LF, obs-fold, space before colon,
 * NUL or control bytes in values, chunk extensions are accepted and dropped, sizes over 2^63 refused.
 */
#ifndef CUBICLE_IO_HTTP_H
#define CUBICLE_IO_HTTP_H

#include "base/buf.h"

#include <sys/types.h>

enum {
	HTTP_MAX_HEAD = 64 * 1024, /* request or status line and all headers */
	HTTP_MAX_HEADERS = 200,
};

enum http_framing { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE /* responses only */ };

struct http_header {
	struct str name, value; /* value without surrounding white space */
};

/* Views point into the bytes that were parsed. */
struct http_head {
	struct str method; /* requests */
	struct str target; /* requests, as sent: "/a?b", "http://h/a" (absolute form) or "*" */
	struct str path;   /* requests: target's path, still percent-encoded, always starting with '/' (or "*" for OPTIONS * and CONNECT) */
	struct str query;  /* requests: after '?', without it; empty when absent */
	struct str host;   /* requests: Host header (absolute form's authority wins, RFC 9112 §3.2.2); empty when absent in 1.0 */
	int status;        /* responses */
	struct str reason; /* responses */
	int minor;         /* HTTP/1.minor */
	struct http_header headers[HTTP_MAX_HEADERS];
	size_t n_headers;
	enum http_framing framing;
	uint64_t length;      /* with HTTP_BODY_LENGTH */
	bool keep_alive;      /* the connection may be used again */
	bool expect_continue; /* Expect: 100-continue */
	bool upgrade;         /* Connection lists "upgrade" and an Upgrade header exists */
};

/*
 * Parses a request head at the front of `in`. Returns the bytes of the head (> 0), 0 = more bytes needed, or -EPROTO with the
 * status to answer (400, 414, 417, 431, 505) in *ret_status: answer, then close.
 */
ssize_t http_parse_request(struct str in, struct http_head *ret, int *ret_status);

/* Parses a response head; `request_was_head` settles the framing. As above, -EPROTO without a status. 1xx heads are returned as they are (no body). */
ssize_t http_parse_response(struct str in, bool request_was_head, struct http_head *ret);

/* First header of that name (case-insensitive), or NULL. */
const struct http_header *http_find(const struct http_head *h, const char *name);
/* Its value, or the empty view. */
struct str http_value(const struct http_head *h, const char *name);
/* True when the comma-separated header lists the token (case-insensitive), over all headers of that name. */
bool http_lists(const struct http_head *h, const char *name, const char *token);
/* True for headers that belong to one hop (Connection and what it lists, Keep-Alive, TE, Trailer, Transfer-Encoding, Upgrade, Proxy-*). */
bool http_is_hop_by_hop(const struct http_head *h, struct str name);

/* Decoder of one message body of known framing. */
struct http_body {
	enum http_framing framing;
	uint64_t left;  /* of the length or of the chunk */
	int state;      /* private */
	size_t overhead; /* private: bytes of chunk lines and trailers, bounded */
	bool done;
	/* HTTP_BODY_CHUNKED: where the lines of the trailer are appended (each with its CRLF, well-formed, at most 16 KiB in all); set after http_body_init(),
	 * NULL = they are dropped. */
	struct buf *trailers;
};

void http_body_init(struct http_body *b, enum http_framing framing, uint64_t length);

/*
 * Takes bytes off the front of *in and gives the next run of body bytes (a view into the input) in *ret (empty when none is there yet).
 * Returns 0, -EPROTO, or -ENOMEM (of the trailers). After it b->done tells the end; the rest of *in belongs to the next message. Call again while *in shrinks.
 * HTTP_BODY_UNTIL_CLOSE is ended by the caller at end of file.
 */
int http_body_next(struct http_body *b, struct str *in, struct str *ret);

/* Canonical reason phrase, "Unknown" if there is none. */
const char *http_reason(int status);

/* Appends one header line; a value with CR, LF or NUL is refused with -EINVAL (no header injection). */
int http_add_header(struct buf *to, const char *name, struct str value);

#endif
