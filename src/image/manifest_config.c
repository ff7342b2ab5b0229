#include "base/cleanup.h"
#include "image/manifest.h"
#include "io/json.h"

#include <errno.h>

static int bad(struct error *err, const char *what)
{
	return error_set(err, -EINVAL, 502, "the image's configuration is malformed: %s", what);
}

/* A text; absent and null are "". */
static int text(const json_t *from, const char *key, char **ret, struct error *err)
{
	const json_t *j = json_object_get(from, key);
	struct str s = json_str(j);
	if (j && !json_is_string(j) && !json_is_null(j))
		return bad(err, key);
	if (s.n > CONFIG_TEXT_MAX || memchr(s.p, 0, s.n))
		return bad(err, key);
	*ret = str_dup(s);
	return *ret ? 0 : error_set(err, -ENOMEM, 500, "out of memory");
}

static int add(char **list, size_t *n, struct str s, const char *key, struct error *err)
{
	if (s.n > CONFIG_TEXT_MAX || memchr(s.p, 0, s.n))
		return bad(err, key);
	list[*n] = str_dup(s);
	if (!list[*n])
		return error_set(err, -ENOMEM, 500, "out of memory");
	(*n)++;
	return 0;
}

/* A list of texts; absent and null are empty. Old configurations have a single text where a list belongs (Entrypoint). */
static int list(const json_t *from, const char *key, char ***ret, struct error *err)
{
	const json_t *j = json_object_get(from, key), *item;
	size_t i, n = 0, count = json_is_string(j) ? 1 : json_array_size(j);
	if (j && !json_is_string(j) && !json_is_array(j) && !json_is_null(j))
		return bad(err, key);
	if (count > CONFIG_LIST_MAX)
		return error_set(err, -E2BIG, 400, "the image's configuration has more than %d entries in %s", CONFIG_LIST_MAX, key);
	*ret = calloc(count + 1, sizeof(char *));
	if (!*ret)
		return error_set(err, -ENOMEM, 500, "out of memory");
	if (json_is_string(j))
		return add(*ret, &n, json_str(j), key, err);
	json_array_foreach(j, i, item) {
		if (!json_is_string(item))
			return bad(err, key);
		int r = add(*ret, &n, json_str(item), key, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The keys of an object, with `values` followed by their values. */
static int keys(json_t *from, const char *name, bool values, char ***ret, struct error *err)
{
	json_t *j = json_object_get(from, name), *value;
	const char *key;
	size_t n = 0, count = json_object_size(j);
	if (j && !json_is_object(j) && !json_is_null(j))
		return bad(err, name);
	if (count > CONFIG_LIST_MAX)
		return error_set(err, -E2BIG, 400, "the image's configuration has more than %d entries in %s", CONFIG_LIST_MAX, name);
	*ret = calloc(2 * count + 1, sizeof(char *));
	if (!*ret)
		return error_set(err, -ENOMEM, 500, "out of memory");
	json_object_foreach(j, key, value) {
		int r = add(*ret, &n, str_of(key), name, err);
		if (r == 0 && values)
			r = json_is_string(value) ? add(*ret, &n, json_str(value), name, err) : bad(err, name);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Entries without a name or '=' are nothing to a program, and of a name given twice the last one counts. */
static void tidy_env(char **env)
{
	size_t n = 0;
	for (size_t i = 0; env[i]; i++) {
		const char *equal = strchr(env[i], '=');
		size_t same = 0, length = equal ? (size_t)(equal - env[i]) + 1 : 0;
		if (length < 2) {
			free(env[i]);
			continue;
		}
		while (same < n && strncmp(env[same], env[i], length) != 0)
			same++;
		if (same < n)
			free(env[same]);
		else
			n++;
		env[same] = env[i];
	}
	env[n] = NULL;
}

static int read_diff_ids(const json_t *j, struct source_layer *layers, size_t n, struct error *err)
{
	const json_t *ids = json_object_get(json_object_get(j, "rootfs"), "diff_ids"), *id;
	size_t i;
	if (json_array_size(ids) != n)
		return error_set(err, -EBADMSG, 502, "the image's configuration names %zu layers, its manifest %zu", json_array_size(ids), n);
	json_array_foreach(ids, i, id) {
		struct str s = json_str(id);
		if (!reference_digest_valid(s))
			return bad(err, "diff_ids");
		memcpy(layers[i].diff_id, s.p, s.n);
		layers[i].diff_id[s.n] = 0;
	}
	return 0;
}

static int read_config(json_t *j, struct source_config *c, struct error *err)
{
	json_t *run = json_object_get(j, "config");
	int r = text(j, "architecture", &c->architecture, err);
#define READ(call) r = r < 0 ? r : (call)
	READ(text(j, "variant", &c->variant, err));
	READ(text(j, "os", &c->os, err));
	READ(text(run, "User", &c->user, err));
	READ(text(run, "WorkingDir", &c->workdir, err));
	READ(text(run, "StopSignal", &c->stop_signal, err));
	READ(list(run, "Env", &c->env, err));
	READ(list(run, "Entrypoint", &c->entrypoint, err));
	READ(list(run, "Cmd", &c->cmd, err));
	READ(list(run, "Shell", &c->shell, err));
	READ(list(run, "OnBuild", &c->on_build, err));
	READ(keys(run, "ExposedPorts", false, &c->exposed_ports, err));
	READ(keys(run, "Volumes", false, &c->volumes, err));
	READ(keys(run, "Labels", true, &c->labels, err));
#undef READ
	if (r == 0)
		tidy_env(c->env);
	return r;
}

int manifest_config(struct str json, struct source_layer *layers, size_t n_layers, struct source_config *ret, struct error *err)
{
	struct source_config c = {0};
	cleanup_json json_t *j = json_parse(json, CONFIG_MAX, "the image's configuration", err);
	if (!j)
		return -EINVAL;
	int r = json_is_object(j) ? read_diff_ids(j, layers, n_layers, err) : bad(err, "it is no object");
	if (r == 0)
		r = read_config(j, &c, err);
	if (r < 0) {
		source_config_done(&c);
		return r;
	}
	*ret = c;
	return 0;
}

int source_config_empty(struct source_config *c)
{
	struct error none = {0};
	json_t *j = json_object();
	*c = (struct source_config){0};
	int r = j ? read_config(j, c, &none) : -ENOMEM;
	json_decref(j);
	if (r < 0)
		source_config_done(c);
	return r;
}

static void free_list(char **all)
{
	for (size_t i = 0; all && all[i]; i++)
		free(all[i]);
	free(all);
}

void source_config_done(struct source_config *c)
{
	char *texts[] = {c->architecture, c->variant, c->os, c->user, c->workdir, c->stop_signal};
	char **lists[] = {c->env, c->entrypoint, c->cmd, c->shell, c->on_build, c->exposed_ports, c->volumes, c->labels};
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		free(texts[i]);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		free_list(lists[i]);
	*c = (struct source_config){0};
}
