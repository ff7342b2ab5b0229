#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/certificates.h"
#include "cli/client.h"
#include "cli/env.h"
#include "cli/output.h"
#include "cli/serve.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

int cmd_serve(struct cli *c)
{
	return serve_main(&c->options) == 0 ? EXIT_OK : EXIT_FAILED;
}

int cmd_env(struct cli *c)
{
	struct error err = {0};
	cleanup_free char *path = NULL;
	cleanup_buf struct buf text = BUF_INIT, out = BUF_INIT;
	if (asprintf(&path, "%s/" FIRST_KEY_FILE, c->options.state_dir) < 0) {
		error_errno(&err, -ENOMEM, "env");
		return cli_fail(c, &err);
	}
	int r = file_read(AT_FDCWD, path, 256, &text);
	if (r == -ENOENT)
		error_set(&err, r, 404, "%s does not exist: no server has run yet on this state directory (start one with `cubicle serve`, or name another with --state.dir)", path);
	else if (r == -EACCES)
		error_set(&err, r, 403, "%s can be read by root only; another key is made by `cubicle key create`", path);
	else if (r < 0)
		error_errno(&err, r, "%s", path);
	struct str key = buf_str(&text), rest;
	str_cut(key, '\n', &key, &rest);
	cleanup_free char *url = options_listen_url(&c->options);
	cleanup_free char *ca = certificates_path(&c->options, CERT_CA), *bundle = certificates_path(&c->options, CERT_BUNDLE);
	cleanup_buf struct buf domain = BUF_INIT;
	if (r == 0 && (!url || !ca || !bundle || options_client_domain(&c->options, &domain) < 0))
		r = error_errno(&err, -ENOMEM, "env");
	struct env e = {.key = key, .url = url, .domain = buf_str(&domain), .tls = *c->options.listen_tls && *c->options.domain};
	if (r == 0 && e.tls && !*c->options.tls_cert) {
		e.ca = access(ca, R_OK) == 0 ? ca : NULL;
		e.bundle = access(bundle, R_OK) == 0 ? bundle : NULL;
	}
	if (r == 0 && env_exports(&out, &e, c->json) < 0)
		error_errno(&err, -ENOMEM, "env");
	if (err.code)
		return cli_fail(c, &err);
	fputs(buf_cstr(&out), stdout);
	return EXIT_OK;
}

struct config_output {
	json_t *all;
	struct table *table;
};

static void add_option(const char *name, const char *value, const char *source, const char *doc, void *arg)
{
	struct config_output *out = arg;
	if (out->all) {
		json_object_set_new(out->all, name, json_pack("{s:s,s:s,s:s}", "value", value, "source", source, "doc", doc));
		return;
	}
	table_add(out->table, str_of(name));
	table_add(out->table, str_of(*value ? value : "\"\""));
	table_add(out->table, str_of(source));
	table_add(out->table, str_of(doc));
}

int cmd_config(struct cli *c)
{
	static const char *const titles[] = {"OPTION", "VALUE", "FROM", "MEANING", NULL};
	cleanup_json json_t *all = c->json ? json_object() : NULL;
	cleanup_table struct table t;
	table_init(&t, titles);
	struct config_output out = {.all = all, .table = &t};
	options_each(&c->options, add_option, &out);
	if (all)
		print_json(all);
	else
		table_print(&t);
	return EXIT_OK;
}

/* Everything linked, run or copied into a template, with its licence. Nothing else is shipped. */
static const struct {
	const char *name, *license, *how;
} parts[] = {
	{"cubicle", "Apache-2.0", "this program"},
	{"glibc", "LGPL-2.1-or-later", "linked; cubicle-init statically, relinkable from its objects"},
	{"jansson", "MIT", "linked"},
	{"OpenSSL 3", "Apache-2.0", "linked"},
	{"SQLite", "public domain", "linked"},
	{"libseccomp", "LGPL-2.1", "linked"},
	{"libmnl", "LGPL-2.1-or-later", "linked"},
	{"libcurl", "curl", "linked"},
	{"libarchive", "BSD-2-Clause", "linked"},
	{"zlib", "Zlib", "linked"},
	{"Zstandard", "BSD-3-Clause", "linked"},
	{"nftables", "GPL-2.0", "run as a program"},
	{"erofs-utils", "GPL-2.0-or-later", "run as a program"},
	{"e2fsprogs", "GPL-2.0", "run as a program"},
	{"mmdebstrap", "MIT", "run as a program"},
	{"acorn", "MIT", "fetched into code-interpreter-v1"},
	{"Node.js", "MIT", "fetched into code-interpreter-v1"},
};

int cmd_version(struct cli *c)
{
	bool licenses = cli_flag(c, "licenses")->set;
	if (c->json) {
		cleanup_json json_t *all = json_pack("{s:s}", "version", CUBICLE_VERSION), *list = json_array();
		for (size_t i = 0; licenses && i < ARRAY_SIZE(parts); i++)
			json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "name", parts[i].name, "license", parts[i].license, "how", parts[i].how));
		if (licenses)
			json_object_set(all, "licenses", list);
		print_json(all);
		return EXIT_OK;
	}
	printf("cubicle " CUBICLE_VERSION "\n");
	if (!licenses)
		return EXIT_OK;
	static const char *const titles[] = {"PART", "LICENCE", "HOW", NULL};
	cleanup_table struct table t;
	table_init(&t, titles);
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		table_add(&t, str_of(parts[i].name));
		table_add(&t, str_of(parts[i].license));
		table_add(&t, str_of(parts[i].how));
	}
	table_print(&t);
	return EXIT_OK;
}
