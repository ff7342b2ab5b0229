/* Which requests go to a sandbox, and what of a head is forwarded. */
#include "unit.h"

#include "base/cleanup.h"
#include "ingress/forward.h"
#include "ingress/page.h"
#include "ingress/route.h"

#include <stdio.h>
#include <stdlib.h>

static const char *method = "GET";

/* Parses "GET / HTTP/1.1" with these header lines. The head lives until the next call. */
static struct http_head *head_of(const char *lines)
{
	static struct http_head h;
	static char text[8192];
	int status;
	snprintf(text, sizeof(text), "%s /a?b HTTP/1.1\r\n%s\r\n", method, lines);
	if (http_parse_request(str_of(text), &h, &status) <= 0)
		fail_msg("no request: %s", text);
	return &h;
}

/* "api", "400 <why>" or "<port> <id>". */
static const char *route(const char *host, const char *lines)
{
	static char out[256];
	char all[1024];
	struct route r;
	snprintf(all, sizeof(all), "Host: %s\r\n%s", host, lines);
	route_request(head_of(all), &r);
	if (r.kind == ROUTE_API)
		return "api";
	if (r.kind == ROUTE_BAD)
		snprintf(out, sizeof(out), "400 %s", r.why);
	else
		snprintf(out, sizeof(out), "%u %s", r.port, r.id);
	return out;
}

static void hosts_name_sandboxes(void **state)
{
	assert_string_equal(route("3000-iabc.sbx.test", ""), "3000 iabc");
	assert_string_equal(route("3000-IABC.SBX.TEST.:443", ""), "3000 iabc");
	assert_string_equal(route("49983-iabc-6532622b.sbx.test:8443", ""), "49983 iabc");
	assert_string_equal(route("3000-a-b-3000.sbx.test", ""), "3000 a");
	assert_string_equal(route("3000-iabc.localhost:3000", ""), "3000 iabc");
	assert_string_equal(route("1-i.10-0-0-5.sslip.io", ""), "1 i");
}

static void other_hosts_are_the_api(void **state)
{
	static const char *const hosts[] = {"localhost", "localhost:3000", "192.168.1.5:3002", "[::1]:3000", "api.sbx.test", "sandbox.sbx.test",
		"my-api.sbx.test", "a-3000.sbx.test", "192-168-1-5.sslip.io", "", "x"};
	for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++)
		assert_string_equal(route(hosts[i], ""), "api");
}

static void ports_and_ids_are_strict(void **state)
{
	static const char *const ports[] = {"0", "65536", "03000", "+1", "99999999999", "+"};
	char text[128];
	for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
		snprintf(text, sizeof(text), "%s-iabc.sbx.test", ports[i]);
		assert_string_equal(route(text, ""), "400 Invalid sandbox port");
		snprintf(text, sizeof(text), "E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: %s\r\n", ports[i]);
		assert_string_equal(route("localhost", text), "400 Invalid sandbox port");
	}
	assert_string_equal(route("65535-i.x", ""), "65535 i");
	assert_string_equal(route("3000-.sbx.test", ""), "400 Invalid sandbox ID");
	assert_string_equal(route("3000-a_b.sbx.test", ""), "400 Invalid sandbox ID");
	assert_string_equal(route("3000-iabc", ""), "400 Invalid host");
	assert_string_equal(route("3000-iabc.", ""), "400 Invalid host");
	assert_string_equal(route("localhost", "E2b-Sandbox-Id: IABC\r\nE2b-Sandbox-Port: 1\r\n"), "400 Invalid sandbox ID");
	assert_string_equal(route("localhost", "E2b-Sandbox-Id:\r\nE2b-Sandbox-Port: 1\r\n"), "400 Invalid sandbox ID");
}

static void headers_route_where_the_host_does_not(void **state)
{
	static const char both[] = "e2b-sandbox-id: iabc-6532622b\r\nE2B-SANDBOX-PORT: 49983\r\n";
	assert_string_equal(route("localhost:3000", both), "49983 iabc");
	assert_string_equal(route("192.168.1.5:3002", both), "49983 iabc");
	assert_string_equal(route("my-proxy.example.com", both), "49983 iabc");
	assert_int_equal(strncmp(route("localhost", "E2b-Sandbox-Id: iabc\r\n"), "400 missing header", 18), 0);
	assert_int_equal(strncmp(route("localhost", "E2b-Sandbox-Port: 80\r\n"), "400 missing header", 18), 0);
	assert_int_equal(strncmp(route("localhost", "E2b-Sandbox-Id: a\r\nE2b-Sandbox-Id: b\r\nE2b-Sandbox-Port: 1\r\n"), "400", 3), 0);
	/* a Host that parses wins, and nothing may contradict it */
	assert_string_equal(route("49983-iabc.sbx.test", both), "49983 iabc");
	assert_string_equal(route("49983-iabc.sbx.test", "E2b-Sandbox-Id: iabc\r\n"), "49983 iabc");
	assert_int_equal(strncmp(route("3000-iabc.sbx.test", both), "400", 3), 0);
	assert_int_equal(strncmp(route("49983-ixyz.sbx.test", both), "400", 3), 0);
}

/* Before a page sends the headers, its browser asks whether it may. That is not for the API, and the page's answer to it lets it pass. */
static void a_preflight_for_the_headers_is_not_the_api(void **state)
{
#define ASK(names) "Origin: https://x\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " names "\r\n"
	method = "OPTIONS";
	assert_int_equal(strncmp(route("localhost", ASK("content-type,e2b-sandbox-id,e2b-sandbox-port")), "400 missing", 11), 0);
	assert_int_equal(strncmp(route("localhost", ASK("E2b-Sandbox-Id")), "400 missing", 11), 0);
	assert_int_equal(strncmp(route("localhost", ASK("a, e2b-sandbox-id , b")), "400 missing", 11), 0);
	assert_string_equal(route("localhost", ASK("x-api-key")), "api");
	assert_string_equal(route("localhost", ASK("e2b-sandbox-idx,xe2b-sandbox-id")), "api");
	assert_string_equal(route("localhost", ASK("")), "api");
	assert_string_equal(route("localhost", "Access-Control-Request-Headers: e2b-sandbox-id\r\n"), "api");
	assert_string_equal(route("49983-iabc.sbx.test", ASK("e2b-sandbox-id")), "49983 iabc");
	method = "POST";
	assert_string_equal(route("localhost", ASK("e2b-sandbox-id")), "api");
	method = "GET";
#undef ASK
}

static const char *normal(const char *path)
{
	static struct buf b;
	buf_clear(&b);
	assert_int_equal(route_normalize_path(&b, str_of(path)), 0);
	return buf_cstr(&b);
}

static void paths_are_judged_by_what_they_mean(void **state)
{
	assert_string_equal(normal("/init"), "/init");
	assert_string_equal(normal("//init/"), "/init");
	assert_string_equal(normal("/%69nit"), "/init");
	assert_string_equal(normal("/x/../init"), "/init");
	assert_string_equal(normal("/x/%2e%2e/./init"), "/init");
	assert_string_equal(normal("/x%2f..%2finit"), "/init");
	assert_string_equal(normal("/../../init"), "/init");
	assert_string_equal(normal("/init%"), "/init%");
	assert_string_equal(normal("/%2569nit"), "/%69nit");
	assert_string_equal(normal("/"), "/");
	assert_string_equal(normal("*"), "/*");
}

static bool own_key(struct str value, void *arg)
{
	return str_is(value, "e2b_mine");
}

static const char *forwarded(const char *lines)
{
	static struct buf b;
	buf_clear(&b);
	struct forward f = {.peer = "9.9.9.9", .proto = "http", .own_key = own_key};
	assert_int_equal(forward_request(&b, head_of(lines), &f), 0);
	return buf_cstr(&b);
}

static void what_belongs_to_the_application_passes(void **state)
{
	assert_string_equal(forwarded("host: 80-i.x:1\r\nX-Access-Token: t\r\nlang_version: 1\r\nX-Api-Key: theirs\r\nauthorization: Basic dXNlcjo=\r\n"
				      "Authorization: Bearer theirs\r\nCookie: a=b\r\nContent-Length: 3\r\nExpect: 100-continue\r\n"),
		"GET /a?b HTTP/1.1\r\nHost: 80-i.x:1\r\nX-Access-Token: t\r\nlang_version: 1\r\nX-Api-Key: theirs\r\nauthorization: Basic dXNlcjo=\r\n"
		"Authorization: Bearer theirs\r\nCookie: a=b\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Host: 80-i.x:1\r\nX-Forwarded-Proto: http\r\n"
		"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n");
}

/* e2b.md B.1: a signed URL of the SDK; the guest hashes what it decodes from it. */
static void a_query_passes_byte_for_byte(void **state)
{
	static const char line[] = "GET /files?username=user&path=a%20b+%2Bc&signature=v1_gUtH%2Fs9%2b&signature_expiration=1 HTTP/1.1\r\n";
	struct http_head head;
	int status;
	cleanup_buf struct buf in = BUF_INIT, out = BUF_INIT;
	buf_addf(&in, "%sHost: 49983-i.x\r\n\r\n", line);
	assert_true(http_parse_request(buf_str(&in), &head, &status) > 0);
	struct forward f = {.proto = "http"};
	assert_int_equal(forward_request(&out, &head, &f), 0);
	assert_true(str_starts(buf_str(&out), str_of(line)));
}

static void secrets_routing_and_forgeries_do_not(void **state)
{
	assert_string_equal(forwarded("Host: h\r\nX-API-KEY: e2b_mine\r\nAuthorization: bearer  e2b_mine\r\nE2b-Sandbox-Id: i\r\nE2b-Sandbox-Port: 1\r\n"
				      "E2B-Traffic-Access-Token: s\r\nCube-Traffic-Access-Token: s\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Port: 1\r\n"
				      "Forwarded: for=1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\n"
				      "Proxy-Authorization: x\r\nTransfer-Encoding: chunked\r\n"),
		"GET /a?b HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Host: h\r\nX-Forwarded-Proto: http\r\n"
		"Transfer-Encoding: chunked\r\n\r\n");
}

/* What an application under WSGI or PHP cannot tell from the real one. */
static void underscores_are_no_disguise(void **state)
{
	assert_string_equal(forwarded("Host: h\r\nX_Forwarded_For: 1.1.1.1\r\nX-FORWARDED_Host: evil\r\nX_API_Key: e2b_mine\r\nContent_Length: 7\r\n"
				      "Transfer_Encoding: chunked\r\nE2b_Traffic_Access_Token: s\r\nX_Real_IP: 1.1.1.1\r\nlang_version: 3\r\nX_API_Key: other\r\n"),
		"GET /a?b HTTP/1.1\r\nHost: h\r\nlang_version: 3\r\nX_API_Key: other\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Host: h\r\n"
		"X-Forwarded-Proto: http\r\n\r\n");
}

static void only_tunnels_are_upgraded(void **state)
{
	assert_non_null(strstr(forwarded("Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"), "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
	assert_null(strstr(forwarded("Host: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"), "pgrade"));
	assert_null(strstr(forwarded("Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n"), "pgrade"));
	assert_null(strstr(forwarded("Host: h\r\nUpgrade: websocket\r\n"), "pgrade"));
}

static const char *answered(const char *text, bool head)
{
	static struct buf b;
	struct http_head h;
	buf_clear(&b);
	assert_true(http_parse_response(str_of(text), head, &h) > 0);
	assert_int_equal(forward_response(&b, &h, head), 0);
	return buf_cstr(&b);
}

static void answers_lose_what_belongs_to_the_hop(void **state)
{
	static const char text[] = "HTTP/1.1 301 x\r\nLocation: http://localhost:3000/\r\nContent-Length: 5\r\nConnection: close, X-A\r\nX-A: 1\r\n"
				   "Keep-Alive: timeout=5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nUpgrade: x\r\n\r\n";
	assert_string_equal(answered(text, false), "Location: http://localhost:3000/\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n");
	assert_string_equal(answered("HTTP/1.1 200 x\r\nX-Accel-Redirect: /etc/passwd\r\nX-Sendfile: /etc/passwd\r\nX-Accel-Buffering: no\r\n\r\n", false),
		"X-Accel-Buffering: no\r\n");
	assert_non_null(strstr(answered(text, true), "Content-Length: 5\r\n"));
	assert_string_equal(answered("HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\n", false),
		"Upgrade: websocket\r\nSec-WebSocket-Accept: y\r\n");
	assert_string_equal(answered("HTTP/1.1 304 x\r\nContent-Length: 5\r\nETag: y\r\n\r\n", false), "Content-Length: 5\r\nETag: y\r\n");
}

static void only_navigating_browsers_get_a_page(void **state)
{
	assert_true(page_wants_html(head_of("Host: h\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html,*/*;q=0.8\r\nSec-Fetch-Mode: navigate\r\n")));
	assert_true(page_wants_html(head_of("Host: h\r\nUser-Agent: mozilla/5.0\r\n")));
	assert_false(page_wants_html(head_of("Host: h\r\nUser-Agent: Mozilla/5.0\r\nSec-Fetch-Mode: cors\r\n")));
	assert_false(page_wants_html(head_of("Host: h\r\nUser-Agent: Mozilla/5.0\r\nAccept: application/json\r\n")));
	assert_false(page_wants_html(head_of("Host: h\r\nUser-Agent: curl/8\r\nAccept: text/html\r\n")));
	assert_false(page_wants_html(head_of("Host: h\r\n")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hosts_name_sandboxes),
		cmocka_unit_test(other_hosts_are_the_api),
		cmocka_unit_test(ports_and_ids_are_strict),
		cmocka_unit_test(headers_route_where_the_host_does_not),
		cmocka_unit_test(a_preflight_for_the_headers_is_not_the_api),
		cmocka_unit_test(paths_are_judged_by_what_they_mean),
		cmocka_unit_test(what_belongs_to_the_application_passes),
		cmocka_unit_test(a_query_passes_byte_for_byte),
		cmocka_unit_test(secrets_routing_and_forgeries_do_not),
		cmocka_unit_test(underscores_are_no_disguise),
		cmocka_unit_test(only_tunnels_are_upgraded),
		cmocka_unit_test(answers_lose_what_belongs_to_the_hop),
		cmocka_unit_test(only_navigating_browsers_get_a_page),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
