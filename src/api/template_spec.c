#include "api/template_request.h"
#include "base/cleanup.h"
#include "image/spec.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* From bodies to specifications of builds. What stands in a body is taken over by reference: it lives as long as somebody needs it. */

enum {
	STEPS_MAX = SPEC_MAX_STEPS,
	LIST_MAX = 256,
	ARGS_MAX = SPEC_MAX_ARGS, /* of a step */
	TEXT_MAX = SPEC_MAX_TEXT,
	PORTS_MAX = 64,
	COMMAND_MAX = 64,
	DNS_MAX = 3,           /* as in resolv.conf(5) */
};

static int no_memory(struct error *err)
{
	return error_set(err, -ENOMEM, 503, "the server is out of memory");
}

static int not_served(struct error *err, const char *field)
{
	return error_set(err, -EOPNOTSUPP, 501, "%s is not implemented by this server", field);
}

static int put(json_t *to, const char *key, json_t *value, struct error *err)
{
	return json_object_set_new(to, key, value) < 0 ? no_memory(err) : 0;
}

/* A text of the body under the same name; 1, 0 = absent, -errno. An empty one is none. */
static int take_text(const json_t *body, const char *name, json_t *to, struct error *err)
{
	struct str text;
	int r = field_str(body, name, NULL, &text, err);
	if (r <= 0 || !text.n)
		return r < 0 ? r : 0;
	if (text.n > TEXT_MAX || str_chr(text, 0) >= 0)
		return error_set(err, -EINVAL, 400, "%s must be a text of at most %d bytes without NUL", name, TEXT_MAX);
	r = put(to, name, json_incref(json_object_get(body, name)), err);
	return r < 0 ? r : 1;
}

/* A list of texts. `pairs`: of NAME=value. */
static int take_list(const json_t *body, const char *name, size_t most, bool pairs, json_t *to, struct error *err)
{
	json_t *list, *item;
	size_t i;
	int r = field_array(body, name, NULL, &list, err);
	if (r <= 0)
		return r;
	if (json_array_size(list) > most)
		return error_set(err, -EINVAL, 400, "%s: more than %zu", name, most);
	json_array_foreach(list, i, item) {
		struct str text = json_str(item);
		if (!json_is_string(item) || text.n > TEXT_MAX || str_chr(text, 0) >= 0)
			return error_set(err, -EINVAL, 400, "%s[%zu] must be a text of at most %d bytes without NUL", name, i, TEXT_MAX);
		if (pairs && str_chr(text, '=') <= 0)
			return error_set(err, -EINVAL, 400, "%s[%zu] must be NAME=value", name, i);
	}
	if (!json_array_size(list))
		return 0;
	r = put(to, name, json_incref(list), err);
	return r < 0 ? r : 1;
}

static bool is_port(const json_t *j)
{
	return json_is_integer(j) && json_integer_value(j) >= 1 && json_integer_value(j) <= 65535;
}

/* exposedPorts, probePort and probePath. Who names no port to be probed means the first that he exposes, unless that is envd's. */
static int take_probe(const json_t *body, bool first, json_t *to, struct error *err)
{
	enum { ENVD_PORT = 49983 };
	json_t *ports = NULL, *port = json_object_get(body, "probePort");
	size_t i;
	const json_t *item;
	int r = field_array(body, "exposedPorts", NULL, &ports, err);
	if (r < 0)
		return r;
	if (r > 0 && json_array_size(ports) > PORTS_MAX)
		return error_set(err, -EINVAL, 400, "exposedPorts: more than %d", PORTS_MAX);
	json_array_foreach(ports, i, item)
		if (!is_port(item))
			return error_set(err, -EINVAL, 400, "exposedPorts[%zu] must be a port", i);
	if (port && !json_is_null(port) && !is_port(port))
		return error_set(err, -EINVAL, 400, "probePort must be a port");
	if ((!port || json_is_null(port)) && first && json_array_size(ports) && json_integer_value(json_array_get(ports, 0)) != ENVD_PORT)
		port = json_array_get(ports, 0);
	if (json_array_size(ports) && (r = put(to, "exposedPorts", json_incref(ports), err)) < 0)
		return r;
	if (!is_port(port))
		return 0;
	r = put(to, "probePort", json_incref(port), err);
	struct str path = STR("");
	if (r == 0)
		r = field_str(body, "probePath", NULL, &path, err);
	if (r < 0)
		return r;
	bool plain = path.n <= 1024 && (!path.n || path.p[0] == '/');
	for (size_t k = 0; k < path.n; k++)
		plain &= path.p[k] > ' ' && path.p[k] < 127;
	if (!plain)
		return error_set(err, -EINVAL, 400, "probePath must be a path that begins with '/'");
	return put(to, "probePath", path.n ? json_incref(json_object_get(body, "probePath")) : json_string("/health"), err);
}

/* E2B's steps */

struct step_kind {
	const char *type, *takes;
	size_t min, max;
};
static const struct step_kind step_kinds[] = {
	{"COPY", "source, destination, owner and mode", 2, 4},
	{"ENV", "names and values", 2, ARGS_MAX},
	{"RUN", "a command and a user", 1, 2},
	{"WORKDIR", "a directory", 1, 1},
	{"USER", "a name", 1, 2},
};

static int parse_step(const json_t *step, json_t *ret, struct error *err)
{
	const struct step_kind *kind = NULL;
	struct str type, hash;
	json_t *args;
	char files[65];
	bool force = false;
	int r = field_str(step, "type", NULL, &type, err);
	if (r <= 0)
		return r < 0 ? r : error_set(err, -EINVAL, 400, "type is missing");
	for (size_t i = 0; i < ARRAY_SIZE(step_kinds); i++)
		if (str_is(type, step_kinds[i].type))
			kind = &step_kinds[i];
	if (!kind)
		return error_set(err, -EINVAL, 400, "type: \"%.*s\" is none of COPY, ENV, RUN, WORKDIR and USER", (int)MIN(type.n, (size_t)32), type.p);
	r = take_list(step, "args", ARGS_MAX, false, ret, err);
	if (r < 0)
		return r;
	args = json_object_get(ret, "args");
	size_t n = json_array_size(args);
	if (n < kind->min || n > kind->max || (str_is(type, "ENV") && n % 2))
		return error_set(err, -EINVAL, 400, "args: %s takes %s", kind->type, kind->takes);
	r = field_str(step, "filesHash", NULL, &hash, err);
	if (r == 0 && str_is(type, "COPY"))
		return error_set(err, -EINVAL, 400, "filesHash is missing");
	if (r > 0 && (r = decode_files_hash(hash, files, err)) == 0)
		r = put(ret, "filesHash", json_string(files), err);
	if (r >= 0)
		r = field_bool(step, "force", NULL, &force, err);
	if (r >= 0)
		r = put(ret, "force", json_boolean(force), err);
	return r < 0 ? r : put(ret, "type", json_string(kind->type), err);
}

static int take_steps(const json_t *body, json_t *to, struct error *err)
{
	json_t *list, *steps = json_array();
	size_t i;
	const json_t *item;
	int r = put(to, "steps", steps, err);
	if (r == 0)
		r = field_array(body, "steps", NULL, &list, err);
	if (r <= 0)
		return r;
	if (json_array_size(list) > STEPS_MAX)
		return error_set(err, -EINVAL, 400, "steps: more than %d", STEPS_MAX);
	json_array_foreach(list, i, item) {
		json_t *step = json_object();
		char where[32];
		if (json_array_append_new(steps, step) < 0)
			return no_memory(err);
		snprintf(where, sizeof(where), "steps[%zu]", i);
		r = json_is_object(item) ? parse_step(item, step, err) : error_set(err, -EINVAL, 400, "must be an object");
		if (r < 0)
			return error_wrap(err, r, "%s", where);
	}
	return 0;
}

/* Sources */

static int take_image(struct str text, const char *field, json_t *spec, struct error *err)
{
	struct reference parsed;
	int r = reference_parse(str_trim(text), &parsed, err);
	if (r < 0)
		return error_wrap(err, r, "%s", field);
	return put(spec, "image", json_stringn(str_trim(text).p, str_trim(text).n), err);
}

static int take_secret(const json_t *from, const char *name, json_t *to, struct error *err)
{
	int r = take_text(from, name, to, err);
	return r == 0 ? error_set(err, -EINVAL, 400, "fromImageRegistry.%s is missing", name) : r < 0 ? error_wrap(err, r, "fromImageRegistry") : 0;
}

static int take_registry(const json_t *body, json_t *spec, struct error *err)
{
	static const struct {
		const char *type, *members[3];
	} forms[] = {
		{"registry", {"username", "password"}},
		{"aws", {"awsAccessKeyId", "awsSecretAccessKey", "awsRegion"}},
		{"gcp", {"serviceAccountJson"}},
	};
	json_t *given;
	struct str type = STR("");
	int r = field_object(body, "fromImageRegistry", NULL, &given, err);
	if (r <= 0)
		return r;
	if (!json_object_get(spec, "image"))
		return error_set(err, -EINVAL, 400, "fromImageRegistry needs fromImage");
	if (field_str(given, "type", NULL, &type, err) < 0)
		return error_wrap(err, -EINVAL, "fromImageRegistry");
	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		if (!str_is(type, forms[i].type))
			continue;
		json_t *to = json_object();
		r = put(spec, "registry", to, err);
		if (r == 0)
			r = put(to, "type", json_string(forms[i].type), err);
		for (size_t k = 0; r == 0 && k < ARRAY_SIZE(forms[i].members) && forms[i].members[k]; k++)
			r = take_secret(given, forms[i].members[k], to, err);
		return r;
	}
	return error_set(err, -EINVAL, 400, "fromImageRegistry.type must be \"registry\", \"aws\" or \"gcp\"");
}

/* Ours: what was uploaded is an image, or a tree. */
static int take_archive(const json_t *given, json_t *spec, struct error *err)
{
	struct str type = STR(""), hash = STR("");
	char files[65];
	json_t *to = json_object();
	int r = put(spec, "source", to, err);
	if (r == 0)
		r = field_str(given, "type", NULL, &type, err);
	if (r >= 0)
		r = field_str(given, "hash", NULL, &hash, err);
	if (r < 0)
		return error_wrap(err, r, "source");
	if (!str_is(type, "oci-archive") && !str_is(type, "docker-archive") && !str_is(type, "rootfs"))
		return error_set(err, -EINVAL, 400, "source.type must be \"oci-archive\", \"docker-archive\" or \"rootfs\"");
	if (decode_files_hash(hash, files, err) < 0)
		return error_wrap(err, -EINVAL, "source.hash");
	r = put(to, "type", json_incref(json_object_get(given, "type")), err);
	if (r == 0)
		r = put(to, "hash", json_string(files), err);
	/* One of several images. */
	if (r == 0)
		r = take_text(given, "name", to, err);
	return r < 0 ? error_wrap(err, r, "source") : 0;
}

static int take_build_args(const json_t *given, json_t *to, struct error *err)
{
	json_t *args, *value;
	const char *name;
	int r = field_object(given, "args", NULL, &args, err);
	if (r <= 0)
		return r;
	json_object_foreach(args, name, value)
		if (!json_is_string(value) || str_chr(json_str(value), 0) >= 0)
			return error_set(err, -EINVAL, 400, "args.%.64s must be a text without NUL", name);
	return put(to, "args", json_incref(args), err);
}

/* Who pulls the images that it names: {"host[:port]": {"username", "password"}}; which hosts there are is the builder's to check. */
static int take_registries(const json_t *given, json_t *to, struct error *err)
{
	json_t *registries, *one, *made = json_object();
	const char *host;
	int r = field_object(given, "registries", NULL, &registries, err);
	if (r <= 0) {
		json_decref(made);
		return r;
	}
	r = put(to, "registries", made, err);
	json_object_foreach(registries, host, one)
	{
		json_t *login = json_object();
		r = r == 0 ? put(made, host, login, err) : r;
		if (r == 0 && !json_is_object(one))
			r = error_set(err, -EINVAL, 400, "registries.%.100s must be an object", host);
		if (r == 0)
			r = take_secret(one, "username", login, err);
		if (r == 0)
			r = take_secret(one, "password", login, err);
		if (r < 0)
			break;
	}
	return r;
}

static int take_dockerfile(const json_t *given, json_t *spec, struct error *err)
{
	struct str context = STR("");
	char files[65];
	struct str text;
	json_t *to = json_object();
	int r = put(spec, "dockerfile", to, err);
	if (r == 0)
		r = field_str(given, "text", NULL, &text, err);
	if (r == 0 || (r > 0 && str_chr(text, 0) >= 0))
		r = error_set(err, -EINVAL, 400, "text must be the text of a Dockerfile");
	if (r > 0)
		r = put(to, "text", json_incref(json_object_get(given, "text")), err);
	if (r == 0)
		r = field_str(given, "context", NULL, &context, err);
	if (r > 0 && (r = decode_files_hash(context, files, err)) == 0)
		r = put(to, "context", json_string(files), err);
	if (r >= 0)
		r = take_build_args(given, to, err);
	if (r >= 0)
		r = take_text(given, "target", to, err);
	if (r >= 0)
		r = take_registries(given, to, err);
	return r < 0 ? error_wrap(err, r, "dockerfile") : 0;
}

static int take_base(struct str text, struct build_args *a, struct error *err)
{
	int r = decode_template_reference(text, &a->base, err);
	a->has_base = true;
	return r < 0 ? error_wrap(err, r, "fromTemplate") : put(a->spec, "base", json_true(), err);
}

static int take_source(const json_t *body, struct build_args *a, struct error *err)
{
	static const char *const names[] = {"fromImage", "fromTemplate", "source", "dockerfile"};
	const char *name = NULL;
	json_t *given = NULL;
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		json_t *j = json_object_get(body, names[i]);
		if (!j || json_is_null(j) || (json_is_string(j) && !json_string_length(j)))
			continue;
		name = names[i];
		given = j;
		n++;
	}
	if (n != 1)
		return error_set(err, -EINVAL, 400, "exactly one of fromImage and fromTemplate is needed (or source, or dockerfile)");
	bool text = name == names[0] || name == names[1];
	if (text ? !json_is_string(given) : !json_is_object(given))
		return error_set(err, -EINVAL, 400, "%s must be %s", name, text ? "a text" : "an object");
	return name == names[0] ? take_image(json_str(given), name, a->spec, err) : name == names[1] ? take_base(json_str(given), a, err) :
		name == names[2] ? take_archive(given, a->spec, err) : take_dockerfile(given, a->spec, err);
}

/* What an image says of itself is kept for "image", which is what archives and Dockerfiles are unless they shall be E2B's. */
static int take_kind(const json_t *body, json_t *spec, struct error *err)
{
	bool foreign = json_object_get(spec, "source") || json_object_get(spec, "dockerfile");
	struct str kind = foreign ? STR("image") : STR("e2b");
	int r = field_str(body, "kind", NULL, &kind, err);
	if (r < 0)
		return r;
	if (!str_is(kind, "image") && !str_is(kind, "e2b"))
		return error_set(err, -EINVAL, 400, "kind must be \"e2b\" or \"image\"");
	return put(spec, "kind", json_stringn(kind.p, kind.n), err);
}

/* What is said instead of an image's own words. */
static int take_overrides(const json_t *body, json_t *spec, struct error *err)
{
	static const char *const of_images[] = {"command", "args", "env", "exposedPorts", "probePort", "probePath"};
	bool image = str_is(json_str(json_object_get(spec, "kind")), "image");
	for (size_t i = 0; !image && i < ARRAY_SIZE(of_images); i++) {
		const json_t *j = json_object_get(body, of_images[i]);
		if (j && !json_is_null(j))
			return error_set(err, -EINVAL, 400, "%s needs kind \"image\"", of_images[i]);
	}
	int r = take_text(body, "user", spec, err);
	if (r >= 0)
		r = take_text(body, "workdir", spec, err);
	if (r >= 0)
		r = take_list(body, "command", COMMAND_MAX, false, spec, err);
	if (r >= 0)
		r = take_list(body, "args", COMMAND_MAX, false, spec, err);
	if (r >= 0)
		r = take_list(body, "env", LIST_MAX, true, spec, err);
	return r < 0 ? r : take_probe(body, false, spec, err);
}

/* For the node, which has to know: not part of the specification. */
static int take_isolation(const json_t *body, struct build_args *a, struct error *err)
{
	static const char *const known[] = {"auto", "namespace", "microvm"};
	struct str given;
	int r = field_str(body, "isolation", NULL, &given, err);
	for (size_t i = 0; r > 0 && i < ARRAY_SIZE(known); i++)
		if (str_is(given, known[i]))
			a->isolation = known[i];
	return r > 0 && !a->isolation ? error_set(err, -EINVAL, 400, "isolation must be \"auto\", \"namespace\" or \"microvm\"") : r;
}

/* The builder's own reading of it has the last word, while the client can still be told. */
static int check_spec(const json_t *spec, struct error *err)
{
	cleanup_spec struct build_spec parsed = {0};
	cleanup_free char *text = json_dumps(spec, JSON_COMPACT);
	if (!text)
		return no_memory(err);
	size_t n = strlen(text);
	int r = n > BUILD_SPEC_MAX ? error_set(err, -EFBIG, 400, "the build is longer than %d bytes", BUILD_SPEC_MAX) : spec_parse(str_of(text), &parsed, err);
	explicit_bzero(text, n);
	return r;
}

void build_args_done(struct build_args *a)
{
	json_decref(a->spec);
}

int build_args_parse(const json_t *body, struct build_args *a, struct error *err)
{
	*a = (struct build_args){.spec = json_object()};
	if (!a->spec)
		return no_memory(err);
	int r = take_source(body, a, err);
	if (r == 0)
		r = take_registry(body, a->spec, err);
	if (r >= 0)
		r = take_kind(body, a->spec, err);
	if (r >= 0)
		r = take_steps(body, a->spec, err);
	if (r >= 0 && json_object_get(a->spec, "dockerfile") && json_array_size(json_object_get(a->spec, "steps")))
		r = error_set(err, -EINVAL, 400, "steps cannot go with a dockerfile");
	if (r >= 0)
		r = take_text(body, "startCmd", a->spec, err);
	if (r >= 0)
		r = take_text(body, "readyCmd", a->spec, err);
	if (r >= 0)
		r = take_overrides(body, a->spec, err);
	if (r >= 0)
		r = take_isolation(body, a, err);
	if (r >= 0)
		r = field_bool(body, "force", NULL, &a->force, err);
	return r < 0 ? r : check_spec(a->spec, err);
}

bool build_args_is_e2b_base(const struct build_args *a)
{
	struct str image = json_str(json_object_get(a->spec, "image"));
	return (str_is(image, "e2bdev/base") || str_is(image, "e2bdev/base:latest")) && !json_object_get(a->spec, "registry");
}

json_t *build_spec_of_image(const char *image)
{
	return json_pack("{s:s,s:s}", "kind", "image", "image", image);
}

/* Cube's */

bool is_cube_alias(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		bool fits = (s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] == '-' && i > 0);
		if (!fits)
			return false;
	}
	return s.n >= 1 && s.n <= 64 && !str_starts(s, STR("tpl-")) && !str_starts(s, STR("snap-"));
}

/* What Cube makes of a name: without path and tag; nothing when that is no alias. */
static void cube_name(struct str name, char to[TEMPLATE_REFERENCE_MAX + 1])
{
	name = str_trim(name);
	for (size_t i = name.n; i-- > 0;)
		if (name.p[i] == '/') {
			name = str_from(name, i + 1);
			break;
		}
	for (size_t i = name.n; i-- > 0;)
		if (name.p[i] == ':') {
			name.n = i;
			break;
		}
	to[0] = 0;
	if (is_cube_alias(name))
		snprintf(to, TEMPLATE_REFERENCE_MAX + 1, "%.*s", STR_FMT(name));
}

/* "1G", "512Mi", "10GB": MiB. */
static int parse_size(struct str text, int64_t *ret)
{
	static const struct {
		char unit;
		int shift; /* to MiB */
	} units[] = {{'M', 0}, {'G', 10}, {'T', 20}};
	size_t digits = 0;
	uint64_t n;
	while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
		digits++;
	struct str unit = str_from(text, digits);
	if (digits > 9 || str_to_u64(str_n(text.p, digits), &n) < 0 || !unit.n || !(unit.n == 1 || str_is(str_from(unit, 1), "i") || str_is(str_from(unit, 1), "B") || str_is(str_from(unit, 1), "iB")))
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++)
		if (unit.p[0] == units[i].unit) {
			*ret = (int64_t)(n << units[i].shift);
			return 0;
		}
	return -EINVAL;
}

static int parse_cube_sizes(const json_t *body, struct template_args *a, struct error *err)
{
	enum { MILLICORES = 1000, CPU_MOST = 256, MEMORY_LEAST = 64, SIZE_MOST = 1048576 };
	struct str size;
	int64_t cpu = 0;
	int r = field_int(body, "cpu", NULL, &cpu, err);
	if (r > 0 && (cpu < 1 || cpu > CPU_MOST * MILLICORES))
		r = error_set(err, -EINVAL, 400, "cpu must be 1 to %d thousandths of a processor", CPU_MOST * MILLICORES);
	a->cpu_count = (cpu + MILLICORES - 1) / MILLICORES;
	if (r >= 0)
		r = field_int(body, "memory", NULL, &a->memory_mb, err);
	if (r > 0 && (a->memory_mb < MEMORY_LEAST || a->memory_mb > SIZE_MOST))
		r = error_set(err, -EINVAL, 400, "memory must be %d to %d MiB", MEMORY_LEAST, SIZE_MOST);
	if (r >= 0)
		r = field_str(body, "writableLayerSize", NULL, &size, err);
	if (r > 0 && (parse_size(str_trim(size), &a->disk_mb) < 0 || a->disk_mb < MEMORY_LEAST || a->disk_mb > SIZE_MOST))
		r = error_set(err, -EINVAL, 400, "writableLayerSize must be a size like \"1G\", 64M to 1T");
	return r < 0 ? r : 0;
}

/* What Cube knows and this server does not do: named, unless it asks for what is so anyway. */
static int refuse_cube(const json_t *body, struct error *err)
{
	static const char *const lists[] = {"nodes", "allowOut", "denyOut"};
	static const struct {
		const char *name;
		bool as_it_is;
	} flags[] = {{"allowInternetAccess", true}, {"enableIvshmem", false}, {"with_cube_ca", false}};
	static const struct {
		const char *name, *only;
	} words[] = {{"instanceType", "cubebox"}, {"networkType", "tap"}};
	json_t *list, *qos;
	struct str text;
	int r = 0;
	for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(lists); i++)
		if ((r = field_array(body, lists[i], NULL, &list, err)) > 0 && json_array_size(list))
			r = not_served(err, lists[i]);
	for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(flags); i++) {
		bool value = flags[i].as_it_is;
		if ((r = field_bool(body, flags[i].name, NULL, &value, err)) > 0 && value != flags[i].as_it_is)
			r = not_served(err, flags[i].name);
	}
	for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(words); i++)
		if ((r = field_str(body, words[i].name, NULL, &text, err)) > 0 && !str_is(text, words[i].only))
			r = error_set(err, -EOPNOTSUPP, 501, "%s other than \"%s\" is not implemented by this server", words[i].name, words[i].only);
	if (r >= 0 && (r = field_object(body, "qos", NULL, &qos, err)) > 0 && json_object_size(qos))
		r = not_served(err, "qos");
	return r < 0 ? r : 0;
}

/* Sandboxes ask the server's resolver, which knows their policy. */
static int take_dns(const json_t *body, struct error *err)
{
	cleanup_json json_t *spec = json_object();
	struct in6_addr address;
	size_t i;
	const json_t *item;
	int r = take_list(body, "dns", DNS_MAX, false, spec, err);
	json_array_foreach(json_object_get(spec, "dns"), i, item)
		if (inet_pton(AF_INET, json_string_value(item), &address) != 1 && inet_pton(AF_INET6, json_string_value(item), &address) != 1)
			return error_set(err, -EINVAL, 400, "dns[%zu] must be an IP address", i);
	return r >= 0 && json_array_size(json_object_get(spec, "dns")) ? not_served(err, "dns") : r;
}

static int take_cube_registry(const json_t *body, json_t *spec, struct error *err)
{
	struct str username = STR(""), password = STR("");
	int r = field_str(body, "registryUsername", NULL, &username, err);
	if (r >= 0)
		r = field_str(body, "registryPassword", NULL, &password, err);
	if (r < 0 || (!username.n && !password.n))
		return r < 0 ? r : 0;
	if (!username.n || !password.n)
		return error_set(err, -EINVAL, 400, "registryUsername and registryPassword belong together");
	return put(spec, "registry", json_pack("{s:s,s:O,s:O}", "type", "registry", "username", json_object_get(body, "registryUsername"), "password",
		json_object_get(body, "registryPassword")), err);
}

static const char *const cube_kept[] = {"image", "writableLayerSize", "exposedPorts", "probePort", "probePath", "cpu", "memory", "env", "command", "args", "dns",
	"registryUsername", "isolation"};

/* What is remembered of a request: nothing secret, nothing that was not understood. */
static int keep_source(const json_t *body, struct buf *to, struct error *err)
{
	cleanup_json json_t *kept = json_object();
	for (size_t i = 0; i < ARRAY_SIZE(cube_kept); i++) {
		json_t *j = json_object_get(body, cube_kept[i]);
		if (j && !json_is_null(j) && json_object_set(kept, cube_kept[i], j) < 0)
			return no_memory(err);
	}
	size_t n = json_dumpb(kept, NULL, 0, JSON_COMPACT);
	char *p = n && n <= TEMPLATE_SOURCE_MAX ? buf_reserve(to, n) : NULL;
	if (p)
		buf_commit(to, json_dumpb(kept, p, n, JSON_COMPACT));
	return to->failed ? no_memory(err) : 0;
}

static int parse_cube(const json_t *body, struct cube_args *a, struct error *err)
{
	struct str image, name = STR("");
	json_t *spec = a->build.spec;
	int r = field_str(body, "image", NULL, &image, err);
	if (r == 0 || (r > 0 && !str_trim(image).n))
		return error_set(err, -EINVAL, 400, "image is missing: E2B's clients make templates by POST /v3/templates");
	if (r > 0)
		r = take_image(image, "image", spec, err);
	if (r == 0)
		r = put(spec, "kind", json_string("cube"), err);
	if (r == 0)
		r = field_str(body, "name", NULL, &name, err);
	if (r >= 0 && !str_trim(name).n)
		r = field_str(body, "alias", NULL, &name, err);
	if (r >= 0)
		r = refuse_cube(body, err);
	if (r == 0)
		r = parse_cube_sizes(body, &a->template, err);
	if (r == 0)
		r = take_cube_registry(body, spec, err);
	if (r == 0)
		r = take_list(body, "command", COMMAND_MAX, false, spec, err);
	if (r >= 0)
		r = take_list(body, "args", COMMAND_MAX, false, spec, err);
	if (r >= 0)
		r = take_list(body, "env", LIST_MAX, true, spec, err);
	if (r >= 0)
		r = take_dns(body, err);
	if (r >= 0)
		r = take_probe(body, true, spec, err);
	if (r >= 0)
		r = take_isolation(body, &a->build, err);
	if (r >= 0)
		r = field_bool(body, "force", NULL, &a->build.force, err);
	if (r < 0)
		return r;
	cube_name(name, a->template.name);
	r = check_spec(spec, err);
	return r < 0 ? r : keep_source(body, &a->source, err);
}

void cube_args_done(struct cube_args *a)
{
	template_args_done(&a->template);
	build_args_done(&a->build);
	buf_done(&a->source);
}

int cube_args_parse(const json_t *body, const json_t *before, struct cube_args *a, struct error *err)
{
	*a = (struct cube_args){.build.spec = json_object()};
	cleanup_json json_t *whole = before ? json_copy((json_t *)(uintptr_t)before) : json_incref((json_t *)(uintptr_t)body);
	if (!a->build.spec || (before && (!whole || (body && json_object_update(whole, (json_t *)(uintptr_t)body) < 0))))
		return no_memory(err);
	return parse_cube(whole, a, err);
}
