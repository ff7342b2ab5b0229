/* Pause, resume, forks and snapshots as clients see them; the node is played. */
#include "api_case.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TARGET = 256 };

static struct reply ask(const char *method, const char *target, const char *id, const char *body)
{
	char to[TARGET];
	return world_ask(world, method, with_id(target, id, to, sizeof(to)), NULL, body);
}

static void is(const char *method, const char *target, const char *id, const char *body, int status, const char *word)
{
	char to[TARGET];
	expect(method, with_id(target, id, to, sizeof(to)), NULL, body, status, word);
}

/* A member of a sandbox's details, as text ("true" and "false" for flags, "" when absent). */
static const char *detail(const char *id, const char *key, char to[64])
{
	cleanup_reply struct reply r = ask("GET", "/sandboxes/{}", id, NULL);
	assert_int_equal(r.status, 200);
	const json_t *j = json_object_get(r.json, key);
	snprintf(to, 64, "%s", json_is_boolean(j) ? (json_is_true(j) ? "true" : "false") : json_is_string(j) ? json_string_value(j) : "");
	return to;
}

#define detail_is(id, key, value) assert_string_equal(detail(id, key, (char[64]){0}), value)

/* cases.md 2, 4, 13, 26: what each route says to wrong types, unknown ids and states. A row of `state` 0 needs no sandbox in that state. */
static void routes_of_the_life_cycle_answer_with_their_status(void **state)
{
	static const struct {
		enum sandbox_state state;
		const char *method, *target, *body;
		int status;
		const char *word;
	} rows[] = {
		{SANDBOX_RUNNING, "POST", "/sandboxes/doesnotexist/pause", NULL, 404, "not found"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/I_D/pause", NULL, 400, "Invalid sandbox ID"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"memory\":1}", 400, "memory"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "[]", 400, "object"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"requireHealthyGuest\":1}", 400, "requireHealthyGuest"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"requireHealthyGuest\":true}", 501, "requireHealthyGuest"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"memory\":true,\"requireHealthyGuest\":false}", 204, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", NULL, 204, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{}", 204, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"memory\":true}", 204, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"memory\":false}", 204, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/pause", "{\"memory\":null}", 204, NULL},
		{SANDBOX_RUNNING, "GET", "/sandboxes/{}/pause", NULL, 405, "POST"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/pause", "{}", 409, "Error pausing sandbox - sandbox 'i"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/pause", "{}", 409, "is already paused"},
		{SANDBOX_KILLING, "POST", "/sandboxes/{}/pause", "{}", 404, "not found"},

		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/resume", NULL, 409, "is already running"},
		{SANDBOX_SNAPSHOTTING, "POST", "/sandboxes/{}/resume", "{}", 409, "is already running"},
		{SANDBOX_KILLING, "POST", "/sandboxes/{}/resume", "{}", 404, "not found"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/inope/resume", "{}", 404, "not found"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", NULL, 201, NULL},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{}", 201, NULL},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":60,\"autoPause\":true,\"memory\":true}", 201, NULL},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":-1}", 201, NULL},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":0}", 400, "Timeout must be greater than 0"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":-3600}", 400, "Timeout must be greater than 0"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":2147483648}", 400, "Timeout"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":\"60\"}", 400, "timeout"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"timeout\":60.5}", 400, "timeout"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"autoPause\":\"yes\"}", 400, "autoPause"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/resume", "{\"memory\":\"yes\"}", 400, "memory"},

		{SANDBOX_PAUSED, "POST", "/v2/sandboxes/{}/connect", NULL, 201, NULL},
		{SANDBOX_PAUSED, "POST", "/v2/sandboxes/{}/connect", "{\"timeout\":0}", 201, NULL},
		{SANDBOX_PAUSED, "POST", "/v2/sandboxes/{}/connect", "{\"memory\":false}", 201, NULL},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/connect", "{\"timeout\":900}", 201, NULL},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/connect", "{\"timeout\":-2}", 400, "Timeout"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/connect", "{\"timeout\":2592001}", 400, "2592000"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/connect", "{\"memory\":0}", 400, "memory"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/connect", "{\"memory\":false}", 200, NULL},
		{SANDBOX_KILLING, "POST", "/sandboxes/{}/connect", "{}", 409, "is being killed"},

		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/timeout", "{\"timeout\":60}", 404, "not found"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/refreshes", "{}", 404, "not found"},

		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", NULL, 201, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"timeout\":300,\"count\":1}", 201, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"memory\":false}", 201, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"memory\":true}", 400, "memory"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"count\":0}", 400, "count must be between 1 and 100"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"count\":101}", 400, "count"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"count\":-1}", 400, "count"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"count\":\"2\"}", 400, "count"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"count\":1.5}", 400, "count"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"timeout\":0}", 400, "Timeout must be greater than 0"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"timeout\":-10}", 400, "Timeout"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/fork", "{\"timeout\":2147483648}", 400, "Timeout"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/inope/fork", "{}", 404, "not found"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/fork", "{}", 409, "paused"},
		{SANDBOX_PAUSING, "POST", "/sandboxes/{}/fork", "{}", 409, "paused"},
		{SANDBOX_KILLING, "POST", "/sandboxes/{}/fork", "{}", 404, "not found"},

		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", NULL, 201, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"name\":\"My/Name:V1\"}", 201, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"memory\":true}", 400, "memory"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"memory\":\"no\"}", 400, "memory"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"name\":\"\"}", 400, "name"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"name\":\"a b\"}", 400, "name"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"name\":\"a/b/c\"}", 400, "name"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"name\":7}", 400, "name"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/snapshots", "{\"name\":\"snap-aaaaaaaaaaaaaaaaaaaa\"}", 400, "name"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/inope/snapshots", "{}", 404, "not found"},
		{SANDBOX_PAUSED, "POST", "/sandboxes/{}/snapshots", "{}", 404, "not found"},
		{SANDBOX_KILLING, "POST", "/sandboxes/{}/snapshots", "{}", 404, "not found"},

		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", NULL, 400, "snapshotID"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", "{\"snapshotID\":7}", 400, "snapshotID"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", "{\"snapshotID\":\"a b\"}", 400, "Invalid template reference"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", "{\"snapshotID\":\"snap-00000000000000000099\"}", 404, "template 'snap-00000000000000000099' not found"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", "{\"snapshotID\":\"base\"}", 404, "template 'base' not found"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", "{\"snapshotID\":\"my/name:v1\"}", 200, NULL},
		{SANDBOX_RUNNING, "POST", "/sandboxes/{}/rollback", "{\"snapshotID\":\"my/name:v1\",\"memory\":true}", 400, "memory"},
		{SANDBOX_RUNNING, "POST", "/sandboxes/inope/rollback", "{\"snapshotID\":\"my/name:v1\"}", 404, "sandbox inope not found"},

		{SANDBOX_RUNNING, "GET", "/snapshots?limit=0", NULL, 400, "limit"},
		{SANDBOX_RUNNING, "GET", "/snapshots?limit=101", NULL, 400, "limit"},
		{SANDBOX_RUNNING, "GET", "/snapshots?limit=x", NULL, 400, "limit"},
		{SANDBOX_RUNNING, "GET", "/snapshots?nextToken=x", NULL, 400, "Invalid next token"},
		{SANDBOX_RUNNING, "GET", "/snapshots?nextToken=", NULL, 200, NULL},
		{SANDBOX_RUNNING, "GET", "/snapshots?sandboxID=A_B", NULL, 400, "Invalid sandbox ID"},
		{SANDBOX_RUNNING, "GET", "/snapshots?name=a%20b", NULL, 400, "Invalid template reference"},
		{SANDBOX_RUNNING, "GET", "/snapshots?name=%zz", NULL, 400, "percent"},
		{SANDBOX_RUNNING, "POST", "/snapshots", "{}", 405, "GET"},

		{SANDBOX_RUNNING, "DELETE", "/templates/snap-00000000000000000099", NULL, 404, "template 'snap-00000000000000000099' not found"},
		{SANDBOX_RUNNING, "DELETE", "/templates/my%2Fname%3Av2", NULL, 404, "template 'my/name' with tag 'v2' not found"},
		{SANDBOX_RUNNING, "DELETE", "/templates/my%2Fname%3Av1", NULL, 204, NULL},
		{SANDBOX_RUNNING, "DELETE", "/templates/my%2Fname%3Av1", NULL, 404, "not found"},
		{SANDBOX_RUNNING, "DELETE", "/templates/a%20b", NULL, 400, "Invalid template reference"},
		{SANDBOX_RUNNING, "DELETE", "/templates/base", NULL, 403, "of this machine"},
	};
	const char *id = make(NULL);
	struct fake_sandbox *s = world_find(world, id);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		s->state = rows[i].state;
		world_event(world, s);
		world_turn(world);
		is(rows[i].method, rows[i].target, id, rows[i].body, rows[i].status, rows[i].word);
	}
}

/* cases.md 11: what stands in lists and details before, between and after. */
static void a_paused_sandbox_is_shown_until_it_is_resumed(void **state)
{
	const char *id = make("{\"templateID\":\"base\",\"timeout\":100,\"metadata\":{\"g\":\"a\"}}"), *other = make(NULL);
	char first[64];
	detail(id, "endAt", first);
	is("POST", "/sandboxes/{}/pause", id, "{\"memory\":true}", 204, NULL);
	assert_true(world->last_pause_memory);
	detail_is(id, "state", "paused");
	detail_is(id, "resumedFrom", "");
	detail_is(id, "pauseMode", "full");
	char paused_at[64], shown[64];
	rfc3339_format(paused_at, world_find(world, id)->end_at);
	detail_is(id, "endAt", paused_at);
	{
		cleanup_reply struct reply all = ask("GET", "/v2/sandboxes", id, NULL), running = ask("GET", "/v2/sandboxes?state=running", id, NULL);
		cleanup_reply struct reply paused = ask("GET", "/v2/sandboxes?state=paused", id, NULL), old = ask("GET", "/sandboxes", id, NULL);
		cleanup_reply struct reply filtered = ask("GET", "/v2/sandboxes?state=paused&metadata=g%3Db", id, NULL);
		assert_int_equal(member_count(&all), 2);
		assert_str(reply_header(&all, "x-total-running"), "1");
		/* Together, the newest first. */
		assert_string_equal(json_string_value(json_object_get(json_array_get(all.json, 0), "sandboxID")), other);
		assert_string_equal(json_string_value(json_object_get(json_array_get(all.json, 1), "state")), "paused");
		assert_int_equal(member_count(&running), 1);
		assert_int_equal(member_count(&paused), 1);
		assert_int_equal(reply_header(&paused, "x-total-running").n, 0);
		assert_int_equal(member_count(&old), 1);
		assert_int_equal(member_count(&filtered), 0);
	}
	for (int v2 = 0; v2 < 2; v2++) {
		world->answer_first = v2;
		cleanup_reply struct reply r = ask("POST", v2 ? "/v2/sandboxes/{}/connect" : "/sandboxes/{}/connect", id, "{\"timeout\":700}");
		assert_int_equal(r.status, 201);
		assert_string_equal(reply_text(&r, "sandboxID"), id);
		assert_string_equal(reply_text(&r, "envdAccessToken"), "envd1");
		assert_string_equal(reply_text(&r, "resumedFrom"), "memory");
		assert_int_equal(world->last_resume.mode, RESUME_CONNECT);
		assert_int_equal(world->last_resume.timeout, 700);
		assert_true(world->last_resume.memory);
		assert_false(msg_has(&world->last_resume, resume, auto_pause));
		detail_is(id, "state", "running");
		detail_is(id, "resumedFrom", "memory");
		assert_string_not_equal(detail(id, "endAt", shown), first);
		/* It was started last now. */
		cleanup_reply struct reply all = ask("GET", "/v2/sandboxes", id, NULL);
		assert_string_equal(json_string_value(json_object_get(json_array_get(all.json, 0), "sandboxID")), id);
		assert_int_equal(member_count(&all), 2);
		is("POST", "/v2/sandboxes/{}/connect", id, "{}", 200, NULL);
		is("POST", "/sandboxes/{}/pause", id, NULL, 204, NULL);
	}
	/* From the disk, because the pause or the resume says so. */
	is("POST", "/sandboxes/{}/resume", id, "{\"memory\":false,\"auto_pause\":true,\"timeout\":-1}", 201, NULL);
	assert_int_equal(world->last_resume.mode, RESUME_EXPLICIT);
	assert_int_equal(world->last_resume.timeout, -1);
	assert_false(world->last_resume.memory);
	assert_true(world->last_resume.auto_pause);
	detail_is(id, "resumedFrom", "disk");
	detail_is(id, "pauseMode", "");
	detail_is(id, "endAt", "9999-12-31T00:00:00Z");
	is("POST", "/sandboxes/{}/pause", id, "{\"memory\":false}", 204, NULL);
	assert_false(world->last_pause_memory);
	detail_is(id, "pauseMode", "filesystem");
	cleanup_reply struct reply r = ask("POST", "/v2/sandboxes/{}/connect", id, NULL);
	assert_int_equal(r.status, 201);
	assert_string_equal(reply_text(&r, "resumedFrom"), "disk");
	assert_int_equal(world->last_resume.timeout, 300);
	/* cases.md 16: a paused one is killed as it is. */
	is("POST", "/sandboxes/{}/pause", id, NULL, 204, NULL);
	is("DELETE", "/sandboxes/{}", id, NULL, 204, NULL);
	is("DELETE", "/sandboxes/{}", id, NULL, 404, "not found");
	is("POST", "/v2/sandboxes/{}/connect", id, "{}", 404, "not found");
}

static int post(const char *target, const char *id)
{
	char to[TARGET];
	cleanup_buf struct buf bytes = BUF_INIT;
	buf_addf(&bytes, "POST %s HTTP/1.1\r\nHost: x\r\nX-API-KEY: %s\r\nContent-Length: 2\r\n\r\n{}", with_id(target, id, to, sizeof(to)), world->key);
	int fd = world_open(world, false);
	assert_true(write(fd, buf_cstr(&bytes), buf_len(&bytes)) == (ssize_t)buf_len(&bytes));
	world_turn(world);
	return fd;
}

static void answer_is(int fd, int status)
{
	cleanup_reply struct reply r = world_send(world, fd, STR(""));
	assert_int_equal(r.status, status);
	close(fd);
}

/* cases.md 5: pauses join one that is under way, a connect waits for it; who leaves meanwhile changes nothing. */
static void requests_join_a_pause_under_way(void **state)
{
	enum { N = 10 };
	int pauses[N], connects[3];
	const char *id = make(NULL);
	world->slow = true;
	for (int i = 0; i < N; i++)
		pauses[i] = post("/sandboxes/{}/pause", id);
	detail_is(id, "state", "paused");
	for (int i = 0; i < 3; i++)
		connects[i] = post(i ? "/v2/sandboxes/{}/connect" : "/sandboxes/{}/resume", id);
	close(pauses[1]);
	close(connects[2]);
	world_turn(world);
	world_settle(world);
	for (int i = 0; i < N; i++)
		if (i != 1)
			answer_is(pauses[i], 204);
	answer_is(connects[0], 201);
	answer_is(connects[1], 201); /* another one resumed it, but that it was resumed is true */
	detail_is(id, "state", "running");
	is("POST", "/sandboxes/{}/pause", id, "{}", 204, NULL);
	is("POST", "/sandboxes/{}/pause", id, "{}", 409, "is already paused");
}

/* What the node refuses is told as it is, but for sandboxes that it does not know any more. */
static void refusals_of_the_node_go_through(void **state)
{
	static const struct {
		const char *target, *body;
	} rows[] = {{"/sandboxes/{}/pause", "{}"}, {"/sandboxes/{}/fork", "{}"}, {"/sandboxes/{}/snapshots", "{}"},
		{"/sandboxes/{}/rollback", "{\"snapshotID\":\"kept\"}"}, {"/v2/sandboxes/{}/connect", "{}"}};
	const char *id = make(NULL);
	is("POST", "/sandboxes/{}/snapshots", id, "{\"name\":\"kept\"}", 201, NULL);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		static const int statuses[] = {409, 503, 507, 404};

		for (size_t k = 0; k < sizeof(statuses) / sizeof(statuses[0]); k++) {
			world->refuse = (struct error){.code = -EBUSY, .status = statuses[k], .message = "the node's template word"};
			cleanup_reply struct reply r = ask("POST", rows[i].target, id, rows[i].body);
			assert_int_equal(r.status, statuses[k]);
			check_error(&r, rows[i].target);
			if (statuses[k] != 404) {
				assert_string_equal(reply_text(&r, "message"), "the node's template word");
			} else {
				assert_non_null(strstr(reply_text(&r, "message"), "not found"));
				assert_null(strstr(reply_text(&r, "message"), "template"));
			}
		}
	}
	/* A snapshot that the node does not know any more. */
	world->refuse = (struct error){.code = -ENOENT, .status = 404, .message = "?"};
	is("DELETE", "/templates/kept", id, NULL, 404, "template 'kept' not found");
	world->refuse = (struct error){.code = -EBUSY, .status = 409, .message = "it is in use"};
	is("DELETE", "/templates/kept", id, NULL, 409, "it is in use");
}

/* cases.md 26: each item is a sandbox or an error, never both. */
static void forks_are_told_one_by_one(void **state)
{
	const char *id = make("{\"templateID\":\"base\",\"metadata\":{\"a\":\"b\"}}");
	world->forks_fail = 2;
	cleanup_reply struct reply r = ask("POST", "/sandboxes/{}/fork", id, "{\"count\":5,\"timeout\":77}");
	assert_int_equal(r.status, 201);
	assert_int_equal(member_count(&r), 5);
	assert_int_equal(world->last_fork.timeout, 77);
	assert_int_equal(world->last_fork.count, 5);
	for (size_t i = 0; i < 5; i++) {
		const json_t *item = json_array_get(r.json, i), *fork = json_object_get(item, "sandbox"), *error = json_object_get(item, "error");
		assert_int_equal(json_object_size(item), 1);
		assert_true(!fork == (i < 2));
		if (error) {
			assert_int_equal(json_integer_value(json_object_get(error, "code")), 507);
			assert_string_equal(json_string_value(json_object_get(error, "message")), "the disk is full");
		} else {
			const char *child = json_string_value(json_object_get(fork, "sandboxID"));
			assert_true(json_is_false(json_object_get(fork, "memory")));
			assert_string_equal(json_string_value(json_object_get(fork, "envdVersion")), "0.6.13");
			assert_string_not_equal(child, id);
			detail_is(child, "memory", "false");
		}
	}
	detail_is(id, "memory", "");
	cleanup_reply struct reply all = ask("GET", "/v2/sandboxes", id, NULL);
	assert_int_equal(member_count(&all), 4);
	/* All of them may fail: it is still the list. */
	world->forks_fail = 1;
	is("POST", "/sandboxes/{}/fork", id, "{}", 201, NULL);
}

static void snapshots_are_named_listed_used_and_deleted(void **state)
{
	const char *id = make(NULL), *other = make(NULL);
	for (int i = 0; i < 5; i++) {
		static const char *const bodies[] = {"{}", "{\"name\":\" Work \"}", "{\"name\":\"ns/work:v1\"}", "{\"name\":\"work\"}", "{\"name\":\"work:default\"}"};
		static const char *const names[] = {NULL, "work", "ns/work:v1", "work", "work"};
		world->answer_first = i % 2;
		cleanup_reply struct reply r = ask("POST", "/sandboxes/{}/snapshots", i == 4 ? other : id, bodies[i]);
		assert_int_equal(r.status, 201);
		assert_string_equal(reply_text(&r, "snapshotID"), world->snapshots[i].id);
		const json_t *got = json_object_get(r.json, "names");
		assert_int_equal(json_array_size(got), names[i] != NULL);
		if (names[i])
			assert_string_equal(json_string_value(json_array_get(got, 0)), names[i]);
		assert_true(json_is_false(json_object_get(r.json, "memory")));
		assert_string_equal(reply_text(&r, "originSandboxID"), i == 4 ? other : id);
	}
	detail_is(id, "state", "running");

	/* Lists: filters, then every page size. */
	const struct {
		const char *query;
		size_t n;
	} lists[] = {{"", 5}, {"?name=work", 3}, {"?name=WORK%3Adefault", 3}, {"?name=ns%2Fwork", 1}, {"?name=ns%2Fwork%3Av1", 1}, {"?name=ns%2Fwork%3Av2", 0},
		{"?name=nope", 0}, {"?sandboxID=inope", 0}, {"?unknown=1", 5}};
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		char target[TARGET];
		snprintf(target, sizeof(target), "/snapshots%s", lists[i].query);
		cleanup_reply struct reply r = ask("GET", target, id, NULL);
		assert_int_equal(r.status, 200);
		assert_int_equal(member_count(&r), lists[i].n);
	}
	cleanup_reply struct reply of_other = ask("GET", "/snapshots?sandboxID={}", other, NULL);
	assert_int_equal(member_count(&of_other), 1);
	for (int limit = 1; limit <= 5; limit++) {
		char token[256] = "";
		size_t seen = 0;
		do {
			char target[512];
			snprintf(target, sizeof(target), "/snapshots?limit=%d%s%s", limit, token[0] ? "&nextToken=" : "", token);
			cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
			assert_int_equal(r.status, 200);
			for (size_t i = 0; i < member_count(&r); i++, seen++)
				assert_string_equal(json_string_value(json_object_get(json_array_get(r.json, i), "snapshotID")), world->snapshots[4 - seen].id);
			snprintf(token, sizeof(token), "%.*s", STR_FMT(reply_header(&r, "x-next-token")));
			assert_true(member_count(&r) > 0);
		} while (token[0]);
		assert_int_equal(seen, 5);
	}

	/* Every form of a reference; a name means the newest of its snapshots. */
	static const struct {
		const char *reference, *path;
		size_t snapshot; /* 0 = none */
	} forms[] = {
		{"snap-00000000000000000001", "snap-00000000000000000001", 1},
		{"snap-00000000000000000001:default", "snap-00000000000000000001%3Adefault", 1},
		{" Snap-00000000000000000001 ", "%20Snap-00000000000000000001", 1},
		{"snap-00000000000000000001:v1", "snap-00000000000000000001%3Av1", 0},
		{"work", "work", 5},
		{"work:default", "work%3Adefault", 5},
		{"default/work", "default%2Fwork", 5},
		{"ns/work:v1", "ns%2Fwork%3Av1", 3},
		{"ns/work", "ns%2Fwork", 0},
		{"work:v1", "work:v1", 0},
	};
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		char body[128], target[TARGET];
		snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", forms[i].reference);
		snprintf(target, sizeof(target), "/templates/aliases/%s", forms[i].path);
		cleanup_reply struct reply made = world_ask(world, "POST", "/v2/sandboxes", NULL, body), alias = world_ask(world, "GET", target, NULL, NULL);
		snprintf(target, sizeof(target), "/templates/%s", forms[i].path);
		cleanup_reply struct reply shown = world_ask(world, "GET", target, NULL, NULL);
		assert_int_equal(made.status, forms[i].snapshot ? 201 : 404);
		assert_int_equal(alias.status, forms[i].snapshot ? 200 : 404);
		assert_int_equal(shown.status, forms[i].snapshot ? 200 : 404);
		if (!forms[i].snapshot) {
			assert_non_null(strstr(reply_text(&made, "message"), "template"));
			assert_non_null(strstr(reply_text(&alias, "message"), "not found"));
			continue;
		}
		const char *snapshot = world->snapshots[forms[i].snapshot - 1].id;
		assert_string_equal(world->sandboxes[world->n_sandboxes - 1].origin, snapshot);
		assert_true(json_is_false(json_object_get(made.json, "memory")));
		detail_is(reply_text(&made, "sandboxID"), "memory", "false");
		assert_string_equal(reply_text(&alias, "templateID"), snapshot);
		assert_true(json_is_false(json_object_get(alias.json, "public")));
		assert_string_equal(reply_text(&shown, "templateID"), snapshot);
		assert_int_equal(strlen(reply_text(&shown, "buildID")), 36);
	}
	cleanup_reply struct reply of_first = ask("GET", "/v2/sandboxes?template=snap-00000000000000000001", id, NULL);
	assert_int_equal(member_count(&of_first), 3);

	/* Another node's front, and a node that comes back, know the same. */
	world_lose_node(world);
	is("GET", "/snapshots", id, NULL, 200, NULL);
	is("DELETE", "/templates/work", id, NULL, 503, NULL);
	world->snapshots[0].alive = false;
	world_connect_node(world);
	cleanup_reply struct reply four = ask("GET", "/snapshots", id, NULL);
	assert_int_equal(member_count(&four), 4);
	for (int i = 0; i < 2; i++) {
		world->answer_first = i;
		is("DELETE", "/templates/work", id, NULL, 204, NULL);
	}
	is("DELETE", "/templates/snap-00000000000000000002", id, NULL, 204, NULL);
	is("DELETE", "/templates/snap-00000000000000000002", id, NULL, 404, "template");
	is("DELETE", "/templates/work", id, NULL, 404, "template 'work' not found");
	is("POST", "/v2/sandboxes", id, "{\"templateID\":\"work\"}", 404, "template 'work' not found");
	cleanup_reply struct reply one = ask("GET", "/snapshots", id, NULL);
	assert_int_equal(member_count(&one), 1);
}

static void a_rollback_is_a_new_generation_of_the_same_sandbox(void **state)
{
	const char *id = make(NULL);
	is("POST", "/sandboxes/{}/snapshots", id, "{\"name\":\"before\"}", 201, NULL);
	for (int i = 0; i < 2; i++) {
		cleanup_reply struct reply r = ask("POST", "/sandboxes/{}/rollback", id, i ? "{\"snapshotID\":\"before\"}" : "{\"snapshotID\":\"snap-00000000000000000001\"}");
		assert_int_equal(r.status, 200);
		assert_string_equal(reply_text(&r, "sandboxID"), id);
		assert_string_equal(reply_text(&r, "snapshotID"), "snap-00000000000000000001");
		assert_string_equal(reply_text(&r, "status"), "READY");
		assert_true(reply_text(&r, "operationID")[0] != 0);
	}
	detail_is(id, "state", "running");
}

/* cases.md 43: every spelling of the fields reaches the node, and the details say it. */
static void lifecycle_of_a_create_reaches_the_node(void **state)
{
	static const struct {
		const char *fields;
		bool pause, resume, memory;
	} rows[] = {
		{"", false, false, true},
		{",\"autoPause\":true", true, false, true},
		{",\"auto_pause\":true,\"autoResume\":{\"enabled\":true}", true, true, true},
		{",\"autoPause\":true,\"auto_resume\":true", true, true, true},
		{",\"autoPause\":true,\"autoResume\":{\"policy\":\"any\"}", true, true, true},
		{",\"autoPause\":true,\"autoResume\":{\"policy\":\"off\"}", true, false, true},
		{",\"autoPause\":true,\"autoPauseMemory\":false", true, false, false},
		{",\"auto_pause\":true,\"auto_pause_memory\":false", true, false, false},
		{",\"lifecycle\":{\"onTimeout\":\"pause\",\"autoResume\":true}", true, true, true},
		{",\"lifecycle\":{\"on_timeout\":\"pause\",\"auto_resume\":{\"enabled\":false}}", true, false, true},
		{",\"lifecycle\":{\"onTimeout\":\"kill\"},\"autoPause\":true", false, false, true},
		{",\"lifecycle\":{},\"autoPause\":true", false, false, true},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char body[256];
		snprintf(body, sizeof(body), "{\"templateID\":\"base\"%s}", rows[i].fields);
		const struct fake_sandbox *s = world_find(world, make(body));
		if (s->auto_pause != rows[i].pause || s->auto_resume != rows[i].resume || s->auto_pause_memory != rows[i].memory)
			fail_msg("%s: %d %d %d", rows[i].fields, s->auto_pause, s->auto_resume, s->auto_pause_memory);
		cleanup_reply struct reply r = ask("GET", "/sandboxes/{}", s->id, NULL);
		const json_t *lifecycle = json_object_get(r.json, "lifecycle");
		assert_string_equal(json_string_value(json_object_get(lifecycle, "onTimeout")), rows[i].pause ? "pause" : "kill");
		assert_true(json_is_true(json_object_get(lifecycle, "autoResume")) == rows[i].resume);
	}
}

static void snapshots_of_other_teams_are_unknown(void **state)
{
	const char *id = make(NULL);
	is("POST", "/sandboxes/{}/snapshots", id, "{\"name\":\"secret\"}", 201, NULL);
	snprintf(world->snapshots[0].team, sizeof(world->snapshots[0].team), "other");
	world_lose_node(world);
	world_connect_node(world);
	cleanup_reply struct reply none = ask("GET", "/snapshots", id, NULL);
	assert_int_equal(member_count(&none), 0);
	static const char *const references[] = {"secret", "other/secret", "snap-00000000000000000001"};
	for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
		char body[128], target[TARGET], escaped[64];
		const char *slash = strchr(references[i], '/');
		snprintf(escaped, sizeof(escaped), "%.*s%s%s", slash ? (int)(slash - references[i]) : 64, references[i], slash ? "%2F" : "", slash ? slash + 1 : "");
		snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", references[i]);
		is("POST", "/v2/sandboxes", id, body, 404, "not found");
		snprintf(body, sizeof(body), "{\"snapshotID\":\"%s\"}", references[i]);
		is("POST", "/sandboxes/{}/rollback", id, body, 404, "template");
		snprintf(target, sizeof(target), "/templates/aliases/%s", escaped);
		is("GET", target, id, NULL, 404, "template");
		snprintf(target, sizeof(target), "/templates/%s", escaped);
		is("GET", target, id, NULL, 404, "template");
		is("DELETE", target, id, NULL, 404, "template");
	}
	assert_true(world->snapshots[0].alive);
	/* The name of a template never means a snapshot, but where only a snapshot can be meant. */
	is("POST", "/sandboxes/{}/snapshots", id, "{\"name\":\"base\"}", 201, NULL);
	cleanup_reply struct reply named = ask("GET", "/templates/aliases/base", id, NULL), by_id = ask("GET", "/templates/aliases/snap-00000000000000000002", id, NULL);
	assert_string_equal(reply_text(&named, "templateID"), "tmplbase000000000000");
	assert_string_equal(reply_text(&by_id, "templateID"), "snap-00000000000000000002");
	is("POST", "/sandboxes/{}/rollback", id, "{\"snapshotID\":\"base\"}", 200, NULL);
	is("DELETE", "/templates/base", id, NULL, 204, NULL);
	is("DELETE", "/templates/base", id, NULL, 403, "of this machine");
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_setup("test", 2, LOG_ERROR);
	const struct CMUnitTest tests[] = {
		T(routes_of_the_life_cycle_answer_with_their_status),
		T(a_paused_sandbox_is_shown_until_it_is_resumed),
		T(requests_join_a_pause_under_way),
		T(refusals_of_the_node_go_through),
		T(forks_are_told_one_by_one),
		T(snapshots_are_named_listed_used_and_deleted),
		T(a_rollback_is_a_new_generation_of_the_same_sandbox),
		T(lifecycle_of_a_create_reaches_the_node),
		T(snapshots_of_other_teams_are_unknown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
