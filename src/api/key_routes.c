#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>

enum { KEYS_OF_TEAM = 1000 }; /* that it may make by itself */

/* What the worker is asked, and what came of it. */
struct key_work {
	struct key key;
	char secret[KEY_SECRET + 1]; /* of a new key */
	int64_t now;
	bool keep; /* a revoked key leaves a tombstone */
	struct error err;
};

/* Over the admin socket, where keys of all teams are seen unless one is named; else only those of the caller's. */
static bool admin(const struct api_request *r)
{
	return r->match.route->flags & ROUTE_ADMIN;
}

static bool may_see(const struct api_request *r, const struct key *key)
{
	return str_is(r->team, key->team) || (admin(r) && !http_find(r->http->head, "x-cubicle-team"));
}

static void add_time(struct out *o, const char *name, int64_t at)
{
	if (at)
		out_time(o, name, at);
	else
		out_null(o, name);
}

/* TeamAPIKey of E2B. Of the secret only its first characters are known. */
static void add_mask(struct out *o, const struct key *key)
{
	enum { PREFIX = 4 }; /* "e2b_" */
	struct str hint = str_of(key->hint);
	out_open(o, "mask", '{');
	out_str(o, "prefix", str_n(hint.p, MIN(hint.n, (size_t)PREFIX)));
	out_int(o, "valueLength", KEY_SECRET - PREFIX);
	out_str(o, "maskedValuePrefix", str_from(hint, MIN(hint.n, (size_t)PREFIX)));
	out_str(o, "maskedValueSuffix", STR(""));
	out_close(o, '}');
}

static void add_key(struct out *o, const struct api_request *r, const struct key *key, const char *secret)
{
	const struct team *team = teams_by_ref(r->api->teams, str_of(key->team));
	out_open(o, NULL, '{');
	out_str(o, "id", str_of(key->id));
	out_str(o, "name", str_of(key->name));
	add_mask(o, key);
	out_time(o, "createdAt", key->created_at);
	out_null(o, "createdBy");
	add_time(o, "lastUsed", key->used_at);
	if (admin(r)) {
		out_str(o, "hint", str_of(key->hint));
		out_str(o, "team", team ? str_of(team->name) : STR(""));
		out_str(o, "teamID", team ? str_of(team->id) : STR(""));
	}
	if (secret)
		out_str(o, "key", str_of(secret));
	out_close(o, '}');
}

static void answer_key(struct api_request *r, int status, const struct key *key, const char *secret)
{
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	add_key(&o, r, key, secret);
	api_answer(r, status, &body);
}

void handle_keys(struct api_request *r)
{
	const struct keys *keys = r->api->keys;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < keys_count(keys); i++) {
		const struct key *key = keys_at(keys, i);
		if (!key->revoked_at && may_see(r, key))
			add_key(&o, r, key, NULL);
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

/* NULL = answered. */
static struct key_work *work_new(struct api_request *r)
{
	r->work = calloc(1, sizeof(struct key_work));
	if (!r->work)
		api_failf(r, 503, "the server is out of memory");
	return r->work;
}

static void store_key(void *arg)
{
	struct api_request *r = arg;
	struct key_work *w = r->work;
	keys_store(r->api->store, &w->key, &w->err);
}

static void key_stored(struct api_request *r)
{
	struct key_work *w = r->work;
	if (!w->err.code && !teams_by_ref(r->api->teams, str_of(w->key.team)))
		error_set(&w->err, -ENOENT, 404, "the team was deleted");
	if (!w->err.code && !keys_add(r->api->keys, &w->key))
		error_errno(&w->err, -ENOMEM, "keys");
	if (w->err.code)
		api_fail(r, &w->err);
	else
		answer_key(r, 201, &w->key, w->secret);
}

void handle_key_create(struct api_request *r)
{
	struct error err = {0};
	char name[KEY_NAME_MAX + 1];
	if (field_name(r->body, "name", KEY_NAME_MAX, name, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	if (!admin(r) && keys_count_team(r->api->keys, r->team) >= KEYS_OF_TEAM) {
		api_failf(r, 403, "the team has %d keys already: revoke some first", KEYS_OF_TEAM);
		return;
	}
	struct key_work *w = work_new(r);
	if (!w)
		return;
	key_make(w->secret, &w->key);
	memcpy(w->key.name, name, strlen(name) + 1);
	snprintf(w->key.team, sizeof(w->key.team), "%.*s", STR_FMT(r->team));
	api_work(r, store_key, key_stored);
}

/* The key that the path names; NULL = answered. */
static struct key *find(struct api_request *r)
{
	struct str id = r->match.params[0];
	struct key *key = keys_find(r->api->keys, id);
	if (key && may_see(r, key))
		return key;
	api_failf(r, 404, "key %.*s not found", (int)MIN(id.n, (size_t)64), id.p);
	return NULL;
}

static void store_name(void *arg)
{
	struct api_request *r = arg;
	struct key_work *w = r->work;
	keys_store_renamed(r->api->store, &w->key, &w->err);
}

static void name_stored(struct api_request *r)
{
	struct key_work *w = r->work;
	struct key *key = keys_find(r->api->keys, str_of(w->key.id));
	if (key) {
		key->changing = false;
		if (!w->err.code)
			memcpy(key->name, w->key.name, sizeof(key->name));
	}
	if (w->err.code)
		api_fail(r, &w->err);
	else
		answer_key(r, 200, &w->key, NULL);
}

void handle_key_rename(struct api_request *r)
{
	struct error err = {0};
	char name[KEY_NAME_MAX + 1];
	if (field_name(r->body, "name", KEY_NAME_MAX, name, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct key *key = find(r);
	if (!key)
		return;
	if (key->changing) {
		api_failf(r, 409, "key %s is being renamed already; try again", key->id);
		return;
	}
	struct key_work *w = work_new(r);
	if (!w)
		return;
	w->key = *key;
	memcpy(w->key.name, name, strlen(name) + 1);
	key->changing = true;
	api_work(r, store_name, name_stored);
}

static void store_revocation(void *arg)
{
	struct api_request *r = arg;
	struct key_work *w = r->work;
	if (w->keep)
		keys_store_revoked(r->api->store, w->key.id, w->now, &w->err);
	else
		keys_store_dropped(r->api->store, w->key.id, &w->err);
}

static void revocation_stored(struct api_request *r)
{
	struct key_work *w = r->work;
	if (w->err.code) {
		api_fail(r, &w->err);
		return;
	}
	struct key *key = keys_find(r->api->keys, str_of(w->key.id));
	if (key && w->keep)
		keys_revoke(key, w->now);
	else if (key)
		keys_drop(r->api->keys, key);
	api_answer_empty(r);
}

void handle_key_revoke(struct api_request *r)
{
	const struct key *key = find(r);
	struct key_work *w = key ? work_new(r) : NULL;
	if (!w)
		return;
	w->key = *key;
	w->now = clock_realtime();
	w->keep = !r->api->first_hash[0] || !strcmp(key->hash, r->api->first_hash);
	api_work(r, store_revocation, revocation_stored);
}
