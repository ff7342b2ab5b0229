#include "io/http.h"

#include <errno.h>
#include <stdlib.h>

/* RFC 9110 §5.6.2 */
static bool is_tchar(unsigned char c)
{
	if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
		return true;
	return c != '\0' && strchr("!#$%&'*+-.^_`|~", c);
}

static bool is_token(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (!is_tchar((unsigned char)s.p[i]))
			return false;
	return s.n > 0;
}

static bool is_control(unsigned char c)
{
	return (c < 0x20 && c != '\t') || c == 0x7f;
}

static bool is_field_value(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (is_control((unsigned char)s.p[i]))
			return false;
	return true;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Everything an authority may hold but user info; the rest has no place in a Host. */
static bool is_host(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!alnum && (c == '\0' || !strchr("-._~!$&'()*+;=:[]%", c)))
			return false;
	}
	return true;
}

const struct http_header *http_find(const struct http_head *h, const char *name)
{
	struct str want = str_of(name);
	for (size_t i = 0; i < h->n_headers; i++)
		if (str_eq_nocase(h->headers[i].name, want))
			return &h->headers[i];
	return NULL;
}

struct str http_value(const struct http_head *h, const char *name)
{
	const struct http_header *found = http_find(h, name);
	return found ? found->value : STR("");
}

static bool lists(const struct http_head *h, const char *name, struct str token)
{
	struct str want = str_of(name);
	for (size_t i = 0; i < h->n_headers; i++) {
		if (!str_eq_nocase(h->headers[i].name, want))
			continue;
		struct str rest = h->headers[i].value, item;
		while (rest.n) {
			if (!str_cut(rest, ',', &item, &rest)) {
				item = rest;
				rest.n = 0;
			}
			if (str_eq_nocase(str_trim(item), token))
				return true;
		}
	}
	return false;
}

bool http_lists(const struct http_head *h, const char *name, const char *token)
{
	return lists(h, name, str_of(token));
}

bool http_is_hop_by_hop(const struct http_head *h, struct str name)
{
	static const char *const always[] = {"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade"};
	for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
		if (str_eq_nocase(name, str_of(always[i])))
			return true;
	return lists(h, "Connection", name);
}

/*
 * Finds the empty line that ends the head. Returns the bytes up to and with it, 0 when it is not there yet, or -EPROTO with *ret_status.
 * Looks at line ends before the head is complete, so that a bare LF or an endless list of lines is answered at once.
 */
static ssize_t find_end(struct str in, int *ret_status)
{
	size_t lines = 0, at = 0;
	while (at < in.n) {
		const char *lf = memchr(in.p + at, '\n', in.n - at);
		if (!lf)
			break;
		size_t end = (size_t)(lf - in.p);
		if (end == 0 || in.p[end - 1] != '\r') {
			*ret_status = 400;
			return -EPROTO;
		}
		if (end + 1 > HTTP_MAX_HEAD)
			break;
		if (end == at + 1) {
			if (lines == 0) {
				*ret_status = 400;
				return -EPROTO;
			}
			return (ssize_t)end + 1;
		}
		if (++lines > HTTP_MAX_HEADERS + 1) {
			*ret_status = 431;
			return -EPROTO;
		}
		at = end + 1;
	}
	if (in.n < HTTP_MAX_HEAD)
		return 0;
	*ret_status = lines == 0 ? 414 : 431;
	return -EPROTO;
}

/* Takes the line at the front of *rest (which ends with CRLF) without its end. */
static struct str take_line(struct str *rest)
{
	const char *lf = memchr(rest->p, '\n', rest->n);
	struct str line = str_n(rest->p, (size_t)(lf - rest->p) - 1);
	*rest = str_from(*rest, line.n + 2);
	return line;
}

/* All header lines; `rest` ends with the empty line. */
static int parse_headers(struct str rest, struct http_head *h)
{
	h->n_headers = 0;
	for (;;) {
		struct str line = take_line(&rest), name, value;
		if (line.n == 0)
			return 0;
		if (h->n_headers == HTTP_MAX_HEADERS)
			return -EPROTO;
		/* A line that starts with white space is obs-fold; white space before the colon is no token: both refused here. */
		if (!str_cut(line, ':', &name, &value) || !is_token(name) || !is_field_value(value))
			return -EPROTO;
		h->headers[h->n_headers++] = (struct http_header){name, str_trim(value)};
	}
}

/* Content-Length and Transfer-Encoding, each at most once and never both. *ret_framing stays untouched when there is neither. */
static int parse_framing(struct http_head *h, enum http_framing *ret_framing)
{
	const struct http_header *length = NULL, *coding = NULL;
	for (size_t i = 0; i < h->n_headers; i++) {
		struct http_header *x = &h->headers[i];
		if (str_eq_nocase(x->name, STR("Content-Length"))) {
			if (length)
				return -EPROTO;
			length = x;
		} else if (str_eq_nocase(x->name, STR("Transfer-Encoding"))) {
			if (coding)
				return -EPROTO;
			coding = x;
		}
	}
	if (length && coding)
		return -EPROTO;
	if (coding) {
		/* Some peers do not trim a tab: what they would read otherwise is refused here. */
		if (h->minor == 0 || memchr(coding->name.p, '\t', (size_t)(coding->value.p - coding->name.p)) ||
			!str_eq_nocase(coding->value, STR("chunked")))
			return -EPROTO;
		*ret_framing = HTTP_BODY_CHUNKED;
	}
	if (length) {
		if (str_to_u64(length->value, &h->length) < 0 || h->length > INT64_MAX)
			return -EPROTO;
		*ret_framing = HTTP_BODY_LENGTH;
	}
	return 0;
}

static void parse_connection(struct http_head *h)
{
	h->keep_alive = h->minor > 0 ? !http_lists(h, "Connection", "close") : http_lists(h, "Connection", "keep-alive");
	h->upgrade = h->minor > 0 && http_lists(h, "Connection", "upgrade") && http_find(h, "Upgrade");
}

/* "HTTP/1.x": 0 with *ret_minor, -EPROTO when malformed, -EOPNOTSUPP for another major version. */
static int parse_version(struct str s, int *ret_minor)
{
	if (s.n != 8 || memcmp(s.p, "HTTP/", 5) != 0 || !is_digit(s.p[5]) || s.p[6] != '.' || !is_digit(s.p[7]))
		return -EPROTO;
	if (s.p[5] != '1')
		return -EOPNOTSUPP;
	*ret_minor = s.p[7] - '0';
	return 0;
}

static void split_query(struct str target, struct http_head *h)
{
	if (!str_cut(target, '?', &h->path, &h->query)) {
		h->path = target;
		h->query = STR("");
	}
}

/* RFC 9112 §3.2: origin, absolute, asterisk and authority form. */
static int parse_target(struct http_head *h)
{
	struct str t = h->target, rest;
	h->query = STR("");
	for (size_t i = 0; i < t.n; i++)
		if ((unsigned char)t.p[i] <= 0x20 || t.p[i] == 0x7f || t.p[i] == '#')
			return -EPROTO;
	if (t.n && t.p[0] == '/' && !str_is(h->method, "CONNECT")) {
		split_query(t, h);
		return 0;
	}
	if ((str_is(t, "*") && str_is(h->method, "OPTIONS")) || (str_is(h->method, "CONNECT") && t.n && is_host(t))) {
		h->path = STR("*");
		return 0;
	}
	if (t.n > 7 && str_eq_nocase(str_n(t.p, 7), STR("http://")))
		rest = str_from(t, 7);
	else if (t.n > 8 && str_eq_nocase(str_n(t.p, 8), STR("https://")))
		rest = str_from(t, 8);
	else
		return -EPROTO;
	size_t n = 0;
	while (n < rest.n && rest.p[n] != '/' && rest.p[n] != '?')
		n++;
	h->host = str_n(rest.p, n);
	if (n == 0 || !is_host(h->host))
		return -EPROTO;
	split_query(str_from(rest, n), h);
	if (h->path.n == 0)
		h->path = STR("/");
	return 0;
}

/* Returns 0 or the status to refuse with. */
static int parse_request_line(struct str line, struct http_head *h)
{
	struct str rest, version;
	if (!str_cut(line, ' ', &h->method, &rest) || !is_token(h->method) || !str_cut(rest, ' ', &h->target, &version))
		return 400;
	int r = parse_version(version, &h->minor);
	if (r < 0)
		return r == -EOPNOTSUPP ? 505 : 400;
	return parse_target(h) < 0 ? 400 : 0;
}

static int parse_host(struct http_head *h)
{
	const struct http_header *host = NULL;
	for (size_t i = 0; i < h->n_headers; i++) {
		if (!str_eq_nocase(h->headers[i].name, STR("Host")))
			continue;
		if (host)
			return -EPROTO;
		host = &h->headers[i];
	}
	if (!host)
		return h->minor > 0 ? -EPROTO : 0;
	if (!is_host(host->value))
		return -EPROTO;
	if (h->host.n == 0)
		h->host = host->value;
	return 0;
}

/* Returns 0 or the status to refuse with. */
static int parse_request(struct str head, struct http_head *h)
{
	struct str rest = head;
	h->host = STR("");
	int status = parse_request_line(take_line(&rest), h);
	if (status)
		return status;
	h->framing = HTTP_BODY_NONE;
	if (parse_headers(rest, h) < 0 || parse_host(h) < 0 || parse_framing(h, &h->framing) < 0)
		return 400;
	parse_connection(h);
	if (h->minor > 0) {
		for (size_t i = 0; i < h->n_headers; i++) {
			if (!str_eq_nocase(h->headers[i].name, STR("Expect")))
				continue;
			if (!str_eq_nocase(h->headers[i].value, STR("100-continue")))
				return 417;
			h->expect_continue = true;
		}
	}
	return 0;
}

/* The fields but not the header array, which n_headers guards. */
static void head_clear(struct http_head *h)
{
	memset(h, 0, offsetof(struct http_head, headers));
	memset((char *)h + offsetof(struct http_head, n_headers), 0, sizeof(*h) - offsetof(struct http_head, n_headers));
}

ssize_t http_parse_request(struct str in, struct http_head *ret, int *ret_status)
{
	/* RFC 9112 §2.2: an empty line before a request line is skipped; old clients send one after a body. */
	size_t skip = 0;
	if (in.n && in.p[0] == '\r') {
		if (in.n == 1)
			return 0;
		skip = 2;
		if (in.p[1] != '\n')
			goto bad;
		in = str_from(in, 2);
	}
	/* Another protocol (TLS, SSH) is told at its first byte and not by a timeout. */
	if (in.n && !is_tchar((unsigned char)in.p[0]))
		goto bad;
	ssize_t n = find_end(in, ret_status);
	if (n <= 0)
		return n;
	head_clear(ret);
	int status = parse_request(str_n(in.p, (size_t)n), ret);
	if (status == 0)
		return n + (ssize_t)skip;
	*ret_status = status;
	return -EPROTO;
bad:
	*ret_status = 400;
	return -EPROTO;
}

static int parse_status_line(struct str line, struct http_head *h)
{
	if (line.n < 12 || parse_version(str_n(line.p, 8), &h->minor) < 0 || line.p[8] != ' ')
		return -EPROTO;
	if (!is_digit(line.p[9]) || !is_digit(line.p[10]) || !is_digit(line.p[11]) || (line.n > 12 && line.p[12] != ' '))
		return -EPROTO;
	h->status = (line.p[9] - '0') * 100 + (line.p[10] - '0') * 10 + (line.p[11] - '0');
	h->reason = str_from(line, 13);
	return h->status < 100 || h->status > 599 || !is_field_value(h->reason) ? -EPROTO : 0;
}

ssize_t http_parse_response(struct str in, bool request_was_head, struct http_head *ret)
{
	static const char start[] = "HTTP/1.";
	if (memcmp(in.p, start, in.n < 7 ? in.n : 7) != 0)
		return -EPROTO;
	int status;
	ssize_t n = find_end(in, &status);
	if (n <= 0)
		return n;
	struct str rest = str_n(in.p, (size_t)n);
	head_clear(ret);
	if (parse_status_line(take_line(&rest), ret) < 0 || parse_headers(rest, ret) < 0)
		return -EPROTO;
	ret->framing = HTTP_BODY_UNTIL_CLOSE;
	if (parse_framing(ret, &ret->framing) < 0)
		return -EPROTO;
	if (request_was_head || ret->status < 200 || ret->status == 204 || ret->status == 304)
		ret->framing = HTTP_BODY_NONE;
	parse_connection(ret);
	if (ret->framing == HTTP_BODY_UNTIL_CLOSE)
		ret->keep_alive = false;
	return n;
}

enum body_state {
	CHUNK_SIZE_FIRST, /* first digit of a size */
	CHUNK_SIZE,
	CHUNK_EXTENSION,
	CHUNK_SIZE_LF,
	CHUNK_DATA,
	CHUNK_DATA_CR,
	CHUNK_DATA_LF,
	TRAILER_FIRST, /* first byte of a trailer line, or the CR of the end */
	TRAILER_NAME,
	TRAILER_VALUE,
	TRAILER_LF,
	TRAILER_END_LF,
};

/* Bytes of chunk lines and trailers beyond what the data pays for; keeps a peer from sending framing for ever. */
enum { MAX_OVERHEAD = 16 * 1024 };

void http_body_init(struct http_body *b, enum http_framing framing, uint64_t length)
{
	*b = (struct http_body){.framing = framing, .left = framing == HTTP_BODY_LENGTH ? length : 0};
	b->done = framing == HTTP_BODY_NONE || (framing == HTTP_BODY_LENGTH && length == 0);
}

static int hex_value(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int size_digit(struct http_body *b, int digit)
{
	if (b->left >> 59) /* the next digit would reach 2^63 */
		return -EPROTO;
	b->left = b->left << 4 | (uint64_t)digit;
	b->state = CHUNK_SIZE;
	return 0;
}

static int chunk_begins(struct http_body *b)
{
	b->state = b->left ? CHUNK_DATA : TRAILER_FIRST;
	/* Each chunk pays for a reasonable line, and the data for more (as Go's reader does). */
	uint64_t paid = b->left > MAX_OVERHEAD ? MAX_OVERHEAD : 16 + 2 * b->left;
	b->overhead = b->overhead > paid ? b->overhead - (size_t)paid : 0;
	return 0;
}

/* One byte of framing. */
static int chunk_step(struct http_body *b, unsigned char c)
{
	if (++b->overhead > MAX_OVERHEAD)
		return -EPROTO;
	switch ((enum body_state)b->state) {
	case CHUNK_SIZE_FIRST:
		b->left = 0;
		return hex_value(c) < 0 ? -EPROTO : size_digit(b, hex_value(c));
	case CHUNK_SIZE:
		if (hex_value(c) >= 0)
			return size_digit(b, hex_value(c));
		if (c != '\r' && c != ';')
			return -EPROTO;
		b->state = c == '\r' ? CHUNK_SIZE_LF : CHUNK_EXTENSION;
		return 0;
	case CHUNK_EXTENSION:
		if (c == '\r')
			b->state = CHUNK_SIZE_LF;
		return c != '\r' && is_control(c) ? -EPROTO : 0;
	case CHUNK_SIZE_LF:
		return c == '\n' ? chunk_begins(b) : -EPROTO;
	case CHUNK_DATA_CR:
		b->state = CHUNK_DATA_LF;
		return c == '\r' ? 0 : -EPROTO;
	case CHUNK_DATA_LF:
		b->state = CHUNK_SIZE_FIRST;
		return c == '\n' ? 0 : -EPROTO;
	case TRAILER_FIRST:
		b->state = c == '\r' ? TRAILER_END_LF : TRAILER_NAME;
		return c == '\r' || is_tchar(c) ? 0 : -EPROTO;
	case TRAILER_NAME:
		if (c == ':')
			b->state = TRAILER_VALUE;
		return c == ':' || is_tchar(c) ? 0 : -EPROTO;
	case TRAILER_VALUE:
		if (c == '\r')
			b->state = TRAILER_LF;
		return c != '\r' && is_control(c) ? -EPROTO : 0;
	case TRAILER_LF:
		b->state = TRAILER_FIRST;
		return c == '\n' ? 0 : -EPROTO;
	case TRAILER_END_LF:
		b->done = true;
		return c == '\n' ? 0 : -EPROTO;
	case CHUNK_DATA:
		break;
	}
	return -EPROTO;
}

/* The next run of at most b->left bytes. */
static void take_left(struct http_body *b, struct str *in, struct str *ret)
{
	*ret = str_n(in->p, b->left < in->n ? (size_t)b->left : in->n);
	b->left -= ret->n;
	*in = str_from(*in, ret->n);
}

int http_body_next(struct http_body *b, struct str *in, struct str *ret)
{
	*ret = STR("");
	if (b->done)
		return 0;
	if (b->framing == HTTP_BODY_UNTIL_CLOSE) {
		*ret = *in;
		*in = str_from(*in, in->n);
		return 0;
	}
	if (b->framing == HTTP_BODY_LENGTH) {
		take_left(b, in, ret);
		b->done = b->left == 0;
		return 0;
	}
	while (in->n && !b->done) {
		if (b->state == CHUNK_DATA) {
			take_left(b, in, ret);
			if (b->left == 0)
				b->state = CHUNK_DATA_CR;
			return 0;
		}
		bool trailer = b->state >= TRAILER_FIRST && b->state <= TRAILER_LF && !(b->state == TRAILER_FIRST && in->p[0] == '\r');
		int r = chunk_step(b, (unsigned char)in->p[0]);
		if (r == 0 && trailer && b->trailers)
			r = buf_add(b->trailers, in->p, 1);
		if (r < 0)
			return r;
		*in = str_from(*in, 1);
	}
	return 0;
}

const char *http_reason(int status)
{
	static const struct {
		int status;
		const char *reason;
	} reasons[] = {
		{100, "Continue"}, {101, "Switching Protocols"}, {102, "Processing"}, {103, "Early Hints"}, {200, "OK"},
		{201, "Created"}, {202, "Accepted"}, {203, "Non-Authoritative Information"}, {204, "No Content"},
		{205, "Reset Content"}, {206, "Partial Content"}, {300, "Multiple Choices"}, {301, "Moved Permanently"},
		{302, "Found"}, {303, "See Other"}, {304, "Not Modified"}, {307, "Temporary Redirect"},
		{308, "Permanent Redirect"}, {400, "Bad Request"}, {401, "Unauthorized"}, {402, "Payment Required"},
		{403, "Forbidden"}, {404, "Not Found"}, {405, "Method Not Allowed"}, {406, "Not Acceptable"},
		{408, "Request Timeout"}, {409, "Conflict"}, {410, "Gone"}, {411, "Length Required"},
		{412, "Precondition Failed"}, {413, "Content Too Large"}, {414, "URI Too Long"},
		{415, "Unsupported Media Type"}, {416, "Range Not Satisfiable"}, {417, "Expectation Failed"},
		{421, "Misdirected Request"}, {422, "Unprocessable Content"}, {425, "Too Early"}, {426, "Upgrade Required"},
		{428, "Precondition Required"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"},
		{499, "Client Closed Request"}, {500, "Internal Server Error"}, {501, "Not Implemented"}, {502, "Bad Gateway"},
		{503, "Service Unavailable"}, {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"},
		{507, "Insufficient Storage"},
	};
	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		if (reasons[i].status == status)
			return reasons[i].reason;
	return "Unknown";
}

int http_add_header(struct buf *to, const char *name, struct str value)
{
	for (size_t i = 0; i < value.n; i++)
		if (value.p[i] == '\r' || value.p[i] == '\n' || value.p[i] == '\0')
			return -EINVAL;
	buf_add_c(to, name);
	buf_add_c(to, ": ");
	buf_add_str(to, value);
	return buf_add_c(to, "\r\n");
}
