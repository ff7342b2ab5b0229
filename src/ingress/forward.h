/* The heads that the ingress writes: what of a request goes into a sandbox, what of an answer comes out (RFC 9110 §7.6). Pure functions. */
#ifndef CUBICLE_INGRESS_FORWARD_H
#define CUBICLE_INGRESS_FORWARD_H

#include "io/http.h"

struct forward {
	const char *peer;                              /* client's address for X-Forwarded-For; NULL = unknown */
	const char *proto;                             /* "http" or "https" */
	bool (*own_key)(struct str value, void *arg);  /* true for a valid API key of this server: such a one never enters a sandbox */
	void *arg;
};

/* The sandbox may be asked to switch protocols: an Upgrade without a body, and not to HTTP/2, which is no tunnel for us. */
bool forward_upgrades(const struct http_head *h);

/*
 * Appends the whole request head for the sandbox. Host and target pass unchanged (absolute form becomes origin form); hop-by-hop headers, routing headers,
 * the traffic token, own API keys and forged X-Forwarded headers do not. 0 or -ENOMEM.
 */
int forward_request(struct buf *to, const struct http_head *h, const struct forward *f);

/* Appends the header lines of an answer without framing headers and those of one hop (Upgrade stays in a 101). HEAD and 304 keep their Content-Length. 0 or -ENOMEM. */
int forward_response(struct buf *to, const struct http_head *h, bool request_was_head);

/*
 * Appends those lines of a trailer (http_body.trailers) that pass: not framing, not those of one hop, and what forward_request() (request != NULL) or
 * forward_response() would keep back. 0 or -ENOMEM.
 */
int forward_trailers(struct buf *to, struct str lines, const struct forward *request);

#endif
