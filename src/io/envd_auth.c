#include "io/envd_auth.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "base/sha256.h"
#include "io/url.h"

#include <errno.h>
#include <time.h>

static int refuse(int status, const char *message, const char **ret_message)
{
	*ret_message = message;
	return status;
}

/*
 * "v1_" and the unpadded base64 of SHA-256 over what is signed, joined with colons: all of it decoded, and as
 * the query has it (no user is an empty one). 0, -EINVAL or -ENOMEM.
 */
static int add_signature(const struct http_head *h, struct str token, struct str expiration, struct buf *to)
{
	cleanup_buf struct buf raw = BUF_INIT;
	int r = url_query_get(h->query, "path", &raw);
	buf_add_c(&raw, str_is(h->method, "POST") ? ":write:" : ":read:");
	if (r >= 0)
		r = url_query_get(h->query, "username", &raw);
	if (r < 0)
		return r;
	buf_add_c(&raw, ":");
	buf_add_str(&raw, token);
	if (expiration.n)
		buf_addf(&raw, ":%.*s", STR_FMT(expiration));
	if (raw.failed)
		return -ENOMEM;
	unsigned char digest[SHA256_SIZE];
	sha256(buf_str(&raw), digest);
	buf_add_c(to, "v1_");
	base64_encode(to, str_n(digest, sizeof(digest)));
	while (buf_len(to) && to->data[to->end - 1] == '=')
		to->end--;
	return to->failed ? -ENOMEM : 0;
}

/* The signature is looked at first, so that only who was given the URL learns of its expiry. */
static int check_signature(
	const struct http_head *h, struct str token, struct str sent, const char **ret_message)
{
	cleanup_buf struct buf expiration = BUF_INIT, wanted = BUF_INIT;
	int64_t expires = 0;
	int expiring = url_query_get(h->query, "signature_expiration", &expiration);
	/* An empty one is none to the signature, but must not pass for "never". */
	if (expiring > 0 && str_to_i64(buf_str(&expiration), &expires) < 0)
		return refuse(400, "invalid signature_expiration: want unix seconds", ret_message);
	int r = expiring < 0 ? expiring : add_signature(h, token, buf_str(&expiration), &wanted);
	if (r < 0)
		return r == -ENOMEM ? refuse(503, "no memory", ret_message)
				    : refuse(400, "malformed query string", ret_message);
	if (!str_eq_secret(sent, buf_str(&wanted)))
		return refuse(401, "invalid signature", ret_message);
	if (expiring && expires < time(NULL))
		return refuse(401, "signature is already expired", ret_message);
	return 0;
}

int envd_auth_refusal(const struct http_head *head, struct str token, const char **ret_message)
{
	const struct http_header *sent = http_find(head, "X-Access-Token");
	if (!token.n || (sent && str_eq_secret(sent->value, token)))
		return 0;
	if (!str_is(head->path, "/files"))
		return refuse(401,
			"unauthorized access, please provide a valid access token or method signing if "
			"supported",
			ret_message);
	if (sent && sent->value.n)
		return refuse(401, "access token present in header but does not match", ret_message);
	cleanup_buf struct buf signature = BUF_INIT;
	int r = url_query_get(head->query, "signature", &signature);
	if (r == -ENOMEM)
		return refuse(503, "no memory", ret_message);
	if (r < 0)
		return refuse(400, "malformed query string", ret_message);
	if (r == 0)
		return refuse(401, "missing signature query parameter", ret_message);
	return check_signature(head, token, buf_str(&signature), ret_message);
}
