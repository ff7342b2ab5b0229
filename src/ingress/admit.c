#include "ingress/admit.h"

#include "base/cleanup.h"
#include "io/envd_auth.h"

enum { ENVD_PORT = 49983 };

/* envd's own calls are for the host alone (e2b.md B.2). */
static const char *internal_path(struct str path)
{
	static const char *const paths[] = {"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"};
	cleanup_buf struct buf plain = BUF_INIT;
	if (route_normalize_path(&plain, path) < 0)
		return "?";
	for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
		if (str_is(buf_str(&plain), paths[i]))
			return paths[i];
	return NULL;
}

/* NULL when the request may pass. */
static const char *check_traffic_token(const struct http_head *h, const struct index_sandbox *s)
{
	const struct http_header *token = http_find(h, "E2b-Traffic-Access-Token");
	if (!token)
		token = http_find(h, "Cube-Traffic-Access-Token");
	if (!token)
		return "The traffic access token is missing: send it in the header e2b-traffic-access-token";
	return str_eq_secret(token->value, s->traffic_token) ? NULL : "The traffic access token in the header e2b-traffic-access-token is invalid";
}

/* A running envd looks at its token itself. A paused one cannot, and who has none must not be able to wake it. */
static const char *check_envd_token(const struct http_head *h, const struct index_sandbox *s)
{
	const char *message;
	return envd_auth_refusal(h, s->envd_token, &message) ? "The sandbox is paused, and the request has no valid access token to resume it" : NULL;
}

bool admit_wakes(const struct index_sandbox *s)
{
	return s && s->auto_resume && index_is_paused(s);
}

enum admission admit(const struct sandbox_index *ix, const struct index_sandbox *s, const struct http_head *h, const struct route *route, struct page *ret)
{
	bool wake = admit_wakes(s);
	*ret = (struct page){.sandbox = route->id};
	if (!s || !(wake || index_is_running(s))) {
		ret->status = index_ready(ix) ? 502 : 503;
		ret->message = ret->status == 502 ? "The sandbox was not found" : "The server is starting. Try again in a moment.";
		ret->retry_after = ret->status == 503 ? 1 : 0;
	} else if (str_is(h->method, "CONNECT")) {
		ret->status = 501;
		ret->message = "CONNECT is not supported";
	} else if (route->port == ENVD_PORT && (ret->path = internal_path(h->path))) {
		ret->status = 404;
		ret->message = "This path is not reachable from outside";
		ret->sandbox = NULL;
	} else if (route->port == ENVD_PORT && s->envd_token.n) {
		ret->message = wake ? check_envd_token(h, s) : NULL;
		ret->status = ret->message ? 403 : 0;
	} else if (s->traffic_token.n) {
		/* Where envd has no token of its own, this one is all that guards it (e2b.md A.5.2). */
		ret->message = check_traffic_token(h, s);
		ret->status = ret->message ? 403 : 0;
	}
	if (ret->status == 403 && wake)
		ret->sandbox = NULL;
	if (ret->status)
		return ADMIT_REFUSE;
	return wake ? ADMIT_WAKE : ADMIT_PASS;
}
