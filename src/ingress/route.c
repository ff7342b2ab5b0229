#include "ingress/route.h"

#include "base/encode.h"

#include <errno.h>

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* 1 to 65535, digits only, no leading zero. */
static bool parse_port(struct str s, uint16_t *ret)
{
	uint64_t v;
	if (s.n == 0 || s.n > 5 || s.p[0] == '0' || str_to_u64(s, &v) < 0 || v > UINT16_MAX)
		return false;
	*ret = (uint16_t)v;
	return true;
}

/* The part before the first '-' (behind it stands the client id of older clients), [a-z0-9]+; `lower` takes upper case as well. */
static bool parse_id(struct str s, bool lower, char *to)
{
	size_t n = 0;
	while (n < s.n && s.p[n] != '-') {
		char c = s.p[n];
		if (lower && c >= 'A' && c <= 'Z')
			c = (char)(c + 32);
		if (n == ROUTE_ID_MAX || !(is_digit(c) || (c >= 'a' && c <= 'z')))
			return false;
		to[n++] = c;
	}
	to[n] = '\0';
	return n > 0;
}

/* "192-168-1-5": how names of sslip.io and its like spell an address. It names this server, no sandbox. */
static bool is_dashed_address(struct str label)
{
	int parts = 0;
	for (struct str part; label.n; parts++) {
		uint64_t v;
		if (!str_cut(label, '-', &part, &label)) {
			part = label;
			label.n = 0;
		}
		if (str_to_u64(part, &v) < 0 || v > 255)
			return false;
	}
	return parts == 4;
}

/* By Host alone. A first part that is meant as a number makes a label one of a sandbox: then it has to be right. */
static void route_host(struct str host, struct route *ret)
{
	struct str label, rest, port, id;
	ret->kind = ROUTE_API;
	if (host.n && host.p[0] == '[')
		return;
	str_cut(host, ':', &host, &rest);
	if (!str_cut(host, '.', &label, &rest)) {
		label = host;
		rest = STR("");
	}
	if (!str_cut(label, '-', &port, &id) || port.n == 0 || is_dashed_address(label))
		return;
	for (size_t i = 0; i < port.n; i++)
		if (!is_digit(port.p[i]) && port.p[i] != '+')
			return;
	ret->kind = ROUTE_BAD;
	if (rest.n == 0 || str_is(rest, "."))
		ret->why = "Invalid host";
	else if (!parse_id(id, true, ret->id))
		ret->why = "Invalid sandbox ID";
	else if (!parse_port(port, &ret->port))
		ret->why = "Invalid sandbox port";
	else
		ret->kind = ROUTE_SANDBOX;
}

/* The only header of that name. False when there are several. */
static bool find_one(const struct http_head *h, const char *name, const struct http_header **ret)
{
	*ret = NULL;
	for (size_t i = 0; i < h->n_headers; i++) {
		if (!str_eq_nocase(h->headers[i].name, str_of(name)))
			continue;
		if (*ret)
			return false;
		*ret = &h->headers[i];
	}
	return true;
}

/* A browser asks whether a page may send E2b-Sandbox-Id: the header itself comes only afterwards. */
static bool asks_for_the_header(const struct http_head *h)
{
	if (!str_is(h->method, "OPTIONS") || !http_find(h, "Origin") || !http_find(h, "Access-Control-Request-Method"))
		return false;
	struct str rest = http_value(h, "Access-Control-Request-Headers"), name;
	while (rest.n) {
		if (!str_cut(rest, ',', &name, &rest)) {
			name = rest;
			rest.n = 0;
		}
		if (str_eq_nocase(str_trim(name), STR("E2b-Sandbox-Id")))
			return true;
	}
	return false;
}

static void bad(struct route *ret, const char *why)
{
	ret->kind = ROUTE_BAD;
	ret->why = why;
}

void route_request(const struct http_head *h, struct route *ret)
{
	const struct http_header *id, *port;
	char header_id[ROUTE_ID_MAX + 1];
	uint16_t header_port = 0;
	*ret = (struct route){0};
	route_host(h->host, ret);
	if (ret->kind == ROUTE_BAD)
		return;
	if (!find_one(h, "E2b-Sandbox-Id", &id) || !find_one(h, "E2b-Sandbox-Port", &port)) {
		bad(ret, "E2b-Sandbox-Id and E2b-Sandbox-Port may each be given once");
		return;
	}
	if (!id && !port) {
		if (ret->kind == ROUTE_API && asks_for_the_header(h))
			bad(ret, "missing header E2b-Sandbox-Id"); /* page_respond() lets preflights pass */
		return;
	}
	if (id && !parse_id(id->value, false, header_id)) {
		bad(ret, "Invalid sandbox ID");
	} else if (port && !parse_port(port->value, &header_port)) {
		bad(ret, "Invalid sandbox port");
	} else if (ret->kind == ROUTE_SANDBOX) {
		if ((id && strcmp(header_id, ret->id) != 0) || (port && header_port != ret->port))
			bad(ret, "Host and the E2b-Sandbox headers name different sandboxes or ports");
	} else if (!id || !port) {
		bad(ret, id ? "missing header E2b-Sandbox-Port" : "missing header E2b-Sandbox-Id");
	} else {
		ret->kind = ROUTE_SANDBOX;
		memcpy(ret->id, header_id, sizeof(header_id));
		ret->port = header_port;
	}
}

static int decode(struct buf *to, struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		if (c == '%' && s.n - i >= 3 && hex_decode(str_n(s.p + i + 1, 2), &c, 1) == 0)
			i += 2;
		buf_add(to, &c, 1);
	}
	return to->failed ? -ENOMEM : 0;
}

int route_normalize_path(struct buf *to, struct str path)
{
	__attribute__((__cleanup__(buf_done))) struct buf decoded = BUF_INIT;
	if (decode(&decoded, path) < 0)
		return -ENOMEM;
	size_t base = buf_len(to);
	struct str rest = buf_str(&decoded), segment;
	while (rest.n) {
		if (!str_cut(rest, '/', &segment, &rest)) {
			segment = rest;
			rest.n = 0;
		}
		if (segment.n == 0 || str_is(segment, "."))
			continue;
		if (str_is(segment, "..")) {
			while (buf_len(to) > base && to->data[--to->end] != '/')
				;
			continue;
		}
		buf_add_c(to, "/");
		buf_add_str(to, segment);
	}
	if (buf_len(to) == base)
		buf_add_c(to, "/");
	return to->failed ? -ENOMEM : 0;
}
