#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/client.h"
#include "cli/list.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* {"key": "value"} of the pairs given with one flag. */
static json_t *pairs_json(const struct cli *c, const char *flag, struct error *err)
{
	json_t *map = json_object();
	for (size_t i = 0; i < c->n_pairs; i++) {
		const struct cli_pair *p = &c->pairs[i];
		cleanup_free char *key = strcmp(p->flag->name, flag) ? NULL : str_dup(p->key);
		if (key && json_object_set_new(map, key, json_stringn(p->value.p, p->value.n)) < 0) {
			error_set(err, -EINVAL, 400, "--%s %s: key or value is no UTF-8", flag, key);
			json_decref(map);
			return NULL;
		}
	}
	return map;
}

static json_t *create_body(const struct cli *c, struct error *err)
{
	cleanup_json json_t *metadata = pairs_json(c, "metadata", err), *envs = pairs_json(c, "env", err), *body = NULL;
	if (!metadata || !envs)
		return NULL;
	body = json_pack("{s:s,s:O,s:O}", "templateID", c->words[0], "metadata", metadata, "envVars", envs);
	if (!body) {
		error_set(err, -EINVAL, 400, "the template's name is no UTF-8");
		return NULL;
	}
	const struct cli_value *timeout = cli_flag(c, "timeout");
	if (timeout->set)
		json_object_set_new(body, "timeout", json_integer(timeout->number));
	if (cli_flag(c, "no-internet")->set)
		json_object_set_new(body, "allow_internet_access", json_false());
	if (cli_flag(c, "auto-pause")->set)
		json_object_set_new(body, "autoPause", json_true());
	if (cli_flag(c, "auto-resume")->set)
		json_object_set_new(body, "autoResume", json_pack("{s:b}", "enabled", 1));
	const struct cli_value *shutdown = cli_flag(c, "shutdown-after");
	if (shutdown->set)
		json_object_set_new(body, "lifecycle", json_pack("{s:I}", "shutdownAfterSeconds", (json_int_t)shutdown->number));
	return steal_pointer(&body);
}

int cmd_sandbox_create(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = create_body(c, &err), *made = NULL;
	if (!body || client_open(&cl, c, &err) < 0 || client_call(&cl, "POST", "/v2/sandboxes", body, &made, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(made);
	else
		printf("%s\n", json_string_value(json_object_get(made, "sandboxID")));
	return EXIT_OK;
}

/* Seconds from now until a time of the API; INT64_MAX for the year 9999, which means never. */
static int64_t seconds_until(const json_t *time)
{
	int64_t at;
	struct str text = json_str(time);
	if (rfc3339_parse(text, &at) < 0)
		return 0;
	if (str_starts(text, STR("9999-")))
		return INT64_MAX;
	return (at - clock_realtime()) / NS_PER_S;
}

static bool is_paused(const json_t *s)
{
	return str_is(json_str(json_object_get(s, "state")), "paused");
}

static void metadata_text(struct buf *to, const json_t *metadata)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)metadata, key, value)
	{
		struct str s = json_str(value);
		buf_addf(to, "%s%s=%.*s", buf_len(to) ? " " : "", key, STR_FMT(s));
	}
}

static void add_sandbox(struct table *t, const json_t *s)
{
	char text[24];
	struct str alias = json_str(json_object_get(s, "alias"));
	cleanup_buf struct buf metadata = BUF_INIT;
	metadata_text(&metadata, json_object_get(s, "metadata"));
	table_add(t, json_str(json_object_get(s, "sandboxID")));
	table_add(t, alias.n ? alias : json_str(json_object_get(s, "templateID")));
	table_add(t, json_str(json_object_get(s, "state")));
	table_addf(t, "%s", duration_text(text, -seconds_until(json_object_get(s, "startedAt"))));
	table_addf(t, "%s", is_paused(s) ? "-" : duration_text(text, seconds_until(json_object_get(s, "endAt"))));
	table_addf(t, "%lld", (long long)json_integer_value(json_object_get(s, "cpuCount")));
	table_addf(t, "%lld MiB", (long long)json_integer_value(json_object_get(s, "memoryMB")));
	table_add(t, buf_str(&metadata));
}

static const struct list sandboxes = {{"SANDBOX", "TEMPLATE", "STATE", "AGE", "ENDS IN", "CPU", "MEMORY", "METADATA"}, add_sandbox};

int cmd_sandbox_list(struct cli *c)
{
	cleanup_buf struct buf path = BUF_INIT, filter = BUF_INIT;
	for (size_t i = 0; i < c->n_pairs; i++) {
		buf_add_c(&filter, i ? "&" : "");
		url_encode(&filter, c->pairs[i].key);
		buf_add_c(&filter, "=");
		url_encode(&filter, c->pairs[i].value);
	}
	buf_add_c(&path, "/v2/sandboxes?limit=100");
	if (buf_len(&filter)) {
		/* The server unescapes the whole once more than usual (e2b.md A.5.4). */
		cleanup_buf struct buf once = BUF_INIT;
		url_encode(&once, buf_str(&filter));
		buf_add_c(&path, "&metadata=");
		url_encode(&path, buf_str(&once));
	}
	return list_command(c, false, buf_cstr(&path), &sandboxes);
}

static void info_line(const char *name, struct str text)
{
	cleanup_buf struct buf safe = BUF_INIT;
	print_safe(&safe, text);
	if (text.n && buf_cstr(&safe))
		printf("%-12s %s\n", name, buf_cstr(&safe));
}

static void print_info(const json_t *s)
{
	static const struct {
		const char *title, *key;
	} lines[] = {
		{"sandbox", "sandboxID"}, {"template", "alias"}, {"template id", "templateID"}, {"state", "state"}, {"isolation", "isolation"},
		{"launch", "launch"}, {"started", "startedAt"}, {"resumed from", "resumedFrom"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		info_line(lines[i].title, json_str(json_object_get(s, lines[i].key)));
	/* The deadline stands still while it is paused: what is shown of it is when that began. */
	char left[24];
	info_line(is_paused(s) ? "paused" : "ends", json_str(json_object_get(s, "endAt")));
	if (!is_paused(s))
		printf("%-12s %s\n", "ends in", duration_text(left, seconds_until(json_object_get(s, "endAt"))));
	if (str_is(json_str(json_object_get(s, "pauseMode")), "filesystem"))
		info_line("kept", STR("its disk only"));
	const json_t *lifecycle = json_object_get(s, "lifecycle");
	printf("%-12s %.*s%s\n", "at the end", STR_FMT(json_str(json_object_get(lifecycle, "onTimeout"))),
		json_is_true(json_object_get(lifecycle, "autoResume")) ? ", resumed by traffic" : "");
	info_line("shuts down", json_str(json_object_get(lifecycle, "shutdownAt")));
	printf("%-12s %lld CPU, %lld MiB memory, %lld MiB disk\n", "size", (long long)json_integer_value(json_object_get(s, "cpuCount")),
		(long long)json_integer_value(json_object_get(s, "memoryMB")), (long long)json_integer_value(json_object_get(s, "diskSizeMB")));
	cleanup_buf struct buf metadata = BUF_INIT;
	metadata_text(&metadata, json_object_get(s, "metadata"));
	info_line("metadata", buf_str(&metadata));
}

int cmd_sandbox_info(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *info = NULL;
	char id[32], path[80];
	if (client_open(&cl, c, &err) < 0 || client_resolve(&cl, c->words[0], id, &err) < 0)
		return cli_fail(c, &err);
	snprintf(path, sizeof(path), "/sandboxes/%s", id);
	if (client_call(&cl, "GET", path, NULL, &info, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(info);
	else
		print_info(info);
	return EXIT_OK;
}

static int kill_one(struct client *cl, const struct cli *c, const char *id, struct error *err)
{
	char path[80];
	snprintf(path, sizeof(path), "/sandboxes/%s", id);
	int r = client_call(cl, "DELETE", path, NULL, NULL, NULL, err);
	if (r == 0 && !c->json)
		printf("%s\n", id);
	return r;
}

/* All that run; one that ended by itself meanwhile is no failure. */
static int kill_all(struct client *cl, const struct cli *c, json_t *killed, struct error *err)
{
	cleanup_json json_t *all = NULL;
	int r = client_list(cl, "/v2/sandboxes", &all, err), failed = 0;
	if (r < 0)
		return r;
	size_t i;
	json_t *s;
	json_array_foreach(all, i, s) {
		const char *id = json_string_value(json_object_get(s, "sandboxID"));
		struct error one = {0};
		r = id ? kill_one(cl, c, id, &one) : 0;
		if (r == 0 && id)
			json_array_append_new(killed, json_string(id));
		if (r < 0 && r != -ENOENT) {
			*err = one;
			failed = r;
		}
	}
	return failed;
}

int cmd_sandbox_kill(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *killed = json_array();
	bool all = cli_flag(c, "all")->set;
	if (all == (c->n_words > 0)) {
		error_set(&err, -EINVAL, 400, "sandbox kill: name the sandboxes, or give --all");
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	int code = EXIT_OK;
	if (all && kill_all(&cl, c, killed, &err) < 0)
		code = cli_fail(c, &err);
	for (size_t i = 0; i < c->n_words; i++) {
		char id[32];
		if (client_resolve(&cl, c->words[i], id, &err) < 0 || kill_one(&cl, c, id, &err) < 0)
			code = cli_fail(c, &err);
		else
			json_array_append_new(killed, json_string(id));
	}
	if (c->json) {
		cleanup_json json_t *answer = json_pack("{s:O}", "killed", killed);
		print_json(answer);
	}
	return code;
}
