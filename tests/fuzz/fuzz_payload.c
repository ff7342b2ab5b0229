/* A message whose long string is decoded on its way: the cuts must not matter, and the result must be what
 * parsing it whole gives. */
#include "fuzz.h"

#include "base/encode.h"
#include "guest/payload.h"
#include "io/json.h"

struct result {
	struct payload payload;
	struct buf text;
};

static void feed(struct result *r, struct str input, size_t step)
{
	while (input.n) {
		size_t n = MIN(step, input.n);
		hold(payload_feed(&r->payload, input.p, n, &r->text) == 0);
		input = str_from(input, n);
	}
}

static void done(struct result *r)
{
	payload_done(&r->payload);
	buf_done(&r->text);
}

/* The one long string of a valid message, as parsed. */
static const json_t *find_long(const json_t *j)
{
	const char *key;
	json_t *v;
	size_t i;
	if (json_is_string(j))
		return json_string_length(j) > PAYLOAD_LONG ? j : NULL;
	const json_t *found = NULL;
	json_object_foreach((json_t *)(uintptr_t)j, key, v) found = found ? found : find_long(v);
	json_array_foreach(j, i, v) found = found ? found : find_long(v);
	return found;
}

static void compare_with_parser(struct str input, const struct result *r)
{
	cleanup_json json_t *whole = json_parse(input, 1 << 20, "it", NULL);
	const json_t *s = whole ? find_long(whole) : NULL;
	/* Escapes other than of a slash are refused in a long string, whatever they stand for; keys may be
	 * long too. */
	if (!s || !r->payload.taken || memchr(input.p, '\\', input.n))
		return;
	cleanup_json json_t *cut = json_parse(buf_str(&r->text), 1 << 20, "it", NULL);
	cleanup_buf struct buf bytes = BUF_INIT;
	bool good = base64_decode(&bytes, json_str(s)) == 0;
	if (!cut || find_long(cut))
		return; /* another one was first */
	hold(good == !r->payload.bad);
	hold(!good || str_eq(buf_str(&bytes), buf_str(&r->payload.bytes)));
}

void fuzz_one(struct str input)
{
	struct result whole = {0};
	feed(&whole, input, input.n ? input.n : 1);
	hold(whole.payload.taken || str_eq(buf_str(&whole.text), input));
	for (size_t step = 1; step < 5000; step = step * 3 + 1) {
		struct result r = {0};
		feed(&r, input, step);
		hold(r.payload.taken == whole.payload.taken && r.payload.bad == whole.payload.bad);
		hold(str_eq(buf_str(&r.text), buf_str(&whole.text)));
		hold(r.payload.bad || str_eq(buf_str(&r.payload.bytes), buf_str(&whole.payload.bytes)));
		done(&r);
	}
	compare_with_parser(input, &whole);
	done(&whole);
}
