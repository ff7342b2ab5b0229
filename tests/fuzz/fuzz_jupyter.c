/*
 * What a kernel sends: lines of the input are header, parent header and content of a message. Unsigned it is
 * refused; signed, every event that is made of it is one line of ASCII that is JSON again, however its pieces
 * were cut.
 */
#include "fuzz.h"

#include "interp/jsontext.h"
#include "interp/result.h"
#include "interp/wire.h"

#include <errno.h>

static const struct str key = {"key", 3};

static void append(struct buf *to, struct str s, bool in_string, size_t step)
{
	struct jsontext_cursor c = {s, in_string};
	while (c.rest.n)
		hold(jsontext_ascii(&c, to, step) == 0);
}

static void check_line(struct str line)
{
	struct str value, again;
	hold(line.n && line.p[line.n - 1] == '\n');
	for (size_t i = 0; i + 1 < line.n; i++)
		hold((unsigned char)line.p[i] >= 0x20 && (unsigned char)line.p[i] < 0x80);
	int r = jsontext_parse(str_n(line.p, line.n - 1), &value);
	hold(r == 0 || r == -E2BIG);
	if (r < 0)
		return;
	hold(jsontext_inner(jsontext_get(value, "type")).n);
	cleanup_buf struct buf same = BUF_INIT;
	append(&same, value, false, 1000);
	hold(jsontext_parse(buf_str(&same), &again) == 0);
}

/* One event, cut in different ways. */
static void check_event(const struct event *e)
{
	cleanup_buf struct buf whole = BUF_INIT;
	for (size_t step = SIZE_MAX; step; step = step == SIZE_MAX ? 7 : step / 2) {
		cleanup_buf struct buf b = BUF_INIT;
		for (size_t i = 0; i < e->n; i++) {
			if (e->parts[i].kind == PART_TEXT)
				buf_add_str(&b, e->parts[i].s);
			else
				append(&b, e->parts[i].s, e->parts[i].kind == PART_INNER, step);
		}
		if (step == SIZE_MAX)
			buf_add_str(&whole, buf_str(&b));
		hold(str_eq(buf_str(&b), buf_str(&whole)));
	}
	if (e->n)
		check_line(buf_str(&whole));
}

static void check_events(struct str content)
{
	for (int kind = 0; kind < 5; kind++) {
		cleanup_event struct event e = EVENT_INIT;
		if (kind == 0)
			result_stream(&e, content);
		else if (kind == 1)
			result_count(&e, content);
		else if (kind == 2)
			result_error(&e, content);
		else
			result_data(&e, content, kind == 4);
		check_event(&e);
	}
}

/* Every value in it, on all levels, can be looked at and decoded. */
static void walk(struct str value, int depth)
{
	struct str rest = value, k, v;
	cleanup_buf struct buf text = BUF_INIT;
	hold((jsontext_string(value, &text) == 0) == jsontext_is_string(value));
	hold(str_is_utf8(buf_str(&text)));
	if (depth > 20)
		return;
	bool object = value.n && value.p[0] == '{';
	while (jsontext_next(&rest, object ? &k : NULL, &v)) {
		hold(v.n && inside(value, v) && (!object || jsontext_is_string(k)));
		walk(v, depth + 1);
	}
}

void fuzz_one(struct str input)
{
	struct str lines[3] = {STR(""), STR(""), STR("")}, rest = input;
	for (int i = 0; i < 3 && rest.n; i++) {
		if (i < 2 && str_cut(rest, '\n', &lines[i], &rest))
			continue;
		lines[i] = rest;
		rest = STR("");
	}
	struct str frames[] = {STR("id"), STR("<IDS|MSG>"), STR(""), lines[0], lines[1], STR("{}"), lines[2]};
	struct wire_message m;
	int r = wire_parse(frames, ARRAY_SIZE(frames), key, &m);
	hold(r == -EBADMSG);
	char signature[WIRE_SIGNATURE_SIZE];
	hold(wire_sign(key, frames + 3, signature) == 0);
	frames[2] = str_of(signature);
	for (size_t n = 0; n < ARRAY_SIZE(frames); n++)
		hold(wire_parse(frames, n, key, &m) == -EPROTO);
	r = wire_parse(frames, ARRAY_SIZE(frames), key, &m);
	hold(r == 0 || r == -EPROTO);
	if (r == 0) {
		walk(m.content, 0);
		check_events(m.content);
	}
	struct str value;
	if (jsontext_parse(input, &value) == 0) {
		cleanup_buf struct buf b = BUF_INIT;
		walk(value, 0);
		append(&b, value, false, 5);
		hold(jsontext_parse(buf_str(&b), &value) == 0);
	}
}
