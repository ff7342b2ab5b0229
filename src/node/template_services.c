#include "node/template_services.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "io/json.h"
#include "io/msg.h"

#include <errno.h>
#include <stdio.h>

enum { AGENT_PORT = 49983, DNS_PORT = 53 };

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
/* A name or a number, and perhaps a group behind a colon. */
static const char user_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:";

static bool made_of(const char *s, const char *letters)
{
	return *s && s[strspn(s, letters)] == '\0';
}

static int add_argument(struct template_command *c, size_t *used, struct str argument)
{
	if (c->n_args == TEMPLATE_MAX_ARGS || argument.n >= sizeof(c->text) - *used)
		return -E2BIG;
	memcpy(c->text + *used, argument.p, argument.n);
	c->text[*used + argument.n] = '\0';
	*used += argument.n + 1;
	c->n_args++;
	return 0;
}

static int set_command(struct template_command *c, const char *const *command)
{
	size_t used = 0;
	*c = (struct template_command){0};
	for (; *command; command++)
		if (add_argument(c, &used, str_of(*command)) < 0)
			return -E2BIG;
	return 0;
}

int template_add_service(struct template *t, const char *name, const char *user, uint16_t port, const char *const *command)
{
	struct template_service s = {.port = port};
	if (t->n_services == TEMPLATE_MAX_SERVICES || strlen(name) >= sizeof(s.name) || strlen(user) >= sizeof(s.user) || set_command(&s.command, command) < 0)
		return -E2BIG;
	strcpy(s.name, name);
	strcpy(s.user, user);
	t->services[t->n_services++] = s;
	return 0;
}

int template_set_ready(struct template *t, const char *const *command)
{
	return set_command(&t->ready, command);
}

static bool take_text(const json_t *j, char *to, size_t size)
{
	struct str s = json_str(j);
	if (!json_is_string(j) || s.n >= size || memchr(s.p, '\0', s.n))
		return false;
	memcpy(to, s.p, s.n);
	to[s.n] = '\0';
	return true;
}

static bool take_command(struct template_command *c, const json_t *j)
{
	size_t used = 0, i;
	json_t *argument;
	*c = (struct template_command){0};
	if (!json_is_array(j))
		return false;
	json_array_foreach(j, i, argument)
	{
		struct str text = json_str(argument);
		if (!json_is_string(argument) || memchr(text.p, '\0', text.n) || add_argument(c, &used, text) < 0)
			return false;
	}
	return true;
}

static bool take_port(const json_t *j, uint16_t *ret)
{
	json_int_t port = json_integer_value(j);
	if (!json_is_integer(j) || port < 1 || port > UINT16_MAX)
		return false;
	*ret = (uint16_t)port;
	return true;
}

bool env_take(struct template *t, const json_t *j, struct template_env *ret)
{
	cleanup_buf struct buf raw = BUF_INIT;
	const char *key;
	json_t *v;
	if (!json_is_object(j))
		return false;
	json_object_foreach((json_t *)(uintptr_t)j, key, v)
	{
		struct str value = json_str(v);
		if (!json_is_string(v) || !*key || strchr(key, '=') || memchr(value.p, '\0', value.n) || msg_map_add(&raw, str_of(key), value) < 0)
			return false;
	}
	if (buf_len(&raw) > sizeof(t->envs) - t->envs_used)
		return false;
	*ret = (struct template_env){t->envs_used, (uint32_t)buf_len(&raw)};
	if (ret->n)
		memcpy(t->envs + ret->at, buf_str(&raw).p, ret->n);
	t->envs_used += ret->n;
	return true;
}

struct msg_map template_env(const struct template *t, struct template_env env)
{
	return (struct msg_map){str_n(t->envs + env.at, env.n)};
}

bool probe_take(struct template *t, const json_t *j)
{
	const json_t *path = json_object_get(j, "path");
	return json_is_object(j) && json_object_size(j) == (path ? 2 : 1) && take_port(json_object_get(j, "port"), &t->probe.port) &&
		(!path || (take_text(path, t->probe.path, sizeof(t->probe.path)) && *t->probe.path));
}

static bool take_restart(const json_t *j, bool *ret_once)
{
	*ret_once = json_is_false(j);
	return json_is_boolean(j);
}

static bool take_one(struct template *t, struct template_service *s, const json_t *j)
{
	const char *key;
	json_t *v;
	if (!json_is_object(j))
		return false;
	json_object_foreach((json_t *)(uintptr_t)j, key, v)
	{
		struct str k = str_of(key);
		bool good = str_is(k, "name") ? take_text(v, s->name, sizeof(s->name))
			: str_is(k, "user") ? take_text(v, s->user, sizeof(s->user))
			: str_is(k, "port") ? take_port(v, &s->port)
			: str_is(k, "env") ? env_take(t, v, &s->env)
			: str_is(k, "workdir") ? take_text(v, s->workdir, sizeof(s->workdir)) && *s->workdir
			: str_is(k, "restart") ? take_restart(v, &s->once)
					       : str_is(k, "command") && take_command(&s->command, v);
		if (!good)
			return false;
	}
	return true;
}

bool services_take(struct template *t, const json_t *j)
{
	size_t n = json_array_size(j);
	if (!json_is_array(j) || n < 1 || n > TEMPLATE_MAX_SERVICES)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!take_one(t, &t->services[i], json_array_get(j, i)))
			return false;
	t->n_services = n;
	return true;
}

bool ready_take(struct template *t, const json_t *j)
{
	return take_command(&t->ready, j) && t->ready.n_args;
}

static bool is_absolute(const struct template_command *c)
{
	return c->n_args && c->text[0] == '/';
}

/* What may stand in a path that is told line by line. */
static bool is_path(const char *s)
{
	if (*s != '/' || !str_is_utf8(str_of(s)))
		return false;
	for (; *s; s++)
		if ((unsigned char)*s < 0x20)
			return false;
	return true;
}

/* The target of an HTTP request. */
static bool is_target(const char *s)
{
	if (*s != '/')
		return false;
	for (; *s; s++)
		if (*s <= 0x20 || *s >= 0x7f)
			return false;
	return true;
}

const char *services_wrong(const struct template *t)
{
	if (!made_of(t->user, user_letters))
		return "user: 1 to 32 characters of [a-zA-Z0-9_.:-]";
	for (size_t i = 0; i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		if (!made_of(s->name, name_letters))
			return "services: name: 1 to 32 characters of [a-z0-9_-]";
		if (!made_of(s->user, user_letters))
			return "services: user: 1 to 32 characters of [a-zA-Z0-9_.:-]";
		if (!is_absolute(&s->command))
			return "services: command: 1 to 64 strings, 4096 bytes in all, the first an absolute path";
		if (*s->workdir && !is_path(s->workdir))
			return "services: workdir: an absolute path of at most 1023 bytes is needed";
		if (s->port == AGENT_PORT || s->port == DNS_PORT)
			return "services: port: 49983 and 53 are taken by the sandbox's own agent and resolver";
		for (size_t j = 0; j < i; j++)
			if (strcmp(s->name, t->services[j].name) == 0 || (s->port && s->port == t->services[j].port))
				return "services: two have the same name or port";
	}
	if (t->ready.n_args && !is_absolute(&t->ready))
		return "ready: 1 to 64 strings, 4096 bytes in all, the first an absolute path";
	if (t->ready.n_args && !t->n_services)
		return "ready: there are no services that could be ready";
	if (t->probe.port && !t->n_services)
		return "probe: there are no services that could answer";
	if (t->probe.port == AGENT_PORT || t->probe.port == DNS_PORT)
		return "probe: port: 49983 and 53 are taken by the sandbox's own agent and resolver";
	if (*t->probe.path && !is_target(t->probe.path))
		return "probe: path: '/' and at most 254 more printable characters are needed";
	return NULL;
}

static void serialize_command(const struct template_command *c, struct buf *to)
{
	const char *at = c->text;
	buf_add_c(to, "[");
	for (size_t i = 0; i < c->n_args; i++, at += strlen(at) + 1) {
		buf_add_c(to, i ? ", " : "");
		json_quote(to, str_of(at));
	}
	buf_add_c(to, "]");
}

static void serialize_env(const struct template *t, struct template_env env, struct buf *to)
{
	struct str rest = template_env(t, env).raw, key, value;
	buf_add_c(to, "{");
	for (bool first = true; msg_map_next(&rest, &key, &value); first = false) {
		buf_add_c(to, first ? "" : ", ");
		json_quote(to, key);
		buf_add_c(to, ": ");
		json_quote(to, value);
	}
	buf_add_c(to, "}");
}

void services_serialize(const struct template *t, struct buf *to)
{
	if (t->env.n) {
		buf_add_c(to, ",\n  \"env\": ");
		serialize_env(t, t->env, to);
	}
	for (size_t i = 0; i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		buf_addf(to, i ? ", " : ",\n  \"services\": [");
		buf_addf(to, "{\"name\": \"%s\", \"command\": ", s->name);
		serialize_command(&s->command, to);
		if (s->port)
			buf_addf(to, ", \"port\": %u", s->port);
		if (s->env.n) {
			buf_add_c(to, ", \"env\": ");
			serialize_env(t, s->env, to);
		}
		if (*s->workdir) {
			buf_add_c(to, ", \"workdir\": ");
			json_quote(to, str_of(s->workdir));
		}
		if (s->once)
			buf_add_c(to, ", \"restart\": false");
		buf_addf(to, ", \"user\": \"%s\"}", s->user);
	}
	if (t->n_services)
		buf_add_c(to, "]");
	if (t->ready.n_args) {
		buf_add_c(to, ",\n  \"ready\": ");
		serialize_command(&t->ready, to);
	}
	if (t->probe.port)
		buf_addf(to, ",\n  \"probe\": {\"port\": %u", t->probe.port);
	if (*t->probe.path) {
		buf_add_c(to, ", \"path\": ");
		json_quote(to, str_of(t->probe.path));
	}
	if (t->probe.port)
		buf_add_c(to, "}");
}

static int encode_command(const struct template_command *c, struct buf *to)
{
	const char *at = c->text;
	for (size_t i = 0; i < c->n_args; i++, at += strlen(at) + 1)
		msg_list_add(to, str_of(at));
	return to->failed ? -ENOMEM : 0;
}

int template_encode_ready(const struct template *t, struct buf *to)
{
	return encode_command(&t->ready, to);
}

int template_encode_services(const struct template *t, struct buf *to)
{
	for (size_t i = 0; i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		cleanup_buf struct buf item = BUF_INIT;
		char port[8] = "";
		if (s->port)
			snprintf(port, sizeof(port), "%u", s->port);
		msg_list_add(&item, str_of(s->name));
		msg_list_add(&item, str_of(s->user));
		msg_list_add(&item, str_of(port));
		if (encode_command(&s->command, &item) < 0 || msg_list_add(to, buf_str(&item)) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Nothing when none of them has anything. */
int template_encode_service_options(const struct template *t, struct buf *to)
{
	bool any = false;
	for (size_t i = 0; i < t->n_services; i++)
		any = any || *t->services[i].workdir || t->services[i].once || t->services[i].env.n;
	for (size_t i = 0; any && i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		cleanup_buf struct buf item = BUF_INIT;
		msg_list_add(&item, str_of(s->workdir));
		msg_list_add(&item, str_of(s->once ? "once" : ""));
		msg_list_add(&item, template_env(t, s->env).raw);
		if (item.failed || msg_list_add(to, buf_str(&item)) < 0)
			return -ENOMEM;
	}
	return 0;
}
