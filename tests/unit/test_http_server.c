/* The server side of io/http_server.h, driven over socket pairs and TCP with one loop. */
#include "unit.h"
#include "base/clock.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "io/http_server.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* What the handler saw and did; one test at a time. */
static struct {
	struct loop *loop;
	struct http_server *server;
	struct http_req *req; /* the last one, until closed */
	struct buf body;
	size_t take;    /* bytes body() takes at once; 0 = all */
	bool hold;      /* body() takes nothing */
	unsigned requests, ends, closed, complete, writable, hangups;
	size_t queued, sent; /* of /flood */
	int detached;
	struct buf rest;
} t;

static size_t on_body(struct http_req *r, const char *p, size_t n)
{
	if (t.hold)
		return 0;
	size_t take = t.take && t.take < n ? t.take : n;
	buf_add(&t.body, p, take);
	if (take < n)
		http_req_resume(r);
	return take;
}

static void on_end(struct http_req *r)
{
	t.ends++;
	if (str_is(r->head->path, "/echo"))
		http_respond(r, 200, "text/plain", NULL, buf_str(&t.body));
	if (str_is(r->head->path, "/raw") && t.ends == 2)
		http_finish(r);
}

static void flood(struct http_req *r)
{
	static char block[50000];
	memset(block, 'x', sizeof(block));
	while (t.sent < 4000000) {
		t.sent += sizeof(block);
		t.queued = http_send(r, block, sizeof(block));
		if (t.queued > HTTP_HIGH_WATER)
			return;
	}
	http_finish(r);
}

static void on_writable(struct http_req *r)
{
	t.writable++;
	flood(r);
}

static void on_hangup(struct http_req *r)
{
	t.hangups++;
}

static void on_closed(struct http_req *r, bool complete)
{
	t.closed++;
	t.complete += complete;
	t.req = NULL;
}

static const struct http_req_ops ops = {on_body, on_end, on_writable, on_hangup, on_closed};

static void on_request(struct http_req *r, void *arg)
{
	t.requests++;
	t.req = r;
	struct str path = r->head->path;
	if (str_is(path, "/detach")) {
		http_hold(r);
		t.detached = http_detach(r, &t.rest);
		return;
	}
	r->ops = &ops;
	if (str_is(path, "/hold"))
		http_hold(r);
	else if (str_is(path, "/hello"))
		http_respond(r, 200, "text/plain", "X-A: b\r\n", STR("hello"));
	else if (str_is(path, "/none"))
		http_respond(r, 204, NULL, NULL, STR(""));
	else if (str_is(path, "/deny"))
		http_respond_error(r, 403, "no \"%s\"", "x");
	else if (str_is(path, "/flood")) {
		http_start(r, 200, NULL, NULL, HTTP_BODY_CHUNKED, 0);
		flood(r);
	} else if (str_is(path, "/chunks") || str_is(path, "/cut")) {
		http_start(r, 200, "Fine", NULL, HTTP_BODY_CHUNKED, 0);
		http_send(r, "abc", 3);
		http_send(r, "", 0);
		http_send(r, "defg", 4);
		if (str_is(path, "/cut"))
			http_abort(r);
		else
			http_finish(r);
	} else if (str_is(path, "/short")) {
		http_start(r, 200, NULL, NULL, HTTP_BODY_LENGTH, 10);
		http_send(r, "abc", 3);
		http_finish(r);
	} else if (str_is(path, "/twice")) {
		http_respond(r, 200, NULL, NULL, STR("one"));
		http_respond(r, 200, NULL, NULL, STR("two"));
	} else if (str_is(path, "/own")) {
		r->own_continue = true;
	}
}

static void start(const struct http_server_config *extra)
{
	memset(&t, 0, sizeof(t));
	struct http_server_config config = extra ? *extra : (struct http_server_config){0};
	config.on_request = on_request;
	t.loop = loop_new();
	t.server = http_server_new(t.loop, &config);
	assert_non_null(t.server);
}

static void stop(void)
{
	http_server_free(t.server);
	loop_turn(t.loop, 0);
	loop_free(t.loop);
	buf_done(&t.body);
	buf_done(&t.rest);
}

/* A client's end, non-blocking. */
static int connect_client(void)
{
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	fd_set_nonblock(fds[0], true);
	assert_int_equal(http_server_adopt(t.server, fds[1], STR("")), 0);
	loop_turn(t.loop, 0);
	return fds[0];
}

/* Reads what is there into `to` (NULL = away); true at the end of the stream (a reset counts). */
static bool take(int fd, struct buf *to)
{
	static char p[65536];
	for (;;) {
		ssize_t r = read(fd, p, sizeof(p));
		if (r == 0 || (r < 0 && errno != EAGAIN))
			return true;
		if (r < 0)
			return false;
		if (to)
			buf_add(to, p, (size_t)r);
	}
}

static void turns(int n)
{
	for (int i = 0; i < n; i++)
		loop_turn(t.loop, 0);
}

static void say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
	turns(4);
}

/* Sends a whole exchange on a fresh connection and gives all that comes back within a few turns, NUL-terminated. *ret_eof: the server closed. */
static const char *exchange(const char *text, bool *ret_eof)
{
	static struct buf answer;
	buf_clear(&answer);
	int fd = connect_client();
	say(fd, text);
	*ret_eof = take(fd, &answer);
	close(fd);
	turns(2);
	return buf_cstr(&answer);
}

static bool ends_with(const char *s, const char *tail)
{
	size_t n = strlen(s), m = strlen(tail);
	return n >= m && strcmp(s + n - m, tail) == 0;
}

static void add_method(const struct http_head *h, struct buf *to)
{
	buf_addf(to, "X-Method: %.*s\r\n", STR_FMT(h->method));
}

static void an_owner_adds_headers_to_every_answer(void **state)
{
	start(&(struct http_server_config){.add_headers = add_method});
	bool eof;
	assert_non_null(strstr(exchange("GET /hello HTTP/1.1\r\nHost: h\r\n\r\n", &eof), "\r\nX-Method: GET\r\n"));
	assert_non_null(strstr(exchange("GET /deny HTTP/1.1\r\nHost: h\r\n\r\n", &eof), "\r\nX-Method: GET\r\n"));
	assert_non_null(strstr(exchange("HEAD /none HTTP/1.1\r\nHost: h\r\n\r\n", &eof), "\r\nX-Method: HEAD\r\n"));
	/* No request, no head to look at. */
	assert_null(strstr(exchange("GET\r\n\r\n", &eof), "X-Method"));
	stop();
}

static void whole_answers_are_framed(void **state)
{
	start(&(struct http_server_config){.server_name = "cubicle"});
	bool eof;
	const char *a = exchange("GET /hello HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_false(eof);
	assert_int_equal(strncmp(a, "HTTP/1.1 200 OK\r\nDate: ", 23), 0);
	assert_non_null(strstr(a, "\r\nServer: cubicle\r\n"));
	assert_non_null(strstr(a, "\r\nX-A: b\r\n"));
	assert_non_null(strstr(a, "\r\nContent-Type: text/plain\r\n"));
	assert_non_null(strstr(a, "\r\nContent-Length: 5\r\n"));
	assert_true(ends_with(a, "\r\n\r\nhello"));
	a = exchange("HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_false(eof);
	assert_non_null(strstr(a, "\r\nContent-Length: 5\r\n"));
	assert_true(ends_with(a, "\r\n\r\n"));
	a = exchange("GET /none HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_null(strstr(a, "Content-Length"));
	a = exchange("GET /deny HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_true(ends_with(a, "\r\n\r\n{\"code\":403,\"message\":\"no \\\"x\\\"\"}"));
	assert_int_equal(t.closed, 4);
	assert_int_equal(t.complete, 4);
	assert_int_equal(http_server_connections(t.server), 0);
	stop();
}

static void streams_are_chunked_or_end_with_the_connection(void **state)
{
	start(NULL);
	bool eof;
	const char *a = exchange("GET /chunks HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_int_equal(strncmp(a, "HTTP/1.1 200 Fine\r\n", 19), 0);
	assert_true(ends_with(a, "\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"));
	assert_false(eof);
	a = exchange("GET /chunks HTTP/1.0\r\n\r\n", &eof);
	assert_true(ends_with(a, "Connection: close\r\n\r\nabcdefg"));
	assert_true(eof);
	a = exchange("HEAD /chunks HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_true(ends_with(a, "Transfer-Encoding: chunked\r\n\r\n"));
	stop();
}

static void a_cut_stream_has_no_last_chunk(void **state)
{
	start(NULL);
	bool eof;
	const char *a = exchange("GET /cut HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_true(eof);
	assert_true(ends_with(a, "4\r\ndefg\r\n"));
	assert_int_equal(t.closed, 1);
	assert_int_equal(t.complete, 0);
	a = exchange("GET /short HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_true(eof);
	assert_true(ends_with(a, "\r\n\r\nabc"));
	assert_int_equal(t.complete, 0);
	stop();
}

static void pipelined_requests_are_answered_in_order(void **state)
{
	start(NULL);
	bool eof;
	const char *a = exchange("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
				 "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nd\r\n2\r\nef\r\n0\r\n\r\n"
				 "GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /hello HTTP/1.1\r\nHost: h\r\n\r\n",
		&eof);
	assert_true(eof);
	assert_int_equal(t.requests, 3);
	const char *one = strstr(a, "\r\n\r\nabc"), *two = strstr(a, "\r\n\r\nabcdef"), *three = strstr(a, "\r\n\r\nhello");
	assert_true(one && two && three && one < two && two < three);
	assert_true(ends_with(a, "Connection: close\r\n\r\nhello"));
	stop();
}

static void bad_heads_and_bodies_are_refused_and_closed(void **state)
{
	start(NULL);
	bool eof;
	const char *a = exchange("GET / HTTP/1.1\r\n\r\nGET /hello HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_int_equal(strncmp(a, "HTTP/1.1 400 ", 13), 0);
	assert_non_null(strstr(a, "{\"code\":400,\"message\":\"Bad Request\"}"));
	assert_true(eof);
	assert_int_equal(t.requests, 0);
	a = exchange("PUT /hello HTTP/1.1\r\nHost: h\r\nExpect: foo\r\nContent-Length: 5\r\n\r\n", &eof);
	assert_int_equal(strncmp(a, "HTTP/1.1 417 ", 13), 0);
	assert_true(eof);
	a = exchange("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX", &eof);
	assert_int_equal(strncmp(a, "HTTP/1.1 400 ", 13), 0);
	assert_true(eof);
	assert_int_equal(t.closed, 1);
	assert_int_equal(t.complete, 0);
	/* a body cut short is no body */
	int fd = connect_client();
	say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhel");
	shutdown(fd, SHUT_WR);
	turns(3);
	assert_true(take(fd, NULL));
	assert_int_equal(t.ends, 0);
	assert_int_equal(t.closed, 2);
	close(fd);
	stop();
}

static void continue_is_said_when_the_body_is_wanted(void **state)
{
	start(NULL);
	struct buf a = BUF_INIT;
	int fd = connect_client();
	say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	take(fd, &a);
	assert_str(buf_str(&a), "HTTP/1.1 100 Continue\r\n\r\n");
	say(fd, "hi");
	assert_false(take(fd, &a));
	assert_true(ends_with(buf_cstr(&a), "\r\n\r\nhi"));
	/* refused before: no 100, and the connection ends, since the body may or may not come */
	buf_clear(&a);
	say(fd, "POST /deny HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	assert_true(take(fd, &a));
	assert_int_equal(strncmp(buf_cstr(&a), "HTTP/1.1 403 ", 13), 0);
	close(fd);
	/* the owner's own */
	buf_clear(&a);
	fd = connect_client();
	say(fd, "POST /own HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	take(fd, &a);
	assert_int_equal(buf_len(&a), 0);
	http_interim(t.req, 103, "Link: x\r\n");
	http_interim(t.req, 100, NULL);
	take(fd, &a);
	assert_str(buf_str(&a), "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
	close(fd);
	buf_done(&a);
	stop();
}

static void unread_bodies_are_drained_up_to_a_bound(void **state)
{
	start(NULL);
	struct buf a = BUF_INIT;
	static char block[65536];
	int fd = connect_client();
	say(fd, "POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 131072\r\n\r\n");
	for (int i = 0; i < 2; i++) {
		fd_set_nonblock(fd, false);
		assert_int_equal(send(fd, block, sizeof(block) / 2, 0), sizeof(block) / 2);
		turns(3);
		assert_int_equal(send(fd, block, sizeof(block) / 2, 0), sizeof(block) / 2);
		turns(3);
		fd_set_nonblock(fd, true);
	}
	say(fd, "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n");
	assert_false(take(fd, &a));
	assert_int_equal(t.complete, 2);
	assert_int_equal(buf_len(&t.body), 0);
	close(fd);
	/* a longer one: the answer comes, then the end */
	buf_clear(&a);
	fd = connect_client();
	say(fd, "POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
	assert_true(take(fd, &a));
	assert_true(ends_with(buf_cstr(&a), "hello"));
	assert_true(send(fd, block, sizeof(block), MSG_NOSIGNAL) > 0); /* still taken: no reset before the peer has read */
	turns(3);
	close(fd);
	turns(3);
	assert_int_equal(http_server_connections(t.server), 0);
	buf_done(&a);
	stop();
}

static void a_slow_owner_stops_the_reading(void **state)
{
	start(NULL);
	t.hold = true;
	int fd = connect_client();
	say(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n");
	static char block[65536];
	size_t sent = 0;
	for (int idle = 0; idle < 10;) {
		ssize_t r = send(fd, block, sizeof(block), MSG_NOSIGNAL);
		idle = r > 0 ? 0 : idle + 1;
		sent += r > 0 ? (size_t)r : 0;
		turns(1);
	}
	assert_true(sent < 2000000);
	t.hold = false;
	t.take = 1000;
	http_req_resume(t.req);
	for (int i = 0; i < 100000 && buf_len(&t.body) < 10000000; i++) {
		ssize_t r = send(fd, block, sent + sizeof(block) > 10000000 ? 10000000 - sent : sizeof(block), MSG_NOSIGNAL);
		sent += r > 0 ? (size_t)r : 0;
		turns(1);
	}
	assert_int_equal(buf_len(&t.body), 10000000);
	assert_int_equal(t.ends, 1);
	close(fd);
	stop();
}

static void a_slow_reader_stops_the_sending(void **state)
{
	start(NULL);
	int fd = connect_client();
	say(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
	turns(20);
	size_t stuck = t.sent;
	assert_true(stuck < 4000000);
	turns(20);
	assert_int_equal(t.sent, stuck);
	struct buf a = BUF_INIT;
	for (int i = 0; i < 2000 && !t.complete; i++) {
		take(fd, &a);
		turns(1);
	}
	take(fd, &a);
	assert_true(t.writable > 1);
	assert_int_equal(t.complete, 1);
	assert_true(ends_with(buf_cstr(&a), "\r\n0\r\n\r\n"));
	assert_true(buf_len(&a) > 4000000);
	buf_done(&a);
	close(fd);
	stop();
}

static void a_client_that_is_gone_ends_the_request(void **state)
{
	start(NULL);
	int fd = connect_client();
	say(fd, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
	close(fd);
	turns(5);
	assert_int_equal(t.closed, 1);
	assert_int_equal(t.complete, 0);
	/* one that only closes its half is told as such and still gets its answer */
	fd = connect_client();
	say(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
	shutdown(fd, SHUT_WR);
	turns(5);
	assert_int_equal(t.hangups, 1);
	http_respond(t.req, 200, NULL, NULL, STR("late"));
	turns(3);
	struct buf a = BUF_INIT;
	assert_true(take(fd, &a));
	assert_true(ends_with(buf_cstr(&a), "late"));
	assert_int_equal(t.complete, 1);
	buf_done(&a);
	close(fd);
	stop();
}

static void a_second_answer_cuts_instead_of_mixing(void **state)
{
	start(NULL);
	bool eof;
	const char *a = exchange("GET /twice HTTP/1.1\r\nHost: h\r\n\r\n", &eof);
	assert_null(strstr(a, "two"));
	assert_true(eof);
	stop();
}

static void slow_heads_and_idle_connections_run_out(void **state)
{
	start(&(struct http_server_config){.idle_timeout_ns = 1000000, .head_timeout_ns = 1000000});
	struct buf a = BUF_INIT;
	int fd = connect_client();
	assert_int_equal(write(fd, "GET / HT", 8), 8);
	for (int i = 0; i < 1000 && !take(fd, &a); i++)
		loop_turn(t.loop, 5);
	/* the idle time may strike first when the machine is slow; then nothing is said */
	assert_true(buf_len(&a) == 0 || strncmp(buf_cstr(&a), "HTTP/1.1 408 ", 13) == 0);
	assert_true(take(fd, &a));
	close(fd);
	fd = connect_client();
	for (int i = 0; i < 1000 && !take(fd, NULL); i++)
		loop_turn(t.loop, 5);
	assert_true(take(fd, NULL));
	close(fd);
	turns(2);
	assert_int_equal(http_server_connections(t.server), 0);
	buf_done(&a);
	stop();
}

static void an_upgrade_passes_bytes_and_half_closes(void **state)
{
	start(NULL);
	struct buf a = BUF_INIT;
	int fd = connect_client();
	say(fd, "GET /raw HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
	assert_int_equal(t.ends, 1);
	http_upgrade(t.req, 101, NULL, "Upgrade: x\r\n");
	http_send(t.req, "to client", 9);
	say(fd, "to server");
	take(fd, &a);
	assert_str(buf_str(&a), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nto client");
	assert_str(buf_str(&t.body), "to server");
	shutdown(fd, SHUT_WR);
	loop_turn(t.loop, 0);
	assert_int_equal(t.ends, 2); /* which finishes our half */
	turns(3);
	assert_true(take(fd, &a));
	assert_int_equal(t.complete, 1);
	close(fd);

	/* our half first: the other one still works */
	fd = connect_client();
	t.ends = 0;
	buf_clear(&t.body);
	say(fd, "GET /raw HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
	http_upgrade(t.req, 101, NULL, NULL);
	http_finish(t.req);
	turns(2);
	assert_true(take(fd, NULL));
	say(fd, "still heard");
	assert_str(buf_str(&t.body), "still heard");
	assert_int_equal(t.closed, 1);
	close(fd);
	turns(4);
	assert_int_equal(t.closed, 2);
	buf_done(&a);
	stop();
}

/* cases.md 145: a terminal that nobody types in is not cut. */
static void a_silent_tunnel_outlives_the_idle_time(void **state)
{
	start(&(struct http_server_config){.idle_timeout_ns = NS_PER_S, .head_timeout_ns = NS_PER_S});
	struct buf a = BUF_INIT;
	int fd = connect_client(), idle = connect_client();
	say(fd, "GET /raw HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
	http_upgrade(t.req, 101, NULL, NULL);
	/* The other one shows that the time is over. */
	while (http_server_connections(t.server) > 1)
		loop_turn(t.loop, 20);
	turns(5);
	assert_int_equal(t.closed, 0);
	say(fd, "still heard");
	assert_str(buf_str(&t.body), "still heard");
	http_send(t.req, "and answered", 12);
	turns(2);
	take(fd, &a);
	assert_true(ends_with(buf_cstr(&a), "and answered"));
	close(fd);
	close(idle);
	buf_done(&a);
	stop();
}

/* A held request reads nothing more; it can be answered, or be given away later. */
static void a_held_request_waits(void **state)
{
	start(NULL);
	struct buf a = BUF_INIT;
	int fd = connect_client();
	say(fd, "POST /hold HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 6\r\n\r\nabc");
	say(fd, "def");
	say(fd, "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n");
	assert_int_equal(buf_len(&t.body), 0);
	assert_int_equal(t.ends, 0);
	assert_false(take(fd, &a));
	assert_int_equal(buf_len(&a), 0);
	http_respond_error(t.req, 429, "no");
	turns(5);
	take(fd, &a);
	assert_non_null(strstr(buf_cstr(&a), "429"));
	assert_int_equal(t.closed, 1);
	close(fd);
	turns(3);

	buf_clear(&a);
	fd = connect_client();
	say(fd, "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc");
	say(fd, "def");
	int conn = http_detach(t.req, &t.rest);
	assert_true(conn >= 0);
	assert_str(buf_str(&t.rest), "abc");
	assert_int_equal(http_server_connections(t.server), 0);
	char more[8];
	assert_int_equal(recv(conn, more, sizeof(more), MSG_DONTWAIT), 3);
	assert_int_equal(t.closed, 1);
	close(conn);
	close(fd);

	/* A client that leaves ends it. */
	fd = connect_client();
	say(fd, "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc");
	struct linger reset = {.l_onoff = 1};
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
	turns(3);
	assert_int_equal(t.closed, 2);
	buf_done(&a);
	stop();
}

static void a_detached_connection_comes_back(void **state)
{
	start(NULL);
	struct buf a = BUF_INIT;
	int fd = connect_client();
	say(fd, "POST /detach HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
	assert_true(t.detached >= 0);
	assert_str(buf_str(&t.rest), "abc");
	assert_int_equal(t.closed, 0);
	assert_int_equal(http_server_connections(t.server), 0);
	assert_int_equal(write(t.detached, "x", 1), 1);
	assert_int_equal(http_server_adopt(t.server, t.detached, STR("GET /hello HT")), 0);
	turns(2);
	say(fd, "TP/1.1\r\nHost: h\r\n\r\n");
	take(fd, &a);
	assert_true(ends_with(buf_cstr(&a), "hello"));
	close(fd);
	buf_done(&a);
	stop();
}

static int listen_tcp(struct sockaddr_in *ret)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	*ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)ret, sizeof(*ret)), 0);
	assert_int_equal(listen(fd, 64), 0);
	socklen_t n = sizeof(*ret);
	getsockname(fd, (struct sockaddr *)ret, &n);
	return fd;
}

static int connect_tcp(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
	fd_set_nonblock(fd, true);
	return fd;
}

static void accepting_waits_at_the_limit(void **state)
{
	start(&(struct http_server_config){.max_connections = 2});
	struct sockaddr_in to;
	int l = listen_tcp(&to), c[3];
	assert_int_equal(http_server_listen(t.server, l), 0);
	for (int i = 0; i < 3; i++)
		c[i] = connect_tcp(&to);
	turns(5);
	assert_int_equal(http_server_connections(t.server), 2);
	close(c[0]);
	for (int i = 0; i < 100 && t.requests == 0; i++) {
		send(c[2], "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n", i ? 0 : 33, MSG_NOSIGNAL);
		loop_turn(t.loop, 10);
	}
	assert_int_equal(t.requests, 1);
	close(c[1]), close(c[2]), close(l);
	stop();
}

/* Whoever only holds connections keeps nobody out: the one that waits for longest goes, one with a request stays. */
static void the_idle_make_room_at_the_limit(void **state)
{
	start(&(struct http_server_config){.max_connections = 3});
	struct sockaddr_in to;
	int l = listen_tcp(&to), c[4];
	char byte;
	assert_int_equal(http_server_listen(t.server, l), 0);
	c[0] = connect_tcp(&to);
	send(c[0], "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", 51, MSG_NOSIGNAL);
	turns(5);
	for (int i = 1; i < 3; i++) {
		c[i] = connect_tcp(&to);
		turns(5);
	}
	send(c[1], "GET /slow", 9, MSG_NOSIGNAL);
	assert_int_equal(http_server_connections(t.server), 3);
	unsigned requests = t.requests;
	assert_int_equal(requests, 1);
	c[3] = connect_tcp(&to);
	send(c[3], "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n", 33, MSG_NOSIGNAL);
	for (int i = 0; i < 500 && t.requests == requests; i++)
		loop_turn(t.loop, 10);
	assert_int_equal(t.requests, requests + 1);
	errno = 0;
	assert_true(recv(c[1], &byte, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
	assert_true(recv(c[2], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	assert_true(recv(c[0], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	for (int i = 0; i < 4; i++)
		close(c[i]);
	close(l);
	stop();
}

/* Without a descriptor left the connection waits in the backlog, the loop does not spin, and it is served when there is one. */
static void no_descriptor_left_pauses_accepting(void **state)
{
	start(NULL);
	struct sockaddr_in to;
	int l = listen_tcp(&to);
	assert_int_equal(http_server_listen(t.server, l), 0);
	int c = connect_tcp(&to);
	struct rlimit old, low;
	getrlimit(RLIMIT_NOFILE, &old);
	int lowest = dup(0);
	low = (struct rlimit){(rlim_t)lowest, old.rlim_max};
	close(lowest);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	loop_turn(t.loop, 0);
	assert_int_equal(http_server_connections(t.server), 0);
	/* parked: the readable listener does not wake the loop again */
	struct loop *inner = t.loop;
	for (int i = 0; i < 3; i++)
		loop_turn(inner, 0);
	assert_int_equal(http_server_connections(t.server), 0);
	setrlimit(RLIMIT_NOFILE, &old);
	for (int i = 0; i < 200 && !http_server_connections(t.server); i++)
		loop_turn(t.loop, 20);
	assert_int_equal(http_server_connections(t.server), 1);
	close(c), close(l);
	stop();
}

static void draining_finishes_what_is_open(void **state)
{
	start(NULL);
	struct buf a = BUF_INIT;
	int idle = connect_client(), busy = connect_client();
	say(busy, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
	http_server_drain(t.server);
	turns(3);
	assert_true(take(idle, NULL));
	assert_false(take(busy, NULL));
	http_respond(t.req, 200, NULL, NULL, STR("done"));
	turns(3);
	assert_true(take(busy, &a));
	assert_true(ends_with(buf_cstr(&a), "Connection: close\r\n\r\ndone"));
	close(idle), close(busy);
	turns(3);
	assert_int_equal(http_server_connections(t.server), 0);
	buf_done(&a);
	stop();
}

static void freeing_the_server_ends_every_request_once(void **state)
{
	start(NULL);
	int a = connect_client(), b = connect_client();
	say(a, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
	say(b, "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
	assert_int_equal(t.requests, 2);
	stop();
	assert_int_equal(t.closed, 2);
	assert_int_equal(t.complete, 0);
	close(a), close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_answers_are_framed),
		cmocka_unit_test(an_owner_adds_headers_to_every_answer),
		cmocka_unit_test(streams_are_chunked_or_end_with_the_connection),
		cmocka_unit_test(a_cut_stream_has_no_last_chunk),
		cmocka_unit_test(pipelined_requests_are_answered_in_order),
		cmocka_unit_test(bad_heads_and_bodies_are_refused_and_closed),
		cmocka_unit_test(continue_is_said_when_the_body_is_wanted),
		cmocka_unit_test(unread_bodies_are_drained_up_to_a_bound),
		cmocka_unit_test(a_slow_owner_stops_the_reading),
		cmocka_unit_test(a_slow_reader_stops_the_sending),
		cmocka_unit_test(a_client_that_is_gone_ends_the_request),
		cmocka_unit_test(a_second_answer_cuts_instead_of_mixing),
		cmocka_unit_test(slow_heads_and_idle_connections_run_out),
		cmocka_unit_test(an_upgrade_passes_bytes_and_half_closes),
		cmocka_unit_test(a_silent_tunnel_outlives_the_idle_time),
		cmocka_unit_test(a_held_request_waits),
		cmocka_unit_test(a_detached_connection_comes_back),
		cmocka_unit_test(accepting_waits_at_the_limit),
		cmocka_unit_test(the_idle_make_room_at_the_limit),
		cmocka_unit_test(no_descriptor_left_pauses_accepting),
		cmocka_unit_test(draining_finishes_what_is_open),
		cmocka_unit_test(freeing_the_server_ends_every_request_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
