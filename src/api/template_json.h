/* How templates are shown: the union of E2B's Template and Cube's TemplateSummary and TemplateDetail (cube.md B.2). */
#ifndef CUBICLE_API_TEMPLATE_JSON_H
#define CUBICLE_API_TEMPLATE_JSON_H

#include "api/index.h"
#include "api/out.h"

struct api_request;

/* What the team's sandboxes of a template are; counted anew for each answer, of all templates at once. */
struct template_use {
	size_t alive;
	int64_t last; /* the newest one's start */
};
struct template_uses;
/* NULL without memory. */
struct template_uses *template_uses_new(const struct api_request *r);
void template_uses_free(struct template_uses *u);
struct template_use template_use(const struct template_uses *u, struct str template);

/* The members of both, into an object that is open. */
void template_json(struct out *o, const struct index_template *t, struct template_use use);
/* Those that Cube has in the detail only. `alias`: the template's name where the index has the one of before; else the index's. */
void template_json_detail(struct out *o, const struct index_template *t);
/* In Cube's words: what the newest build is, or READY when sandboxes can be made of another one. */
struct str template_status_of_cube(const struct index_template *t);

#endif
