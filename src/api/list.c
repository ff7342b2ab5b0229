#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/sandbox_json.h"
#include "api/sources.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>

enum { PAGE_MAX = 100 };

/* What a list's query asks for (e2b.md A.5.4). */
struct list_query {
	struct buf metadata; /* form of a msg_map: all pairs must match */
	bool running, paused, ascending;
	bool has_started_after;
	int64_t started_after; /* inclusive, to the microsecond */
	char template_id[TEMPLATE_REFERENCE_MAX + 1]; /* empty = any */
	size_t limit;
	bool has_cursor;
	struct cursor cursor;
};

static void list_query_done(struct list_query *q)
{
	buf_done(&q->metadata);
}
#define cleanup_list_query __attribute__((__cleanup__(list_query_done)))

void handle_get(struct api_request *r)
{
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	sandbox_detail(&o, s, r->api->config.options);
	api_answer(r, 200, &body);
}

static int parse_metadata(struct str value, struct list_query *q, struct error *err)
{
	return decode_metadata_filter(value, &q->metadata, err);
}

static int parse_state(struct str value, struct list_query *q, struct error *err)
{
	struct str rest = value, word;
	do {
		if (!str_cut(rest, ',', &word, &rest)) {
			word = rest;
			rest.n = 0;
		}
		if (str_is(word, "running"))
			q->running = true;
		else if (str_is(word, "paused"))
			q->paused = true;
		else
			return error_set(err, -EINVAL, 400, "state must list running or paused, not \"%.*s\"", (int)MIN(word.n, (size_t)32), word.p);
	} while (rest.n);
	return 0;
}

static int parse_started_after(struct str value, struct list_query *q, struct error *err)
{
	q->has_started_after = true;
	return rfc3339_parse(value, &q->started_after) < 0 ? error_set(err, -EINVAL, 400, "startedAfter must be an RFC 3339 time") : 0;
}

static int parse_template(struct str value, struct list_query *q, struct error *err)
{
	struct template_reference reference;
	int r = decode_template_reference(value, &reference, err);
	if (r < 0)
		return r;
	if (str_chr(value, ':') >= 0)
		return error_set(err, -EINVAL, 400, "template: a reference without a tag is needed");
	memcpy(q->template_id, reference.name, sizeof(q->template_id));
	return 0;
}

static int parse_order(struct str value, struct list_query *q, struct error *err)
{
	q->ascending = str_is(value, "asc");
	return q->ascending || str_is(value, "desc") ? 0 : error_set(err, -EINVAL, 400, "order must be asc or desc");
}

static int parse_limit(struct str value, struct list_query *q, struct error *err)
{
	uint64_t n;
	if (str_to_u64(value, &n) < 0 || n < 1 || n > PAGE_MAX)
		return error_set(err, -EINVAL, 400, "limit must be between 1 and %d", PAGE_MAX);
	q->limit = (size_t)n;
	return 0;
}

static int parse_next_token(struct str value, struct list_query *q, struct error *err)
{
	q->has_cursor = value.n > 0;
	return value.n ? cursor_decode(value, &q->cursor, err) : 0;
}

static const struct list_param {
	const char *name;
	int (*parse)(struct str value, struct list_query *q, struct error *err);
	bool v1; /* known to the old route too */
	bool repeats;
} list_params[] = {
	{"metadata", parse_metadata, true, true},
	{"state", parse_state, false, true},
	{"startedAfter", parse_started_after, false, false},
	{"template", parse_template, false, false},
	{"order", parse_order, false, false},
	{"limit", parse_limit, false, false},
	{"nextToken", parse_next_token, false, false},
};

struct list_reading {
	struct list_query *query;
	bool v2;
	unsigned seen;
};

static int parse_pair(struct str name, struct str value, void *arg, struct error *err)
{
	struct list_reading *l = arg;
	for (size_t i = 0; i < ARRAY_SIZE(list_params); i++) {
		const struct list_param *p = &list_params[i];
		if (!str_is(name, p->name) || !(l->v2 || p->v1))
			continue;
		if ((l->seen >> i & 1) && !p->repeats)
			return error_set(err, -EINVAL, 400, "%s is given twice", p->name);
		l->seen |= 1u << i;
		return p->parse(value, l->query, err);
	}
	return 0; /* unknown parameters are newer clients' */
}

static int parse_list_query(struct str query, bool v2, struct list_query *q, struct error *err)
{
	*q = (struct list_query){.limit = PAGE_MAX};
	struct list_reading reading = {.query = q, .v2 = v2};
	int r = decode_query(query, parse_pair, &reading, err);
	if (r < 0)
		return r;
	if (!v2)
		q->running = true;
	else if (!q->running && !q->paused)
		q->running = q->paused = true;
	if (q->has_cursor && q->cursor.ascending != q->ascending)
		return error_set(err, -EINVAL, 400, "Invalid next token");
	return 0;
}

/* The filters but the page. */
static bool wanted(const struct index_sandbox *s, const struct list_query *q, struct str team)
{
	if (!(q->running && index_is_running(s)) && !(q->paused && index_is_paused(s)))
		return false;
	if (q->has_started_after && s->started_at / NS_PER_US < q->started_after / NS_PER_US)
		return false;
	if (q->template_id[0] && !str_is(s->template_id, q->template_id) && !str_is(s->origin, q->template_id))
		return false;
	return str_eq(s->team, team) && metadata_matches(s->metadata, (struct msg_map){buf_str(&q->metadata)});
}

/* The i-th entry in the order of the list. */
static const struct index_sandbox *at(const struct sandbox_index *ix, size_t i, bool ascending)
{
	return index_at(ix, ascending ? i : index_count(ix) - 1 - i);
}

/* First position in the list's order that is behind the cursor. */
static size_t first_after(const struct sandbox_index *ix, const struct list_query *q)
{
	if (!q->has_cursor)
		return 0;
	struct str id = str_of(q->cursor.id);
	size_t p = index_position(ix, q->cursor.at, id);
	if (!q->ascending)
		return index_count(ix) - p;
	bool same = p < index_count(ix) && index_at(ix, p)->started_at == q->cursor.at && str_eq(index_at(ix, p)->id, id);
	return p + same;
}

static void add_next_token(struct api_request *r, const struct index_sandbox *last, bool ascending)
{
	struct cursor c = {.at = last->started_at, .ascending = ascending};
	snprintf(c.id, sizeof(c.id), "%.*s", STR_FMT(last->id));
	cleanup_buf struct buf token = BUF_INIT;
	if (cursor_encode(&c, &token) < 0 || http_add_header(&r->headers, "X-Next-Token", buf_str(&token)) < 0)
		r->headers.failed = true;
}

static void list(struct api_request *r, struct list_query *q, bool pages)
{
	const struct sandbox_index *ix = r->api->config.index;
	const struct index_sandbox *last = NULL;
	size_t running = 0, given = 0, start = first_after(ix, q), limit = pages ? q->limit : SIZE_MAX;
	bool more = false;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < index_count(ix); i++) {
		const struct index_sandbox *s = at(ix, i, q->ascending);
		if (!wanted(s, q, r->team))
			continue;
		running += index_is_running(s);
		if (i < start)
			continue;
		if (given == limit) {
			more = true;
			continue;
		}
		sandbox_listed(&o, s);
		last = s;
		given++;
	}
	out_close(&o, ']');
	if (more)
		add_next_token(r, last, q->ascending);
	if (pages && q->running)
		buf_addf(&r->headers, "X-Total-Running: %zu\r\n", running);
	api_answer(r, 200, &body);
}

static void handle(struct api_request *r, bool v2)
{
	cleanup_list_query struct list_query q;
	struct error err = {0};
	if (parse_list_query(r->http->head->query, v2, &q, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	if (!api_index_ready(r))
		return;
	/* A name means its template or snapshot now; a reference to none stays as it is and matches nothing, or sandboxes of a template that is gone. */
	struct template_reference reference = {0};
	memcpy(reference.name, q.template_id, sizeof(reference.name));
	struct source found = source_find(r->api->config.index, r->team, &reference);
	if (found.template || found.snapshot)
		snprintf(q.template_id, sizeof(q.template_id), "%.*s", STR_FMT(found.template ? found.template->id : found.snapshot->id));
	list(r, &q, v2);
}

void handle_list(struct api_request *r)
{
	handle(r, false);
}

void handle_list_v2(struct api_request *r)
{
	handle(r, true);
}
