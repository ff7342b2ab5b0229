#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/tls.h"

#include <errno.h>
#include <stdio.h>

/* What the worker is asked, and what came of it. */
struct key_work {
	struct key key;
	char secret[KEY_SECRET + 1]; /* of a new key */
	int64_t now;
	struct error err;
};

static void add_key(struct out *o, const struct key *key)
{
	out_str(o, "id", str_of(key->id));
	out_str(o, "name", str_of(key->name));
	out_str(o, "team", str_of(key->team));
	out_str(o, "hint", str_of(key->hint));
	out_time(o, "createdAt", key->created_at);
	if (key->used_at)
		out_time(o, "lastUsedAt", key->used_at);
	else
		out_null(o, "lastUsedAt");
}

void handle_keys(struct api_request *r)
{
	const struct keys *keys = r->api->keys;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < keys_count(keys); i++) {
		const struct key *key = keys_at(keys, i);
		if (key->revoked_at)
			continue;
		out_open(&o, NULL, '{');
		add_key(&o, key);
		out_close(&o, '}');
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
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
	if (!w->err.code && !keys_add(r->api->keys, &w->key))
		error_errno(&w->err, -ENOMEM, "keys");
	if (w->err.code) {
		api_fail(r, &w->err);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	add_key(&o, &w->key);
	out_str(&o, "key", str_of(w->secret));
	out_close(&o, '}');
	api_answer(r, 201, &body);
}

static int parse_name(const json_t *body, char *to, struct error *err)
{
	struct str name;
	int r = field_str(body, "name", NULL, &name, err);
	if (r < 0)
		return r;
	if (r == 0 || !name.n || name.n > KEY_NAME_MAX)
		return error_set(err, -EINVAL, 400, "name: 1 to %d bytes are needed", KEY_NAME_MAX);
	for (size_t i = 0; i < name.n; i++)
		if ((unsigned char)name.p[i] < 0x20 || name.p[i] == 0x7f)
			return error_set(err, -EINVAL, 400, "name holds a control character");
	memcpy(to, name.p, name.n);
	to[name.n] = 0;
	return 0;
}

/* NULL = answered. */
static struct key_work *work_new(struct api_request *r)
{
	r->work = calloc(1, sizeof(struct key_work));
	if (!r->work)
		api_failf(r, 503, "the server is out of memory");
	return r->work;
}

void handle_key_create(struct api_request *r)
{
	struct error err = {0};
	char name[KEY_NAME_MAX + 1];
	if (parse_name(r->body, name, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct key_work *w = work_new(r);
	if (!w)
		return;
	key_make(w->secret, &w->key);
	memcpy(w->key.name, name, sizeof(name));
	snprintf(w->key.team, sizeof(w->key.team), "%.*s", STR_FMT(r->team));
	api_work(r, store_key, key_stored);
}

static void store_revocation(void *arg)
{
	struct api_request *r = arg;
	struct key_work *w = r->work;
	keys_store_revoked(r->api->store, w->key.id, w->now, &w->err);
}

static void revocation_stored(struct api_request *r)
{
	struct key_work *w = r->work;
	if (w->err.code) {
		api_fail(r, &w->err);
		return;
	}
	struct key *key = keys_find(r->api->keys, str_of(w->key.id));
	if (key)
		keys_revoke(key, w->now);
	api_answer_empty(r);
}

void handle_key_revoke(struct api_request *r)
{
	const struct key *key = keys_find(r->api->keys, r->match.params[0]);
	if (!key) {
		api_failf(r, 404, "key %.*s not found", (int)MIN(r->match.params[0].n, (size_t)64), r->match.params[0].p);
		return;
	}
	struct key_work *w = work_new(r);
	if (!w)
		return;
	w->key = *key;
	w->now = clock_realtime();
	api_work(r, store_revocation, revocation_stored);
}

void handle_reload_certificates(struct api_request *r)
{
	struct api *a = r->api;
	struct error err = {0};
	int e = a->config.reload_certificates(a->config.arg, &err);
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	/* Kept also when its client leaves: the answers come in this order. */
	r->working = true;
	*(a->reloads ? a->last_reload : &a->reloads) = r;
	a->last_reload = &r->next_reload;
}

static void answer_certificates(struct api_request *r, const struct tls_server *tls)
{
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; tls && i < tls_server_pairs(tls); i++) {
		cleanup_buf struct buf names = BUF_INIT;
		char fingerprint[65];
		tls_server_names(tls, i, &names);
		out_open(&o, NULL, '{');
		out_str(&o, "names", buf_str(&names));
		out_str(&o, "sha256", str_of(tls_server_fingerprint(tls, i, fingerprint)));
		out_close(&o, '}');
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

void api_certificates_reloaded(struct api *a, const struct error *err, const struct tls_server *tls)
{
	struct api_request *r = a->reloads;
	if (!r)
		return;
	a->reloads = r->next_reload;
	r->working = false;
	if (err)
		api_fail(r, err);
	else
		answer_certificates(r, tls);
}
