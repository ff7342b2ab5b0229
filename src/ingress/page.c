#include "ingress/page.h"

#include "base/log.h"

#include <stdio.h>

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

void page_respond(struct http_req *r, const struct page *p)
{
	__attribute__((__cleanup__(buf_done))) struct buf body = BUF_INIT;
	char headers[96] = "Cache-Control: no-store\r\n";
	bool html = page_wants_html(r->head);
	if (p->retry_after)
		snprintf(headers, sizeof(headers), "Cache-Control: no-store\r\nRetry-After: %d\r\n", p->retry_after);
	if (html)
		add_html(&body, p);
	else
		add_json(&body, p);
	http_respond(r, p->status, html ? "text/html; charset=utf-8" : "application/json; charset=utf-8", headers, buf_str(&body));
}
