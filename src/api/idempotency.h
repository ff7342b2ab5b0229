/*
 * The header Idempotency-Key of a create (agents.md §3): the client's own name for the sandbox that it makes. The same name again, from the same team, means the same
 * sandbox until that is gone, so a client that lost an answer asks again and neither leaks nor doubles one. The node decides (and remembers, in its records);
 * front answers from its index what is there already, so that no quota stands between a client and what it has.
 */
#ifndef CUBICLE_API_IDEMPOTENCY_H
#define CUBICLE_API_IDEMPOTENCY_H

#include "api/index.h"
#include "base/error.h"
#include "io/http.h"
#include "io/json.h"

enum { IDEMPOTENCY_KEY_MAX = 255 };

struct create_name {
	struct str key;       /* a view into the head; empty = none was given */
	char fingerprint[65]; /* hex SHA-256 of what is asked for: equal for JSON that differs in order and space only */
};

/* `body` as it was sent (create_parse() may change it), `v2` as there: another question. 0, or -EINVAL (400), -ENOMEM with *err. */
int create_name_parse(const struct http_head *head, const json_t *body, bool v2, struct create_name *ret, struct error *err);

/* What the team made by this name. 1 with *ret, 0 when there is nothing that front knows (the node may), -EEXIST (409) with *err: something else was asked for,
 * or it is being ended. */
int create_name_find(const struct sandbox_index *ix, struct str team, const struct create_name *name, const struct index_sandbox **ret, struct error *err);

#endif
