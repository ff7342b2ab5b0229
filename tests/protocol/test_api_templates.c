/* Templates over the API: names, builds, files, tags; E2B's words and Cube's. The node is played by hand. */
#include "api_case.h"
#include "template_node.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ENOUGH "{\"fromImage\":\"alpine:3\"}"

struct made {
	char template[65], build[37];
};

/* A template of a name, its build waiting. */
static struct made make_waiting(const char *name)
{
	struct made m;
	char body[256];
	snprintf(body, sizeof(body), "{\"name\":\"%s\"}", name);
	cleanup_reply struct reply r = world_ask(world, "POST", "/v3/templates", NULL, body);
	assert_int_equal(r.status, 202);
	snprintf(m.template, sizeof(m.template), "%s", reply_text(&r, "templateID"));
	snprintf(m.build, sizeof(m.build), "%s", reply_text(&r, "buildID"));
	return m;
}

static void start(const struct made *m, const char *body, int status, const char *word)
{
	char target[256];
	snprintf(target, sizeof(target), "/v2/templates/%s/builds/%s", m->template, m->build);
	expect("POST", target, NULL, body, status, word);
}

static struct made make_ready(const char *name)
{
	struct made m = make_waiting(name);
	start(&m, ENOUGH, 202, NULL);
	template_node_end(world, template_node_find(world, m.template), NULL, NULL, 0);
	return m;
}

static int create_status(const char *template)
{
	char body[1024];
	snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", template);
	cleanup_reply struct reply r = world_ask(world, "POST", "/v2/sandboxes", NULL, body);
	if (r.status >= 400)
		check_error(&r, template);
	return r.status;
}

static struct reply get(const char *pattern, const char *id)
{
	char target[512];
	return world_ask(world, "GET", with_id(pattern, id, target, sizeof(target)), NULL, NULL);
}

static void names_are_normal_and_tags_are_listed(void **state)
{
	static const struct {
		const char *body;
		int status;
		const char *word;
	} bad[] = {
		{"{}", 400, "Name is required"},
		{"{\"name\":\"\"}", 400, "Name is required"},
		{"{\"name\":\"  \"}", 400, "Name is required"},
		{"{\"name\":5}", 400, "name"},
		{"{\"name\":\"a b\"}", 400, "Invalid template reference: a b"},
		{"{\"name\":\":v1\"}", 400, "Invalid template reference"},
		{"{\"name\":\"a:\"}", 400, "Invalid template reference"},
		{"{\"name\":\"a/b/c\"}", 400, "Invalid template reference"},
		{"{\"name\":\"a:123e4567-e89b-12d3-a456-426614174000\"}", 400, "Invalid template reference"},
		{"{\"name\":\"snap-00000000000000000001\"}", 400, "form of an id"},
		{"{\"name\":\"a\",\"tags\":[\"b c\"]}", 400, "Invalid template tag: b c"},
		{"{\"name\":\"a\",\"tags\":[\"a:b\"]}", 400, "Invalid template tag"},
		{"{\"name\":\"a\",\"tags\":\"x\"}", 400, "tags"},
		{"{\"name\":\"a\",\"tags\":[1]}", 400, "tags[0]"},
		{"{\"name\":\"a\",\"cpuCount\":0}", 400, "cpuCount"},
		{"{\"name\":\"a\",\"cpuCount\":\"2\"}", 400, "cpuCount"},
		{"{\"name\":\"a\",\"memoryMB\":63}", 400, "memoryMB"},
		{"{\"name\":\"a\",\"minFreeDiskMb\":-1}", 400, "minFreeDiskMb"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		expect("POST", "/v3/templates", NULL, bad[i].body, bad[i].status, bad[i].word);
	assert_int_equal(world->templates->n, 0);
	cleanup_reply struct reply r = world_ask(world, "POST", "/v3/templates", NULL,
		"{\"name\":\" My-App:V1.2 \",\"tags\":[\"Prod\",\"v1.2\"],\"cpuCount\":4,\"memoryMB\":1024,\"minFreeDiskMb\":5,\"later\":{}}");
	assert_int_equal(r.status, 202);
	char *tags = json_dumps(json_object_get(r.json, "tags"), JSON_COMPACT);
	assert_string_equal(tags, "[\"v1.2\",\"prod\"]");
	free(tags);
	assert_string_equal(json_string_value(json_array_get(json_object_get(r.json, "names"), 0)), "my-app");
	assert_string_equal(json_string_value(json_array_get(json_object_get(r.json, "aliases"), 0)), "my-app");
	assert_true(json_is_false(json_object_get(r.json, "public")));
	assert_int_equal(strlen(reply_text(&r, "buildID")), 36);
	/* The same name, also with the team's own space: a new build of the same template. */
	cleanup_reply struct reply again = world_ask(world, "POST", "/v3/templates", NULL, "{\"name\":\"default/MY-app\"}");
	assert_string_equal(reply_text(&again, "templateID"), reply_text(&r, "templateID"));
	assert_string_not_equal(reply_text(&again, "buildID"), reply_text(&r, "buildID"));
	/* As clients said it before. */
	cleanup_reply struct reply old = world_ask(world, "POST", "/v2/templates", NULL, "{\"alias\":\"older\"}");
	assert_int_equal(old.status, 202);
}

static void a_name_means_something_when_a_build_is_ready(void **state)
{
	struct made m = make_waiting("app");
	char target[128], tagged[128];
	assert_int_equal(create_status("app"), 404);
	assert_int_equal(create_status(m.template), 404);
	expect("GET", "/templates/aliases/app", NULL, NULL, 404, "template 'app' not found: no build of it is ready");
	expect("GET", with_id("/templates/{}", m.template, target, sizeof(target)), NULL, NULL, 200, NULL);
	/* Nor a snapshot of that name, which was there before or comes later. */
	const char *box = make(NULL);
	expect("POST", with_id("/sandboxes/{}/snapshots", box, target, sizeof(target)), NULL, "{\"name\":\"app\"}", 201, NULL);
	assert_int_equal(create_status("app"), 404);
	start(&m, ENOUGH, 202, NULL);
	assert_int_equal(create_status("app"), 404);
	template_node_end(world, template_node_find(world, m.template), NULL, NULL, 0);
	assert_int_equal(create_status("app"), 201);
	assert_string_equal(world->last_template, m.template);
	assert_int_equal(create_status("default/app"), 201);
	assert_int_equal(create_status("app:default"), 201);
	assert_int_equal(create_status("app:v9"), 404);
	assert_int_equal(create_status("other/app"), 404);
	expect("GET", "/templates/aliases/app", NULL, NULL, 200, NULL);
	expect("POST", "/templates/tags", NULL, "{\"target\":\"app\",\"tags\":[\"v9\"]}", 201, NULL);
	assert_int_equal(create_status("app:v9"), 201);
	snprintf(tagged, sizeof(tagged), "%s:v9", m.template);
	assert_string_equal(world->last_template, tagged);
	/* While the machine's base is built by a team it is the machine's still. */
	struct made base = make_waiting("base");
	assert_int_equal(create_status("base"), 201);
	assert_string_equal(world->last_template, "tmplbase000000000000");
	start(&base, "{\"fromTemplate\":\"base\"}", 202, NULL);
	assert_string_equal(world->templates->base, "tmplbase000000000000");
	template_node_end(world, template_node_find(world, base.template), NULL, NULL, 0);
	assert_int_equal(create_status("base"), 201);
	assert_string_equal(world->last_template, base.template);
}

/* case 40: a '/' of a name is one segment's. */
static void slashes_in_names_stay_in_their_segment(void **state)
{
	cleanup_reply struct reply made = world_ask(world, "POST", "/v3/templates", NULL, "{\"name\":\"team/base:v1\"}");
	assert_int_equal(made.status, 202);
	struct made m;
	snprintf(m.template, sizeof(m.template), "%s", reply_text(&made, "templateID"));
	snprintf(m.build, sizeof(m.build), "%s", reply_text(&made, "buildID"));
	start(&m, ENOUGH, 202, NULL);
	template_node_end(world, template_node_find(world, m.template), NULL, NULL, 0);
	expect("GET", "/templates/aliases/team%2Fbase%3Av1", NULL, NULL, 200, NULL);
	expect("GET", "/templates/aliases/team%2Fbase:v1", NULL, NULL, 200, NULL);
	expect("GET", "/templates/aliases/team%2Fbase", NULL, NULL, 404, "no build of it is ready");
	expect("GET", "/templates/aliases/team/base", NULL, NULL, 404, NULL);
	expect("GET", "/templates/aliases/team%252Fbase", NULL, NULL, 400, "Invalid template reference");
	expect("DELETE", "/templates/team%2Fbase", NULL, NULL, 204, NULL);
}

static void bodies_of_builds_are_checked_field_by_field(void **state)
{
	static const struct {
		const char *body;
		int status;
		const char *word;
	} rows[] = {
		{NULL, 400, "exactly one"},
		{"{}", 400, "exactly one"},
		{"{\"fromImage\":\"a\",\"fromTemplate\":\"base\"}", 400, "exactly one"},
		{"{\"fromImage\":5}", 400, "fromImage"},
		{"{\"fromImage\":\"A B\"}", 400, "fromImage"},
		{"{\"fromImage\":\"a\\u0000b\"}", 400, NULL},
		{"{\"fromTemplate\":\"a b\"}", 400, "fromTemplate: Invalid template reference"},
		{"{\"fromTemplate\":\"nope\"}", 404, "template 'nope' not found"},
		{"{\"fromTemplate\":\"base\",\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"u\",\"password\":\"p\"}}", 400, "fromImageRegistry needs fromImage"},
		{"{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"ftp\"}}", 400, "fromImageRegistry.type"},
		{"{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"u\"}}", 400, "fromImageRegistry.password is missing"},
		{"{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"aws\",\"awsAccessKeyId\":\"u\"}}", 400, "awsSecretAccessKey"},
		{"{\"fromImage\":\"a\",\"fromImageRegistry\":{\"type\":\"gcp\",\"serviceAccountJson\":{}}}", 400, "serviceAccountJson"},
		{"{\"fromImage\":\"a\",\"steps\":{}}", 400, "steps"},
		{"{\"fromImage\":\"a\",\"steps\":[1]}", 400, "steps[0]: must be an object"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"args\":[]}]}", 400, "steps[0]: type is missing"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"ADD\",\"args\":[\"x\"]}]}", 400, "steps[0]: type: \"ADD\""},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"RUN\"}]}", 400, "steps[0]: args"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]},{\"type\":\"RUN\",\"args\":[1]}]}", 400, "steps[1]: args[0]"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"ENV\",\"args\":[\"A\",\"b\",\"C\"]}]}", 400, "ENV takes"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"\"]}]}", 400, "filesHash is missing"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"b\",\"\",\"\"],\"filesHash\":\"xyz\"}]}", 400, "Invalid files hash"},
		{"{\"fromImage\":\"a\",\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"],\"force\":1}]}", 400, "force"},
		{"{\"fromImage\":\"a\",\"startCmd\":[\"x\"]}", 400, "startCmd"},
		{"{\"fromImage\":\"a\",\"force\":\"yes\"}", 400, "force"},
		{"{\"fromImage\":\"a\",\"command\":[\"x\"]}", 400, "command needs kind"},
		{"{\"fromImage\":\"a\",\"kind\":\"vm\"}", 400, "kind"},
		{"{\"fromImage\":\"a\",\"isolation\":\"vm\"}", 400, "isolation must be"},
		{"{\"fromImage\":\"a\",\"isolation\":true}", 400, "isolation"},
		{"{\"fromImage\":\"a\",\"kind\":\"image\",\"env\":[\"A\"]}", 400, "env[0] must be NAME=value"},
		{"{\"fromImage\":\"a\",\"kind\":\"image\",\"probePort\":0}", 400, "probePort"},
		{"{\"fromImage\":\"a\",\"kind\":\"image\",\"probePort\":1,\"probePath\":\"x\"}", 400, "probePath"},
		{"{\"source\":{\"type\":\"zip\",\"hash\":\"" HASH "\"}}", 400, "source.type"},
		{"{\"source\":{\"type\":\"rootfs\"}}", 400, "source.hash: Invalid files hash"},
		{"{\"dockerfile\":{}}", 400, "dockerfile: text"},
		{"{\"dockerfile\":{\"text\":\"FROM a\",\"args\":{\"A\":1}}}", 400, "dockerfile: args.A"},
		{"{\"dockerfile\":{\"text\":\"FROM a\"},\"steps\":[{\"type\":\"RUN\",\"args\":[\"x\"]}]}", 400, "steps cannot go with a dockerfile"},
	};
	struct made m = make_waiting("app");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		start(&m, rows[i].body, rows[i].status, rows[i].word);
	assert_string_equal(template_node_find(world, m.template)->status, "waiting");
	/* Somebody else's build, and one that never was. */
	struct made other = make_waiting("other"), wrong = m;
	memcpy(wrong.build, other.build, sizeof(wrong.build));
	start(&wrong, ENOUGH, 404, "not found");
	snprintf(wrong.build, sizeof(wrong.build), "nope");
	start(&wrong, ENOUGH, 404, "not found");
	start(&m, ENOUGH, 202, NULL);
	start(&m, ENOUGH, 400, "build is not in waiting state");
}

/* Of the members that a specification must have, each as compact JSON. */
static void check_spec(const struct made *m, const char *body, const char *wanted)
{
	struct fake_template *t = template_node_find(world, m->template);
	snprintf(t->status, sizeof(t->status), "waiting");
	start(m, body, 202, NULL);
	cleanup_json json_t *is = json_loads(world->templates->spec, 0, NULL), *must = json_loads(wanted, 0, NULL);
	assert_non_null(must);
	if (!json_equal(is, must))
		fail_msg("%s becomes %s, not %s", body, world->templates->spec, wanted);
}

static void a_build_is_what_was_asked_for(void **state)
{
	struct made m = make_waiting("app");
	check_spec(&m, "{\"fromImage\":\"alpine:3\"}", "{\"kind\":\"e2b\",\"image\":\"alpine:3\",\"steps\":[]}");
	assert_false(world->templates->force);
	check_spec(&m, "{\"fromImage\":\" ubuntu:22.04 \",\"force\":true,\"startCmd\":\"run\",\"readyCmd\":\"check\",\"fromTemplate\":null,"
		"\"fromImageRegistry\":{\"type\":\"registry\",\"username\":\"u\",\"password\":\"p\"},"
		"\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"/b\",\"\",\"\"],\"filesHash\":\"" HASH "\",\"forceUpload\":true,\"gzip\":true},{\"type\":\"RUN\",\"args\":[\"x\",\"root\"],\"force\":true}]}",
		"{\"kind\":\"e2b\",\"image\":\"ubuntu:22.04\",\"startCmd\":\"run\",\"readyCmd\":\"check\",\"registry\":{\"type\":\"registry\",\"username\":\"u\",\"password\":\"p\"},"
		"\"steps\":[{\"type\":\"COPY\",\"args\":[\"a\",\"/b\",\"\",\"\"],\"filesHash\":\"" HASH "\",\"force\":false},{\"type\":\"RUN\",\"args\":[\"x\",\"root\"],\"force\":true}]}");
	assert_true(world->templates->force);
	assert_string_equal(world->templates->isolation, "");
	check_spec(&m, "{\"fromImage\":\"alpine:3\",\"isolation\":\"microvm\"}", "{\"kind\":\"e2b\",\"image\":\"alpine:3\",\"steps\":[]}");
	assert_string_equal(world->templates->isolation, "microvm");
	check_spec(&m, "{\"fromTemplate\":\"base\"}", "{\"kind\":\"e2b\",\"base\":true,\"steps\":[]}");
	assert_string_equal(world->templates->base, "tmplbase000000000000");
	/* What E2B's builder starts from when nothing is said: no registry need be reached for it. */
	check_spec(&m, "{\"fromImage\":\"e2bdev/base\"}", "{\"kind\":\"e2b\",\"base\":true,\"steps\":[]}");
	assert_string_equal(world->templates->base, "tmplbase000000000000");
	check_spec(&m, "{\"fromImage\":\"docker.io/e2bdev/base\"}", "{\"kind\":\"e2b\",\"image\":\"docker.io/e2bdev/base\",\"steps\":[]}");
	check_spec(&m, "{\"source\":{\"type\":\"oci-archive\",\"hash\":\"" HASH "\",\"name\":\"v1\"},\"env\":[\"A=b\"],\"probePort\":80,\"user\":\"1000\"}",
		"{\"kind\":\"image\",\"source\":{\"type\":\"oci-archive\",\"hash\":\"" HASH "\",\"name\":\"v1\"},\"steps\":[],\"env\":[\"A=b\"],\"probePort\":80,\"probePath\":\"/health\",\"user\":\"1000\"}");
	check_spec(&m, "{\"dockerfile\":{\"text\":\"FROM a\",\"context\":\"" HASH "\",\"args\":{\"K\":\"v\"},\"target\":\"t\"}}",
		"{\"kind\":\"image\",\"dockerfile\":{\"text\":\"FROM a\",\"context\":\"" HASH "\",\"args\":{\"K\":\"v\"},\"target\":\"t\"},\"steps\":[]}");
	/* On a snapshot, and on a tag of a template. */
	char target[128], body[128], wanted[128];
	const char *box = make(NULL);
	expect("POST", with_id("/sandboxes/{}/snapshots", box, target, sizeof(target)), NULL, "{\"name\":\"snap\"}", 201, NULL);
	check_spec(&m, "{\"fromTemplate\":\"snap\"}", "{\"kind\":\"e2b\",\"base\":true,\"steps\":[]}");
	assert_string_equal(world->templates->base, "snap-00000000000000000001");
	struct made other = make_ready("other");
	expect("POST", "/templates/tags", NULL, "{\"target\":\"other\",\"tags\":[\"v1\"]}", 201, NULL);
	check_spec(&m, "{\"fromTemplate\":\"other:v1\"}", "{\"kind\":\"e2b\",\"base\":true,\"steps\":[]}");
	snprintf(wanted, sizeof(wanted), "%s:v1", other.template);
	assert_string_equal(world->templates->base, wanted);
	snprintf(body, sizeof(body), "{\"fromTemplate\":\"%s\"}", other.template);
	check_spec(&m, body, "{\"kind\":\"e2b\",\"base\":true,\"steps\":[]}");
	assert_string_equal(world->templates->base, other.template);
}

/* e2b.md F 85: 202 has no body, or clients fail to read it. */
static void a_started_build_is_told_at_once(void **state)
{
	struct made m = make_waiting("app");
	char target[256], query[300];
	snprintf(target, sizeof(target), "/v2/templates/app/builds/%s", m.build);
	cleanup_reply struct reply r = world_ask(world, "POST", target, NULL, ENOUGH);
	assert_int_equal(r.status, 202);
	assert_str(reply_header(&r, "content-length"), "0");
	snprintf(target, sizeof(target), "/templates/%s/builds/%s/status", m.template, m.build);
	cleanup_reply struct reply status = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(status.status, 200);
	assert_string_equal(reply_text(&status, "status"), "building");
	assert_int_equal(json_array_size(json_object_get(status.json, "logs")), 0);
	assert_true(json_is_array(json_object_get(status.json, "logs")));
	assert_true(json_is_array(json_object_get(status.json, "logEntries")));
	assert_null(json_object_get(status.json, "reason"));
	/* The log, by offsets, a hundred at a time. */
	struct fake_template *t = template_node_find(world, m.template);
	t->lines = 250;
	size_t offset = 0;
	for (size_t wanted[] = {100, 100, 50, 0}, i = 0; i < 4; i++) {
		snprintf(query, sizeof(query), "%s?logsOffset=%zu", target, offset);
		cleanup_reply struct reply page = world_ask(world, "GET", query, NULL, NULL);
		const json_t *entries = json_object_get(page.json, "logEntries");
		assert_int_equal(json_array_size(entries), wanted[i]);
		if (wanted[i]) {
			char line[32];
			snprintf(line, sizeof(line), "line %zu", offset);
			assert_string_equal(json_string_value(json_object_get(json_array_get(entries, 0), "message")), line);
			assert_non_null(json_object_get(json_array_get(entries, 0), "timestamp"));
		}
		offset += wanted[i];
	}
	snprintf(query, sizeof(query), "%s?logsOffset=3&limit=2&level=warn", target);
	cleanup_reply struct reply two = world_ask(world, "GET", query, NULL, NULL);
	assert_int_equal(json_array_size(json_object_get(two.json, "logEntries")), 2);
	assert_int_equal(world->templates->status_level, 2);
	static const char *const bad[] = {"logsOffset=x", "limit=0", "limit=101", "level=loud"};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		snprintf(query, sizeof(query), "%s?%s", target, bad[i]);
		expect("GET", query, NULL, NULL, 400, NULL);
	}
	template_node_end(world, t, "failed to run command 'x'", "2", 0);
	cleanup_reply struct reply failed = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(reply_text(&failed, "status"), "error");
	const json_t *reason = json_object_get(failed.json, "reason");
	assert_string_equal(json_string_value(json_object_get(reason, "message")), "failed to run command 'x'");
	assert_string_equal(json_string_value(json_object_get(reason, "step")), "2");
	assert_int_equal(create_status("app"), 404);
	/* Builds of others. */
	struct made other = make_waiting("other");
	snprintf(target, sizeof(target), "/templates/%s/builds/%s/status", m.template, other.build);
	expect("GET", target, NULL, NULL, 404, "template");
	expect("GET", "/templates/app/builds/nope/status", NULL, NULL, 404, "template");
	expect("GET", "/templates/nope/builds/nope/status", NULL, NULL, 404, "template 'nope' not found");
}

static void the_log_of_a_build_is_read_both_ways(void **state)
{
	struct made m = make_ready("app");
	struct fake_template *t = template_node_find(world, m.template);
	char target[256];
	t->lines = 350;
	static const struct {
		const char *query;
		size_t n;
		const char *first;
	} rows[] = {
		{"", 100, "line 0"},
		{"?limit=3", 3, "line 0"},
		{"?direction=backward&limit=3", 3, "line 349"},
		{"?cursor=1767323040000&limit=5", 5, "line 240"}, /* 03:04 */
		{"?cursor=1767323100000&direction=forward&limit=100&source=persistent", 50, "line 300"}, /* 03:05 */
		{"?cursor=1767323100000&direction=backward&limit=2", 2, "line 299"},
		{"?cursor=9067323100000", 0, NULL},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		snprintf(target, sizeof(target), "/templates/%s/builds/%s/logs%s", m.template, m.build, rows[i].query);
		cleanup_reply struct reply r = world_ask(world, "GET", target, NULL, NULL);
		const json_t *logs = json_object_get(r.json, "logs");
		assert_int_equal(r.status, 200);
		assert_int_equal(json_array_size(logs), rows[i].n);
		if (rows[i].first)
			assert_string_equal(json_string_value(json_object_get(json_array_get(logs, 0), "message")), rows[i].first);
	}
	static const char *const bad[] = {"?cursor=x", "?cursor=-1", "?direction=up", "?source=elsewhere", "?limit=1000"};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		snprintf(target, sizeof(target), "/templates/%s/builds/%s/logs%s", m.template, m.build, bad[i]);
		expect("GET", target, NULL, NULL, 400, NULL);
	}
}

static void tags_move_and_go(void **state)
{
	struct made m = make_ready("app");
	char first[37], target[128];
	static const struct {
		const char *method, *body;
		int status;
		const char *word;
	} bad[] = {
		{"POST", "{\"target\":\":v1\",\"tags\":[\"x\"]}", 400, "Invalid template reference"},
		{"POST", "{\"target\":\"app:\",\"tags\":[\"x\"]}", 400, "Invalid template reference"},
		{"POST", "{\"target\":\"app\"}", 400, "tags is missing"},
		{"POST", "{\"target\":\"app\",\"tags\":[]}", 400, "tags is missing"},
		{"POST", "{\"target\":\"app\",\"tags\":[\"\"]}", 400, "Invalid template tag"},
		{"POST", "{\"target\":\"nope\",\"tags\":[\"x\"]}", 404, "template 'nope' not found"},
		{"POST", "{\"target\":\"app:v7\",\"tags\":[\"x\"]}", 404, "Template 'app' with tag 'v7' not found"},
		{"POST", "{\"target\":\"base\",\"tags\":[\"x\"]}", 403, "of this machine"},
		{"DELETE", "{\"name\":\"app\",\"tags\":[\"default\"]}", 400, "default"},
		{"DELETE", "{\"name\":\"nope\",\"tags\":[\"x\"]}", 404, "not found"},
		{"DELETE", "{\"tags\":[\"x\"]}", 400, "name is missing"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		expect(bad[i].method, "/templates/tags", NULL, bad[i].body, bad[i].status, bad[i].word);
	memcpy(first, m.build, sizeof(first));
	cleanup_reply struct reply r = world_ask(world, "POST", "/templates/tags", NULL, "{\"target\":\"app:default\",\"tags\":[\"Prod\",\"v1\"]}");
	assert_int_equal(r.status, 201);
	assert_string_equal(reply_text(&r, "buildID"), first);
	assert_int_equal(json_array_size(json_object_get(r.json, "tags")), 2);
	/* A newer build takes the tag default only. */
	struct made second = make_ready("app");
	assert_string_equal(second.template, m.template);
	cleanup_reply struct reply tags = get("/templates/{}/tags", m.template);
	assert_int_equal(member_count(&tags), 3);
	size_t i;
	const json_t *tag;
	json_array_foreach(tags.json, i, tag) {
		bool is_default = !strcmp(json_string_value(json_object_get(tag, "tag")), "default");
		assert_string_equal(json_string_value(json_object_get(tag, "buildID")), is_default ? second.build : first);
		assert_non_null(json_object_get(tag, "createdAt"));
	}
	cleanup_reply struct reply count = get("/templates/app/tags/count", ""), yes = get("/templates/app/tags/exists?tag=PROD", ""), no = get("/templates/app/tags/exists?tag=v9", "");
	assert_int_equal(json_integer_value(json_object_get(count.json, "total")), 3);
	assert_true(json_is_true(json_object_get(yes.json, "exists")));
	assert_string_equal(reply_text(&yes, "normalizedTag"), "prod");
	assert_true(json_is_false(json_object_get(no.json, "exists")));
	cleanup_reply struct reply machine = get("/templates/base/tags", "");
	assert_int_equal(member_count(&machine), 1);
	expect("DELETE", "/templates/tags", NULL, "{\"name\":\"app\",\"tags\":[\"prod\"]}", 204, NULL);
	assert_int_equal(create_status("app:prod"), 404);
	assert_int_equal(create_status("app:v1"), 201);
	/* Deleting by a tag, by all. */
	expect("DELETE", "/templates/app%3Av1", NULL, NULL, 204, NULL);
	assert_string_equal(world->templates->deleted_tag, "v1");
	assert_int_equal(create_status("app"), 201);
	world->templates->in_use = true;
	expect("DELETE", with_id("/templates/{}", m.template, target, sizeof(target)), NULL, NULL, 409, "is used by");
	expect("DELETE", "/templates/app?force=false&sync=true", NULL, NULL, 409, "is used by");
	expect("DELETE", "/templates/app?force=maybe", NULL, NULL, 400, "force");
	expect("DELETE", "/templates/app?instance_type=gpu", NULL, NULL, 501, "instance_type");
	expect("DELETE", "/templates/app?force&sync=true&instance_type=cubebox", NULL, NULL, 204, NULL);
	expect("DELETE", "/templates/app", NULL, NULL, 404, "template 'app' not found");
	assert_int_equal(create_status("app"), 404);
	cleanup_reply struct reply list = get("/templates", "");
	assert_int_equal(member_count(&list), 1);
}

static void lists_show_the_union_of_both_shapes(void **state)
{
	struct made m = make_ready("one");
	make_waiting("two");
	struct made three = make_waiting("three");
	start(&three, ENOUGH, 202, NULL);
	template_node_end(world, template_node_find(world, three.template), "no such image", "base", 0);
	cleanup_reply struct reply list = get("/templates", "");
	assert_int_equal(member_count(&list), 4);
	static const struct {
		const char *status, *cube;
	} rows[] = {{"error", "FAILED"}, {"waiting", "PENDING"}, {"ready", "READY"}, {"ready", "READY"}}; /* the newest first, that of the machine last */
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		const json_t *t = json_array_get(list.json, i);
		assert_string_equal(json_string_value(json_object_get(t, "buildStatus")), rows[i].status);
		assert_string_equal(json_string_value(json_object_get(t, "status")), rows[i].cube);
		assert_true(json_is_integer(json_object_get(t, "cpuCount")));
		assert_true(json_is_array(json_object_get(t, "aliases")));
		assert_true(json_is_array(json_object_get(t, "names")));
		assert_true(json_is_boolean(json_object_get(t, "public")));
	}
	assert_string_equal(json_string_value(json_object_get(json_array_get(list.json, 0), "lastError")), "no such image");
	char token[256] = "", seen[8][65];
	size_t n = 0;
	do {
		char target[512];
		snprintf(target, sizeof(target), "/v2/templates?limit=3&nextToken=%s", token);
		cleanup_reply struct reply page = get(target, "");
		assert_int_equal(page.status, 200);
		for (size_t i = 0; i < member_count(&page); i++)
			snprintf(seen[n++], 65, "%s", json_string_value(json_object_get(json_array_get(page.json, i), "templateID")));
		snprintf(token, sizeof(token), "%.*s", STR_FMT(reply_header(&page, "x-next-token")));
	} while (token[0]);
	assert_int_equal(n, 4);
	for (size_t i = 0; i < n; i++)
		assert_string_equal(seen[i], json_string_value(json_object_get(json_array_get(list.json, i), "templateID")));
	expect("GET", "/v2/templates?limit=0", NULL, NULL, 400, "limit");
	expect("GET", "/v2/templates?nextToken=x", NULL, NULL, 400, "Invalid next token");
	cleanup_reply struct reply defaults = get("/default-templates", "");
	assert_int_equal(member_count(&defaults), 1);
	/* One with its builds, by pages. */
	for (int i = 0; i < 4; i++)
		make_waiting("one");
	cleanup_reply struct reply one = get("/templates/{}?limit=2", m.template);
	assert_int_equal(json_array_size(json_object_get(one.json, "builds")), 2);
	char next[512];
	snprintf(next, sizeof(next), "/templates/%s?limit=100&nextToken=%.*s", m.template, STR_FMT(reply_header(&one, "x-next-token")));
	cleanup_reply struct reply rest = get(next, "");
	assert_int_equal(json_array_size(json_object_get(rest.json, "builds")), 3);
	assert_int_equal(reply_header(&rest, "x-next-token").n, 0);
	expect("GET", "/templates/one?nextToken=x", NULL, NULL, 400, "Invalid next token");
	/* Who may use it. */
	cleanup_reply struct reply published = world_ask(world, "PATCH", "/v2/templates/one", NULL, "{\"public\":true}");
	assert_int_equal(published.status, 200);
	assert_string_equal(json_string_value(json_array_get(json_object_get(published.json, "names"), 0)), "one");
	expect("PATCH", "/v2/templates/one", NULL, "{}", 400, "public is missing");
	expect("PATCH", "/v2/templates/base", NULL, "{\"public\":false}", 403, "of this machine");
	expect("PATCH", "/templates/one", NULL, "{\"public\":false}", 200, NULL);
}

/* Files */

static char *link_of(const char *template, const char *headers, char to[1024])
{
	char target[256];
	snprintf(target, sizeof(target), "/templates/%s/files/%s", template, HASH);
	cleanup_reply struct reply r = world_ask(world, "GET", target, headers, NULL);
	assert_int_equal(r.status, 201);
	snprintf(to, 1024, "%s", reply_text(&r, "url"));
	return to;
}

/* The path of a link that must begin so. */
static const char *path_of(const char *link, const char *origin)
{
	if (strncmp(link, origin, strlen(origin)) != 0)
		fail_msg("%s does not begin with %s", link, origin);
	return link + strlen(origin);
}

static struct reply put_files(const char *path, const char *framing, struct str bytes)
{
	cleanup_buf struct buf request = BUF_INIT;
	buf_addf(&request, "PUT %s HTTP/1.1\r\nHost: api.test\r\n%s\r\n", path, framing);
	buf_add_str(&request, bytes);
	int fd = world_open(world, false);
	struct reply r = world_send(world, fd, buf_str(&request));
	close(fd);
	world_turn(world);
	return r;
}

static void check_file(struct str wanted)
{
	char *is = malloc(wanted.n + 1);
	assert_int_equal(pread(world->templates->file, is, wanted.n + 1, 0), (ssize_t)wanted.n);
	assert_memory_equal(is, wanted.p, wanted.n);
	free(is);
}

static void turn_until(const uint64_t *n, uint64_t wanted)
{
	for (int i = 0; i < 2000 && *n < wanted; i++)
		loop_turn(world->loop, 5);
	assert_int_equal(*n, wanted);
}

static void files_are_sent_to_signed_links(void **state)
{
	struct made m = make_waiting("app");
	char link[1024], headers[256], framing[64], path[1024];
	cleanup_buf struct buf bytes = BUF_INIT, chunked = BUF_INIT;
	for (size_t i = 0; i < 3 * 1024 * 1024 + 17; i += 17)
		buf_add(&bytes, "0123456789abcdef", 17);
	size_t n = buf_len(&bytes);
	expect("GET", "/templates/app/files/xyz", NULL, NULL, 400, "Invalid files hash");
	expect("GET", "/templates/base/files/" HASH, NULL, NULL, 403, NULL);
	snprintf(path, sizeof(path), "%s", path_of(link_of(m.template, NULL, link), "http://api.test"));
	snprintf(headers, sizeof(headers), "X-API-KEY: %s\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: e2b.example:8443\r\n", world->key);
	path_of(link_of(m.template, headers, link), "https://e2b.example:8443/templates/");
	/* No key goes with it. Far more than any buffer on the way holds. */
	snprintf(framing, sizeof(framing), "Content-Length: %zu\r\n", n);
	cleanup_reply struct reply sent = put_files(path, framing, buf_str(&bytes));
	assert_int_equal(sent.status, 204);
	assert_int_equal(world->templates->kept, 1);
	assert_int_equal(world->templates->file_size, n);
	assert_string_equal(world->templates->file_hash, HASH);
	assert_string_equal(world->templates->file_team, "default");
	check_file(buf_str(&bytes));
	char target[256];
	snprintf(target, sizeof(target), "/templates/%s/files/%s", m.template, HASH);
	cleanup_reply struct reply there = world_ask(world, "GET", target, NULL, NULL);
	assert_true(json_is_true(json_object_get(there.json, "present")));
	/* Chunked: the node does not know how much comes. */
	for (size_t at = 0; at < n; at += 100000) {
		size_t part = MIN(n - at, (size_t)100000);
		buf_addf(&chunked, "%zx\r\n%.*s\r\n", part, 0, "");
		chunked.end -= 2;
		buf_add(&chunked, buf_str(&bytes).p + at, part);
		buf_add_c(&chunked, "\r\n");
	}
	buf_add_c(&chunked, "0\r\n\r\n");
	cleanup_reply struct reply again = put_files(path, "Transfer-Encoding: chunked\r\n", buf_str(&chunked));
	assert_int_equal(again.status, 204);
	assert_int_equal(world->templates->file_size, 0);
	check_file(buf_str(&bytes));
	/* What is no link. */
	char wrong[1024];
	snprintf(wrong, sizeof(wrong), "%s", path);
	wrong[strlen(wrong) - 1] ^= 1;
	cleanup_reply struct reply forged = put_files(wrong, "Content-Length: 1\r\n", STR("x"));
	assert_int_equal(forged.status, 404);
	snprintf(wrong, sizeof(wrong), "%.*s", (int)(strchr(path, '?') - path), path);
	cleanup_reply struct reply bare = put_files(wrong, "Content-Length: 1\r\n", STR("x"));
	assert_int_equal(bare.status, 404);
	cleanup_reply struct reply empty = put_files(path, "Content-Length: 0\r\n", STR(""));
	assert_int_equal(empty.status, 400);
	options_set(&world->options, STR("build.upload_max"), STR("1"), "test", NULL);
	cleanup_reply struct reply large = put_files(path, framing, STR(""));
	assert_int_equal(large.status, 413);
	cleanup_reply struct reply larger = put_files(path, "Transfer-Encoding: chunked\r\n", buf_str(&chunked));
	assert_int_equal(larger.status, 413);
	turn_until(&world->templates->thrown, 1);
	world->refuse = (struct error){.code = -ENOSPC, .status = 507, .message = "the disk is full"};
	cleanup_reply struct reply full = put_files(path, "Content-Length: 1\r\n", STR("x"));
	assert_int_equal(full.status, 507);
	assert_int_equal(world->templates->kept, 2);
	/* The template is gone, and its links with it. */
	expect("DELETE", "/templates/app", NULL, NULL, 204, NULL);
	cleanup_reply struct reply gone = put_files(path, "Content-Length: 1\r\n", STR("x"));
	assert_int_equal(gone.status, 404);
}

static void a_client_that_leaves_leaves_no_file(void **state)
{
	struct made m = make_waiting("app");
	char link[1024], request[2048];
	const char *path = path_of(link_of(m.template, NULL, link), "http://api.test");
	struct template_node *n = world->templates;
	int length = snprintf(request, sizeof(request), "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nonly a little", path);
	for (uint64_t i = 1; i <= 3; i++) {
		/* In the middle of the body; once before the node gave a writer. */
		int fd = world_open(world, false);
		world->silent = i == 3;
		assert_true(write(fd, request, (size_t)length) == length);
		if (i < 3)
			turn_until(&n->writers, i);
		else
			world_turn(world);
		close(fd);
		if (i < 3)
			turn_until(&n->thrown, i);
	}
	world_turn(world);
	int file = n->file;
	struct msg_file_writer late = {.writer = ++n->writers};
	chan_send(world->node, MSG_ID_file_writer, &late, world->silent_request, &file, 1, NULL);
	turn_until(&n->thrown, 3);
	assert_int_equal(n->kept, 0);
}

/* More at once than have turns: all are taken, none waits for ever. */
static void many_uploads_at_once(void **state)
{
	enum { MANY = 80, SIZE = 300000 };
	struct made m = make_waiting("app");
	char link[1024], head[2048];
	const char *path = path_of(link_of(m.template, NULL, link), "http://api.test");
	int fds[MANY], length = snprintf(head, sizeof(head), "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, SIZE);
	size_t sent[MANY] = {0}, left = MANY;
	char *body = calloc(1, SIZE);
	for (size_t i = 0; i < MANY; i++) {
		fds[i] = world_open(world, false);
		assert_true(write(fds[i], head, (size_t)length) == length);
	}
	/* Every third stops half-way and leaves later. */
	for (int idle = 0; left && idle < 4000; idle++) {
		for (size_t i = 0; i < MANY; i++) {
			size_t most = i % 3 ? SIZE : SIZE / 2;
			ssize_t r = fds[i] >= 0 && sent[i] < most ? send(fds[i], body, most - sent[i], MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
			if (r > 0) {
				sent[i] += (size_t)r;
				idle = 0;
			}
			char answer[512];
			ssize_t got = fds[i] >= 0 ? recv(fds[i], answer, sizeof(answer) - 1, MSG_DONTWAIT) : 0;
			if (got > 0)
				assert_memory_equal(answer, "HTTP/1.1 204", 12);
			if (got > 0 || (fds[i] >= 0 && !(i % 3) && sent[i] == most)) {
				close(fds[i]);
				fds[i] = -1;
				left--;
			}
		}
		loop_turn(world->loop, 1);
	}
	free(body);
	assert_int_equal(left, 0);
	turn_until(&world->templates->thrown, (MANY + 2) / 3);
	assert_int_equal(world->templates->kept, MANY - (MANY + 2) / 3);
}

/* Cube's */

static struct made cube(const char *body)
{
	struct made m;
	cleanup_reply struct reply r = world_ask(world, "POST", "/templates", NULL, body);
	if (r.status != 202)
		fail_msg("%s: %.*s", body, STR_FMT(r.body));
	snprintf(m.template, sizeof(m.template), "%s", reply_text(&r, "templateID"));
	snprintf(m.build, sizeof(m.build), "%s", reply_text(&r, "jobID"));
	assert_string_equal(reply_text(&r, "status"), "PENDING");
	assert_string_equal(reply_text(&r, "phase"), "PULLING");
	return m;
}

static void cube_makes_and_rebuilds(void **state)
{
	static const struct {
		const char *body;
		int status;
		const char *word;
	} bad[] = {
		{"{}", 400, "image is missing"},
		{"{\"image\":\"\"}", 400, "image is missing"},
		{"{\"dockerfile\":\"FROM x\",\"alias\":\"a\"}", 400, "image is missing"},
		{"{\"image\":\"A B\"}", 400, "image"},
		{"{\"image\":\"a\",\"cpu\":0}", 400, "cpu"},
		{"{\"image\":\"a\",\"memory\":1}", 400, "memory"},
		{"{\"image\":\"a\",\"writableLayerSize\":\"1\"}", 400, "writableLayerSize"},
		{"{\"image\":\"a\",\"writableLayerSize\":\"1P\"}", 400, "writableLayerSize"},
		{"{\"image\":\"a\",\"exposedPorts\":[70000]}", 400, "exposedPorts[0]"},
		{"{\"image\":\"a\",\"probePort\":\"80\"}", 400, "probePort"},
		{"{\"image\":\"a\",\"env\":[\"=x\"]}", 400, "env[0]"},
		{"{\"image\":\"a\",\"dns\":[\"x\"]}", 400, "dns[0]"},
		{"{\"image\":\"a\",\"isolation\":\"VM\"}", 400, "isolation must be"},
		{"{\"image\":\"a\",\"dns\":[\"1.1.1.1\"]}", 501, "dns is not implemented"},
		{"{\"image\":\"a\",\"registryUsername\":\"u\"}", 400, "registryPassword"},
		{"{\"image\":\"a\",\"nodes\":[\"n\"]}", 501, "nodes"},
		{"{\"image\":\"a\",\"allowOut\":[\"1.1.1.1\"]}", 501, "allowOut"},
		{"{\"image\":\"a\",\"allowInternetAccess\":false}", 501, "allowInternetAccess"},
		{"{\"image\":\"a\",\"enableIvshmem\":true}", 501, "enableIvshmem"},
		{"{\"image\":\"a\",\"with_cube_ca\":true}", 501, "with_cube_ca"},
		{"{\"image\":\"a\",\"instanceType\":\"gpu\"}", 501, "instanceType"},
		{"{\"image\":\"a\",\"networkType\":\"bridge\"}", 501, "networkType"},
		{"{\"image\":\"a\",\"qos\":{\"network\":{\"bandwidthMbps\":1}}}", 501, "qos"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		expect("POST", "/templates", NULL, bad[i].body, bad[i].status, bad[i].word);
	assert_int_equal(world->templates->n, 0);
	struct made m = cube("{\"image\":\"registry/app:1\",\"name\":\"team/app:1\",\"writableLayerSize\":\"1G\",\"exposedPorts\":[49983,49999],\"probePort\":49999,"
		"\"probePath\":\"/ready\",\"cpu\":1500,\"memory\":2000,\"env\":[\"A=B\"],\"registryUsername\":\"u\",\"registryPassword\":\"secret\",\"nodes\":[],\"networkType\":\"tap\",\"isolation\":\"microvm\"}");
	cleanup_json json_t *spec = json_loads(world->templates->spec, 0, NULL), *wanted = json_loads("{\"kind\":\"cube\",\"image\":\"registry/app:1\",\"exposedPorts\":[49983,49999],"
		"\"probePort\":49999,\"probePath\":\"/ready\",\"env\":[\"A=B\"],\"registry\":{\"type\":\"registry\",\"username\":\"u\",\"password\":\"secret\"}}", 0, NULL);
	if (!json_equal(spec, wanted))
		fail_msg("%s", world->templates->spec);
	assert_string_equal(world->templates->isolation, "microvm");
	struct fake_template *t = template_node_find(world, m.template);
	assert_string_equal(t->name, "app");
	assert_null(strstr(t->source, "secret"));
	/* Its own words for its clients. */
	char target[256];
	snprintf(target, sizeof(target), "/templates/%s/builds/%s/status?logs_offset=0", m.template, m.build);
	cleanup_reply struct reply running = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(reply_text(&running, "status"), "RUNNING");
	assert_string_equal(reply_text(&running, "phase"), "PULLING");
	assert_int_equal(json_integer_value(json_object_get(running.json, "progress")), 40);
	t->lines = 2;
	snprintf(target, sizeof(target), "/templates/%s/builds/%s/logs", m.template, m.build);
	cleanup_reply struct reply log = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(json_string_value(json_array_get(json_object_get(log.json, "lines"), 1)), "line 1");
	assert_string_equal(reply_text(&log, "status"), "RUNNING");
	/* No name before it is ready. */
	expect("PUT", with_id("/templates/{}/alias", m.template, target, sizeof(target)), NULL, "{\"alias\":\"other\"}", 409, "READY");
	template_node_end(world, t, "the image is not there", "base", 0);
	snprintf(target, sizeof(target), "/templates/%s/builds/%s/status", m.template, m.build);
	cleanup_reply struct reply failed = world_ask(world, "GET", target, NULL, NULL);
	assert_string_equal(reply_text(&failed, "status"), "FAILED");
	assert_string_equal(reply_text(&failed, "message"), "the image is not there");
	/* Again, with what was asked for then, and a change. */
	expect("POST", with_id("/templates/{}", m.template, target, sizeof(target)), NULL, "{\"probePath\":\"/health\",\"registryPassword\":\"secret\"}", 202, NULL);
	cleanup_json json_t *second = json_loads(world->templates->spec, 0, NULL);
	json_object_set_new(wanted, "probePath", json_string("/health"));
	assert_true(json_equal(second, wanted));
	assert_string_equal(world->templates->isolation, "microvm");
	template_node_end(world, t, NULL, NULL, 0);
	expect("POST", with_id("/templates/{}", m.template, target, sizeof(target)), NULL, NULL, 400, "registryPassword");
	snprintf(target, sizeof(target), "/templates/%s/builds/anything", m.template);
	expect("POST", target, NULL, "{\"registryPassword\":\"secret\"}", 202, NULL);
	template_node_end(world, t, NULL, NULL, 0);
	cleanup_reply struct reply detail = get("/templates/app", "");
	assert_string_equal(reply_text(&detail, "status"), "READY");
	assert_string_equal(json_string_value(json_object_get(json_object_get(detail.json, "createRequest"), "image")), "registry/app:1");
	struct made e2b = make_ready("built");
	expect("POST", with_id("/templates/{}", e2b.template, target, sizeof(target)), NULL, "{}", 409, "not made by POST /templates");
	expect("POST", "/templates/base", NULL, "{}", 403, NULL);
	expect("POST", "/templates/nope", NULL, "{}", 404, "template");
	/* A name that is none is dropped; a probe follows from the first port. */
	struct made plain = cube("{\"image\":\"a\",\"name\":\"Not_A name\",\"exposedPorts\":[8080]}");
	assert_string_equal(template_node_find(world, plain.template)->name, "");
	assert_non_null(strstr(world->templates->spec, "\"probePort\":8080"));
	assert_non_null(strstr(world->templates->spec, "\"probePath\":\"/health\""));
}

static void cube_aliases_are_set_moved_and_cleared(void **state)
{
	struct made a = make_ready("first"), b = make_ready("second");
	char target[128];
	static const char *const bad[] = {"{\"alias\":\"Upper\"}", "{\"alias\":\"-x\"}", "{\"alias\":\"tpl-x\"}", "{\"alias\":\"a_b\"}", "{\"alias\":5}"};
	with_id("/templates/{}/alias", b.template, target, sizeof(target));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		expect("PUT", target, NULL, bad[i], 400, "alias");
	cleanup_reply struct reply moved = world_ask(world, "PUT", target, NULL, "{\"alias\":\"first\"}");
	assert_int_equal(moved.status, 200);
	assert_string_equal(reply_text(&moved, "templateID"), b.template);
	assert_string_equal(json_string_value(json_array_get(json_object_get(moved.json, "aliases"), 0)), "first");
	assert_int_equal(create_status("first"), 201);
	assert_string_equal(world->last_template, b.template);
	assert_int_equal(create_status("second"), 404);
	assert_int_equal(create_status(a.template), 201);
	cleanup_reply struct reply cleared = world_ask(world, "PUT", target, NULL, NULL);
	assert_int_equal(cleared.status, 200);
	assert_int_equal(json_array_size(json_object_get(cleared.json, "aliases")), 0);
	assert_int_equal(create_status("first"), 404);
	expect("PUT", "/templates/base/alias", NULL, "{\"alias\":\"x\"}", 403, NULL);
	expect("PUT", "/templates/nope/alias", NULL, "{\"alias\":\"x\"}", 404, "template");
	cleanup_reply struct reply compat = get("/templates/compat", "");
	assert_int_equal(json_array_size(json_object_get(compat.json, "templates")), 3);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(compat.json, "summary"), "staleTemplates")), 0);
	expect("POST", with_id("/templates/compat/{}/adopt-baseline", a.template, target, sizeof(target)), NULL, NULL, 200, NULL);
	expect("POST", "/templates/compat/nope/adopt-baseline", NULL, NULL, 404, "template");
}

/* Straight from an image */

static int ask_for_image(const char *image)
{
	char request[1024], body[512];
	int fd = world_open(world, false), n = snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", image);
	n = snprintf(request, sizeof(request), "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: %s\r\nContent-Length: %d\r\n\r\n%s", world->key, n, body);
	assert_true(write(fd, request, (size_t)n) == n);
	world_turn(world);
	return fd;
}

static int answer_of(int fd)
{
	cleanup_reply struct reply r = world_send(world, fd, STR(""));
	close(fd);
	if (r.status >= 400)
		check_error(&r, "a create of an image");
	return r.status;
}

static void a_sandbox_of_an_image_makes_its_template_once(void **state)
{
	int fds[10];
	static const char *const same[] = {"docker://alpine", "docker.io/library/alpine:latest", " docker.io/alpine "};
	for (size_t i = 0; i < 10; i++)
		fds[i] = ask_for_image(same[i % 3]);
	assert_int_equal(world->templates->n, 1);
	assert_int_equal(world->templates->n_waiting, 10);
	assert_string_equal(world->templates->spec, "{\"kind\":\"image\",\"image\":\"docker.io/library/alpine:latest\"}");
	assert_int_equal(world->n_sandboxes, 0);
	struct fake_template *t = &world->templates->templates[0];
	assert_string_equal(t->kind, "image");
	/* One of them does not wait for it. */
	close(fds[9]);
	world_turn(world);
	template_node_end(world, t, NULL, NULL, 0);
	for (size_t i = 0; i < 9; i++)
		assert_int_equal(answer_of(fds[i]), 201);
	assert_int_equal(world->n_sandboxes, 9);
	/* From now on the node is asked for nothing but the sandbox. */
	unsigned calls = world->calls;
	assert_int_equal(create_status("docker://alpine:latest"), 201);
	assert_int_equal(world->calls, calls + 1);
	assert_string_equal(world->last_template, t->id);
	/* Names of templates are no images, and the other way round. */
	assert_int_equal(create_status("alpine:3"), 404);
	assert_int_equal(create_status("library/alpine"), 404);
	assert_int_equal(create_status("docker://"), 400);
	assert_int_equal(create_status("docker://a b"), 400);
	assert_int_equal(world->templates->n, 1);
}

static void an_image_that_cannot_be_had_says_why(void **state)
{
	int fd = ask_for_image("localhost:5000/app:1"), second = ask_for_image("localhost:5000/app:1");
	template_node_end(world, &world->templates->templates[0], "no such image in the registry", "base", 404);
	cleanup_reply struct reply r = world_send(world, fd, STR(""));
	close(fd);
	assert_int_equal(r.status, 404);
	assert_non_null(strstr(reply_text(&r, "message"), "no such image in the registry"));
	assert_non_null(strstr(reply_text(&r, "message"), "template"));
	assert_non_null(strstr(reply_text(&r, "message"), "not found"));
	assert_int_equal(answer_of(second), 404);
	/* It is tried again. */
	fd = ask_for_image("localhost:5000/app:1");
	assert_int_equal(world->templates->n, 1);
	template_node_end(world, &world->templates->templates[0], "the disk is full", "base", 507);
	assert_int_equal(answer_of(fd), 507);
	fd = ask_for_image("localhost:5000/app:1");
	world_lose_node(world);
	assert_int_equal(answer_of(fd), 503);
	assert_int_equal(world->n_sandboxes, 0);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_setup("test", 2, LOG_ERROR);
	const struct CMUnitTest tests[] = {
		T(names_are_normal_and_tags_are_listed),
		T(a_name_means_something_when_a_build_is_ready),
		T(slashes_in_names_stay_in_their_segment),
		T(bodies_of_builds_are_checked_field_by_field),
		T(a_build_is_what_was_asked_for),
		T(a_started_build_is_told_at_once),
		T(the_log_of_a_build_is_read_both_ways),
		T(tags_move_and_go),
		T(lists_show_the_union_of_both_shapes),
		T(files_are_sent_to_signed_links),
		T(a_client_that_leaves_leaves_no_file),
		T(many_uploads_at_once),
		T(cube_makes_and_rebuilds),
		T(cube_aliases_are_set_moved_and_cleared),
		T(a_sandbox_of_an_image_makes_its_template_once),
		T(an_image_that_cannot_be_had_says_why),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
