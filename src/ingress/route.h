/* Which requests belong to a sandbox (e2b.md A.8): by the left-most label of Host, <port>-<id>[-anything], or by the headers E2b-Sandbox-Id and -Port. */
#ifndef CUBICLE_INGRESS_ROUTE_H
#define CUBICLE_INGRESS_ROUTE_H

#include "io/http.h"

enum { ROUTE_ID_MAX = 63 };

enum route_kind {
	ROUTE_API,     /* not for a sandbox */
	ROUTE_SANDBOX,
	ROUTE_BAD,     /* meant for a sandbox, but wrong: 400 with `why` */
};

struct route {
	enum route_kind kind;
	char id[ROUTE_ID_MAX + 1];
	uint16_t port;
	const char *why; /* static */
};

/* Routes one request. A Host that names a sandbox wins; headers that name another one make the request bad. */
void route_request(const struct http_head *h, struct route *ret);

/*
 * The path as it would act on a file system: percent-decoded once, "//", "." and ".." resolved, no trailing slash. For rules about paths, never for forwarding.
 * Appended to `to`; a broken escape is taken literally. 0 or -ENOMEM.
 */
int route_normalize_path(struct buf *to, struct str path);

#endif
