/* Creates that have a name (Idempotency-Key), lives with a bound (lifecycle.shutdownAfterSeconds), ready pools: agents.md §3. */
#include "api_case.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BASE "{\"templateID\":\"base\"}"

static const char *with_key(const char *key, char to[700])
{
	snprintf(to, 700, "X-API-KEY: %s\r\nIdempotency-Key: %s\r\n", world->key, key);
	return to;
}

static struct reply create(const char *key, const char *route, const char *body)
{
	char headers[700];
	return world_ask(world, "POST", route, with_key(key, headers), body);
}

/* A create with this name is 201 and gives this sandbox. */
static void gives(const char *key, const char *body, const char *id)
{
	cleanup_reply struct reply r = create(key, "/v2/sandboxes", body);
	assert_int_equal(r.status, 201);
	assert_string_equal(reply_text(&r, "sandboxID"), id);
}

static void refused(const char *key, const char *route, const char *body, int status, const char *word)
{
	char headers[700];
	expect("POST", route, with_key(key, headers), body, status, word);
}

/* Sends a create and leaves it at the node: the client's end. */
static int begin(const char *headers, const char *body)
{
	cleanup_buf struct buf text = BUF_INIT;
	int fd = world_open(world, false);
	buf_addf(&text, "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s", headers, strlen(body), body);
	assert_int_equal(write(fd, buf_str(&text).p, buf_len(&text)), buf_len(&text));
	world_turn(world);
	return fd;
}

static struct reply end(int fd)
{
	struct reply r = world_send(world, fd, STR(""));
	close(fd);
	return r;
}

static void a_name_makes_one_sandbox(void **state)
{
	cleanup_reply struct reply first = create("job-1", "/v2/sandboxes", BASE);
	assert_int_equal(first.status, 201);
	char id[33];
	snprintf(id, sizeof(id), "%s", reply_text(&first, "sandboxID"));
	gives("job-1", BASE, id);
	cleanup_reply struct reply again = create("job-1", "/v2/sandboxes", BASE);
	assert_string_equal(reply_text(&first, "envdAccessToken"), reply_text(&again, "envdAccessToken"));
	assert_int_equal(world->n_sandboxes, 1);
	cleanup_reply struct reply other = create("job-2", "/v2/sandboxes", BASE), old_form = create("job-3", "/sandboxes", BASE);
	assert_int_equal(other.status, 201);
	assert_int_equal(old_form.status, 201);
	assert_int_equal(world->n_sandboxes, 3);
	/* Without a name each is another one. */
	make(NULL);
	make(NULL);
	assert_int_equal(world->n_sandboxes, 5);
}

/* What is the same is said by the meaning of the body, not by its bytes. */
static void a_name_goes_with_what_was_asked_for(void **state)
{
	cleanup_reply struct reply first =
		create("k", "/v2/sandboxes", "{\"templateID\":\"base\",\"timeout\":60,\"metadata\":{\"a\":\"1\",\"b\":\"2\"},\"envVars\":{\"X\":\"\\u00fc\"}}");
	assert_int_equal(first.status, 201);
	gives("k", " {\n\"envVars\" : {\"X\":\"\xc3\xbc\"}, \"metadata\":{\"b\":\"2\",\"a\":\"1\"}, \"timeout\":60,\"templateID\":\"base\" } ",
		reply_text(&first, "sandboxID"));
	static const char *const others[] = {
		BASE,
		"{\"templateID\":\"base\",\"timeout\":61,\"metadata\":{\"a\":\"1\",\"b\":\"2\"},\"envVars\":{\"X\":\"\\u00fc\"}}",
		"{\"templateID\":\"base\",\"timeout\":60,\"metadata\":{\"a\":\"2\",\"b\":\"1\"},\"envVars\":{\"X\":\"\\u00fc\"}}",
		"{\"templateID\":\"base\",\"timeout\":60,\"metadata\":{\"a\":\"1\",\"b\":\"2\"},\"envVars\":{\"X\":\"y\"}}",
	};
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		refused("k", "/v2/sandboxes", others[i], 409, "Idempotency-Key");
	/* The old route asks for another thing: a sandbox that need not be secured. */
	refused("k", "/sandboxes", "{\"templateID\":\"base\",\"timeout\":60,\"metadata\":{\"a\":\"1\",\"b\":\"2\"},\"envVars\":{\"X\":\"\\u00fc\"}}", 409,
		"Idempotency-Key");
	assert_int_equal(world->n_sandboxes, 1);
}

static void malformed_names_are_refused(void **state)
{
	char longest[256 + 1], headers[700];
	memset(longest, '~', sizeof(longest));
	longest[256] = 0;
	refused("", "/v2/sandboxes", BASE, 400, "Idempotency-Key");
	refused("a b", "/v2/sandboxes", BASE, 400, "Idempotency-Key");
	refused("a\tb", "/v2/sandboxes", BASE, 400, "Idempotency-Key");
	refused("a\xc3\xbc", "/sandboxes", BASE, 400, "Idempotency-Key");
	refused(longest, "/sandboxes", BASE, 400, "255");
	snprintf(headers, sizeof(headers), "X-API-KEY: %s\r\nIdempotency-Key: a\r\nidempotency-key: a\r\n", world->key);
	expect("POST", "/v2/sandboxes", headers, BASE, 400, "Idempotency-Key");
	assert_int_equal(world->n_sandboxes, 0);
	longest[255] = 0;
	cleanup_reply struct reply r = create(longest, "/v2/sandboxes", BASE);
	assert_int_equal(r.status, 201);
	gives(longest, BASE, reply_text(&r, "sandboxID"));
	/* A body that is refused takes no name. */
	refused("b", "/v2/sandboxes", "{\"templateID\":\"base\",\"timeout\":0}", 400, "Timeout");
	refused("b", "/v2/sandboxes", NULL, 400, "templateID");
	refused("b", "/v2/sandboxes", "{\"templateID\":\"nope\"}", 404, "nope");
	refused("b", "/v2/sandboxes", BASE, 201, NULL);
}

/* The same one until its delete succeeded, in whatever state; then the name is free, however it ended. */
static void a_name_is_free_when_its_sandbox_is_gone(void **state)
{
	static const char *const reasons[] = {"killed", "timeout", "crashed"};
	char target[80];
	for (size_t i = 0; i < ARRAY_SIZE(reasons); i++) {
		cleanup_reply struct reply r = create("k", "/v2/sandboxes", BASE);
		assert_int_equal(r.status, 201);
		struct fake_sandbox *s = world_find(world, reply_text(&r, "sandboxID"));
		assert_int_equal(world->n_sandboxes, i + 1);
		s->state = SANDBOX_PAUSED;
		world_event(world, s);
		gives("k", BASE, s->id);
		s->state = SANDBOX_KILLING;
		world_event(world, s);
		refused("k", "/v2/sandboxes", BASE, 409, "Idempotency-Key");
		world_end(world, s->id, reasons[i], NULL, clock_realtime());
	}
	cleanup_reply struct reply r = create("k", "/v2/sandboxes", BASE);
	snprintf(target, sizeof(target), "/sandboxes/%s", reply_text(&r, "sandboxID"));
	world->answer_first = true; /* the answer of the kill is enough, before its event */
	expect("DELETE", target, NULL, NULL, 204, NULL);
	refused("k", "/v2/sandboxes", BASE, 201, NULL);
	assert_int_equal(world->n_sandboxes, ARRAY_SIZE(reasons) + 2);
}

static void two_at_once_with_a_name_get_one_sandbox(void **state)
{
	enum { N = 20 };
	char headers[700];
	int fds[N];
	world->hold = world->unborn = true;
	for (int i = 0; i < N; i++)
		fds[i] = begin(with_key("k", headers), BASE);
	assert_int_equal(world->n_sandboxes, 1);
	assert_int_equal(world->n_joined, N - 1);
	refused("k", "/v2/sandboxes", "{\"templateID\":\"base\",\"timeout\":9}", 409, "Idempotency-Key");
	close(fds[0]); /* whoever leaves, the others get it */
	world_turn(world);
	world_release(world);
	for (int i = 1; i < N; i++) {
		cleanup_reply struct reply r = end(fds[i]);
		assert_int_equal(r.status, 201);
		assert_string_equal(reply_text(&r, "sandboxID"), world->sandboxes[0].id);
	}
}

/* A repeat is no second sandbox: no quota refuses it, whether the first one runs or is being made. */
static void a_repeat_is_not_refused_by_a_quota(void **state)
{
	char headers[700];
	cleanup_reply struct reply quota = world_admin(world, "PATCH", "/admin/teams/default", "{\"quotas\":{\"sandboxes\":1,\"creates\":1}}");
	assert_int_equal(quota.status, 200);
	world->hold = world->unborn = true;
	int first = begin(with_key("k", headers), BASE), second = begin(with_key("k", headers), BASE);
	refused("other", "/v2/sandboxes", BASE, 429, "quota");
	assert_int_equal(world->n_joined, 1);
	world_release(world);
	cleanup_reply struct reply a = end(first), b = end(second);
	assert_int_equal(a.status, 201);
	assert_int_equal(b.status, 201);
	for (int i = 0; i < 5; i++)
		gives("k", BASE, world->sandboxes[0].id);
	refused("other", "/v2/sandboxes", BASE, 429, "quota");
	cleanup_reply struct reply usage = world_admin(world, "GET", "/admin/teams", NULL);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(json_array_get(usage.json, 0), "usage"), "sandboxes")), 1);
}

/* Nor does one that comes to nothing leave anything behind: neither of the two that waited, nor in the account. */
static void a_name_is_free_after_a_failure(void **state)
{
	char headers[700];
	cleanup_reply struct reply quota = world_admin(world, "PATCH", "/admin/teams/default", "{\"quotas\":{\"sandboxes\":1,\"creates\":null}}");
	assert_int_equal(quota.status, 200);
	world->hold = world->unborn = true;
	int fds[3];
	for (int i = 0; i < 3; i++)
		fds[i] = begin(with_key("k", headers), BASE);
	world_fail_held(world, 500);
	for (int i = 0; i < 3; i++) {
		cleanup_reply struct reply r = end(fds[i]);
		assert_int_equal(r.status, 500);
	}
	cleanup_reply struct reply usage = world_admin(world, "GET", "/admin/teams", NULL);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(json_array_get(usage.json, 0), "usage"), "sandboxes")), 0);
	world->unborn = false;
	refused("k", "/v2/sandboxes", BASE, 201, NULL);
	refused("l", "/v2/sandboxes", BASE, 429, "quota");
}

/* 504: nobody knows whether it will be. Asked again, the client gets what came of it, and is not told to stay away. */
static void after_a_504_the_repeat_gets_it(void **state)
{
	node_client_set_patience(world->client, 50 * NS_PER_MS);
	world->hold = world->unborn = true;
	cleanup_reply struct reply r = create("k", "/v2/sandboxes", BASE);
	assert_int_equal(r.status, 504);
	assert_null(http_find(r.head, "should-retry"));
	cleanup_reply struct reply still = create("k", "/v2/sandboxes", BASE);
	assert_int_equal(still.status, 504);
	world_release(world);
	world_turn(world);
	gives("k", BASE, world->sandboxes[0].id);
	assert_int_equal(world->n_sandboxes, 1);
	/* Without a name a repeat would be a second one. */
	world->silent = true;
	cleanup_reply struct reply plain = world_ask(world, "POST", "/v2/sandboxes", NULL, BASE);
	assert_int_equal(plain.status, 504);
	check_error(&plain, "create");
}

/* The index is rebuilt from what the node tells: after a restart of either of them a name means what it meant. */
static void names_survive_the_node_and_the_front(void **state)
{
	cleanup_reply struct reply r = create("k", "/v2/sandboxes", BASE), gone = create("g", "/v2/sandboxes", BASE);
	char id[33];
	snprintf(id, sizeof(id), "%s", reply_text(&r, "sandboxID"));
	world_lose_node(world);
	gives("k", BASE, id); /* what is known is answered */
	refused("new", "/v2/sandboxes", BASE, 503, NULL);
	world_find(world, reply_text(&gone, "sandboxID"))->alive = false; /* while nobody listened */
	world_connect_node(world);
	unsigned calls = world->calls;
	gives("k", BASE, id);
	refused("k", "/v2/sandboxes", "{\"templateID\":\"base\",\"timeout\":9}", 409, "Idempotency-Key");
	assert_int_equal(world->calls, calls); /* front knows them itself */
	refused("g", "/v2/sandboxes", BASE, 201, NULL);
	assert_int_equal(world->n_sandboxes, 3);
}

/* A channel that is lost under a create: the answer is lost, the sandbox is not. */
static void a_lost_answer_is_asked_for_again(void **state)
{
	char headers[700];
	world->hold = true;
	int fd = begin(with_key("k", headers), BASE);
	world_lose_node(world);
	cleanup_reply struct reply r = end(fd);
	assert_int_equal(r.status, 503);
	world->hold = false;
	world->held[0] = 0;
	world_connect_node(world);
	gives("k", BASE, world->sandboxes[0].id);
	assert_int_equal(world->n_sandboxes, 1);
}

static void names_are_a_teams_own(void **state)
{
	cleanup_reply struct reply team = world_admin(world, "POST", "/admin/teams", "{\"name\":\"b\"}");
	assert_int_equal(team.status, 201);
	cleanup_reply struct reply own = create("k", "/v2/sandboxes", BASE);
	char text[256];
	int fd = world_open(world, true);
	snprintf(text, sizeof(text), "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-Cubicle-Team: b\r\nIdempotency-Key: k\r\nContent-Length: %zu\r\n\r\n%s", strlen(BASE),
		BASE);
	cleanup_reply struct reply theirs = world_send(world, fd, str_of(text));
	close(fd);
	assert_int_equal(theirs.status, 201);
	assert_string_not_equal(reply_text(&own, "sandboxID"), reply_text(&theirs, "sandboxID"));
}

static void a_bounded_life_is_asked_for_and_shown(void **state)
{
	const char *id = make("{\"templateID\":\"base\",\"autoPause\":true,\"lifecycle\":{\"shutdownAfterSeconds\":3600}}");
	struct fake_sandbox *s = world_find(world, id);
	assert_int_equal(s->shutdown_after, 3600);
	assert_true(s->auto_pause); /* saying only this leaves the flat form as it is */
	char target[80], at[RFC3339_SIZE];
	rfc3339_format(at, s->started_at + 3600 * NS_PER_S);
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
	const json_t *lifecycle = json_object_get(r.json, "lifecycle");
	assert_string_equal(json_string_value(json_object_get(lifecycle, "shutdownAt")), at);
	assert_string_equal(json_string_value(json_object_get(lifecycle, "onTimeout")), "pause");
	static const char *const lists[] = {"/sandboxes", "/v2/sandboxes"};
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		cleanup_reply struct reply list = world_ask(world, "GET", lists[i], NULL, NULL);
		lifecycle = json_object_get(json_array_get(list.json, 0), "lifecycle");
		assert_string_equal(json_string_value(json_object_get(lifecycle, "shutdownAt")), at);
	}
	s = world_find(world, make("{\"templateID\":\"base\",\"lifecycle\":{\"onTimeout\":\"pause\",\"autoResume\":true,\"shutdownAfterSeconds\":315360000}}"));
	assert_true(s->auto_pause && s->auto_resume && s->shutdown_after == 315360000);
	s = world_find(world, make("{\"templateID\":\"base\",\"autoPause\":true,\"lifecycle\":{}}"));
	assert_true(!s->auto_pause && !s->shutdown_after); /* Cube's nested form wins */
	snprintf(target, sizeof(target), "/sandboxes/%s", s->id);
	cleanup_reply struct reply none = world_ask(world, "GET", target, NULL, NULL);
	assert_null(json_object_get(json_object_get(none.json, "lifecycle"), "shutdownAt"));
}

static void bad_bounds_of_a_life_are_refused_by_name(void **state)
{
	static const char *const values[] = {"0", "-1", "315360001", "9223372036854775807", "1.5", "\"60\"", "true", "{}"};
	char body[160];
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		snprintf(body, sizeof(body), "{\"templateID\":\"base\",\"lifecycle\":{\"shutdownAfterSeconds\":%s}}", values[i]);
		expect("POST", "/v2/sandboxes", NULL, body, 400, "shutdownAfterSeconds");
	}
	expect("POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\",\"shutdownAfterSeconds\":60}", 400, "lifecycle");
	expect("POST", "/v2/sandboxes", NULL, "{\"templateID\":\"base\",\"lifecycle\":{\"shutdownAfterSeconds\":null}}", 201, NULL);
	assert_int_equal(world->n_sandboxes, 1);
}

static int64_t number(const json_t *pool, const char *name)
{
	return json_integer_value(json_object_get(pool, name));
}

static void pools_are_set_listed_and_unset(void **state)
{
	cleanup_reply struct reply none = world_ask(world, "GET", "/pools", NULL, NULL);
	assert_int_equal(none.status, 200);
	assert_int_equal(member_count(&none), 0);
	cleanup_reply struct reply set = world_ask(world, "PUT", "/pools/base", NULL, "{\"size\":3}");
	assert_int_equal(set.status, 200);
	assert_string_equal(reply_text(&set, "templateID"), "tmplbase000000000000");
	assert_string_equal(reply_text(&set, "alias"), "base");
	assert_true(json_is_true(json_object_get(set.json, "set")));
	assert_true(number(set.json, "min") == 3 && number(set.json, "size") == 3 && number(set.json, "max") == 3);
	cleanup_reply struct reply again = world_ask(world, "PUT", "/pools/TMPLbase000000000000", NULL, "{\"size\":5,\"min\":0,\"max\":1000}");
	assert_true(number(again.json, "min") == 0 && number(again.json, "size") == 5 && number(again.json, "max") == 1000);
	struct pool_info *p = &world->pools[0];
	*p = (struct pool_info){.template_id = "tmplbase000000000000", .min = 1, .size = 4, .max = 16, .ready = 2, .starting = 1, .block = POOL_NO_ROOM, .hits = 7,
		.misses = 8, .failed = 9, .evicted = 10, .refill_ms = 1234, .memory_mb = 1536};
	cleanup_reply struct reply list = world_ask(world, "GET", "/pools", NULL, NULL);
	assert_int_equal(member_count(&list), 1);
	const json_t *one = json_array_get(list.json, 0);
	cleanup_json json_t *wanted = json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "templateID", "tmplbase000000000000",
		"alias", "base", "set", 0, "min", 1, "size", 4, "max", 16, "ready", 2, "starting", 1, "blocked", "no_room", "hits", 7, "misses", 8, "failed", 9,
		"evicted", 10, "refillMs", 1234, "memoryMB", 1536);
	assert_true(json_equal((json_t *)(uintptr_t)one, wanted));
	p->block = POOL_FAILING;
	cleanup_reply struct reply failing = world_ask(world, "GET", "/pools", NULL, NULL);
	assert_string_equal(json_string_value(json_object_get(json_array_get(failing.json, 0), "blocked")), "failing");
	expect("DELETE", "/pools/base", NULL, NULL, 404, "no pool is set");
	p->set = true;
	expect("DELETE", "/pools/base", NULL, NULL, 204, NULL);
	expect("DELETE", "/pools/base", NULL, NULL, 404, "no pool is set");
	/* Of a template that is not there any more. */
	*p = (struct pool_info){.template_id = "tmplgone000000000000", .set = true, .min = 1, .size = 1, .max = 1};
	cleanup_reply struct reply orphan = world_ask(world, "GET", "/pools", NULL, NULL);
	assert_null(json_object_get(json_array_get(orphan.json, 0), "alias"));
	expect("DELETE", "/pools/tmplgone000000000000", NULL, NULL, 204, NULL);
	expect("PUT", "/pools/tmplgone000000000000", NULL, "{\"size\":1}", 404, "not found");
}

static void bad_pools_are_refused_by_name(void **state)
{
	static const struct {
		const char *target, *body;
		int status;
		const char *word;
	} rows[] = {
		{"/pools/base", NULL, 400, "size is missing"},
		{"/pools/base", "{}", 400, "size is missing"},
		{"/pools/base", "{\"size\":null}", 400, "size is missing"},
		{"/pools/base", "{\"size\":-1}", 400, "size must be 0 to 1000"},
		{"/pools/base", "{\"size\":1001}", 400, "size must be 0 to 1000"},
		{"/pools/base", "{\"size\":1.5}", 400, "size"},
		{"/pools/base", "{\"size\":\"3\"}", 400, "size"},
		{"/pools/base", "{\"size\":3,\"min\":4}", 400, "min must not"},
		{"/pools/base", "{\"size\":3,\"min\":-1}", 400, "min must be"},
		{"/pools/base", "{\"size\":3,\"max\":2}", 400, "max must not"},
		{"/pools/base", "{\"size\":3,\"max\":1001}", 400, "max must be"},
		{"/pools/base", "{\"size\":3,\"max\":[]}", 400, "max"},
		{"/pools/base", "[]", 400, "object"},
		{"/pools/nope", "{\"size\":3}", 404, "template 'nope' not found"},
		{"/pools/base:v2", "{\"size\":3}", 404, "tag 'v2'"},
		{"/pools/a%20b", "{\"size\":3}", 400, "Invalid template reference"},
		{"/pools", "{\"size\":3}", 405, "GET"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		expect("PUT", rows[i].target, NULL, rows[i].body, rows[i].status, rows[i].word);
	expect("POST", "/pools/base", NULL, "{\"size\":3}", 405, "PUT");
	expect("DELETE", "/pools/nope", NULL, NULL, 404, "no pool is set");
	expect("DELETE", "/pools/a%20b", NULL, NULL, 400, "Invalid template reference");
	assert_int_equal(world->n_pools, 0);
	/* What only the node knows: that there is nothing to be ready. */
	world->refuse = (struct error){.code = -EINVAL, .status = 400, .message = "template base has no services: there is nothing to be ready"};
	expect("PUT", "/pools/base", NULL, "{\"size\":3}", 400, "no services");
	expect("PUT", "/pools/base", NULL, "{\"size\":0}", 200, NULL); /* none at all */
	world_lose_node(world);
	expect("GET", "/pools", NULL, NULL, 503, NULL);
	expect("PUT", "/pools/base", NULL, "{\"size\":3}", 503, NULL);
}

static void pools_are_of_templates_only(void **state)
{
	char target[80];
	snprintf(target, sizeof(target), "/sandboxes/%s/snapshots", make(NULL));
	cleanup_reply struct reply r = world_ask(world, "POST", target, NULL, "{\"name\":\"mine\"}"), same = world_ask(world, "POST", target, NULL, "{\"name\":\"base\"}");
	assert_int_equal(r.status, 201);
	assert_int_equal(same.status, 201);
	expect("PUT", "/pools/mine", NULL, "{\"size\":3}", 400, "snapshot");
	snprintf(target, sizeof(target), "/pools/%s", world->snapshots[0].id);
	expect("PUT", target, NULL, "{\"size\":3}", 400, "snapshot");
	/* A snapshot that has a template's name does not stand before it. */
	expect("PUT", "/pools/base", NULL, "{\"size\":3}", 200, NULL);
	assert_string_equal(world->pools[0].template_id, "tmplbase000000000000");
}

/* They take memory from everybody and count for nobody: who may not, is told so; all may look. */
static void only_the_default_team_and_root_set_pools(void **state)
{
	cleanup_reply struct reply team = world_admin(world, "POST", "/admin/teams", "{\"name\":\"b\"}");
	assert_int_equal(team.status, 201);
	int fd = world_open(world, true);
	cleanup_reply struct reply key =
		world_send(world, fd, STR("POST /admin/keys HTTP/1.1\r\nHost: x\r\nX-Cubicle-Team: b\r\nContent-Length: 12\r\n\r\n{\"name\":\"k\"}"));
	close(fd);
	char headers[160];
	snprintf(headers, sizeof(headers), "X-API-KEY: %s\r\n", reply_text(&key, "key"));
	expect("PUT", "/pools/base", headers, "{\"size\":3}", 403, "default team");
	expect("PUT", "/pools/nope", headers, "{}", 403, "default team");
	expect("DELETE", "/pools/base", headers, NULL, 403, "default team");
	expect("GET", "/pools", headers, NULL, 200, NULL);
	expect("GET", "/pools", "", NULL, 401, NULL);
	assert_int_equal(world->n_pools, 0);
	cleanup_reply struct reply root = world_admin(world, "PUT", "/pools/base", "{\"size\":3}");
	assert_int_equal(root.status, 200);
	/* Root is root, for whichever team. */
	fd = world_open(world, true);
	cleanup_reply struct reply other = world_send(world, fd, STR("DELETE /pools/base HTTP/1.1\r\nHost: x\r\nX-Cubicle-Team: b\r\n\r\n"));
	close(fd);
	assert_int_equal(other.status, 204);
	cleanup_reply struct reply list = world_admin(world, "GET", "/pools", NULL);
	assert_int_equal(member_count(&list), 1);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_setup("test", 2, LOG_ERROR);
	const struct CMUnitTest tests[] = {
		T(a_name_makes_one_sandbox),
		T(a_name_goes_with_what_was_asked_for),
		T(malformed_names_are_refused),
		T(a_name_is_free_when_its_sandbox_is_gone),
		T(two_at_once_with_a_name_get_one_sandbox),
		T(a_repeat_is_not_refused_by_a_quota),
		T(a_name_is_free_after_a_failure),
		T(after_a_504_the_repeat_gets_it),
		T(names_survive_the_node_and_the_front),
		T(a_lost_answer_is_asked_for_again),
		T(names_are_a_teams_own),
		T(a_bounded_life_is_asked_for_and_shown),
		T(bad_bounds_of_a_life_are_refused_by_name),
		T(pools_are_set_listed_and_unset),
		T(bad_pools_are_refused_by_name),
		T(pools_are_of_templates_only),
		T(only_the_default_team_and_root_set_pools),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
