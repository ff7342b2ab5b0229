/* How a registry lets in who pulls (image/registry.h): Basic, tokens of a token service, Amazon's and Google's forms of a password. */
#include "base/cleanup.h"
#include "base/encode.h"
#include "image/challenge.h"
#include "image/ecr.h"
#include "image/registry.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>

enum {
	TOKEN_MAX = 32 * 1024, /* bytes of one token */
	TOKEN_ANSWER_MAX = 256 * 1024,
};

/* A user and password in plain: given, or made of what was given. */
struct login {
	const char *username, *password;
	char *made; /* password that is ours to wipe */
};

static void login_done(struct login *l)
{
	if (l->made)
		OPENSSL_cleanse(l->made, strlen(l->made));
	free(l->made);
}
#define cleanup_login __attribute__((__cleanup__(login_done)))

static void wipe_buf(struct buf *b)
{
	if (b->data)
		OPENSSL_cleanse(b->data, b->cap);
	buf_done(b);
}
#define cleanup_secret __attribute__((__cleanup__(wipe_buf)))

static bool is_google(const char *registry)
{
	struct str host = str_of(registry);
	return str_is(host, "gcr.io") || str_ends(host, STR(".gcr.io")) || str_ends(host, STR("-docker.pkg.dev"));
}

/* 1 with a user and password, 0 without. */
static int find_login(struct registry *r, struct login *ret, struct error *err)
{
	const struct source_credentials *c = r->credentials;
	if (!c)
		return 0;
	if (c->aws_access_key_id && c->aws_secret_access_key) {
		int e = ecr_login(r->out, c, str_of(r->ref.registry), r->ecr_endpoint, &ret->made, err);
		*ret = (struct login){"AWS", ret->made, ret->made};
		return e < 0 ? e : 1;
	}
	if (c->gcp_service_account) {
		if (!is_google(r->ref.registry))
			return error_set(err, -EINVAL, 400, "a key of a Google service account is only for registries of Google (gcr.io, REGION-docker.pkg.dev)");
		*ret = (struct login){"_json_key", c->gcp_service_account, NULL};
		return 1;
	}
	if (!c->username || !c->password)
		return 0;
	if (strchr(c->username, ':'))
		return error_set(err, -EINVAL, 400, "the user name for the registry has a ':' in it");
	*ret = (struct login){c->username, c->password, NULL};
	return 1;
}

/* Secrets go over verified TLS, unless the operator said otherwise. */
static int check_way(const struct registry *r, struct error *err)
{
	if (r->trusted || r->rules->insecure_credentials)
		return 0;
	return error_set(err, -EACCES, 400, "%s wants credentials, and the connection to it is not verified TLS: they are not sent (the operator may allow it by registry.insecure_credentials)",
		r->ref.registry);
}

static int set_authorization(struct registry *r, const char *scheme, struct str value, struct error *err)
{
	cleanup_secret struct buf line = BUF_INIT;
	buf_addf(&line, "%s %.*s", scheme, STR_FMT(value));
	if (line.failed)
		return error_set(err, -ENOMEM, 500, "out of memory");
	char *copy = str_dup(buf_str(&line));
	if (!copy)
		return error_set(err, -ENOMEM, 500, "out of memory");
	if (r->authorization)
		OPENSSL_cleanse(r->authorization, strlen(r->authorization));
	free(r->authorization);
	r->authorization = copy;
	return 0;
}

static int add_basic(const struct login *l, struct buf *to)
{
	cleanup_secret struct buf pair = BUF_INIT;
	buf_addf(&pair, "%s:%s", l->username, l->password);
	return pair.failed ? -ENOMEM : base64_encode(to, buf_str(&pair));
}

static int let_in_basic(struct registry *r, struct error *err)
{
	cleanup_login struct login l = {0};
	cleanup_secret struct buf value = BUF_INIT;
	if (r->authorization && str_starts(str_of(r->authorization), STR("Basic ")) && !(r->credentials && r->credentials->aws_access_key_id))
		return error_set(err, -EACCES, 400, "%s refuses the credentials", r->ref.registry);
	int e = r->credentials ? check_way(r, err) : 0;
	if (e == 0)
		e = find_login(r, &l, err);
	if (e < 0)
		return e;
	if (e == 0)
		return error_set(err, -EACCES, 400, "%s gives %s only to who has credentials", r->ref.registry, r->ref.repository);
	if (add_basic(&l, &value) < 0)
		return error_set(err, -ENOMEM, 500, "out of memory");
	return set_authorization(r, "Basic", buf_str(&value), err);
}

static int read_token(struct registry *r, struct str body, struct error *err)
{
	cleanup_json json_t *j = json_parse(body, TOKEN_ANSWER_MAX, "token", NULL);
	struct str token = json_str(json_object_get(j, "token"));
	if (!token.n)
		token = json_str(json_object_get(j, "access_token"));
	for (size_t i = 0; i < token.n; i++)
		if (token.p[i] <= ' ' || token.p[i] > '~')
			token.n = 0;
	if (!token.n || token.n > TOKEN_MAX)
		return error_set(err, -EIO, 502, "the token service of %s gives no token", r->ref.registry);
	return set_authorization(r, "Bearer", token, err);
}

static int token_answer(struct registry *r, const struct outbound_answer *a, struct error *err)
{
	if (a->status == 200)
		return read_token(r, buf_str(&a->body), err);
	if (a->status >= 400 && a->status < 500 && a->status != 408 && a->status != 429)
		return error_set(err, -EACCES, 400, "the token service of %s refuses %s", r->ref.registry, r->credentials ? "the credentials" : "who has no credentials");
	return error_set(err, -EIO, 502, "the token service of %s answers with status %d", r->ref.registry, a->status);
}

/* The token service's query, or form. */
static int add_query(const struct registry *r, const struct challenge *c, struct buf *to)
{
	buf_add_c(to, "service=");
	url_encode(to, str_of(c->service));
	buf_add_c(to, "&scope=");
	if (*c->scope) {
		url_encode(to, str_of(c->scope));
	} else {
		url_encode(to, STR("repository:"));
		url_encode(to, str_of(r->ref.repository));
		url_encode(to, STR(":pull"));
	}
	return to->failed ? -ENOMEM : 0;
}

static int ask_token(struct registry *r, const struct outbound_request *q, struct error *err)
{
	struct outbound_transfer *t;
	int e = 0;
	for (unsigned n = 1; n <= REGISTRY_TRIES; n++) {
		e = outbound_ask(r->out, q, &t, err);
		bool again = e < 0 ? registry_passing(e, 0) : registry_passing(0, outbound_answer(t)->status);
		if (!again || n == REGISTRY_TRIES)
			break;
		int wait = e < 0 ? 0 : outbound_answer(t)->retry_after;
		if (e == 0)
			outbound_end(t);
		e = registry_pause(r, registry_backoff(n, wait), err);
		if (e < 0)
			return e;
	}
	if (e < 0)
		return error_wrap(err, e, "the token service of %s", r->ref.registry);
	e = token_answer(r, outbound_answer(t), err);
	outbound_end(t);
	return e;
}

/* RFC 6749 §6, as the token services of registries understand it: an identity token is a refresh token. */
static int token_by_refresh(struct registry *r, const struct challenge *c, struct error *err)
{
	static const char *const headers[] = {"Content-Type: application/x-www-form-urlencoded", NULL};
	cleanup_secret struct buf form = BUF_INIT;
	buf_add_c(&form, "grant_type=refresh_token&client_id=cubicle&refresh_token=");
	url_encode(&form, str_of(r->credentials->identity_token));
	buf_add_c(&form, "&");
	if (add_query(r, c, &form) < 0)
		return error_set(err, -ENOMEM, 500, "out of memory");
	const struct outbound_request q = {.url = c->realm, .post = true, .body = buf_str(&form), .headers = headers, .unverified = r->rules->insecure_credentials, .stay = true, .max = TOKEN_ANSWER_MAX};
	return ask_token(r, &q, err);
}

static int token_by_get(struct registry *r, const struct challenge *c, const struct login *l, struct error *err)
{
	cleanup_buf struct buf url = BUF_INIT;
	cleanup_secret struct buf basic = BUF_INIT;
	buf_addf(&url, "%s%s", c->realm, strchr(c->realm, '?') ? "&" : "?");
	add_query(r, c, &url);
	if (l->username) {
		buf_add_c(&basic, "Basic ");
		add_basic(l, &basic);
	}
	const char *text = buf_cstr(&url), *authorization = buf_cstr(&basic);
	if (!text || !authorization || url.failed || basic.failed)
		return error_set(err, -ENOMEM, 500, "out of memory");
	const struct outbound_request q = {.url = text, .authorization = l->username ? authorization : NULL, .unverified = !l->username || r->rules->insecure_credentials, .max = TOKEN_ANSWER_MAX};
	return ask_token(r, &q, err);
}

static int let_in_bearer(struct registry *r, const struct challenge *c, struct error *err)
{
	cleanup_login struct login l = {0};
	bool secret = r->credentials, plain = !str_starts(str_of(c->realm), STR("https://"));
	int e = secret ? check_way(r, err) : 0;
	if (e < 0)
		return e;
	if (secret && plain && !r->rules->insecure_credentials)
		return error_set(err, -EACCES, 400, "the token service of %s is not reached over TLS: the credentials are not sent", r->ref.registry);
	if (secret && r->credentials->identity_token)
		return token_by_refresh(r, c, err);
	e = find_login(r, &l, err);
	return e < 0 ? e : token_by_get(r, c, &l, err);
}

int registry_let_in(struct registry *r, const struct outbound_answer *a, struct error *err)
{
	struct challenge c;
	if (++r->renewals > REGISTRY_RENEWALS)
		return error_set(err, -EACCES, 502, "%s wants new credentials again and again", r->ref.registry);
	if (challenge_parse(buf_str(&a->challenges), &c) < 0)
		return error_set(err, -EINVAL, 502, "%s answers 401 with a challenge that is malformed", r->ref.registry);
	if (c.bearer)
		return let_in_bearer(r, &c, err);
	if (c.basic)
		return let_in_basic(r, err);
	return error_set(err, -ENOTSUP, 502, "%s answers 401 without a challenge that is known (Basic, Bearer)", r->ref.registry);
}
