#include "node/template_services.h"
#include "base/log.h"
#include "io/json.h"
#include "io/msg.h"

#include <errno.h>
#include <stdio.h>

enum { AGENT_PORT = 49983, DNS_PORT = 53 };

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
static const char user_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-.";

static bool made_of(const char *s, const char *letters)
{
	return *s && s[strspn(s, letters)] == '\0';
}

static int add_argument(struct template_service *s, size_t *used, struct str argument)
{
	if (s->n_args == TEMPLATE_MAX_ARGS || argument.n >= sizeof(s->command) - *used)
		return -E2BIG;
	memcpy(s->command + *used, argument.p, argument.n);
	s->command[*used + argument.n] = '\0';
	*used += argument.n + 1;
	s->n_args++;
	return 0;
}

int template_add_service(struct template *t, const char *name, const char *user, uint16_t port, const char *const *command)
{
	struct template_service s = {.port = port};
	size_t used = 0;
	if (t->n_services == TEMPLATE_MAX_SERVICES || strlen(name) >= sizeof(s.name) || strlen(user) >= sizeof(s.user))
		return -E2BIG;
	strcpy(s.name, name);
	strcpy(s.user, user);
	for (; *command; command++)
		if (add_argument(&s, &used, str_of(*command)) < 0)
			return -E2BIG;
	t->services[t->n_services++] = s;
	return 0;
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

static bool take_command(struct template_service *s, const json_t *j)
{
	size_t used = 0, i;
	json_t *argument;
	if (!json_is_array(j))
		return false;
	json_array_foreach(j, i, argument)
	{
		struct str text = json_str(argument);
		if (!json_is_string(argument) || memchr(text.p, '\0', text.n) || add_argument(s, &used, text) < 0)
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

static bool take_one(struct template_service *s, const json_t *j)
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
					    : str_is(k, "command") && take_command(s, v);
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
		if (!take_one(&t->services[i], json_array_get(j, i)))
			return false;
	t->n_services = n;
	return true;
}

const char *services_wrong(const struct template *t)
{
	for (size_t i = 0; i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		if (!made_of(s->name, name_letters))
			return "services: name: 1 to 32 characters of [a-z0-9_-]";
		if (!made_of(s->user, user_letters))
			return "services: user: 1 to 32 characters of [a-z0-9_.-]";
		if (s->n_args == 0 || s->command[0] != '/')
			return "services: command: 1 to 16 strings, 768 bytes in all, the first an absolute path";
		if (s->port == AGENT_PORT || s->port == DNS_PORT)
			return "services: port: 49983 and 53 are taken by the sandbox's own agent and resolver";
		for (size_t j = 0; j < i; j++)
			if (strcmp(s->name, t->services[j].name) == 0 || (s->port && s->port == t->services[j].port))
				return "services: two have the same name or port";
	}
	return NULL;
}

void services_serialize(const struct template *t, struct buf *to)
{
	for (size_t i = 0; i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		const char *at = s->command;
		buf_addf(to, i ? ", " : ",\n  \"services\": [");
		buf_addf(to, "{\"name\": \"%s\", \"command\": [", s->name);
		for (size_t j = 0; j < s->n_args; j++, at += strlen(at) + 1) {
			buf_add_c(to, j ? ", " : "");
			json_quote(to, str_of(at));
		}
		buf_add_c(to, "]");
		if (s->port)
			buf_addf(to, ", \"port\": %u", s->port);
		buf_addf(to, ", \"user\": \"%s\"}", s->user);
	}
	if (t->n_services)
		buf_add_c(to, "]");
}

int template_encode_services(const struct template *t, struct buf *to)
{
	for (size_t i = 0; i < t->n_services; i++) {
		const struct template_service *s = &t->services[i];
		cleanup_buf struct buf item = BUF_INIT;
		const char *at = s->command;
		char port[8] = "";
		if (s->port)
			snprintf(port, sizeof(port), "%u", s->port);
		msg_list_add(&item, str_of(s->name));
		msg_list_add(&item, str_of(s->user));
		msg_list_add(&item, str_of(port));
		for (size_t j = 0; j < s->n_args; j++, at += strlen(at) + 1)
			msg_list_add(&item, str_of(at));
		if (item.failed || msg_list_add(to, buf_str(&item)) < 0)
			return -ENOMEM;
	}
	return 0;
}
