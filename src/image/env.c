#include "image/env.h"
#include "base/cleanup.h"

#include <errno.h>
#include <string.h>

static struct env_var *find(const struct env *e, struct str name)
{
	for (size_t i = 0; i < e->n; i++)
		if (str_is(name, e->vars[i].name))
			return &e->vars[i];
	return NULL;
}

int env_set(struct env *e, struct str name, struct str value)
{
	struct env_var *v = find(e, name);
	if (name.n == 0 || memchr(name.p, '=', name.n) || memchr(name.p, '\0', name.n) || (value.n && memchr(value.p, '\0', value.n)))
		return -EINVAL;
	size_t grown = e->bytes + value.n + (v ? 0 : name.n), old = v ? strlen(v->value) : 0;
	if (grown - old > ENV_BYTES || (!v && e->n == ENV_MOST))
		return -E2BIG;
	cleanup_free char *text = str_dup(value);
	if (!text)
		return -ENOMEM;
	if (!v) {
		struct env_var *more = realloc(e->vars, (e->n + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		e->vars = more;
		v = &more[e->n];
		*v = (struct env_var){.name = str_dup(name)};
		if (!v->name)
			return -ENOMEM;
		e->n++;
	}
	free(v->value);
	v->value = steal_pointer(&text);
	e->bytes = grown - old;
	return 0;
}

int env_set_pair(struct env *e, struct str pair)
{
	struct str name, value;
	return str_cut(pair, '=', &name, &value) ? env_set(e, name, value) : -EINVAL;
}

const char *env_get(const struct env *e, struct str name)
{
	const struct env_var *v = find(e, name);
	return v ? v->value : NULL;
}

int env_merge(struct env *to, const struct env *from)
{
	int r = 0;
	for (size_t i = 0; i < from->n && r == 0; i++)
		r = env_set(to, str_of(from->vars[i].name), str_of(from->vars[i].value));
	return r;
}

void env_done(struct env *e)
{
	for (size_t i = 0; i < e->n; i++) {
		free(e->vars[i].name);
		free(e->vars[i].value);
	}
	free(e->vars);
	*e = (struct env){0};
}
