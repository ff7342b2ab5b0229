#include "mcp/remote.h"
#include "base/cleanup.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { CONNECT_TIMEOUT_S = 10, MAX_FAILURE = 64 * 1024 };

/* A handle for each thread, so that connections are used again. */
static pthread_key_t handles;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void drop_handle(void *easy)
{
	curl_easy_cleanup(easy);
}

static void prepare(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
	pthread_key_create(&handles, drop_handle);
}

void remote_init(void)
{
	pthread_once(&once, prepare);
}

static CURL *handle(void)
{
	remote_init();
	CURL *easy = pthread_getspecific(handles);
	if (!easy && (easy = curl_easy_init()))
		pthread_setspecific(handles, easy);
	if (easy)
		curl_easy_reset(easy);
	return easy;
}

struct transfer {
	const struct remote_request *q;
	CURL *easy;
	struct buf *answer;
	bool too_much, refused, cancelled;
};

static size_t take(char *p, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	size_t bytes = size * n, max = t->q->max;
	if (t->q->sink) {
		long status = 0;
		curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
		if (status == 200) {
			t->refused = !t->q->sink(str_n(p, bytes), t->q->arg);
			return t->refused ? 0 : bytes;
		}
		max = MAX_FAILURE;
	}
	t->too_much = buf_len(t->answer) + bytes > max;
	if (t->too_much || buf_add(t->answer, p, bytes) < 0)
		return 0;
	return bytes;
}

static int goes_on(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	struct transfer *t = arg;
	t->cancelled = t->q->cancelled && atomic_load(t->q->cancelled);
	return t->cancelled;
}

static void add(struct curl_slist **list, const char *name, const char *value)
{
	char line[1024];
	if (!value || (size_t)snprintf(line, sizeof(line), "%s: %s", name, value) >= sizeof(line))
		return;
	struct curl_slist *longer = curl_slist_append(*list, line);
	if (longer)
		*list = longer;
}

static struct curl_slist *headers_of(const struct remote_server *s, const struct remote_request *q)
{
	struct curl_slist *list = NULL;
	char port[12];
	add(&list, "Expect", "");
	if (q->body.n)
		add(&list, "Content-Type", q->content_type ? q->content_type : "application/json");
	if (q->header) {
		struct curl_slist *longer = curl_slist_append(list, q->header);
		list = longer ? longer : list;
	}
	if (!q->sandbox) {
		add(&list, "X-API-Key", s->key);
		add(&list, "X-Cubicle-Team", s->team);
		return list;
	}
	snprintf(port, sizeof(port), "%u", q->port);
	add(&list, "E2b-Sandbox-Id", q->sandbox);
	add(&list, "E2b-Sandbox-Port", port);
	add(&list, "X-Access-Token", q->token);
	return list;
}

static int failed(const struct transfer *t, CURLcode code, struct error *err)
{
	const struct remote_request *q = t->q;
	const char *what = q->sandbox ? "the sandbox" : "the server";
	if (t->cancelled)
		return error_set(err, -ECANCELED, 499, "cancelled");
	if (t->too_much)
		return error_set(err, -EMSGSIZE, 502, "%s sent more than %zu bytes", what, q->max);
	if (t->refused)
		return error_set(err, -EPIPE, 502, "%s sent what cannot be read", what);
	if (code == CURLE_OPERATION_TIMEDOUT)
		return error_set(err, -ETIMEDOUT, 504, "%s did not answer in %d s", what, q->timeout_s);
	if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
		return error_set(err, -ECONNREFUSED, 503, "the server cannot be reached");
	return error_set(err, -ECONNRESET, 502, "the connection to %s broke", what);
}

int remote_call(const struct remote_server *s, const struct remote_request *q, struct buf *answer, long *ret_status, struct error *err)
{
	cleanup_free char *url = NULL;
	CURL *easy = handle();
	if (!easy || asprintf(&url, "%s%s", q->sandbox ? s->sandbox_url : s->url, q->path) < 0)
		return error_errno(err, -ENOMEM, "request");
	struct transfer t = {.q = q, .easy = easy, .answer = answer};
	struct curl_slist *headers = headers_of(s, q);
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
	curl_easy_setopt(easy, CURLOPT_TIMEOUT, (long)q->timeout_s);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "cubicle/" CUBICLE_VERSION);
	const char *authorities = getenv("SSL_CERT_FILE");
	if (authorities && *authorities)
		curl_easy_setopt(easy, CURLOPT_CAINFO, authorities);
	if (s->socket) {
		curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, s->socket);
		curl_easy_setopt(easy, CURLOPT_PROXY, "");
	}
	if (q->body.n) {
		curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body.n);
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, q->body.p);
	} else if (!strcmp(q->method, "POST")) {
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, "");
	}
	curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, q->method);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, &t);
	curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, goes_on);
	curl_easy_setopt(easy, CURLOPT_XFERINFODATA, &t);
	CURLcode code = curl_easy_perform(easy);
	curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, ret_status);
	curl_slist_free_all(headers);
	return code == CURLE_OK ? 0 : failed(&t, code, err);
}
