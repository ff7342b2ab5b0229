#include "image/registry.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/json.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <time.h>

enum { PING_MAX = 65536, WAIT_MOST_S = 60 };

/* Docker Hub answers under another name than images say. */
static const char *served_by(const struct reference *r)
{
	return strcmp(r->registry, "docker.io") ? r->registry : "registry-1.docker.io";
}

/* "host" and port of r->registry as the registry's lists want them. */
static bool may_be_insecure(const struct registry *r, bool tls)
{
	char host[REFERENCE_HOST_MAX];
	uint16_t port;
	if (reference_host(str_of(r->ref.registry), host, &port) < 0)
		return false;
	return registries_insecure(r->rules, str_of(host), port ? port : tls ? 443 : 80, tls);
}

static int ping(struct registry *r, struct error *err)
{
	char url[sizeof(r->base) + 8];
	struct outbound_transfer *t;
	snprintf(url, sizeof(url), "%s/v2/", r->base);
	const struct outbound_request q = {.url = url, .unverified = r->unverified, .stay = true, .max = PING_MAX};
	int e = outbound_ask(r->out, &q, &t, err);
	if (e == 0)
		outbound_end(t);
	return e;
}

static int try_way(struct registry *r, bool tls, bool unverified, struct error *err)
{
	snprintf(r->base, sizeof(r->base), "%s://%s", tls ? "https" : "http", served_by(&r->ref));
	r->unverified = unverified;
	r->trusted = tls && !unverified;
	return ping(r, err);
}

static void tell_insecure(struct registry *r)
{
	char line[REFERENCE_REGISTRY_MAX + 128];
	snprintf(line, sizeof(line), "pulling from %s over %s (registry.insecure): nobody vouches for what comes", r->ref.registry, str_starts(str_of(r->base), STR("https")) ? "TLS that is not verified" : "plain HTTP");
	log_warn("%s; %s", line, r->credentials ? "with credentials" : "without credentials");
	if (r->env->log)
		r->env->log(r->env->arg, 2, line);
}

/* The safest way that works. Only what registry.insecure names has more than one. */
static int connect_registry(struct registry *r, struct error *err)
{
	bool tls = r->ref.scheme != REFERENCE_HTTP, plain = r->ref.scheme != REFERENCE_HTTPS;
	snprintf(r->base, sizeof(r->base), "%s://%s", tls ? "https" : "http", served_by(&r->ref));
	r->trusted = tls;
	if (tls && !may_be_insecure(r, true) && !(plain && may_be_insecure(r, false)))
		return 0; /* the first request tells whether it works */
	int e = tls ? try_way(r, true, false, err) : -EPROTO;
	if (e == -EPROTO && tls && may_be_insecure(r, true))
		e = try_way(r, true, true, err);
	if (e < 0 && e != -ECANCELED && e != -EACCES && plain) {
		if (!may_be_insecure(r, false))
			return error_set(err, -EACCES, 400, "%s: plain HTTP is only for registries that the operator of this server has named (registry.insecure)", r->ref.registry);
		e = try_way(r, false, false, err);
	}
	if (e == 0 && !r->trusted)
		tell_insecure(r);
	return e;
}

int registry_init(struct registry *r, struct source_env *env, struct outbound *out, const struct registries *rules, const struct reference *ref,
	const struct source_credentials *given, struct error *err)
{
	*r = (struct registry){.env = env, .out = out, .rules = rules, .ref = *ref, .credentials = given};
	int e = 0;
	if (!given && env->login) {
		e = env->login(env->arg, str_of(ref->registry), str_of(ref->repository), &r->found, err);
		if (e == 0 && (r->found.username || r->found.identity_token))
			r->credentials = &r->found;
	}
	if (e == 0)
		e = connect_registry(r, err);
	if (e < 0)
		registry_done(r);
	return e;
}

void registry_done(struct registry *r)
{
	source_credentials_done(&r->found);
	if (r->authorization)
		OPENSSL_cleanse(r->authorization, strlen(r->authorization));
	free(r->authorization);
	r->authorization = NULL;
}

bool registry_passing(int error_code, int status)
{
	if (error_code)
		return error_code == -ECONNRESET || error_code == -ECONNREFUSED || error_code == -ETIMEDOUT;
	return status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501);
}

unsigned registry_backoff(unsigned n, int retry_after)
{
	if (retry_after > 0)
		return (unsigned)MIN(retry_after, (int)WAIT_MOST_S) * 1000;
	return n > 5 ? 8000 : 250u << n;
}

int registry_pause(const struct registry *r, unsigned ms, struct error *err)
{
	int64_t end = clock_monotonic() + ms * NS_PER_MS;
	while (clock_monotonic() < end) {
		if (r->env->cancelled && r->env->cancelled(r->env->arg))
			return error_set(err, -ECANCELED, 499, "the build was ended");
		const struct timespec step = {.tv_nsec = 50 * NS_PER_MS};
		nanosleep(&step, NULL);
	}
	return 0;
}

/* The code of a registry's error ("TOOMANYREQUESTS"): of its texts the only one that can hold nothing else. */
static struct str error_code(const json_t *body)
{
	struct str code = json_str(json_object_get(json_array_get(json_object_get(body, "errors"), 0), "code"));
	for (size_t i = 0; i < code.n; i++)
		if (!(code.p[i] >= 'A' && code.p[i] <= 'Z') && code.p[i] != '_')
			return (struct str){0};
	return code.n > 40 ? (struct str){0} : code;
}

int registry_refusal(const struct registry *r, const struct outbound_answer *a, const char *what, struct error *err)
{
	cleanup_json json_t *body = json_parse(buf_str(&a->body), OUTBOUND_ERROR_MAX, "answer", NULL);
	struct str code = error_code(body);
	const char *reg = r->ref.registry, *repo = r->ref.repository;
	if (a->status == 404)
		return error_set(err, -ENOENT, 404, "%s does not have %s of %s", reg, what, repo);
	if (a->status == 401 || a->status == 403)
		return error_set(err, -EACCES, 400, "%s does not give %s of %s %s%s%.*s%s", reg, what, repo, r->credentials ? "for these credentials" : "to who has no credentials", code.n ? " (" : "",
			STR_FMT(code), code.n ? ")" : "");
	if (a->status == 429)
		return error_set(err, -EBUSY, 502, "%s has been asked too often for now", reg);
	return error_set(err, -EIO, 502, "%s answers with status %d%s%.*s", reg, a->status, code.n ? ", " : "", STR_FMT(code));
}

/* One round trip; 1: ask again. */
static int try_get(struct registry *r, const struct outbound_request *q, const char *what, unsigned n, unsigned *let_in, struct outbound_transfer **ret, struct error *err)
{
	struct outbound_transfer *t;
	struct error why = {0};
	int e = outbound_ask(r->out, q, &t, &why);
	if (e < 0) {
		/* Who took all the time there is will take it again. */
		if (n < (e == -ETIMEDOUT ? 2 : REGISTRY_TRIES) && registry_passing(e, 0)) {
			e = registry_pause(r, registry_backoff(n, 0), err);
			return e < 0 ? e : 1;
		}
		if (err)
			*err = why;
		return e;
	}
	const struct outbound_answer *a = outbound_answer(t);
	if (a->status == 200) {
		*ret = t;
		return 0;
	}
	if (a->status == 401 && !a->elsewhere && (*let_in)++ < 2) {
		e = registry_let_in(r, a, err);
		e = e < 0 ? e : 1;
	} else if (n < REGISTRY_TRIES && registry_passing(0, a->status)) {
		e = registry_pause(r, registry_backoff(n, a->retry_after), err);
		e = e < 0 ? e : 1;
	} else {
		e = registry_refusal(r, a, what, err);
	}
	outbound_end(t);
	return e;
}

int registry_get(struct registry *r, const char *path, const char *accept, size_t max, struct outbound_transfer **ret, struct error *err)
{
	char url[sizeof(r->base) + REFERENCE_REPOSITORY_MAX + REFERENCE_TAG_MAX + 32];
	const char *const headers[] = {accept, NULL};
	unsigned let_in = 0;
	int e = 1;
	snprintf(url, sizeof(url), "%s/v2/%s/%s", r->base, r->ref.repository, path);
	for (unsigned n = 1; e > 0; n++) {
		const struct outbound_request q = {.url = url, .headers = accept ? headers : NULL, .authorization = r->authorization, .unverified = r->unverified, .max = max};
		e = try_get(r, &q, str_starts(str_of(path), STR("manifests/")) ? "the image" : "a part", n, &let_in, ret, err);
	}
	return e;
}
