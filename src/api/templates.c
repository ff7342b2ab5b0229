#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/sources.h"
#include "api/template_json.h"
#include "api/template_request.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Templates as they are looked at: lists, one with its builds, what an alias means. */

enum { PAGE_MAX = 100 };

static int newest_first(const void *a, const void *b)
{
	const struct index_template *x = *(const struct index_template *const *)a, *y = *(const struct index_template *const *)b;
	if (x->created_at != y->created_at)
		return x->created_at < y->created_at ? 1 : -1;
	int r = memcmp(y->id.p, x->id.p, MIN(x->id.n, y->id.n));
	return r ? r : x->id.n < y->id.n ? 1 : x->id.n > y->id.n ? -1 : 0;
}

/* What a list shows: the templates of the team and of this machine. Those that other teams let everybody use are used by who knows their name. */
static bool is_listed(const struct api_request *r, const struct index_template *t, bool machine_only)
{
	return !t->team.n || (!machine_only && str_eq(t->team, r->team));
}

struct page {
	bool machine_only;
	size_t limit; /* 0 = all */
	bool has_cursor;
	struct cursor cursor;
};

static bool is_behind(const struct index_template *t, const struct cursor *c)
{
	struct index_template last = {.id = str_of(c->id), .created_at = c->at};
	const struct index_template *x = &last;
	return newest_first(&x, &t) < 0;
}

static void answer_list(struct api_request *r, const struct page *p)
{
	const struct sandbox_index *ix = r->api->config.index;
	size_t n = 0;
	cleanup_free const struct index_template **sorted = malloc((index_template_count(ix) + 1) * sizeof(*sorted));
	struct template_uses *uses = template_uses_new(r);
	if (!sorted || !uses) {
		template_uses_free(uses);
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	for (size_t i = 0; i < index_template_count(ix); i++) {
		const struct index_template *t = index_template_at(ix, i);
		if (is_listed(r, t, p->machine_only) && (!p->has_cursor || is_behind(t, &p->cursor)))
			sorted[n++] = t;
	}
	qsort(sorted, n, sizeof(sorted[0]), newest_first);
	cleanup_buf struct buf body = BUF_INIT, token = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < n && (!p->limit || i < p->limit); i++) {
		out_open(&o, NULL, '{');
		template_json(&o, sorted[i], template_use(uses, sorted[i]->id));
		out_close(&o, '}');
	}
	out_close(&o, ']');
	if (p->limit && n > p->limit) {
		struct cursor c = {.at = sorted[p->limit - 1]->created_at};
		snprintf(c.id, sizeof(c.id), "%.*s", STR_FMT(sorted[p->limit - 1]->id));
		if (cursor_encode(&c, &token) < 0 || http_add_header(&r->headers, "X-Next-Token", buf_str(&token)) < 0)
			r->headers.failed = true;
	}
	template_uses_free(uses);
	api_answer(r, 200, &body);
}

void handle_templates(struct api_request *r)
{
	if (api_index_ready(r))
		answer_list(r, &(struct page){0});
}

void handle_default_templates(struct api_request *r)
{
	if (api_index_ready(r))
		answer_list(r, &(struct page){.machine_only = true});
}

static int parse_limit(struct str value, size_t *ret, struct error *err)
{
	uint64_t n;
	if (str_to_u64(value, &n) < 0 || n < 1 || n > PAGE_MAX)
		return error_set(err, -EINVAL, 400, "limit must be between 1 and %d", PAGE_MAX);
	*ret = (size_t)n;
	return 0;
}

static int parse_page(struct str name, struct str value, void *arg, struct error *err)
{
	struct page *p = arg;
	if (str_is(name, "limit"))
		return parse_limit(value, &p->limit, err);
	if (!str_is(name, "nextToken") || !value.n)
		return 0;
	p->has_cursor = true;
	int r = cursor_decode(value, &p->cursor, err);
	return r == 0 && p->cursor.ascending ? error_set(err, -EINVAL, 400, "Invalid next token") : r;
}

void handle_templates_v2(struct api_request *r)
{
	struct page p = {.limit = PAGE_MAX};
	if (api_query(r, parse_page, &p) && api_index_ready(r))
		answer_list(r, &p);
}

/* One */

/* A snapshot as the template that it can be used as; clients want a build with a UUID, so one follows from its id. */
static struct index_template template_of(const struct index_snapshot *s, char build_id[BUILD_ID + 1])
{
	char hash[65];
	key_hash(s->id, hash);
	snprintf(build_id, BUILD_ID + 1, "%.8s-%.4s-8%.3s-8%.3s-%.12s", hash, hash + 8, hash + 12, hash + 15, hash + 18);
	return (struct index_template){.id = s->id, .team = s->team, .alias = s->name, .build_id = str_of(build_id), .status = STR("ready"), .kind = STR("snapshot"), .created_at = s->created_at,
		.updated_at = s->created_at, .build_count = 1, .cpu_count = s->cpu_count, .memory_mb = s->memory_mb, .disk_mb = s->disk_mb, .size = s->size};
}

struct build_entry {
	struct str id, status, error;
	int64_t created_at, finished_at; /* 0 = not yet */
	int64_t cpu_count, memory_mb, disk_mb;
};

static void add_build(struct out *o, const struct build_entry *b)
{
	int64_t changed = b->finished_at ? b->finished_at : b->created_at;
	out_open(o, NULL, '{');
	out_str(o, "buildID", b->id);
	out_str(o, "status", b->status);
	out_time(o, "createdAt", b->created_at);
	out_time(o, "updatedAt", changed);
	if (b->finished_at)
		out_time(o, "finishedAt", b->finished_at);
	out_int(o, "cpuCount", b->cpu_count);
	out_int(o, "memoryMB", b->memory_mb);
	out_int(o, "diskSizeMB", b->disk_mb);
	out_str(o, "envdVersion", STR(API_ENVD_VERSION));
	if (b->error.n)
		out_str(o, "errorMessage", b->error);
	out_close(o, '}');
}

/* Its builds come out of `builds`; without one it has the one that it is. */
static void answer_template(struct api_request *r, const struct index_template *t, const struct msg_builds_page *builds)
{
	struct template_uses *uses = template_uses_new(r);
	if (!uses) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	template_json(&o, t, template_use(uses, t->id));
	template_json_detail(&o, t);
	out_open(&o, "builds", '[');
	struct str rest = builds ? builds->builds.raw : STR(""), item, last = STR("");
	while (msg_list_next(&rest, &item)) {
		struct str fields[9] = {0};
		struct build_entry b = {0};
		for (size_t i = 0; i < ARRAY_SIZE(fields) && msg_list_next(&item, &fields[i]); i++)
			;
		b.id = fields[0], b.status = fields[1], b.error = fields[8];
		str_to_i64(fields[2], &b.created_at);
		if (fields[3].n)
			str_to_i64(fields[3], &b.finished_at);
		str_to_i64(fields[4], &b.cpu_count);
		str_to_i64(fields[5], &b.memory_mb);
		str_to_i64(fields[6], &b.disk_mb);
		add_build(&o, &b);
		last = b.id;
	}
	if (!builds)
		add_build(&o, &(struct build_entry){.id = t->build_id, .status = STR("ready"), .created_at = t->created_at, .finished_at = t->created_at,
			.cpu_count = (int64_t)t->cpu_count, .memory_mb = (int64_t)t->memory_mb, .disk_mb = (int64_t)t->disk_mb});
	out_close(&o, ']');
	out_close(&o, '}');
	if (builds && builds->more && last.n && http_add_header(&r->headers, "X-Next-Token", last) < 0)
		r->headers.failed = true;
	template_uses_free(uses);
	api_answer(r, 200, &body);
}

struct builds_query {
	char template[65], after[BUILD_ID + 1];
	size_t limit;
};

static int parse_builds(struct str name, struct str value, void *arg, struct error *err)
{
	struct builds_query *q = arg;
	if (str_is(name, "limit"))
		return parse_limit(value, &q->limit, err);
	if (!str_is(name, "nextToken") || !value.n)
		return 0;
	if (!is_build_id(value))
		return error_set(err, -EINVAL, 400, "Invalid next token");
	memcpy(q->after, value.p, value.n);
	return 0;
}

static void builds_told(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct builds_query *q = r->work;
	r->call = NULL;
	const struct index_template *t = index_template_find(r->api->config.index, str_of(q->template));
	if (t && !a->err)
		answer_template(r, t, &a->body->builds_page);
	else if (a->err && a->err->status != 404)
		api_fail(r, a->err);
	else
		api_failf(r, 404, "template '%s' not found", q->template);
}

void handle_template(struct api_request *r)
{
	char build_id[BUILD_ID + 1];
	struct template_reference reference;
	struct error err = {0};
	if (decode_template_reference(r->match.params[0], &reference, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct builds_query *q = r->work = calloc(1, sizeof(*q));
	if (!q) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	q->limit = PAGE_MAX;
	if (!api_query(r, parse_builds, q) || !api_index_ready(r))
		return;
	/* The team's own is shown before it is ready, too, by its id. */
	const struct sandbox_index *ix = r->api->config.index;
	const struct index_template *own = index_template_find(ix, str_of(reference.name));
	struct source found = source_find(ix, r->team, &reference);
	const struct index_template *t = found.template ? found.template : own && source_is_own(r, own) && !reference.tag[0] ? own : NULL;
	if (found.snapshot) {
		struct index_template copy = template_of(found.snapshot, build_id);
		answer_template(r, &copy, NULL);
	} else if (!t) {
		source_not_found(r, &reference);
	} else if (!source_is_own(r, t)) {
		answer_template(r, t, NULL);
	} else {
		snprintf(q->template, sizeof(q->template), "%.*s", STR_FMT(t->id));
		struct msg_builds m = {.team = r->team, .template = str_of(q->template), .limit = q->limit};
		if (q->after[0])
			msg_set(&m, builds, after, str_of(q->after));
		api_wait(r, node_builds(r->api->config.node, &m, builds_told, r, &err), &err);
	}
}

/* Clients ask so whether there is one: 403 says that there is, another team's (e2b.md A.3; case 179). */
void handle_template_alias(struct api_request *r)
{
	struct source found;
	if (!source_of_path(r, &found))
		return;
	if (found.template && found.template->team.n && !source_is_own(r, found.template)) {
		api_failf(r, 403, "the template of this name is another team's");
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_str(&o, "templateID", found.template ? found.template->id : found.snapshot->id);
	out_bool(&o, "public", found.template && found.template->public);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_reload_templates(struct api_request *r)
{
	struct error err = {0};
	api_wait(r, node_reload_templates(r->api->config.node, api_done_plain, r, &err), &err);
}
