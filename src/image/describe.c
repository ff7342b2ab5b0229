#include "image/describe.h"
#include "base/cleanup.h"
#include "image/spec.h"
#include "image/steps.h"
#include "io/json.h"

#include <errno.h>
#include <string.h>

/* The limits of a description (node/templates.h). */
enum { MAX_SERVICES = 4, MAX_ARGS = 64, MAX_COMMAND = 4096, MAX_DESCRIPTION = 32768, MAX_PATH = 1023 };

bool describe_only_waits(const char *ready_command)
{
	struct str s = str_trim(str_of(ready_command));
	if (!str_starts(s, STR("sleep ")))
		return false;
	s = str_trim(str_from(s, 6));
	for (size_t i = 0; i < s.n; i++)
		if (!strchr("0123456789.", s.p[i]))
			return false;
	return s.n > 0;
}

static json_t *env_json(const struct env *env)
{
	json_t *j = json_object();
	for (size_t i = 0; i < env->n; i++)
		json_object_set_new(j, env->vars[i].name, json_string(env->vars[i].value));
	return j;
}

static int command_json(const char *const *argv, const char *what, json_t **ret, struct error *err)
{
	size_t bytes = 0, n = 0;
	cleanup_json json_t *j = json_array();
	for (; argv[n]; n++) {
		bytes += strlen(argv[n]) + 1;
		if (json_array_append_new(j, json_string(argv[n])) < 0)
			return error_set(err, -EINVAL, 400, "%s: argument %zu is no UTF-8", what, n);
	}
	if (n > MAX_ARGS)
		return error_set(err, -E2BIG, 400, "%s: more than %d arguments", what, MAX_ARGS);
	if (bytes > MAX_COMMAND)
		return error_set(err, -E2BIG, 400, "%s: longer than %d bytes", what, MAX_COMMAND);
	*ret = steal_pointer(&j);
	return 0;
}

static int shell_json(const struct describe *d, const char *command, const char *what, json_t **ret, struct error *err)
{
	cleanup_buf struct buf line = BUF_INIT;
	if (steps_shell_line(&d->config->env, command, &line) < 0)
		return error_errno(err, -ENOMEM, "%s", what);
	const char *const argv[] = {d->shell, "-l", "-c", buf_cstr(&line), NULL};
	return command_json(argv, what, ret, err);
}

/* The service in front, because the ready command has its surroundings; those of the base that it does not replace behind it. */
static int add_service(const json_t *base, const struct describe *d, json_t *to, struct error *err)
{
	cleanup_json json_t *command = NULL, *services = json_array();
	size_t i;
	json_t *s;
	int r = d->start ? command_json(d->start, "the command that starts with every sandbox", &command, err) : shell_json(d, d->start_command, "startCmd", &command, err);
	if (r < 0)
		return r;
	json_t *service = json_pack("{s:s, s:O, s:s, s:b}", "name", "start", "command", command, "user", d->config->user, "restart", 0);
	if (*d->config->workdir)
		json_object_set_new(service, "workdir", json_string(d->config->workdir));
	if (!d->env_for_all && d->config->env.n)
		json_object_set_new(service, "env", env_json(&d->config->env));
	json_array_append_new(services, service);
	json_array_foreach(json_object_get(base, "services"), i, s)
		if (!str_is(json_str(json_object_get(s, "name")), "start"))
			json_array_append(services, s);
	if (!service || json_array_size(services) > MAX_SERVICES)
		return error_set(err, -E2BIG, 400, "the base has %d programs that start with every sandbox already", MAX_SERVICES);
	json_object_set(to, "services", services);
	return 0;
}

static void take(const json_t *from, const char *const *keys, json_t *to)
{
	for (; from && *keys; keys++)
		if (json_object_get(from, *keys))
			json_object_set(to, *keys, json_object_get(from, *keys));
}

/*
 * What an export says of itself in a label (cli/oci_archive.h), for a build that has no other base: what runs in every sandbox and how that gets ready. Anybody can write such a label, so it is
 * taken for no more than an ENTRYPOINT, and node checks it with the rest of the description. NULL when there is none.
 */
static json_t *exported(const struct build_config *config)
{
	static const char *const keys[] = {"services", "ready", "probe", "wait_ready", NULL};
	for (size_t i = 0; config->labels && config->labels[i] && config->labels[i + 1]; i += 2) {
		if (strcmp(config->labels[i], DESCRIPTION_LABEL) != 0)
			continue;
		cleanup_json json_t *said = json_parse(str_of(config->labels[i + 1]), MAX_DESCRIPTION, DESCRIPTION_LABEL, NULL);
		json_t *taken = json_object();
		take(said, keys, taken);
		return taken;
	}
	return NULL;
}

static int add_ready(const struct describe *d, json_t *to, struct error *err)
{
	cleanup_json json_t *ready = NULL;
	bool has_services = json_object_get(to, "services") != NULL;
	int r = 0;
	if (d->ready_command && has_services && !describe_only_waits(d->ready_command)) {
		r = shell_json(d, d->ready_command, "readyCmd", &ready, err);
		if (r == 0)
			json_object_set(to, "ready", ready);
	}
	if (r == 0 && d->probe_port && has_services) {
		json_t *probe = json_pack("{s:i, s:s*}", "port", (int)d->probe_port, "path", d->probe_path);
		json_object_set_new(to, "probe", probe);
	}
	return r;
}

static int add_layers(const struct stack *s, json_t *to)
{
	json_t *layers = json_array();
	for (size_t i = 0; i < s->n; i++)
		json_array_append_new(layers, json_pack("{s:s, s:I}", "file", s->layers[i].file, "size", (json_int_t)s->layers[i].size));
	return json_object_set_new(to, "layers", layers);
}

int describe(const struct build *b, const struct describe *d, json_t **ret, bool *ret_probe, struct error *err)
{
	static const char *const keys[] = {"isolation", "nested_userns", "no_setuid", "services", "ready", "probe", "wait_ready", NULL};
	cleanup_json json_t *j = json_object(), *label = b->base ? NULL : exported(d->config);
	/* What goes on being true. */
	const json_t *base = b->base ? b->base : label;
	bool starts = d->start || d->start_command;
	/* ${x%?} may cut a character. */
	for (size_t i = 0; i < d->config->env.n; i++)
		if (!str_is_utf8(str_of(d->config->env.vars[i].name)) || !str_is_utf8(str_of(d->config->env.vars[i].value)))
			return error_set(err, -EINVAL, 400, "the variable '%.64s' is no UTF-8", d->config->env.vars[i].name);
	if (strlen(d->config->workdir) > MAX_PATH)
		return error_set(err, -ENAMETOOLONG, 400, "the working directory is longer than %d bytes", MAX_PATH);
	if (b->cpu_count)
		json_object_set_new(j, "cpuCount", json_integer(b->cpu_count));
	if (b->memory_mb)
		json_object_set_new(j, "memoryMB", json_integer(b->memory_mb));
	if (b->disk_mb)
		json_object_set_new(j, "diskMB", json_integer(b->disk_mb));
	if (add_layers(d->stack, j) < 0)
		return error_errno(err, -ENOMEM, "the description");
	json_object_set_new(j, "user", json_string(d->config->user));
	if (*d->config->workdir)
		json_object_set_new(j, "workdir", json_string(d->config->workdir));
	take(base, keys, j);
	if (d->env_for_all && d->config->env.n)
		json_object_set_new(j, "env", env_json(&d->config->env));
	else if (!d->env_for_all && json_object_get(b->base, "env"))
		json_object_set(j, "env", json_object_get(b->base, "env"));
	int r = starts ? add_service(base, d, j, err) : 0;
	if (r == 0)
		r = add_ready(d, j, err);
	if (r < 0)
		return r;
	bool waits = json_object_get(j, "services") && (starts || d->ready_command || d->probe_port);
	if (waits)
		json_object_set_new(j, "wait_ready", json_true());
	*ret_probe = json_is_true(json_object_get(j, "wait_ready"));
	*ret = steal_pointer(&j);
	return 0;
}
