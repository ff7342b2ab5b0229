/*
 * The names that clients give to creates (Idempotency-Key): a name is, in its team, one sandbox, from the arrival of the create until the end is recorded or the create has come to
 * nothing. So a client that got no answer asks again, and gets what it has made, once. The name is in the sandbox's record: a node that starts anew knows it. Forks and snapshots do
 * not inherit it.
 */
#ifndef CUBICLE_NODE_IDEMPOTENCY_H
#define CUBICLE_NODE_IDEMPOTENCY_H

#include "node/service.h"

/* A create with the name of one that was there before: true, and the request is answered, or waits with the first one. 409 for another fingerprint, and while the sandbox is being
 * ended. Admission, templates and a node that stops are no matter: nothing is made. */
bool idempotency_repeat(struct node *n, struct request *r, const struct msg_create *m);
/* Name and fingerprint of a create into what is recorded. 0, or -EINVAL with *err (400). */
int idempotency_fill(struct sandbox *s, const struct msg_create *m, struct error *err);
/* Its name is its own from here, until the name is given back. 0 or -ENOMEM; one without a name takes none. */
int idempotency_take(struct live *l);
void idempotency_give(struct live *l);

#endif
