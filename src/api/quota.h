/*
 * What a team may run: sandboxes at once, memory of them, and creates in a second. The index says what runs; a lease stands for what the node was asked for and
 * has not told yet, so that a hundred requests at once cannot pass one limit. All on the loop.
 *
 * A create and each child of a fork are a sandbox, its memory and a create; a resume, from memory or from disk, is a sandbox and its memory. What is paused
 * is no sandbox, but its memory counts when it is kept; what the node gave without being asked by this process (after a restart) is in the index.
 */
#ifndef CUBICLE_API_QUOTA_H
#define CUBICLE_API_QUOTA_H

#include "api/index.h"
#include "api/node_client.h"
#include "api/teams.h"
#include "config/options.h"

struct quota;
struct quota_lease;

/* Nothing is owned; all of it outlives the quota. NULL without memory. */
struct quota *quota_new(const struct teams *teams, struct sandbox_index *index, const struct options *options);
/* Takes NULL. */
void quota_free(struct quota *q);

/*
 * Before a create or a fork: `n` new sandboxes with memory_mb each for a team (index_sandbox.team, api_request.team). 0 with a lease for quota_hold(), or
 * -EDQUOT with *err: 429 naming the quota, with retry_after; -EACCES (403) when the team is blocked or gone; -ENOMEM. A fork is given whole or not at all.
 */
int quota_take(struct quota *q, struct str team, unsigned n, uint64_t memory_mb, struct quota_lease **ret, struct error *err);
/* Before a create with this name (api/idempotency.h; empty = none): as quota_take() for one. While another create of that name is under way, both are one, which
 * counts until the last of them has ended: whichever of them the node makes it for. */
int quota_take_create(struct quota *q, struct str team, struct str name, uint64_t memory_mb, struct quota_lease **ret, struct error *err);
/* Before a resume of a sandbox of the index; free when it runs, or when another resume of it is under way. As quota_take(). */
int quota_take_resume(struct quota *q, const struct index_sandbox *s, struct quota_lease **ret, struct error *err);

/*
 * Keeps the lease until the call that it was taken for has ended, whoever still waits for it; call NULL (it was not sent) gives it back at once. Returns call:
 *
 *	if (quota_take(q, r->team, 1, memory_mb, &lease, &err) < 0)
 *		...
 *	else
 *		api_wait(r, quota_hold(lease, node_create(client, &m, created, r, &err)), &err);
 */
struct node_call *quota_hold(struct quota_lease *lease, struct node_call *call);

/* What counts now against a team's limits of sandboxes and memory. */
struct quota_usage {
	uint64_t sandboxes, memory_mb;
};
struct quota_usage quota_usage(const struct quota *q, const struct team *team);
/* The limit that counts: the team's own or the server's; 0 = none. */
int64_t quota_limit(const struct quota *q, const struct team *team, enum quota_kind kind);

#endif
