#include "api/sources.h"
#include "api/request.h"

#include <errno.h>
#include <stdio.h>

enum { WHOLE_MAX = 2 * TEMPLATE_REFERENCE_MAX + 2 };

/* "<team>/name": the name. */
static bool of_team(struct str name, struct str team, struct str *ret)
{
	struct str space;
	return team.n && str_cut(name, '/', &space, ret) && str_eq(space, team);
}

static const struct index_template *own(const struct sandbox_index *ix, struct str team, struct str name)
{
	struct str bare;
	const struct index_template *t = index_template_named(ix, team, name);
	return !t && of_team(name, team, &bare) ? index_template_named(ix, team, bare) : t;
}

static const struct index_template *others(const struct sandbox_index *ix, struct str name)
{
	struct str space, bare;
	const struct index_template *t = index_template_public(ix, name);
	if (!t && str_cut(name, '/', &space, &bare) && (t = index_template_named(ix, space, bare)) && !t->public)
		t = NULL;
	return t;
}

static bool may_use(const struct index_template *t, struct str team)
{
	return t->public || str_eq(t->team, team);
}

static const struct index_snapshot *snapshot_named(const struct sandbox_index *ix, struct str team, const struct template_reference *reference)
{
	char whole[WHOLE_MAX];
	struct str bare;
	snprintf(whole, sizeof(whole), "%s%s%s", reference->name, reference->tag[0] ? ":" : "", reference->tag);
	const struct index_snapshot *s = index_snapshot_named(ix, team, str_of(whole));
	return !s && of_team(str_of(whole), team, &bare) ? index_snapshot_named(ix, team, bare) : s;
}

const struct index_snapshot *source_snapshot(const struct sandbox_index *ix, struct str team, const struct template_reference *reference)
{
	const struct index_snapshot *s = reference->tag[0] ? NULL : index_snapshot_find(ix, str_of(reference->name));
	return s && str_eq(s->team, team) ? s : snapshot_named(ix, team, reference);
}

struct source source_find(const struct sandbox_index *ix, struct str team, const struct template_reference *reference)
{
	struct str name = str_of(reference->name);
	struct source found = {.template = index_template_find(ix, name)};
	if (found.template && !may_use(found.template, team))
		found.template = NULL;
	if (!found.template && !reference->tag[0] && (found.snapshot = index_snapshot_find(ix, name)) && str_eq(found.snapshot->team, team))
		return found;
	found.snapshot = NULL;
	const struct index_template *made = own(ix, team, name);
	/* One that nothing can be made from yet does not hide what the name has meant before, but snapshots. */
	if (!found.template && made && made->tags.raw.n)
		found.template = made;
	if (!found.template)
		found.template = index_template_named(ix, STR(""), name);
	if (!found.template && !made && (found.snapshot = snapshot_named(ix, team, reference)))
		return found;
	if (!found.template)
		found.template = others(ix, name);
	if (found.template && !index_template_tag(found.template, str_of(reference->tag), &found.build))
		found.template = NULL;
	return found;
}

const struct index_template *source_template(const struct sandbox_index *ix, struct str team, const struct template_reference *reference)
{
	struct str name = str_of(reference->name);
	const struct index_template *t = index_template_find(ix, name);
	if (t && may_use(t, team))
		return t;
	t = own(ix, team, name);
	if (!t)
		t = index_template_named(ix, STR(""), name);
	return t ? t : others(ix, name);
}

void source_not_found(struct api_request *r, const struct template_reference *reference)
{
	const struct index_template *t = source_template(r->api->config.index, r->team, reference);
	struct index_tag ignored;
	if (reference->tag[0])
		api_failf(r, 404, "template '%s' with tag '%s' not found", reference->name, reference->tag);
	else if (t && !index_template_tag(t, STR(""), &ignored))
		api_failf(r, 404, "template '%s' not found: no build of it is ready", reference->name);
	else
		api_failf(r, 404, "template '%s' not found", reference->name);
}

static bool parse(struct api_request *r, struct str text, struct template_reference *ret)
{
	struct error err = {0};
	if (decode_template_reference(text, ret, &err) == 0)
		return api_index_ready(r);
	api_fail(r, &err);
	return false;
}

bool source_of_path(struct api_request *r, struct source *ret)
{
	struct template_reference reference;
	if (!parse(r, r->match.params[0], &reference))
		return false;
	*ret = source_find(r->api->config.index, r->team, &reference);
	if (ret->template || ret->snapshot)
		return true;
	source_not_found(r, &reference);
	return false;
}

bool source_is_own(const struct api_request *r, const struct index_template *t)
{
	return t->team.n && str_eq(t->team, r->team);
}

const struct index_template *source_own(struct api_request *r, struct str text, struct template_reference *ret)
{
	if (!parse(r, text, ret))
		return NULL;
	const struct index_template *t = source_template(r->api->config.index, r->team, ret);
	if (t && source_is_own(r, t))
		return t;
	if (t)
		api_failf(r, 403, "template '%s' is %s: your team may use it, but not change it", ret->name, t->team.n ? "another team's" : "of this machine");
	else
		source_not_found(r, ret);
	return NULL;
}
