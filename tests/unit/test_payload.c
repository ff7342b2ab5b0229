#include "unit.h"
#include "base/encode.h"
#include "guest/payload.h"

#include <stdlib.h>

static void fill(char *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (char)(i * 131 + (i >> 8));
}

/* {"process":{"pid":42},"input":{"stdin":"<base64 of n bytes>"}} in steps of `step`. */
static void check(size_t n, size_t step, bool url, const char *slash)
{
	char *bytes = malloc(n + 1);
	struct buf code = BUF_INIT, message = BUF_INIT, text = BUF_INIT;
	struct payload p = {0};
	fill(bytes, n);
	assert_int_equal(
		url ? base64url_encode(&code, str_n(bytes, n)) : base64_encode(&code, str_n(bytes, n)), 0);
	buf_add_c(&message, "{\"a\\\"\":\"\\\\\",\"input\":{\"stdin\":\"");
	for (size_t i = 0; i < buf_len(&code); i++) {
		const char *c = buf_str(&code).p + i;
		if (*c == '/' && slash)
			buf_add_c(&message, slash);
		else
			buf_add(&message, c, 1);
	}
	buf_add_c(&message, "\"},\"z\":1}");
	for (size_t at = 0; at < buf_len(&message); at += step)
		assert_int_equal(
			payload_feed(&p, buf_str(&message).p + at,
				at + step < buf_len(&message) ? step : buf_len(&message) - at, &text),
			0);
	assert_false(p.bad);
	if (buf_len(&code) <= PAYLOAD_LONG) {
		assert_false(p.taken);
		assert_int_equal(buf_len(&text), buf_len(&message));
		assert_memory_equal(buf_str(&text).p, buf_str(&message).p, buf_len(&text));
	} else {
		assert_true(p.taken);
		assert_int_equal(buf_len(&p.bytes), n);
		assert_memory_equal(buf_str(&p.bytes).p, bytes, n);
		assert_int_equal(buf_len(&text), strlen("{\"a\\\"\":\"\\\\\",\"input\":{\"stdin\":\"") +
							 strlen(PAYLOAD_MARK) + strlen("\"},\"z\":1}"));
		assert_memory_equal(buf_str(&text).p + buf_len(&text) - 9, "\"},\"z\":1}", 9);
	}
	payload_done(&p);
	buf_done(&text);
	buf_done(&message);
	buf_done(&code);
	free(bytes);
}

static void decodes_at_any_cut(void **state)
{
	static const size_t sizes[] = {0, 1, 3071, 3072, 3073, 3074, 3075, 9000, 10001};
	static const size_t steps[] = {1, 2, 3, 7, 4095, 4096, 4097, 100000};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t j = 0; j < sizeof(steps) / sizeof(steps[0]); j++) {
			check(sizes[i], steps[j], false, NULL);
			check(sizes[i], steps[j], true, NULL);
		}
}

static void takes_escaped_slashes(void **state)
{
	check(20000, 1, false, "\\/");
	check(20000, 5000, false, "\\/");
}

static bool is_bad(const char *tail)
{
	struct payload p = {0};
	struct buf message = BUF_INIT, text = BUF_INIT;
	buf_add_c(&message, "{\"s\":\"");
	for (int i = 0; i < PAYLOAD_LONG; i++)
		buf_add_c(&message, "A");
	buf_add_c(&message, tail);
	buf_add_c(&message, "\"}");
	assert_int_equal(payload_feed(&p, buf_str(&message).p, buf_len(&message), &text), 0);
	bool bad = p.bad;
	assert_true(p.taken);
	payload_done(&p);
	buf_done(&text);
	buf_done(&message);
	return bad;
}

static void refuses_what_is_no_base64(void **state)
{
	assert_false(is_bad("AAAA"));
	assert_false(is_bad("AA=="));
	assert_false(is_bad("AA"));
	assert_true(is_bad("A"));
	assert_true(is_bad("!AAA"));
	assert_true(is_bad("A\\nAA"));
	assert_true(is_bad("AA==AAAA"));
	assert_true(is_bad("AB"));
	assert_true(is_bad("AA="));
	assert_true(is_bad("A==="));
}

static void only_the_first_long_string(void **state)
{
	struct payload p = {0};
	struct buf message = BUF_INIT, text = BUF_INIT;
	for (int s = 0; s < 2; s++) {
		buf_add_c(&message, "\"");
		for (int i = 0; i < PAYLOAD_LONG + 4; i++)
			buf_add_c(&message, "A");
		buf_add_c(&message, "\"");
	}
	assert_int_equal(payload_feed(&p, buf_str(&message).p, buf_len(&message), &text), 0);
	assert_int_equal(buf_len(&text), buf_len(&message) - PAYLOAD_LONG - 4 + strlen(PAYLOAD_MARK));
	payload_done(&p);
	buf_done(&text);
	buf_done(&message);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(decodes_at_any_cut),
		cmocka_unit_test(takes_escaped_slashes),
		cmocka_unit_test(refuses_what_is_no_base64),
		cmocka_unit_test(only_the_first_long_string),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
