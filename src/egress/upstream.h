/* The resolvers that queries go to, and which of them answer. */
#ifndef CUBICLE_EGRESS_UPSTREAM_H
#define CUBICLE_EGRESS_UPSTREAM_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { UPSTREAMS_MAX = 8, UPSTREAMS_FROM_FILE = 3, UPSTREAM_TEXT = 64 };

struct upstream {
	struct sockaddr_storage address;
	socklen_t length;
	int64_t bad_until; /* CLOCK_BOOTTIME ns: asked last until then, because it did not answer */
	char text[UPSTREAM_TEXT];
};

struct upstreams {
	struct upstream list[UPSTREAMS_MAX];
	size_t n;
	unsigned generation;    /* changes with the list */
	const char *path;       /* NULL: the list was configured and never changes */
	int64_t checked;        /* CLOCK_BOOTTIME ns */
	struct stat seen;
};

/* `configured`: addresses, comma-separated, each "a.b.c.d", "a.b.c.d:port", "v6" or "[v6]:port"; empty: the `nameserver` lines of `path` (kept, not owned; a missing file
 * or none of them gives an empty list). 0, or -EINVAL with *err (400). */
int upstreams_init(struct upstreams *u, const char *configured, const char *path, struct error *err);
/* Reads the file again when it changed; looks at most every 5 s. */
void upstreams_refresh(struct upstreams *u, int64_t now);

/* The n-th to ask (n from 0, wraps around): those that answer come first, in the order given. NULL when there is none. */
struct upstream *upstreams_nth(struct upstreams *u, size_t n, int64_t now);
void upstream_failed(struct upstream *u, int64_t now);
void upstream_answered(struct upstream *u);

#endif
