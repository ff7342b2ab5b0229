/*
 * What a reference of a client's means to a team (e2b.md A.4, A.5.5): a template of its own, of this machine, one that another team lets others use, or one of the
 * team's snapshots.
 */
#ifndef CUBICLE_API_SOURCES_H
#define CUBICLE_API_SOURCES_H

#include "api/decode.h"
#include "api/index.h"

struct api_request;

/* At most one is set. */
struct source {
	const struct index_template *template;
	const struct index_snapshot *snapshot;
	struct index_tag build; /* of the template: what the tag means */
};

/*
 * What sandboxes can be made from. An id comes first, of a template that the team may use or of a snapshot of its own; then names: the team's templates, those of
 * this machine, the team's newest snapshot of that name, what other teams let everybody use. So a name that another team has made public never takes the place of
 * what the team has itself. The name of a template of the first two kinds never means a snapshot, also before a build of it is ready, and also with a tag that it has
 * not. "<ref of a team>/name" means that team's. Nothing set = nothing.
 */
struct source source_find(const struct sandbox_index *ix, struct str team, const struct template_reference *reference);
/* The snapshot of the team, where only one can be meant: by its id, or the newest of that name. NULL. */
const struct index_snapshot *source_snapshot(const struct sandbox_index *ix, struct str team, const struct template_reference *reference);
/* 404 in words that clients understand (e2b.md A.3). */
void source_not_found(struct api_request *r, const struct template_reference *reference);

/* A template that the team may see, whether a build of it is ready or not and whatever the tag: by its id, or by name as above. NULL. */
const struct index_template *source_template(const struct sandbox_index *ix, struct str team, const struct template_reference *reference);

/* What the first parameter of the path refers to, as sandboxes can be made from it. False = answered. */
bool source_of_path(struct api_request *r, struct source *ret);
/*
 * The template of the team's own that a text (the first parameter of the path) names, ready or not; the reference goes to *ret. NULL = answered: 400, 404 when it is
 * not there or another team's, 403 when the team may use it but not change it.
 */
const struct index_template *source_own(struct api_request *r, struct str text, struct template_reference *ret);

/* The request's team made it. */
bool source_is_own(const struct api_request *r, const struct index_template *t);

#endif
