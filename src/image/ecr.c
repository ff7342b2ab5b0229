#include "image/ecr.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "io/json.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <time.h>

enum { REGION_MAX = 64, ANSWER_MAX = 256 * 1024 };

static void hmac(const void *key, size_t n, struct str what, unsigned char out[SHA256_DIGEST_LENGTH])
{
	unsigned length = 0;
	HMAC(EVP_sha256(), key, (int)n, (const unsigned char *)what.p, what.n, out, &length);
}

static void digest_hex(struct str what, char to[2 * SHA256_DIGEST_LENGTH + 1])
{
	unsigned char d[SHA256_DIGEST_LENGTH];
	SHA256((const unsigned char *)what.p, what.n, d);
	hex_encode(to, d, sizeof(d));
}

static void add_signed_headers(const struct aws_request *q, struct buf *to)
{
	for (size_t i = 0; q->headers[i]; i++)
		buf_addf(to, "%s%.*s", i ? ";" : "", (int)strcspn(q->headers[i], ":"), q->headers[i]);
}

static void canonical(const struct aws_request *q, struct buf *to)
{
	char body[2 * SHA256_DIGEST_LENGTH + 1];
	buf_addf(to, "%s\n%s\n%s\n", q->method, q->path, q->query);
	for (size_t i = 0; q->headers[i]; i++) {
		size_t name = strcspn(q->headers[i], ":");
		buf_addf(to, "%.*s:%s\n", (int)name, q->headers[i], q->headers[i] + name + 1 + strspn(q->headers[i] + name + 1, " "));
	}
	buf_add_c(to, "\n");
	add_signed_headers(q, to);
	digest_hex(q->body, body);
	buf_addf(to, "\n%s", body);
}

int aws_sign(const struct aws_request *q, struct buf *to)
{
	cleanup_buf struct buf request = BUF_INIT, text = BUF_INIT, key = BUF_INIT;
	unsigned char k[SHA256_DIGEST_LENGTH];
	char hash[2 * SHA256_DIGEST_LENGTH + 1], scope[192];
	snprintf(scope, sizeof(scope), "%.8s/%s/%s/aws4_request", q->date, q->region, q->service);
	canonical(q, &request);
	digest_hex(buf_str(&request), hash);
	buf_addf(&text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", q->date, scope, hash);
	buf_addf(&key, "AWS4%s", q->secret_access_key);
	if (request.failed || text.failed || key.failed)
		return -ENOMEM;
	hmac(key.data, buf_len(&key), str_n(q->date, 8), k);
	OPENSSL_cleanse(key.data, buf_len(&key));
	hmac(k, sizeof(k), str_of(q->region), k);
	hmac(k, sizeof(k), str_of(q->service), k);
	hmac(k, sizeof(k), STR("aws4_request"), k);
	hmac(k, sizeof(k), buf_str(&text), k);
	hex_encode(hash, k, sizeof(k));
	OPENSSL_cleanse(k, sizeof(k));
	buf_addf(to, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=", q->access_key_id, scope);
	add_signed_headers(q, to);
	buf_addf(to, ", Signature=%s", hash);
	return to->failed ? -ENOMEM : 0;
}

/* Becomes part of a host name. */
static bool region_valid(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (!(s.p[i] >= 'a' && s.p[i] <= 'z') && !(s.p[i] >= '0' && s.p[i] <= '9') && s.p[i] != '-')
			return false;
	return s.n && s.n < REGION_MAX;
}

/* Parts of an ECR host. China's regions have a domain of their own. */
static bool split_host(struct str host, struct str *ret_region, struct str *ret_domain)
{
	struct str account, dkr, ecr;
	if (!str_cut(host, '.', &account, &host) || !str_cut(host, '.', &dkr, &host) || !str_cut(host, '.', &ecr, &host) || !str_cut(host, '.', ret_region, &host))
		return false;
	for (size_t i = 0; i < account.n; i++)
		if (account.p[i] < '0' || account.p[i] > '9')
			return false;
	*ret_domain = host;
	return account.n == 12 && str_is(dkr, "dkr") && (str_is(ecr, "ecr") || str_is(ecr, "ecr-fips")) && region_valid(*ret_region)
		&& (str_is(host, "amazonaws.com") || str_is(host, "amazonaws.com.cn"));
}

bool ecr_region(struct str registry, char ret_region[64])
{
	struct str region, domain;
	if (!split_host(registry, &region, &domain))
		return false;
	memcpy(ret_region, region.p, region.n);
	ret_region[region.n] = 0;
	return true;
}

static int read_token(struct str body, char **ret, struct error *err)
{
	cleanup_json json_t *j = json_parse(body, ANSWER_MAX, "Amazon's answer", err);
	cleanup_buf struct buf pair = BUF_INIT;
	if (!j)
		return -EINVAL;
	struct str token = json_str(json_object_get(json_array_get(json_object_get(j, "authorizationData"), 0), "authorizationToken"));
	struct str user, password;
	int r = -EINVAL;
	if (token.n && base64_decode(&pair, token) == 0 && str_cut(buf_str(&pair), ':', &user, &password) && str_is(user, "AWS") && password.n) {
		*ret = str_dup(password);
		r = *ret ? 0 : error_set(err, -ENOMEM, 500, "out of memory");
	} else {
		error_set(err, r, 502, "Amazon's answer holds no token for the registry");
	}
	if (pair.data)
		OPENSSL_cleanse(pair.data, pair.cap);
	return r;
}

/* What Amazon says: "__type" is a name of an error of theirs. */
static int refused(const struct outbound_answer *a, struct error *err)
{
	cleanup_json json_t *j = json_parse(buf_str(&a->body), OUTBOUND_ERROR_MAX, "answer", NULL);
	struct str type = json_str(json_object_get(j, "__type"));
	for (size_t i = 0; i < type.n; i++)
		if (type.p[i] <= ' ' || type.p[i] > '~')
			type.n = 0;
	return error_set(err, -EACCES, 400, "Amazon refuses to give a token for the registry: status %d%s%.*s", a->status, type.n ? ", " : "", (int)MIN(type.n, (size_t)100), type.p);
}

static int ask(struct outbound *o, const char *url, const char *const *headers, const char *authorization, char **ret, struct error *err)
{
	const struct outbound_request q = {.url = url, .post = true, .body = STR("{}"), .headers = headers, .authorization = authorization, .stay = true, .max = ANSWER_MAX};
	struct outbound_transfer *t;
	int r = outbound_ask(o, &q, &t, err);
	if (r < 0)
		return error_wrap(err, r, "a token for Amazon's registry");
	const struct outbound_answer *a = outbound_answer(t);
	r = a->status == 200 ? read_token(buf_str(&a->body), ret, err) : refused(a, err);
	outbound_end(t);
	return r;
}

int ecr_login(struct outbound *o, const struct source_credentials *c, struct str registry, const char *endpoint, char **ret, struct error *err)
{
	struct str region, domain;
	char url[256], region_text[REGION_MAX], host_line[300], host[REFERENCE_REGISTRY_MAX], date[32], date_line[64];
	if (!split_host(registry, &region, &domain))
		return error_set(err, -EINVAL, 400, "AWS keys are only for registries of Amazon (ACCOUNT.dkr.ecr.REGION.amazonaws.com)");
	if (c->aws_region && *c->aws_region && !str_is(region, c->aws_region))
		return error_set(err, -EINVAL, 400, "the registry is in the region %.*s, the keys are said to be for another one", STR_FMT(region));
	snprintf(region_text, sizeof(region_text), "%.*s", STR_FMT(region));
	snprintf(url, sizeof(url), "https://api.ecr.%s.%.*s/", region_text, STR_FMT(domain));
	time_t now = time(NULL);
	struct tm tm;
	strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
	snprintf(host_line, sizeof(host_line), "host: %s", outbound_host(endpoint ? endpoint : url, host));
	snprintf(date_line, sizeof(date_line), "x-amz-date: %s", date);
	const char *const headers[] = {"content-type: application/x-amz-json-1.1", host_line, date_line, "x-amz-target: AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", NULL};
	const struct aws_request q = {"POST", "/", "", headers, STR("{}"), "ecr", region_text, date, c->aws_access_key_id, c->aws_secret_access_key};
	cleanup_buf struct buf line = BUF_INIT;
	if (strpbrk(c->aws_access_key_id, "\r\n /,") || !*c->aws_access_key_id)
		return error_set(err, -EINVAL, 400, "the AWS access key id is no such id");
	if (aws_sign(&q, &line) < 0)
		return error_set(err, -ENOMEM, 500, "out of memory");
	const char *authorization = buf_cstr(&line);
	return authorization ? ask(o, endpoint ? endpoint : url, headers, authorization, ret, err) : error_set(err, -ENOMEM, 500, "out of memory");
}
