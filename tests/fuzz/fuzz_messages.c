#include "fuzz.h"

#include "io/messages.h"

static void walk(const struct msg_header *h, const union msg_any *m)
{
	const struct msg_type *t = msg_type(h->type);
	hold(t);
	for (size_t i = 0; i < t->n_fields; i++) {
		const struct msg_field *f = &t->fields[i];
		const void *at = (const char *)m + f->offset;
		struct str key, value;
		hold(!f->required || (m->present >> f->tag & 1));
		if (f->kind == MSG_STR)
			hold(((const struct str *)at)->n <= f->max);
		if (f->kind == MSG_MAP)
			for (struct str rest = ((const struct msg_map *)at)->raw; msg_map_next(&rest, &key, &value);)
				hold(inside(((const struct msg_map *)at)->raw, key) && inside(((const struct msg_map *)at)->raw, value));
		if (f->kind == MSG_LIST)
			for (struct str rest = ((const struct msg_list *)at)->raw; msg_list_next(&rest, &value);)
				hold(inside(((const struct msg_list *)at)->raw, value));
	}
}

void fuzz_one(struct str input)
{
	struct msg_header h, h2;
	union msg_any m, m2;
	struct error err = {0};
	int r = msg_decode(input, &h, &m, sizeof(m), &err);
	if (r < 0) {
		hold(err.code == r && err.message[0]);
		return;
	}
	walk(&h, &m);
	/* What was understood can be said again, and is then understood the same. */
	cleanup_buf struct buf once = BUF_INIT, twice = BUF_INIT;
	hold(msg_encode(h.type, &m, h.request, &once, &err) == 0);
	hold(msg_decode(buf_str(&once), &h2, &m2, sizeof(m2), &err) == 0);
	hold(h2.type == h.type && h2.request == h.request);
	hold(msg_encode(h2.type, &m2, h2.request, &twice, &err) == 0);
	hold(str_eq(buf_str(&once), buf_str(&twice)));
}
