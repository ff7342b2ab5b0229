#include "api_case.h"

#include <stdio.h>
#include <string.h>

struct world *world;

int set_up(void **state)
{
	world = world_new();
	world_connect_node(world);
	return 0;
}

int tear_down(void **state)
{
	world_free(world);
	return 0;
}

const char *make(const char *body)
{
	cleanup_reply struct reply r = world_ask(world, "POST", "/v2/sandboxes", NULL, body ? body : "{\"templateID\":\"base\"}");
	assert_int_equal(r.status, 201);
	return world->sandboxes[world->n_sandboxes - 1].id;
}

/* Every error is JSON with an integer code that is the status, and a message (e2b.md 0.4). */
void check_error(const struct reply *r, const char *what)
{
	const json_t *code = json_object_get(r->json, "code");
	if (!json_is_integer(code) || json_integer_value(code) != r->status || !reply_text(r, "message")[0])
		fail_msg("%s: %d without {code,message}: %.*s", what, r->status, STR_FMT(r->body));
	assert_str(reply_header(r, "content-type"), "application/json");
	bool waits = r->status == 429 || r->status == 503;
	uint64_t seconds;
	if (waits)
		assert_int_equal(str_to_u64(reply_header(r, "retry-after"), &seconds), 0);
	/* Clients ask again by themselves after some errors, unless they are told not to. */
	assert_str(reply_header(r, "should-retry"), r->status == 504 ? "false" : "");
}

void expect(const char *method, const char *target, const char *headers, const char *body, int status, const char *word)
{
	cleanup_reply struct reply r = world_ask(world, method, target, headers, body);
	if (r.status != status)
		fail_msg("%s %s %s: %d, not %d: %.*s", method, target, body ? body : "", r.status, status, STR_FMT(r.body));
	if (status >= 400 && strcmp(method, "HEAD") != 0)
		check_error(&r, target);
	if (word && !strstr(reply_text(&r, "message"), word))
		fail_msg("%s %s: \"%s\" without \"%s\"", method, target, reply_text(&r, "message"), word);
	if (status == 204) {
		assert_int_equal(r.body.n, 0);
		assert_null(http_find(r.head, "content-length"));
	}
	assert_true(reply_header(&r, "x-request-id").n > 0);
	assert_str(reply_header(&r, "access-control-allow-origin"), "*");
}

const char *with_id(const char *target, const char *id, char *to, size_t size)
{
	const char *at = strstr(target, "{}");
	if (!at)
		return target;
	snprintf(to, size, "%.*s%s%s", (int)(at - target), target, id, at + 2);
	return to;
}

size_t member_count(const struct reply *r)
{
	return json_array_size(r->json);
}
