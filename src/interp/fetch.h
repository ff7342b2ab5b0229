/* The variables of the sandbox, from its envd (e2b.md C.4): one GET on a connection of its own. */
#ifndef CUBICLE_INTERP_FETCH_H
#define CUBICLE_INTERP_FETCH_H

#include "base/str.h"
#include "io/loop.h"

#include <netinet/in.h>

/* Where envd is. */
struct fetch_target {
	struct sockaddr_in address;
	bool set; /* false: there is none */
};

/* "http://A.B.C.D:PORT": 0 or -EINVAL. */
int fetch_target_parse(struct str url, struct fetch_target *ret);

struct fetch;
/* status: of the answer, with its body; 0 = none came, and body says why. */
typedef void fetch_fn(int status, struct str body, void *arg);

/* GET path with the X-Access-Token (empty: none). fn is called once, not from inside, and the fetch is then
 * freed; NULL without memory or descriptors. */
struct fetch *fetch_new(struct loop *l, const struct fetch_target *to, const char *path, struct str token,
	fetch_fn *fn, void *arg);
/* Gives it up: fn is not called. Takes NULL. */
void fetch_free(struct fetch *f);

#endif
