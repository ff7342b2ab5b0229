#include "unit.h"

#include "base/cleanup.h"
#include "image/envd.h"
#include "io/connect.h"

#include <errno.h>
#include <sys/socket.h>

/* A guest that answers whatever is asked with these bytes, and goes. */
struct guest {
	struct str answer;
	unsigned pieces; /* that it comes in */
};

static int dial(void *arg, unsigned port, struct error *err)
{
	const struct guest *g = arg;
	int pair[2], size = 1 << 20;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	for (size_t at = 0, step = g->answer.n / g->pieces + 1; at < g->answer.n; at += step)
		assert_true(send(pair[1], g->answer.p + at, MIN(step, g->answer.n - at), MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
	/* What is asked is not read: nobody waits for that here. */
	shutdown(pair[1], SHUT_WR);
	static int kept = -1;
	if (kept >= 0)
		close(kept);
	kept = pair[1];
	return pair[0];
}

static void no_line(void *arg, bool is_stderr, struct str line)
{
	assert_true(line.n <= 4096);
}

/* All calls, against one answer; what each says of it. */
static void ask_all(struct str answer, unsigned pieces, int r[7], struct error *err)
{
	struct guest g = {answer, pieces};
	const struct envd e = {.connect = dial, .arg = &g, .token = "token"};
	const char *const argv[] = {"/bin/true", NULL};
	const struct envd_command c = {.argv = argv, .line = no_line};
	const struct envd_file file = {"f", 0100644, 0, 0, STR("text")};
	struct envd_end end;
	struct envd_stat st;
	struct envd_download *d = NULL;
	cleanup_buf struct buf to = BUF_INIT;
	char piece[512];
	r[0] = envd_run(&e, &c, &end, err);
	r[1] = envd_stat(&e, "/x", &st, err);
	r[2] = envd_make_dir(&e, "/x", "root", err);
	r[3] = envd_remove(&e, "/x", err);
	r[4] = envd_read_file(&e, "/x", 100, &to, err);
	assert_true(buf_len(&to) <= 100);
	r[5] = envd_download_open(&e, "/x", &d, err);
	for (ssize_t n = 1; r[5] == 0 && n > 0;) {
		n = envd_download_read(d, piece, sizeof(piece), err);
		if (n < 0)
			r[5] = (int)n;
	}
	if (d)
		envd_download_close(d);
	r[6] = envd_place(&e, "/x", &file, 1, err);
}

static void all_fail(struct str answer)
{
	for (unsigned pieces = 1; pieces < 4; pieces++) {
		struct error err = {0};
		int r[7];
		ask_all(answer, pieces, r, &err);
		/* An upload is over with the head of its answer. */
		for (size_t i = 0; i + 1 < ARRAY_SIZE(r); i++)
			if (r[i] >= 0)
				fail_msg("call %zu took '%.60s'", i, answer.p);
		assert_true(err.code < 0 && *err.message);
	}
}

#define OK "HTTP/1.1 200 OK\r\n"

static void answers_that_are_none_are_errors(void **state)
{
	static const char *const answers[] = {
		"", "HTTP/1.1", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
		OK "Content-Length: 1000\r\n\r\nshort", OK "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx", OK "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		OK "Transfer-Encoding: chunked\r\n\r\n5\r\nab", OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		OK "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\n\xff\xfe\x01\x02", "HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{\"messa\r\n",
	};
	for (size_t i = 0; i < ARRAY_SIZE(answers); i++)
		all_fail(str_of(answers[i]));
}

static void add_many(struct buf *to, const char *what, size_t bytes)
{
	while (buf_len(to) < bytes)
		buf_add_c(to, what);
}

static void what_does_not_end_is_cut(void **state)
{
	enum { MUCH = 180 * 1024 }; /* fits into the socket */
	cleanup_buf struct buf head = BUF_INIT, line = BUF_INIT, sizes = BUF_INIT, body = BUF_INIT;
	buf_add_c(&head, OK);
	add_many(&head, "X: y\r\n", MUCH);
	all_fail(buf_str(&head));
	add_many(&line, "HTTP/1.1 200 ", MUCH);
	all_fail(buf_str(&line));
	buf_add_c(&sizes, OK "Transfer-Encoding: chunked\r\n\r\n1;");
	add_many(&sizes, "extension", MUCH);
	all_fail(buf_str(&sizes));
	/* More than was asked for, without a length. */
	struct error err = {0};
	int r[7];
	buf_add_c(&body, OK "\r\n");
	add_many(&body, "bytes", MUCH);
	ask_all(buf_str(&body), 1, r, &err);
	assert_int_equal(r[4], -EFBIG);
}

/* One event, or what is called one. */
static int run_with(unsigned flags, struct str message, int64_t length, struct envd_end *end, struct error *err)
{
	cleanup_buf struct buf answer = BUF_INIT, event = BUF_INIT;
	assert_int_equal(connect_envelope(&event, flags, message), 0);
	if (length >= 0)
		for (int i = 0; i < 4; i++)
			event.data[event.start + 1 + (size_t)i] = (char)(length >> (8 * (3 - i)));
	buf_add_c(&answer, OK "Content-Type: application/connect+json\r\n\r\n");
	buf_add_str(&answer, buf_str(&event));
	struct guest g = {buf_str(&answer), 2};
	const struct envd e = {.connect = dial, .arg = &g, .token = "token"};
	const char *const argv[] = {"/bin/true", NULL};
	const struct envd_command c = {.argv = argv, .line = no_line};
	return envd_run(&e, &c, end, err);
}

static void events_that_lie_are_errors(void **state)
{
	static const char *const messages[] = {
		"", "x", "[]", "{}", "{\"event\":[]}", "{\"event\":{\"data\":{\"stdout\":7}}}", "{\"event\":{\"data\":{\"stdout\":\"!!\"}}}", "{\"event\":{\"start\":{\"pid\":1}}}",
	};
	struct envd_end end;
	struct error err = {0};
	for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
		if (run_with(0, str_of(messages[i]), -1, &end, &err) >= 0)
			fail_msg("%s", messages[i]);
	const struct str good = STR("{\"event\":{\"end\":{\"exitCode\":7,\"exited\":true,\"status\":\"exit status 7\"}}}");
	assert_int_equal(run_with(0, good, -1, &end, &err), 0);
	assert_int_equal(end.code, 7);
	static const int64_t lengths[] = {0, 1, 1000, INT32_MAX, UINT32_MAX};
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
		if (run_with(0, good, lengths[i], &end, &err) >= 0)
			fail_msg("a length of %lld", (long long)lengths[i]);
	/* A status of any length, text that is none. */
	cleanup_buf struct buf text = BUF_INIT;
	buf_add_c(&text, "{\"event\":{\"end\":{\"exitCode\":99999999999,\"status\":\"");
	add_many(&text, "s", 100000);
	buf_add_c(&text, "\"}}}");
	assert_int_equal(run_with(0, buf_str(&text), -1, &end, &err), 0);
	assert_int_equal(strlen(end.status), sizeof(end.status) - 1);
	assert_int_equal(run_with(2, STR("{\"error\":{\"code\":\"unauthenticated\",\"message\":\"no\"}}"), -1, &end, &err), -EACCES);
}

static void what_is_no_text_is_not_left_out(void **state)
{
	struct guest g = {STR(""), 1};
	struct env env = {0};
	const struct envd e = {.connect = dial, .arg = &g, .token = "token"};
	const char *const half[] = {"/bin/sh", "-c", "\xc3", NULL}, *const whole[] = {"/bin/sh", "-c", "\xc3\xa9", NULL};
	struct envd_end end;
	struct error err = {0};
	assert_int_equal(envd_run(&e, &(const struct envd_command){.argv = half}, &end, &err), -EINVAL);
	assert_int_equal(envd_run(&e, &(const struct envd_command){.argv = whole}, &end, &err), -EPIPE);
	assert_int_equal(env_set(&env, STR("A"), STR("\xc3")), 0);
	assert_int_equal(envd_run(&e, &(const struct envd_command){.argv = whole, .env = &env}, &end, &err), -EINVAL);
	assert_non_null(strstr(err.message, "UTF-8"));
	env_done(&env);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_that_are_none_are_errors),
		cmocka_unit_test(what_does_not_end_is_cut),
		cmocka_unit_test(events_that_lie_are_errors),
		cmocka_unit_test(what_is_no_text_is_not_left_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
