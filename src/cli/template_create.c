/* `cubicle template create` and `import`: a template of something that there is already. */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/oci_archive.h"
#include "cli/template_source.h"
#include "image/spec.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_MAX = 64 * 1024 };

/* The body's keys by the flags that have them. */
static const struct {
	const char *flag, *key;
} texts[] = {{"start-cmd", "startCmd"}, {"ready-cmd", "readyCmd"}, {"probe-path", "probePath"}, {"user", "user"}, {"workdir", "workdir"}};

static int add_environment(json_t *body, const struct cli *c, struct error *err)
{
	json_t *env = json_array();
	for (size_t i = 0; i < c->n_pairs; i++) {
		cleanup_buf struct buf line = BUF_INIT;
		buf_addf(&line, "%.*s=%.*s", STR_FMT(c->pairs[i].key), STR_FMT(c->pairs[i].value));
		if (json_array_append_new(env, json_stringn(buf_str(&line).p, buf_len(&line))) < 0) {
			json_decref(env);
			return error_set(err, -EINVAL, 400, "--env %.*s: the value is no UTF-8", STR_FMT(c->pairs[i].key));
		}
	}
	if (c->n_pairs)
		json_object_set_new(body, "env", env);
	else
		json_decref(env);
	return 0;
}

/* What the command line says of how the template runs; it wins over what stands in the body. */
static int add_settings(json_t *body, const struct cli *c, struct error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		const struct cli_value *v = cli_flag(c, texts[i].flag);
		if (v->set && json_object_set_new(body, texts[i].key, json_string(v->text)) < 0)
			return error_set(err, -EINVAL, 400, "--%s is no UTF-8", texts[i].flag);
	}
	const struct cli_value *port = cli_flag(c, "probe-port");
	if (port->set)
		json_object_set_new(body, "probePort", json_integer(port->number));
	json_object_set_new(body, "kind", json_string(cli_flag(c, "e2b")->set ? "e2b" : "image"));
	return add_environment(body, c, err);
}

/* Before hours of packing: is there a server, and does it take us? */
static int ask_server(struct client *cl, struct error *err)
{
	return client_call(cl, "GET", "/templates?limit=1", NULL, NULL, NULL, err);
}

static int fail(struct build *b, const struct error *err)
{
	progress_clear(&b->progress);
	int code = cli_fail(b->cli, err);
	return err->code == -EINTR ? EXIT_INTERRUPTED : code;
}

static int build_of(struct build *b, struct template_source *s, struct error *err)
{
	if (add_settings(s->body, b->cli, err) < 0 || build_make(b, err) < 0 || (s->files.fd >= 0 && build_upload(b, s->files.fd, s->files.size, s->files.hash, err) < 0))
		return fail(b, err);
	packed_done(&s->files);
	return build_run(b, s->body);
}

/* The snapshot was made for this build only; what the template needs of it stays. */
static void drop_snapshot(struct build *b, const struct template_source *s)
{
	struct error err = {0};
	char path[128];
	if (!*s->snapshot)
		return;
	snprintf(path, sizeof(path), "/templates/%s", s->snapshot);
	if (cli_flag(b->cli, "no-wait")->set || client_call(b->client, "DELETE", path, NULL, NULL, NULL, &err) < 0)
		fprintf(stderr, "cubicle: the snapshot %s that it is made of stays: `cubicle snapshot delete %s` when it is ready\n", s->snapshot, s->snapshot);
}

int cmd_template_create(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_build struct build b = {.signals = -1};
	cleanup_template_source struct template_source s = {.files = PACKED_NONE};
	int choice = template_source_choose(c, &err);
	if (choice >= 0 && cli_flag(c, "probe-path")->set && !cli_flag(c, "probe-port")->set)
		choice = error_set(&err, -EINVAL, 400, "--probe-path needs --probe-port");
	if (choice < 0) {
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	build_init(&b, &cl, c, c->words[0]);
	if (ask_server(&cl, &err) < 0 || template_source_open(&s, choice, &b, &err) < 0)
		return fail(&b, &err);
	int code = build_of(&b, &s, &err);
	drop_snapshot(&b, &s);
	return code;
}

/* What an export of ours says of size, when no flag says otherwise. */
static void take_sizes(struct build *b, const json_t *config)
{
	struct error ignored = {0};
	struct str label = json_str(json_object_get(json_object_get(config, "Labels"), DESCRIPTION_LABEL));
	cleanup_json json_t *j = label.n ? json_parse(label, LABEL_MAX, DESCRIPTION_LABEL, &ignored) : NULL;
	b->cpu = json_integer_value(json_object_get(j, "cpuCount"));
	b->memory = json_integer_value(json_object_get(j, "memoryMB"));
	b->disk = json_integer_value(json_object_get(j, "diskMB"));
}

static int open_import(struct template_source *s, struct build *b, const char *given, struct error *err)
{
	static const char *const types[] = {[OCI_LAYOUT] = "oci-archive", [OCI_DOCKER] = "docker-archive", [OCI_OTHER] = "rootfs"};
	const char *colon = access(given, F_OK) == 0 ? NULL : strchr(given, ':');
	cleanup_free char *path = str_dup(colon ? str_n(given, (size_t)(colon - given)) : str_of(given));
	cleanup_json json_t *config = NULL;
	enum oci_kind kind;
	s->body = json_object();
	if (!path)
		return error_errno(err, -ENOMEM, "%s", given);
	int r = pack_file(path, true, &b->progress, &s->files, err);
	if (r == 0)
		r = oci_read_config(s->files.fd, colon ? colon + 1 : NULL, &kind, &config, err);
	if (r < 0)
		return r;
	take_sizes(b, config);
	return template_source_files(s, types[kind], colon ? colon + 1 : NULL, err);
}

int cmd_template_import(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_build struct build b = {.signals = -1};
	cleanup_template_source struct template_source s = {.files = PACKED_NONE};
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	build_init(&b, &cl, c, c->words[1]);
	if (ask_server(&cl, &err) < 0 || open_import(&s, &b, c->words[0], &err) < 0)
		return fail(&b, &err);
	return build_of(&b, &s, &err);
}
