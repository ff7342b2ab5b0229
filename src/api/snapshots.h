/* What a reference of a client's means to a team: a template of this machine, or one of the team's snapshots (e2b.md A.4, A.5.5). */
#ifndef CUBICLE_API_SNAPSHOTS_H
#define CUBICLE_API_SNAPSHOTS_H

#include "api/decode.h"
#include "api/index.h"

struct api_request;

/* At most one is set. */
struct source {
	const struct index_template *template;
	const struct index_snapshot *snapshot;
};

/*
 * An id comes first, then the newest snapshot of that name that the team has, then the name of a template. A name may begin with the team's own namespace (its
 * ref). Both NULL = nothing.
 */
struct source source_find(const struct sandbox_index *ix, struct str team, const struct template_reference *reference);
/* What the first parameter of the path refers to; false = answered. */
bool source_of_path(struct api_request *r, struct source *ret);
/* 404 in words that clients understand (e2b.md A.3). */
void source_not_found(struct api_request *r, const struct template_reference *reference);

#endif
