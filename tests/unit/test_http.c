#include "unit.h"

#include "io/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Parses a copy of exact size, so that the address sanitizer sees a read beyond the end. Returns what the parser returned. */
static ssize_t parse(struct str text, struct http_head *h, int *status)
{
	static char *copy;
	free(copy);
	copy = malloc(text.n ? text.n : 1);
	assert_non_null(copy);
	memcpy(copy, text.p, text.n);
	*status = 0;
	return http_parse_request(str_n(copy, text.n), h, status);
}

static int status_of(const char *text)
{
	struct http_head h;
	int status;
	return parse(str_of(text), &h, &status) < 0 ? status : 0;
}

/* One header line in an otherwise good POST. */
static int status_with(const char *lines)
{
	char text[4096];
	snprintf(text, sizeof(text), "POST /x HTTP/1.1\r\nHost: h\r\n%s\r\n", lines);
	return status_of(text);
}

static void a_request_is_taken_apart(void **state)
{
	static const char text[] = "GET /a%20b/c?d=e?f HTTP/1.1\r\nHost: 3000-iabc.sbx.test:8443\r\nlang_version: 1 \t\r\nX-Empty:\r\n"
				   "Accept: a, b\r\naccept: c\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\nrest";
	struct http_head h;
	int status;
	assert_int_equal(parse(str_of(text), &h, &status), sizeof(text) - 5);
	assert_str(h.method, "GET");
	assert_str(h.target, "/a%20b/c?d=e?f");
	assert_str(h.path, "/a%20b/c");
	assert_str(h.query, "d=e?f");
	assert_str(h.host, "3000-iabc.sbx.test:8443");
	assert_str(http_value(&h, "LANG_VERSION"), "1");
	assert_str(http_value(&h, "x-empty"), "");
	assert_null(http_find(&h, "x-emptyy"));
	assert_true(http_lists(&h, "accept", "C"));
	assert_false(http_lists(&h, "accept", "d"));
	assert_int_equal(h.minor, 1);
	assert_int_equal(h.framing, HTTP_BODY_NONE);
	assert_true(h.keep_alive);
	assert_true(h.upgrade);
	assert_false(h.expect_continue);
}

static void every_cut_of_a_head_asks_for_more(void **state)
{
	static const char text[] = "\r\nPOST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n";
	struct http_head h;
	int status;
	for (size_t n = 0; n < sizeof(text) - 1; n++)
		assert_int_equal(parse(str_n(text, n), &h, &status), 0);
	assert_int_equal(parse(str_of(text), &h, &status), sizeof(text) - 1);
	assert_int_equal(h.framing, HTTP_BODY_LENGTH);
	assert_int_equal(h.length, 5);
}

static void ambiguous_framing_is_refused(void **state)
{
	assert_int_equal(status_with("Content-Length: 5\r\n"), 0);
	assert_int_equal(status_with("Transfer-Encoding: chunked\r\n"), 0);
	assert_int_equal(status_with("Transfer-Encoding: Chunked\r\n"), 0);
	static const char *const bad[] = {
		"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
		"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
		"Content-Length: 5\r\nContent-Length: 5\r\n",
		"Content-Length: 5\r\nContent-Length: 6\r\n",
		"Content-Length: +5\r\n",
		"Content-Length: -1\r\n",
		"Content-Length: 5,5\r\n",
		"Content-Length: 5 5\r\n",
		"Content-Length: 0x5\r\n",
		"Content-Length:\r\n",
		"Content-Length: 9223372036854775808\r\n",
		"Content-Length: 99999999999999999999999\r\n",
		"Content-Length : 5\r\n",
		"Transfer-Encoding: chunked,\r\n",
		"Transfer-Encoding:\tchunked\r\n",
		"Transfer-Encoding: \tchunked\r\n",
		"Transfer-Encoding: chunked, gzip\r\n",
		"Transfer-Encoding: gzip, chunked\r\n",
		"Transfer-Encoding: xchunked\r\n",
		"Transfer-Encoding: identity\r\n",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
		"Transfer-Encoding:\r\n",
		"Transfer-Encoding : chunked\r\n",
		"X: a\r\n b\r\n",
		"X: a\r\n\tb\r\n",
		" X: a\r\n",
		"X: a\nY: b\r\n",
		"X: a\rY: b\r\n",
		"X: a\x01\r\n",
		"X: a\x7f\r\n",
		"X\r\n",
		": a\r\n",
		"X\xc3: a\r\n",
		"Host: h\r\n",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (status_with(bad[i]) != 400)
			fail_msg("not refused: %s", bad[i]);
	struct http_head h;
	int status;
	assert_int_equal(parse(STR("GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n"), &h, &status), -EPROTO);
	assert_int_equal(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

static void bad_request_lines_are_refused(void **state)
{
	static const char *const bad[] = {
		"GET / HTTP/1.1\nHost: h\r\n\r\n", "GET /  HTTP/1.1\r\nHost: h\r\n\r\n", " GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1 \r\nHost: h\r\n\r\n", "GET / http/1.1\r\nHost: h\r\n\r\n",
		"GET x HTTP/1.1\r\nHost: h\r\n\r\n", "GET * HTTP/1.1\r\nHost: h\r\n\r\n", "GET /#a HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET http://u@h/x HTTP/1.1\r\nHost: h\r\n\r\n", "GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n",
		"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", "GET /\r\nHost: h\r\n\r\n", "GET\r\n\r\n", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"\x16\x03\x01", "SSH-2.0-x\n", "\n", "\rx",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (status_of(bad[i]) != 400)
			fail_msg("not refused with 400: %s", bad[i]);
	assert_int_equal(status_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
	assert_int_equal(status_of("GET / HTTP/3.0\r\nHost: h\r\n\r\n"), 505);
}

static void other_forms_of_the_target_work(void **state)
{
	struct http_head h;
	int status;
	assert_true(parse(STR("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), &h, &status) > 0);
	assert_str(h.path, "*");
	assert_true(parse(STR("GET http://a.b:1?x HTTP/1.1\r\nHost: c\r\n\r\n"), &h, &status) > 0);
	assert_str(h.host, "a.b:1");
	assert_str(h.path, "/");
	assert_str(h.query, "x");
	assert_true(parse(STR("PROPFIND HTTPS://a/b HTTP/1.1\r\nHost: c\r\n\r\n"), &h, &status) > 0);
	assert_str(h.path, "/b");
	assert_true(parse(STR("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"), &h, &status) > 0);
	assert_true(parse(STR("GET / HTTP/1.0\r\n\r\n"), &h, &status) > 0);
	assert_int_equal(h.host.n, 0);
	assert_false(h.keep_alive);
	assert_true(parse(STR("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), &h, &status) > 0);
	assert_true(h.keep_alive);
	assert_true(parse(STR("GET / HTTP/1.1\r\nHost: h\r\nConnection: x,close\r\n\r\n"), &h, &status) > 0);
	assert_false(h.keep_alive);
}

static void expectations_other_than_continue_are_417(void **state)
{
	struct http_head h;
	int status;
	assert_true(parse(STR("PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n"), &h, &status) > 0);
	assert_true(h.expect_continue);
	assert_int_equal(status_with("Expect: foo\r\n"), 417);
	assert_int_equal(status_with("Expect: 100-continue, foo\r\n"), 417);
}

static void heads_have_limits(void **state)
{
	static char text[HTTP_MAX_HEAD + 200];
	struct http_head h;
	int status;
	memset(text, 'a', sizeof(text));
	memcpy(text, "GET /", 5);
	assert_int_equal(parse(str_n(text, HTTP_MAX_HEAD - 1), &h, &status), 0);
	assert_int_equal(parse(str_n(text, HTTP_MAX_HEAD), &h, &status), -EPROTO);
	assert_int_equal(status, 414);
	memcpy(text, "GET / HTTP/1.1\r\nX: ", 19);
	assert_int_equal(parse(str_n(text, HTTP_MAX_HEAD), &h, &status), -EPROTO);
	assert_int_equal(status, 431);
	/* exactly the limit is taken, one byte more is not */
	static const char end[] = "\r\nHost: h\r\n\r\n";
	memcpy(text + HTTP_MAX_HEAD - 13, end, 13);
	assert_int_equal(parse(str_n(text, HTTP_MAX_HEAD), &h, &status), HTTP_MAX_HEAD);
	memset(text + HTTP_MAX_HEAD - 13, 'a', 13);
	memcpy(text + HTTP_MAX_HEAD - 12, end, 13);
	assert_int_equal(parse(str_n(text, HTTP_MAX_HEAD + 1), &h, &status), -EPROTO);
	assert_int_equal(status, 431);

	struct buf b = BUF_INIT;
	buf_add_c(&b, "GET / HTTP/1.1\r\nHost: h\r\n");
	for (int i = 0; i < HTTP_MAX_HEADERS - 1; i++)
		buf_add_c(&b, "a: b\r\n");
	size_t n = buf_len(&b);
	buf_add_c(&b, "\r\n");
	assert_int_equal(parse(buf_str(&b), &h, &status), n + 2);
	assert_int_equal(h.n_headers, HTTP_MAX_HEADERS);
	b.end = n;
	buf_add_c(&b, "a: b\r\n");
	assert_int_equal(parse(buf_str(&b), &h, &status), -EPROTO);
	assert_int_equal(status, 431);
	buf_done(&b);
}

static ssize_t response(const char *text, bool head, struct http_head *h)
{
	return http_parse_response(str_of(text), head, h);
}

static void response_framing_follows_the_rules(void **state)
{
	struct http_head h;
	assert_true(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", false, &h) > 0);
	assert_int_equal(h.framing, HTTP_BODY_LENGTH);
	assert_true(h.keep_alive);
	assert_true(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true, &h) > 0);
	assert_int_equal(h.framing, HTTP_BODY_NONE);
	assert_true(response("HTTP/1.1 204\r\nContent-Length: 3\r\n\r\n", false, &h) > 0);
	assert_int_equal(h.framing, HTTP_BODY_NONE);
	assert_true(response("HTTP/1.1 304 \r\nTransfer-Encoding: chunked\r\n\r\n", false, &h) > 0);
	assert_int_equal(h.framing, HTTP_BODY_NONE);
	assert_str(h.reason, "");
	assert_true(response("HTTP/1.1 100 Continue\r\n\r\n", false, &h) > 0);
	assert_int_equal(h.framing, HTTP_BODY_NONE);
	assert_true(response("HTTP/1.0 404 Not  Found\r\n\r\n", false, &h) > 0);
	assert_int_equal(h.framing, HTTP_BODY_UNTIL_CLOSE);
	assert_false(h.keep_alive);
	assert_str(h.reason, "Not  Found");
	assert_true(response("HTTP/1.1 200 OK\r\n\r\n", false, &h) > 0);
	assert_false(h.keep_alive);
	assert_int_equal(response("HTTP/1.1 20", false, &h), 0);
	static const char *const bad[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 099 OK\r\n\r\n", "HTTP/1.1 600 OK\r\n\r\n", "HTTP/1.1 2000\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n",
		"HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.1 200 O\x01\r\n\r\n", "HTTP/1.1 200 OK\nA: b\r\n\r\n",
		"hello", "\r\n",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (response(bad[i], false, &h) != -EPROTO)
			fail_msg("not refused: %s", bad[i]);
}

static void headers_of_one_hop_are_told_apart(void **state)
{
	struct http_head h;
	assert_true(response("HTTP/1.1 200 OK\r\nConnection: X-One, close\r\n\r\n", false, &h) > 0);
	assert_true(http_is_hop_by_hop(&h, STR("x-one")));
	assert_true(http_is_hop_by_hop(&h, STR("connection")));
	assert_true(http_is_hop_by_hop(&h, STR("transfer-encoding")));
	assert_true(http_is_hop_by_hop(&h, STR("TE")));
	assert_false(http_is_hop_by_hop(&h, STR("X-Two")));
	assert_false(http_is_hop_by_hop(&h, STR("Content-Length")));
}

/* Decodes `text` fed in pieces of `step` bytes. Returns bytes left over after the end, or -1 (refused), or -2 (not at its end). */
static ssize_t decode(struct str text, size_t step, struct buf *out)
{
	struct http_body b;
	http_body_init(&b, HTTP_BODY_CHUNKED, 0);
	size_t at = 0;
	while (at < text.n && !b.done) {
		size_t n = text.n - at < step ? text.n - at : step;
		char *copy = malloc(n);
		memcpy(copy, text.p + at, n);
		struct str in = str_n(copy, n), run;
		int r = 0;
		while (in.n && !b.done && (r = http_body_next(&b, &in, &run)) == 0)
			buf_add_str(out, run);
		at += n - in.n;
		free(copy);
		if (r < 0)
			return -1;
	}
	return b.done ? (ssize_t)(text.n - at) : -2;
}

static void chunks_are_decoded_at_every_cut(void **state)
{
	static const char text[] = "5\r\nhello\r\n00a;x=\"y z\"\r\n, chunked!\r\n0\r\nTrailer: x\r\nB:\r\n\r\nGET /";
	for (size_t step = 1; step < sizeof(text); step++) {
		struct buf out = BUF_INIT;
		assert_int_equal(decode(str_of(text), step, &out), 5);
		assert_str(buf_str(&out), "hello, chunked!");
		buf_done(&out);
	}
}

static void bad_chunks_are_refused(void **state)
{
	static const char *const bad[] = {
		"0x5\r\nhello\r\n", "5\nhello\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", " 5\r\nhello\r\n", "5 \r\nhello\r\n",
		"+5\r\nhello\r\n", "-1\r\n", "\r\n", "g\r\n", "8000000000000000\r\n", "10000000000000005\r\nhello\r\n", "5;a\nb\r\nhello",
		"5;\x01\r\nhello", "0\r\n\n", "0\r\nA b\r\n\r\n", "0\r\n b: c\r\n\r\n", "0\r\nA: b\n\r\n", "0\r\n\rx", "5\rxhello",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct buf out = BUF_INIT;
		if (decode(str_of(bad[i]), 64, &out) != -1)
			fail_msg("not refused: %s", bad[i]);
		buf_done(&out);
	}
	struct buf out = BUF_INIT;
	assert_int_equal(decode(STR("7fffffffffffffff\r\nhello"), 64, &out), -2);
	buf_done(&out);
}

static void endless_framing_without_data_is_refused(void **state)
{
	struct buf text = BUF_INIT, out = BUF_INIT;
	buf_add_c(&text, "5;");
	for (int i = 0; i < 20000; i++)
		buf_add_c(&text, "x");
	assert_int_equal(decode(buf_str(&text), 4096, &out), -1);
	buf_clear(&text);
	buf_add_c(&text, "0\r\n");
	for (int i = 0; i < 5000; i++)
		buf_add_c(&text, "a: b\r\n");
	assert_int_equal(decode(buf_str(&text), 4096, &out), -1);
	/* but any number of small chunks passes */
	buf_clear(&text);
	for (int i = 0; i < 100000; i++)
		buf_add_c(&text, "1;ab\r\nx\r\n");
	buf_add_c(&text, "0\r\n\r\n");
	buf_clear(&out);
	assert_int_equal(decode(buf_str(&text), 4096, &out), 0);
	assert_int_equal(buf_len(&out), 100000);
	buf_done(&text), buf_done(&out);
}

static void a_body_of_known_length_ends_there(void **state)
{
	struct http_body b;
	struct str in = STR("helloGET"), run;
	http_body_init(&b, HTTP_BODY_LENGTH, 5);
	assert_int_equal(http_body_next(&b, &in, &run), 0);
	assert_str(run, "hello");
	assert_str(in, "GET");
	assert_true(b.done);
	http_body_init(&b, HTTP_BODY_LENGTH, 0);
	assert_true(b.done);
	http_body_init(&b, HTTP_BODY_NONE, 0);
	assert_true(b.done);
	http_body_init(&b, HTTP_BODY_UNTIL_CLOSE, 0);
	assert_int_equal(http_body_next(&b, &in, &run), 0);
	assert_str(run, "GET");
	assert_false(b.done);
}

static void no_header_line_can_be_injected(void **state)
{
	struct buf b = BUF_INIT;
	assert_int_equal(http_add_header(&b, "A", STR("b")), 0);
	assert_int_equal(http_add_header(&b, "A", STR("b\r\nSet-Cookie: x")), -EINVAL);
	assert_int_equal(http_add_header(&b, "A", STR("b\nx")), -EINVAL);
	assert_int_equal(http_add_header(&b, "A", STR("b\0x")), -EINVAL);
	assert_str(buf_str(&b), "A: b\r\n");
	buf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_is_taken_apart),
		cmocka_unit_test(every_cut_of_a_head_asks_for_more),
		cmocka_unit_test(ambiguous_framing_is_refused),
		cmocka_unit_test(bad_request_lines_are_refused),
		cmocka_unit_test(other_forms_of_the_target_work),
		cmocka_unit_test(expectations_other_than_continue_are_417),
		cmocka_unit_test(heads_have_limits),
		cmocka_unit_test(response_framing_follows_the_rules),
		cmocka_unit_test(headers_of_one_hop_are_told_apart),
		cmocka_unit_test(chunks_are_decoded_at_every_cut),
		cmocka_unit_test(bad_chunks_are_refused),
		cmocka_unit_test(endless_framing_without_data_is_refused),
		cmocka_unit_test(a_body_of_known_length_ends_there),
		cmocka_unit_test(no_header_line_can_be_injected),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
