#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/list.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>

/* Pause, resume, forks, snapshots and going back to one. */

/* POST to a route of a sandbox given by its id or the beginning of one, which goes to id. */
static int post(struct client *cl, const char *given, const char *route, const json_t *body, char id[32], json_t **ret, struct error *err)
{
	char path[96];
	int r = client_resolve(cl, given, id, err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/sandboxes/%s/%s", id, route);
	return client_call(cl, "POST", path, body, ret, NULL, err);
}

/* The same for every sandbox named: prints their ids, or with --json {"key": [ids]}. */
static int post_all(struct cli *c, const char *route, const json_t *body, const char *key)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *ids = json_array();
	int code = EXIT_OK;
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	for (size_t i = 0; i < c->n_words; i++) {
		char id[32];
		if (post(&cl, c->words[i], route, body, id, NULL, &err) < 0) {
			code = cli_fail(c, &err);
			continue;
		}
		json_array_append_new(ids, json_string(id));
		if (!c->json)
			printf("%s\n", id);
	}
	if (c->json) {
		cleanup_json json_t *answer = json_pack("{s:O}", key, ids);
		print_json(answer);
	}
	return code;
}

int cmd_sandbox_pause(struct cli *c)
{
	cleanup_json json_t *body = json_pack("{s:b}", "memory", !cli_flag(c, "disk-only")->set);
	return post_all(c, "pause", body, "paused");
}

static void add_timeout(json_t *body, const struct cli *c)
{
	const struct cli_value *timeout = cli_flag(c, "timeout");
	if (timeout->set)
		json_object_set_new(body, "timeout", json_integer(timeout->number));
}

int cmd_sandbox_resume(struct cli *c)
{
	cleanup_json json_t *body = json_pack("{s:b}", "memory", !cli_flag(c, "from-disk")->set);
	add_timeout(body, c);
	return post_all(c, "resume", body, "resumed");
}

/* Prints the ids of the forks; what became of the others is said on standard error. */
static int print_forks(const struct cli *c, const json_t *forks)
{
	size_t i;
	json_t *item;
	int code = EXIT_OK;
	json_array_foreach(forks, i, item) {
		const char *id = json_string_value(json_object_get(json_object_get(item, "sandbox"), "sandboxID"));
		if (id) {
			if (!c->json)
				printf("%s\n", id);
			continue;
		}
		const json_t *error = json_object_get(item, "error");
		struct error err = {.code = -EIO, .status = (int)json_integer_value(json_object_get(error, "code"))};
		snprintf(err.message, sizeof(err.message), "fork %zu: %.*s", i + 1, STR_FMT(json_str(json_object_get(error, "message"))));
		code = cli_fail(c, &err);
	}
	return code;
}

int cmd_sandbox_fork(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = json_object(), *forks = NULL;
	const struct cli_value *count = cli_flag(c, "count");
	char id[32];
	add_timeout(body, c);
	json_object_set_new(body, "count", json_integer(count->set ? count->number : 1));
	if (client_open(&cl, c, &err) < 0 || post(&cl, c->words[0], "fork", body, id, &forks, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(forks);
	return print_forks(c, forks);
}

int cmd_sandbox_snapshot(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = json_object(), *made = NULL;
	char id[32];
	if (c->n_words > 1 && json_object_set_new(body, "name", json_string(c->words[1])) < 0)
		error_set(&err, -EINVAL, 400, "the snapshot's name is no UTF-8");
	if (err.code || client_open(&cl, c, &err) < 0 || post(&cl, c->words[0], "snapshots", body, id, &made, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(made);
	else
		printf("%s\n", json_string_value(json_object_get(made, "snapshotID")));
	return EXIT_OK;
}

int cmd_sandbox_rollback(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = json_pack("{s:s}", "snapshotID", c->words[1]), *answer = NULL;
	char id[32];
	if (!body)
		error_set(&err, -EINVAL, 400, "the snapshot's name is no UTF-8");
	if (err.code || client_open(&cl, c, &err) < 0 || post(&cl, c->words[0], "rollback", body, id, &answer, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(answer);
	else
		printf("%s\n", id);
	return EXIT_OK;
}

static void add_snapshot(struct table *t, const json_t *s)
{
	char text[24];
	struct str name = json_str(json_array_get(json_object_get(s, "names"), 0));
	table_add(t, json_str(json_object_get(s, "snapshotID")));
	table_add(t, name.n ? name : STR("-"));
	table_add(t, json_str(json_object_get(s, "originSandboxID")));
	table_add(t, json_str(json_object_get(s, "createdAt")));
	table_addf(t, "%s", size_text(text, (uint64_t)json_integer_value(json_object_get(s, "size"))));
}

static const struct list snapshots = {{"SNAPSHOT", "NAME", "OF SANDBOX", "MADE", "SIZE"}, add_snapshot};

int cmd_snapshot_list(struct cli *c)
{
	cleanup_buf struct buf path = BUF_INIT;
	const struct cli_value *sandbox = cli_flag(c, "sandbox");
	buf_add_c(&path, "/snapshots?limit=100");
	if (sandbox->set) {
		/* One that is gone has snapshots too, so the beginning of an id does not do. */
		buf_add_c(&path, "&sandboxID=");
		url_encode(&path, str_of(sandbox->text));
	}
	return list_command(c, false, buf_cstr(&path), &snapshots);
}

int cmd_snapshot_delete(struct cli *c)
{
	return template_delete_words(c, ""); /* what templates and snapshots are deleted by is one call (e2b.md A.6) */
}
