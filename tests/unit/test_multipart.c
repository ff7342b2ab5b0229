#include "unit.h"

#include "io/multipart.h"

#include <errno.h>
#include <stdlib.h>

/* Parts are written down as "[name|filename|data]", without "|filename" when there is none. */
static struct buf seen;

static int on_part(const struct multipart_part *p, void *arg)
{
	buf_add_c(&seen, "[");
	buf_add_str(&seen, p->name);
	if (p->has_filename) {
		buf_add_c(&seen, "|");
		buf_add_str(&seen, p->filename);
	}
	return buf_add_c(&seen, "|");
}

static int on_data(const char *p, size_t n, void *arg)
{
	assert_true(n > 0);
	return buf_add(&seen, p, n);
}

static int on_end(void *arg)
{
	return buf_add_c(&seen, "]");
}

static const struct multipart_ops ops = {on_part, on_data, on_end};

/* Feeds in pieces of `step` bytes, each in memory of its own. */
static int parse(struct str text, size_t step)
{
	buf_clear(&seen);
	struct multipart *m = multipart_new(STR("multipart/form-data; boundary=XX"), &ops, NULL);
	assert_non_null(m);
	int r = 0;
	for (size_t at = 0; at < text.n && r == 0; at += step) {
		size_t n = text.n - at < step ? text.n - at : step;
		char *copy = malloc(n);
		memcpy(copy, text.p + at, n);
		r = multipart_feed(m, copy, n);
		free(copy);
	}
	if (r == 0)
		r = multipart_finish(m);
	multipart_free(m);
	return r;
}

static void parts_come_out_at_every_cut(void **state)
{
	static const char text[] = "preamble\r\n--XX \t\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nContent-Type: x\r\n\r\n"
				   "\r\n--X\r\n\r\r\n-\r\n--XX\r\ncontent-disposition: form-data; name=b\r\n\r\n\r\n--XX\r\n\r\nc\r\n--XX--epilogue\r\n--XX\r\n";
	for (size_t step = 1; step < sizeof(text); step++) {
		assert_int_equal(parse(str_of(text), step), 0);
		assert_str(buf_str(&seen), "[file|a|\r\n--X\r\n\r\r\n-][b|][|c]");
	}
}

static const char *filename_of(const char *parameters)
{
	static struct buf text;
	buf_clear(&text);
	buf_addf(&text, "--XX\r\nContent-Disposition: form-data; name=\"f\"%s\r\n\r\n\r\n--XX--", parameters);
	int r = parse(buf_str(&text), 1000);
	if (r < 0)
		return "refused";
	const char *s = buf_cstr(&seen);
	assert_int_equal(strncmp(s, "[f|", 3), 0);
	seen.data[seen.end - 2] = '\0'; /* "|]" */
	return s + 3;
}

/* e2b.md B.4 */
static void only_what_clients_escape_is_undone(void **state)
{
	assert_string_equal(filename_of("; filename=\"dir/\xc3\xbc %22.txt\""), "dir/\xc3\xbc \".txt");
	assert_string_equal(filename_of("; filename=\"a%2Fb%20c%\""), "a%2Fb%20c%");
	assert_string_equal(filename_of("; filename=\"a%0D%0Ab%09%1F\""), "a\r\nb\t\x1f");
	assert_string_equal(filename_of("; filename=\"a%0d%0a\""), "a%0d%0a");
	assert_string_equal(filename_of("; filename=\"a\\\\b\""), "a\\b");
	assert_string_equal(filename_of("; filename=\"a\\b\""), "a\\b");
	assert_string_equal(filename_of("; filename=\"a\\\""), "a\\");
	assert_string_equal(filename_of("; filename=\"a\\\"b\""), "a\"b");
	assert_string_equal(filename_of("; filename=\"a;b\"; x=y"), "a;b");
	/* undici escapes only what would end the value or the line; httpx leaves these two. */
	assert_string_equal(filename_of("; filename=\"a\x1b\x7f\x01\t\""), "a\x1b\x7f\x01\t");
	assert_string_equal(filename_of("; filename=plain"), "plain");
	assert_string_equal(filename_of("; filename=\"\""), "");
	assert_string_equal(filename_of("; filename=\"a\"; filename*=UTF-8''%e2%82%ac%20x"), "\xe2\x82\xac x");
	assert_string_equal(filename_of("; filename*=utf-8'en'%41; filename=\"b\""), "A");
	assert_string_equal(filename_of("; filename=\"a\"; filename=\"b\""), "refused");
	assert_string_equal(filename_of("; filename=\"a"), "refused");
	assert_string_equal(filename_of("; filename=\"a\"b"), "refused");
	assert_string_equal(filename_of("; filename*=latin1''a"), "refused");
	assert_string_equal(filename_of("; filename*=UTF-8''%4"), "refused");
	assert_string_equal(filename_of("; filename"), "refused");
}

static void malformed_bodies_are_refused(void **state)
{
	static const char *const bad[] = {
		"", "--XX", "--XX\r\n", "--XX\r\n\r\n", "--XX\r\n\r\nx\r\n--XX", "--XX\r\n\r\nx\r\n--XX-", "--XXX\r\n\r\n\r\n--XX--",
		"--XX\r\nno colon\r\n\r\nx\r\n--XX--", "--XX\r\nA: b\n\r\n\r\nx\r\n--XX--", "--XX\n\r\nx\r\n--XX--", "--XX-x", "--XX\rx",
		"--XX\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b\r\n\r\nx\r\n--XX--",
		"--XX\r\nA: b\rc\r\n\r\nx\r\n--XX--",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		for (size_t step = 1; step < 100; step += 98)
			if (parse(str_of(bad[i]), step) != -EPROTO)
				fail_msg("not refused: %s", bad[i]);
	assert_int_equal(parse(STR("--XX--"), 3), 0);
}

static void headers_have_a_limit(void **state)
{
	struct buf text = BUF_INIT;
	buf_add_c(&text, "--XX\r\nA: ");
	for (int i = 0; i < MULTIPART_MAX_HEADERS; i++)
		buf_add_c(&text, "a");
	buf_add_c(&text, "\r\n\r\nx\r\n--XX--");
	assert_int_equal(parse(buf_str(&text), 4096), -EPROTO);
	buf_clear(&text);
	buf_add_c(&text, "--XX");
	for (int i = 0; i < 1000; i++)
		buf_add_c(&text, " ");
	buf_add_c(&text, "\r\n\r\nx\r\n--XX--");
	assert_int_equal(parse(buf_str(&text), 4096), -EPROTO);
	buf_done(&text);
}

static bool boundary_ok(const char *type)
{
	struct multipart *m = multipart_new(str_of(type), &ops, NULL);
	if (!m)
		assert_int_equal(errno, EINVAL);
	multipart_free(m);
	return m != NULL;
}

static void the_boundary_comes_from_the_type(void **state)
{
	assert_true(boundary_ok("multipart/form-data; boundary=----formdata-undici-012345678901"));
	assert_true(boundary_ok("Multipart/Form-Data;charset=x; Boundary=\"a b;c\""));
	assert_false(boundary_ok("multipart/form-data"));
	assert_false(boundary_ok("multipart/form-data; boundary="));
	assert_false(boundary_ok("multipart/mixed; boundary=a"));
	assert_false(boundary_ok("multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x"));
}

static int refuse(const struct multipart_part *p, void *arg)
{
	return -ENOSPC;
}

static void what_a_callback_says_ends_the_parse(void **state)
{
	struct multipart_ops refusing = {refuse, on_data, on_end};
	struct multipart *m = multipart_new(STR("multipart/form-data; boundary=XX"), &refusing, NULL);
	assert_int_equal(multipart_feed(m, "--XX\r\n\r\nx", 9), -ENOSPC);
	multipart_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_come_out_at_every_cut),
		cmocka_unit_test(only_what_clients_escape_is_undone),
		cmocka_unit_test(malformed_bodies_are_refused),
		cmocka_unit_test(headers_have_a_limit),
		cmocka_unit_test(the_boundary_comes_from_the_type),
		cmocka_unit_test(what_a_callback_says_ends_the_parse),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
