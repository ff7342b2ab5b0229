#include "cli/build_login.h"
#include "base/cleanup.h"
#include "cli/docker_login.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Those of one image's registry, unless they are there already. */
static int add_login(json_t *all, struct str image, struct error *err)
{
	struct reference ref;
	struct error why = {0};
	cleanup_free char *user = NULL, *password = NULL;
	if (reference_parse(image, &ref, NULL) < 0 || json_object_get(all, ref.registry))
		return 0; /* a name that is no reference is the server's to refuse, with its line */
	int r = docker_login(&ref, &user, &password, &why);
	if (r == -ENOTSUP) {
		fprintf(stderr, "cubicle: %s; images of %s are pulled without credentials\n", why.message, ref.registry);
		return 0;
	}
	if (r < 0 && err)
		*err = why;
	if (r <= 0)
		return r;
	json_t *one = json_pack("{s:s,s:s}", "username", user, "password", password);
	explicit_bzero(password, strlen(password));
	return one && json_object_set_new(all, ref.registry, one) == 0 ? 0 : error_set(err, -EINVAL, 400, "the credentials for %s are no UTF-8", ref.registry);
}

static int add_stage(json_t *all, const struct dockerfile *d, const struct dockerfile_plan *plan, size_t s, struct error *err)
{
	int r = plan->bases[s].kind == DF_BASE_IMAGE ? add_login(all, str_of(plan->bases[s].image), err) : 0;
	for (size_t i = d->stages[s].from; r == 0 && i < d->stages[s].to; i++) {
		for (size_t k = 0; r == 0 && k < d->all[i].n_flags; k++) {
			struct str from = dockerfile_flag_from(&d->all[i].flags[k]);
			if (from.n && dockerfile_find_stage(d, from, s) < 0)
				r = add_login(all, from, err);
		}
	}
	return r;
}

int build_logins(const struct dockerfile *d, const struct dockerfile_plan *plan, json_t *to, struct error *err)
{
	json_t *all = json_object();
	int r = all ? 0 : error_errno(err, -ENOMEM, "credentials");
	for (size_t s = 0; r == 0 && s < d->n_stages; s++)
		if (plan->bases[s].needed)
			r = add_stage(all, d, plan, s, err);
	if (json_object_size(all))
		json_object_set(to, "registries", all);
	json_decref(all);
	return r;
}
