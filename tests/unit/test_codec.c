/* The small codecs of src/io: URLs, JSON with limits, Connect envelopes. */
#include "unit.h"

#include "io/connect.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>

static void escapes_are_undone_once_and_broken_ones_refused(void **state)
{
	struct buf b = BUF_INIT;
	assert_int_equal(url_decode(&b, STR("a%2Fb%25+%c3%A9"), false), 0);
	assert_str(buf_str(&b), "a/b%+\xc3\xa9");
	buf_clear(&b);
	assert_int_equal(url_decode(&b, STR("a+b%00"), true), 0);
	assert_int_equal(buf_len(&b), 4);
	assert_memory_equal(buf_str(&b).p, "a b\0", 4);
	buf_clear(&b);
	static const char *const bad[] = {"%", "%4", "a%zz", "%4g", "%%41"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(url_decode(&b, str_of(bad[i]), true), -EINVAL);
	assert_int_equal(buf_len(&b), 0);
	assert_int_equal(url_encode(&b, STR("a b/\xff~")), 0);
	assert_str(buf_str(&b), "a%20b%2F%FF~");
	buf_done(&b);
}

static void queries_are_walked_and_searched(void **state)
{
	struct str rest = STR("&a=1&&b&c=d=e&=x&a=2"), k, v;
	assert_true(url_query_next(&rest, &k, &v));
	assert_str(k, "a");
	assert_true(url_query_next(&rest, &k, &v));
	assert_str(k, "b");
	assert_str(v, "");
	assert_true(url_query_next(&rest, &k, &v));
	assert_str(v, "d=e");
	assert_true(url_query_next(&rest, &k, &v));
	assert_str(k, "");
	assert_true(url_query_next(&rest, &k, &v));
	assert_false(url_query_next(&rest, &k, &v));
	struct buf b = BUF_INIT;
	assert_int_equal(url_query_get(STR("x=0&p%61th=%2Fa+b&path=c"), "path", &b), 1);
	assert_str(buf_str(&b), "/a b");
	assert_int_equal(url_query_get(STR("x=0"), "path", &b), 0);
	assert_int_equal(url_query_get(STR("path=%"), "path", &b), -EINVAL);
	assert_str(buf_str(&b), "/a b");
	buf_done(&b);
}

static bool parses(struct str text)
{
	struct error err = {0};
	json_t *j = json_parse(text, 1 << 20, "body", &err);
	assert_true(j || (err.status == 400 && strstr(err.message, "body")));
	json_decref(j);
	return j != NULL;
}

static void json_has_limits_and_no_duplicates(void **state)
{
	assert_true(parses(STR(" {\"a\":[1,2.5,\"x\\u0000\"]} \n")));
	assert_true(parses(STR("\"a\"")));
	assert_false(parses(STR("")));
	assert_false(parses(STR("{} x")));
	assert_false(parses(STR("{\"a\":1,\"a\":2}")));
	assert_false(parses(STR("{\"a\":\"\xff\"}")));
	assert_false(parses(STR("{'a':1}")));
	struct buf b = BUF_INIT;
	for (int i = 0; i < JSON_MAX_DEPTH; i++)
		buf_add_c(&b, "[");
	buf_add_c(&b, "\"[[[[\\\"[[\"");
	for (int i = 0; i < JSON_MAX_DEPTH; i++)
		buf_add_c(&b, "]");
	assert_true(parses(buf_str(&b)));
	buf_clear(&b);
	for (int i = 0; i < 100000; i++)
		buf_add_c(&b, "{\"a\":");
	assert_false(parses(buf_str(&b)));
	buf_done(&b);
	struct error err = {0};
	assert_null(json_parse(STR("[1,2]"), 4, "body", &err));
	assert_int_equal(err.status, 400);
}

static void json_strings_keep_their_nul(void **state)
{
	cleanup_json json_t *j = json_parse(STR("[\"a\\u0000b\",1]"), 100, "x", NULL);
	assert_int_equal(json_str(json_array_get(j, 0)).n, 3);
	assert_int_equal(json_str(json_array_get(j, 1)).n, 0);
	assert_int_equal(json_str(NULL).n, 0);
}

static void envelopes_round_trip_and_are_limited(void **state)
{
	struct buf b = BUF_INIT;
	assert_int_equal(connect_envelope(&b, 0, STR("{\"a\":1}")), 0);
	assert_int_equal(connect_end(&b, 0, STR("")), 0);
	assert_memory_equal(buf_str(&b).p, "\0\0\0\0\7{\"a\":1}\2\0\0\0\2{}", 19);
	unsigned flags = 9;
	struct str m, in = buf_str(&b);
	for (size_t n = 0; n < 12; n++)
		assert_int_equal(connect_parse_envelope(str_n(in.p, n), 100, &flags, &m), 0);
	assert_int_equal(connect_parse_envelope(in, 100, &flags, &m), 12);
	assert_int_equal(flags, 0);
	assert_str(m, "{\"a\":1}");
	assert_int_equal(connect_parse_envelope(str_from(in, 12), 100, &flags, &m), 7);
	assert_int_equal(flags, CONNECT_FLAG_END);
	/* too long is told from the header alone */
	assert_int_equal(connect_parse_envelope(STR("\0\xff\xff\xff\xff"), 100, &flags, &m), -EMSGSIZE);
	assert_int_equal(connect_parse_envelope(str_n(in.p, 5), 6, &flags, &m), -EMSGSIZE);
	buf_done(&b);
}

static void errors_carry_name_and_message(void **state)
{
	struct buf b = BUF_INIT;
	assert_int_equal(connect_error_json(&b, CONNECT_NOT_FOUND, STR("no \"x\"")), 0);
	assert_str(buf_str(&b), "{\"code\":\"not_found\",\"message\":\"no \\\"x\\\"\"}");
	assert_int_equal(connect_code_status(CONNECT_NOT_FOUND), 404);
	assert_int_equal(connect_code_status(CONNECT_CANCELED), 499);
	assert_string_equal(connect_code_name(CONNECT_UNAUTHENTICATED), "unauthenticated");
	assert_string_equal(connect_code_name((enum connect_code)99), "unknown");
	buf_clear(&b);
	assert_int_equal(connect_end(&b, CONNECT_INTERNAL, STR("x")), 0);
	assert_str(str_from(buf_str(&b), 5), "{\"error\":{\"code\":\"internal\",\"message\":\"x\"}}");
	buf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(escapes_are_undone_once_and_broken_ones_refused),
		cmocka_unit_test(queries_are_walked_and_searched),
		cmocka_unit_test(json_has_limits_and_no_duplicates),
		cmocka_unit_test(json_strings_keep_their_nul),
		cmocka_unit_test(envelopes_round_trip_and_are_limited),
		cmocka_unit_test(errors_carry_name_and_message),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
