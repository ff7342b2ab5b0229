#include "api/handlers.h"
#include "api/sources.h"
#include "api/template_builds.h"
#include "api/template_request.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* What the tags of a template mean, who may use it, and its end (e2b.md A.6). */

/* What a request is about, kept until the node has answered. */
struct subject {
	struct template_reference reference;
	char template[65];
	struct buf tags;
};

static void subject_release(void *work)
{
	buf_done(&((struct subject *)work)->tags);
}

static struct subject *new_subject(struct api_request *r)
{
	struct subject *s = r->work = calloc(1, sizeof(*s));
	if (s)
		r->release = subject_release;
	else
		api_failf(r, 503, "the server is out of memory");
	return s;
}

/* The node's refusal. What it does not know any more is told as what was asked for. */
static void fail(struct api_request *r, const struct error *err)
{
	const struct subject *s = r->work;
	if (err->status == 404 && !strstr(err->message, "tag"))
		api_failf(r, 404, "template '%s' not found", s->reference.name);
	else
		api_fail(r, err);
}

static void done(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err)
		fail(r, a->err);
	else
		api_answer_empty(r);
}

static void assigned(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err) {
		fail(r, a->err);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = a->body->build_made.tags.raw, tag;
	out_open(&o, NULL, '{');
	out_open(&o, "tags", '[');
	while (msg_list_next(&rest, &tag))
		out_str(&o, NULL, tag);
	out_close(&o, ']');
	out_str(&o, "buildID", a->body->build_made.build);
	out_close(&o, '}');
	api_answer(r, 201, &body);
}

/* `field` of the body names a template of the team's own, `tags` at least one tag. NULL = answered. */
static struct subject *parse_tags(struct api_request *r, const char *field)
{
	struct str text;
	struct error err = {0};
	struct subject *s = new_subject(r);
	if (!s)
		return NULL;
	int e = field_str(r->body, field, NULL, &text, &err);
	if (e == 0)
		e = error_set(&err, -EINVAL, 400, "%s is missing", field);
	if (e > 0)
		e = decode_template_tags(r->body, &s->tags, &err);
	if (e == 0)
		e = error_set(&err, -EINVAL, 400, "tags is missing");
	if (e < 0) {
		api_fail(r, &err);
		return NULL;
	}
	const struct index_template *t = source_own(r, text, &s->reference);
	if (!t)
		return NULL;
	snprintf(s->template, sizeof(s->template), "%.*s", STR_FMT(t->id));
	return s;
}

void handle_tags_assign(struct api_request *r)
{
	struct error err = {0};
	struct index_tag from;
	const struct subject *s = parse_tags(r, "target");
	if (!s)
		return;
	const char *tag = s->reference.tag[0] ? s->reference.tag : "default";
	if (!index_template_tag(index_template_find(r->api->config.index, str_of(s->template)), str_of(tag), &from)) {
		api_failf(r, 404, "Template '%s' with tag '%s' not found", s->reference.name, tag);
		return;
	}
	struct msg_tag_template m = {.team = r->team, .template = str_of(s->template), .from = str_of(tag), .tags = {buf_str(&s->tags)}};
	msg_set(&m, tag_template, request, str_of(r->id));
	api_wait(r, node_tag_template(r->api->config.node, &m, assigned, r, &err), &err);
}

void handle_tags_remove(struct api_request *r)
{
	struct error err = {0};
	const struct subject *s = parse_tags(r, "name");
	if (!s)
		return;
	struct str rest = buf_str(&s->tags), tag;
	while (msg_list_next(&rest, &tag))
		if (str_is(tag, "default")) {
			api_failf(r, 400, "the tag 'default' cannot be deleted");
			return;
		}
	struct msg_untag_template m = {.team = r->team, .template = str_of(s->template), .tags = {buf_str(&s->tags)}};
	msg_set(&m, untag_template, request, str_of(r->id));
	api_wait(r, node_untag_template(r->api->config.node, &m, done, r, &err), &err);
}

/* The template that the path names and the team may see, ready or not. NULL = answered. */
static const struct index_template *path_template(struct api_request *r)
{
	struct template_reference reference;
	struct error err = {0};
	if (decode_template_reference(r->match.params[0], &reference, &err) < 0) {
		api_fail(r, &err);
		return NULL;
	}
	if (!api_index_ready(r))
		return NULL;
	const struct index_template *t = source_template(r->api->config.index, r->team, &reference);
	if (!t)
		api_failf(r, 404, "template '%s' not found", reference.name);
	return t;
}

void handle_tags(struct api_request *r)
{
	const struct index_template *t = path_template(r);
	struct index_tag tag;
	if (!t)
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = t->tags.raw;
	bool only = !t->team.n && index_template_tag(t, STR(""), &tag);
	out_open(&o, NULL, '[');
	while (only || index_tag_next(&rest, &tag)) {
		out_open(&o, NULL, '{');
		out_str(&o, "tag", tag.tag);
		out_str(&o, "buildID", tag.build_id);
		out_time(&o, "createdAt", tag.created_at);
		out_close(&o, '}');
		only = false;
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

static int parse_tag(struct str name, struct str value, void *arg, struct error *err)
{
	return str_is(name, "tag") ? decode_template_tag(value, arg, err) : 0;
}

void handle_tag_exists(struct api_request *r)
{
	char tag[TEMPLATE_TAG_MAX + 1] = "";
	struct index_tag found;
	const struct index_template *t = path_template(r);
	if (!t)
		return;
	if (!api_query(r, parse_tag, tag))
		return;
	if (!tag[0]) {
		api_failf(r, 400, "tag is missing");
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_bool(&o, "exists", index_template_tag(t, str_of(tag), &found));
	out_str(&o, "normalizedTag", str_of(tag));
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_tag_count(struct api_request *r)
{
	const struct index_template *t = path_template(r);
	struct index_tag tag;
	int64_t total = 0;
	if (!t)
		return;
	struct str rest = t->tags.raw;
	while (index_tag_next(&rest, &tag))
		total++;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_int(&o, "total", t->team.n ? total : 1);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

/* Visibility */

static void changed(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct subject *s = r->work;
	r->call = NULL;
	if (a->err) {
		fail(r, a->err);
		return;
	}
	const struct index_template *t = index_template_find(r->api->config.index, str_of(s->template));
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_open(&o, "names", '[');
	if (t && t->alias.n)
		out_str(&o, NULL, t->alias);
	out_close(&o, ']');
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

/* The template of the team's own that the path names, in the request's work. NULL = answered. */
static struct subject *path_subject(struct api_request *r)
{
	struct template_reference reference;
	const struct index_template *t = source_own(r, r->match.params[0], &reference);
	struct subject *s = t ? new_subject(r) : NULL;
	if (!s)
		return NULL;
	s->reference = reference;
	snprintf(s->template, sizeof(s->template), "%.*s", STR_FMT(t->id));
	return s;
}

void handle_template_change(struct api_request *r)
{
	bool public;
	struct error err = {0};
	const struct subject *s = path_subject(r);
	if (!s)
		return;
	int e = field_bool(r->body, "public", NULL, &public, &err);
	if (e == 0)
		e = error_set(&err, -EINVAL, 400, "public is missing");
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_change_template m = {.team = r->team, .template = str_of(s->template)};
	msg_set(&m, change_template, public, public);
	msg_set(&m, change_template, request, str_of(r->id));
	api_wait(r, node_change_template(r->api->config.node, &m, changed, r, &err), &err);
}

/* The end */

static int parse_flag(struct str name, struct str value, bool *ret, struct error *err)
{
	char text[64];
	snprintf(text, sizeof(text), "%.*s", (int)MIN(name.n, sizeof(text) - 1), name.p);
	*ret = !value.n || str_is(value, "true") || str_is(value, "1");
	if (!*ret && !str_is(value, "false") && !str_is(value, "0"))
		return error_set(err, -EINVAL, 400, "%s must be true or false", text);
	return 0;
}

static int parse_delete(struct str name, struct str value, void *arg, struct error *err)
{
	bool ignored;
	if (str_is(name, "force"))
		return parse_flag(name, value, arg, err);
	/* A deletion is done when it is answered, with and without it. */
	if (str_is(name, "sync"))
		return parse_flag(name, value, &ignored, err);
	if (str_is(name, "instance_type") && value.n && !str_is(value, "cubebox"))
		return error_set(err, -EOPNOTSUPP, 501, "instance_type other than \"cubebox\" is not implemented by this server");
	return 0;
}

void handle_template_delete(struct api_request *r)
{
	bool force = false;
	struct error err = {0};
	struct template_reference reference;
	if (decode_template_reference(r->match.params[0], &reference, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	if (!api_query(r, parse_delete, &force) || !api_index_ready(r))
		return;
	/* Nobody else's template can be meant where the team has a snapshot of that name. */
	const struct index_template *t = source_template(r->api->config.index, r->team, &reference);
	if ((!t || !source_is_own(r, t)) && source_snapshot(r->api->config.index, r->team, &reference)) {
		handle_snapshot_delete(r);
		return;
	}
	const struct subject *s = path_subject(r);
	if (!s)
		return;
	struct msg_delete_template m = {.team = r->team, .template = str_of(s->template), .force = force};
	/* "name:default" is said of one tag, "name" of all of it. */
	if (str_chr(r->match.params[0], ':') >= 0)
		msg_set(&m, delete_template, tag, str_of(s->reference.tag[0] ? s->reference.tag : "default"));
	msg_set(&m, delete_template, request, str_of(r->id));
	api_wait(r, node_delete_template(r->api->config.node, &m, done, r, &err), &err);
}
