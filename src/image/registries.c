#include "image/registries.h"

#include "image/reference.h"

#include <errno.h>
#include <stdlib.h>

struct registries_entry {
	char host[REFERENCE_HOST_MAX];
	uint16_t port; /* 0: the scheme's own */
};

static int read_list(const char *option, const char *text, struct registries_entry **ret, size_t *ret_n, struct error *err)
{
	struct str rest = str_of(text), entry;
	for (bool more = *text; more;) {
		struct str tail = {0};
		more = str_cut(rest, ',', &entry, &tail);
		if (!more)
			entry = rest;
		rest = tail;
		entry = str_trim(entry);
		if (*ret_n == REGISTRIES_MAX)
			return error_set(err, -EINVAL, 400, "%s has more than %d entries", option, REGISTRIES_MAX);
		struct registries_entry *list = reallocarray(*ret, *ret_n + 1, sizeof(*list));
		if (!list)
			return error_set(err, -ENOMEM, 500, "out of memory");
		*ret = list;
		if (reference_host(entry, list[*ret_n].host, &list[*ret_n].port) < 0)
			return error_set(err, -EINVAL, 400, "%s: '%.*s' is no host or host:port (no scheme, no path, no pattern)", option, (int)(entry.n < 300 ? entry.n : 300), entry.p);
		(*ret_n)++;
	}
	return 0;
}

int registries_init(struct registries *r, const struct options *o, struct error *err)
{
	*r = (struct registries){.insecure_credentials = o->registry_insecure_credentials};
	int e = read_list("registry.insecure", o->registry_insecure, &r->insecure, &r->n_insecure, err);
	if (e == 0)
		e = read_list("registry.private", o->registry_private, &r->private, &r->n_private, err);
	if (e < 0)
		registries_done(r);
	return e;
}

void registries_done(struct registries *r)
{
	free(r->insecure);
	free(r->private);
	*r = (struct registries){0};
}

int registries_check(const struct options *o, struct error *err)
{
	struct registries r;
	int e = registries_init(&r, o, err);
	if (e == 0)
		registries_done(&r);
	return e;
}

static bool listed(const struct registries_entry *list, size_t n, struct str host, uint16_t port, bool tls)
{
	char name[REFERENCE_HOST_MAX];
	uint16_t none;
	if (reference_host(host, name, &none) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!strcmp(list[i].host, name) && port == (list[i].port ? list[i].port : tls ? 443 : 80))
			return true;
	return false;
}

bool registries_insecure(const struct registries *r, struct str host, uint16_t port, bool tls)
{
	return listed(r->insecure, r->n_insecure, host, port, tls);
}

bool registries_private(const struct registries *r, struct str host, uint16_t port, bool tls)
{
	return listed(r->private, r->n_private, host, port, tls) || registries_insecure(r, host, port, tls);
}
