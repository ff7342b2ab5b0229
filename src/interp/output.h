/*
 * The events of an execution (e2b.md C.2): one JSON object a line, in ASCII. A line is made while it is sent,
 * from views into the kernel's message, so a result of 100 MB is held once, as it came, and never as a
 * second, escaped copy.
 */
#ifndef CUBICLE_INTERP_OUTPUT_H
#define CUBICLE_INTERP_OUTPUT_H

#include "interp/channel.h"
#include "interp/jsontext.h"
#include "io/http_server.h"

enum event_part_kind {
	PART_TEXT,  /* is sent as it is: ASCII, never freed before the event */
	PART_JSON,  /* a raw JSON value */
	PART_INNER, /* what stands between the quotes of a raw JSON string */
};

/* One line that is being put together. Starts as EVENT_INIT. */
struct event {
	struct frames *frames; /* holds what the parts look at; NULL */
	struct buf owned;      /* likewise, text of our own: complete before a part looks at it */
	struct event_part {
		struct str s;
		enum event_part_kind kind;
	} * parts;
	size_t n, cap;
	bool failed; /* no memory */
};
#define EVENT_INIT ((struct event){0})

void event_add(struct event *e, enum event_part_kind kind, struct str s);
void event_done(struct event *e);
#define cleanup_event __attribute__((__cleanup__(event_done)))

/* {"type": "error", …} made here. */
void event_error(struct event *e, const char *name, const char *value);
/* {"type": "stderr", …} made here: a notice of the service in the user's own output. */
void event_notice(struct event *e, const char *text);

/* Sends events as the body of one answer. */
struct output {
	struct http_req *req; /* NULL: nobody is there (any more), events are dropped */
	struct event event;   /* being sent */
	size_t part;
	struct jsontext_cursor cursor; /* in it */
	bool full;                     /* the queue is over its mark: wait for writable */
	bool failed;                   /* no memory: the answer was cut */
};

/* Takes the event over (*e is empty afterwards) and sends what may be sent. Only when output_idle(). */
void output_put(struct output *o, struct event *e);
/* Sends a whole short line. Only when output_idle(). */
void output_line(struct output *o, const char *line);
/* Goes on: the queue has room again. */
void output_writable(struct output *o);
/* Drops what is not sent, and whoever it was for. */
void output_done(struct output *o);

static inline bool output_idle(const struct output *o)
{
	return !o->full && !o->event.n;
}

#endif
