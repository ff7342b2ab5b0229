#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "cli/client.h"
#include "cli/output.h"
#include "image/debian.h"
#include "io/json.h"
#include "node/templates.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

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

struct progress {
	bool json, terminal;
	int64_t start;
	char phase[64];
	unsigned turn;
};

static void show_progress(const char *phase, int percent, void *arg)
{
	static const char spinner[] = "|/-\\";
	struct progress *p = arg;
	bool new = strcmp(p->phase, phase) != 0;
	long long elapsed = (clock_monotonic() - p->start) / NS_PER_S;
	snprintf(p->phase, sizeof(p->phase), "%s", phase);
	if (p->json && new) {
		cleanup_buf struct buf line = BUF_INIT;
		buf_addf(&line, "{\"percent\":%d,\"seconds\":%lld,\"phase\":", percent, elapsed);
		json_quote(&line, str_of(phase));
		buf_add_c(&line, "}\n");
		fputs(buf_cstr(&line) ? buf_cstr(&line) : "", stdout);
		fflush(stdout);
	} else if (!p->json && p->terminal) {
		fprintf(stderr, "\r%c %3d %%  %4lld s  %-50s", spinner[p->turn++ % 4], percent, elapsed, phase);
	} else if (!p->json && new) {
		fprintf(stderr, "%3d %%  %4lld s  %s\n", percent, elapsed, phase);
	}
}

static void ignore_change(const struct template *t, bool gone, void *arg)
{
}

/* The template of that name on this machine, without asking a server. */
static bool template_exists(const char *node_dir, const char *name)
{
	struct templates *all = templates_new();
	struct error ignored;
	bool found = all && templates_load(all, node_dir, ignore_change, NULL, &ignored) == 0 && templates_find(all, str_of(name));
	templates_free(all);
	return found;
}

/* A name that cannot be saved is refused before half a minute of work. */
static int check_name(const char *name, struct error *err)
{
	cleanup_buf struct buf probe = BUF_INIT;
	struct template ignored;
	buf_add_c(&probe, "{\"id\":\"aaaaaaaaaaaaaaaaaaaa\",\"createdAt\":\"2026-01-01T00:00:00Z\",\"buildId\":\"00000000-0000-4000-8000-000000000000\","
			  "\"user\":\"user\",\"layers\":[{\"file\":\"images/a.erofs\",\"size\":1}],\"alias\":");
	json_quote(&probe, str_of(name));
	buf_add_c(&probe, "}");
	int r = template_parse(buf_str(&probe), "--name", &ignored, err);
	return r < 0 ? error_set(err, r, 400, "--name '%s': [a-z0-9_-]+ is needed, or two of these with a '/' between", name) : 0;
}

static void random_uuid(char to[37])
{
	unsigned char b[16];
	char hex[33];
	random_bytes(b, sizeof(b));
	b[6] = (b[6] & 0x0f) | 0x40; /* RFC 9562: version 4 */
	b[8] = (b[8] & 0x3f) | 0x80;
	hex_encode(hex, b, sizeof(b));
	snprintf(to, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static int save(const char *node_dir, const char *name, const struct debian_image *image, struct template *t, struct error *err)
{
	*t = (struct template){.created_at = clock_realtime(), .n_layers = 1, .user = "user"};
	random_text(t->id, TEMPLATE_ID, "abcdefghijklmnopqrstuvwxyz0123456789");
	random_uuid(t->build_id);
	snprintf(t->alias, sizeof(t->alias), "%s", name);
	snprintf(t->layers[0].file, sizeof(t->layers[0].file), "images/%s", image->name);
	t->layers[0].size = image->size;
	return template_save(node_dir, t, err);
}

/* A server that runs learns of it; one that does not will at its start. */
static void tell_server(const struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	if (client_open(&cl, c, &err) < 0 || !cl.socket)
		return;
	int r = client_call(&cl, "POST", "/admin/reload-templates", NULL, NULL, NULL, &err);
	if (r < 0 && r != -ECONNREFUSED)
		fprintf(stderr, "cubicle: the running server did not read the new template (%s): it will at its next start\n", err.message);
}

static void report(const struct cli *c, const struct template *t, int64_t start)
{
	char size[24];
	double seconds = (double)(clock_monotonic() - start) / NS_PER_S;
	if (c->json) {
		cleanup_json json_t *j = json_pack("{s:s,s:s,s:I,s:f}", "templateID", t->id, "alias", t->alias, "size", (json_int_t)t->layers[0].size, "seconds", seconds);
		json_dumpf(j, stdout, JSON_COMPACT);
		putchar('\n');
	} else {
		printf("template %s (%s): %s, made in %.0f s\n", t->alias, t->id, size_text(size, t->layers[0].size), seconds);
	}
}

int cmd_template_make_default(struct cli *c)
{
	struct error err = {0};
	const char *name = cli_flag(c, "name")->text ? cli_flag(c, "name")->text : "base";
	cleanup_free char *node_dir = NULL, *images = NULL;
	if (asprintf(&node_dir, "%s/node", c->options.state_dir) < 0 || asprintf(&images, "%s/images", node_dir) < 0) {
		error_errno(&err, -ENOMEM, "template");
		return cli_fail(c, &err);
	}
	if (cli_flag(c, "if-missing")->set && template_exists(node_dir, name))
		return EXIT_OK;
	struct template t;
	if (check_name(name, &err) < 0)
		return cli_fail(c, &err);
	/* serve makes these with the same modes; it may not have run yet. */
	int r = make_dirs(c->options.state_dir, 0711);
	if (r == 0)
		r = make_dirs(node_dir, 0700);
	if (r < 0) {
		error_errno(&err, r, "%s", node_dir);
		return cli_fail(c, &err);
	}
	struct progress p = {.json = c->json, .terminal = isatty(2), .start = clock_monotonic()};
	struct debian_build b = {.directory = images, .mirror = cli_flag(c, "mirror")->text, .progress = show_progress, .arg = &p};
	struct debian_image image;
	r = debian_build(&b, &image, &err);
	if (p.terminal && !p.json)
		fputs("\r\033[K", stderr);
	if (r == 0)
		r = save(node_dir, name, &image, &t, &err);
	if (r < 0)
		return cli_fail(c, &err);
	tell_server(c);
	report(c, &t, p.start);
	return EXIT_OK;
}
