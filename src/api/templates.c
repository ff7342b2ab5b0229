#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/snapshots.h"
#include "base/cleanup.h"

#include <stdio.h>
#include <stdlib.h>

/* The union of E2B's Template and Cube's TemplateSummary. Templates of this machine serve every team, a snapshot its own. `spawnCount` counts the team's sandboxes
 * that are alive. */
static void add_template(struct out *o, const struct api_request *r, const struct index_template *t, bool public)
{
	const struct sandbox_index *ix = r->api->config.index;
	size_t alive = 0;
	int64_t last = 0;
	for (size_t i = 0; i < index_count(ix); i++) {
		const struct index_sandbox *s = index_at(ix, i);
		if ((str_eq(s->template_id, t->id) || str_eq(s->origin, t->id)) && str_eq(s->team, r->team)) {
			alive++;
			last = s->started_at; /* ascending */
		}
	}
	out_str(o, "templateID", t->id);
	out_str(o, "buildID", t->build_id);
	out_bool(o, "public", public);
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
	out_time(o, "updatedAt", t->created_at);
	out_null(o, "createdBy");
	if (alive)
		out_time(o, "lastSpawnedAt", last);
	else
		out_null(o, "lastSpawnedAt");
	out_int(o, "spawnCount", (int64_t)alive);
	out_int(o, "buildCount", 1);
	out_str(o, "envdVersion", STR(API_ENVD_VERSION));
	out_str(o, "buildStatus", STR("ready"));
	out_str(o, "status", STR("READY"));
}

static int newest_first(const void *a, const void *b)
{
	const struct index_template *x = *(const struct index_template *const *)a, *y = *(const struct index_template *const *)b;
	if (x->created_at != y->created_at)
		return x->created_at < y->created_at ? 1 : -1;
	return memcmp(x->id.p, y->id.p, MIN(x->id.n, y->id.n));
}

void handle_templates(struct api_request *r)
{
	const struct sandbox_index *ix = r->api->config.index;
	if (!api_index_ready(r))
		return;
	size_t n = index_template_count(ix);
	cleanup_free const struct index_template **sorted = malloc((n + 1) * sizeof(*sorted));
	if (!sorted) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	for (size_t i = 0; i < n; i++)
		sorted[i] = index_template_at(ix, i);
	qsort(sorted, n, sizeof(sorted[0]), newest_first);
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < n; i++) {
		out_open(&o, NULL, '{');
		add_template(&o, r, sorted[i], true);
		out_close(&o, '}');
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

enum { BUILD_ID = 36 };

/* A snapshot as the template that it can be used as; clients want a build with a UUID, so one follows from its id. */
static struct index_template template_of(const struct index_snapshot *s, char build_id[BUILD_ID + 1])
{
	char hash[65];
	key_hash(s->id, hash);
	snprintf(build_id, BUILD_ID + 1, "%.8s-%.4s-8%.3s-8%.3s-%.12s", hash, hash + 8, hash + 12, hash + 15, hash + 18);
	return (struct index_template){.id = s->id, .alias = s->name, .build_id = str_of(build_id), .created_at = s->created_at, .cpu_count = s->cpu_count,
		.memory_mb = s->memory_mb, .disk_mb = s->disk_mb, .size = s->size};
}

void handle_template(struct api_request *r)
{
	struct source found;
	struct index_template copy;
	char build_id[BUILD_ID + 1];
	if (!source_of_path(r, &found))
		return;
	const struct index_template *t = found.template;
	if (!t) {
		copy = template_of(found.snapshot, build_id);
		t = &copy;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	add_template(&o, r, t, found.template);
	out_open(&o, "builds", '[');
	out_open(&o, NULL, '{');
	out_str(&o, "buildID", t->build_id);
	out_str(&o, "status", STR("ready"));
	out_time(&o, "createdAt", t->created_at);
	out_time(&o, "updatedAt", t->created_at);
	out_time(&o, "finishedAt", t->created_at);
	out_int(&o, "cpuCount", (int64_t)t->cpu_count);
	out_int(&o, "memoryMB", (int64_t)t->memory_mb);
	out_int(&o, "diskSizeMB", (int64_t)t->disk_mb);
	out_str(&o, "envdVersion", STR(API_ENVD_VERSION));
	out_close(&o, '}');
	out_close(&o, ']');
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_template_alias(struct api_request *r)
{
	struct source found;
	if (!source_of_path(r, &found))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_str(&o, "templateID", found.template ? found.template->id : found.snapshot->id);
	out_bool(&o, "public", found.template);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_reload_templates(struct api_request *r)
{
	struct error err = {0};
	api_wait(r, node_reload_templates(r->api->config.node, api_done_plain, r, &err), &err);
}
