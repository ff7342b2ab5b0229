/* Variables of an environment in the order in which they were first set. */
#ifndef CUBICLE_IMAGE_ENV_H
#define CUBICLE_IMAGE_ENV_H

#include "base/encode.h"

#include <stddef.h>

enum {
	ENV_MOST = 512,           /* variables */
	ENV_BYTES = 24 * 1024,    /* of all names and values */
};

struct env_var {
	char *name, *value; /* owned */
};

struct env {
	struct env_var *vars; /* owned */
	size_t n;
	size_t bytes;
};

/* Adds or replaces. 0, -EINVAL (a name that is empty or holds '=' or NUL, a value with NUL), -E2BIG (over the limits), -ENOMEM. */
int env_set(struct env *e, struct str name, struct str value);
/* The same of "NAME=value"; without '=' -EINVAL. */
int env_set_pair(struct env *e, struct str pair);
/* The value, or NULL. Valid until the next change. */
const char *env_get(const struct env *e, struct str name);
/* Sets all of `from` in *to. */
int env_merge(struct env *to, const struct env *from);
void env_done(struct env *e);
#define cleanup_env __attribute__((__cleanup__(env_done)))

#endif
