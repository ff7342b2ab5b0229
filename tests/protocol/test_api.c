#include "api_case.h"

#include "api/keys.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void every_route_answers_with_its_status(void **state)
{
	static const struct {
		const char *method, *target, *body;
		int status;
		const char *word;
	} rows[] = {
		{"GET", "/health", NULL, 200, NULL},
		{"HEAD", "/health", NULL, 200, NULL},
		{"POST", "/health", NULL, 405, "GET"},
		{"GET", "/", NULL, 404, NULL},
		{"GET", "/nope", NULL, 404, NULL},
		{"POST", "/v4/sandboxes", "{}", 404, NULL},
		{"GET", "/sandboxes/%zz", NULL, 400, NULL},
		{"POST", "/sandboxes", "{\"templateID\":\"base\"}", 201, NULL},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"base\"}", 201, NULL},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"tmplbase000000000000\"}", 201, NULL},
		{"POST", "/v2/sandboxes", "{\"templateID\":\" BASE:default \"}", 201, NULL},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"nope\"}", 404, "template 'nope' not found"},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"base:v2\"}", 404, "template 'base' with tag 'v2' not found"},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"a b\"}", 400, "Invalid template reference"},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"timeout\":0}", 400, "Timeout must be greater than 0"},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"timeout\":2592001}", 400, "2592000"},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"autoPause\":true}", 201, NULL},
		{"POST", "/v2/sandboxes", NULL, 400, "templateID"},
		{"POST", "/v2/sandboxes", "{", 400, "JSON"},
		{"POST", "/v2/sandboxes", "[]", 400, "object"},
		{"POST", "/v2/sandboxes", "\"x\"", 400, "object"},
		{"POST", "/v2/sandboxes", "{\"a\":1,\"a\":2}", 400, "JSON"},
		{"PUT", "/v2/sandboxes", "{}", 405, "GET"},
		{"DELETE", "/sandboxes", NULL, 405, "POST"},
		{"GET", "/sandboxes/{}", NULL, 200, NULL},
		{"HEAD", "/sandboxes/{}", NULL, 200, NULL},
		{"GET", "/sandboxes/{}-6532622b", NULL, 200, NULL},
		{"GET", "/sandboxes/sdk-x-does-not-exist", NULL, 404, "not found"},
		{"GET", "/sandboxes/I_BAD", NULL, 400, "Invalid sandbox ID"},
		{"GET", "/sandboxes/iaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL, 404, "not found"},
		{"POST", "/sandboxes/{}/connect", NULL, 200, NULL},
		{"POST", "/sandboxes/{}/connect", "{}", 200, NULL},
		{"POST", "/v2/sandboxes/{}/connect", "{}", 200, NULL},
		{"POST", "/v2/sandboxes/{}/connect", "{\"timeout\":600,\"memory\":true}", 200, NULL},
		{"POST", "/v2/sandboxes/{}/connect", "{\"timeout\":0}", 200, NULL},
		{"POST", "/v2/sandboxes/{}/connect", "{\"timeout\":-2}", 400, "Timeout"},
		{"POST", "/v2/sandboxes/{}/connect", "{\"timeout\":\"60\"}", 400, "timeout"},
		{"POST", "/v2/sandboxes/{}/connect", "{\"memory\":false}", 200, NULL},
		{"POST", "/v2/sandboxes/inope/connect", "{}", 404, "not found"},
		{"GET", "/v2/sandboxes/{}/connect", NULL, 405, "POST"},
		{"POST", "/sandboxes/{}/resume", NULL, 409, "already running"},
		{"POST", "/sandboxes/inope/resume", "{}", 404, "not found"},
		{"POST", "/sandboxes/{}/timeout", "{\"timeout\":60}", 204, NULL},
		{"POST", "/sandboxes/{}/timeout", "{\"timeout\":-1}", 204, NULL},
		{"POST", "/sandboxes/{}/timeout", "{}", 400, "timeout"},
		{"POST", "/sandboxes/{}/timeout", NULL, 400, "timeout"},
		{"POST", "/sandboxes/{}/timeout", "{\"timeout\":-2}", 400, "Timeout"},
		{"POST", "/sandboxes/{}/timeout", "{\"timeout\":60.5}", 400, "timeout"},
		{"POST", "/sandboxes/inope/timeout", "{\"timeout\":60}", 404, "not found"},
		{"POST", "/sandboxes/{}/refreshes", NULL, 204, NULL},
		{"POST", "/sandboxes/{}/refreshes", "{\"duration\":null}", 204, NULL},
		{"POST", "/sandboxes/{}/refreshes", "{\"duration\":60}", 204, NULL},
		{"POST", "/sandboxes/{}/refreshes", "{\"duration\":-1}", 400, "duration"},
		{"POST", "/sandboxes/{}/refreshes", "{\"duration\":\"1\"}", 400, "duration"},
		{"POST", "/sandboxes/inope/refreshes", "{}", 404, "not found"},
		{"PUT", "/sandboxes/{}/network", NULL, 204, NULL},
		{"PUT", "/sandboxes/{}/network", "{\"allowOut\":[\"1.1.1.1\"],\"denyOut\":[\"0.0.0.0/0\"]}", 204, NULL},
		{"PUT", "/sandboxes/{}/network", "{\"allowPublicTraffic\":true}", 204, NULL},
		{"PUT", "/sandboxes/{}/network", "{\"allowPublicTraffic\":false}", 501, "allowPublicTraffic"},
		{"PUT", "/sandboxes/{}/network", "{\"allowOut\":[\"example.com\"]}", 501, "allowOut[0]"},
		{"PUT", "/sandboxes/{}/network", "{\"denyOut\":[\"1.1.1.1/33\"]}", 400, "denyOut[0]: invalid denied CIDR"},
		{"PUT", "/sandboxes/{}/network", "[]", 400, "object"},
		{"GET", "/sandboxes/{}/network", NULL, 405, "PUT"},
		{"PUT", "/sandboxes/inope/network", "{}", 404, "not found"},
		{"GET", "/sandboxes/{}/logs", NULL, 200, NULL},
		{"GET", "/sandboxes/{}/logs?start=1790000000000&limit=10&unknown=1", NULL, 200, NULL},
		{"GET", "/sandboxes/{}/logs?limit=1001", NULL, 400, "limit"},
		{"GET", "/sandboxes/inope/logs", NULL, 404, "not found"},
		{"GET", "/v2/sandboxes/{}/logs?cursor=1790000000000&direction=forward&level=warn&search=x", NULL, 200, NULL},
		{"GET", "/v2/sandboxes/{}/logs?direction=up", NULL, 400, "direction"},
		{"GET", "/v2/sandboxes/inope/logs", NULL, 404, "not found"},
		{"GET", "/sandboxes", NULL, 200, NULL},
		{"GET", "/sandboxes?metadata=notkeyvalue", NULL, 400, "metadata"},
		{"GET", "/v2/sandboxes", NULL, 200, NULL},
		{"GET", "/v2/sandboxes?metadata=", NULL, 200, NULL},
		{"GET", "/v2/sandboxes?unknown=1&state=running,paused&limit=1&order=asc&template=base&startedAfter=1970-01-01T00%3A00%3A00.000Z", NULL, 200,
			NULL},
		{"GET", "/v2/sandboxes?startedAfter=2026-01-01T00:00:00.123456%2B00:00", NULL, 200, NULL},
		{"GET", "/v2/sandboxes?metadata=notkeyvalue", NULL, 400, "metadata"},
		{"GET", "/v2/sandboxes?metadata=a%3Db%25zz", NULL, 400, "metadata"},
		{"GET", "/v2/sandboxes?metadata=%zz", NULL, 400, "percent"},
		{"GET", "/v2/sandboxes?state=killed", NULL, 400, "state"},
		{"GET", "/v2/sandboxes?state=", NULL, 400, "state"},
		{"GET", "/v2/sandboxes?order=up", NULL, 400, "order"},
		{"GET", "/v2/sandboxes?limit=0", NULL, 400, "limit"},
		{"GET", "/v2/sandboxes?limit=101", NULL, 400, "limit"},
		{"GET", "/v2/sandboxes?limit=abc", NULL, 400, "limit"},
		{"GET", "/v2/sandboxes?limit=1&limit=2", NULL, 400, "limit"},
		{"GET", "/v2/sandboxes?startedAfter=yesterday", NULL, 400, "startedAfter"},
		{"GET", "/v2/sandboxes?template=base:x", NULL, 400, "tag"},
		{"GET", "/v2/sandboxes?nextToken=x", NULL, 400, "Invalid next token"},
		{"GET", "/templates", NULL, 200, NULL},
		{"GET", "/templates/base", NULL, 200, NULL},
		{"GET", "/templates/tmplbase000000000000", NULL, 200, NULL},
		{"GET", "/templates/nope", NULL, 404, "template 'nope' not found"},
		{"GET", "/templates/a%20b", NULL, 400, "Invalid template reference"},
		{"GET", "/templates/aliases/base", NULL, 200, NULL},
		{"GET", "/templates/aliases/base%3Adefault", NULL, 200, NULL},
		{"GET", "/templates/aliases/team%2Fbase", NULL, 404, "template 'team/base' not found"},
		{"GET", "/templates/aliases/a%252Fb", NULL, 400, "Invalid template reference"},
		{"POST", "/v3/templates", "{}", 400, "Name is required"},
		{"POST", "/v2/templates/base/builds/b", "{}", 403, "of this machine"},
		{"GET", "/templates/base/builds/b/status", NULL, 403, "of this machine"},
		{"GET", "/templates/base/files/h", NULL, 403, "of this machine"},
		{"GET", "/templates/nope/files/h", NULL, 404, "template 'nope' not found"},
		{"DELETE", "/templates/base", NULL, 403, "of this machine"},
		{"DELETE", "/templates/nope", NULL, 404, "template 'nope' not found"},
		{"POST", "/templates/tags", "{}", 400, "target is missing"},
		{"GET", "/templates/base/tags/exists", NULL, 400, "tag is missing"},
		{"GET", "/templates/base/tags/groups", NULL, 501, "groups"},
		{"GET", "/default-templates", NULL, 200, NULL},
		{"GET", "/teams", NULL, 200, NULL},
		{"GET", "/api-keys", NULL, 200, NULL},
		{"POST", "/access-tokens", NULL, 501, "access-tokens"},
		{"GET", "/secrets", NULL, 501, "secrets"},
		{"GET", "/volumes", NULL, 501, "volumes"},
		{"PATCH", "/volumes", NULL, 405, "GET"},
		{"GET", "/admin/keys", NULL, 404, NULL},
		{"POST", "/admin/keys", "{\"name\":\"x\"}", 404, NULL},
		{"POST", "/admin/reload-templates", NULL, 404, NULL},
		{"DELETE", "/sandboxes/inope", NULL, 404, "not found"},
		{"DELETE", "/sandboxes/{}", NULL, 204, NULL},
	};
	const char *id = make(NULL);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char target[256];
		expect(rows[i].method, with_id(rows[i].target, id, target, sizeof(target)), NULL, rows[i].body, rows[i].status, rows[i].word);
	}
}

static void a_key_is_needed(void **state)
{
	char good[96], bearer[96], both[256], revoked[96];
	snprintf(good, sizeof(good), "x-api-key:  %s\r\n", world->key);
	snprintf(bearer, sizeof(bearer), "Authorization: bearer %s\r\n", world->key);
	snprintf(both, sizeof(both), "X-API-KEY: other\r\nAuthorization: Bearer %s\r\n", world->key);
	expect("GET", "/sandboxes", good, NULL, 200, NULL);
	expect("GET", "/sandboxes", bearer, NULL, 200, NULL);
	expect("GET", "/sandboxes", both, NULL, 200, NULL);
	expect("GET", "/sandboxes", "", NULL, 401, "Missing authentication: provide 'Authorization: Bearer <token>' or 'X-API-Key: <key>'");
	expect("GET", "/sandboxes", "X-API-KEY: \r\n", NULL, 401, "Missing authentication");
	expect("GET", "/sandboxes", "Authorization: Basic dXNlcjo=\r\n", NULL, 401, "Missing authentication");
	static const char *const bad[] = {"e2b_", "e2b_0000000000000000000000000000000000000000", "x", "e2b_000000000000000000000000000000000000000g",
		"E2B_0000000000000000000000000000000000000000"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char header[128];
		snprintf(header, sizeof(header), "X-API-KEY: %s\r\n", bad[i]);
		expect("GET", "/sandboxes", header, NULL, 401, "Invalid API key or token");
		assert_false(api_key_valid(world->api, str_of(bad[i])));
	}
	expect("POST", "/v2/sandboxes", "", "{\"templateID\":\"base\"}", 401, NULL);
	expect("POST", "/sandboxes/i/pause", "", NULL, 401, NULL);
	expect("GET", "/health", "", NULL, 200, NULL);
	assert_true(api_key_valid(world->api, str_of(world->key)));
	assert_int_equal(world->n_sandboxes, 0);

	/* A key that is revoked is refused at once, and stays so. */
	cleanup_reply struct reply made = world_admin(world, "POST", "/admin/keys", "{\"name\":\"short-lived\"}");
	assert_int_equal(made.status, 201);
	snprintf(revoked, sizeof(revoked), "X-API-KEY: %s\r\n", reply_text(&made, "key"));
	expect("GET", "/sandboxes", revoked, NULL, 200, NULL);
	char target[128];
	snprintf(target, sizeof(target), "/admin/keys/%s", reply_text(&made, "id"));
	cleanup_reply struct reply gone = world_admin(world, "DELETE", target, NULL);
	assert_int_equal(gone.status, 204);
	expect("GET", "/sandboxes", revoked, NULL, 401, "Invalid API key or token");
	assert_false(api_key_valid(world->api, str_of(reply_text(&made, "key"))));
	cleanup_reply struct reply again = world_admin(world, "DELETE", target, NULL);
	assert_int_equal(again.status, 404);
}

static void keys_are_made_listed_and_kept(void **state)
{
	cleanup_reply struct reply made = world_admin(world, "POST", "/admin/keys", "{\"name\":\"build \xc3\xbc\"}");
	assert_int_equal(made.status, 201);
	assert_int_equal(strlen(reply_text(&made, "key")), 44);
	assert_memory_equal(reply_text(&made, "key"), reply_text(&made, "hint"), strlen(reply_text(&made, "hint")));
	static const char *const bad[] = {"{}", "{\"name\":\"\"}", "{\"name\":7}", "{\"name\":\"a\\nb\"}", ""};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cleanup_reply struct reply refused = world_admin(world, "POST", "/admin/keys", bad[i]);
		assert_int_equal(refused.status, 400);
		check_error(&refused, bad[i]);
	}
	cleanup_reply struct reply list = world_admin(world, "GET", "/admin/keys", NULL);
	assert_int_equal(member_count(&list), 2);
	assert_null(strstr(list.body.p, reply_text(&made, "key")));
	assert_null(json_object_get(json_array_get(list.json, 1), "key"));
	assert_string_equal(json_string_value(json_object_get(json_array_get(list.json, 1), "name")), "build \xc3\xbc");
	assert_true(json_is_null(json_object_get(json_array_get(list.json, 1), "lastUsed")));

	/* The key that serve hands over: taken once, also under a revoked hash never again. */
	char hash[65], target[128];
	key_hash(STR("e2b_00000000000000000000000000000000000000ff"), hash);
	struct msg_first_key first = {.name = STR("first"), .hash = str_of(hash), .hint = STR("e2b_00000000")};
	assert_int_equal(api_first_key(world->api, &first, NULL), 0);
	assert_int_equal(api_first_key(world->api, &first, NULL), 0);
	assert_true(api_key_valid(world->api, STR("e2b_00000000000000000000000000000000000000ff")));
	cleanup_reply struct reply three = world_admin(world, "GET", "/admin/keys", NULL);
	assert_int_equal(member_count(&three), 3);
	snprintf(target, sizeof(target), "/admin/keys/%s", json_string_value(json_object_get(json_array_get(three.json, 2), "id")));
	cleanup_reply struct reply gone = world_admin(world, "DELETE", target, NULL);
	assert_int_equal(gone.status, 204);
	assert_int_equal(api_first_key(world->api, &first, NULL), 0);
	assert_false(api_key_valid(world->api, STR("e2b_00000000000000000000000000000000000000ff")));

	/* Another process reads the same keys from the file; the last use is there too. */
	expect("GET", "/sandboxes", NULL, NULL, 200, NULL);
	char key[64];
	snprintf(key, sizeof(key), "%s", reply_text(&made, "key"));
	struct api_config c = {.loop = world->loop, .workq = world->workq, .options = &world->options, .index = world->index,
		.node = world->client, .directory = world->directory};
	api_free(world->api);
	assert_int_equal(api_new(&c, &world->api, NULL), 0);
	assert_true(api_key_valid(world->api, str_of(key)));
	assert_false(api_key_valid(world->api, STR("e2b_00000000000000000000000000000000000000ff")));
	assert_int_equal(api_first_key(world->api, &first, NULL), 0);
	assert_false(api_key_valid(world->api, STR("e2b_00000000000000000000000000000000000000ff")));
	cleanup_reply struct reply after = world_admin(world, "GET", "/admin/keys", NULL);
	assert_int_equal(member_count(&after), 2);
	assert_true(json_is_string(json_object_get(json_array_get(after.json, 0), "lastUsed")));
}

static void a_sandbox_is_shown_as_the_clients_want_it(void **state)
{
	world->options.domain = "sbx.test:8443";
	cleanup_reply struct reply made = world_ask(world, "POST", "/sandboxes", NULL,
		"{\"templateID\":\"base\",\"timeout\":120,\"secure\":true,\"allow_internet_access\":false,\"metadata\":{\"a\":\"b c\"},"
		"\"envVars\":{\"A\":\"x\\ny\",\"C\":\"\"},\"network\":{\"allowPublicTraffic\":false}}");
	assert_int_equal(made.status, 201);
	assert_string_equal(reply_text(&made, "templateID"), "tmplbase000000000000");
	assert_string_equal(reply_text(&made, "alias"), "base");
	assert_string_equal(reply_text(&made, "clientID"), "6532622b");
	assert_string_equal(reply_text(&made, "envdVersion"), "0.6.13");
	assert_string_equal(reply_text(&made, "envdAccessToken"), "envd1");
	assert_string_equal(reply_text(&made, "trafficAccessToken"), "traffic1");
	assert_string_equal(reply_text(&made, "domain"), "sbx.test:8443");
	assert_string_equal(reply_text(&made, "isolation"), "namespace");
	assert_int_equal(world->last_create_timeout, 120);
	struct str envs = buf_str(&world->last_envs), key, value;
	assert_true(msg_map_next(&envs, &key, &value));
	assert_str(value, "x\ny");

	char target[128];
	snprintf(target, sizeof(target), "/sandboxes/%s", reply_text(&made, "sandboxID"));
	cleanup_reply struct reply detail = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(reply_text(&detail, "state"), "running");
	assert_string_equal(reply_text(&detail, "envdAccessToken"), "envd1");
	assert_string_equal(json_string_value(json_object_get(json_object_get(detail.json, "metadata"), "a")), "b c");
	assert_true(json_is_false(json_object_get(detail.json, "allowInternetAccess")));
	assert_true(json_is_false(json_object_get(json_object_get(detail.json, "network"), "allowPublicTraffic")));
	assert_string_equal(json_string_value(json_object_get(json_object_get(detail.json, "lifecycle"), "onTimeout")), "kill");
	assert_int_equal(json_integer_value(json_object_get(detail.json, "cpuCount")), 2);
	assert_int_equal(json_integer_value(json_object_get(detail.json, "memoryMB")), 512);
	assert_int_equal(json_integer_value(json_object_get(detail.json, "diskSizeMB")), 10240);
	int64_t started, end;
	assert_int_equal(rfc3339_parse(str_of(reply_text(&detail, "startedAt")), &started), 0);
	assert_int_equal(rfc3339_parse(str_of(reply_text(&detail, "endAt")), &end), 0);
	assert_true(end - started == 120 * NS_PER_S);

	/* Never ends; no metadata; internet not named; no token without `secure` on the old route. */
	cleanup_reply struct reply open = world_ask(world, "POST", "/sandboxes", NULL, "{\"templateID\":\"base\",\"timeout\":-1}");
	assert_int_equal(open.status, 201);
	assert_null(json_object_get(open.json, "envdAccessToken"));
	assert_null(json_object_get(open.json, "trafficAccessToken"));
	snprintf(target, sizeof(target), "/sandboxes/%s", reply_text(&open, "sandboxID"));
	cleanup_reply struct reply never = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(reply_text(&never, "endAt"), "9999-12-31T00:00:00Z");
	assert_true(json_is_null(json_object_get(never.json, "allowInternetAccess")));
	assert_null(json_object_get(never.json, "metadata"));
	/* The default timeout where none is named. */
	make(NULL);
	assert_int_equal(world->last_create_timeout, 300);
	world->options.domain = "";
}

static const char *const sdk_create =
	"POST /v2/sandboxes HTTP/1.1\r\nhost: 127.0.0.1:3000\r\nconnection: keep-alive\r\nX-API-KEY: %s\r\nbrowser: unknown\r\nlang: js\r\n"
	"lang_version: v20.1.0\r\npackage_version: 2.51.0\r\npublisher: e2b\r\nsdk_runtime: node\r\nsystem: linux\r\n"
	"User-Agent: e2b-js-sdk/2.51.0\r\ncontent-type: application/json\r\naccept: */*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\n"
	"accept-encoding: gzip, deflate\r\nTransfer-Encoding: chunked\r\n\r\n";

static const char *entry(const json_t *detail, const char *list, size_t i)
{
	return json_string_value(json_array_get(json_object_get(json_object_get(detail, "network"), list), i));
}

static void a_network_policy_is_replaced_whole(void **state)
{
	cleanup_reply struct reply made = world_ask(world, "POST", "/v2/sandboxes", NULL,
		"{\"templateID\":\"base\",\"network\":{\"allowOut\":[\"1.2.3.4/8\",\"9.9.9.9\"],\"deny_out\":[\"0.0.0.0/0\"]},\"allow_internet_access\":true}");
	assert_int_equal(made.status, 201);
	char target[128], policy[140];
	snprintf(target, sizeof(target), "/sandboxes/%s", reply_text(&made, "sandboxID"));
	snprintf(policy, sizeof(policy), "%s/network", target);
	cleanup_reply struct reply first = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(entry(first.json, "allowOut", 0), "1.2.3.4/8");
	assert_string_equal(entry(first.json, "allowOut", 1), "9.9.9.9");
	assert_string_equal(entry(first.json, "denyOut", 0), "0.0.0.0/0");
	assert_true(json_is_true(json_object_get(first.json, "allowInternetAccess")));
	cleanup_reply struct reply put = world_ask(world, "PUT", policy, NULL, "{\"denyOut\":[\"::/0\"],\"allow_internet_access\":false}");
	assert_int_equal(put.status, 204);
	cleanup_reply struct reply second = world_ask(world, "GET", target, NULL, NULL);
	assert_null(entry(second.json, "allowOut", 0));
	assert_string_equal(entry(second.json, "denyOut", 0), "::/0");
	assert_true(json_is_false(json_object_get(second.json, "allowInternetAccess")));
	assert_true(json_is_true(json_object_get(json_object_get(second.json, "network"), "allowPublicTraffic")));
	/* What node refuses is said as it says it. */
	error_set(&world->refuse, -EINVAL, 400, "allowOut: 10.0.0.1 is in no private network");
	cleanup_reply struct reply refused = world_ask(world, "PUT", policy, NULL, "{\"allowOut\":[\"10.0.0.1\"]}");
	assert_int_equal(refused.status, 400);
	assert_string_equal(reply_text(&refused, "message"), "allowOut: 10.0.0.1 is in no private network");
	/* Only what runs. */
	struct fake_sandbox *s = world_find(world, reply_text(&made, "sandboxID"));
	s->state = SANDBOX_PAUSED;
	world_event(world, s);
	world_turn(world);
	cleanup_reply struct reply paused = world_ask(world, "PUT", policy, NULL, "{}");
	assert_int_equal(paused.status, 409);
	/* Long lists beside much else are too much for one message: said, not cut. */
	struct buf body = BUF_INIT;
	buf_add_c(&body, "{\"templateID\":\"base\",\"network\":{\"denyOut\":[");
	for (int i = 0; i < 256; i++)
		buf_addf(&body, "%s\"2001:db8:1111:2222:3333:4444:5555:%d/128\"", i ? "," : "", i);
	buf_add_c(&body, "]}}");
	cleanup_reply struct reply long_list = world_ask(world, "POST", "/v2/sandboxes", NULL, buf_cstr(&body));
	assert_int_equal(long_list.status, 400);
	assert_non_null(strstr(reply_text(&long_list, "message"), "deny_out"));
	buf_done(&body);
}

static void recorded_bytes_of_the_sdk_are_served(void **state)
{
	struct buf bytes = BUF_INIT;
	buf_addf(&bytes, sdk_create, world->key);
	const char *body = "{\"templateID\":\"base\",\"metadata\":{\"a\":\"b c\"},\"envVars\":{\"X\":\"1\"}}";
	buf_addf(&bytes, "%zx\r\n%s\r\n0\r\n\r\n", strlen(body), body);
	int fd = world_open(world, false);
	cleanup_reply struct reply r = world_send(world, fd, buf_str(&bytes));
	assert_int_equal(r.status, 201);
	/* The same connection serves the next call, also after an error. */
	buf_done(&bytes);
	buf_addf(&bytes, "DELETE /sandboxes/inope HTTP/1.1\r\nhost: x\r\nX-API-KEY: %s\r\n\r\n", world->key);
	cleanup_reply struct reply gone = world_send(world, fd, buf_str(&bytes));
	assert_int_equal(gone.status, 404);
	buf_done(&bytes);
	buf_addf(&bytes, "GET /sandboxes HTTP/1.1\r\nhost: x\r\nX-API-KEY: %s\r\n\r\n", world->key);
	cleanup_reply struct reply list = world_send(world, fd, buf_str(&bytes));
	assert_int_equal(list.status, 200);
	assert_int_equal(member_count(&list), 1);
	close(fd);
	buf_done(&bytes);
}

static void a_body_over_its_limit_is_413(void **state)
{
	struct buf bytes = BUF_INIT;
	char chunk[4096];
	memset(chunk, 'x', sizeof(chunk));
	buf_addf(&bytes, "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: %s\r\nContent-Length: 1048577\r\n\r\n", world->key);
	int fd = world_open(world, false);
	cleanup_reply struct reply known = world_send(world, fd, buf_str(&bytes));
	assert_int_equal(known.status, 413);
	check_error(&known, "Content-Length");
	close(fd);
	buf_done(&bytes);
	buf_addf(&bytes, sdk_create, world->key);
	for (int i = 0; i < 260; i++) {
		buf_add_c(&bytes, "1000\r\n");
		buf_add(&bytes, chunk, sizeof(chunk));
		buf_add_c(&bytes, "\r\n");
	}
	fd = world_open(world, false);
	cleanup_reply struct reply chunked = world_send(world, fd, buf_str(&bytes));
	assert_int_equal(chunked.status, 413);
	close(fd);
	buf_done(&bytes);
	/* Just what fits in a message to the node, and a byte more than its field holds. */
	char body[30000];
	int n = snprintf(body, sizeof(body), "{\"templateID\":\"base\",\"metadata\":{\"k\":\"");
	memset(body + n, 'v', 24576 - 9);
	snprintf(body + n + 24576 - 9, sizeof(body) - (size_t)n - 24576 + 9, "\"}}");
	expect("POST", "/v2/sandboxes", NULL, body, 201, NULL);
	body[n + 24576 - 9] = 'v';
	snprintf(body + n + 24576 - 8, sizeof(body) - (size_t)n - 24576 + 8, "\"}}");
	expect("POST", "/v2/sandboxes", NULL, body, 400, "metadata");
}

static void connect_extends_and_never_shortens(void **state)
{
	const char *id = make("{\"templateID\":\"base\",\"timeout\":300}");
	char target[128], end[64];
	snprintf(target, sizeof(target), "/v2/sandboxes/%s/connect", id);
	int64_t before = world_find(world, id)->end_at;
	expect("POST", target, NULL, "{\"timeout\":10}", 200, NULL);
	assert_int_equal(world->last_resume.mode, RESUME_CONNECT);
	assert_true(world_find(world, id)->end_at == before);
	expect("POST", target, NULL, "{\"timeout\":3600}", 200, NULL);
	assert_true(world_find(world, id)->end_at > before);
	unsigned calls = world->calls;
	expect("POST", target, NULL, "{\"timeout\":0}", 200, NULL);
	assert_int_equal(world->calls, calls); /* nothing to ask for */
	expect("POST", target, NULL, NULL, 200, NULL);
	assert_int_equal(world->last_resume.timeout, 300);
	cleanup_reply struct reply r = world_ask(world, "POST", target, NULL, "{\"timeout\":-1}");
	assert_string_equal(reply_text(&r, "envdAccessToken"), "envd1");

	/* What the call set is read back at once, in whichever order answer and event come. */
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	for (int i = 0; i < 2; i++) {
		char timeout[160];
		world->answer_first = i;
		snprintf(timeout, sizeof(timeout), "%s/timeout", target);
		expect("POST", timeout, NULL, i ? "{\"timeout\":50}" : "{\"timeout\":5000}", 204, NULL);
		assert_int_equal(world->last_timeout.mode, TIMEOUT_SET);
		cleanup_reply struct reply detail = world_ask(world, "GET", target, NULL, NULL);
		struct buf out = BUF_INIT;
		rfc3339_format(end, world_find(world, id)->end_at);
		assert_string_equal(reply_text(&detail, "endAt"), end);
		buf_done(&out);
	}
	snprintf(target, sizeof(target), "/sandboxes/%s/refreshes", id);
	expect("POST", target, NULL, "{\"duration\":3}", 204, NULL);
	assert_int_equal(world->last_timeout.mode, TIMEOUT_REFRESH);
	assert_int_equal(world->last_timeout.timeout, 15);
	snprintf(target, sizeof(target), "/sandboxes/%s/timeout", id);
	expect("POST", target, NULL, "{\"timeout\":0}", 204, NULL);
	expect("POST", target, NULL, "{\"timeout\":5}", 404, "not found");
}

static void the_end_of_a_sandbox_is_told_for_a_day(void **state)
{
	for (int i = 0; i < 2; i++) {
		world->answer_first = i;
		const char *id = make(NULL);
		char target[128];
		snprintf(target, sizeof(target), "/sandboxes/%s", id);
		expect("DELETE", target, NULL, NULL, 204, NULL);
		cleanup_reply struct reply list = world_ask(world, "GET", "/sandboxes", NULL, NULL);
		assert_int_equal(member_count(&list), 0);
		expect("DELETE", target, NULL, NULL, 404, "not found");
		expect("GET", target, NULL, NULL, 404, id);
	}
	const char *id = make(NULL);
	char target[128];
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	struct fake_sandbox *s = world_find(world, id);
	world_end(world, id, "oom_killed", "limit 512 MB", clock_realtime());
	cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(r.status, 404);
	json_t *last = json_object_get(r.json, "lastTermination");
	assert_string_equal(json_string_value(json_object_get(last, "reason")), "oom_killed");
	assert_string_equal(json_string_value(json_object_get(last, "detail")), "limit 512 MB");
	assert_true(json_is_string(json_object_get(last, "at")));
	/* It is there again (a node that knew better), and ended long ago: the day is over. */
	s->alive = true;
	s->state = SANDBOX_RUNNING;
	world_lose_node(world);
	world_connect_node(world);
	expect("GET", target, NULL, NULL, 200, NULL);
	world_end(world, id, "timeout", NULL, clock_realtime() - 25 * 3600 * NS_PER_S);
	cleanup_reply struct reply old = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(old.status, 404);
	assert_null(json_object_get(old.json, "lastTermination"));
}

static void states_in_between_are_hidden(void **state)
{
	const char *id = make(NULL);
	struct fake_sandbox *s = world_find(world, id);
	char target[128], connect[160], timeout[160];
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	snprintf(connect, sizeof(connect), "%s/connect", target);
	snprintf(timeout, sizeof(timeout), "%s/timeout", target);
	static const struct {
		enum sandbox_state state;
		int get, connect, timeout;
		const char *shown;
	} rows[] = {
		{SANDBOX_CREATING, 404, 404, 404, NULL},
		{SANDBOX_RUNNING, 200, 200, 204, "running"},
		{SANDBOX_SNAPSHOTTING, 200, 200, 204, "running"},
		{SANDBOX_PAUSING, 200, 0, 204, "paused"},
		{SANDBOX_PAUSED, 200, 0, 404, "paused"},
		{SANDBOX_KILLING, 404, 409, 404, NULL},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		s->state = rows[i].state;
		world_event(world, s);
		world_turn(world);
		expect("GET", target, NULL, NULL, rows[i].get, NULL);
		if (rows[i].connect) /* else it would be resumed: test_api_life.c */
			expect("POST", connect, NULL, "{}", rows[i].connect, rows[i].connect == 409 ? "is being killed" : NULL);
		expect("POST", timeout, NULL, "{\"timeout\":9}", rows[i].timeout, NULL);
		cleanup_reply struct reply list = world_ask(world, "GET", "/v2/sandboxes", NULL, NULL);
		assert_int_equal(member_count(&list), rows[i].shown != NULL);
		if (rows[i].shown)
			assert_string_equal(json_string_value(json_object_get(json_array_get(list.json, 0), "state")), rows[i].shown);
		cleanup_reply struct reply old = world_ask(world, "GET", "/sandboxes", NULL, NULL);
		assert_int_equal(member_count(&old), rows[i].shown && !strcmp(rows[i].shown, "running"));
		cleanup_reply struct reply paused = world_ask(world, "GET", "/v2/sandboxes?state=paused", NULL, NULL);
		assert_int_equal(member_count(&paused), rows[i].shown && !strcmp(rows[i].shown, "paused"));
		assert_int_equal(reply_header(&paused, "x-total-running").n, 0);
	}
	s->reason = "timeout";
	world_event(world, s);
	world_turn(world);
	expect("DELETE", target, NULL, NULL, 404, "not found"); /* its end was another's doing */
	cleanup_reply struct reply ending = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(json_string_value(json_object_get(json_object_get(ending.json, "lastTermination"), "reason")), "timeout");
	s->reason = "killed";
	world_event(world, s);
	world_turn(world);
	expect("DELETE", target, NULL, NULL, 204, NULL); /* joins */
}

static void other_teams_see_nothing(void **state)
{
	const char *id = make(NULL);
	snprintf(world_find(world, id)->team, 33, "other");
	world_event(world, world_find(world, id));
	world_turn(world);
	static const char *const routes[][2] = {{"GET", ""}, {"DELETE", ""}, {"POST", "/connect"}, {"POST", "/timeout"}, {"POST", "/refreshes"},
		{"POST", "/pause"}, {"POST", "/resume"}};
	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		char target[128];
		snprintf(target, sizeof(target), "/sandboxes/%s%s", id, routes[i][1]);
		expect(routes[i][0], target, NULL, strcmp(routes[i][1], "/timeout") ? NULL : "{\"timeout\":1}", 404, "not found");
	}
	cleanup_reply struct reply list = world_ask(world, "GET", "/v2/sandboxes", NULL, NULL);
	assert_int_equal(member_count(&list), 0);
	assert_str(reply_header(&list, "x-total-running"), "0");
	assert_true(world_find(world, id)->alive);
}

/* Ids of a list's answer, joined. */
static void ids_of(const struct reply *r, char *to, size_t size)
{
	size_t n = 0;
	to[0] = 0;
	for (size_t i = 0; i < json_array_size(r->json); i++) {
		const char *id = json_string_value(json_object_get(json_array_get(r->json, i), "sandboxID"));
		n += (size_t)snprintf(to + n, size - n, "%s%zu", i ? " " : "", (size_t)strtoul(id + 1, NULL, 10));
	}
}

static void list_is(const char *query, const char *ids)
{
	char target[512], got[512];
	snprintf(target, sizeof(target), "/v2/sandboxes?%s", query);
	cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(r.status, 200);
	ids_of(&r, got, sizeof(got));
	if (strcmp(got, ids) != 0)
		fail_msg("%s: \"%s\", not \"%s\"", query, got, ids);
}

static void lists_are_filtered_sorted_and_paged(void **state)
{
	static const char *const metadata[] = {"{\"g\":\"a\",\"team name\":\"blue/green\"}", "{\"g\":\"b\"}", "{\"g\":\"a\"}", "{}", "{\"\":\"x\",\"k\":\"100%\"}"};
	for (size_t i = 0; i < 5; i++) {
		char body[256];
		snprintf(body, sizeof(body), "{\"templateID\":\"base\",\"metadata\":%s}", metadata[i]);
		struct fake_sandbox *s = world_find(world, make(body));
		s->started_at = (1000 + (int64_t)(i / 2)) * NS_PER_S + 123456789; /* two of each instant */
		world_event(world, s);
	}
	world_turn(world);
	list_is("", "5 4 3 2 1");
	list_is("order=asc", "1 2 3 4 5");
	list_is("metadata=g%3Da", "3 1");
	list_is("metadata=g%253Da&order=asc", "1 3");
	list_is("metadata=g%3Da%26team%252520name%3Dblue%25252Fgreen", "1");
	list_is("metadata=%3Dx", "5");
	list_is("metadata=k%3D100%252525", "5");
	list_is("metadata=ws%3DNO_SUCH", "");
	list_is("metadata=g%3D", "");
	list_is("state=paused", "");
	list_is("state=running%2Cpaused", "5 4 3 2 1");
	list_is("template=base", "5 4 3 2 1");
	list_is("template=tmplbase000000000000", "5 4 3 2 1");
	list_is("template=nope", "");
	list_is("startedAfter=1970-01-01T00:16:41.123456Z", "5 4 3"); /* inclusive, to the microsecond */
	list_is("startedAfter=1970-01-01T00:16:41.123457Z", "5");
	list_is("startedAfter=1970-01-01T01:16:42%2B01:00", "5");
	for (int asc = 0; asc < 2; asc++)
		for (int limit = 1; limit <= 5; limit++) {
			char token[256] = "", all[512] = "";
			unsigned pages = 0;
			do {
				char target[512], ids[256];
				snprintf(target, sizeof(target), "/v2/sandboxes?limit=%d&order=%s%s%s", limit, asc ? "asc" : "desc", token[0] ? "&nextToken=" : "",
					token);
				cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
				assert_int_equal(r.status, 200);
				assert_str(reply_header(&r, "x-total-running"), "5");
				ids_of(&r, ids, sizeof(ids));
				snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", all[0] ? " " : "", ids);
				snprintf(token, sizeof(token), "%.*s", STR_FMT(reply_header(&r, "x-next-token")));
			} while (token[0] && ++pages < 10);
			assert_string_equal(all, asc ? "1 2 3 4 5" : "5 4 3 2 1");
		}
	/* A page goes on where it stopped though the sandbox of the cursor is gone; a token fits its order only. */
	cleanup_reply struct reply page = world_ask(world, "GET", "/v2/sandboxes?limit=2", NULL, NULL);
	char query[300];
	snprintf(query, sizeof(query), "nextToken=%.*s", STR_FMT(reply_header(&page, "x-next-token")));
	world_end(world, world->sandboxes[3].id, "killed", NULL, clock_realtime());
	list_is(query, "3 2 1");
	char target[400];
	snprintf(target, sizeof(target), "/v2/sandboxes?order=asc&%s", query);
	expect("GET", target, NULL, NULL, 400, "Invalid next token");
}

static void templates_are_shown(void **state)
{
	cleanup_reply struct reply list = world_ask(world, "GET", "/templates", NULL, NULL);
	assert_int_equal(member_count(&list), 1);
	json_t *t = json_array_get(list.json, 0);
	static const char *const needed[] = {"templateID", "buildID", "cpuCount", "memoryMB", "diskSizeMB", "public", "aliases", "names", "createdAt",
		"updatedAt", "createdBy", "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion", "buildStatus"};
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		assert_non_null(json_object_get(t, needed[i]));
	cleanup_reply struct reply alias = world_ask(world, "GET", "/templates/aliases/base", NULL, NULL);
	assert_string_equal(reply_text(&alias, "templateID"), "tmplbase000000000000");
	cleanup_reply struct reply reload = world_admin(world, "POST", "/admin/reload-templates", NULL);
	assert_int_equal(reload.status, 204);
	assert_int_equal(world->reloads, 1);
}

static void browsers_may_ask(void **state)
{
	cleanup_reply struct reply pre = world_ask(world, "OPTIONS", "/v2/sandboxes",
		"Origin: https://x\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-api-key,content-type\r\n", NULL);
	assert_int_equal(pre.status, 204);
	assert_str(reply_header(&pre, "access-control-allow-origin"), "*");
	assert_str(reply_header(&pre, "access-control-allow-headers"), "x-api-key,content-type");
	assert_str(reply_header(&pre, "access-control-allow-methods"), "POST, GET, HEAD, OPTIONS");
	cleanup_reply struct reply list = world_ask(world, "GET", "/v2/sandboxes", NULL, NULL);
	assert_true(http_lists(list.head, "access-control-expose-headers", "X-Next-Token"));
	assert_true(http_lists(list.head, "access-control-expose-headers", "X-Total-Running"));
	cleanup_reply struct reply none = world_ask(world, "OPTIONS", "/nope", "Origin: https://x\r\n", NULL);
	assert_int_equal(none.status, 404);
}

static void errors_of_the_node_reach_the_client(void **state)
{
	static const struct {
		int code, status, retry_after, shown;
		const char *message, *retry;
	} rows[] = {
		{-EAGAIN, 503, 7, 503, "no capacity", "7"},
		{-EAGAIN, 503, 0, 503, "no capacity", "1"},
		{-EAGAIN, 429, 3, 429, "too many", "3"},
		{-ENOSPC, 507, 0, 507, "the disk is full", ""},
		{-EBUSY, 409, 0, 409, "in transition", ""},
		{-ENOENT, 404, 0, 404, "template 'base' not found", ""},
		{-EIO, 500, 0, 500, "it broke", ""},
		{-EIO, 0, 0, 500, "it broke", ""},
		{-EIO, 200, 0, 500, "it broke", ""},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		world->refuse = (struct error){.code = rows[i].code, .status = rows[i].status ? rows[i].status : 99, .retry_after = rows[i].retry_after};
		snprintf(world->refuse.message, sizeof(world->refuse.message), "%s", rows[i].message);
		cleanup_reply struct reply r = world_ask(world, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}");
		assert_int_equal(r.status, rows[i].shown);
		check_error(&r, rows[i].message);
		assert_string_equal(reply_text(&r, "message"), rows[i].message);
		assert_str(reply_header(&r, "retry-after"), rows[i].retry);
	}
	/* A 404 of the node about a sandbox is told in the clients' words. */
	const char *id = make(NULL);
	char target[128];
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	world->refuse = (struct error){.code = -ENOENT, .status = 404, .message = "no template"};
	cleanup_reply struct reply r = world_ask(world, "DELETE", target, NULL, NULL);
	assert_int_equal(r.status, 404);
	assert_non_null(strstr(reply_text(&r, "message"), "not found"));
	assert_null(strstr(reply_text(&r, "message"), "template"));
}

static void logs_of_a_hostile_init_are_sorted_out(void **state)
{
#define LINE(t, level, logger, fields) t " {\"level\":\"" level "\",\"logger\":\"" logger "\",\"message\":\"said\",\"fields\":" fields "}\n"
#define ENTRY(t, level, fields) LINE("-" t, level, "process", fields)
	char target[128];
	snprintf(target, sizeof(target), "/sandboxes/%s/logs", make(NULL));
	/* Also what comes late, and who says to be node. */
	world->log = "nonsense\n-{}\n-1 []\n\n- \n+\n" ENTRY("1", "loud", "{}") ENTRY("-1", "info", "{}") ENTRY("\"1\"", "info", "{}") ENTRY("1", "info", "[]") ENTRY("1", "info", "{\"a\":{}}")
		LINE("-1", "info", "lifecycle", "{}") LINE("+1", "info", "process", "{}") "-1 {\"level\":\"info\"}\n"
		ENTRY("2000000", "info", "{}") ENTRY("1000000", "info", "{\"command\":\"good\"}") LINE("+3000000", "info", "lifecycle", "{\"reason\":\"killed\"}") "-4000000 {\"cut";
	{
		cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
		assert_int_equal(r.status, 200);
		assert_int_equal(json_array_size(json_object_get(r.json, "logs")), 3);
		const json_t *first = json_array_get(json_object_get(r.json, "logEntries"), 0);
		assert_string_equal(json_string_value(json_object_get(json_object_get(first, "fields"), "command")), "good");
		assert_string_equal(json_string_value(json_object_get(first, "timestamp")), "1970-01-01T00:00:00.001000Z");
		const json_t *last = json_array_get(json_object_get(r.json, "logEntries"), 2);
		assert_string_equal(json_string_value(json_object_get(json_object_get(last, "fields"), "logger")), "lifecycle");
	}
	/* One that never comes to an end is not read for ever. */
	world->log = ENTRY("3", "info", "{}");
	world->log_endless = true;
	world->log_reads = 0;
	cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(r.status, 200);
	assert_in_range(world->log_reads, 2, 64);
	assert_int_equal(json_array_size(json_object_get(r.json, "logs")), world->log_reads);
#undef ENTRY
#undef LINE
}

static void metrics_are_read_by_pages_within_their_times(void **state)
{
	char target[160];
	const char *id = make(NULL);
	world->metrics = 20;
	snprintf(target, sizeof(target), "/sandboxes/%s/metrics", id);
	{
		cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
		assert_int_equal(r.status, 200);
		assert_int_equal(json_array_size(r.json), 20);
		assert_int_equal(world->metrics_asked, 3);
		const json_t *s = json_array_get(r.json, 3);
		cleanup_free char *text = json_dumps(s, JSON_COMPACT | JSON_REAL_PRECISION(6));
		assert_string_equal(text, "{\"timestamp\":\"1970-01-01T00:00:03.000000Z\",\"timestampUnix\":3,\"cpuCount\":6,\"cpuUsedPct\":7.05,\"memUsed\":1,\"memTotal\":3,\"memCache\":2,"
			"\"diskUsed\":4,\"diskTotal\":5}");
	}
	snprintf(target, sizeof(target), "/sandboxes/%s/metrics?start=5&end=14&unknown=x", id);
	cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(json_array_size(r.json), 10);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(r.json, 9), "timestampUnix")), 14);
}

static void bad_times_of_metrics_are_refused_by_name(void **state)
{
	static const char *const bad[][2] = {{"start=x", "start"}, {"end=-1", "end"}, {"start=1.5", "start"}, {"end=99999999999999999", "end"}, {"start=", "start"}, {"start=2&end=1", "start"}};
	const char *id = make(NULL);
	char target[160];
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		snprintf(target, sizeof(target), "/sandboxes/%s/metrics?%s", id, bad[i][0]);
		expect("GET", target, NULL, NULL, 400, bad[i][1]);
	}
	expect("GET", "/sandboxes/inope/metrics", NULL, NULL, 404, "not found");
}

static void metrics_of_several_are_those_the_team_may_see(void **state)
{
	char mine[33], other[33], target[4000];
	snprintf(mine, sizeof(mine), "%s", make(NULL));
	snprintf(other, sizeof(other), "%s", make(NULL));
	snprintf(world_find(world, other)->team, 33, "other");
	world_event(world, world_find(world, other));
	world_turn(world);
	snprintf(target, sizeof(target), "/sandboxes/metrics?sandbox_ids=%s,%s,inope", mine, other);
	{
		cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
		assert_int_equal(r.status, 200);
		const json_t *all = json_object_get(r.json, "sandboxes");
		assert_int_equal(json_object_size(all), 1);
		assert_int_equal(json_integer_value(json_object_get(json_object_get(all, mine), "timestampUnix")), 1);
		assert_true(json_number_value(json_object_get(json_object_get(all, mine), "cpuUsedPct")) == 0.01);
	}
	snprintf(target, sizeof(target), "/sandboxes/%s/metrics", other);
	expect("GET", target, NULL, NULL, 404, "not found");
	expect("GET", "/sandboxes/metrics", NULL, NULL, 400, "sandbox_ids");
	expect("GET", "/sandboxes/metrics?sandbox_ids=", NULL, NULL, 400, "sandbox_ids");
	expect("GET", "/sandboxes/metrics?sandbox_ids=A%2FB", NULL, NULL, 400, "sandbox");
	size_t n = (size_t)snprintf(target, sizeof(target), "/sandboxes/metrics?sandbox_ids=i1");
	for (int i = 1; i < 100; i++)
		n += (size_t)snprintf(target + n, sizeof(target) - n, ",i%d", i);
	expect("GET", target, NULL, NULL, 200, NULL);
	snprintf(target + n, sizeof(target) - n, ",i1");
	expect("GET", target, NULL, NULL, 400, "at most 100");
}

static void without_its_node_the_front_reads_on(void **state)
{
	const char *id = make(NULL);
	char target[128];
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	world_lose_node(world);
	expect("GET", target, NULL, NULL, 200, NULL);
	expect("GET", "/v2/sandboxes", NULL, NULL, 200, NULL);
	expect("DELETE", target, NULL, NULL, 503, NULL);
	expect("POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}", 503, NULL);
	cleanup_reply struct reply health = world_ask(world, "GET", "/health", "", NULL);
	assert_string_equal(reply_text(&health, "status"), "degraded");
	/* A sandbox that died meanwhile vanishes with the new snapshot. */
	world_find(world, id)->alive = false;
	world_connect_node(world);
	expect("GET", target, NULL, NULL, 404, "not found");
	cleanup_reply struct reply healthy = world_ask(world, "GET", "/health", "", NULL);
	assert_string_equal(reply_text(&healthy, "status"), "ok");
}

static void a_waiting_request_ends_with_its_node(void **state)
{
	struct buf bytes = BUF_INIT;
	const char *body = "{\"templateID\":\"base\"}";
	buf_addf(&bytes, "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: %s\r\nContent-Length: %zu\r\n\r\n%s", world->key, strlen(body), body);
	int fd = world_open(world, false);
	world->silent = true;
	assert_true(write(fd, bytes.data + bytes.start, buf_len(&bytes)) == (ssize_t)buf_len(&bytes));
	world_turn(world);
	assert_true(world->silent_request != 0);
	world_lose_node(world);
	cleanup_reply struct reply r = world_send(world, fd, STR(""));
	assert_int_equal(r.status, 503);
	check_error(&r, "lost node");
	close(fd);
	/* A client that goes while the node works harms nobody, and what it asked for is not lost. */
	world_connect_node(world);
	fd = world_open(world, false);
	world->silent = true;
	assert_true(write(fd, bytes.data + bytes.start, buf_len(&bytes)) == (ssize_t)buf_len(&bytes));
	world_turn(world);
	uint64_t request = world->silent_request;
	shutdown(fd, SHUT_RDWR);
	close(fd);
	world_turn(world);
	struct msg_sandbox late = {.id = STR("ilate"), .state = SANDBOX_RUNNING, .team = STR("default"), .template_id = STR("t"), .started_at = 1,
		.end_at = INT64_MAX, .generation = STR("g"), .isolation = STR("namespace"), .sequence = world->sequence};
	chan_send(world->node, MSG_ID_sandbox, &late, request, NULL, 0, NULL);
	world_turn(world);
	expect("GET", "/sandboxes/ilate", NULL, NULL, 200, NULL);
	buf_done(&bytes);
}

/* A node that is stopped or stuck: the client hears of it before its own patience ends; a late answer still reaches the index. */
static void a_node_that_does_not_answer_is_504(void **state)
{
	node_client_set_patience(world->client, 50 * NS_PER_MS);
	world->silent = true;
	cleanup_reply struct reply r = world_ask(world, "POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}");
	assert_int_equal(r.status, 504);
	check_error(&r, "create");
	assert_non_null(strstr(reply_text(&r, "message"), "did not answer"));
	struct msg_sandbox late = {.id = STR("ilate"), .state = SANDBOX_RUNNING, .team = STR("default"), .template_id = STR("t"), .started_at = 1,
		.end_at = INT64_MAX, .generation = STR("g"), .isolation = STR("namespace"), .sequence = world->sequence};
	chan_send(world->node, MSG_ID_sandbox, &late, world->silent_request, NULL, 0, NULL);
	world_turn(world);
	expect("GET", "/sandboxes/ilate", NULL, NULL, 200, NULL);
	expect("POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}", 201, NULL);
}

static void a_client_that_leaves_during_key_work_is_no_harm(void **state)
{
	for (int i = 0; i < 20; i++) {
		int fd = world_open(world, true);
		const char *text = "POST /admin/keys HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"name\":\"x\"}";
		assert_true(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
		if (i % 2)
			loop_turn(world->loop, 0);
		close(fd);
		loop_turn(world->loop, 0);
	}
	cleanup_reply struct reply r = world_admin(world, "GET", "/admin/keys", NULL);
	assert_int_equal(r.status, 200);
}

/* A hundred creates wait at the node at once; every third client leaves; the answers come in another order: each gets its own. */
static void a_hundred_at_once_get_their_own_answers(void **state)
{
	enum { N = 100 };
	int fds[N];
	world->hold = true;
	for (int i = 0; i < N; i++) {
		char body[128], text[512];
		fds[i] = world_open(world, false);
		snprintf(body, sizeof(body), "{\"templateID\":\"base\",\"metadata\":{\"n\":\"%d\"}}", i);
		int n = snprintf(text, sizeof(text), "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: %s\r\nContent-Length: %zu\r\n\r\n%s", world->key,
			strlen(body), body);
		assert_true(write(fds[i], text, (size_t)n) == n);
	}
	for (int i = 0; i < 100 && world->n_sandboxes < N; i++)
		world_turn(world);
	assert_int_equal(world->n_sandboxes, N);
	for (int i = 0; i < N; i += 3) {
		struct linger hard = {1, 0};
		setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(fds[i]);
	}
	world_turn(world);
	world_release(world);
	for (int i = 0; i < N; i++) {
		if (i % 3 == 0)
			continue;
		cleanup_reply struct reply r = world_send(world, fds[i], STR(""));
		assert_int_equal(r.status, 201);
		struct fake_sandbox *s = world_find(world, reply_text(&r, "sandboxID"));
		struct str rest = buf_str(&s->metadata), key, value;
		char n[8];
		snprintf(n, sizeof(n), "%d", i);
		assert_true(msg_map_next(&rest, &key, &value));
		assert_str(value, n);
		close(fds[i]);
	}
	cleanup_reply struct reply list = world_ask(world, "GET", "/sandboxes", NULL, NULL);
	assert_int_equal(member_count(&list), N); /* those whose client left are there too */
}

static void request_ids_go_through(void **state)
{
	char headers[256];
	snprintf(headers, sizeof(headers), "X-API-KEY: %s\r\nX-Request-Id: 123e4567-e89b-12d3-a456-426614174000\r\n", world->key);
	cleanup_reply struct reply r = world_ask(world, "POST", "/v2/sandboxes", headers, "{\"templateID\":\"base\"}");
	assert_str(reply_header(&r, "x-request-id"), "123e4567-e89b-12d3-a456-426614174000");
	assert_string_equal(world->last_request_id, "123e4567-e89b-12d3-a456-426614174000");
	snprintf(headers, sizeof(headers), "X-API-KEY: %s\r\nX-Request-Id: a b\r\n", world->key);
	cleanup_reply struct reply own = world_ask(world, "GET", "/sandboxes", headers, NULL);
	assert_true(reply_header(&own, "x-request-id").n > 0);
	assert_int_equal(str_chr(reply_header(&own, "x-request-id"), ' '), -1);
}

static void nothing_is_promised_before_the_first_snapshot(void **state)
{
	struct world *w = world;
	world = world_new();
	expect("GET", "/health", "", NULL, 503, NULL);
	expect("GET", "/sandboxes", NULL, NULL, 503, NULL);
	expect("GET", "/v2/sandboxes", NULL, NULL, 503, NULL);
	expect("GET", "/sandboxes/iabc", NULL, NULL, 503, NULL);
	expect("GET", "/templates", NULL, NULL, 503, NULL);
	expect("GET", "/templates/base", NULL, NULL, 503, NULL);
	expect("POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\"}", 503, NULL);
	expect("DELETE", "/sandboxes/iabc", NULL, NULL, 503, NULL);
	expect("GET", "/v2/sandboxes?limit=0", NULL, NULL, 400, NULL);
	world_free(world);
	world = w;
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_setup("test", 2, LOG_ERROR);
	const struct CMUnitTest tests[] = {
		T(every_route_answers_with_its_status),
		T(a_key_is_needed),
		T(keys_are_made_listed_and_kept),
		T(a_sandbox_is_shown_as_the_clients_want_it),
		T(a_network_policy_is_replaced_whole),
		T(recorded_bytes_of_the_sdk_are_served),
		T(a_body_over_its_limit_is_413),
		T(connect_extends_and_never_shortens),
		T(the_end_of_a_sandbox_is_told_for_a_day),
		T(states_in_between_are_hidden),
		T(metrics_are_read_by_pages_within_their_times),
		T(bad_times_of_metrics_are_refused_by_name),
		T(metrics_of_several_are_those_the_team_may_see),
		T(other_teams_see_nothing),
		T(lists_are_filtered_sorted_and_paged),
		T(templates_are_shown),
		T(browsers_may_ask),
		T(errors_of_the_node_reach_the_client),
		T(logs_of_a_hostile_init_are_sorted_out),
		T(without_its_node_the_front_reads_on),
		T(a_waiting_request_ends_with_its_node),
		T(a_node_that_does_not_answer_is_504),
		T(a_client_that_leaves_during_key_work_is_no_harm),
		T(a_hundred_at_once_get_their_own_answers),
		T(request_ids_go_through),
		T(nothing_is_promised_before_the_first_snapshot),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
