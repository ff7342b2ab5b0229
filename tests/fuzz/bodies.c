#include "bodies.h"

static void check_line(struct str in, struct str s)
{
	hold(inside(in, s));
	for (size_t i = 0; i < s.n; i++)
		hold(s.p[i] != '\r' && s.p[i] != '\n' && s.p[i] != '\0');
}

void check_head(struct str in, const struct http_head *h)
{
	unsigned lengths = 0, codings = 0;
	hold(h->n_headers <= HTTP_MAX_HEADERS);
	for (size_t i = 0; i < h->n_headers; i++) {
		check_line(in, h->headers[i].name);
		check_line(in, h->headers[i].value);
		hold(h->headers[i].name.n > 0);
		hold(!memchr(h->headers[i].name.p, ' ', h->headers[i].name.n));
		lengths += str_eq_nocase(h->headers[i].name, STR("Content-Length"));
		codings += str_eq_nocase(h->headers[i].name, STR("Transfer-Encoding"));
	}
	hold(lengths + codings <= 1);
	hold(h->length <= INT64_MAX);
	hold(h->framing != HTTP_BODY_CHUNKED || codings == 1);
	hold(h->framing != HTTP_BODY_LENGTH || lengths == 1);
}

struct outcome {
	struct buf bytes, trailers;
	size_t consumed;
	bool refused, done;
};

/* Lines as forward_trailers() takes them for granted. */
static void check_trailers(struct str lines)
{
	struct str line;
	hold(lines.n <= 16 * 1024);
	while (str_cut(lines, '\n', &line, &lines)) {
		hold(line.n > 2 && line.p[line.n - 1] == '\r' && line.p[0] != ':' && memchr(line.p, ':', line.n));
		hold(!memchr(line.p, '\r', line.n - 1) && !memchr(line.p, '\0', line.n));
	}
	hold(lines.n == 0);
}

static struct outcome decode(struct str in, enum http_framing framing, uint64_t length, size_t step)
{
	struct outcome o = {0};
	struct http_body b;
	http_body_init(&b, framing, length);
	b.trailers = &o.trailers;
	while (o.consumed < in.n && !b.done && !o.refused) {
		struct str piece = str_n(in.p + o.consumed, MIN(step, in.n - o.consumed)), run;
		size_t n = piece.n;
		while (piece.n && !b.done && !o.refused) {
			size_t before = piece.n;
			o.refused = http_body_next(&b, &piece, &run) < 0;
			hold(o.refused || piece.n < before);
			hold(inside(in, run));
			buf_add_str(&o.bytes, run);
		}
		o.consumed += n - piece.n;
	}
	o.done = b.done;
	if (o.done)
		check_trailers(buf_str(&o.trailers));
	return o;
}

void check_body(struct str in, enum http_framing framing, uint64_t length)
{
	static const size_t steps[] = {1, 3, 7, 64};
	struct outcome whole = decode(in, framing, length, in.n ? in.n : 1);
	hold(framing != HTTP_BODY_LENGTH || buf_len(&whole.bytes) <= length);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		struct outcome o = decode(in, framing, length, steps[i]);
		hold(str_eq(buf_str(&o.bytes), buf_str(&whole.bytes)));
		hold(o.refused == whole.refused && o.done == whole.done);
		hold(o.refused || o.consumed == whole.consumed);
		hold(o.refused || str_eq(buf_str(&o.trailers), buf_str(&whole.trailers)));
		buf_done(&o.bytes);
		buf_done(&o.trailers);
	}
	buf_done(&whole.bytes);
	buf_done(&whole.trailers);
}
