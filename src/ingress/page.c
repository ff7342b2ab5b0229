#include "ingress/page.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "ingress/websocket.h"

static bool contains_nocase(struct str s, const char *what)
{
	size_t n = strlen(what);
	for (size_t i = 0; i + n <= s.n; i++)
		if (str_eq_nocase(str_n(s.p + i, n), str_of(what)))
			return true;
	return false;
}

bool page_wants_html(const struct http_head *h)
{
	static const char *const browsers[] = {"mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"};
	struct str mode = http_value(h, "Sec-Fetch-Mode");
	if (contains_nocase(http_value(h, "Accept"), "application/json") || (mode.n && !str_eq_nocase(mode, STR("navigate"))))
		return false;
	struct str agent = http_value(h, "User-Agent");
	for (size_t i = 0; i < sizeof(browsers) / sizeof(browsers[0]); i++)
		if (contains_nocase(agent, browsers[i]))
			return true;
	return false;
}

/* The keys are compared by clients: exactly these, no others. */
static void add_json(struct buf *to, const struct page *p)
{
	buf_add_c(to, "{");
	if (p->sandbox) {
		buf_add_c(to, "\"sandboxId\":");
		json_quote(to, str_of(p->sandbox));
		buf_add_c(to, ",");
	}
	buf_add_c(to, "\"message\":");
	json_quote(to, str_of(p->message));
	if (p->path) {
		buf_add_c(to, ",\"path\":");
		json_quote(to, str_of(p->path));
	}
	if (p->port)
		buf_addf(to, ",\"port\":%u", p->port);
	if (p->limit)
		buf_addf(to, ",\"connectionLimit\":%u", p->limit);
	buf_addf(to, ",\"code\":%d}", p->status);
}

static void add_escaped(struct buf *to, const char *s)
{
	for (; *s; s++) {
		if (*s == '<')
			buf_add_c(to, "&lt;");
		else if (*s == '>')
			buf_add_c(to, "&gt;");
		else if (*s == '&')
			buf_add_c(to, "&amp;");
		else
			buf_add(to, s, 1);
	}
}

static void add_html(struct buf *to, const struct page *p)
{
	buf_addf(to,
		"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
		"<title>%d %s</title><style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}"
		"code{background:#8882;padding:.1em .3em;border-radius:3px}</style></head><body><h1>",
		p->status, http_reason(p->status));
	add_escaped(to, p->message);
	buf_add_c(to, "</h1>");
	if (p->sandbox) {
		buf_add_c(to, "<p>Sandbox <code>");
		add_escaped(to, p->sandbox);
		buf_add_c(to, "</code>");
		if (p->port)
			buf_addf(to, ", port <code>%u</code>", p->port);
		buf_add_c(to, "</p>");
	}
	buf_add_c(to, "</body></html>\n");
}

/* A page of another origin that asks whether it may ask. Nobody else can say so: what it wants to ask gets our answer too, and it may read that. */
static bool is_preflight(const struct http_head *h)
{
	return str_is(h->method, "OPTIONS") && http_find(h, "Origin") && http_find(h, "Access-Control-Request-Method");
}

static void respond_preflight(struct http_req *r, struct buf *headers)
{
	struct str method = http_value(r->head, "Access-Control-Request-Method"), wanted = http_value(r->head, "Access-Control-Request-Headers");
	if (http_add_header(headers, "Access-Control-Allow-Methods", method) == 0 &&
		http_add_header(headers, "Access-Control-Allow-Headers", wanted.n ? wanted : STR("*")) == 0)
		http_respond(r, 204, NULL, buf_cstr(headers), STR(""));
	else
		http_abort(r);
}

/* Of a WebSocket: from the range that is left to applications, or what the registry has for it. */
static unsigned close_code(const struct page *p)
{
	switch (p->status) {
	case 403:
		return 4003;
	case 404:
		return 4004;
	case 502:
		return p->port ? 4001 : 4004;
	case 409:
	case 429:
	case 503:
	case 504:
		return 1013; /* try again later */
	default:
		return 1011;
	}
}

static void respond(struct http_req *r, const struct page *p, struct buf *headers)
{
	cleanup_buf struct buf body = BUF_INIT;
	bool html = page_wants_html(r->head);
	if (p->retry_after)
		buf_addf(headers, "Retry-After: %d\r\n", p->retry_after);
	if (html)
		add_html(&body, p);
	else
		add_json(&body, p);
	if (buf_cstr(headers))
		http_respond(r, p->status, html ? "text/html; charset=utf-8" : "application/json; charset=utf-8", buf_cstr(headers), buf_str(&body));
	else
		http_abort(r);
}

void page_respond(struct http_req *r, const struct page *p)
{
	cleanup_buf struct buf headers = BUF_INIT;
	if (websocket_is_handshake(r->head)) {
		websocket_refuse(r, close_code(p), str_of(p->message));
		return;
	}
	buf_add_c(&headers, "Cache-Control: no-store\r\n");
	/* Nothing of it is a secret, and a page has no other way to learn why. */
	if (http_find(r->head, "Origin"))
		buf_add_c(&headers, "Access-Control-Allow-Origin: *\r\n");
	if (is_preflight(r->head))
		respond_preflight(r, &headers);
	else
		respond(r, p, &headers);
}
