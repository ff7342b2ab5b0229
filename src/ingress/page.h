/* The ingress's own answers, in the form the client speaks (e2b.md A.8): JSON, a page for a navigating browser, a close code for a WebSocket. Pages of other
 * origins may read them; their preflights are let pass. */
#ifndef CUBICLE_INGRESS_PAGE_H
#define CUBICLE_INGRESS_PAGE_H

#include "io/http_server.h"

struct page {
	int status;
	const char *sandbox;  /* "sandboxId"; NULL = absent */
	const char *message;
	unsigned port;        /* "port"; 0 = absent */
	unsigned limit;       /* "connectionLimit"; 0 = absent */
	const char *path;     /* "path"; NULL = absent */
	int retry_after;      /* seconds; 0 = no header */
};

/* A person looks at the answer: a browser that follows a link, not a script's fetch(). */
bool page_wants_html(const struct http_head *h);

/* Answers the whole request. */
void page_respond(struct http_req *r, const struct page *p);

#endif
