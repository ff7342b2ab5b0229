/* The input's first line is the Content-Type, the rest the body. */
#include "fuzz.h"

#include "io/multipart.h"

/* Everything that callbacks were told, in order; `open` follows the order of the calls. */
struct record {
	struct buf log;
	bool open;
};

static int on_part(const struct multipart_part *p, void *arg)
{
	struct record *r = arg;
	hold(!r->open);
	r->open = true;
	buf_addf(&r->log, "<part %zu %zu %d>", p->name.n, p->filename.n, p->has_filename);
	buf_add_str(&r->log, p->name);
	return buf_add_str(&r->log, p->filename);
}

static int on_data(const char *p, size_t n, void *arg)
{
	struct record *r = arg;
	hold(r->open && n > 0);
	return buf_add(&r->log, p, n);
}

static int on_end(void *arg)
{
	struct record *r = arg;
	hold(r->open);
	r->open = false;
	return buf_add_c(&r->log, "<end>");
}

/* -1 = no boundary, else what feeding and finishing said. */
static int parse(struct str type, struct str body, size_t step, struct record *r)
{
	static const struct multipart_ops ops = {on_part, on_data, on_end};
	struct multipart *m = multipart_new(type, &ops, r);
	if (!m)
		return -1;
	int result = 0;
	for (size_t at = 0; at < body.n && result == 0; at += step)
		result = multipart_feed(m, body.p + at, MIN(step, body.n - at));
	if (result == 0)
		result = multipart_finish(m);
	hold(result != 0 || !r->open);
	multipart_free(m);
	return result;
}

void fuzz_one(struct str input)
{
	static const size_t steps[] = {1, 2, 5, 33};
	struct str type, body;
	if (!str_cut(input, '\n', &type, &body))
		return;
	struct record whole = {0};
	int result = parse(type, body, body.n ? body.n : 1, &whole);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		struct record r = {0};
		hold(parse(type, body, steps[i], &r) == result);
		hold(str_eq(buf_str(&r.log), buf_str(&whole.log)));
		buf_done(&r.log);
	}
	buf_done(&whole.log);
}
