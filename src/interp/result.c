#include "interp/result.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <stdio.h>

static const struct {
	const char *mime, *key;
	bool any; /* any JSON value; else a string */
} types[] = {
	{"text/html", "html"},
	{"text/markdown", "markdown"},
	{"image/svg+xml", "svg"},
	{"image/png", "png"},
	{"image/jpeg", "jpeg"},
	{"application/pdf", "pdf"},
	{"text/latex", "latex"},
	{"application/json", "json", true},
	{"application/javascript", "javascript"},
	{"e2b/data", "data", true},
	{"e2b/chart", "chart", true},
};

static void add_text(struct event *e, const char *text)
{
	event_add(e, PART_TEXT, str_of(text));
}

/* The rest of a line that has a time. */
static void add_time(struct event *e)
{
	char now[RFC3339_SIZE];
	buf_addf(&e->owned, "\", \"timestamp\": \"%s\"}\n", rfc3339_format(now, clock_realtime()));
	e->failed |= e->owned.failed;
	event_add(e, PART_TEXT, buf_str(&e->owned));
}

void result_stream(struct event *e, struct str content)
{
	struct str text = jsontext_get(content, "text");
	if (!jsontext_inner(text).n)
		return;
	bool err = str_is(jsontext_inner(jsontext_get(content, "name")), "stderr");
	add_text(e, err ? "{\"type\": \"stderr\", \"text\": \"" : "{\"type\": \"stdout\", \"text\": \"");
	event_add(e, PART_INNER, jsontext_inner(text));
	add_time(e);
}

void result_count(struct event *e, struct str content)
{
	struct str count = jsontext_get(content, "execution_count");
	int64_t value;
	if (jsontext_int(count, &value) < 0)
		return;
	add_text(e, "{\"type\": \"number_of_executions\", \"execution_count\": ");
	event_add(e, PART_JSON, count);
	add_text(e, "}\n");
}

struct str result_unquote(struct str inner)
{
	static const struct str quotes[] = {{"'", 1}, {"\\\"", 2}};
	for (size_t i = 0; i < ARRAY_SIZE(quotes); i++) {
		struct str q = quotes[i];
		if (inner.n >= 2 * q.n && str_starts(inner, q) && str_eq(str_from(inner, inner.n - q.n), q))
			return str_n(inner.p + q.n, inner.n - 2 * q.n);
	}
	return inner;
}

static void add_member(struct event *e, const char *key, struct str value)
{
	add_text(e, ", \"");
	add_text(e, key);
	add_text(e, "\": ");
	event_add(e, PART_JSON, value);
}

/* The index of a type that has a key of its own, and a value as it must be; -1 else. */
static int type_of(struct str mime, struct str value)
{
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (str_is(mime, types[i].mime) && (types[i].any || jsontext_is_string(value)))
			return (int)i;
	return -1;
}

static bool is_text(struct str mime, struct str value)
{
	return str_is(mime, "text/plain") && jsontext_is_string(value);
}

/* Types without a key of their own. */
static void add_extra(struct event *e, struct str data)
{
	struct str key, value;
	bool any = false;
	while (jsontext_next(&data, &key, &value)) {
		struct str mime = jsontext_inner(key);
		if (is_text(mime, value) || type_of(mime, value) >= 0 || str_is(value, "null"))
			continue;
		add_text(e, any ? ", " : ", \"extra\": {");
		event_add(e, PART_JSON, key);
		add_text(e, ": ");
		event_add(e, PART_JSON, value);
		any = true;
	}
	if (any)
		add_text(e, "}");
}

void result_data(struct event *e, struct str content, bool is_main)
{
	struct str data = jsontext_get(content, "data"), rest = data, key, value;
	if (!jsontext_next(&rest, &key, &value))
		return;
	add_text(e, is_main ? "{\"type\": \"result\", \"is_main_result\": true"
			    : "{\"type\": \"result\", \"is_main_result\": false");
	for (rest = data; jsontext_next(&rest, &key, &value);) {
		struct str mime = jsontext_inner(key);
		int type = type_of(mime, value);
		if (is_text(mime, value)) {
			add_text(e, ", \"text\": \"");
			event_add(e, PART_INNER, result_unquote(jsontext_inner(value)));
			add_text(e, "\"");
		} else if (type >= 0 && !str_is(value, "null")) {
			add_member(e, types[type].key, value);
		}
	}
	add_extra(e, data);
	add_text(e, "}\n");
}

static void add_string(struct event *e, struct str value)
{
	if (jsontext_is_string(value))
		event_add(e, PART_INNER, jsontext_inner(value));
}

void result_error(struct event *e, struct str content)
{
	add_text(e, "{\"type\": \"error\", \"name\": \"");
	add_string(e, jsontext_get(content, "ename"));
	add_text(e, "\", \"value\": \"");
	add_string(e, jsontext_get(content, "evalue"));
	add_text(e, "\", \"traceback\": \"");
	struct str lines = jsontext_get(content, "traceback"), line;
	add_string(e, lines); /* some kernels send one string */
	for (bool first = true; jsontext_next(&lines, NULL, &line); first = false) {
		if (!first)
			add_text(e, "\\n");
		add_string(e, line);
	}
	add_text(e, "\"}\n");
}
