#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/client.h"
#include "cli/output.h"
#include "io/json.h"

int cmd_template_list(struct cli *c)
{
	static const char *const titles[] = {"TEMPLATE", "ID", "CREATED", "CPU", "MEMORY", "DISK", NULL};
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *all = NULL;
	if (client_open(&cl, c, &err) < 0 || client_list(&cl, "/templates", &all, &err) < 0)
		return cli_fail(c, &err);
	if (c->json) {
		print_json(all);
		return EXIT_OK;
	}
	cleanup_table struct table t;
	table_init(&t, titles);
	size_t i;
	json_t *one;
	json_array_foreach(all, i, one) {
		struct str alias = json_str(json_array_get(json_object_get(one, "aliases"), 0));
		table_add(&t, alias.n ? alias : STR("-"));
		table_add(&t, json_str(json_object_get(one, "templateID")));
		table_add(&t, json_str(json_object_get(one, "createdAt")));
		table_addf(&t, "%lld", (long long)json_integer_value(json_object_get(one, "cpuCount")));
		table_addf(&t, "%lld MiB", (long long)json_integer_value(json_object_get(one, "memoryMB")));
		table_addf(&t, "%lld MiB", (long long)json_integer_value(json_object_get(one, "diskSizeMB")));
	}
	table_print(&t);
	return EXIT_OK;
}
