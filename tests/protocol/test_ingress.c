/* The ingress between clients and sandboxes. */
#include "ingress_world.h"

#include "base/cleanup.h"
#include "base/fd.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

static void a_request_goes_in_and_its_answer_comes_out(void **state)
{
	start();
	int c = connect_client();
	say(c, "POST /x?y=1 HTTP/1.1\r\nHost: 3000-iabc.sbx.test\r\nX-Api-Key: e2b_own\r\nE2b-Sandbox-Id: iabc\r\nX-Mine: 1\r\nContent-Length: 5\r\n\r\nhello");
	assert_int_equal(t.n_apps, 1);
	assert_string_equal(heard(t.apps[0]), "POST /x?y=1 HTTP/1.1\r\nHost: 3000-iabc.sbx.test\r\nX-Mine: 1\r\nX-Forwarded-Host: 3000-iabc.sbx.test\r\n"
					      "X-Forwarded-Proto: http\r\nContent-Length: 5\r\n\r\nhello");
	say(t.apps[0], "HTTP/1.1 201 Made\r\nDate: then\r\nX-Theirs: 2\r\nContent-Length: 3\r\n\r\nyes");
	assert_string_equal(heard(c), "HTTP/1.1 201 Made\r\nDate: then\r\nX-Theirs: 2\r\nContent-Length: 3\r\n\r\nyes");
	/* both connections serve again */
	say(c, "GET /2 HTTP/1.1\r\nHost: 3000-iabc.sbx.test\r\n\r\n");
	assert_int_equal(t.n_apps, 1);
	assert_int_equal(strncmp(heard(t.apps[0]), "GET /2 HTTP/1.1\r\n", 17), 0);
	say(t.apps[0], "HTTP/1.1 204 \r\nDate: then\r\n\r\n");
	assert_string_equal(heard(c), "HTTP/1.1 204 No Content\r\nDate: then\r\n\r\n");
	/* another port is another connection */
	say(c, "GET /3 HTTP/1.1\r\nHost: 3001-iabc.sbx.test\r\n\r\n");
	assert_int_equal(t.n_apps, 2);
	close(c);
	stop();
}

/* What the routing answers to one request of a fresh connection; nothing may reach the node. */
static const char *refused(const char *text)
{
	int c = connect_client();
	unsigned before = t.opens;
	say(c, text);
	const char *answer = heard(c);
	assert_int_equal(t.opens, before);
	close(c);
	turns(2);
	return answer;
}

static void what_is_not_running_is_502(void **state)
{
	start();
	static const char *const hosts[] = {"49983-inone.x", "3000-ipaused.x"};
	for (size_t i = 0; i < 2; i++) {
		char text[256], want[256];
		snprintf(text, sizeof(text), "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i]);
		snprintf(want, sizeof(want), "{\"sandboxId\":\"%s\",\"message\":\"The sandbox was not found\",\"code\":502}", i ? "ipaused" : "inone");
		const char *a = refused(text);
		assert_int_equal(strncmp(a, "HTTP/1.1 502 ", 13), 0);
		assert_non_null(strstr(a, "Content-Type: application/json; charset=utf-8\r\n"));
		assert_string_equal(body_of(a), want);
	}
	const char *a = refused("GET / HTTP/1.1\r\nHost: 3000-inone.x\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\n\r\n");
	assert_int_equal(strncmp(a, "HTTP/1.1 502 ", 13), 0);
	assert_non_null(strstr(a, "Content-Type: text/html"));
	assert_non_null(strstr(a, "The sandbox was not found"));
	a = refused("GET / HTTP/1.1\r\nHost: 03000-iabc.x\r\n\r\n");
	assert_int_equal(strncmp(a, "HTTP/1.1 400 ", 13), 0);
	stop();
}

static void envds_internal_calls_are_404(void **state)
{
	start();
	const char *a = refused("POST /x/..//%69nit HTTP/1.1\r\nHost: 49983-iabc.x\r\nContent-Length: 2\r\n\r\n{}");
	assert_int_equal(strncmp(a, "HTTP/1.1 404 ", 13), 0);
	assert_non_null(strstr(body_of(a), ",\"path\":\"/init\",\"code\":404}"));
	/* on other ports the path is the application's */
	int c = connect_client();
	say(c, "GET /init HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	assert_int_equal(t.n_apps, 1);
	close(c);
	stop();
}

static void the_traffic_token_guards_what_has_no_token_of_its_own(void **state)
{
	start();
	const char *a = refused("GET / HTTP/1.1\r\nHost: 80-isecret.x\r\n\r\n");
	assert_int_equal(strncmp(a, "HTTP/1.1 403 ", 13), 0);
	assert_non_null(strstr(a, "e2b-traffic-access-token"));
	assert_int_equal(strncmp(refused("GET / HTTP/1.1\r\nHost: 80-isecret.x\r\nE2b-Traffic-Access-Token: tttx\r\n\r\n"), "HTTP/1.1 403 ", 13), 0);
	int c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 80-isecret.x\r\nE2B-TRAFFIC-ACCESS-TOKEN: tttt\r\n\r\n");
	assert_int_equal(t.n_apps, 1);
	assert_null(strcasestr(heard(t.apps[0]), "traffic"));
	close(c);
	c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 49983-isecret.x\r\n\r\n");
	assert_int_equal(t.n_apps, 2);
	close(c);
	/* An envd without a token of its own is guarded by this one. */
	assert_int_equal(strncmp(refused("GET / HTTP/1.1\r\nHost: 49983-iunsecured.x\r\n\r\n"), "HTTP/1.1 403 ", 13), 0);
	c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 49983-iunsecured.x\r\nE2B-TRAFFIC-ACCESS-TOKEN: tttt\r\n\r\n");
	assert_int_equal(t.n_apps, 3);
	close(c);
	stop();
}

static void a_closed_port_is_tried_again_then_502(void **state)
{
	start();
	int c = connect_client();
	say(c, "POST / HTTP/1.1\r\nHost: 7-iabc.x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
	await(c);
	assert_int_equal(t.opens, 3);
	assert_string_equal(body_of(heard(c)), "{\"sandboxId\":\"iabc\",\"message\":\"The sandbox is running but port is not open\",\"port\":7,\"code\":502}");
	close(c);
	t.opens = 0;
	c = connect_client();
	say(c, "POST / HTTP/1.1\r\nHost: 8-iabc.x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
	for (int i = 0; i < 400 && !t.n_apps; i++)
		loop_turn(t.loop, 20);
	assert_int_equal(t.n_apps, 1);
	assert_string_equal(body_of(heard(t.apps[0])), "1\r\nx\r\n0\r\n\r\n");
	close(c);
	stop();
}

static void other_refusals_of_the_node_are_told(void **state)
{
	start();
	int c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 9-iabc.x\r\n\r\n");
	await(c);
	assert_int_equal(t.opens, 3); /* the index might have had more to say */
	assert_non_null(strstr(heard(c), "The sandbox was not found"));
	say(c, "GET / HTTP/1.1\r\nHost: 11-iabc.x\r\n\r\n");
	const char *a = heard(c);
	assert_int_equal(strncmp(a, "HTTP/1.1 503 ", 13), 0);
	assert_non_null(strstr(a, "too busy"));
	/* a connection into another life of the sandbox is not used */
	say(c, "GET / HTTP/1.1\r\nHost: 12-iabc.x\r\n\r\n");
	await(c);
	assert_non_null(strstr(heard(c), "The sandbox was not found"));
	assert_int_equal(t.n_apps, 3);
	for (int i = 0; i < 3; i++)
		assert_string_equal(heard(t.apps[i]), "");
	/* unless the index hears of that life in time */
	say(c, "GET /moved HTTP/1.1\r\nHost: 12-iabc.x\r\n\r\n");
	say_sandbox("iabc", SANDBOX_RUNNING, "g9", NULL, true);
	turns(10);
	assert_int_equal(strncmp(heard(t.apps[t.n_apps - 1]), "GET /moved ", 11), 0);
	close(c);
	stop();
}

static void streams_pass_unbuffered_both_ways(void **state)
{
	start();
	int c = connect_client();
	say(c, "POST / HTTP/1.1\r\nHost: 80-iabc.x\r\nTransfer-Encoding: chunked\r\n\r\n");
	int app = t.apps[0];
	assert_non_null(strstr(heard(app), "\r\nTransfer-Encoding: chunked\r\n\r\n"));
	say(c, "3\r\none\r\n");
	assert_string_equal(heard(app), "3\r\none\r\n");
	say(app, "HTTP/1.1 200 OK\r\nDate: x\r\nTransfer-Encoding: chunked\r\n\r\n");
	assert_string_equal(heard(c), "HTTP/1.1 200 OK\r\nDate: x\r\nTransfer-Encoding: chunked\r\n\r\n");
	say(app, "4\r\nback\r\n");
	assert_string_equal(heard(c), "4\r\nback\r\n");
	say(c, "2;ext\r\nup\r\n0\r\nTrailer: x\r\n\r\n");
	assert_string_equal(heard(app), "2\r\nup\r\n0\r\n\r\n");
	say(app, "0\r\n\r\n");
	assert_string_equal(heard(c), "0\r\n\r\n");
	close(c);
	stop();
}

static void a_cut_answer_stays_cut(void **state)
{
	start();
	int c = connect_client();
	struct buf a = BUF_INIT;
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
	close(t.apps[0]);
	t.apps[0] = -1;
	turns(5);
	assert_int_not_equal(take(c, &a), OPEN);
	assert_non_null(strstr(buf_cstr(&a), "3\r\nabc\r\n"));
	assert_null(strstr(buf_cstr(&a), "0\r\n\r\n"));
	close(c);
	/* one that ends with the connection is whole, and chunked for the client */
	buf_clear(&a);
	c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	heard(t.apps[1]); /* closing with unread bytes would be a reset */
	say(t.apps[1], "HTTP/1.0 200 OK\r\n\r\nabc");
	close(t.apps[1]);
	t.apps[1] = -1;
	turns(5);
	assert_int_equal(take(c, &a), OPEN);
	assert_string_equal(body_of(buf_cstr(&a)), "3\r\nabc\r\n0\r\n\r\n");
	close(c);
	buf_done(&a);
	stop();
}

static void no_answer_and_no_http_are_502(void **state)
{
	start();
	static const char *const answers[] = {"", "HTTP/1.1 200 OK\r\nContent-Le", "220 smtp ready\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 101 x\r\n\r\n"};
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		int c = connect_client();
		say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
		say(t.apps[i], answers[i]);
		close(t.apps[i]);
		t.apps[i] = -1;
		assert_int_equal(strncmp(heard(c), "HTTP/1.1 502 ", 13), 0);
		close(c);
		turns(3);
	}
	stop();
}

/* Makes a pooled connection that served once. */
static int pooled(void)
{
	int c = connect_client();
	say(c, "GET /first HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	heard(t.apps[t.n_apps - 1]);
	say(t.apps[t.n_apps - 1], "HTTP/1.1 204 x\r\n\r\n");
	heard(c);
	return c;
}

static void a_closed_idle_connection_is_not_used(void **state)
{
	start();
	int c = pooled();
	close(t.apps[0]);
	t.apps[0] = -1;
	turns(2);
	say(c, "POST / HTTP/1.1\r\nHost: 80-iabc.x\r\nContent-Length: 1\r\n\r\nx");
	assert_int_equal(t.n_apps, 2);
	assert_string_equal(body_of(heard(t.apps[1])), "x");
	close(c);
	stop();
}

static void a_stale_connection_is_retried_once_where_that_is_safe(void **state)
{
	start();
	int c = pooled();
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	assert_int_equal(t.n_apps, 1);
	close(t.apps[0]); /* closed under the request */
	t.apps[0] = -1;
	turns(10);
	assert_int_equal(t.n_apps, 2);
	close(t.apps[1]); /* a fresh one is not tried again */
	t.apps[1] = -1;
	assert_int_equal(strncmp(heard(c), "HTTP/1.1 502 ", 13), 0);
	assert_int_equal(t.n_apps, 2);
	close(c);
	/* neither is what may have been acted on, nor a body that is gone */
	static const char *const unsafe[] = {"POST / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n", "PUT / HTTP/1.1\r\nHost: 80-iabc.x\r\nContent-Length: 1\r\n\r\nx"};
	for (int i = 0; i < 2; i++) {
		c = pooled();
		int last = t.n_apps - 1;
		say(c, unsafe[i]);
		close(t.apps[last]);
		t.apps[last] = -1;
		assert_int_equal(strncmp(heard(c), "HTTP/1.1 502 ", 13), 0);
		assert_int_equal(t.n_apps, last + 1);
		close(c);
		turns(3);
	}
	stop();
}

static void the_end_of_a_generation_cuts_everything(void **state)
{
	start();
	struct buf a = BUF_INIT;
	int idle = pooled(), waiting = connect_client(), streaming = connect_client(), opening = connect_client();
	say(waiting, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n"); /* takes the pooled one */
	say(streaming, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[1], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
	say(opening, "GET / HTTP/1.1\r\nHost: 10-iabc.x\r\n\r\n");
	say(idle, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[2], "HTTP/1.1 204 x\r\n\r\n");
	heard(idle);
	say_sandbox("iabc", SANDBOX_GONE, "g1", NULL, true);
	turns(10);
	for (int i = 0; i < 3; i++)
		assert_int_not_equal(take(t.apps[i], NULL), OPEN);
	assert_non_null(strstr(heard(waiting), "The sandbox was not found"));
	assert_non_null(strstr(heard(opening), "The sandbox was not found"));
	assert_int_not_equal(take(streaming, &a), OPEN);
	assert_null(strstr(buf_cstr(&a), "0\r\n\r\n"));
	say(idle, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	assert_non_null(strstr(heard(idle), "The sandbox was not found"));
	close(idle), close(waiting), close(streaming), close(opening);
	buf_done(&a);
	stop();
}

static void a_new_generation_gets_new_connections(void **state)
{
	start();
	int c = pooled();
	say_sandbox("iabc", SANDBOX_PAUSED, "g1", NULL, true);
	say_sandbox("iabc", SANDBOX_RUNNING, "g2", NULL, true);
	turns(5);
	assert_int_not_equal(take(t.apps[0], NULL), OPEN);
	say(c, "GET / HTTP/1.1\r\nHost: 12-iabc.x\r\n\r\n"); /* the node's stream says g9, and g2 is awaited */
	await(c);
	assert_non_null(strstr(heard(c), "The sandbox was not found"));
	close(c);
	stop();
}

static void tunnels_pass_bytes_and_half_closes(void **state)
{
	start();
	static const char upgrade[] = "GET /ws HTTP/1.1\r\nHost: 80-iabc.x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n";
	int c = connect_client();
	say(c, upgrade);
	assert_non_null(strstr(heard(t.apps[0]), "Sec-WebSocket-Key: k\r\n"));
	say(t.apps[0], "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\nearly");
	assert_string_equal(heard(c), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\nearly");
	say(c, "up");
	assert_string_equal(heard(t.apps[0]), "up");
	say(t.apps[0], "down");
	assert_string_equal(heard(c), "down");
	shutdown(c, SHUT_WR);
	turns(5);
	assert_int_equal(take(t.apps[0], NULL), ENDED);
	say(t.apps[0], "after");
	assert_string_equal(heard(c), "after");
	shutdown(t.apps[0], SHUT_WR);
	turns(5);
	assert_int_equal(take(c, NULL), ENDED);
	assert_int_equal(http_server_connections(t.server), 0);
	close(c);

	/* the other half first */
	c = connect_client();
	say(c, upgrade);
	say(t.apps[1], "HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n");
	shutdown(t.apps[1], SHUT_WR);
	heard(t.apps[1]);
	heard(c);
	assert_int_equal(take(c, NULL), ENDED);
	say(c, "still");
	assert_string_equal(heard(t.apps[1]), "still");
	shutdown(c, SHUT_WR);
	turns(5);
	assert_int_equal(take(t.apps[1], NULL), ENDED);
	close(c);
	stop();
}

static void a_refused_upgrade_is_an_answer(void **state)
{
	start();
	int c = connect_client();
	say(c, "GET /ws HTTP/1.1\r\nHost: 80-iabc.x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
	assert_string_equal(body_of(heard(c)), "no");
	close(c);
	stop();
}

/* RFC 6455 §1.3 has the key and the answer to it. cases.md 146 */
#define HANDSHAKE "Origin: http://page\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
static void case_146_a_websocket_that_leads_nowhere_is_closed_with_a_reason(void **state)
{
	static const char gone[] = "\x88\x1b\x0f\xa4The sandbox was not found";
	start();
	int c = connect_client();
	say(c, "GET /ws HTTP/1.1\r\nHost: 80-inone.x\r\n" HANDSHAKE "Sec-WebSocket-Protocol: chat, superchat\r\n\r\n");
	const char *text = heard(c);
	assert_int_equal(strncmp(text, "HTTP/1.1 101 ", 13), 0);
	assert_non_null(strstr(text, "\r\nConnection: Upgrade\r\n"));
	assert_non_null(strstr(text, "\r\nUpgrade: websocket\r\n"));
	assert_non_null(strstr(text, "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
	assert_non_null(strstr(text, "\r\nSec-WebSocket-Protocol: chat\r\n"));
	assert_string_equal(body_of(text), gone);
	turns(5);
	assert_int_equal(take(c, NULL), ENDED);
	close(c);
	/* What is no whole handshake gets a plain answer. */
	static const char *const others[] = {"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "Sec-WebSocket-Version: 13\r\n",
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ\r\nContent-Length: 0\r\n", "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n"};
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		char request[512];
		c = connect_client();
		snprintf(request, sizeof(request), "%s /ws HTTP/1.1\r\nHost: 80-inone.x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s\r\n", i == 2 ? "POST" : "GET", others[i]);
		say(c, request);
		assert_int_equal(strncmp(heard(c), "HTTP/1.1 502 ", 13), 0);
		close(c);
	}
	stop();
}

static void pages_of_other_origins_may_read_our_answers(void **state)
{
	start();
	int c = connect_client();
	say(c, "OPTIONS / HTTP/1.1\r\nHost: 80-inone.x\r\nOrigin: http://page\r\nAccess-Control-Request-Method: PATCH\r\nAccess-Control-Request-Headers: x-one, x-two\r\n\r\n");
	const char *text = heard(c);
	assert_int_equal(strncmp(text, "HTTP/1.1 204 ", 13), 0);
	assert_non_null(strstr(text, "\r\nAccess-Control-Allow-Origin: *\r\n"));
	assert_non_null(strstr(text, "\r\nAccess-Control-Allow-Methods: PATCH\r\n"));
	assert_non_null(strstr(text, "\r\nAccess-Control-Allow-Headers: x-one, x-two\r\n"));
	say(c, "PATCH / HTTP/1.1\r\nHost: 80-inone.x\r\nOrigin: http://page\r\nContent-Length: 0\r\n\r\n");
	text = heard(c);
	assert_int_equal(strncmp(text, "HTTP/1.1 502 ", 13), 0);
	assert_non_null(strstr(text, "\r\nAccess-Control-Allow-Origin: *\r\n"));
	say(c, "OPTIONS / HTTP/1.1\r\nHost: 80-inone.x\r\n\r\n");
	assert_int_equal(strncmp(heard(c), "HTTP/1.1 502 ", 13), 0);
	close(c);
	stop();
}

static void trailers_pass_both_ways(void **state)
{
	start();
	int c = connect_client();
	say(c, "POST / HTTP/1.1\r\nHost: 80-iabc.x\r\nTE: trailers, gzip\r\nConnection: TE\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum:  1 \r\n"
		"X-Forwarded-For: 1.2.3.4\r\nContent-Length: 3\r\nE2b-Sandbox-Id: other\r\nConnection: close\r\nx-last: \r\n\r\n");
	const char *text = heard(t.apps[0]);
	assert_non_null(strstr(text, "\r\nConnection: TE\r\nTE: trailers\r\n"));
	assert_non_null(strstr(text, "\r\nTrailer: X-Sum\r\n"));
	assert_string_equal(body_of(text), "2\r\nhi\r\n0\r\nX-Sum: 1\r\nx-last: \r\n\r\n");
	say(t.apps[0], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: grpc-status\r\n\r\n3\r\nyes\r\n0\r\ngrpc-status: 0\r\ngrpc-mess");
	say(t.apps[0], "age: fine\r\nX-Accel-Redirect: /etc/passwd\r\nTransfer-Encoding: chunked\r\n\r\n");
	text = heard(c);
	assert_non_null(strstr(text, "\r\nTrailer: grpc-status\r\n"));
	assert_string_equal(body_of(text), "3\r\nyes\r\n0\r\ngrpc-status: 0\r\ngrpc-message: fine\r\n\r\n");
	/* The connections go on; nothing is left of the trailers. */
	say(c, "POST / HTTP/1.1\r\nHost: 80-iabc.x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
	assert_string_equal(body_of(heard(t.apps[0])), "0\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
	assert_string_equal(body_of(heard(c)), "0\r\n\r\n");
	/* Who has only HTTP/1.0 gets none. */
	close(c);
	c = connect_client();
	say(c, "GET / HTTP/1.0\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\na: b\r\n\r\n");
	assert_string_equal(body_of(heard(c)), "x");
	close(c);
	stop();
}

static void interim_answers_pass_and_100_is_said_once(void **state)
{
	start();
	int c = connect_client();
	say(c, "PUT / HTTP/1.1\r\nHost: 80-iabc.x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	assert_non_null(strstr(heard(t.apps[0]), "Expect: 100-continue\r\n"));
	say(t.apps[0], "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
	assert_string_equal(heard(c), "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
	say(c, "ok");
	assert_string_equal(heard(t.apps[0]), "ok");
	close(c);
	/* a final answer first: no 100 */
	c = connect_client();
	say(c, "PUT / HTTP/1.1\r\nHost: 80-iabc.x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	say(t.apps[1], "HTTP/1.1 413 Too big\r\nContent-Length: 0\r\n\r\n");
	assert_int_equal(strncmp(heard(c), "HTTP/1.1 413 Too big\r\n", 22), 0);
	assert_int_equal(take(c, NULL), ENDED);
	close(c);
	/* a service that says nothing: we do */
	c = connect_client();
	say(c, "PUT / HTTP/1.1\r\nHost: 80-iabc.x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	await(c);
	assert_string_equal(heard(c), "HTTP/1.1 100 Continue\r\n\r\n");
	say(t.apps[2], "HTTP/1.1 100 Continue\r\n\r\n");
	assert_string_equal(heard(c), "");
	close(c);
	/* no end of them */
	c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	for (int i = 0; i < 20; i++)
		send(t.apps[3], "HTTP/1.1 102 Processing\r\n\r\n", 27, MSG_NOSIGNAL);
	assert_non_null(strstr(heard(c), "HTTP/1.1 502 "));
	close(c);
	stop();
}

static void heads_of_bodies_keep_their_length(void **state)
{
	start();
	int c = connect_client();
	say(c, "HEAD / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 12345\r\n\r\n");
	assert_string_equal(heard(c), "HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 12345\r\n\r\n");
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 304 Not Modified\r\nDate: x\r\nETag: y\r\n\r\n");
	assert_string_equal(heard(c), "HTTP/1.1 304 Not Modified\r\nDate: x\r\nETag: y\r\n\r\n");
	assert_int_equal(t.n_apps, 1);
	close(c);
	stop();
}

static void too_many_at_once_are_429(void **state)
{
	start();
	int c[LIMIT + 1];
	for (int i = 0; i < LIMIT; i++) {
		c[i] = connect_client();
		say(c[i], "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	}
	c[LIMIT] = connect_client();
	say(c[LIMIT], "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	const char *a = heard(c[LIMIT]);
	assert_int_equal(strncmp(a, "HTTP/1.1 429 ", 13), 0);
	assert_non_null(strstr(a, "\r\nRetry-After: 1\r\n"));
	assert_string_equal(body_of(a),
		"{\"sandboxId\":\"iabc\",\"message\":\"The sandbox has too many concurrent incoming connections (limit: 4)\",\"connectionLimit\":4,\"code\":429}");
	/* one that leaves makes room */
	close(c[0]);
	turns(5);
	say(c[LIMIT], "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	assert_int_equal(t.n_apps, LIMIT + 1);
	for (int i = 1; i <= LIMIT; i++)
		close(c[i]);
	stop();
}

static void a_client_that_leaves_frees_the_sandbox(void **state)
{
	start();
	int c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\n\r\n");
	say(t.apps[0], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
	close(c); /* with unread bytes: a reset */
	turns(5);
	struct buf a = BUF_INIT;
	assert_int_not_equal(take(t.apps[0], &a), OPEN);
	buf_done(&a);
	c = connect_client();
	say(c, "GET / HTTP/1.1\r\nHost: 10-iabc.x\r\n\r\n"); /* while the node is asked */
	assert_int_equal(http_server_connections(t.server), 1);
	send(c, "x", 1, MSG_NOSIGNAL);
	close(c);
	turns(5);
	stop();
}

/* Bytes go through in both directions at once, against slow readers, without loss and without growing queues. */
static void slow_sides_hold_the_other_back(void **state)
{
	enum { TOTAL = 8 * 1024 * 1024 };
	start();
	int c = connect_client(), app;
	struct buf head = BUF_INIT;
	char text[128];
	snprintf(text, sizeof(text), "POST / HTTP/1.1\r\nHost: 80-iabc.x\r\nContent-Length: %d\r\n\r\n", TOTAL);
	say(c, text);
	app = t.apps[0];
	take(app, &head);
	snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", TOTAL);
	say(app, text);
	heard(c);
	static char block[65536];
	size_t up = 0, down = 0;
	for (int idle = 0; idle < 20;) {
		ssize_t a = send(c, block, MIN(sizeof(block), TOTAL - up), MSG_NOSIGNAL), b = send(app, block, MIN(sizeof(block), TOTAL - down), MSG_NOSIGNAL);
		up += a > 0 ? (size_t)a : 0;
		down += b > 0 ? (size_t)b : 0;
		idle = a > 0 || b > 0 ? 0 : idle + 1;
		turns(1);
	}
	assert_true(up < 3 * 1024 * 1024 && down < 3 * 1024 * 1024);
	struct buf at_app = BUF_INIT, at_client = BUF_INIT;
	for (int i = 0; i < 20000 && (buf_len(&at_app) < TOTAL || buf_len(&at_client) < TOTAL); i++) {
		for (size_t n = 0; n < sizeof(block); n++)
			block[n] = 0;
		ssize_t a = up < TOTAL ? send(c, block, MIN(sizeof(block), TOTAL - up), MSG_NOSIGNAL) : 0;
		ssize_t b = down < TOTAL ? send(app, block, MIN(sizeof(block), TOTAL - down), MSG_NOSIGNAL) : 0;
		up += a > 0 ? (size_t)a : 0;
		down += b > 0 ? (size_t)b : 0;
		turns(1);
		take(app, &at_app);
		take(c, &at_client);
	}
	assert_int_equal(buf_len(&at_app), TOTAL);
	assert_int_equal(buf_len(&at_client), TOTAL);
	buf_done(&at_app), buf_done(&at_client), buf_done(&head);
	close(c);
	stop();
}

static void the_clients_address_is_told(void **state)
{
	start();
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof(to);
	assert_int_equal(bind(l, (struct sockaddr *)&to, n), 0);
	assert_int_equal(listen(l, 1), 0);
	getsockname(l, (struct sockaddr *)&to, &n);
	assert_int_equal(connect(c, (struct sockaddr *)&to, n), 0);
	assert_int_equal(http_server_listen(t.server, l), 0);
	fd_set_nonblock(c, true);
	turns(3);
	say(c, "GET / HTTP/1.1\r\nHost: 80-iabc.x\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n");
	const char *got = heard(t.apps[0]);
	assert_non_null(strstr(got, "\r\nX-Forwarded-For: 127.0.0.1\r\n"));
	assert_null(strstr(got, "6.6.6.6"));
	close(c), close(l);
	stop();
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_goes_in_and_its_answer_comes_out),
		cmocka_unit_test(what_is_not_running_is_502),
		cmocka_unit_test(envds_internal_calls_are_404),
		cmocka_unit_test(the_traffic_token_guards_what_has_no_token_of_its_own),
		cmocka_unit_test(a_closed_port_is_tried_again_then_502),
		cmocka_unit_test(other_refusals_of_the_node_are_told),
		cmocka_unit_test(streams_pass_unbuffered_both_ways),
		cmocka_unit_test(a_cut_answer_stays_cut),
		cmocka_unit_test(no_answer_and_no_http_are_502),
		cmocka_unit_test(a_closed_idle_connection_is_not_used),
		cmocka_unit_test(a_stale_connection_is_retried_once_where_that_is_safe),
		cmocka_unit_test(the_end_of_a_generation_cuts_everything),
		cmocka_unit_test(a_new_generation_gets_new_connections),
		cmocka_unit_test(tunnels_pass_bytes_and_half_closes),
		cmocka_unit_test(a_refused_upgrade_is_an_answer),
		cmocka_unit_test(case_146_a_websocket_that_leads_nowhere_is_closed_with_a_reason),
		cmocka_unit_test(pages_of_other_origins_may_read_our_answers),
		cmocka_unit_test(trailers_pass_both_ways),
		cmocka_unit_test(interim_answers_pass_and_100_is_said_once),
		cmocka_unit_test(heads_of_bodies_keep_their_length),
		cmocka_unit_test(too_many_at_once_are_429),
		cmocka_unit_test(a_client_that_leaves_frees_the_sandbox),
		cmocka_unit_test(slow_sides_hold_the_other_back),
		cmocka_unit_test(the_clients_address_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
