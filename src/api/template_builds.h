/* Builds of templates, as the handlers of several routes start and show them. */
#ifndef CUBICLE_API_TEMPLATE_BUILDS_H
#define CUBICLE_API_TEMPLATE_BUILDS_H

#include "api/request.h"
#include "api/sources.h"
#include "api/template_request.h"

/* What was made, kept in a request's work until the node has answered. */
struct template_build {
	char template[65], build[BUILD_ID + 1];
};

/* "waiting", "building", "ready", "error" in Cube's words: PENDING, RUNNING, READY, FAILED. */
struct str build_status_of_cube(struct str status);

/* Asks the node to start a build of a->spec, as a->force and a->isolation say. `base` (NULL = none) is what fromTemplate means. NULL with *err. */
struct node_call *build_start(struct api_request *r, const struct template_build *b, const struct build_args *a, const struct source *base, node_done_fn *done, struct error *err);

/* Asks the node for a template and a build of it that waits; kind: "e2b", "cube" or "image". `source`, `reference` and `template` as in the message, empty = none. */
struct node_call *template_make(struct api_request *r, const char *kind, const struct template_args *a, struct str reference, struct str template, struct str source,
	node_done_fn *done, struct error *err);

/* The build that the first two parameters of the path name, of a template of the team's own; the node decides whether there is one. False = answered. */
bool build_of_path(struct api_request *r, struct template_build *ret);
/* The node's refusal of what was asked about a build; its 404 in words that clients understand. */
void build_fail(struct api_request *r, struct str template, struct str build, const struct error *err);

#endif
