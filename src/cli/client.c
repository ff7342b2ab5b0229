#include "cli/client.h"
#include "base/cleanup.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <string.h>

enum { MAX_ANSWER = 64 << 20, CALL_TIMEOUT_S = 75, CONNECT_TIMEOUT_S = 10, STALLED_S = 120 };

static const char *variable(const char *name)
{
	const char *v = getenv(name);
	return v && *v ? v : NULL;
}

static char *without_slash(const char *url)
{
	struct str s = str_of(url);
	while (s.n && s.p[s.n - 1] == '/')
		s.n--;
	return str_dup(s);
}

static int make_handle(struct client *cl, const struct cli *c, struct error *err)
{
	if (c->team && !cl->socket) {
		client_close(cl);
		return error_set(err, -EACCES, 403, "--team needs root on the server's machine; elsewhere a key of the team acts for it");
	}
	if (c->team) {
		cleanup_buf struct buf team = BUF_INIT;
		url_encode(&team, str_of(c->team));
		cl->team = buf_cstr(&team) ? str_dup(buf_str(&team)) : NULL;
	}
	curl_global_init(CURL_GLOBAL_DEFAULT);
	cl->easy = curl_easy_init();
	if (cl->url && cl->sandbox_url && cl->easy && (cl->team || !c->team))
		return 0;
	client_close(cl);
	return error_errno(err, -ENOMEM, "client");
}

int client_open_admin(struct client *cl, const struct cli *c, struct error *err)
{
	*cl = (struct client){0};
	if (asprintf(&cl->socket, "%s/admin.sock", c->options.state_dir) < 0)
		return error_errno(err, -ENOMEM, "client");
	if (geteuid() != 0) {
		client_close(cl);
		return error_set(err, -EACCES, 403, "%s needs root on the server's machine", c->command->name);
	}
	cl->url = str_dup(STR("http://localhost"));
	cl->sandbox_url = str_dup(STR("http://localhost"));
	return make_handle(cl, c, err);
}

int client_open(struct client *cl, const struct cli *c, struct error *err)
{
	*cl = (struct client){0};
	const char *url = variable("CUBICLE_API_URL"), *key = variable("CUBICLE_API_KEY"), *sandbox_url = NULL;
	cleanup_free char *socket = NULL;
	if (asprintf(&socket, "%s/admin.sock", c->options.state_dir) < 0)
		return error_errno(err, -ENOMEM, "client");
	if (!url && access(socket, R_OK | W_OK) == 0) {
		cl->socket = steal_pointer(&socket);
		url = "http://localhost";
	} else if (!url && (url = variable("E2B_API_URL"))) {
		key = key ? key : variable("E2B_API_KEY");
		sandbox_url = variable("E2B_SANDBOX_URL");
	}
	cleanup_free char *by_domain = NULL;
	if (!url && variable("E2B_DOMAIN") && variable("E2B_API_KEY")) {
		/* As the E2B clients do it. Sandboxes are reached by headers, which need no names of their own. */
		if (asprintf(&by_domain, "https://api.%s", variable("E2B_DOMAIN")) < 0)
			return error_errno(err, -ENOMEM, "client");
		url = by_domain;
	}
	if (!key)
		key = variable("E2B_API_KEY");
	cl->url = url ? without_slash(url) : options_listen_url(&c->options);
	cl->sandbox_url = sandbox_url ? without_slash(sandbox_url) : cl->url ? str_dup(str_of(cl->url)) : NULL;
	cl->key = key && !cl->socket ? str_dup(str_of(key)) : NULL;
	return make_handle(cl, c, err);
}

void client_close(struct client *cl)
{
	curl_easy_cleanup(cl->easy);
	free(cl->url);
	free(cl->sandbox_url);
	free(cl->socket);
	free(cl->key);
	free(cl->team);
	*cl = (struct client){0};
}

int client_transfer_error(const struct client *cl, CURLcode code, const char *text, struct error *err)
{
	const char *where = cl->socket ? cl->socket : cl->url;
	if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
		return error_set(err, -ECONNREFUSED, 503, "no server answers at %s: start one with `cubicle serve`, or name another by CUBICLE_API_URL and CUBICLE_API_KEY",
			where);
	if (code == CURLE_OPERATION_TIMEDOUT)
		return error_set(err, -ETIMEDOUT, 504, "%s did not answer in time", where);
	if (code == CURLE_FILESIZE_EXCEEDED || code == CURLE_WRITE_ERROR)
		return error_set(err, -EMSGSIZE, 502, "%s sent more than this command takes", where);
	return error_set(err, -EIO, 502, "%s: %s", where, text && *text ? text : curl_easy_strerror(code));
}

static size_t take_body(char *p, size_t size, size_t n, void *arg)
{
	struct buf *to = arg;
	if (buf_len(to) + size * n > MAX_ANSWER || buf_add(to, p, size * n) < 0)
		return 0;
	return size * n;
}

static size_t take_header(char *p, size_t size, size_t n, void *arg)
{
	struct str line = str_n(p, size * n), name, value;
	if (arg && str_cut(line, ':', &name, &value) && str_eq_nocase(name, STR("x-next-token"))) {
		while (value.n && (value.p[value.n - 1] == '\n' || value.p[value.n - 1] == '\r'))
			value.n--;
		buf_clear(arg);
		buf_add_str(arg, str_trim(value));
	}
	return size * n;
}

static int server_error(const struct client *cl, long status, struct str body, struct error *err)
{
	struct error ignored;
	cleanup_json json_t *j = json_parse(body, MAX_ANSWER, "answer", &ignored);
	struct str message = json_str(json_object_get(j, "message"));
	json_t *end = json_object_get(j, "lastTermination");
	struct str reason = json_str(json_object_get(end, "reason")), at = json_str(json_object_get(end, "at")), detail = json_str(json_object_get(end, "detail"));
	int code = status == 404 ? -ENOENT : status == 401 || status == 403 ? -EACCES : status == 409 ? -EBUSY : -EREMOTEIO;
	if (status == 401)
		return error_set(err, code, 401, "%s: %.*s (set CUBICLE_API_KEY; root on the server's machine sees the first key by `cubicle env`)", cl->url,
			STR_FMT(message));
	if (reason.n)
		return error_set(err, code, (int)status, "%.*s: it ended at %.*s: %.*s%s%.*s", STR_FMT(message), STR_FMT(at), STR_FMT(reason), detail.n ? ", " : "",
			STR_FMT(detail));
	if (message.n)
		return error_set(err, code, (int)status, "%.*s", STR_FMT(message));
	return error_set(err, code, (int)status, "%s answered with status %ld", cl->socket ? cl->socket : cl->url, status);
}

static struct curl_slist *append(struct curl_slist *list, const char *name, const char *value)
{
	cleanup_free char *line = NULL;
	if (asprintf(&line, "%s: %s", name, value) < 0)
		return list;
	struct curl_slist *longer = curl_slist_append(list, line);
	return longer ? longer : list;
}

static void common_options(const struct client *cl, CURL *easy)
{
	curl_easy_reset(easy);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "cubicle/" CUBICLE_VERSION);
	/* The library itself does not look at this variable, which OpenSSL's programs and Python take. */
	if (variable("SSL_CERT_FILE"))
		curl_easy_setopt(easy, CURLOPT_CAINFO, variable("SSL_CERT_FILE"));
	if (cl->socket) {
		curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, cl->socket);
		curl_easy_setopt(easy, CURLOPT_PROXY, "");
	}
}

int client_call(struct client *cl, const char *method, const char *path, const json_t *body, json_t **ret, struct buf *next, struct error *err)
{
	cleanup_buf struct buf answer = BUF_INIT;
	cleanup_free char *url = NULL, *text = NULL;
	char detail[CURL_ERROR_SIZE] = "";
	if (asprintf(&url, "%s%s", cl->url, path) < 0 || (body && !(text = json_dumps(body, JSON_COMPACT))))
		return error_errno(err, -ENOMEM, "request");
	struct curl_slist *headers = append(NULL, "Accept", "application/json");
	if (cl->key)
		headers = append(headers, "X-API-Key", cl->key);
	if (cl->team)
		headers = append(headers, "X-Cubicle-Team", cl->team);
	if (text)
		headers = append(headers, "Content-Type", "application/json");
	common_options(cl, cl->easy);
	curl_easy_setopt(cl->easy, CURLOPT_URL, url);
	curl_easy_setopt(cl->easy, CURLOPT_CUSTOMREQUEST, method);
	curl_easy_setopt(cl->easy, CURLOPT_TIMEOUT, (long)CALL_TIMEOUT_S);
	curl_easy_setopt(cl->easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(cl->easy, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(cl->easy, CURLOPT_WRITEDATA, &answer);
	curl_easy_setopt(cl->easy, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(cl->easy, CURLOPT_HEADERDATA, next);
	curl_easy_setopt(cl->easy, CURLOPT_ERRORBUFFER, detail);
	if (text)
		curl_easy_setopt(cl->easy, CURLOPT_POSTFIELDS, text);
	else if (!strcmp(method, "POST"))
		curl_easy_setopt(cl->easy, CURLOPT_POSTFIELDS, "");
	CURLcode code = curl_easy_perform(cl->easy);
	long status = 0;
	curl_easy_getinfo(cl->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_setopt(cl->easy, CURLOPT_ERRORBUFFER, NULL);
	curl_slist_free_all(headers);
	if (code != CURLE_OK)
		return client_transfer_error(cl, code, detail, err);
	if (status < 200 || status > 299)
		return server_error(cl, status, buf_str(&answer), err);
	if (!ret)
		return 0;
	*ret = NULL;
	if (!buf_len(&answer))
		return 0;
	struct error parse = {0};
	*ret = json_parse(buf_str(&answer), MAX_ANSWER, "answer", &parse);
	return *ret ? 0 : error_set(err, -EPROTO, 502, "%s answered something that is no JSON: %s", cl->url, parse.message);
}

struct upload {
	int fd;
	uint64_t sent, size;
	int (*progress)(uint64_t sent, void *arg);
	void *arg;
	bool stopped, unreadable;
};

static size_t give_file(char *to, size_t size, size_t n, void *arg)
{
	struct upload *u = arg;
	ssize_t got = pread(u->fd, to, (size_t)MIN((uint64_t)(size * n), u->size - u->sent), (off_t)u->sent);
	if (got < 0) {
		u->unreadable = true;
		return CURL_READFUNC_ABORT;
	}
	u->sent += (uint64_t)got;
	return (size_t)got;
}

/* Of the library, which may begin anew on a connection that was closed. */
static int seek_file(void *arg, curl_off_t offset, int origin)
{
	struct upload *u = arg;
	if (origin != SEEK_SET || offset < 0)
		return CURL_SEEKFUNC_CANTSEEK;
	u->sent = (uint64_t)offset;
	return CURL_SEEKFUNC_OK;
}

static int upload_goes_on(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t sent)
{
	struct upload *u = arg;
	u->stopped = u->progress && u->progress((uint64_t)sent, u->arg) != 0;
	return u->stopped;
}

int client_upload(struct client *cl, const char *url, const json_t *headers, int fd, uint64_t size, int (*progress)(uint64_t sent, void *arg), void *arg,
	struct error *err)
{
	cleanup_buf struct buf answer = BUF_INIT;
	char detail[CURL_ERROR_SIZE] = "";
	struct upload u = {.fd = fd, .size = size, .progress = progress, .arg = arg};
	struct curl_slist *list = append(NULL, "Content-Type", "application/octet-stream");
	const char *key;
	const json_t *value;
	json_object_foreach((json_t *)headers, key, value)
		if (json_is_string(value))
			list = append(list, key, json_string_value(value));
	common_options(cl, cl->easy);
	curl_easy_setopt(cl->easy, CURLOPT_URL, url);
	curl_easy_setopt(cl->easy, CURLOPT_UPLOAD, 1L);
	curl_easy_setopt(cl->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)size);
	curl_easy_setopt(cl->easy, CURLOPT_READFUNCTION, give_file);
	curl_easy_setopt(cl->easy, CURLOPT_READDATA, &u);
	curl_easy_setopt(cl->easy, CURLOPT_SEEKFUNCTION, seek_file);
	curl_easy_setopt(cl->easy, CURLOPT_SEEKDATA, &u);
	curl_easy_setopt(cl->easy, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(cl->easy, CURLOPT_XFERINFOFUNCTION, upload_goes_on);
	curl_easy_setopt(cl->easy, CURLOPT_XFERINFODATA, &u);
	/* No limit in all, but something must move. */
	curl_easy_setopt(cl->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(cl->easy, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
	curl_easy_setopt(cl->easy, CURLOPT_HTTPHEADER, list);
	curl_easy_setopt(cl->easy, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(cl->easy, CURLOPT_WRITEDATA, &answer);
	curl_easy_setopt(cl->easy, CURLOPT_ERRORBUFFER, detail);
	CURLcode code = curl_easy_perform(cl->easy);
	long status = 0;
	curl_easy_getinfo(cl->easy, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_setopt(cl->easy, CURLOPT_ERRORBUFFER, NULL);
	curl_slist_free_all(list);
	if (u.stopped)
		return error_set(err, -EINTR, 499, "the upload was stopped");
	if (u.unreadable)
		return error_set(err, -EIO, 500, "the file to send cannot be read");
	if (code != CURLE_OK)
		return client_transfer_error(cl, code, detail, err);
	return status < 200 || status > 299 ? server_error(cl, status, buf_str(&answer), err) : 0;
}

int client_list(struct client *cl, const char *path, json_t **ret, struct error *err)
{
	cleanup_json json_t *all = json_array();
	cleanup_buf struct buf next = BUF_INIT;
	do {
		cleanup_buf struct buf page_path = BUF_INIT;
		cleanup_json json_t *page = NULL;
		buf_add_c(&page_path, path);
		if (buf_len(&next)) {
			buf_addf(&page_path, "%cnextToken=", strchr(path, '?') ? '&' : '?');
			url_encode(&page_path, buf_str(&next));
		}
		buf_clear(&next);
		if (!all || !buf_cstr(&page_path))
			return error_errno(err, -ENOMEM, "list");
		int r = client_call(cl, "GET", buf_cstr(&page_path), NULL, &page, &next, err);
		if (r < 0)
			return r;
		if (!json_is_array(page))
			return error_set(err, -EPROTO, 502, "%s did not answer with a list", cl->url);
		json_array_extend(all, page);
	} while (buf_len(&next));
	*ret = steal_pointer(&all);
	return 0;
}

static bool is_id(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (!((s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= '0' && s.p[i] <= '9')))
			return false;
	return s.n > 0;
}

int client_find(struct client *cl, const char *kind, const char *path, const char *id_field, const char *given, json_t **ret, struct error *err)
{
	enum { NO, BEGINNING, EXACT } best = NO;
	cleanup_json json_t *all = NULL;
	int r = client_list(cl, path, &all, err);
	if (r < 0)
		return r;
	json_t *found = NULL, *one;
	bool several = false;
	size_t i;
	json_array_foreach(all, i, one) {
		struct str id = json_str(json_object_get(one, id_field));
		bool exact = str_is(id, given) || str_is(json_str(json_object_get(one, "name")), given);
		int fits = exact ? EXACT : id.n && *given && str_starts(id, str_of(given)) ? BEGINNING : NO;
		if (!fits || fits < (int)best)
			continue;
		several = fits == (int)best;
		best = fits;
		found = one;
	}
	if (!found)
		return error_set(err, -ENOENT, 404, "there is no %s '%s' (see `cubicle %s list`)", kind, given, kind);
	if (several)
		return error_set(err, -ENOTUNIQ, 400, "'%s' fits more than one %s; give the whole id (see `cubicle %s list`)", given, kind, kind);
	*ret = json_incref(found);
	return 0;
}

int client_resolve(struct client *cl, const char *given, char *id, struct error *err)
{
	struct str want = str_of(given), tail;
	str_cut(want, '-', &want, &tail); /* the old form <id>-<client id> */
	if (!is_id(want) || want.n > 31)
		return error_set(err, -EINVAL, 400, "'%s' is no sandbox id (see `cubicle sandbox list`)", given);
	if (want.n == 21) {
		snprintf(id, 32, "%.*s", STR_FMT(want));
		return 0;
	}
	cleanup_json json_t *all = NULL;
	int r = client_list(cl, "/v2/sandboxes", &all, err), found = 0;
	if (r < 0)
		return r;
	size_t i;
	json_t *s;
	json_array_foreach(all, i, s) {
		struct str full = json_str(json_object_get(s, "sandboxID"));
		if (!str_starts(full, want) || full.n > 31)
			continue;
		if (found++)
			return error_set(err, -ENOTUNIQ, 400, "'%s' is the beginning of more than one sandbox id: %s and %.*s; give more of it", given, id,
				STR_FMT(full));
		snprintf(id, 32, "%.*s", STR_FMT(full));
	}
	return found ? 0 : error_set(err, -ENOENT, 404, "no sandbox's id begins with '%s' (see `cubicle sandbox list`)", given);
}

int client_target(struct client *cl, const char *given, struct target *ret, struct error *err)
{
	struct target t = {.token = NULL};
	cleanup_json json_t *info = NULL;
	char path[80];
	int r = client_resolve(cl, given, t.id, err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/sandboxes/%s", t.id);
	r = client_call(cl, "GET", path, NULL, &info, NULL, err);
	if (r < 0)
		return r;
	if (str_is(json_str(json_object_get(info, "state")), "paused") && !json_is_true(json_object_get(json_object_get(info, "lifecycle"), "autoResume")))
		return error_set(err, -EBUSY, 409, "sandbox %s is paused (see `cubicle sandbox resume`)", t.id);
	struct str token = json_str(json_object_get(info, "envdAccessToken"));
	if (token.n && !(t.token = str_dup(token)))
		return error_errno(err, -ENOMEM, "token");
	*ret = t;
	return 0;
}

void target_done(struct target *t)
{
	free(t->token);
	t->token = NULL;
}

struct curl_slist *client_envd(const struct client *cl, CURL *easy, const struct target *t, const char *procedure, const char *content_type, const char *user)
{
	cleanup_free char *url = NULL;
	if (asprintf(&url, "%s/%s", cl->sandbox_url, procedure) < 0)
		return NULL;
	common_options(cl, easy);
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_POST, 1L);
	struct curl_slist *headers = append(NULL, "Content-Type", content_type);
	headers = append(headers, "Connect-Protocol-Version", "1");
	headers = append(headers, "E2b-Sandbox-Id", t->id);
	headers = append(headers, "E2b-Sandbox-Port", "49983");
	headers = append(headers, "Expect", "");
	if (t->token)
		headers = append(headers, "X-Access-Token", t->token);
	if (user) {
		curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
		curl_easy_setopt(easy, CURLOPT_USERNAME, user);
		curl_easy_setopt(easy, CURLOPT_PASSWORD, "");
	}
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
	return headers;
}
