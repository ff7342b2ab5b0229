#include "api/handlers.h"
#include "api/template_builds.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* State and log of a build: to E2B's clients in E2B's words, to Cube's in Cube's, by whose call made it (cube.md B.2). */

enum {
	PAGE_MAX = 100,   /* entries in one answer (e2b.md A.6) */
	LINE_MAX = 65536, /* of an entry */
	PAGES_MAX = 64,   /* that one request for the log reads */
};

struct build_query {
	struct template_build b;
	uint64_t offset, limit;
	bool has_level, backward, has_cursor;
	enum log_level level;
	int64_t cursor; /* ns */
	/* the log so far */
	uint64_t given;
	unsigned pages;
	struct buf entries, lines;
	struct out entries_out, lines_out;
};

static void query_release(void *work)
{
	struct build_query *q = work;
	buf_done(&q->entries);
	buf_done(&q->lines);
}

static int parse_status(struct str name, struct str value, void *arg, struct error *err)
{
	struct build_query *q = arg;
	if (str_is(name, "logsOffset")) {
		if (str_to_u64(value, &q->offset) < 0)
			return error_set(err, -EINVAL, 400, "logsOffset must be a number");
	} else if (str_is(name, "limit")) {
		if (str_to_u64(value, &q->limit) < 0 || q->limit < 1 || q->limit > PAGE_MAX)
			return error_set(err, -EINVAL, 400, "limit must be between 1 and %d", PAGE_MAX);
	} else if (str_is(name, "level")) {
		if (log_level_parse(value, &q->level) < 0)
			return error_set(err, -EINVAL, 400, "level must be debug, info, warn or error");
		q->has_level = true;
	}
	return 0;
}

static int parse_log(struct str name, struct str value, void *arg, struct error *err)
{
	struct build_query *q = arg;
	int64_t ms;
	if (str_is(name, "cursor") && value.n) {
		if (str_to_i64(value, &ms) < 0 || ms < 0 || ms > INT64_MAX / NS_PER_MS)
			return error_set(err, -EINVAL, 400, "cursor must be a time in milliseconds");
		q->cursor = ms * NS_PER_MS;
		q->has_cursor = true;
	} else if (str_is(name, "direction")) {
		q->backward = str_is(value, "backward");
		if (!q->backward && !str_is(value, "forward"))
			return error_set(err, -EINVAL, 400, "direction must be forward or backward");
	} else if (str_is(name, "source")) {
		/* Where E2B keeps logs: not a question here. */
		if (!str_is(value, "temporary") && !str_is(value, "persistent"))
			return error_set(err, -EINVAL, 400, "source must be temporary or persistent");
	} else {
		return parse_status(name, value, arg, err);
	}
	return 0;
}

/* An entry of the node's, {timestamp, level, message, step}, written anew: as an object for E2B's clients, as a line for Cube's. */
static void add_entry(struct build_query *q, struct str line)
{
	cleanup_json json_t *j = json_parse(line, LINE_MAX, "log", NULL);
	struct str at = json_str(json_object_get(j, "timestamp")), level = json_str(json_object_get(j, "level"));
	struct str message = json_str(json_object_get(j, "message")), step = json_str(json_object_get(j, "step"));
	enum log_level known;
	int64_t time;
	if (rfc3339_parse(at, &time) < 0 || log_level_parse(level, &known) < 0)
		return;
	if (q->has_cursor && (q->backward ? time > q->cursor : time < q->cursor))
		return;
	struct out *o = &q->entries_out;
	out_open(o, NULL, '{');
	out_str(o, "timestamp", at);
	out_str(o, "message", message);
	out_str(o, "level", level);
	if (step.n)
		out_str(o, "step", step);
	out_close(o, '}');
	out_str(&q->lines_out, NULL, message);
	q->given++;
}

static void add_entries(struct build_query *q, struct str lines)
{
	struct str line;
	while (q->given < q->limit && str_cut(lines, '\n', &line, &lines))
		add_entry(q, line);
	if (q->given < q->limit && lines.n)
		add_entry(q, lines);
}

static bool is_cube(const struct msg_build_page *m)
{
	return str_is(m->kind, "cube");
}

static void add_head(struct out *o, const struct msg_build_page *m)
{
	out_str(o, "buildID", m->build);
	out_str(o, "templateID", m->template);
	out_str(o, "status", is_cube(m) ? build_status_of_cube(m->status) : m->status);
	out_str(o, "phase", m->phase);
	out_int(o, "progress", (int64_t)m->progress);
}

static void add_list(struct out *o, const char *key, const struct buf *items)
{
	out_open(o, key, '[');
	buf_add_str(o->to, buf_str(items));
	out_close(o, ']');
	o->to->failed |= items->failed;
}

static void add_reason(struct out *o, const struct msg_build_page *m)
{
	struct str reason = msg_has(m, build_page, reason) ? m->reason : STR("");
	if (is_cube(m)) {
		out_str(o, "message", reason.n ? reason : m->phase);
		out_str(o, "errorMessage", reason);
		out_time(o, "createdAt", m->created_at);
		if (msg_has(m, build_page, finished_at))
			out_time(o, "finishedAt", m->finished_at);
	} else if (str_is(m->status, "error")) {
		out_open(o, "reason", '{');
		out_str(o, "message", reason);
		if (msg_has(m, build_page, step))
			out_str(o, "step", m->step);
		out_open(o, "logEntries", '[');
		out_close(o, ']');
		out_close(o, '}');
	}
}

static void answer_status(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct build_query *q = r->work;
	r->call = NULL;
	if (a->err) {
		build_fail(r, str_of(q->b.template), str_of(q->b.build), a->err);
		return;
	}
	const struct msg_build_page *m = &a->body->build_page;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	add_entries(q, m->entries);
	out_open(&o, NULL, '{');
	add_head(&o, m);
	add_reason(&o, m);
	/* E2B's clients want the list of lines, but take none from it any more. */
	if (is_cube(m)) {
		add_list(&o, "logs", &q->lines);
	} else {
		out_open(&o, "logs", '[');
		out_close(&o, ']');
	}
	add_list(&o, "logEntries", &q->entries);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

static void ask(struct api_request *r, node_done_fn *done)
{
	const struct build_query *q = r->work;
	struct error err = {0};
	struct msg_build_status m = {.team = r->team, .build = str_of(q->b.build), .after = q->offset, .limit = done == answer_status ? q->limit : PAGE_MAX};
	msg_set(&m, build_status, template, str_of(q->b.template));
	if (q->has_level)
		msg_set(&m, build_status, level, (uint64_t)q->level);
	if (q->backward)
		msg_set(&m, build_status, backward, true);
	api_wait(r, node_build_status(r->api->config.node, &m, done, r, &err), &err);
}

static void answer_log(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct build_query *q = r->work;
	r->call = NULL;
	if (a->err) {
		build_fail(r, str_of(q->b.template), str_of(q->b.build), a->err);
		return;
	}
	const struct msg_build_page *m = &a->body->build_page;
	bool more = m->next > q->offset;
	add_entries(q, m->entries);
	q->offset = m->next;
	if (more && q->given < q->limit && ++q->pages < PAGES_MAX) {
		ask(r, answer_log);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	add_head(&o, m);
	add_list(&o, "logs", &q->entries);
	if (is_cube(m))
		add_list(&o, "lines", &q->lines);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

static void show(struct api_request *r, query_pair_fn *parse, node_done_fn *done)
{
	struct template_build b;
	if (!build_of_path(r, &b))
		return;
	struct build_query *q = r->work = calloc(1, sizeof(*q));
	if (!q) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	*q = (struct build_query){.b = b, .limit = PAGE_MAX, .entries_out.to = &q->entries, .lines_out.to = &q->lines};
	r->release = query_release;
	if (api_query(r, parse, q))
		ask(r, done);
}

void handle_build_status(struct api_request *r)
{
	show(r, parse_status, answer_status);
}

void handle_build_log(struct api_request *r)
{
	show(r, parse_log, answer_log);
}
