#include "api/create.h"
#include "base/cleanup.h"
#include "io/messages.h"

#include <errno.h>

void create_args_done(struct create_args *a)
{
	buf_done(&a->metadata);
	buf_done(&a->envs);
	network_args_done(&a->network);
}

static int not_served(struct error *err, const char *field)
{
	return error_set(err, -EOPNOTSUPP, 501, "%s is not implemented by this server", field);
}

/* The strings of an object, as a msg_map. */
static int strings(const json_t *object, const char *field, struct buf *to, struct error *err)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)object, key, value) {
		if (!json_is_string(value))
			return error_set(err, -EINVAL, 400, "%s.%.64s must be a string", field, key);
		int r = msg_map_add(to, str_of(key), json_str(value));
		if (r < 0)
			return error_set(err, r, 400, "%s is too large", field);
	}
	return 0;
}

static int parse_metadata(const json_t *body, struct buf *to, struct error *err)
{
	json_t *metadata;
	int r = field_object(body, "metadata", NULL, &metadata, err);
	if (r <= 0)
		return r;
	/* Cube's clients ask for mounts of the host's directories here; an empty list asks for nothing (cube.md B.7). */
	json_t *mounts = json_object_get(metadata, "host-mount");
	if (mounts) {
		cleanup_json json_t *list = json_is_string(mounts) ? json_parse(json_str(mounts), 65536, "metadata.host-mount", err) : NULL;
		if (!json_is_array(list))
			return error_set(err, -EINVAL, 400, "metadata.host-mount must be a JSON array, as a string");
		if (json_array_size(list))
			return not_served(err, "metadata.host-mount");
		json_object_del(metadata, "host-mount");
	}
	return strings(metadata, "metadata", to, err);
}

static int parse_envs(const json_t *body, struct buf *to, struct error *err)
{
	json_t *envs, *value;
	const char *name;
	int r = field_object(body, "envVars", "envs", &envs, err);
	if (r <= 0)
		return r;
	json_object_foreach(envs, name, value) {
		if (!name[0] || strchr(name, '='))
			return error_set(err, -EINVAL, 400, "envVars: a name must not be empty or hold '=': \"%.64s\"", name);
		if (json_is_string(value) && str_chr(json_str(value), 0) >= 0)
			return error_set(err, -EINVAL, 400, "envVars.%.64s holds a NUL", name);
	}
	return strings(envs, "envVars", to, err);
}

/* autoResume is a flag, {"enabled": flag} or, from old servers' clients, {"policy": "any" | "off"}. */
static int parse_auto_resume(const json_t *body, bool *ret, struct error *err)
{
	json_t *j;
	int r = field_any(body, "autoResume", "auto_resume", &j, err);
	if (r <= 0 || !json_is_object(j))
		return r <= 0 ? r : field_bool(body, "autoResume", "auto_resume", ret, err);
	struct str policy;
	r = field_bool(j, "enabled", NULL, ret, err);
	if (r != 0)
		return r < 0 ? error_wrap(err, r, "autoResume") : r;
	r = field_str(j, "policy", NULL, &policy, err);
	if (r <= 0)
		return r < 0 ? error_wrap(err, r, "autoResume") : r;
	if (!str_is(policy, "any") && !str_is(policy, "off"))
		return error_set(err, -EINVAL, 400, "autoResume.policy must be \"any\" or \"off\"");
	*ret = str_is(policy, "any");
	return 1;
}

/* agents.md §3: after so many seconds it ends, whatever else is said of it. Only the nested form has it. */
static int parse_shutdown(const json_t *nested, struct create_args *a, struct error *err)
{
	int64_t seconds;
	int r = field_int(nested, "shutdownAfterSeconds", NULL, &seconds, err);
	if (r <= 0)
		return r;
	if (seconds < 1 || seconds > SHUTDOWN_AFTER_MOST)
		return error_set(err, -EINVAL, 400, "shutdownAfterSeconds must be 1 to %d (10 years)", SHUTDOWN_AFTER_MOST);
	a->shutdown_after = seconds;
	return 1;
}

/* One that says only when it shuts down leaves the flat form as it is. */
static bool says_more(const json_t *nested)
{
	static const char *const names[] = {"onTimeout", "on_timeout", "autoResume", "auto_resume"};
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		const json_t *j = json_object_get(nested, names[i]);
		if (j && !json_is_null(j))
			return true;
	}
	return false;
}

/* Cube's nested form wins over the flat one. */
static int parse_nested_lifecycle(const json_t *body, struct create_args *a, struct error *err)
{
	json_t *nested;
	struct str on_timeout;
	int r = field_object(body, "lifecycle", NULL, &nested, err);
	if (r <= 0)
		return r;
	r = parse_shutdown(nested, a, err);
	if (r < 0)
		return error_wrap(err, r, "lifecycle");
	if (r > 0 && !says_more(nested))
		return 0;
	a->auto_pause = a->auto_resume = false;
	r = field_str(nested, "onTimeout", "on_timeout", &on_timeout, err);
	if (r > 0) {
		if (!str_is(on_timeout, "kill") && !str_is(on_timeout, "pause"))
			return error_set(err, -EINVAL, 400, "lifecycle.onTimeout must be \"kill\" or \"pause\"");
		a->auto_pause = str_is(on_timeout, "pause");
	}
	if (r >= 0)
		r = parse_auto_resume(nested, &a->auto_resume, err);
	return r < 0 ? error_wrap(err, r, "lifecycle") : 0;
}

static int parse_lifecycle(const json_t *body, struct create_args *a, struct error *err)
{
	if (json_object_get(body, "shutdownAfterSeconds"))
		return error_set(err, -EINVAL, 400, "shutdownAfterSeconds belongs into lifecycle: {\"lifecycle\": {\"shutdownAfterSeconds\": ...}}");
	int r = field_bool(body, "autoPause", "auto_pause", &a->auto_pause, err);
	if (r >= 0)
		r = parse_auto_resume(body, &a->auto_resume, err);
	if (r >= 0)
		r = parse_nested_lifecycle(body, a, err);
	if (r >= 0)
		r = field_bool(body, "autoPauseMemory", "auto_pause_memory", &a->auto_pause_memory, err);
	if (r < 0)
		return r;
	if (!a->auto_pause_memory && (!a->auto_pause || a->auto_resume))
		return error_set(err, -EINVAL, 400, "autoPauseMemory: false needs autoPause and excludes autoResume");
	return 0;
}

static int check_tokens(const json_t *body, struct error *err)
{
	json_t *iam, *tokens;
	int r = field_object(body, "iam", NULL, &iam, err);
	if (r <= 0)
		return r;
	r = field_object(iam, "tokens", NULL, &tokens, err);
	if (r < 0)
		return error_wrap(err, r, "iam");
	if (r > 0 && json_object_size(tokens))
		return error_set(err, -EOPNOTSUPP, 400, "iam: Sandbox IAM workload tokens are not available for your team.");
	return 0;
}

static int check_lists(const json_t *body, struct error *err)
{
	json_t *list, *mcp;
	int r = field_array(body, "volumeMounts", "volume_mounts", &list, err);
	if (r < 0)
		return r;
	if (r > 0 && json_array_size(list))
		return error_set(err, -EOPNOTSUPP, 400, "volumeMounts: Volume mounts are not enabled.");
	r = field_array(body, "distributionScope", NULL, &list, err);
	if (r < 0)
		return r;
	if (r > 0 && json_array_size(list))
		return not_served(err, "distributionScope");
	return field_object(body, "mcp", NULL, &mcp, err);
}

static int parse_security(const json_t *body, bool v2, struct create_args *a, struct error *err)
{
	int given = field_bool(body, "secure", NULL, &a->secure, err);
	if (given < 0)
		return given;
	if (v2 && given && !a->secure)
		return error_set(err, -EINVAL, 400, "secure: sandboxes made by /v2/sandboxes are always secured");
	if (given && !a->secure && !a->network.public_traffic)
		return error_set(err, -EINVAL, 400, "network.allowPublicTraffic: false needs a secured sandbox (secure: true)");
	a->secure |= v2;
	return 0;
}

/* An image may be named wherever a template is: one of it is made. Which way its registry is reached is no part of what it is. */
static int parse_image(struct str text, struct create_args *a, struct error *err)
{
	struct reference parsed;
	int r = reference_parse(text, &parsed, err);
	if (r < 0)
		return error_wrap(err, r, "templateID");
	if (parsed.scheme != REFERENCE_ANY)
		return error_set(err, -EINVAL, 400, "templateID: an image is named by docker://HOST/NAME, without another scheme");
	reference_format(&parsed, a->image);
	if (strlen(a->image) > 512)
		return error_set(err, -EINVAL, 400, "templateID: the image's name is too long");
	return 0;
}

int create_parse(const json_t *body, bool v2, const struct options *o, struct create_args *a, struct error *err)
{
	struct str reference;
	*a = (struct create_args){.auto_pause_memory = true};
	int r = field_str(body, "templateID", NULL, &reference, err);
	if (r < 0)
		return r;
	if (r == 0)
		return error_set(err, -EINVAL, 400, "templateID is missing");
	r = reference_is_image(str_trim(reference)) ? parse_image(str_trim(reference), a, err) : decode_template_reference(reference, &a->template, err);
	if (r == 0)
		r = decode_timeout(body, TIMEOUT_OF_CREATE, o, &a->timeout, err);
	if (r == 0)
		r = parse_lifecycle(body, a, err);
	if (r == 0)
		r = check_tokens(body, err);
	if (r == 0)
		r = check_lists(body, err);
	if (r >= 0)
		r = network_parse_create(body, &a->network, err);
	if (r >= 0)
		r = parse_security(body, v2, a, err);
	if (r >= 0)
		r = parse_metadata(body, &a->metadata, err);
	if (r >= 0)
		r = parse_envs(body, &a->envs, err);
	return r < 0 ? r : 0;
}
