#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "node/journal.h"

#include <errno.h>
#include <stdio.h>

enum {
	ENTRIES_MAX = 1000,      /* in one answer */
	PAGES_MAX = 16,
	TEXT_MAX = 512 * 1024,   /* of all pages: more than an honest init keeps (guest/logs.h) */
	LINE_MAX = 56 * 1024,
};

/* A request for logs and what was read for it. One block of memory, which the kernel gives as it is written. */
struct log_work {
	bool v2, backward, has_cursor;
	int64_t start;        /* ns, v1: entries of then or later */
	int64_t cursor;       /* ns, v2 */
	int64_t limit;
	enum log_level level; /* this or worse */
	char search[256];
	unsigned pages;
	size_t n;
	char text[TEXT_MAX];
};

/* One entry, views into `json`. */
struct log_entry {
	json_t *json;
	int64_t time;
	enum log_level level;
	struct str level_name, logger, message;
	const json_t *fields;
};

static int parse_ms(const char *name, struct str value, int64_t *ret, struct error *err)
{
	int64_t ms;
	if (str_to_i64(value, &ms) < 0 || ms < 0 || ms > INT64_MAX / NS_PER_MS)
		return error_set(err, -EINVAL, 400, "%s must be a time in milliseconds", name);
	*ret = ms * NS_PER_MS;
	return 0;
}

/* e2b.md A.5.4: start and limit of the old route; cursor, limit, direction, level and search of the new one. */
static int parse_pair(struct str name, struct str value, void *arg, struct error *err)
{
	struct log_work *w = arg;
	if (str_is(name, "limit")) {
		if (str_to_i64(value, &w->limit) < 0 || w->limit < 1 || w->limit > ENTRIES_MAX)
			return error_set(err, -EINVAL, 400, "limit must be between 1 and %d", ENTRIES_MAX);
	} else if (!w->v2 && str_is(name, "start")) {
		return parse_ms("start", value, &w->start, err);
	} else if (w->v2 && str_is(name, "cursor")) {
		w->has_cursor = true;
		return parse_ms("cursor", value, &w->cursor, err);
	} else if (w->v2 && str_is(name, "direction")) {
		w->backward = str_is(value, "backward");
		if (!w->backward && !str_is(value, "forward"))
			return error_set(err, -EINVAL, 400, "direction must be forward or backward");
	} else if (w->v2 && str_is(name, "level")) {
		if (log_level_parse(value, &w->level) < 0)
			return error_set(err, -EINVAL, 400, "level must be debug, info, warn or error");
	} else if (w->v2 && str_is(name, "search")) {
		if (value.n >= sizeof(w->search))
			return error_set(err, -EINVAL, 400, "search must be shorter than %zu bytes", sizeof(w->search));
		memcpy(w->search, value.p, value.n);
	}
	return 0;
}

/* A line of node's (node/journal.h), not parsed yet. */
struct log_line {
	int64_t time;
	struct str json;
	bool own; /* node's, else init's */
};

/* What init says is not trusted: false for what is not as guest/logs.h writes it, or pretends to be node's own. */
static bool read_entry(const struct log_line *line, struct log_entry *ret)
{
	json_t *j = ret->json = json_parse(line->json, LINE_MAX, "log", NULL);
	const json_t *fields = json_object_get(j, "fields"), *value;
	const char *key;
	ret->time = line->time;
	ret->level_name = json_str(json_object_get(j, "level"));
	ret->logger = json_str(json_object_get(j, "logger"));
	ret->message = json_str(json_object_get(j, "message"));
	ret->fields = fields;
	if (line->own != str_is(ret->logger, JOURNAL_LOGGER))
		return false;
	if (ret->time < 0 || log_level_parse(ret->level_name, &ret->level) < 0 || !ret->logger.n || ret->logger.n > 64 || !json_is_object(fields) || json_object_size(fields) > 16)
		return false;
	json_object_foreach((json_t *)fields, key, value)
		if (!json_is_string(value))
			return false;
	return true;
}

static bool contains(struct str text, const char *part)
{
	return memmem(text.p, text.n, part, strlen(part)) != NULL;
}

static bool wanted(const struct log_work *w, const struct log_entry *e)
{
	if (e->time < w->start || e->level < w->level || (w->has_cursor && (w->backward ? e->time > w->cursor : e->time < w->cursor)))
		return false;
	bool found = !w->search[0] || contains(e->message, w->search);
	const char *key;
	const json_t *value;
	json_object_foreach((json_t *)e->fields, key, value)
		found = found || contains(json_str(value), w->search);
	return found;
}

static void out_fields(struct out *o, const struct log_entry *e)
{
	const char *key;
	const json_t *value;
	json_object_foreach((json_t *)e->fields, key, value)
		out_pair(o, str_of(key), json_str(value));
}

/* {timestamp, message, level, fields} */
static void out_entry(struct out *o, const struct log_entry *e)
{
	out_open(o, NULL, '{');
	out_time(o, "timestamp", e->time);
	out_str(o, "message", e->message);
	out_str(o, "level", e->level_name);
	out_open(o, "fields", '{');
	out_str(o, "logger", e->logger);
	out_fields(o, e);
	out_close(o, '}');
	out_close(o, '}');
}

/* {timestamp, line}: clients parse the line as JSON, too. */
static void out_line(struct out *o, const struct log_entry *e)
{
	cleanup_buf struct buf text = BUF_INIT;
	struct out line = {.to = &text};
	out_open(&line, NULL, '{');
	out_str(&line, "level", e->level_name);
	out_str(&line, "logger", e->logger);
	out_str(&line, "message", e->message);
	out_fields(&line, e);
	out_close(&line, '}');
	out_open(o, NULL, '{');
	out_time(o, "timestamp", e->time);
	out_str(o, "line", buf_str(&text));
	out_close(o, '}');
}

static int by_time(const void *a, const void *b)
{
	const struct log_line *x = a, *y = b;
	/* Of one time: as they came, which is where they lie. */
	return x->time != y->time ? (x->time < y->time ? -1 : 1) : x->json.p < y->json.p ? -1 : 1;
}

/* All lines, by their times: node's and init's come in the order in which node heard of them. NULL without memory. */
static struct log_line *sort_lines(const struct log_work *w, size_t *ret_n)
{
	struct str all = str_n(w->text, w->n), line, time;
	size_t n = 0, most = 1;
	for (size_t i = 0; i < w->n; i++)
		most += w->text[i] == '\n';
	struct log_line *lines = calloc(most, sizeof(*lines));
	while (lines && str_cut(all, '\n', &line, &all)) {
		struct log_line *l = &lines[n];
		l->own = str_starts(line, STR("+"));
		if ((l->own || str_starts(line, STR("-"))) && str_cut(str_from(line, 1), ' ', &time, &l->json) && str_to_i64(time, &l->time) == 0)
			n++;
	}
	if (n)
		qsort(lines, n, sizeof(*lines), by_time);
	*ret_n = n;
	return lines;
}

/* The entries that are asked for, in the order of the answer. Returns how many. */
static size_t choose(const struct log_work *w, const struct log_line *lines, size_t n_lines, struct log_entry *chosen)
{
	size_t n = 0, limit = (size_t)w->limit;
	for (size_t i = 0; i < n_lines && n < limit; i++) {
		struct log_entry e;
		if (read_entry(&lines[w->backward ? n_lines - 1 - i : i], &e) && wanted(w, &e))
			chosen[n++] = e;
		else
			json_decref(e.json);
	}
	return n;
}

static void answer(struct api_request *r)
{
	const struct log_work *w = r->work;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	cleanup_free struct log_entry *chosen = calloc((size_t)w->limit, sizeof(*chosen));
	size_t n_lines = 0;
	cleanup_free struct log_line *lines = sort_lines(w, &n_lines);
	if (!chosen || !lines) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	size_t n = choose(w, lines, n_lines, chosen);
	out_open(&o, NULL, '{');
	out_open(&o, "logs", '[');
	for (size_t i = 0; i < n; i++)
		(w->v2 ? out_entry : out_line)(&o, &chosen[i]);
	out_close(&o, ']');
	if (!w->v2) {
		out_open(&o, "logEntries", '[');
		for (size_t i = 0; i < n; i++)
			out_entry(&o, &chosen[i]);
		out_close(&o, ']');
	}
	out_close(&o, '}');
	for (size_t i = 0; i < n; i++)
		json_decref(chosen[i].json);
	api_answer(r, 200, &body);
}

static void page_read(const struct node_answer *a, void *arg);

static void read_page(struct api_request *r, uint64_t after)
{
	struct log_work *w = r->work;
	struct error err = {0};
	int64_t since = MAX(w->start, w->has_cursor && !w->backward ? w->cursor : 0);
	struct msg_logs m = {.sandbox = str_of(r->sandbox), .after = after, .since = since};
	w->pages++;
	api_wait(r, node_logs(r->api->config.node, &m, page_read, r, &err), &err);
}

static void page_read(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct log_work *w = r->work;
	r->call = NULL;
	if (a->err) {
		api_fail_call(r, a->err);
		return;
	}
	struct str page = a->body->log_page.entries;
	bool fits = page.n <= TEXT_MAX - w->n;
	if (fits) {
		memcpy(w->text + w->n, page.p, page.n);
		w->n += page.n;
	}
	if (fits && a->body->log_page.more && w->pages < PAGES_MAX)
		read_page(r, a->body->log_page.next);
	else
		answer(r);
}

/* The log outlives its sandbox, for as long as is known how that ended. False: answered. */
static bool may_read(struct api_request *r)
{
	struct error err = {0};
	struct str id;
	if (decode_sandbox_id(r->match.params[0], &id, &err) < 0 || !index_ready(r->api->config.index))
		return api_sandbox(r, false) != NULL;
	const struct index_end *end = index_end_of(r->api->config.index, id, clock_realtime());
	if (!end || !str_eq(end->team, r->team))
		return api_sandbox(r, false) != NULL;
	snprintf(r->sandbox, sizeof(r->sandbox), "%.*s", STR_FMT(id));
	return true;
}

static void logs(struct api_request *r, bool v2)
{
	/* Not cleared as a whole: its pages are touched when they are filled. */
	struct log_work *w = r->work = malloc(sizeof(*w));
	if (!w) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	memset(w, 0, offsetof(struct log_work, text));
	w->v2 = v2;
	w->backward = v2;
	w->limit = ENTRIES_MAX;
	if (api_query(r, parse_pair, w) && may_read(r))
		read_page(r, 0);
}

void handle_logs(struct api_request *r)
{
	logs(r, false);
}

void handle_logs_v2(struct api_request *r)
{
	logs(r, true);
}
