#include "image/outbound.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "image/outbound_place.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	SLOWEST = 1024,       /* bytes a second */
	CONNECT_S = 15,
	BUFFER = 128 * 1024,  /* that curl reads at once */
	CONNECTIONS = 16,     /* kept for further requests */
};

struct outbound {
	struct outbound_rules rules;
	CURLM *multi;
	struct places places;
};

struct outbound_transfer {
	struct outbound *o;
	struct outbound_request q;
	char *authorization; /* a copy of q's, wiped at the end */
	CURL *easy;
	bool added, done, head_over;
	struct curl_slist *headers, *pins;
	char *url;                 /* of this hop */
	struct place origin;       /* of the request: what the credentials are for */
	const struct place *place; /* of this hop */
	bool authorized;           /* every hop was the origin */
	unsigned hops;
	size_t head_bytes;
	char *location;
	struct outbound_answer a;
	struct error err;
	char detail[CURL_ERROR_SIZE];
	int64_t deadline; /* monotonic; 0: none */
};

int outbound_check_ca(struct str pem, struct error *err)
{
	if (!pem.n)
		return 0;
	BIO *in = BIO_new_mem_buf(pem.p, (int)MIN(pem.n, (size_t)INT32_MAX));
	X509 *first = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;
	int r = first ? 0 : error_set(err, -EINVAL, 400, "registry.ca holds no certificate (PEM)");
	X509_free(first);
	BIO_free(in);
	ERR_clear_error();
	return r;
}

int outbound_new(struct outbound **ret, const struct outbound_rules *rules, struct error *err)
{
	int r = outbound_check_ca(rules->ca_pem, err);
	if (r < 0)
		return r;
	struct outbound *o = calloc(1, sizeof(*o));
	if (!o)
		return error_set(err, -ENOMEM, 500, "out of memory");
	o->rules = *rules;
	if (!o->rules.patience_s)
		o->rules.patience_s = 30;
	if (!o->rules.total_s)
		o->rules.total_s = 120;
	o->places.registries = rules->registries;
	r = own_addresses_read(&o->places.own, rules->own_range ? rules->own_range : "");
	if (r < 0) {
		free(o);
		return error_errno(err, r, "this machine's addresses");
	}
	curl_global_init(CURL_GLOBAL_DEFAULT);
	o->multi = curl_multi_init();
	if (!o->multi) {
		outbound_free(o);
		return error_set(err, -ENOMEM, 500, "out of memory");
	}
	curl_multi_setopt(o->multi, CURLMOPT_MAXCONNECTS, (long)CONNECTIONS);
	*ret = o;
	return 0;
}

void outbound_free(struct outbound *o)
{
	if (!o)
		return;
	if (o->multi)
		curl_multi_cleanup(o->multi);
	curl_global_cleanup();
	places_done(&o->places);
	free(o);
}

char *outbound_host(const char *url, char to[REFERENCE_REGISTRY_MAX])
{
	cleanup_free char *normal = NULL;
	struct place p;
	strcpy(to, "?");
	return place_parse(NULL, url, &normal, &p, NULL) < 0 ? to : place_name(&p, to);
}

static bool success(const struct outbound_transfer *t)
{
	return t->a.status == 200 || t->a.status == 206;
}

/* The only sockets that are made are to addresses that were judged, whatever curl thinks the name resolves to. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
	const struct outbound_transfer *t = arg;
	for (size_t i = 0; purpose == CURLSOCKTYPE_IPCXN && i < t->place->n; i++)
		if (address_equal((const struct sockaddr *)&t->place->addresses[i], &a->addr))
			return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
	return CURL_SOCKET_BAD;
}

static void reset_head(struct outbound_transfer *t)
{
	struct buf challenges = t->a.challenges, body = t->a.body;
	buf_clear(&challenges);
	buf_clear(&body);
	t->a = (struct outbound_answer){.length = -1, .from = -1, .to = -1, .whole = -1, .elsewhere = t->a.elsewhere, .trusted = t->a.trusted, .challenges = challenges, .body = body};
	free(t->location);
	t->location = NULL;
}

static void read_status(struct outbound_transfer *t, struct str line)
{
	struct str version, rest;
	uint64_t status = 0;
	reset_head(t);
	if (str_cut(line, ' ', &version, &rest) && rest.n >= 3 && str_to_u64(str_n(rest.p, 3), &status) == 0)
		t->a.status = (int)status;
}

static void read_range(struct outbound_transfer *t, struct str v)
{
	struct str span, whole, from, to;
	uint64_t a, b, n = 0;
	if (!str_starts(v, STR("bytes ")) || !str_cut(str_from(v, 6), '/', &span, &whole) || !str_cut(span, '-', &from, &to))
		return;
	bool known = !str_is(whole, "*");
	if (str_to_u64(from, &a) < 0 || str_to_u64(to, &b) < 0 || a > b || b > INT64_MAX || (known && (str_to_u64(whole, &n) < 0 || n > INT64_MAX || b >= n)))
		return;
	t->a.from = (int64_t)a;
	t->a.to = (int64_t)b;
	t->a.whole = known ? (int64_t)n : -1;
}

static void read_type(struct outbound_transfer *t, struct str v)
{
	struct str rest;
	str_cut(v, ';', &v, &rest);
	v = str_trim(v);
	if (v.n >= sizeof(t->a.content_type))
		return;
	for (size_t i = 0; i < v.n; i++)
		t->a.content_type[i] = v.p[i] >= 'A' && v.p[i] <= 'Z' ? (char)(v.p[i] + 'a' - 'A') : v.p[i];
	t->a.content_type[v.n] = 0;
}

static int read_header(struct outbound_transfer *t, struct str line)
{
	struct str name, v;
	uint64_t n;
	if (!str_cut(line, ':', &name, &v))
		return 0;
	v = str_trim(v);
	if (str_eq_nocase(name, STR("content-type"))) {
		read_type(t, v);
	} else if (str_eq_nocase(name, STR("docker-content-digest"))) {
		if (reference_digest_valid(v))
			memcpy(t->a.digest, v.p, v.n);
	} else if (str_eq_nocase(name, STR("content-length"))) {
		if (str_to_u64(v, &n) == 0 && n <= INT64_MAX)
			t->a.length = (int64_t)n;
	} else if (str_eq_nocase(name, STR("content-range"))) {
		read_range(t, v);
	} else if (str_eq_nocase(name, STR("www-authenticate"))) {
		if (buf_len(&t->a.challenges) + v.n + 1 > OUTBOUND_CHALLENGE_MAX)
			return -EFBIG;
		buf_add_str(&t->a.challenges, v);
		return buf_add_c(&t->a.challenges, "\n");
	} else if (str_eq_nocase(name, STR("location"))) {
		free(t->location);
		t->location = memchr(v.p, 0, v.n) ? NULL : str_dup(v);
	}
	return 0;
}

static size_t fail(struct outbound_transfer *t, int code, int status, const char *why)
{
	char name[REFERENCE_REGISTRY_MAX];
	if (!t->err.code)
		error_set(&t->err, code, status, "%s: %s", place_name(t->place, name), why);
	return 0;
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
	struct outbound_transfer *t = arg;
	struct str line = str_n(p, size * n);
	t->head_bytes += line.n;
	if (t->head_bytes > OUTBOUND_HEADERS_MAX)
		return fail(t, -EFBIG, 502, "the head of the answer is too long");
	while (line.n && (line.p[line.n - 1] == '\r' || line.p[line.n - 1] == '\n'))
		line.n--;
	if (t->head_over)
		return size * n; /* a trailer */
	if (str_starts(line, STR("HTTP/"))) {
		read_status(t, line);
	} else if (line.n) {
		if (read_header(t, line) < 0)
			return fail(t, -EFBIG, 502, "the head of the answer is too long");
	} else if (t->a.status >= 200) {
		t->head_over = true;
		if (success(t) && t->q.head && t->q.head(t->q.arg, &t->err) < 0)
			return 0;
	}
	return size * n;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
	struct outbound_transfer *t = arg;
	size_t bytes = size * n;
	if (success(t) && t->q.data)
		return t->q.data(t->q.arg, p, bytes, &t->err) < 0 ? 0 : bytes;
	size_t most = success(t) ? t->q.max : OUTBOUND_ERROR_MAX;
	if (buf_len(&t->a.body) + bytes > most)
		return fail(t, -EFBIG, 502, "the answer is longer than allowed");
	if (buf_add(&t->a.body, p, bytes) < 0)
		return fail(t, -ENOMEM, 500, "out of memory");
	return bytes;
}

/* One of them may be a secret. */
static void free_headers(struct outbound_transfer *t)
{
	for (struct curl_slist *h = t->headers; h; h = h->next)
		OPENSSL_cleanse(h->data, strlen(h->data));
	curl_slist_free_all(t->headers);
	t->headers = NULL;
}

static int add_header(struct outbound_transfer *t, const char *line, struct error *err)
{
	if (strpbrk(line, "\r\n"))
		return error_set(err, -EINVAL, 400, "a header with a line break");
	struct curl_slist *more = curl_slist_append(t->headers, line);
	if (!more)
		return error_set(err, -ENOMEM, 500, "out of memory");
	t->headers = more;
	return 0;
}

static int make_headers(struct outbound_transfer *t, struct error *err)
{
	free_headers(t);
	int r = add_header(t, "Expect:", err);
	for (size_t i = 0; r == 0 && t->q.headers && t->q.headers[i]; i++)
		r = add_header(t, t->q.headers[i], err);
	if (r == 0 && t->authorized && t->authorization)
		r = add_header(t, t->authorization, err);
	return r;
}

/* curl is told the judged addresses, so it resolves nothing. An IPv6 address has no pin, whose form has no place for it: open_socket() sees to that. */
static int make_pins(struct outbound_transfer *t, struct error *err)
{
	cleanup_buf struct buf pin = BUF_INIT;
	curl_slist_free_all(t->pins);
	t->pins = NULL;
	if (*t->place->host == '[')
		return 0;
	buf_addf(&pin, "%s:%u:", t->place->host, t->place->port);
	for (size_t i = 0; i < t->place->n; i++) {
		char text[INET6_ADDRSTRLEN];
		const struct sockaddr_storage *a = &t->place->addresses[i];
		if (a->ss_family == AF_INET)
			inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, text, sizeof(text));
		else
			inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, text, sizeof(text));
		buf_addf(&pin, i ? ",%s%s%s" : "%s%s%s", a->ss_family == AF_INET6 ? "[" : "", text, a->ss_family == AF_INET6 ? "]" : "");
	}
	const char *text = buf_cstr(&pin);
	t->pins = text && !pin.failed ? curl_slist_append(NULL, text) : NULL;
	return t->pins ? 0 : error_set(err, -ENOMEM, 500, "out of memory");
}

static int set_options(struct outbound_transfer *t)
{
	CURL *c = t->easy;
	const struct outbound_rules *rules = &t->o->rules;
	bool lax = t->q.unverified && registries_insecure(rules->registries, str_of(t->place->host), t->place->port, t->place->tls);
	t->a.trusted = t->a.trusted && t->place->tls && !lax;
	curl_easy_reset(c);
	CURLcode e = curl_easy_setopt(c, CURLOPT_URL, t->url);
#define SET(option, value) e = e ? e : curl_easy_setopt(c, option, value)
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_PROXY, "");
	SET(CURLOPT_NOPROXY, "*");
	SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_USERAGENT, "cubicle/" CUBICLE_VERSION);
	SET(CURLOPT_HTTPHEADER, t->headers);
	SET(CURLOPT_RESOLVE, t->pins);
	SET(CURLOPT_DNS_CACHE_TIMEOUT, -1L);
	SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
	SET(CURLOPT_OPENSOCKETDATA, t);
	SET(CURLOPT_SSL_VERIFYPEER, lax ? 0L : 1L);
	SET(CURLOPT_SSL_VERIFYHOST, lax ? 0L : 2L);
	SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	SET(CURLOPT_CONNECTTIMEOUT, (long)MIN((unsigned)CONNECT_S, rules->patience_s));
	SET(CURLOPT_LOW_SPEED_LIMIT, (long)SLOWEST);
	SET(CURLOPT_LOW_SPEED_TIME, (long)rules->patience_s);
	SET(CURLOPT_BUFFERSIZE, (long)BUFFER);
	SET(CURLOPT_HEADERFUNCTION, on_header);
	SET(CURLOPT_HEADERDATA, t);
	SET(CURLOPT_WRITEFUNCTION, on_body);
	SET(CURLOPT_WRITEDATA, t);
	SET(CURLOPT_ERRORBUFFER, t->detail);
	SET(CURLOPT_PRIVATE, t);
	if (rules->ca_pem.n) {
		struct curl_blob blob = {(void *)rules->ca_pem.p, rules->ca_pem.n, CURL_BLOB_NOCOPY};
		SET(CURLOPT_CAINFO_BLOB, &blob);
	}
	if (t->q.post) {
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->q.body.n);
		SET(CURLOPT_POSTFIELDS, t->q.body.n ? t->q.body.p : "");
	}
#undef SET
	return e ? -EINVAL : 0;
}

/* Begins with t->url, whose place was parsed to *where. */
static int begin_hop(struct outbound_transfer *t, const struct place *where, struct error *err)
{
	int r = places_find(&t->o->places, where, &t->place, err);
	if (r < 0)
		return r;
	bool home = place_same(where, &t->origin);
	t->authorized = t->authorized && home;
	t->a.elsewhere = !home;
	t->head_bytes = 0;
	t->head_over = false;
	*t->detail = 0;
	reset_head(t);
	r = make_headers(t, err);
	if (r == 0)
		r = make_pins(t, err);
	if (r < 0)
		return r;
	if (set_options(t) < 0 || curl_multi_add_handle(t->o->multi, t->easy))
		return error_set(err, -EIO, 500, "a request could not be made");
	t->added = true;
	return 0;
}

int outbound_begin(struct outbound *o, const struct outbound_request *q, struct outbound_transfer **ret, struct error *err)
{
	struct outbound_transfer *t = calloc(1, sizeof(*t));
	if (!t || !(t->easy = curl_easy_init())) {
		free(t);
		return error_set(err, -ENOMEM, 500, "out of memory");
	}
	t->o = o;
	t->q = *q;
	t->authorized = t->a.trusted = true;
	t->deadline = q->data ? 0 : clock_monotonic() + o->rules.total_s * NS_PER_S;
	int r = place_parse(NULL, q->url, &t->url, &t->origin, err);
	if (r == 0 && q->authorization && asprintf(&t->authorization, "Authorization: %s", q->authorization) < 0) {
		t->authorization = NULL;
		r = error_set(err, -ENOMEM, 500, "out of memory");
	}
	if (r == 0)
		r = begin_hop(t, &t->origin, err);
	if (r < 0) {
		outbound_end(t);
		return r;
	}
	*ret = t;
	return 0;
}

const struct outbound_answer *outbound_answer(const struct outbound_transfer *t)
{
	return &t->a;
}

void outbound_end(struct outbound_transfer *t)
{
	if (!t)
		return;
	if (t->added)
		curl_multi_remove_handle(t->o->multi, t->easy);
	curl_easy_cleanup(t->easy);
	free_headers(t);
	if (t->authorization)
		OPENSSL_cleanse(t->authorization, strlen(t->authorization));
	free(t->authorization);
	curl_slist_free_all(t->pins);
	buf_done(&t->a.challenges);
	buf_done(&t->a.body);
	free(t->location);
	free(t->url);
	free(t);
}

static void explain(struct outbound_transfer *t, CURLcode e)
{
	/* curl's own detail only where it is about the certificate: elsewhere it may quote a URL. */
	char why[CURL_ERROR_SIZE + 64];
	switch ((int)e) {
	case CURLE_OPERATION_TIMEDOUT:
		fail(t, -ETIMEDOUT, 504, t->a.status ? "the answer comes too slowly" : "no answer in time");
		break;
	case CURLE_COULDNT_CONNECT:
		fail(t, -ECONNREFUSED, 502, "the connection was refused");
		break;
	case CURLE_COULDNT_RESOLVE_HOST:
		fail(t, -EHOSTUNREACH, 502, "the name has no address");
		break;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
		snprintf(why, sizeof(why), "TLS: %s", *t->detail ? t->detail : curl_easy_strerror(e));
		fail(t, -EPROTO, 502, why);
		break;
	case CURLE_PARTIAL_FILE:
		fail(t, -ECONNRESET, 502, "the answer ended before it was complete");
		break;
	case CURLE_GOT_NOTHING:
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
		fail(t, -ECONNRESET, 502, "the connection broke");
		break;
	case CURLE_OUT_OF_MEMORY:
		fail(t, -ENOMEM, 500, "out of memory");
		break;
	default:
		fail(t, -EIO, 502, "what it answers is no HTTP");
	}
}

static bool redirects(const struct outbound_transfer *t)
{
	int s = t->a.status;
	return s == 301 || s == 302 || s == 303 || s == 307 || s == 308;
}

static int follow(struct outbound_transfer *t)
{
	char from[REFERENCE_REGISTRY_MAX];
	cleanup_free char *next = NULL;
	struct place where;
	place_name(t->place, from);
	if (t->q.stay || t->q.post)
		return error_set(&t->err, -EIO, 502, "%s: redirects to another place where none is allowed", from);
	if (!t->location)
		return error_set(&t->err, -EIO, 502, "%s: redirects without saying where", from);
	if (++t->hops > OUTBOUND_HOPS)
		return error_set(&t->err, -ELOOP, 502, "%s: more than %d redirects", from, OUTBOUND_HOPS);
	int r = place_parse(t->url, t->location, &next, &where, &t->err);
	if (r == 0) {
		free(t->url);
		t->url = steal_pointer(&next);
		r = begin_hop(t, &where, &t->err);
	}
	return r < 0 ? error_wrap(&t->err, r, "%s redirects", from) : 0;
}

/* One hop is over. */
static void finish_hop(struct outbound_transfer *t, CURLcode e)
{
	curl_off_t wait = 0;
	curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &wait);
	curl_multi_remove_handle(t->o->multi, t->easy);
	t->added = false;
	t->a.retry_after = (int)(wait < 0 ? 0 : MIN(wait, (curl_off_t)3600));
	if (e == CURLE_OK && !t->err.code && redirects(t)) {
		if (follow(t) == 0)
			return;
	} else if (e != CURLE_OK && !t->err.code) {
		explain(t, e);
	}
	t->done = true;
}

static void check_time(struct outbound_transfer *t)
{
	if (t->done || !t->deadline || clock_monotonic() < t->deadline)
		return;
	fail(t, -ETIMEDOUT, 504, "no answer in time");
	if (t->added)
		curl_multi_remove_handle(t->o->multi, t->easy);
	t->added = false;
	t->done = true;
}

/* Whether a hop was over. */
static bool collect(struct outbound *o)
{
	bool any = false;
	int queued;
	for (CURLMsg *m; (m = curl_multi_info_read(o->multi, &queued));) {
		struct outbound_transfer *t = NULL;
		CURLcode e = m->data.result;
		if (m->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
		finish_hop(t, e);
		any = true;
	}
	return any;
}

int outbound_run(struct outbound *o, int ms, struct error *err)
{
	int left;
	if (o->rules.cancelled && o->rules.cancelled(o->rules.arg))
		return error_set(err, -ECANCELED, 499, "the build was ended");
	curl_multi_perform(o->multi, &left);
	if (collect(o) || !left)
		return 0;
	curl_multi_poll(o->multi, NULL, 0, ms, NULL);
	curl_multi_perform(o->multi, &left);
	collect(o);
	return 0;
}

int outbound_state(const struct outbound_transfer *t, struct error *err)
{
	if (!t->done)
		return 1;
	if (t->err.code && err)
		*err = t->err;
	return t->err.code;
}

int outbound_ask(struct outbound *o, const struct outbound_request *q, struct outbound_transfer **ret, struct error *err)
{
	struct outbound_transfer *t;
	int r = outbound_begin(o, q, &t, err);
	if (r < 0)
		return r;
	while (r == 0 && outbound_state(t, NULL) > 0) {
		r = outbound_run(o, 200, err);
		check_time(t);
	}
	if (r == 0)
		r = outbound_state(t, err);
	if (r < 0) {
		outbound_end(t);
		return r;
	}
	*ret = t;
	return 0;
}
