#include "api/template_json.h"
#include "api/request.h"
#include "api/template_builds.h"
#include "base/cleanup.h"
#include "base/map.h"

#include <stdlib.h>

struct template_uses {
	struct map by_id; /* -> struct template_use, owned */
};

static bool count(struct template_uses *u, struct str id, int64_t at)
{
	struct template_use *use = map_get(&u->by_id, id);
	if (!use) {
		use = calloc(1, sizeof(*use));
		if (!use || map_put(&u->by_id, id, use, NULL) < 0) {
			free(use);
			return false;
		}
	}
	use->alive++;
	use->last = at; /* the index is ascending */
	return true;
}

struct template_uses *template_uses_new(const struct api_request *r)
{
	const struct sandbox_index *ix = r->api->config.index;
	struct template_uses *u = calloc(1, sizeof(*u));
	bool ok = u;
	for (size_t i = 0; ok && i < index_count(ix); i++) {
		const struct index_sandbox *s = index_at(ix, i);
		if (!str_eq(s->team, r->team))
			continue;
		ok = count(u, s->template_id, s->started_at);
		/* From a snapshot. */
		if (ok && s->origin.n && !str_eq(s->origin, s->template_id))
			ok = count(u, s->origin, s->started_at);
	}
	if (!ok) {
		template_uses_free(u);
		return NULL;
	}
	return u;
}

void template_uses_free(struct template_uses *u)
{
	if (!u)
		return;
	map_foreach(&u->by_id, s)
		free(s->value);
	map_done(&u->by_id);
	free(u);
}

struct template_use template_use(const struct template_uses *u, struct str template)
{
	const struct template_use *use = map_get(&u->by_id, template);
	return use ? *use : (struct template_use){0};
}

struct str template_status_of_cube(const struct index_template *t)
{
	return !t->team.n || t->tags.raw.n ? STR("READY") : build_status_of_cube(t->status);
}

void template_json(struct out *o, const struct index_template *t, struct template_use use)
{
	out_str(o, "templateID", t->id);
	out_str(o, "buildID", t->build_id);
	out_bool(o, "public", t->public);
	static const char *const lists[] = {"aliases", "names"};
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		out_open(o, lists[i], '[');
		if (t->alias.n)
			out_str(o, NULL, t->alias);
		out_close(o, ']');
	}
	out_int(o, "cpuCount", (int64_t)t->cpu_count);
	out_int(o, "memoryMB", (int64_t)t->memory_mb);
	out_int(o, "diskSizeMB", (int64_t)t->disk_mb);
	out_int(o, "size", (int64_t)t->size);
	out_time(o, "createdAt", t->created_at);
	out_time(o, "updatedAt", t->updated_at);
	out_null(o, "createdBy");
	if (use.alive)
		out_time(o, "lastSpawnedAt", use.last);
	else
		out_null(o, "lastSpawnedAt");
	out_int(o, "spawnCount", (int64_t)use.alive);
	out_int(o, "buildCount", (int64_t)t->build_count);
	out_str(o, "envdVersion", STR(API_ENVD_VERSION));
	out_str(o, "buildStatus", t->status);
	out_bool(o, "isDefault", !t->team.n);
	out_str(o, "status", template_status_of_cube(t));
	out_str(o, "instanceType", STR("cubebox"));
	out_str(o, "jobID", t->build_id);
	if (t->last_error.n)
		out_str(o, "lastError", t->last_error);
	if (t->reference.n)
		out_str(o, "imageInfo", t->reference);
	if (t->kind.n)
		out_str(o, "kind", t->kind);
}

void template_json_detail(struct out *o, const struct index_template *t)
{
	/* On this one machine. */
	out_open(o, "replicas", '[');
	out_open(o, NULL, '{');
	out_str(o, "nodeID", STR("local"));
	out_str(o, "status", template_status_of_cube(t));
	out_close(o, '}');
	out_close(o, ']');
	out_bool(o, "allowInternetAccess", true);
	if (t->source.n)
		out_raw(o, "createRequest", t->source);
}
