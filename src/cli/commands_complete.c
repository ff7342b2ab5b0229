#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/completion.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>

/* The values of a list of the server's, a line each: `key` of each thing, or the first of its array `first`; what_key tells more. Nothing without a server. */
static void list_all(struct buf *to, const struct cli *c, bool admin, const char *path, const char *first, const char *key, const char *what_key)
{
	cleanup_client struct client cl = {0};
	cleanup_json json_t *all = NULL;
	struct error err = {0};
	if ((admin ? client_open_admin(&cl, c, &err) : client_open(&cl, c, &err)) < 0 || client_list(&cl, path, &all, &err) < 0)
		return;
	size_t i;
	json_t *one;
	json_array_foreach(all, i, one) {
		struct str name = first ? json_str(json_array_get(json_object_get(one, first), 0)) : STR("");
		if (!name.n)
			name = json_str(json_object_get(one, key));
		struct str what = json_str(json_object_get(one, what_key));
		buf_add_str(to, name);
		buf_add_c(to, "\t");
		buf_add_str(to, what);
		buf_add_c(to, "\n");
	}
}

static void sandboxes(struct buf *to, void *arg)
{
	list_all(to, arg, false, "/v2/sandboxes?limit=100", NULL, "sandboxID", "alias");
}

static void snapshots(struct buf *to, void *arg)
{
	list_all(to, arg, false, "/snapshots?limit=100", "names", "snapshotID", "originSandboxID");
}

static void templates(struct buf *to, void *arg)
{
	list_all(to, arg, false, "/templates", "aliases", "templateID", "templateID");
}

static void keys(struct buf *to, void *arg)
{
	list_all(to, arg, true, "/admin/keys", NULL, "id", "name");
}

static void teams(struct buf *to, void *arg)
{
	list_all(to, arg, true, "/admin/teams", NULL, "name", "teamID");
}

/* The scripts call `completion words -- WORDS...`: the candidates for the last of these words. */
static int print_words(struct cli *c)
{
	static const struct completion_source sources[] = {{"SANDBOX", sandboxes}, {"TEMPLATE", templates}, {"SNAPSHOT", snapshots}, {"KEY", keys}, {"TEAM", teams}, {0}};
	cleanup_buf struct buf out = BUF_INIT;
	int argc = 0;
	while (c->rest && c->rest[argc])
		argc++;
	int r = completion_words(&out, argc, (char **)c->rest, sources, c);
	if (r < 0) {
		struct error err = {0};
		error_errno(&err, r, "completion");
		return cli_fail(c, &err);
	}
	fwrite(buf_str(&out).p, 1, buf_len(&out), stdout);
	return EXIT_OK;
}

int cmd_completion(struct cli *c)
{
	if (!strcmp(c->words[0], "words"))
		return print_words(c);
	const char *script = completion_script(c->words[0]);
	if (script && !c->rest) {
		fputs(script, stdout);
		return EXIT_OK;
	}
	struct error err = {0};
	error_set(&err, -EINVAL, 400, "completion: '%s' is neither bash, zsh nor fish", c->words[0]);
	cli_fail(c, &err);
	return EXIT_USAGE;
}
