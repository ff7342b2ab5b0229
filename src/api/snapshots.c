#include "api/handlers.h"
#include "api/request.h"
#include "api/sandbox_json.h"
#include "api/sources.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Forks, snapshots and going back to one: the file system is copied, the memory is not, and each answer says so. */

enum { FORKS_MAX = 100, PAGE_MAX = 100 };

/* `memory: true` of a body asks for what namespaces cannot give. 0 or -EOPNOTSUPP with *err. */
static int refuse_memory(const json_t *body, const char *what, struct error *err)
{
	bool memory = false;
	int e = field_bool(body, "memory", NULL, &memory, err);
	if (e >= 0 && memory)
		e = error_set(err, -EOPNOTSUPP, 400,
			"memory: true is not possible here: a %s carries the file system, not the memory, of a sandbox in namespaces", what);
	return e < 0 ? e : 0;
}

/* Forks */

static void add_fork(struct out *o, const struct api *api, struct str id, struct str status, struct str message)
{
	const struct index_sandbox *s = index_find(api->config.index, id);
	uint64_t code;
	out_open(o, NULL, '{');
	if (s) {
		sandbox_access(o, "sandbox", s, api->config.options);
	} else {
		if (str_to_u64(status, &code) < 0 || code < 400 || code > 599)
			code = 500;
		out_open(o, "error", '{');
		out_int(o, "code", (int64_t)code);
		out_str(o, "message", id.n ? STR("the fork ended as soon as it was made") : message);
		out_close(o, '}');
	}
	out_close(o, '}');
}

static void forked(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err) {
		api_fail_call(r, a->err);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = a->body->forked.results.raw, item;
	out_open(&o, NULL, '[');
	while (msg_list_next(&rest, &item)) {
		struct str id = STR(""), status = STR(""), message = STR("");
		msg_list_next(&item, &id);
		msg_list_next(&item, &status);
		msg_list_next(&item, &message);
		add_fork(&o, r->api, id, status, message);
	}
	out_close(&o, ']');
	api_answer(r, 201, &body);
}

void handle_fork(struct api_request *r)
{
	struct error err = {0};
	int64_t seconds, count = 1;
	int e = decode_timeout(r->body, TIMEOUT_OF_CREATE, r->api->config.options, &seconds, &err);
	if (e >= 0)
		e = field_int(r->body, "count", NULL, &count, &err);
	if (e >= 0 && (count < 1 || count > FORKS_MAX))
		e = error_set(&err, -EINVAL, 400, "count must be between 1 and %d", FORKS_MAX);
	if (e >= 0)
		e = refuse_memory(r->body, "fork", &err);
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	if (index_is_paused(s)) {
		api_failf(r, 409, "Sandbox '%s' cannot be forked while it is paused", r->sandbox);
		return;
	}
	struct quota_lease *lease;
	if (quota_take(r->api->quota, r->team, (unsigned)count, s->memory_mb, &lease, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_fork m = {.sandbox = str_of(r->sandbox), .count = (uint64_t)count, .timeout = seconds};
	msg_set(&m, fork, request, str_of(r->id));
	api_wait(r, quota_hold(lease, node_fork(r->api->config.node, &m, forked, r, &err)), &err);
}

/* Snapshots */

static void add_snapshot(struct out *o, const struct index_snapshot *s)
{
	out_open(o, NULL, '{');
	out_str(o, "snapshotID", s->id);
	out_open(o, "names", '[');
	if (s->name.n)
		out_str(o, NULL, s->name);
	out_close(o, ']');
	out_str(o, "status", STR("READY"));
	out_str(o, "originSandboxID", s->sandbox);
	out_time(o, "createdAt", s->created_at);
	out_time(o, "updatedAt", s->created_at);
	out_int(o, "size", (int64_t)s->size);
	out_bool(o, "memory", false);
	out_close(o, '}');
}

static void snapshot_made(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err) {
		api_fail_call(r, a->err);
		return;
	}
	const struct index_snapshot *s = index_snapshot_find(r->api->config.index, a->body->snapshot.id);
	if (!s) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	add_snapshot(&o, s);
	api_answer(r, 201, &body);
}

/* "snap-" and 20 of [a-z0-9]: a name like that could be taken for an id. */
static bool looks_like_id(const char *name)
{
	return strlen(name) == 25 && !strncmp(name, "snap-", 5);
}

/* The name of a body in its normal form; empty = none. */
static int parse_name(const json_t *body, char name[2 * TEMPLATE_REFERENCE_MAX + 2], struct error *err)
{
	struct template_reference reference;
	struct str text;
	name[0] = 0;
	int e = field_str(body, "name", NULL, &text, err);
	if (e <= 0)
		return e;
	e = decode_template_reference(text, &reference, err);
	if (e < 0)
		return error_set(err, -EINVAL, 400, "name: Invalid template reference: %.*s", (int)MIN(text.n, (size_t)TEMPLATE_REFERENCE_MAX), text.p);
	if (looks_like_id(reference.name))
		return error_set(err, -EINVAL, 400, "name: %s has the form of a snapshot's id", reference.name);
	snprintf(name, 2 * TEMPLATE_REFERENCE_MAX + 2, "%s%s%s", reference.name, reference.tag[0] ? ":" : "", reference.tag);
	return 0;
}

void handle_snapshot(struct api_request *r)
{
	char name[2 * TEMPLATE_REFERENCE_MAX + 2];
	struct error err = {0};
	if (parse_name(r->body, name, &err) < 0 || refuse_memory(r->body, "snapshot", &err) < 0) {
		api_fail(r, &err);
		return;
	}
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	if (s->state == SANDBOX_PAUSED) {
		api_sandbox_not_found(r);
		return;
	}
	struct msg_make_snapshot m = {.sandbox = str_of(r->sandbox)};
	if (name[0])
		msg_set(&m, make_snapshot, name, str_of(name));
	msg_set(&m, make_snapshot, request, str_of(r->id));
	api_wait(r, node_snapshot(r->api->config.node, &m, snapshot_made, r, &err), &err);
}

struct snapshot_query {
	struct str sandbox;              /* empty = of any */
	char sandbox_id[33];
	bool has_name;
	struct template_reference name;
	size_t limit;
	bool has_cursor;
	struct cursor cursor;
};

static int parse_query(struct str name, struct str value, void *arg, struct error *err)
{
	struct snapshot_query *q = arg;
	struct str id;
	uint64_t n;
	int e = 0;
	if (str_is(name, "sandboxID")) {
		e = decode_sandbox_id(value, &id, err);
		if (e == 0) {
			/* An id that is longer than any names no sandbox. */
			snprintf(q->sandbox_id, sizeof(q->sandbox_id), "%.*s", STR_FMT(id));
			q->sandbox = str_of(q->sandbox_id);
		}
	} else if (str_is(name, "name")) {
		e = decode_template_reference(value, &q->name, err);
		q->has_name = true;
	} else if (str_is(name, "limit")) {
		if (str_to_u64(value, &n) < 0 || n < 1 || n > PAGE_MAX)
			return error_set(err, -EINVAL, 400, "limit must be between 1 and %d", PAGE_MAX);
		q->limit = (size_t)n;
	} else if (str_is(name, "nextToken") && value.n) {
		e = cursor_decode(value, &q->cursor, err);
		if (e == 0 && q->cursor.ascending)
			return error_set(err, -EINVAL, 400, "Invalid next token");
		q->has_cursor = true;
	}
	return e;
}

/* A name without a tag means all its tags. */
static bool has_name(const struct index_snapshot *s, const struct template_reference *wanted)
{
	struct str name = s->name, tag = STR("");
	str_cut(s->name, ':', &name, &tag);
	return str_is(name, wanted->name) && (!wanted->tag[0] || str_is(tag, wanted->tag));
}

static void list(struct api_request *r, const struct snapshot_query *q)
{
	const struct sandbox_index *ix = r->api->config.index;
	const struct index_snapshot *last = NULL;
	size_t given = 0, i = q->has_cursor ? index_snapshot_position(ix, q->cursor.at, str_of(q->cursor.id)) : index_snapshot_count(ix);
	cleanup_buf struct buf body = BUF_INIT, token = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	while (i-- > 0) {
		const struct index_snapshot *s = index_snapshot_at(ix, i);
		if (!str_eq(s->team, r->team) || (q->sandbox.n && !str_eq(s->sandbox, q->sandbox)) || (q->has_name && !has_name(s, &q->name)))
			continue;
		if (given++ == q->limit) {
			struct cursor c = {.at = last->created_at};
			snprintf(c.id, sizeof(c.id), "%.*s", STR_FMT(last->id));
			if (cursor_encode(&c, &token) < 0 || http_add_header(&r->headers, "X-Next-Token", buf_str(&token)) < 0)
				r->headers.failed = true;
			break;
		}
		add_snapshot(&o, s);
		last = s;
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

void handle_snapshots(struct api_request *r)
{
	struct snapshot_query q = {.limit = PAGE_MAX};
	if (api_query(r, parse_query, &q) && api_index_ready(r))
		list(r, &q);
}

/* Which snapshot a request names, kept until the node has answered. */
struct named {
	struct template_reference reference;
	char snapshot[33];
};

/* The team's snapshot that a reference means; it is kept in r->work. NULL = answered. */
static struct named *name_snapshot(struct api_request *r, struct str text)
{
	struct error err = {0};
	struct named *n = r->work = calloc(1, sizeof(*n));
	if (!n)
		error_set(&err, -ENOMEM, 503, "the server is out of memory");
	if (!n || decode_template_reference(text, &n->reference, &err) < 0) {
		api_fail(r, &err);
		return NULL;
	}
	if (!api_index_ready(r))
		return NULL;
	const struct index_snapshot *s = source_snapshot(r->api->config.index, r->team, &n->reference);
	if (!s) {
		source_not_found(r, &n->reference);
		return NULL;
	}
	snprintf(n->snapshot, sizeof(n->snapshot), "%.*s", STR_FMT(s->id));
	return n;
}

static void deleted(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct named *n = r->work;
	r->call = NULL;
	if (!a->err)
		api_answer_empty(r);
	else if (a->err->status == 404)
		source_not_found(r, &n->reference);
	else
		api_fail(r, a->err);
}

void handle_snapshot_delete(struct api_request *r)
{
	struct error err = {0};
	const struct named *n = name_snapshot(r, r->match.params[0]);
	if (!n)
		return;
	buf_addf(&r->headers, "x-operation-id: %s\r\n", r->id); /* cube.md B.2 */
	struct msg_delete_snapshot m = {.snapshot = str_of(n->snapshot)};
	msg_set(&m, delete_snapshot, request, str_of(r->id));
	api_wait(r, node_delete_snapshot(r->api->config.node, &m, deleted, r, &err), &err);
}

/* Going back */

static void rolled_back(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct named *n = r->work;
	r->call = NULL;
	if (a->err) {
		/* Of the two that the node may not know any more, the snapshot is looked up here. */
		if (a->err->status == 404 && !index_snapshot_find(r->api->config.index, str_of(n->snapshot)))
			source_not_found(r, &n->reference);
		else
			api_fail_call(r, a->err);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_str(&o, "sandboxID", str_of(r->sandbox));
	out_str(&o, "snapshotID", str_of(n->snapshot));
	out_str(&o, "operationID", str_of(r->id));
	out_str(&o, "status", STR("READY"));
	out_bool(&o, "memory", false);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

void handle_rollback(struct api_request *r)
{
	if (!api_sandbox(r, false))
		return;
	struct error err = {0};
	struct str text;
	int e = field_str(r->body, "snapshotID", NULL, &text, &err);
	if (e == 0)
		e = error_set(&err, -EINVAL, 400, "snapshotID is missing");
	if (e < 0 || refuse_memory(r->body, "snapshot", &err) < 0) {
		api_fail(r, &err);
		return;
	}
	const struct named *n = name_snapshot(r, text);
	if (!n)
		return;
	struct msg_rollback m = {.sandbox = str_of(r->sandbox), .snapshot = str_of(n->snapshot)};
	msg_set(&m, rollback, request, str_of(r->id));
	api_wait(r, node_rollback(r->api->config.node, &m, rolled_back, r, &err), &err);
}
