#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/output.h"
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

int cmd_key_list(struct cli *c)
{
	static const char *const titles[] = {"ID", "NAME", "KEY", "CREATED", "LAST USED", NULL};
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *all = NULL;
	if (client_open_admin(&cl, c, &err) < 0 || client_list(&cl, "/admin/keys", &all, &err) < 0)
		return cli_fail(c, &err);
	if (c->json) {
		print_json(all);
		return EXIT_OK;
	}
	cleanup_table struct table t;
	table_init(&t, titles);
	size_t i;
	json_t *key;
	json_array_foreach(all, i, key) {
		struct str used = json_str(json_object_get(key, "lastUsedAt"));
		struct str hint = json_str(json_object_get(key, "hint"));
		table_add(&t, json_str(json_object_get(key, "id")));
		table_add(&t, json_str(json_object_get(key, "name")));
		table_addf(&t, "%.*s...", STR_FMT(hint));
		table_add(&t, json_str(json_object_get(key, "createdAt")));
		table_add(&t, used.n ? used : STR("-"));
	}
	table_print(&t);
	return EXIT_OK;
}

/* By id, by the unique beginning of one, or by a unique name. */
static int find_key(struct client *cl, const char *given, json_t **ret_id, struct error *err)
{
	cleanup_json json_t *all = NULL, *found = NULL;
	int r = client_list(cl, "/admin/keys", &all, err);
	if (r < 0)
		return r;
	size_t i;
	json_t *key;
	json_array_foreach(all, i, key) {
		json_t *id = json_object_get(key, "id");
		if (!json_is_string(id) || (!str_starts(json_str(id), str_of(given)) && !str_is(json_str(json_object_get(key, "name")), given)))
			continue;
		if (found)
			return error_set(err, -ENOTUNIQ, 400, "'%s' fits more than one key; give the whole id (see `cubicle key list`)", given);
		found = json_incref(id);
	}
	if (!found)
		return error_set(err, -ENOENT, 404, "there is no key '%s' (see `cubicle key list`)", given);
	*ret_id = steal_pointer(&found);
	return 0;
}

int cmd_key_revoke(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *id = NULL;
	cleanup_buf struct buf path = BUF_INIT;
	if (!*c->words[0]) {
		error_set(&err, -EINVAL, 400, "key revoke: the id is empty");
		return cli_fail(c, &err);
	}
	if (client_open_admin(&cl, c, &err) < 0 || find_key(&cl, c->words[0], &id, &err) < 0)
		return cli_fail(c, &err);
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
