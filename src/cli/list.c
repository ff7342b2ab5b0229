#include "cli/list.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "io/json.h"

void list_table(const struct list *l, const json_t *all)
{
	cleanup_table struct table t;
	table_init(&t, l->titles);
	size_t i;
	json_t *one;
	json_array_foreach(all, i, one)
		l->row(&t, one);
	table_print(&t);
}

int list_command(const struct cli *c, bool admin, const char *path, const struct list *l)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *all = NULL;
	if (!path || (admin ? client_open_admin(&cl, c, &err) : client_open(&cl, c, &err)) < 0 || client_list(&cl, path, &all, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(all);
	else
		list_table(l, all);
	return EXIT_OK;
}
