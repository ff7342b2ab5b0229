/* The variables that point the published clients at this server. */
#ifndef CUBICLE_CLI_ENV_H
#define CUBICLE_CLI_ENV_H

#include "base/encode.h"

struct env {
	struct str key;
	const char *url;    /* "http://host:port" */
	struct str domain;  /* with a port where clients need one; empty = none */
	bool tls;           /* the domain is served over TLS: clients take every address from it, what would lead past it is unset */
	const char *ca;     /* the authority that clients have to trust, and a file of all that they then trust; NULL = none */
	const char *bundle;
};

/* Appends `export NAME='value'` lines for E2B and Cube clients (cube.md G.3), or one JSON object. 0 or -ENOMEM. */
int env_exports(struct buf *to, const struct env *e, bool json);

#endif
