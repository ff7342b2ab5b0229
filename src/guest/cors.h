/* Cross-origin requests to envd (e2b.md B): a page of any origin may call it, since what guards it is a token that no browser adds by itself. */
#ifndef CUBICLE_GUEST_CORS_H
#define CUBICLE_GUEST_CORS_H

#include "io/http.h"

/* Appends the header lines that an answer to this request needs, for a request that names an Origin. */
void cors_add(const struct http_head *h, struct buf *to);

/* Appends those that answer a preflight besides (OPTIONS, no token wanted: a browser sends none), with status 204. */
void cors_add_preflight(const struct http_head *h, struct buf *to);

#endif
