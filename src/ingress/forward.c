#include "ingress/forward.h"

#include <errno.h>

static char fold(char c)
{
	return (char)(c == '_' ? '-' : c >= 'A' && c <= 'Z' ? c + 32 : c);
}

/* Applications that see headers as CGI variables (WSGI, PHP) take X_Forwarded_For for X-Forwarded-For: so do we where a header is ours to write. */
static bool name_starts(struct str name, struct str with)
{
	if (name.n < with.n)
		return false;
	for (size_t i = 0; i < with.n; i++)
		if (fold(name.p[i]) != fold(with.p[i]))
			return false;
	return true;
}

static bool name_is(struct str name, struct str other)
{
	return name.n == other.n && name_starts(name, other);
}

static bool is_one_of(struct str name, const char *const *names)
{
	for (; *names; names++)
		if (name_is(name, str_of(*names)))
			return true;
	return false;
}

static void add_line(struct buf *to, struct str name, struct str value)
{
	buf_add_str(to, name);
	buf_add_c(to, ": ");
	buf_add_str(to, value);
	buf_add_c(to, "\r\n");
}

bool forward_upgrades(const struct http_head *h)
{
	return h->upgrade && h->framing == HTTP_BODY_NONE && !http_lists(h, "Upgrade", "h2c");
}

/* X-API-Key: KEY and Authorization: Bearer KEY. Other values belong to the application. */
static bool is_own_key(const struct http_header *x, const struct forward *f)
{
	struct str value = x->value;
	if (str_eq_nocase(x->name, STR("Authorization"))) {
		if (value.n < 7 || !str_eq_nocase(str_n(value.p, 7), STR("Bearer ")))
			return false;
		value = str_trim(str_from(value, 7));
	} else if (!name_is(x->name, STR("X-API-Key"))) {
		return false;
	}
	return f->own_key && f->own_key(value, f->arg);
}

/* Written by us, or of no concern to the sandbox. */
static bool is_ours(struct str name)
{
	static const char *const names[] = {"Host", "Content-Length", "Transfer-Encoding", "Expect", "E2b-Sandbox-Id", "E2b-Sandbox-Port", "E2b-Traffic-Access-Token",
		"Cube-Traffic-Access-Token", "HTTP2-Settings", "Forwarded", "X-Real-IP", NULL};
	return is_one_of(name, names) || name_starts(name, STR("X-Forwarded-"));
}

/* The announcement of trailers goes where they go. */
static bool passes_hop(const struct http_head *h, struct str name)
{
	return !http_is_hop_by_hop(h, name) || (h->framing == HTTP_BODY_CHUNKED && str_eq_nocase(name, STR("Trailer")));
}

static void add_framing(struct buf *to, const struct http_head *h)
{
	if (h->framing == HTTP_BODY_CHUNKED)
		buf_add_c(to, "Transfer-Encoding: chunked\r\n");
	else if (h->framing == HTTP_BODY_LENGTH)
		buf_addf(to, "Content-Length: %llu\r\n", (unsigned long long)h->length);
	if (h->expect_continue)
		buf_add_c(to, "Expect: 100-continue\r\n");
	if (forward_upgrades(h)) {
		buf_add_c(to, "Connection: Upgrade\r\n");
		add_line(to, STR("Upgrade"), http_value(h, "Upgrade"));
	} else if (http_lists(h, "TE", "trailers")) {
		buf_add_c(to, "Connection: TE\r\nTE: trailers\r\n");
	}
}

int forward_request(struct buf *to, const struct http_head *h, const struct forward *f)
{
	buf_add_str(to, h->method);
	buf_add_c(to, " ");
	buf_add_str(to, h->path);
	if (memchr(h->target.p, '?', h->target.n)) {
		buf_add_c(to, "?");
		buf_add_str(to, h->query);
	}
	buf_add_c(to, " HTTP/1.1\r\n");
	add_line(to, STR("Host"), h->host);
	for (size_t i = 0; i < h->n_headers; i++) {
		const struct http_header *x = &h->headers[i];
		if (!is_ours(x->name) && passes_hop(h, x->name) && !is_own_key(x, f))
			add_line(to, x->name, x->value);
	}
	if (f->peer)
		add_line(to, STR("X-Forwarded-For"), str_of(f->peer));
	add_line(to, STR("X-Forwarded-Host"), h->host);
	add_line(to, STR("X-Forwarded-Proto"), str_of(f->proto));
	add_framing(to, h);
	buf_add_c(to, "\r\n");
	return to->failed ? -ENOMEM : 0;
}

/* Orders to a web server that may stand before us (nginx, lighttpd): to answer with a file of its machine. */
static bool is_order(struct str name)
{
	static const char *const names[] = {"X-Accel-Redirect", "X-Sendfile", "X-LIGHTTPD-send-file", "X-LIGHTTPD-send-tempfile", NULL};
	return is_one_of(name, names);
}

int forward_response(struct buf *to, const struct http_head *h, bool request_was_head)
{
	bool keep_length = request_was_head || h->status == 304;
	for (size_t i = 0; i < h->n_headers; i++) {
		const struct http_header *x = &h->headers[i];
		bool length = str_eq_nocase(x->name, STR("Content-Length"));
		bool upgrade = h->status == 101 && str_eq_nocase(x->name, STR("Upgrade"));
		if (length ? keep_length : upgrade || (passes_hop(h, x->name) && !is_order(x->name)))
			add_line(to, x->name, x->value);
	}
	return to->failed ? -ENOMEM : 0;
}

/* What nobody may say behind a message: how it is framed (RFC 9110 §6.5.1). */
static bool is_framing(struct str name)
{
	static const char *const names[] = {"Content-Length", "Transfer-Encoding", "Content-Encoding", "Content-Type", "Content-Range", "Host", NULL};
	return is_one_of(name, names);
}

int forward_trailers(struct buf *to, struct str lines, const struct forward *request)
{
	static const struct http_head none;
	struct str line;
	while (str_cut(lines, '\n', &line, &lines)) {
		struct http_header x;
		if (!str_cut(str_n(line.p, line.n - 1), ':', &x.name, &x.value))
			continue;
		x.value = str_trim(x.value);
		bool ours = request ? is_ours(x.name) || is_own_key(&x, request) : is_order(x.name);
		if (!ours && !is_framing(x.name) && !http_is_hop_by_hop(&none, x.name))
			add_line(to, x.name, x.value);
	}
	return to->failed ? -ENOMEM : 0;
}
