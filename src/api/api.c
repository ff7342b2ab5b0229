#include "api/api.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/request_counts.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static const char *const migrations[] = {keys_schema, teams_schema};

struct flush {
	struct api *api;
	struct key_uses *uses;
};

static void flush_work(void *arg)
{
	struct flush *f = arg;
	struct error err = {0};
	if (key_uses_store(f->api->store, f->uses, &err) < 0)
		log_warn("the last use of keys is not recorded: %s", err.message);
}

static void flush_done(void *arg)
{
	struct flush *f = arg;
	free(f->uses);
	free(f);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct api *a = arg;
	struct key_uses *uses = keys_take_uses(a->keys);
	if (uses) {
		struct flush *f = malloc(sizeof(*f));
		if (f)
			*f = (struct flush){a, uses};
		if (!f || workq_push(a->config.workq, a->config.loop, flush_work, flush_done, f) < 0) {
			free(f);
			free(uses);
		}
	}
	loop_timer_in(t, KEY_USE_SECONDS * NS_PER_S);
}

int api_new(const struct api_config *c, struct api **ret, struct error *err)
{
	char path[4096];
	if (snprintf(path, sizeof(path), "%s/front.db", c->directory) >= (int)sizeof(path))
		return error_errno(err, -ENAMETOOLONG, "%s", c->directory);
	struct api *a = calloc(1, sizeof(*a));
	if (!a)
		return error_errno(err, -ENOMEM, "api");
	a->config = *c;
	random_bytes(a->upload_key, sizeof(a->upload_key));
	if (!(a->counts = request_counts_new())) {
		free(a);
		return error_errno(err, -ENOMEM, "api");
	}
	/* The first digest loads OpenSSL's provider, which takes milliseconds: before the first client. */
	char warm[65];
	key_hash(STR(""), warm);
	int r = store_open(path, 0, migrations, ARRAY_SIZE(migrations), &a->store, err);
	if (r == 0)
		r = keys_new(a->store, &a->keys, err);
	if (r == 0)
		r = teams_new(a->store, &a->teams, err);
	if (r == 0 && !(a->quota = quota_new(a->teams, c->index, c->options)))
		r = error_errno(err, -ENOMEM, "quota");
	if (r == 0 && (!(a->timer = loop_timer_new(c->loop, on_timer, a)) || loop_timer_in(a->timer, KEY_USE_SECONDS * NS_PER_S) < 0))
		r = error_errno(err, -ENOMEM, "api");
	if (r < 0) {
		api_free(a);
		return r;
	}
	*ret = a;
	return 0;
}

void api_free(struct api *a)
{
	if (!a)
		return;
	struct error gone = {.code = -ESHUTDOWN, .status = 503, .message = "the server stops"};
	while (a->reloads)
		api_certificates_reloaded(a, &gone, NULL);
	loop_timer_free(a->timer);
	cleanup_free struct key_uses *uses = a->keys ? keys_take_uses(a->keys) : NULL;
	struct error err = {0};
	if (uses && key_uses_store(a->store, uses, &err) < 0)
		log_warn("the last use of keys is not recorded: %s", err.message);
	quota_free(a->quota);
	teams_free(a->teams);
	keys_free(a->keys);
	request_counts_free(a->counts);
	store_free(a->store);
	free(a);
}

int api_first_key(struct api *a, const struct msg_first_key *m, struct error *err)
{
	struct error ignored;
	struct key key;
	char secret[KEY_SECRET + 1];
	if (m->hash.n != 64 || m->name.n > KEY_NAME_MAX)
		return error_set(err, -EINVAL, 500, "the first key's record is malformed");
	snprintf(a->first_hash, sizeof(a->first_hash), "%.*s", STR_FMT(m->hash));
	if (keys_has_hash(a->keys, m->hash))
		return 0;
	key_make(secret, &key); /* for its id and time; hash and hint are the message's */
	explicit_bzero(secret, sizeof(secret));
	snprintf(key.name, sizeof(key.name), "%.*s", STR_FMT(m->name));
	snprintf(key.team, sizeof(key.team), "%s", TEAM_DEFAULT);
	snprintf(key.hint, sizeof(key.hint), "%.*s", STR_FMT(m->hint));
	snprintf(key.hash, sizeof(key.hash), "%.*s", STR_FMT(m->hash));
	int r = keys_store(a->store, &key, err ? err : &ignored);
	if (r < 0)
		return r;
	return keys_add(a->keys, &key) ? 0 : error_errno(err, -ENOMEM, "keys");
}

struct quota *api_quota(struct api *a)
{
	return a->quota;
}

bool api_key_valid(struct api *a, struct str key)
{
	return keys_check(a->keys, key) != NULL;
}
