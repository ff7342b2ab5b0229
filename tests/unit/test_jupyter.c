#include "unit.h"
#include "base/cleanup.h"
#include "interp/jsontext.h"
#include "interp/kernelspec.h"
#include "interp/result.h"
#include "interp/wire.h"

#include <errno.h>

static const struct str key = {"secret", 6};

/* JSON text */

static void takes_json_and_nothing_else(void **state)
{
	static const char *const good[] = {"0", "-0.5e+10", "\"\\u00e4\\n\"", "[]", " [ 1 , [ ] , { } ] ",
		"{\"a\":{\"b\":null}}", "true", "NaN", "[-Infinity,Infinity]", "\"\xff\""};
	static const char *const bad[] = {"", " ", "01", "1.", ".5", "1e", "-", "+1", "\"", "\"\n\"",
		"\"\\x\"", "\"\\u12g4\"", "[", "[1", "[1,", "[1,]", "[1 2]", "{", "{\"a\"}", "{\"a\":}",
		"{\"a\":1,}", "{1:2}", "}", "[}", "tru", "nul", "1 2", "{\"a\":1}}", "-NaN"};
	struct str v;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		assert_int_equal(jsontext_parse(str_of(good[i]), &v), 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(jsontext_parse(str_of(bad[i]), &v), -EINVAL);
	assert_int_equal(jsontext_parse(str_of("  [1]\n"), &v), 0);
	assert_int_equal(v.n, 3);
}

static void nests_to_its_limit(void **state)
{
	char text[2 * JSONTEXT_MAX_DEPTH + 2];
	struct str v;
	memset(text, '[', JSONTEXT_MAX_DEPTH);
	memset(text + JSONTEXT_MAX_DEPTH, ']', JSONTEXT_MAX_DEPTH);
	assert_int_equal(jsontext_parse(str_n(text, 2 * JSONTEXT_MAX_DEPTH), &v), 0);
	memset(text, '[', JSONTEXT_MAX_DEPTH + 1);
	memset(text + JSONTEXT_MAX_DEPTH + 1, ']', JSONTEXT_MAX_DEPTH + 1);
	assert_int_equal(jsontext_parse(str_n(text, 2 * JSONTEXT_MAX_DEPTH + 2), &v), -E2BIG);
}

static void finds_members(void **state)
{
	struct str v, k, rest;
	assert_int_equal(
		jsontext_parse(
			str_of("{ \"a}\" : \"x\\\"]\" , \"b\":[1, {\"c\":2}] ,\"c\": -3,\"b\":4}"), &v),
		0);
	assert_str(jsontext_get(v, "a}"), "\"x\\\"]\"");
	assert_str(jsontext_get(v, "b"), "[1, {\"c\":2}]");
	assert_str(jsontext_get(v, "c"), "-3");
	assert_str(jsontext_get(v, "d"), "");
	assert_str(jsontext_get(jsontext_get(v, "b"), "c"), "");
	rest = jsontext_get(v, "b");
	assert_true(jsontext_next(&rest, NULL, &k));
	assert_str(k, "1");
	assert_true(jsontext_next(&rest, NULL, &k));
	assert_str(k, "{\"c\":2}");
	assert_false(jsontext_next(&rest, NULL, &k));
	int64_t n;
	assert_int_equal(jsontext_int(jsontext_get(v, "c"), &n), 0);
	assert_int_equal(n, -3);
	assert_int_equal(jsontext_int(STR("\"3\""), &n), -EINVAL);
	assert_int_equal(jsontext_int(STR("99999999999999999999"), &n), -EINVAL);
}

static void decodes_strings(void **state)
{
	cleanup_buf struct buf b = BUF_INIT;
	assert_int_equal(jsontext_string(STR("\"a\\n\\/\\u00e4\\ud83d\\ude00\\ud800x\xff\""), &b), 0);
	assert_str(buf_str(&b), "a\n/\xc3\xa4\xf0\x9f\x98\x80\xef\xbf\xbdx\xef\xbf\xbd");
	assert_int_equal(jsontext_string(STR("5"), &b), -EINVAL);
}

static void writes_ascii_however_it_is_cut(void **state)
{
	static const char text[] = " {\"a\" : [\"\xc3\xa4\xf0\x9f\x98\x80\\ud83d\\ude00\\u00e4 b\\\"\", NaN "
				   ",\n-Infinity, 1.5] } ";
	static const char ascii[] =
		"{\"a\":[\"\\u00e4\\ud83d\\ude00\\ud83d\\ude00\\u00e4 b\\\"\",null,null,1.5]}";
	for (size_t step = 1; step < 100; step++) {
		cleanup_buf struct buf b = BUF_INIT;
		struct jsontext_cursor c = {str_of(text), false};
		while (c.rest.n)
			assert_int_equal(jsontext_ascii(&c, &b, step), 0);
		assert_str(buf_str(&b), ascii);
	}
}

/* Messages */

static void reads_what_it_wrote(void **state)
{
	cleanup_wire_out struct wire_out out = WIRE_OUT_INIT;
	struct wire_message m;
	assert_int_equal(wire_build(&out, key, "session", "execute_request", STR("{\"code\":\"1\"}")), 0);
	assert_int_equal(wire_parse(out.frames, WIRE_OUT_FRAMES, key, &m), 0);
	assert_str(m.type, "execute_request");
	assert_str(m.id, out.id);
	assert_str(m.parent_id, "");
	assert_str(m.content, "{\"code\":\"1\"}");
	assert_int_equal(wire_parse(out.frames, WIRE_OUT_FRAMES, STR("other"), &m), -EBADMSG);
	out.frames[5] = STR("{\"code\":\"2\"}");
	assert_int_equal(wire_parse(out.frames, WIRE_OUT_FRAMES, key, &m), -EBADMSG);
	for (size_t n = 0; n < WIRE_OUT_FRAMES; n++)
		assert_int_equal(wire_parse(out.frames, n, key, &m), -EPROTO);
}

/* The example of RFC 4231, 4.3, over four frames. */
static void signs_as_hmac_sha256(void **state)
{
	struct str frames[] = {STR("what do ya"), STR(" want "), STR(""), STR("for nothing?")};
	char signature[WIRE_SIGNATURE_SIZE];
	assert_int_equal(wire_sign(STR("Jefe"), frames, signature), 0);
	assert_string_equal(signature, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

static void makes_ids_that_are_uuids(void **state)
{
	char a[WIRE_ID_SIZE], b[WIRE_ID_SIZE];
	wire_new_id(a);
	wire_new_id(b);
	assert_string_not_equal(a, b);
	assert_int_equal(strlen(a), 36);
	assert_int_equal(a[14], '4');
	assert_non_null(strchr("89ab", a[19]));
	assert_true(a[8] == '-' && a[13] == '-' && a[18] == '-' && a[23] == '-');
}

/* Results */

static char *line_of(const struct event *e)
{
	cleanup_buf struct buf b = BUF_INIT;
	for (size_t i = 0; i < e->n; i++) {
		struct jsontext_cursor c = {e->parts[i].s, e->parts[i].kind == PART_INNER};
		if (e->parts[i].kind == PART_TEXT)
			buf_add_str(&b, e->parts[i].s);
		else
			jsontext_ascii(&c, &b, SIZE_MAX);
	}
	return strdup(buf_cstr(&b));
}

static void assert_data(const char *content, bool is_main, const char *line)
{
	cleanup_event struct event e = EVENT_INIT;
	result_data(&e, str_of(content), is_main);
	cleanup_free char *text = line_of(&e);
	assert_string_equal(text, line);
}

static void maps_mime_types(void **state)
{
	assert_data("{\"data\":{\"text/plain\":\"'a'\",\"image/png\":\"cA==\"}}", true,
		"{\"type\": \"result\", \"is_main_result\": true, \"text\": \"a\", \"png\": \"cA==\"}\n");
	assert_data("{\"data\":{\"x/y\":1,\"e2b/data\":{\"a\":[1]},\"z/z\":\"\xc3\xa4\"}}", false,
		"{\"type\": \"result\", \"is_main_result\": false, \"data\": {\"a\":[1]}, \"extra\": "
		"{\"x/y\": 1, \"z/z\": \"\\u00e4\"}}\n");
	/* A text that is none is not passed off as one. */
	assert_data("{\"data\":{\"text/plain\":5,\"text/html\":null,\"application/json\":null}}", true,
		"{\"type\": \"result\", \"is_main_result\": true, \"extra\": {\"text/plain\": 5}}\n");
	assert_data("{\"data\":{}}", true, "");
	assert_data("{}", true, "");
	assert_data("{\"data\":[1]}", true, "");
}

static void strips_one_pair_of_quotes(void **state)
{
	static const char *const pairs[][2] = {{"'a'", "a"}, {"\\\"a\\\"", "a"}, {"''", ""}, {"'", "'"},
		{"\\\"", "\\\""}, {"'a\\\"", "'a\\\""}, {"a", "a"}, {"", ""}, {"\\\"\\\\\\\"", "\\\\"}};
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
		assert_str(result_unquote(str_of(pairs[i][0])), pairs[i][1]);
}

static void tells_errors(void **state)
{
	cleanup_event struct event e = EVENT_INIT, none = EVENT_INIT, own = EVENT_INIT;
	result_error(&e, STR("{\"ename\":\"E\",\"evalue\":\"\\u00e4\",\"traceback\":[\"a\",5,\"b\"]}"));
	cleanup_free char *text = line_of(&e);
	assert_string_equal(text, "{\"type\": \"error\", \"name\": \"E\", \"value\": \"\\u00e4\", "
				  "\"traceback\": \"a\\n\\nb\"}\n");
	result_error(&none, STR("{}"));
	cleanup_free char *empty = line_of(&none);
	assert_string_equal(
		empty, "{\"type\": \"error\", \"name\": \"\", \"value\": \"\", \"traceback\": \"\"}\n");
	event_error(&own, "Name", "a \"value\"");
	cleanup_free char *made = line_of(&own);
	assert_string_equal(made, "{\"type\": \"error\", \"name\": \"Name\", \"value\": \"a \\\"value\\\"\", "
				  "\"traceback\": \"\"}\n");
}

/* Kernel specs */

static void reads_kernel_specs(void **state)
{
	struct error err = {0};
	struct kernelspec *s = kernelspec_parse(
		STR("{\"argv\":[\"/usr/bin/"
		    "R\",\"{connection_file}\"],\"language\":\"R\",\"env\":{\"A\":\"b\"},\"interrupt_mode\":"
		    "\"message\",\"metadata\":{\"cubicle\":{\"transport\":\"ipc\"}}}"),
		"IR", "/k/IR", &err);
	assert_non_null(s);
	assert_string_equal(s->name, "ir");
	assert_string_equal(s->language, "r");
	assert_string_equal(s->argv[1], "{connection_file}");
	assert_null(s->argv[2]);
	assert_string_equal(s->env[0], "A=b");
	assert_true(s->interrupt_by_message && s->ipc);
	kernelspec_free(s);
	static const char *const bad[] = {"", "[]", "{}", "{\"argv\":[]}", "{\"argv\":[1]}",
		"{\"argv\":[\"a\"],\"env\":{\"A\":1}}", "{\"argv\":\"a\"}"};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_null(kernelspec_parse(str_of(bad[i]), "x", "/x", &err));
}

static void normalises_languages(void **state)
{
	static const char *const pairs[][2] = {{"", "python"}, {"JS", "javascript"}, {"ts", "typescript"},
		{"Python", "python"}, {"R", "r"}, {"c++17", "c++17"}};
	char name[LANGUAGE_SIZE];
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		assert_int_equal(language_normalise(str_of(pairs[i][0]), name), 0);
		assert_string_equal(name, pairs[i][1]);
	}
	assert_int_equal(language_normalise(STR("../x"), name), -EINVAL);
	assert_int_equal(language_normalise(STR("a\0b"), name), -EINVAL);
	assert_int_equal(
		language_normalise(
			str_of("0123456789012345678901234567890123456789012345678901234567890123456789"),
			name),
		-EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_json_and_nothing_else),
		cmocka_unit_test(nests_to_its_limit),
		cmocka_unit_test(finds_members),
		cmocka_unit_test(decodes_strings),
		cmocka_unit_test(writes_ascii_however_it_is_cut),
		cmocka_unit_test(reads_what_it_wrote),
		cmocka_unit_test(signs_as_hmac_sha256),
		cmocka_unit_test(makes_ids_that_are_uuids),
		cmocka_unit_test(maps_mime_types),
		cmocka_unit_test(strips_one_pair_of_quotes),
		cmocka_unit_test(tells_errors),
		cmocka_unit_test(reads_kernel_specs),
		cmocka_unit_test(normalises_languages),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
