#include "bodies.h"

#include "ingress/forward.h"
#include "ingress/route.h"

/* What goes on into a sandbox is read there by some other parser: it must be one request with the same framing, in our strict reading. */
static void check_forwarded(const struct http_head *h)
{
	cleanup_buf struct buf out = BUF_INIT;
	struct forward f = {.peer = "127.0.0.1", .proto = "http"};
	struct http_head again;
	int status;
	hold(forward_request(&out, h, &f) == 0);
	/* Ours add to a head that was near the limit. */
	if (buf_len(&out) > HTTP_MAX_HEAD || h->n_headers + 5 > HTTP_MAX_HEADERS)
		return;
	hold(http_parse_request(buf_str(&out), &again, &status) == (ssize_t)buf_len(&out));
	hold(str_eq(again.method, h->method) && again.framing == h->framing && again.length == h->length);
	hold(str_eq(again.path, h->path) && str_eq(again.query, h->query) && str_eq(again.host, h->host));
	hold(!http_find(&again, "E2b-Sandbox-Id") && !http_find(&again, "Proxy-Authorization"));
}

static void check_route(const struct http_head *h)
{
	struct route route;
	cleanup_buf struct buf path = BUF_INIT;
	route_request(h, &route);
	hold(route.kind != ROUTE_BAD || route.why);
	hold(route.kind != ROUTE_SANDBOX || (route.port && route.id[0] && !strpbrk(route.id, "-.:/ ")));
	hold(route_normalize_path(&path, h->path) == 0 && buf_str(&path).p[0] == '/');
}

void fuzz_one(struct str input)
{
	static struct http_head h;
	int status = 0;
	ssize_t n = http_parse_request(input, &h, &status);
	hold(n <= (ssize_t)input.n);
	hold(n >= 0 || status == 400 || status == 414 || status == 417 || status == 431 || status == 505);
	if (n <= 0)
		return;
	check_head(input, &h);
	hold(inside(input, h.method) && inside(input, h.path) && inside(input, h.query) && inside(input, h.host) && h.method.n);
	hold(h.path.p[0] == '/' || str_is(h.path, "*"));
	hold(!(h.framing == HTTP_BODY_CHUNKED && h.minor == 0) && h.framing != HTTP_BODY_UNTIL_CLOSE);
	/* What stands behind a head does not change it, and a part of a head is none. */
	hold(http_parse_request(str_n(input.p, (size_t)n), &h, &status) == n);
	hold(http_parse_request(str_n(input.p, (size_t)n - 1), &h, &status) == 0);
	hold(http_parse_request(input, &h, &status) == n);
	check_body(str_from(input, (size_t)n), h.framing, h.length);
	check_route(&h);
	if (!str_is(h.method, "CONNECT"))
		check_forwarded(&h);
}
