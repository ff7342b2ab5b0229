#include "interp/output.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

/* Bytes of a line made at once. */
enum { STEP = 32 * 1024 };

void event_add(struct event *e, enum event_part_kind kind, struct str s)
{
	if (e->n == e->cap) {
		size_t cap = e->cap ? 2 * e->cap : 16;
		struct event_part *parts = reallocarray(e->parts, cap, sizeof(*parts));
		if (!parts) {
			e->failed = true;
			return;
		}
		e->parts = parts;
		e->cap = cap;
	}
	e->parts[e->n++] = (struct event_part){s, kind};
}

void event_done(struct event *e)
{
	frames_unref(e->frames);
	buf_done(&e->owned);
	free(e->parts);
	*e = EVENT_INIT;
}

static void add_owned(struct event *e)
{
	e->failed |= e->owned.failed;
	event_add(e, PART_TEXT, buf_str(&e->owned));
}

void event_error(struct event *e, const char *name, const char *value)
{
	buf_addf(&e->owned, "{\"type\": \"error\", \"name\": \"%s\", \"value\": ", name);
	json_quote(&e->owned, str_of(value));
	buf_add_c(&e->owned, ", \"traceback\": \"\"}\n");
	add_owned(e);
}

void event_notice(struct event *e, const char *text)
{
	char now[RFC3339_SIZE];
	buf_add_c(&e->owned, "{\"type\": \"stderr\", \"text\": ");
	json_quote(&e->owned, str_of(text));
	buf_addf(&e->owned, ", \"timestamp\": \"%s\"}\n", rfc3339_format(now, clock_realtime()));
	add_owned(e);
}

static void fail(struct output *o)
{
	o->failed = true;
	http_abort(o->req);
	output_done(o);
}

static void queue(struct output *o, struct str s)
{
	o->full = http_send(o->req, s.p, s.n) > HTTP_HIGH_WATER;
}

static void begin_part(struct output *o)
{
	const struct event_part *p = &o->event.parts[o->part];
	o->cursor = (struct jsontext_cursor){p->s, p->kind == PART_INNER};
}

/* Appends the next bytes of the event, about STEP of them; at its end it is done with. */
static int make_piece(struct output *o, struct buf *b)
{
	while (o->event.n && buf_len(b) < STEP) {
		if (o->event.parts[o->part].kind == PART_TEXT) {
			buf_add_str(b, o->cursor.rest);
			o->cursor.rest = STR("");
		} else {
			jsontext_ascii(&o->cursor, b, STEP - buf_len(b));
		}
		if (b->failed)
			return -ENOMEM;
		if (o->cursor.rest.n)
			continue;
		if (++o->part == o->event.n)
			event_done(&o->event);
		else
			begin_part(o);
	}
	return 0;
}

static void pump(struct output *o)
{
	while (o->event.n && !o->full) {
		cleanup_buf struct buf b = BUF_INIT;
		if (make_piece(o, &b) < 0) {
			fail(o);
			return;
		}
		queue(o, buf_str(&b));
	}
}

void output_put(struct output *o, struct event *e)
{
	if (!o->req || !e->n) {
		event_done(e);
		return;
	}
	if (e->failed) {
		event_done(e);
		fail(o);
		return;
	}
	o->event = *e;
	*e = EVENT_INIT;
	o->part = 0;
	begin_part(o);
	pump(o);
}

void output_line(struct output *o, const char *line)
{
	if (o->req)
		queue(o, str_of(line));
}

void output_writable(struct output *o)
{
	o->full = false;
	pump(o);
}

void output_done(struct output *o)
{
	event_done(&o->event);
	o->req = NULL;
	o->full = false;
}
