#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/list.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int cmd_key_create(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = json_pack("{s:s}", "name", c->n_words ? c->words[0] : "unnamed"), *made = NULL;
	if (!body) {
		error_set(&err, -EINVAL, 400, "the key's name is no UTF-8");
		return cli_fail(c, &err);
	}
	if (client_open_admin(&cl, c, &err) < 0 || client_call(&cl, "POST", "/admin/keys", body, &made, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(made);
	else
		printf("%s\n", json_string_value(json_object_get(made, "key")));
	if (!c->json && isatty(2))
		fputs("This is the only time the key is shown: the server keeps its hash.\n", stderr);
	return EXIT_OK;
}

static void add_key(struct table *t, const json_t *key)
{
	struct str used = json_str(json_object_get(key, "lastUsed"));
	struct str hint = json_str(json_object_get(key, "hint"));
	table_add(t, json_str(json_object_get(key, "id")));
	table_add(t, json_str(json_object_get(key, "name")));
	table_add(t, json_str(json_object_get(key, "team")));
	table_addf(t, "%.*s...", STR_FMT(hint));
	table_add(t, json_str(json_object_get(key, "createdAt")));
	table_add(t, used.n ? used : STR("-"));
}

static const struct list keys = {{"ID", "NAME", "TEAM", "KEY", "CREATED", "LAST USED"}, add_key};

int cmd_key_list(struct cli *c)
{
	return list_command(c, true, "/admin/keys", &keys);
}

int cmd_key_revoke(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *key = NULL;
	cleanup_buf struct buf path = BUF_INIT;
	if (client_open_admin(&cl, c, &err) < 0 || client_find(&cl, "key", "/admin/keys", "id", c->words[0], &key, &err) < 0)
		return cli_fail(c, &err);
	json_t *id = json_object_get(key, "id");
	buf_add_c(&path, "/admin/keys/");
	url_encode(&path, json_str(id));
	if (client_call(&cl, "DELETE", buf_cstr(&path), NULL, NULL, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json) {
		cleanup_json json_t *answer = json_pack("{s:O}", "revoked", id);
		print_json(answer);
	} else {
		printf("%s\n", json_string_value(id));
	}
	return EXIT_OK;
}
