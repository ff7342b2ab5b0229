#include "unit.h"

#include "api/create.h"
#include "api/decode.h"
#include "api/routes.h"
#include "base/clock.h"
#include "base/encode.h"
#include "io/url.h"

#include <errno.h>
#include <stdlib.h>

static void sandbox_ids(void **state)
{
	static const struct {
		const char *text, *id; /* NULL = refused */
	} rows[] = {
		{"iabc123", "iabc123"},
		{"iabc-6532622b", "iabc"},
		{"sdk-x-does-not-exist", "sdk"},
		{"", NULL},
		{"-abc", NULL},
		{"abc-", NULL},
		{"iABC", NULL},
		{"i_a", NULL},
		{"i a", NULL},
		{"i/a", NULL},
		{"\xc3\xbc", NULL},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct str id;
		struct error err = {0};
		int r = decode_sandbox_id(str_of(rows[i].text), &id, &err);
		assert_int_equal(r, rows[i].id ? 0 : -EINVAL);
		if (rows[i].id)
			assert_str(id, rows[i].id);
		else
			assert_int_equal(err.status, 400);
	}
}

static void template_references(void **state)
{
	static const struct {
		const char *text, *name, *tag;
	} rows[] = {
		{"base", "base", ""},
		{"  Base\n", "base", ""},
		{"team/Base:V1.2", "team/base", "v1.2"},
		{"base:default", "base", ""},
		{"base:DEFAULT", "base", ""},
		{"a_b-c", "a_b-c", ""},
		{"", NULL, NULL},
		{" ", NULL, NULL},
		{"base:", NULL, NULL},
		{":x", NULL, NULL},
		{"/x", NULL, NULL},
		{"a/b/c", NULL, NULL},
		{"a:b:c", NULL, NULL},
		{"a b", NULL, NULL},
		{"a.b", NULL, NULL},
		{"base:123e4567-e89b-12d3-a456-426614174000", NULL, NULL},
		{"b\xc3\xa4se", NULL, NULL},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct template_reference ref;
		struct error err = {0};
		assert_int_equal(decode_template_reference(str_of(rows[i].text), &ref, &err), rows[i].name ? 0 : -EINVAL);
		if (rows[i].name) {
			assert_string_equal(ref.name, rows[i].name);
			assert_string_equal(ref.tag, rows[i].tag);
		} else {
			assert_int_equal(err.status, 400);
			assert_non_null(strstr(err.message, "Invalid template reference"));
		}
	}
	char lengthy[300];
	memset(lengthy, 'a', sizeof(lengthy));
	struct template_reference ref;
	assert_int_equal(decode_template_reference(str_n(lengthy, TEMPLATE_REFERENCE_MAX), &ref, NULL), 0);
	assert_int_equal(decode_template_reference(str_n(lengthy, TEMPLATE_REFERENCE_MAX + 1), &ref, NULL), -EINVAL);
}

/* What a client writes behind "metadata=", layer upon layer. */
static void filter_of(struct str raw, struct buf *pairs, int expected)
{
	struct buf once = BUF_INIT;
	struct error err = {0};
	buf_done(pairs);
	assert_int_equal(url_decode(&once, raw, true), 0);
	assert_int_equal(decode_metadata_filter(buf_str(&once), pairs, &err), expected);
	if (expected < 0)
		assert_int_equal(err.status, 400);
	buf_done(&once);
}

/* encodeURIComponent (JS) leaves !'()* alone, quote (Python) leaves '/': both are taken. */
static void encode(struct buf *to, struct str s, const char *alone)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] && strchr(alone, s.p[i]))
			buf_add(to, s.p + i, 1);
		else
			url_encode(to, str_n(s.p + i, 1));
}

static void metadata_survives_the_layers_of_both_clients(void **state)
{
	static const struct {
		const char *key, *value;
	} rows[] = {
		{"team name", "blue/green"}, {"k", "100%"}, {"k", "a=b&c"}, {"k", "+ +"}, {"k", "\xe6\x97\xa5\xe6\x9c\xac"}, {"", "x"},
		{"k", ""}, {"k y", "v&=\xc3\xbc"}, {"!'()*", "~._-"}, {"%2525", "%"}, {"a\nb", "\t"},
	};
	static const char *const alone[] = {"!'()*", "/"};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (size_t client = 0; client < 2; client++) {
			struct buf key = BUF_INIT, value = BUF_INIT, params = BUF_INIT, query = BUF_INIT, pairs = BUF_INIT;
			encode(&key, str_of(rows[i].key), alone[client]);
			encode(&value, str_of(rows[i].value), alone[client]);
			url_encode(&params, buf_str(&key));
			buf_add_c(&params, "=");
			url_encode(&params, buf_str(&value));
			url_encode(&query, buf_str(&params));
			filter_of(buf_str(&query), &pairs, 0);
			struct str rest = buf_str(&pairs), k, v;
			assert_true(msg_map_next(&rest, &k, &v));
			assert_str(k, rows[i].key);
			assert_str(v, rows[i].value);
			assert_int_equal(rest.n, 0);
			buf_done(&key), buf_done(&value), buf_done(&params), buf_done(&query), buf_done(&pairs);
		}
}

static void metadata_filters(void **state)
{
	struct buf have = BUF_INIT, pairs = BUF_INIT;
	msg_map_add(&have, STR("user"), STR("abc"));
	msg_map_add(&have, STR("k y"), STR("v&=\xc3\xbc"));
	static const struct {
		const char *query;
		int result; /* 1 = matches, 0 = does not, < 0 = refused */
	} rows[] = {
		{"k%252520y%3Dv%252526%25253D%2525C3%2525BC", 1}, /* recorded: npm e2b 2.51 */
		{"user%3Dabc", 1},
		{"user=abc", 1},
		{"", 1},
		{"user%3Dabc%26k%252520y%3Dv%252526%25253D%2525C3%2525BC", 1},
		{"user%3Dabc%26user%3Dabd", 0},
		{"user%3DABC", 0},
		{"user%3Dab", 0},
		{"ws%3DNO_SUCH", 0},
		{"notkeyvalue", -EINVAL},
		{"a%3Db%3Dc", -EINVAL},
		{"a%3Db%26", -EINVAL},
		{"%26a%3Db", -EINVAL},
		{"a%3D%25zz", -EINVAL},
		{"a%3D%2525z", -EINVAL},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		filter_of(str_of(rows[i].query), &pairs, rows[i].result < 0 ? rows[i].result : 0);
		if (rows[i].result >= 0)
			assert_int_equal(metadata_matches((struct msg_map){buf_str(&have)}, (struct msg_map){buf_str(&pairs)}), rows[i].result);
	}
	assert_false(metadata_matches((struct msg_map){STR("")}, (struct msg_map){buf_str(&have)}));
	buf_done(&have), buf_done(&pairs);
}

static void cursors(void **state)
{
	struct cursor c = {.at = 1767323045678901234, .id = "iabc", .ascending = true}, back;
	struct buf text = BUF_INIT, plain = BUF_INIT;
	for (int i = 0; i < 2; i++) {
		buf_done(&text), buf_done(&plain);
		assert_int_equal(cursor_encode(&c, &text), 0);
		assert_int_equal(base64_decode(&plain, buf_str(&text)), 0);
		assert_str(buf_str(&plain), c.ascending ? "2026-01-02T03:04:05.678901234Z__iabc__asc" : "2026-01-02T03:04:05.678901234Z__iabc");
		assert_int_equal(cursor_decode(buf_str(&text), &back, NULL), 0);
		assert_true(back.at == c.at);
		assert_string_equal(back.id, c.id);
		assert_int_equal(back.ascending, c.ascending);
		c.ascending = false;
	}
	static const char *const broken[] = {"", "x", "!!", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z_i", "2026-01-02T03:04:05Z__", "__i",
		"2026-01-02T03:04:05Z__I", "2026-01-02T03:04:05Z__i__desc", "2026-01-02T03:04:05Z__abcdefghijabcdefghijabcdefghijabc"};
	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		struct error err = {0};
		buf_done(&text);
		if (broken[i][0] != '!')
			base64url_encode(&text, str_of(broken[i]));
		else
			buf_add_c(&text, broken[i]);
		assert_int_equal(cursor_decode(buf_str(&text), &back, &err), -EINVAL);
		assert_string_equal(err.message, "Invalid next token");
	}
	buf_done(&text), buf_done(&plain);
}

static struct options options;

static void timeouts(void **state)
{
	enum { BAD = -99 };
	static const struct {
		const char *body;
		int create, connect, set;
	} rows[] = {
		{"{}", 300, 300, BAD},
		{"{\"timeout\":null}", 300, 300, BAD},
		{"{\"timeout\":60}", 60, 60, 60},
		{"{\"timeout\":-1}", -1, -1, -1},
		{"{\"timeout\":0}", BAD, 0, 0},
		{"{\"timeout\":-2}", BAD, BAD, BAD},
		{"{\"timeout\":-3600}", BAD, BAD, BAD},
		{"{\"timeout\":2592000}", 2592000, 2592000, 2592000},
		{"{\"timeout\":2592001}", BAD, BAD, BAD},
		{"{\"timeout\":2147483648}", BAD, BAD, BAD},
		{"{\"timeout\":\"60\"}", BAD, BAD, BAD},
		{"{\"timeout\":60.5}", BAD, BAD, BAD},
		{"{\"timeout\":true}", BAD, BAD, BAD},
		{"{\"timeout\":[]}", BAD, BAD, BAD},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cleanup_json json_t *body = json_loads(rows[i].body, 0, NULL);
		const int expected[] = {rows[i].create, rows[i].connect, rows[i].set};
		for (int rule = TIMEOUT_OF_CREATE; rule <= TIMEOUT_OF_SET; rule++) {
			struct error err = {0};
			int64_t t = BAD;
			int r = decode_timeout(body, (enum timeout_rule)rule, &options, &t, &err);
			assert_int_equal(r, expected[rule] == BAD ? -EINVAL : 0);
			assert_int_equal(t, expected[rule]);
			assert_int_equal(err.status, r ? 400 : 0);
		}
	}
	int64_t t;
	assert_int_equal(decode_timeout(NULL, TIMEOUT_OF_CONNECT, &options, &t, NULL), 0);
	assert_int_equal(t, 300);
}

/* One create: its status (201 = taken), and a word that the error must hold. */
static void create_is(const char *body, bool v2, int status, const char *word, struct create_args *ret)
{
	cleanup_json json_t *j = json_loads(body, 0, NULL);
	assert_non_null(j);
	struct create_args args = {0};
	struct error err = {0};
	int r = create_parse(j, v2, &options, &args, &err);
	if (r == 0 ? status != 201 : err.status != status || !strstr(err.message, word))
		fail_msg("%s: %d %s", body, r == 0 ? 201 : err.status, err.message);
	if (ret)
		*ret = args;
	else
		create_args_done(&args);
}

static void bodies_of_create(void **state)
{
	static const struct {
		const char *rest;
		int status;
		const char *word;
	} rows[] = {
		{"", 201, NULL},
		{",\"secure\":true,\"mcp\":null,\"mcp\":{}", 201, NULL},
		{",\"unknown\":{\"x\":[1]}", 201, NULL},
		{",\"mcp\":1", 400, "mcp"},
		{",\"secure\":1", 400, "secure"},
		{",\"metadata\":[]", 400, "metadata"},
		{",\"metadata\":{\"a\":1}", 400, "metadata.a"},
		{",\"metadata\":null,\"envVars\":null", 201, NULL},
		{",\"metadata\":{\"host-mount\":\"[]\"}", 201, NULL},
		{",\"metadata\":{\"host-mount\":\"[{}]\"}", 501, "host-mount"},
		{",\"metadata\":{\"host-mount\":\"x\"}", 400, "host-mount"},
		{",\"envVars\":{\"\":\"x\"}", 400, "envVars"},
		{",\"envVars\":{\"E=F\":\"1\"}", 400, "envVars"},
		{",\"envVars\":{\"A\":1}", 400, "envVars.A"},
		{",\"envs\":{\"A\":1}", 400, "envVars.A"},
		{",\"envs\":{\"A\":\"1\"},\"envVars\":{\"B\":\"2\"}", 400, "envs"},
		{",\"envVars\":{\"A\":\"x\\ny\",\"PATH\":\"/x\",\"C\":\"\"}", 201, NULL},
		{",\"autoPause\":true", 201, NULL},
		{",\"auto_pause\":true", 201, NULL},
		{",\"autoPause\":false,\"autoResume\":{\"enabled\":false}", 201, NULL},
		{",\"autoPause\":\"yes\"", 400, "autoPause"},
		{",\"autoResume\":true", 201, NULL},
		{",\"auto_resume\":{\"enabled\":true}", 201, NULL},
		{",\"autoResume\":{\"policy\":\"any\"}", 201, NULL},
		{",\"autoResume\":{\"policy\":\"off\"}", 201, NULL},
		{",\"autoResume\":{\"policy\":\"x\"}", 400, "autoResume.policy"},
		{",\"autoResume\":3", 400, "autoResume"},
		{",\"autoPauseMemory\":true", 201, NULL},
		{",\"autoPauseMemory\":false", 400, "autoPauseMemory"},
		{",\"autoPauseMemory\":false,\"autoPause\":true", 201, NULL},
		{",\"autoPauseMemory\":false,\"autoPause\":true,\"autoResume\":true", 400, "autoPauseMemory"},
		{",\"lifecycle\":{\"onTimeout\":\"kill\"},\"autoPause\":true", 201, NULL},
		{",\"lifecycle\":{\"on_timeout\":\"pause\"}", 201, NULL},
		{",\"lifecycle\":{\"auto_resume\":true}", 201, NULL},
		{",\"lifecycle\":{\"onTimeout\":\"stop\"}", 400, "lifecycle.onTimeout"},
		{",\"lifecycle\":1", 400, "lifecycle"},
		{",\"iam\":{\"tokens\":{\"a\":{\"audience\":\"x\",\"tokenType\":\"JWT-SVID\"}}}", 400, "iam"},
		{",\"iam\":{}", 201, NULL},
		{",\"volumeMounts\":[{\"name\":\"v\",\"path\":\"/x\"}]", 400, "volumeMounts"},
		{",\"volumeMounts\":[]", 201, NULL},
		{",\"volumeMounts\":{}", 400, "volumeMounts"},
		{",\"distributionScope\":[\"n\"]", 501, "distributionScope"},
		{",\"allow_internet_access\":\"no\"", 400, "allow_internet_access"},
		{",\"network\":[]", 400, "network"},
		{",\"network\":{}", 201, NULL},
		{",\"network\":{\"allowOut\":[],\"denyOut\":[],\"rules\":{},\"httpsPorts\":[],\"egressProxy\":null,\"maskRequestHost\":null}", 201, NULL},
		{",\"network\":{\"allowOut\":[\"1.1.1.1\",\"10.0.0.0/8\"],\"denyOut\":[\"0.0.0.0/0\",\"::/0\"]}", 201, NULL},
		{",\"network\":{\"allow_out\":[\"1.2.3.4/8\"],\"deny_out\":[\"255.255.255.255\"]}", 201, NULL},
		{",\"network\":{\"allowOut\":[],\"allow_out\":[]}", 400, "allowOut and allow_out"},
		{",\"network\":{\"allowOut\":[\"1.1.1.1\",\"example.com\"]}", 501, "network.allowOut[1]: \"example.com\""},
		{",\"network\":{\"allowOut\":[\"*.example.com\"],\"denyOut\":[\"0.0.0.0/0\"]}", 501, "network.allowOut[0]"},
		{",\"network\":{\"allowOut\":[\"1.1.1.1/33\"]}", 400, "network.allowOut[0]: invalid allowed address"},
		{",\"network\":{\"allowOut\":[\"::1\"]}", 400, "network.allowOut[0]: invalid allowed address"},
		{",\"network\":{\"allowOut\":[\"\"]}", 400, "network.allowOut[0]"},
		{",\"network\":{\"allowOut\":\"1.1.1.1\"}", 400, "network: allowOut"},
		{",\"network\":{\"denyOut\":[\"example.com\"]}", 400, "network.denyOut[0]: invalid denied CIDR"},
		{",\"network\":{\"denyOut\":[\"1.1.1.1\",\"x\"]}", 400, "network.denyOut[1]: invalid denied CIDR"},
		{",\"network\":{\"denyOut\":[1]}", 400, "network.denyOut[0]"},
		{",\"network\":{\"rules\":{\"a\":[]}}", 501, "network.rules"},
		{",\"network\":{\"rules\":[{}]}", 501, "network.rules"},
		{",\"network\":{\"egressProxy\":{\"address\":\"a:1\"}}", 501, "network.egressProxy"},
		{",\"network\":{\"dnsServers\":[\"1.1.1.1\"]}", 501, "network.dnsServers"},
		{",\"network\":{\"dnsServers\":[]}", 501, "network.dnsServers"},
		{",\"network\":{\"dnsServers\":\"1.1.1.1\"}", 400, "network"},
		{",\"network\":{\"maskRequestHost\":\"h\"}", 501, "network.maskRequestHost"},
		{",\"network\":{\"httpsPorts\":[443]}", 501, "network.httpsPorts"},
		{",\"network\":{\"allowPublicTraffic\":1}", 400, "network"},
		{",\"timeout\":0", 400, "Timeout must be greater than 0"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char body[512];
		snprintf(body, sizeof(body), "{\"templateID\":\"base\"%s}", rows[i].rest);
		create_is(body, true, rows[i].status, rows[i].word, NULL);
		create_is(body, false, rows[i].status, rows[i].word, NULL);
	}
	create_is("{}", true, 400, "templateID", NULL);
	create_is("{\"templateID\":7}", true, 400, "templateID", NULL);
	create_is("{\"templateID\":\"a b\"}", true, 400, "Invalid template reference", NULL);
}

static void security_of_create(void **state)
{
	static const struct {
		const char *rest;
		bool v2;
		int status;
		bool secure, public_traffic;
	} rows[] = {
		{"", true, 201, true, true},
		{"", false, 201, false, true},
		{",\"secure\":true", false, 201, true, true},
		{",\"secure\":false", false, 201, false, true},
		{",\"secure\":false", true, 400, false, false},
		{",\"network\":{\"allowPublicTraffic\":false}", true, 201, true, false},
		{",\"network\":{\"allowPublicTraffic\":false}", false, 201, false, false},
		{",\"secure\":false,\"network\":{\"allowPublicTraffic\":false}", false, 400, false, false},
		{",\"secure\":true,\"network\":{\"allow_public_traffic\":false}", false, 201, true, false},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char body[512];
		struct create_args args;
		snprintf(body, sizeof(body), "{\"templateID\":\"base\"%s}", rows[i].rest);
		create_is(body, rows[i].v2, rows[i].status, "secure", &args);
		if (rows[i].status == 201) {
			assert_int_equal(args.secure, rows[i].secure);
			assert_int_equal(args.network.public_traffic, rows[i].public_traffic);
			assert_false(args.network.has_internet);
		}
		create_args_done(&args);
	}
}

/* The same fields at the top of a PUT's body; what is not given is cleared. */
static void network_of_an_update(void **state)
{
	static const struct {
		const char *body;
		int status;
		const char *word;
	} rows[] = {
		{"{}", 200, NULL},
		{"{\"allowOut\":[\"1.1.1.1\"],\"denyOut\":[\"0.0.0.0/0\"],\"allow_internet_access\":false}", 200, NULL},
		{"{\"allow_out\":[\"1.1.1.1\"],\"deny_out\":[],\"allowInternetAccess\":true,\"rules\":{},\"egressProxy\":null,\"unknown\":1}", 200, NULL},
		{"{\"allowOut\":[\"a.example.com\"]}", 501, "allowOut[0]"},
		{"{\"denyOut\":[\"1.1.1.1/64\"]}", 400, "denyOut[0]: invalid denied CIDR"},
		{"{\"denyOut\":{}}", 400, "denyOut must be an array"},
		{"{\"rules\":{\"a.com\":[]}}", 501, "rules"},
		{"{\"egressProxy\":{\"address\":\"a:1\"}}", 501, "egressProxy"},
		{"{\"dnsServers\":[]}", 501, "dnsServers"},
		{"{\"maskRequestHost\":\"a\"}", 501, "maskRequestHost"},
		{"{\"httpsPorts\":[443]}", 501, "httpsPorts"},
		{"{\"allow_internet_access\":\"no\"}", 400, "allow_internet_access"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cleanup_network_args struct network_args args;
		struct error err = {0};
		cleanup_json json_t *body = json_parse(str_of(rows[i].body), 65536, "body", &err);
		int r = network_parse_update(body, &args, &err);
		if ((rows[i].status == 200) != (r == 0) || (r < 0 && (err.status != rows[i].status || !strstr(err.message, rows[i].word))))
			fail_msg("%s: %d %s", rows[i].body, err.status, err.message);
	}
	cleanup_network_args struct network_args args, empty;
	cleanup_json json_t *body = json_parse(STR("{\"allow_out\":[\"1.2.3.4/8\",\"::1\"]}"), 65536, "body", NULL), *good = json_parse(
		STR("{\"allow_out\":[\"1.2.3.4/8\",\"5.6.7.8\"],\"allow_internet_access\":false}"), 65536, "body", NULL);
	assert_int_equal(network_parse_update(body, &args, NULL), -EINVAL);
	network_args_done(&args);
	assert_int_equal(network_parse_update(good, &args, NULL), 0);
	struct str rest = buf_str(&args.allow_out), item;
	assert_true(msg_list_next(&rest, &item) && str_is(item, "1.2.3.4/8")); /* as given */
	assert_true(msg_list_next(&rest, &item) && str_is(item, "5.6.7.8"));
	assert_true(!rest.n && args.has_internet && !args.internet && !args.has_public_traffic);
	assert_int_equal(network_parse_update(NULL, &empty, NULL), 0);
	assert_true(!empty.has_internet && !buf_len(&empty.allow_out) && !buf_len(&empty.deny_out));
}

static void routes(void **state)
{
	static const struct {
		const char *method, *path;
		bool admin;
		int result;
		const char *pattern_or_allow, *param;
	} rows[] = {
		{"GET", "/sandboxes/iabc", false, 0, "/sandboxes/{sandboxID}", "iabc"},
		{"HEAD", "/sandboxes/iabc", false, 0, "/sandboxes/{sandboxID}", "iabc"},
		{"GET", "/sandboxes/metrics", false, 0, "/sandboxes/metrics", NULL},
		{"GET", "/templates/aliases/team%2Fbase%3Av1", false, 0, "/templates/aliases/{alias}", "team/base:v1"},
		{"GET", "/templates/aliases/a%252Fb", false, 0, "/templates/aliases/{alias}", "a%2Fb"},
		{"GET", "/%73andboxes", false, 0, "/sandboxes", NULL},
		{"DELETE", "/templates/tags", false, 0, "/templates/tags", NULL},
		{"DELETE", "/templates/tagsx", false, 0, "/templates/{templateID}", "tagsx"},
		{"PUT", "/sandboxes", false, -EPERM, "POST, GET, HEAD, OPTIONS", NULL},
		{"GET", "/v2/sandboxes/i/connect", false, -EPERM, "POST, OPTIONS", NULL},
		{"BREW", "/health", false, -EPERM, "GET, HEAD, OPTIONS", NULL},
		{"GET", "/", false, -ENOENT, NULL, NULL},
		{"GET", "*", false, -ENOENT, NULL, NULL},
		{"GET", "//health", false, -ENOENT, NULL, NULL},
		{"GET", "/health/", false, -ENOENT, NULL, NULL},
		{"GET", "/v1/sandboxes", false, -ENOENT, NULL, NULL},
		{"GET", "/sandboxes/../admin/keys", false, -ENOENT, NULL, NULL},
		{"GET", "/a/b/c/d/e/f/g/h/i/j", false, -ENOENT, NULL, NULL},
		{"GET", "/sandboxes/%zz", false, -EINVAL, NULL, NULL},
		{"GET", "/sandboxes/a%00b", false, -EINVAL, NULL, NULL},
		{"GET", "/admin/keys", false, -ENOENT, NULL, NULL},
		{"GET", "/admin/keys", true, 0, "/admin/keys", NULL},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct buf storage = BUF_INIT;
		struct route_match m = {0};
		int r = route_find(str_of(rows[i].method), str_of(rows[i].path), rows[i].admin, &storage, &m);
		assert_int_equal(r, rows[i].result);
		if (r == 0) {
			assert_string_equal(m.route->pattern, rows[i].pattern_or_allow);
			assert_int_equal(m.n_params, rows[i].param != NULL);
			if (rows[i].param)
				assert_str(m.params[0], rows[i].param);
		} else if (r == -EPERM) {
			assert_string_equal(m.allow, rows[i].pattern_or_allow);
		}
		buf_done(&storage);
	}
}

static void the_table_of_routes_is_sound(void **state)
{
	for (size_t i = 0; i < api_n_routes; i++) {
		assert_non_null(api_routes[i].handler);
		assert_true(strlen(api_routes[i].doc) > 10);
		for (size_t j = 0; j < i; j++)
			if (!strcmp(api_routes[i].method, api_routes[j].method))
				assert_string_not_equal(api_routes[i].pattern, api_routes[j].pattern);
	}
}

static uint64_t random_state = 88172645463325252;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* Damaged forms of valid texts are taken or refused, never read past their end: the sanitizers watch. */
static void damaged_texts_never_run_over(void **state)
{
	static const char *const seeds[] = {"k%2520y=v%2526%253D%25C3%25BC&a=b", "team/base:v1.2", "iabc-6532622b",
		"MjAyNi0wMS0wMlQwMzowNDowNS42Nzg5MDEyMzRaX19pYWJjX19hc2M", "/v2/sandboxes/iabc/connect", "/templates/aliases/team%2Fbase%3Av1",
		"{\"templateID\":\"base\",\"network\":{\"allowOut\":[]},\"autoResume\":{\"policy\":\"off\"},\"envVars\":{\"A\":\"b\"}}"};
	size_t taken = 0;
	for (unsigned i = 0; i < 20000; i++) {
		const char *seed = seeds[i % (sizeof(seeds) / sizeof(seeds[0]))];
		size_t n = strlen(seed);
		char *text = malloc(n + 1); /* of exactly this length, so that a read past it shows */
		memcpy(text, seed, n);
		for (unsigned k = next_random() % 4; k; k--)
			text[next_random() % n] = (char)next_random();
		struct str s = str_n(text, n - next_random() % (n / 2));
		text = realloc(text, s.n);
		s.p = text;
		struct buf pairs = BUF_INIT, storage = BUF_INIT;
		struct template_reference ref;
		struct cursor cursor;
		struct route_match m = {0};
		struct create_args args = {0};
		struct error err = {0};
		struct str id;
		taken += decode_metadata_filter(s, &pairs, &err) == 0;
		taken += decode_template_reference(s, &ref, &err) == 0;
		taken += cursor_decode(s, &cursor, &err) == 0;
		taken += decode_sandbox_id(s, &id, &err) == 0;
		taken += route_find(STR("POST"), s, false, &storage, &m) == 0;
		cleanup_json json_t *j = json_parse(s, 4096, "x", &err);
		taken += json_is_object(j) && create_parse(j, true, &options, &args, &err) == 0;
		create_args_done(&args);
		buf_done(&pairs), buf_done(&storage);
		free(text);
	}
	assert_in_range(taken, 1000, 60000);
}

int main(void)
{
	options_init(&options);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sandbox_ids),
		cmocka_unit_test(template_references),
		cmocka_unit_test(metadata_survives_the_layers_of_both_clients),
		cmocka_unit_test(metadata_filters),
		cmocka_unit_test(cursors),
		cmocka_unit_test(timeouts),
		cmocka_unit_test(bodies_of_create),
		cmocka_unit_test(security_of_create),
		cmocka_unit_test(network_of_an_update),
		cmocka_unit_test(routes),
		cmocka_unit_test(the_table_of_routes_is_sound),
		cmocka_unit_test(damaged_texts_never_run_over),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	options_done(&options);
	return r;
}
