#include "image/spec.h"
#include "base/cleanup.h"
#include "io/json.h"

#include <errno.h>
#include <string.h>

enum {
	MAX_REFERENCE = 1024,
	MAX_COMMAND_ARGS = 64,
	MAX_ENV = 512,
	MAX_DOCKERFILE = 1024 * 1024,
	MAX_SECRET = 64 * 1024,
	MAX_SHELL = 64 * 1024,
	MAX_LIST_TEXT = 32 * 1024,
	MAX_PATH = 4095,
	MAX_PORTS = 64,
	HASH = 64,
};

static int refuse(struct error *err, const char *where, const char *what)
{
	return error_set(err, -EINVAL, 400, "%s: %s", where, what);
}

/* A string without NUL of at most max bytes; NULL (absent or null) leaves *to as it is. */
static int take_text(const json_t *j, const char *where, size_t max, const char **to, struct error *err)
{
	if (!j || json_is_null(j))
		return 0;
	struct str s = json_str(j);
	if (!json_is_string(j))
		return refuse(err, where, "must be a string");
	if (memchr(s.p, '\0', s.n))
		return refuse(err, where, "must not contain a NUL byte");
	if (s.n > max)
		return error_set(err, -EINVAL, 400, "%s: longer than %zu bytes", where, max);
	*to = json_string_value(j);
	return 0;
}

static int take_hash(const json_t *j, const char *where, const char **to, struct error *err)
{
	int r = take_text(j, where, HASH, to, err);
	if (r == 0 && *to && (strlen(*to) != HASH || strspn(*to, "0123456789abcdef") != HASH))
		return refuse(err, where, "must be 64 hexadecimal digits in lower case");
	return r;
}

static int take_bool(const json_t *j, const char *where, bool *to, struct error *err)
{
	if (!j || json_is_null(j))
		return 0;
	if (!json_is_boolean(j))
		return refuse(err, where, "must be true or false");
	*to = json_is_true(j);
	return 0;
}

/* An array of strings as a NULL-terminated list; absent: an empty one. */
static int take_texts(const json_t *j, const char *where, size_t most, size_t max, const char ***to, size_t *ret_n, struct error *err)
{
	size_t n = json_array_size(j), i;
	json_t *item;
	if (j && !json_is_null(j) && !json_is_array(j))
		return refuse(err, where, "must be an array of strings");
	if (n > most)
		return error_set(err, -EINVAL, 400, "%s: more than %zu", where, most);
	const char **list = *to = calloc(n + 1, sizeof(*list));
	if (!list)
		return error_errno(err, -ENOMEM, "%s", where);
	json_array_foreach(j, i, item)
	{
		char at[80];
		snprintf(at, sizeof(at), "%.48s[%zu]", where, i);
		int r = json_is_null(item) ? refuse(err, at, "must be a string") : take_text(item, at, max, &list[i], err);
		if (r < 0)
			return r;
	}
	if (ret_n)
		*ret_n = n;
	return 0;
}

static int unknown_key(const json_t *j, const char *where, const char *const *known, struct error *err)
{
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)(uintptr_t)j, key, v)
	{
		const char *const *k = known;
		while (*k && strcmp(*k, key) != 0)
			k++;
		if (!*k)
			return error_set(err, -EINVAL, 400, "%s: '%.64s' is not known", where, key);
	}
	return 0;
}

static int choose(const json_t *j, const char *where, const char *const *names, int *ret, struct error *err)
{
	for (int i = 0; names[i]; i++)
		if (str_is(json_str(j), names[i]) && json_is_string(j)) {
			*ret = i;
			return 0;
		}
	return error_set(err, -EINVAL, 400, "%s: must be one of %s, %s%s%s", where, names[0], names[1], names[2] ? ", " : "", names[2] ? names[2] : "");
}

static int require(const char *text, const char *where, struct error *err)
{
	return text && *text ? 0 : refuse(err, where, "is missing");
}

static int take_registry(struct build_spec *s, const json_t *j, struct error *err)
{
	static const char *const types[] = {"registry", "aws", "gcp", NULL};
	static const struct {
		int type;
		const char *key, *where;
		size_t offset;
	} fields[] = {
		{0, "username", "fromImageRegistry.username", offsetof(struct source_credentials, username)},
		{0, "password", "fromImageRegistry.password", offsetof(struct source_credentials, password)},
		{1, "awsAccessKeyId", "fromImageRegistry.awsAccessKeyId", offsetof(struct source_credentials, aws_access_key_id)},
		{1, "awsSecretAccessKey", "fromImageRegistry.awsSecretAccessKey", offsetof(struct source_credentials, aws_secret_access_key)},
		{1, "awsRegion", "fromImageRegistry.awsRegion", offsetof(struct source_credentials, aws_region)},
		{2, "serviceAccountJson", "fromImageRegistry.serviceAccountJson", offsetof(struct source_credentials, gcp_service_account)},
	};
	static const char *const known[] = {"type", "username", "password", "awsAccessKeyId", "awsSecretAccessKey", "awsRegion", "serviceAccountJson", NULL};
	int type = 0;
	if (!j || json_is_null(j))
		return 0;
	if (!json_is_object(j))
		return refuse(err, "registry", "must be an object");
	int r = unknown_key(j, "registry", known, err);
	if (r == 0)
		r = choose(json_object_get(j, "type"), "registry.type", types, &type, err);
	for (size_t i = 0; i < ARRAY_SIZE(fields) && r == 0; i++) {
		if (fields[i].type != type)
			continue;
		const char **to = (const char **)(void *)((char *)&s->registry + fields[i].offset);
		r = take_text(json_object_get(j, fields[i].key), fields[i].where, MAX_SECRET, to, err);
		if (r == 0)
			r = require(*to, fields[i].where, err);
	}
	s->has_registry = r == 0;
	return r;
}

static int take_source(struct build_spec *s, const json_t *j, struct error *err)
{
	static const char *const types[] = {"oci-archive", "docker-archive", "rootfs", NULL};
	static const enum source_archive kinds[] = {SOURCE_OCI_ARCHIVE, SOURCE_DOCKER_ARCHIVE, SOURCE_ROOTFS};
	static const char *const known[] = {"type", "hash", "name", NULL};
	int type = 0;
	if (!json_is_object(j))
		return refuse(err, "source", "must be an object");
	int r = unknown_key(j, "source", known, err);
	if (r == 0)
		r = choose(json_object_get(j, "type"), "source.type", types, &type, err);
	if (r == 0)
		r = take_hash(json_object_get(j, "hash"), "source.hash", &s->source_hash, err);
	if (r == 0)
		r = require(s->source_hash, "source.hash", err);
	if (r == 0)
		r = take_text(json_object_get(j, "name"), "source.name", MAX_REFERENCE, &s->source_name, err);
	s->source = kinds[type];
	return r;
}

static const char *const step_names[] = {"COPY", "ENV", "RUN", "WORKDIR", "USER"};

const char *spec_step_name(enum spec_step_type type)
{
	return step_names[type];
}

/* How many arguments each may have (e2b.md A.6). */
static bool fits(const struct spec_step *s)
{
	switch (s->type) {
	case SPEC_COPY:
		return s->n_args >= 2 && s->n_args <= 4 && *s->args[1];
	case SPEC_ENV:
		return s->n_args >= 2 && s->n_args % 2 == 0;
	case SPEC_RUN:
	case SPEC_USER:
		return (s->n_args == 1 || s->n_args == 2) && *s->args[0];
	case SPEC_WORKDIR:
		return s->n_args == 1 && *s->args[0];
	}
	return false;
}

/* Errors name the step by its number, counted from 1, as the client counts them. */
static int take_step(struct spec_step *s, size_t number, const json_t *j, struct error *err)
{
	char where[48], field[64];
	snprintf(where, sizeof(where), "step %zu", number);
	if (!json_is_object(j))
		return refuse(err, where, "must be an object");
	struct str type = json_str(json_object_get(j, "type"));
	size_t i = 0;
	while (i < ARRAY_SIZE(step_names) && !str_is(type, step_names[i]))
		i++;
	if (i == ARRAY_SIZE(step_names))
		return error_set(err, -EINVAL, 400, "%s: the type '%.*s' is not known (COPY, ENV, RUN, WORKDIR, USER)", where, (int)MIN(type.n, (size_t)32), type.p);
	s->type = (enum spec_step_type)i;
	snprintf(field, sizeof(field), "%s: args", where);
	int r = take_texts(json_object_get(j, "args"), field, SPEC_MAX_ARGS, SPEC_MAX_TEXT, &s->args, &s->n_args, err);
	if (r == 0 && !fits(s))
		return error_set(err, -EINVAL, 400, "%s: %s cannot have these %zu arguments", where, step_names[i], s->n_args);
	snprintf(field, sizeof(field), "%s: filesHash", where);
	if (r == 0)
		r = take_hash(json_object_get(j, "filesHash"), field, &s->files, err);
	if (r == 0 && (s->files != NULL) != (s->type == SPEC_COPY))
		return refuse(err, field, s->files ? "only COPY has files" : "is missing");
	snprintf(field, sizeof(field), "%s: force", where);
	return r < 0 ? r : take_bool(json_object_get(j, "force"), field, &s->force, err);
}

static int take_steps(struct build_spec *s, const json_t *j, struct error *err)
{
	size_t n = json_array_size(j);
	if (j && !json_is_null(j) && !json_is_array(j))
		return refuse(err, "steps", "must be an array");
	if (n > SPEC_MAX_STEPS)
		return error_set(err, -EINVAL, 400, "steps: more than %d", SPEC_MAX_STEPS);
	s->steps = calloc(n + 1, sizeof(*s->steps));
	if (!s->steps)
		return error_errno(err, -ENOMEM, "steps");
	for (; s->n_steps < n; s->n_steps++) {
		int r = take_step(&s->steps[s->n_steps], s->n_steps + 1, json_array_get(j, s->n_steps), err);
		if (r < 0) {
			s->n_steps++; /* its half is freed, too */
			return r;
		}
	}
	return 0;
}

static int take_login(struct build_spec *s, const char *host, const json_t *j, struct error *err)
{
	static const char *const known[] = {"username", "password", NULL};
	char name[REFERENCE_HOST_MAX];
	uint16_t port;
	struct spec_login *l = &s->logins[s->n_logins];
	if (reference_host(str_of(host), name, &port) < 0)
		return error_set(err, -EINVAL, 400, "dockerfile.registries: '%.100s' is no registry", host);
	if (!json_is_object(j))
		return refuse(err, "dockerfile.registries", "must be an object of objects");
	snprintf(l->registry, sizeof(l->registry), port ? "%s:%u" : "%s", name, port);
	s->n_logins++;
	int r = unknown_key(j, "dockerfile.registries", known, err);
	if (r == 0)
		r = take_text(json_object_get(j, "username"), "dockerfile.registries.username", MAX_SECRET, &l->credentials.username, err);
	if (r == 0)
		r = take_text(json_object_get(j, "password"), "dockerfile.registries.password", MAX_SECRET, &l->credentials.password, err);
	if (r == 0)
		r = require(l->credentials.username, "dockerfile.registries.username", err);
	return r == 0 ? require(l->credentials.password, "dockerfile.registries.password", err) : r;
}

static int take_logins(struct build_spec *s, const json_t *j, struct error *err)
{
	const char *host;
	json_t *one;
	int r = 0;
	if (!j || json_is_null(j))
		return 0;
	if (!json_is_object(j) || json_object_size(j) > SPEC_MAX_LOGINS)
		return refuse(err, "dockerfile.registries", "must be an object of at most 32 registries");
	s->logins = calloc(json_object_size(j) + 1, sizeof(*s->logins));
	if (!s->logins)
		return error_errno(err, -ENOMEM, "dockerfile");
	json_object_foreach((json_t *)(uintptr_t)j, host, one)
	{
		r = take_login(s, host, one, err);
		if (r < 0)
			break;
	}
	return r;
}

const struct source_credentials *spec_login(const struct build_spec *s, struct str reference)
{
	struct reference image;
	for (size_t i = 0; s->n_logins && i < s->n_logins; i++)
		if (reference_parse(reference, &image, NULL) == 0 && strcmp(image.registry, s->logins[i].registry) == 0)
			return &s->logins[i].credentials;
	return NULL;
}

static int take_dockerfile(struct build_spec *s, const json_t *j, struct error *err)
{
	static const char *const known[] = {"text", "context", "args", "target", "registries", NULL};
	if (!json_is_object(j))
		return refuse(err, "dockerfile", "must be an object");
	int r = unknown_key(j, "dockerfile", known, err);
	if (r == 0)
		r = take_text(json_object_get(j, "text"), "dockerfile.text", MAX_DOCKERFILE, &s->dockerfile, err);
	if (r == 0)
		r = require(s->dockerfile, "dockerfile.text", err);
	if (r == 0)
		r = take_hash(json_object_get(j, "context"), "dockerfile.context", &s->context, err);
	if (r == 0)
		r = take_text(json_object_get(j, "target"), "dockerfile.target", MAX_REFERENCE, &s->target, err);
	if (r == 0)
		r = take_logins(s, json_object_get(j, "registries"), err);
	const json_t *args = json_object_get(j, "args");
	if (r < 0 || !args || json_is_null(args))
		return r;
	const char *key, *text = NULL;
	json_t *v;
	if (!json_is_object(args) || json_object_size(args) > MAX_ENV)
		return refuse(err, "dockerfile.args", "must be an object of strings");
	json_object_foreach((json_t *)(uintptr_t)args, key, v)
	{
		r = json_is_string(v) ? take_text(v, "dockerfile.args", MAX_LIST_TEXT, &text, err) : refuse(err, "dockerfile.args", "must be an object of strings");
		if (r < 0)
			return r;
	}
	s->build_args = args;
	return 0;
}

static int take_ports(struct build_spec *s, const json_t *root, struct error *err)
{
	const json_t *list = json_object_get(root, "exposedPorts"), *probe = json_object_get(root, "probePort");
	size_t i;
	json_t *port;
	if (list && !json_is_null(list)) {
		if (!json_is_array(list) || json_array_size(list) > MAX_PORTS)
			return refuse(err, "exposedPorts", "must be an array of ports");
		json_array_foreach(list, i, port)
			if (!json_is_integer(port) || json_integer_value(port) < 1 || json_integer_value(port) > 65535)
				return refuse(err, "exposedPorts", "must be ports from 1 to 65535");
		s->exposed = list;
	}
	if (probe && !json_is_null(probe)) {
		if (!json_is_integer(probe) || json_integer_value(probe) < 1 || json_integer_value(probe) > 65535)
			return refuse(err, "probePort", "must be a port from 1 to 65535");
		s->probe_port = (unsigned)json_integer_value(probe);
	}
	int r = take_text(json_object_get(root, "probePath"), "probePath", 255, &s->probe_path, err);
	if (r == 0 && s->probe_path && (s->probe_path[0] != '/' || strpbrk(s->probe_path, " \t\r\n#")))
		return refuse(err, "probePath", "must be a path that begins with '/'");
	return r;
}

static int take_origin(struct build_spec *s, const json_t *root, struct error *err)
{
	bool base = false;
	const json_t *source = json_object_get(root, "source"), *dockerfile = json_object_get(root, "dockerfile");
	int r = take_text(json_object_get(root, "image"), "image", MAX_REFERENCE, &s->image, err);
	if (r == 0)
		r = take_bool(json_object_get(root, "base"), "base", &base, err);
	if (r < 0)
		return r;
	if ((s->image != NULL) + base + (source && !json_is_null(source)) + (dockerfile && !json_is_null(dockerfile)) != 1)
		return refuse(err, "image", "give exactly one of image, base, source and dockerfile");
	if (s->image)
		return require(s->image, "image", err);
	if (base)
		s->from = SPEC_FROM_BASE;
	else if (source && !json_is_null(source)) {
		s->from = SPEC_FROM_SOURCE;
		return take_source(s, source, err);
	} else {
		s->from = SPEC_FROM_DOCKERFILE;
		return take_dockerfile(s, dockerfile, err);
	}
	return 0;
}

static int take_run(struct build_spec *s, const json_t *root, struct error *err)
{
	size_t n_command = 0, n_args = 0;
	int r = take_text(json_object_get(root, "startCmd"), "startCmd", MAX_SHELL, &s->start_command, err);
	if (r == 0)
		r = take_text(json_object_get(root, "readyCmd"), "readyCmd", MAX_SHELL, &s->ready_command, err);
	if (r == 0)
		r = take_texts(json_object_get(root, "command"), "command", MAX_COMMAND_ARGS, MAX_LIST_TEXT, &s->command, &n_command, err);
	if (r == 0)
		r = take_texts(json_object_get(root, "args"), "args", MAX_COMMAND_ARGS, MAX_LIST_TEXT, &s->args, &n_args, err);
	if (r == 0)
		r = take_texts(json_object_get(root, "env"), "env", MAX_ENV, MAX_LIST_TEXT, &s->env, NULL, err);
	for (const char **e = s->env; r == 0 && e && *e; e++)
		if (!strchr(*e, '=') || **e == '=')
			r = refuse(err, "env", "must be an array of NAME=value");
	if (r == 0)
		r = take_text(json_object_get(root, "user"), "user", 64, &s->user, err);
	if (r == 0)
		r = take_text(json_object_get(root, "workdir"), "workdir", MAX_PATH, &s->workdir, err);
	if (r == 0 && s->workdir && s->workdir[0] != '/')
		r = refuse(err, "workdir", "must be an absolute path");
	s->has_command = n_command > 0;
	s->has_args = n_args > 0;
	/* An empty text says nothing. */
	if (s->start_command && !*s->start_command)
		s->start_command = NULL;
	if (s->ready_command && !*s->ready_command)
		s->ready_command = NULL;
	return r;
}

static int parse(struct build_spec *s, struct str text, struct error *err)
{
	static const char *const kinds[] = {"e2b", "cube", "image", NULL};
	static const char *const known[] = {"kind", "image", "base", "registry", "source", "steps", "dockerfile", "startCmd", "readyCmd", "command", "args", "env",
		"exposedPorts", "probePort", "probePath", "user", "workdir", NULL};
	int kind = 0;
	s->json = json_parse(text, SPEC_MAX, "spec", err);
	if (!s->json)
		return -EINVAL;
	if (!json_is_object(s->json))
		return refuse(err, "spec", "must be an object");
	int r = unknown_key(s->json, "spec", known, err);
	if (r == 0)
		r = choose(json_object_get(s->json, "kind"), "kind", kinds, &kind, err);
	s->kind = (enum spec_kind)kind;
	if (r == 0)
		r = take_origin(s, s->json, err);
	if (r == 0)
		r = take_registry(s, json_object_get(s->json, "registry"), err);
	if (r == 0)
		r = take_steps(s, json_object_get(s->json, "steps"), err);
	if (r == 0 && s->n_steps && s->from == SPEC_FROM_DOCKERFILE)
		r = refuse(err, "steps", "cannot be given together with a Dockerfile");
	if (r == 0)
		r = take_run(s, s->json, err);
	return r < 0 ? r : take_ports(s, s->json, err);
}

int spec_parse(struct str text, struct build_spec *ret, struct error *err)
{
	struct build_spec s = {0};
	int r = parse(&s, text, err);
	if (r < 0) {
		spec_done(&s);
		return r;
	}
	*ret = s;
	return 0;
}

static void wipe(const char *secret)
{
	if (secret)
		explicit_bzero((void *)(uintptr_t)secret, strlen(secret));
}

void spec_done(struct build_spec *s)
{
	wipe(s->registry.password);
	wipe(s->registry.aws_secret_access_key);
	wipe(s->registry.gcp_service_account);
	for (size_t i = 0; i < s->n_logins; i++)
		wipe(s->logins[i].credentials.password);
	free(s->logins);
	for (size_t i = 0; i < s->n_steps; i++)
		free(s->steps[i].args);
	free(s->steps);
	free(s->command);
	free(s->args);
	free(s->env);
	json_decref(s->json);
	*s = (struct build_spec){0};
}
