#include "api/handlers.h"
#include "api/template_builds.h"
#include "api/template_json.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Cube's calls that make templates (cube.md B.5): one request makes the template, or a new build of it, and starts it. */

struct cube_work {
	struct template_build b;
	struct cube_args args;
};

static void cube_release(void *work)
{
	cube_args_done(&((struct cube_work *)work)->args);
}

static void started(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct cube_work *w = r->work;
	r->call = NULL;
	if (a->err) {
		build_fail(r, str_of(w->b.template), str_of(w->b.build), a->err);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_str(&o, "jobID", str_of(w->b.build));
	out_str(&o, "buildID", str_of(w->b.build));
	out_str(&o, "templateID", str_of(w->b.template));
	out_str(&o, "status", STR("PENDING"));
	out_str(&o, "phase", STR("PULLING"));
	out_int(&o, "progress", 0);
	out_str(&o, "errorMessage", STR(""));
	out_close(&o, '}');
	api_answer(r, 202, &body);
}

static void made(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct cube_work *w = r->work;
	struct error err = {0};
	if (!api_called(r, a))
		return;
	snprintf(w->b.template, sizeof(w->b.template), "%.*s", STR_FMT(a->body->build_made.template));
	snprintf(w->b.build, sizeof(w->b.build), "%.*s", STR_FMT(a->body->build_made.build));
	api_wait(r, build_start(r, &w->b, &w->args.build, NULL, started, &err), &err);
}

/* `old`: the template that is built again, or NULL. */
static void build(struct api_request *r, const struct index_template *old)
{
	struct error err = {0};
	cleanup_json json_t *before = old ? json_parse(old->source, TEMPLATE_SOURCE_MAX, "the template's request", &err) : NULL;
	struct cube_work *w = err.code ? NULL : calloc(1, sizeof(*w));
	if (!w && !err.code)
		error_set(&err, -ENOMEM, 503, "the server is out of memory");
	if (!w) {
		api_fail(r, &err);
		return;
	}
	r->work = w;
	r->release = cube_release;
	if (cube_args_parse(r->body, before, &w->args, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	/* A rebuild leaves the name to PUT …/alias. */
	if (old)
		w->args.template.name[0] = 0;
	api_wait(r, template_make(r, "cube", &w->args.template, STR(""), old ? old->id : STR(""), buf_str(&w->args.source), made, &err), &err);
}

void handle_cube_make(struct api_request *r)
{
	if (api_index_ready(r))
		build(r, NULL);
}

void handle_cube_rebuild(struct api_request *r)
{
	struct template_reference reference;
	const struct index_template *t = source_own(r, r->match.params[0], &reference);
	if (!t)
		return;
	if (t->source.n)
		build(r, t);
	else
		api_failf(r, 409, "template '%s' was not made by POST /templates from an image: what it was made of is not kept, so build it again with what built it", reference.name);
}

/* PUT /templates/{id}/alias: set, moved, or cleared */

struct naming {
	char template[65], name[65];
};

/* The template as it is from now on: the index has its new name already, since the node tells of a change before it answers. */
static void named(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct naming *n = r->work;
	if (!api_called(r, a))
		return;
	const struct index_template *t = index_template_find(r->api->config.index, str_of(n->template));
	struct template_uses *uses = t ? template_uses_new(r) : NULL;
	if (!uses) {
		api_failf(r, t ? 503 : 404, t ? "the server is out of memory" : "template '%s' not found", n->template);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	template_json(&o, t, template_use(uses, t->id));
	template_json_detail(&o, t);
	out_close(&o, '}');
	template_uses_free(uses);
	api_answer(r, 200, &body);
}

void handle_cube_alias(struct api_request *r)
{
	struct template_reference reference;
	struct str alias = STR("");
	struct error err = {0};
	const struct index_template *t = source_own(r, r->match.params[0], &reference);
	if (!t)
		return;
	struct naming *n = r->work = calloc(1, sizeof(*n));
	int e = n ? field_str(r->body, "alias", NULL, &alias, &err) : error_set(&err, -ENOMEM, 503, "the server is out of memory");
	alias = str_trim(alias);
	if (e >= 0 && alias.n && !is_cube_alias(alias))
		e = error_set(&err, -EINVAL, 400, "alias must be 1 to 64 of [a-z0-9-], begin with a letter or digit, and not with \"tpl-\" or \"snap-\"");
	if (e >= 0 && alias.n && !t->tags.raw.n)
		e = error_set(&err, -EBUSY, 409, "template '%s' is not READY", reference.name);
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	snprintf(n->template, sizeof(n->template), "%.*s", STR_FMT(t->id));
	struct msg_change_template m = {.team = r->team, .template = str_of(n->template)};
	msg_set(&m, change_template, name, alias);
	msg_set(&m, change_template, request, str_of(r->id));
	api_wait(r, node_change_template(r->api->config.node, &m, named, r, &err), &err);
}

/*
 * Whether templates fit the machines: there is one, and a template holds no part of this server that could age (init comes from the machine at each start), so each that
 * the team sees fits.
 */
void handle_compat(struct api_request *r)
{
	static const char *const counts[] = {"staleTemplates", "staleReplicas", "affectedNodes", "missingReplicas", "unknownReplicas"};
	const struct sandbox_index *ix = r->api->config.index;
	if (!api_index_ready(r))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_open(&o, "summary", '{');
	for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
		out_int(&o, counts[i], 0);
	out_close(&o, '}');
	out_open(&o, "templates", '[');
	for (size_t i = 0; i < index_template_count(ix); i++) {
		const struct index_template *t = index_template_at(ix, i);
		if (t->team.n && !str_eq(t->team, r->team))
			continue;
		out_open(&o, NULL, '{');
		out_str(&o, "templateID", t->id);
		out_str(&o, "instanceType", STR("cubebox"));
		out_str(&o, "overall", STR("OK"));
		out_open(&o, "nodes", '[');
		out_open(&o, NULL, '{');
		out_str(&o, "nodeID", STR("local"));
		out_str(&o, "compatStatus", STR("OK"));
		out_close(&o, '}');
		out_close(&o, ']');
		out_close(&o, '}');
	}
	out_close(&o, ']');
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_compat_adopt(struct api_request *r)
{
	struct template_reference reference;
	if (!source_own(r, r->match.params[0], &reference))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_int(&o, "updated", 0);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}
