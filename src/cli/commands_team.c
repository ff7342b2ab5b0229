#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/list.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What the flags, the server and people call the limits. */
static const struct {
	const char *flag, *field, *title, *unit;
} quotas[] = {
	{"sandboxes", "sandboxes", "sandboxes", ""},
	{"creates", "creates", "creates", " a second"},
	{"memory", "memoryMB", "memory", " MiB"},
};

/* {"quotas": {...}} of the flags that are given; NULL without any. -EINVAL with *err. */
static int parse_quotas(const struct cli *c, json_t **ret, struct error *err)
{
	cleanup_json json_t *set = json_object();
	for (size_t i = 0; i < ARRAY_SIZE(quotas); i++) {
		const struct cli_value *v = cli_flag(c, quotas[i].flag);
		uint64_t n = 0;
		if (!v->set)
			continue;
		json_t *value = NULL;
		if (!strcmp(v->text, "default"))
			value = json_null();
		else if (!strcmp(v->text, "none") || (str_to_u64(str_of(v->text), &n) == 0 && n > 0 && n <= INT64_MAX))
			value = json_integer((json_int_t)n);
		else
			return error_set(err, -EINVAL, 400, "--%s: '%s' is neither a number from 1 on, nor `none`, nor `default`", quotas[i].flag, v->text);
		json_object_set_new(set, quotas[i].field, value);
	}
	*ret = json_object_size(set) ? json_pack("{s:O}", "quotas", set) : NULL;
	return 0;
}

static void print_team(const struct cli *c, const json_t *team)
{
	if (c->json) {
		print_json(team);
		return;
	}
	const json_t *limits = json_object_get(team, "limits"), *own = json_object_get(team, "quotas");
	for (size_t i = 0; i < ARRAY_SIZE(quotas); i++) {
		const json_t *limit = json_object_get(limits, quotas[i].field);
		const char *whose = json_is_null(json_object_get(own, quotas[i].field)) ? " (the server's)" : "";
		if (json_is_integer(limit))
			printf("%-10s %lld%s%s\n", quotas[i].title, (long long)json_integer_value(limit), quotas[i].unit, whose);
		else
			printf("%-10s no limit%s\n", quotas[i].title, whose);
	}
}

int cmd_team_create(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = NULL, *made = NULL;
	if (parse_quotas(c, &body, &err) < 0) {
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (!body)
		body = json_object();
	json_t *name = json_string(c->words[0]);
	if (!name) {
		error_set(&err, -EINVAL, 400, "the team's name is no UTF-8");
		return cli_fail(c, &err);
	}
	json_object_set_new(body, "name", name);
	if (client_open_admin(&cl, c, &err) < 0 || client_call(&cl, "POST", "/admin/teams", body, &made, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(made);
	else
		printf("%s\n", json_string_value(json_object_get(made, "teamID")));
	return EXIT_OK;
}

/* "3/10", "3" without a limit. */
static void add_use(struct table *t, const json_t *team, const char *field)
{
	long long used = json_integer_value(json_object_get(json_object_get(team, "usage"), field));
	const json_t *limit = json_object_get(json_object_get(team, "limits"), field);
	if (json_is_integer(limit))
		table_addf(t, "%lld/%lld", used, (long long)json_integer_value(limit));
	else
		table_addf(t, "%lld", used);
}

static void add_team(struct table *t, const json_t *team)
{
	const json_t *creates = json_object_get(json_object_get(team, "limits"), "creates");
	table_add(t, json_str(json_object_get(team, "teamID")));
	table_add(t, json_str(json_object_get(team, "name")));
	table_addf(t, "%lld", (long long)json_integer_value(json_object_get(team, "keys")));
	add_use(t, team, "sandboxes");
	add_use(t, team, "memoryMB");
	table_addf(t, "%lld", (long long)json_integer_value(json_object_get(json_object_get(team, "usage"), "paused")));
	if (json_is_integer(creates))
		table_addf(t, "%lld", (long long)json_integer_value(creates));
	else
		table_add(t, STR("-"));
	table_add(t, json_is_true(json_object_get(team, "blocked")) ? STR("yes") : STR("-"));
}

static const struct list teams = {{"ID", "NAME", "KEYS", "SANDBOXES", "MEMORY MIB", "PAUSED", "CREATES/S", "BLOCKED"}, add_team};

int cmd_team_list(struct cli *c)
{
	return list_command(c, true, "/admin/teams", &teams);
}

/* One call for the team that the first word names. ret_id is a view into *ret_team. */
static int call_team(const struct cli *c, const char *method, const json_t *body, json_t **ret_team, json_t **ret, struct error *err)
{
	cleanup_client struct client cl = {0};
	cleanup_buf struct buf path = BUF_INIT;
	int r = client_open_admin(&cl, c, err);
	if (r == 0)
		r = client_find(&cl, "team", "/admin/teams", "teamID", c->words[0], ret_team, err);
	if (r < 0 || !method)
		return r;
	buf_add_c(&path, "/admin/teams/");
	url_encode(&path, json_str(json_object_get(*ret_team, "teamID")));
	return buf_cstr(&path) ? client_call(&cl, method, buf_cstr(&path), body, ret, NULL, err) : error_errno(err, -ENOMEM, "%s", method);
}

int cmd_team_quota(struct cli *c)
{
	struct error err = {0};
	cleanup_json json_t *body = NULL, *team = NULL, *changed = NULL;
	if (parse_quotas(c, &body, &err) < 0) {
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (call_team(c, body ? "PATCH" : NULL, body, &team, &changed, &err) < 0)
		return cli_fail(c, &err);
	print_team(c, changed ? changed : team);
	return EXIT_OK;
}

/* Changes the team and prints its id, or all of it with --json. */
static int change(struct cli *c, json_t *change)
{
	struct error err = {0};
	cleanup_json json_t *body = change, *team = NULL, *changed = NULL;
	if (!body) {
		error_set(&err, -EINVAL, 400, "the team's name is no UTF-8");
		return cli_fail(c, &err);
	}
	if (call_team(c, "PATCH", body, &team, &changed, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(changed);
	else
		printf("%s\n", json_string_value(json_object_get(changed, "teamID")));
	return EXIT_OK;
}

int cmd_team_rename(struct cli *c)
{
	return change(c, json_pack("{s:s}", "name", c->words[1]));
}

int cmd_team_block(struct cli *c)
{
	return change(c, json_pack("{s:b}", "blocked", 1));
}

int cmd_team_unblock(struct cli *c)
{
	return change(c, json_pack("{s:b}", "blocked", 0));
}

int cmd_team_delete(struct cli *c)
{
	struct error err = {0};
	cleanup_json json_t *team = NULL;
	if (call_team(c, "DELETE", NULL, &team, NULL, &err) < 0)
		return cli_fail(c, &err);
	json_t *id = json_object_get(team, "teamID");
	if (c->json) {
		cleanup_json json_t *answer = json_pack("{s:O}", "deleted", id);
		print_json(answer);
	} else {
		printf("%s\n", json_string_value(id));
	}
	return EXIT_OK;
}
