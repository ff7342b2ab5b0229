/* What a model may read of errors, which paths the tools take, how output is clipped, and which redirects the loopback forward lets through. */
#include "unit.h"

#include "base/cleanup.h"
#include "forward/connection.h"
#include "forward/forward.h"
#include "mcp/path.h"
#include "mcp/run.h"
#include "mcp/scrub.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *scrubbed(const char *text, const char *secret)
{
	static struct buf out;
	buf_clear(&out);
	assert_int_equal(scrub_text(str_of(text), str_of(secret), &out), 0);
	return buf_cstr(&out);
}

static void takes_out_what_tells_of_the_server(void **state)
{
	static const struct {
		const char *text, *expected;
	} cases[] = {
		{"connecting to http://api.internal.example.com:3000/sandboxes?x=1 failed", "connecting to [URL] failed"},
		{"wss://u:p@h/x, then", "[URL], then"},
		{"dial tcp 10.1.2.3:8080: refused", "dial tcp [address]: refused"},
		{"Failed to connect to 127.0.0.1 port 3000", "Failed to connect to [address] port 3000"},
		{"from fe80::1%eth0 and [2001:db8::7]:443 to ::1", "from [address] and [address] to [address]"},
		{"2001:0db8:85a3:0000:0000:8a2e:0370:7334 is down", "[address] is down"},
		{"could not resolve host: db01.prod.example.org", "could not resolve host: [host]"},
		{"localhost:5432 is closed", "[host] is closed"},
		{"no space in /var/lib/cubicle/node/images", "no space in [path]"},
		{"open '/etc/shadow': denied", "open '[path]': denied"},
		{"/home/user/x.py and /tmp/y stay", "/home/user/x.py and /tmp/y stay"},
		{"/home/user/../../etc/passwd does not", "[path] does not"},
		{"/home/username/x does not", "[path] does not"},
		{"key e2b_0123456789abcdef0123456789abcdef01234567 is bad", "key [secret] is bad"},
		{"Authorization: Bearer abcdef123456.xyz", "Authorization: [secret]"},
		{"digest 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "digest [secret]"},
		{"swordfish and the swordfish", "[secret] and the [secret]"},
		{"main.py line 3, notes.txt, version 1.2.3.4.5 at 10:30:00", "main.py line 3, notes.txt, version 1.2.3.4.5 at 10:30:00"},
		{"timeout must be an integer from 30 to 86400", "timeout must be an integer from 30 to 86400"},
		{"the command ended with std::bad_alloc", "the command ended with std::bad_alloc"},
		{"Traceback (most recent call last):\n  File \"/srv/app/x.py\", line 3, in f\n    boom()\nValueError: no", "ValueError: no"},
		{"oops\n#0 0x00007f in crash (/usr/bin/node+0x123)\n#1 main\nend", "oops end"},
		{"Error: x\n    at Object.f (node:internal/x:1:2)\n    at async g (file:///srv/a.js:1)\nlast", "Error: x last"},
		{"a\tb\x01" "c", "a b c"},
		{"", "(no text)"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		assert_string_equal(scrubbed(cases[i].text, "swordfish"), cases[i].expected);
}

/* What begins before the cut must not come out in part because of it. */
static void scrubs_before_it_cuts(void **state)
{
	char text[2000];
	for (size_t pad = 440; pad < 520; pad++) {
		memset(text, 'x', pad);
		snprintf(text + pad, sizeof(text) - pad, " http://secret.example.com/%s e2b_0123456789abcdef0123456789abcdef01234567", "path/of/it");
		const char *out = scrubbed(text, "swordfish");
		assert_null(strstr(out, "secret.example"));
		assert_null(strstr(out, "http"));
		assert_null(strstr(out, "e2b_"));
		assert_true(strlen(out) <= SCRUB_MOST + 8);
	}
	/* Never within a character, and bytes that are no text do no harm. */
	memset(text, 0, sizeof(text));
	for (int i = 0; i < 600; i++)
		strcat(text, i < 499 ? "x" : "\xc3\xa9");
	assert_true(str_is_utf8(str_of(scrubbed(text, ""))));
	assert_string_equal(scrubbed("a\xff\xfe" "b 10.0.0.1", ""), "a??b [address]");
}

static const char *path(const char *given, bool absolute)
{
	static struct buf out;
	struct error err = {0};
	buf_clear(&out);
	if (mcp_path(str_of(given), absolute, &out, &err) < 0) {
		assert_int_equal(err.status, 400);
		assert_ptr_equal(strstr(err.message, "path"), err.message); /* names it */
		return "refused";
	}
	return buf_cstr(&out);
}

static void paths_stay_in_the_workspace(void **state)
{
	static const struct {
		const char *given, *relative, *absolute;
	} cases[] = {
		{"a", "/home/user/a", "/home/user/a"},
		{"a/b/../c", "/home/user/a/c", "/home/user/a/c"},
		{".", "/home/user", "/home/user"},
		{"./", "/home/user", "/home/user"},
		{"a/..", "/home/user", "/home/user"},
		{"a//b/", "/home/user/a/b", "/home/user/a/b"},
		{"..", "refused", "/home"},
		{"a/../../b", "refused", "/home/b"},
		{"../user/x", "refused", "/home/user/x"},
		{"~", "/home/user", "/home/user"},
		{"~/x", "/home/user/x", "/home/user/x"},
		{"~//etc/passwd", "/home/user/etc/passwd", "/home/user/etc/passwd"},
		{"~/..", "refused", "/home"},
		{"~other", "/home/user/~other", "/home/user/~other"},
		{"/home/user/x", "refused", "/home/user/x"},
		{"/etc/passwd", "refused", "/etc/passwd"},
		{"/../../x", "refused", "/x"},
		{"/", "refused", "/"},
		{"...", "/home/user/...", "/home/user/..."},
		{"a b\n", "/home/user/a b\n", "/home/user/a b\n"},
		{"", "refused", "refused"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_string_equal(path(cases[i].given, false), cases[i].relative);
		assert_string_equal(path(cases[i].given, true), cases[i].absolute);
	}
	struct buf out = BUF_INIT;
	struct error err;
	assert_int_equal(mcp_path(STR("a\0b"), true, &out, &err), -EINVAL);
	cleanup_free char *longest = malloc(MCP_MAX_PATH + 2);
	memset(longest, 'a', MCP_MAX_PATH + 1);
	assert_int_equal(mcp_path(str_n(longest, MCP_MAX_PATH + 1), true, &out, &err), -EINVAL);
	assert_true(mcp_path_inside(STR("/home/user")) && mcp_path_inside(STR("/home/user/a")));
	assert_false(mcp_path_inside(STR("/home/username")) || mcp_path_inside(STR("/home")));
	buf_done(&out);
}

static void long_output_keeps_both_ends(void **state)
{
	struct clipped c = {0};
	cleanup_buf struct buf text = BUF_INIT;
	for (int i = 0; i < 40000; i++) {
		char line[16];
		snprintf(line, sizeof(line), "%d\xc3\xa9\n", i);
		assert_int_equal(clipped_add(&c, str_of(line)), 0);
	}
	assert_int_equal(clipped_text(&c, &text), 0);
	assert_true(str_is_utf8(buf_str(&text)));
	assert_true(str_starts(buf_str(&text), STR("0\xc3\xa9\n1")));
	assert_true(str_ends(buf_str(&text), STR("39999\xc3\xa9\n")));
	assert_non_null(strstr(buf_cstr(&text), "bytes are left out here"));
	assert_true(buf_len(&text) < RUN_MAX_OUTPUT + 200);
	clipped_done(&c);
	c = (struct clipped){0};
	buf_clear(&text);
	clipped_add(&c, STR("a\xff\0b"));
	assert_int_equal(clipped_text(&c, &text), 0);
	assert_string_equal(buf_cstr(&text), "a\xef\xbf\xbd\xef\xbf\xbd" "b");
	clipped_done(&c);
}

static void redirects_stay_with_the_sandbox(void **state)
{
	struct destination to = {.authority = "api.example.com:8443", .ctx = (SSL_CTX *)(uintptr_t)1};
	static const char *const good[] = {"/a", "a/b", "?x=http://evil", "#f", "https://api.example.com:8443/x", "HTTPS://API.example.com:8443", "http://127.0.0.1:4000/y", "../x:y/z", ""};
	static const char *const bad[] = {"//evil.com/", "http://evil.com", "https://api.example.com/", "https://api.example.com:8443.evil.com/", "https://api.example.com:8443@evil.com/",
		"http://api.example.com:8443/", "javascript:x", "/\\evil.com", "\\\\evil.com", "http:evil.com", "http:/evil.com", "/\t/evil.com", " //evil.com", "data:,x"};
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		if (!http_forward_stays(str_of(good[i]), &to, STR("127.0.0.1:4000")))
			fail_msg("refused: %s", good[i]);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (http_forward_stays(str_of(bad[i]), &to, STR("127.0.0.1:4000")))
			fail_msg("let through: %s", bad[i]);
}

/* What came of a connection. */
struct outcome {
	size_t got;
	int ended, why;
};

static void on_readable(struct connection *c, void *arg)
{
	struct outcome *o = arg;
	assert_int_equal(o->ended, 0);
	o->got += buf_len(connection_in(c));
	buf_clear(connection_in(c));
	connection_set_reading(c, false); /* whoever takes it is slow */
}

static void on_drained(struct connection *c, void *arg)
{
}

static void on_ended(struct connection *c, int why, void *arg)
{
	struct outcome *o = arg;
	o->ended++;
	o->why = why;
}

static const struct connection_ops outcome_ops = {on_readable, on_drained, on_ended};

/* To a slow taker the end is told after all that came before it; then the other direction still works. */
static void an_end_waits_for_what_came_before_it(void **state)
{
	enum { ALL = 300000 };
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(a);
	cleanup_fd int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&a, size), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &size), 0);
	char url[64];
	struct destination to;
	struct error err = {0};
	struct outcome o = {0};
	snprintf(url, sizeof(url), "http://127.0.0.1:%u", ntohs(a.sin_port));
	assert_int_equal(destination_init(&to, url, NULL, NULL, &err), 0);
	struct loop *l = loop_new();
	struct connection *c = connection_new(l, &to, &outcome_ops, &o);
	assert_non_null(c);
	cleanup_fd int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	cleanup_free char *bytes = calloc(1, ALL);
	size_t sent = 0;
	while (o.got < ALL) {
		ssize_t n = sent < ALL ? send(peer, bytes, ALL - sent, MSG_DONTWAIT) : 0;
		sent += n > 0 ? (size_t)n : 0;
		if (n > 0 && sent == ALL)
			assert_int_equal(shutdown(peer, SHUT_WR), 0);
		assert_int_equal(o.ended, 0);
		connection_set_reading(c, true);
		assert_true(loop_turn(l, 10) >= 0);
	}
	assert_int_equal(o.ended, 0); /* reading is off since the last of them */
	for (int i = 0; i < 1000 && !o.ended; i++) {
		connection_set_reading(c, true);
		loop_turn(l, 10);
	}
	assert_true(o.ended == 1 && o.why == 0);
	assert_int_equal(connection_send(c, STR("and back")), 0);
	assert_int_equal(recv(peer, bytes, 8, MSG_WAITALL), 8);
	assert_memory_equal(bytes, "and back", 8);
	connection_shutdown(c);
	assert_int_equal(recv(peer, bytes, 8, 0), 0);
	connection_free(c);
	loop_free(l);
	destination_done(&to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_out_what_tells_of_the_server),
		cmocka_unit_test(scrubs_before_it_cuts),
		cmocka_unit_test(paths_stay_in_the_workspace),
		cmocka_unit_test(long_output_keeps_both_ends),
		cmocka_unit_test(redirects_stay_with_the_sandbox),
		cmocka_unit_test(an_end_waits_for_what_came_before_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
