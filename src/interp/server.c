#include "interp/server.h"
#include "interp/env.h"
#include "interp/execution.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "io/url.h"

#include <errno.h>
#include <stdlib.h>

#define TEXT "text/plain; charset=utf-8"
#define JSON "application/json"

enum { MAX_STARTS = 8, MAX_CONNECTIONS = 1000 };

/* A default context that is started with the service. */
struct start {
	struct context_waiter waiter;
	struct server *server;
	char language[LANGUAGE_SIZE];
};

struct server {
	struct contexts *all;
	struct http_server *http;
	size_t pending; /* bytes of bodies */
	struct start starts[MAX_STARTS];
	size_t n_starts, starting;
	struct call *waiting; /* for the end of the start */
	struct error failure; /* why there is no default context of Python */
};

enum route { HEALTH, EXECUTE, LIST, CREATE, DELETE, RESTART };

/* One request. */
struct call {
	struct call *next; /* in server->waiting */
	struct server *server;
	struct http_req *req;
	enum route route;
	struct str id; /* of the context in its path: a view into the head */
	size_t limit;
	size_t counted; /* of server->pending: as long as the request lasts, since its code does */
	struct buf body;
	bool answered;
	struct context_waiter waiter; /* EXECUTE, CREATE, RESTART: for the kernel */
	struct context *context;
	json_t *wish; /* EXECUTE: its body, while it waits */
	struct execution *execution;
};

static void answer(struct call *c, int status, const char *type, struct str body)
{
	c->answered = true;
	http_respond(c->req, status, type, NULL, body);
}

static void answer_text(struct call *c, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void answer_text(struct call *c, int status, const char *fmt, ...)
{
	cleanup_buf struct buf b = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&b, fmt, ap);
	va_end(ap);
	answer(c, status, TEXT, buf_str(&b));
}

static void answer_creation_failed(struct call *c, const struct error *err)
{
	answer_text(c, err->status == 501 ? 501 : 500, "Failed to create context: %s", err->message);
}

/* GET /health */

static void answer_health(struct call *c)
{
	const struct context *python = context_find(c->server->all, STR("default"));
	if (c->server->failure.code && (!python || !python->was_ready))
		answer_text(c, 503, "%s", c->server->failure.message);
	else
		answer(c, 200, JSON, STR("\"OK\""));
}

static void unlist(struct call *c)
{
	struct call **at = &c->server->waiting;
	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
}

static void on_health(struct call *c)
{
	if (!c->server->starting) {
		answer_health(c);
		return;
	}
	c->next = c->server->waiting;
	c->server->waiting = c;
}

static void on_started(struct context_waiter *w, const struct error *err)
{
	struct start *start = container_of(w, struct start, waiter);
	struct server *s = start->server;
	if (err && strcmp(start->language, "python") == 0)
		s->failure = *err;
	if (--s->starting)
		return;
	while (s->waiting) {
		struct call *c = s->waiting;
		s->waiting = c->next;
		answer_health(c);
	}
}

void server_start_contexts(struct server *s, const char *languages)
{
	struct str rest = str_of(languages), name;
	while (rest.n && s->n_starts < MAX_STARTS) {
		if (!str_cut(rest, ',', &name, &rest)) {
			name = rest;
			rest = STR("");
		}
		struct start *start = &s->starts[s->n_starts];
		struct error err = {0};
		if (!name.n || language_normalise(name, start->language) < 0)
			continue;
		*start = (struct start){.server = s, .waiter.fn = on_started, .language = {0}};
		language_normalise(name, start->language);
		struct context *c = context_default(s->all, start->language, &err);
		if (!c) {
			log_warn("no context of %s at the start: %s", start->language, err.message);
			if (strcmp(start->language, "python") == 0)
				s->failure = err;
			continue;
		}
		s->n_starts++;
		s->starting++;
		context_wait(c, &start->waiter);
	}
}

/* Contexts */

static void add_context(struct buf *to, const struct context *c)
{
	buf_addf(to, "{\"id\":\"%s\",\"language\":\"%s\",\"cwd\":", c->id, c->language);
	json_quote(to, str_of(c->cwd));
	buf_add_c(to, "}");
}

static void on_list(struct call *c)
{
	cleanup_buf struct buf b = BUF_INIT;
	buf_add_c(&b, "[");
	for (const struct context *i = c->server->all->first; i; i = i->next) {
		if (!i->was_ready)
			continue;
		if (buf_len(&b) > 1)
			buf_add_c(&b, ",");
		add_context(&b, i);
	}
	buf_add_c(&b, "]");
	answer(c, 200, JSON, buf_str(&b));
}

/* The body's object; NULL when it was answered with why not. */
static json_t *parse_body(struct call *c)
{
	struct error err = {0};
	if (!buf_len(&c->body))
		return json_object();
	json_t *j = json_parse(buf_str(&c->body), c->limit, "the body", &err);
	buf_done(&c->body);
	if (j && !json_is_object(j)) {
		json_decref(j);
		j = NULL;
		error_set(&err, -EINVAL, 400, "the body is no JSON object");
	}
	if (!j)
		answer_text(c, 400, "%s", err.message);
	return j;
}

/* An optional string: absent, null and empty are the same. False when it is something else, and was answered.
 */
static bool take_string(struct call *c, const json_t *j, const char *key, struct str *ret)
{
	const json_t *v = json_object_get(j, key);
	*ret = json_str(v);
	if (!v || json_is_null(v) || (json_is_string(v) && !memchr(ret->p, 0, ret->n)))
		return true;
	answer_text(c, 400, "%s must be a string", key);
	return false;
}

static bool take_language(struct call *c, struct str s, char language[LANGUAGE_SIZE])
{
	if (language_normalise(s, language) == 0)
		return true;
	answer_text(c, 500, "Failed to create context: there is no kernel for %.*s", (int)MIN(s.n, 100), s.p);
	return false;
}

static void on_created(struct context_waiter *w, const struct error *err)
{
	struct call *c = container_of(w, struct call, waiter);
	cleanup_buf struct buf b = BUF_INIT;
	if (err) {
		answer_creation_failed(c, err);
		return;
	}
	add_context(&b, c->context);
	answer(c, 200, JSON, buf_str(&b));
}

static void on_create(struct call *c)
{
	struct str language, cwd;
	char name[LANGUAGE_SIZE];
	struct error err = {0};
	cleanup_json json_t *j = parse_body(c);
	if (!j || !take_string(c, j, "language", &language) || !take_string(c, j, "cwd", &cwd) ||
		!take_language(c, language, name))
		return;
	cleanup_free char *path = NULL;
	/* A relative one begins at home. */
	if (cwd.n && cwd.p[0] != '/' &&
		asprintf(&path, "%s/%.*s", c->server->all->host.user.home, STR_FMT(cwd)) < 0)
		path = NULL;
	c->context = context_new(c->server->all, name, path ? path : cwd.n ? cwd.p : NULL, &err);
	if (!c->context) {
		answer_creation_failed(c, &err);
		return;
	}
	c->waiter.fn = on_created;
	context_wait(c->context, &c->waiter);
}

static struct context *find(struct call *c, struct str id)
{
	struct context *context = context_find(c->server->all, id);
	if (!context)
		answer_text(c, 404, "Context %.*s not found", (int)MIN(id.n, 200), id.p);
	return context;
}

static void on_delete(struct call *c)
{
	struct context *context = find(c, c->id);
	if (!context)
		return;
	context_delete(context);
	answer(c, 200, JSON, STR("null"));
}

static void on_restarted(struct context_waiter *w, const struct error *err)
{
	struct call *c = container_of(w, struct call, waiter);
	if (err)
		answer_text(c, 500, "Failed to restart context: %s", err->message);
	else
		answer(c, 200, JSON, STR("null"));
}

static void on_restart(struct call *c)
{
	struct context *context = find(c, c->id);
	if (!context)
		return;
	c->waiter.fn = on_restarted;
	context_restart(context, NULL);
	context_wait(context, &c->waiter);
}

/* POST /execute */

static void execute(struct call *c)
{
	json_t *env_vars = json_object_get(c->wish, "env_vars");
	struct error err = {0};
	if (!json_object_size(env_vars))
		env_vars = NULL;
	const char *language = context_env_language(c->context);
	if (env_vars && !env_supported(language)) {
		answer_text(c, 501, "env_vars are not implemented for %s", language);
		return;
	}
	if (env_vars && env_check(language, env_vars, &err) < 0) {
		answer_text(c, 400, "%s", err.message);
		return;
	}
	if (context_queue_full(c->context)) {
		answer_text(c, 429, "%d executions wait for this context already", CONTEXT_QUEUE_MAX);
		return;
	}
	struct execution_request r = {
		.req = c->req,
		.code = json_str(json_object_get(c->wish, "code")),
		.env_vars = env_vars,
		.token = http_value(c->req->head, "X-Access-Token"),
	};
	c->answered = true;
	if (execution_start(c->context, &r, &c->execution) < 0)
		answer_text(c, 500, "out of memory");
	json_decref(c->wish);
	c->wish = NULL;
}

static void on_context_ready(struct context_waiter *w, const struct error *err)
{
	struct call *c = container_of(w, struct call, waiter);
	if (err)
		answer_creation_failed(c, err);
	else
		execute(c);
}

static void on_execute(struct call *c)
{
	struct str id, language;
	char name[LANGUAGE_SIZE];
	struct error err = {0};
	c->wish = parse_body(c);
	if (!c->wish || !take_string(c, c->wish, "context_id", &id) ||
		!take_string(c, c->wish, "language", &language))
		return;
	const json_t *code = json_object_get(c->wish, "code"),
		     *env_vars = json_object_get(c->wish, "env_vars");
	if (!json_is_string(code)) {
		answer_text(c, 400, "code must be a string");
		return;
	}
	if (env_vars && !json_is_null(env_vars) && !json_is_object(env_vars)) {
		answer_text(c, 400, "env_vars must be an object of strings");
		return;
	}
	if (id.n && language.n) {
		answer_text(c, 400, "Only one of context_id or language can be provided");
		return;
	}
	bool by_name = !id.n || (str_is(id, "default") && !context_find(c->server->all, id));
	if (by_name && !take_language(c, language, name))
		return;
	c->context = by_name ? context_default(c->server->all, name, &err) : find(c, id);
	if (!c->context) {
		if (by_name)
			answer_creation_failed(c, &err);
		return;
	}
	/* The head tells that the context exists; from then on errors are events. */
	c->waiter.fn = on_context_ready;
	if (c->context->was_ready)
		execute(c);
	else
		context_wait(c->context, &c->waiter);
}

/* The requests */

static void give_back(struct call *c)
{
	c->server->pending -= c->counted;
	c->counted = 0;
	buf_done(&c->body);
}

static size_t on_body(struct http_req *r, const char *p, size_t n)
{
	struct call *c = r->arg;
	if (c->answered)
		return n;
	if (buf_len(&c->body) + n > c->limit) {
		answer_text(c, 413, "the body is longer than %zu bytes", c->limit);
		give_back(c);
	} else if (c->server->pending + n > SERVER_MAX_PENDING || buf_add(&c->body, p, n) < 0) {
		answer_text(c, 503, "too much code is waiting to be run");
		give_back(c);
	} else {
		c->server->pending += n;
		c->counted += n;
	}
	return n;
}

static void on_end(struct http_req *r)
{
	static void (*const handlers[])(struct call *) = {[HEALTH] = on_health,
		[EXECUTE] = on_execute,
		[LIST] = on_list,
		[CREATE] = on_create,
		[DELETE] = on_delete,
		[RESTART] = on_restart};
	struct call *c = r->arg;
	if (!c->answered)
		handlers[c->route](c);
}

static void on_writable(struct http_req *r)
{
	struct call *c = r->arg;
	if (c->execution)
		execution_writable(c->execution);
}

/* It is gone: whatever it waited for. */
static void leave(struct call *c)
{
	struct context *waited = c->waiter.context;
	if (c->execution)
		execution_leave(c->execution);
	context_unwait(&c->waiter);
	unlist(c);
	/* Nobody would ever learn its id. */
	if (waited && c->route == CREATE)
		context_delete(waited);
}

static void on_hangup(struct http_req *r)
{
	struct call *c = r->arg;
	leave(c);
	http_abort(r);
}

static void on_closed(struct http_req *r, bool complete)
{
	struct call *c = r->arg;
	leave(c);
	give_back(c);
	json_decref(c->wish);
	free(c);
}

static const struct http_req_ops ops = {
	.body = on_body, .end = on_end, .writable = on_writable, .hangup = on_hangup, .closed = on_closed};

struct match {
	enum route route;
	const char *allow; /* methods of the path; NULL: there is no such path */
	struct str id;
};

static bool match(const struct http_head *h, struct match *m)
{
	struct str path = h->path;
	*m = (struct match){0};
	if (str_is(path, "/health")) {
		m->allow = "GET, HEAD";
		m->route = HEALTH;
		return str_is(h->method, "GET") || str_is(h->method, "HEAD");
	}
	if (str_is(path, "/execute")) {
		m->allow = "POST";
		m->route = EXECUTE;
		return str_is(h->method, "POST");
	}
	if (str_is(path, "/contexts")) {
		m->allow = "GET, POST";
		m->route = str_is(h->method, "POST") ? CREATE : LIST;
		return str_is(h->method, "POST") || str_is(h->method, "GET");
	}
	if (!str_starts(path, STR("/contexts/")))
		return false;
	struct str rest = str_from(path, 10), last;
	bool has_last = str_cut(rest, '/', &m->id, &last);
	if (has_last && !str_is(last, "restart"))
		return false;
	m->allow = has_last ? "POST" : "DELETE";
	m->id = has_last ? m->id : rest;
	m->route = has_last ? RESTART : DELETE;
	return str_is(h->method, m->allow);
}

/* Any page may call it: what guards a sandbox is a token that no browser adds by itself. */
static void add_cors(const struct http_head *h, struct buf *to)
{
	if (http_find(h, "Origin"))
		buf_add_c(to, "Access-Control-Allow-Origin: *\r\n");
}

static void answer_preflight(struct http_req *r)
{
	cleanup_buf struct buf headers = BUF_INIT;
	struct str wanted = http_value(r->head, "Access-Control-Request-Headers");
	buf_add_c(&headers, "Access-Control-Allow-Methods: DELETE, GET, HEAD, OPTIONS, PATCH, POST, "
			    "PUT\r\nAccess-Control-Max-Age: 600\r\n"
			    "Vary: Access-Control-Request-Headers\r\n");
	http_add_header(&headers, "Access-Control-Allow-Headers", wanted.n ? wanted : STR("*"));
	http_respond(r, 204, NULL, buf_cstr(&headers), STR(""));
}

static void on_request(struct http_req *r, void *arg)
{
	struct server *s = arg;
	struct match m;
	if (str_is(r->head->method, "OPTIONS")) {
		answer_preflight(r);
		return;
	}
	if (!match(r->head, &m)) {
		cleanup_buf struct buf allow = BUF_INIT;
		if (m.allow)
			buf_addf(&allow, "Allow: %s\r\n", m.allow);
		http_respond(r, m.allow ? 405 : 404, TEXT, m.allow ? buf_cstr(&allow) : NULL,
			m.allow ? STR("Method Not Allowed") : STR("Not Found"));
		return;
	}
	struct call *c = calloc(1, sizeof(*c));
	if (!c) {
		http_respond(r, 503, TEXT, NULL, STR("out of memory"));
		return;
	}
	*c = (struct call){.server = s,
		.req = r,
		.route = m.route,
		.id = m.id,
		.limit = m.route == EXECUTE ? SERVER_MAX_CODE : SERVER_MAX_REQUEST};
	r->ops = &ops;
	r->arg = c;
	if (r->head->framing == HTTP_BODY_LENGTH && r->head->length > c->limit)
		answer_text(c, 413, "the body is longer than %zu bytes", c->limit);
}

static void on_bad_request(struct buf *body, const char **content_type, int status, void *arg)
{
	*content_type = TEXT;
	buf_add_c(body, http_reason(status));
}

struct server *server_new(struct contexts *all, int listen_fd, struct error *err)
{
	struct server *s = calloc(1, sizeof(*s));
	struct http_server_config config = {.on_request = on_request,
		.on_bad_request = on_bad_request,
		.add_headers = add_cors,
		.max_connections = MAX_CONNECTIONS,
		.arg = s};
	int r = -ENOMEM;
	if (s) {
		s->all = all;
		s->http = http_server_new(all->host.loop, &config);
		r = s->http ? http_server_listen(s->http, listen_fd) : -ENOMEM;
	}
	if (r == 0)
		return s;
	server_free(s);
	error_errno(err, r, "listening");
	return NULL;
}

void server_free(struct server *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n_starts; i++)
		context_unwait(&s->starts[i].waiter);
	http_server_free(s->http);
	free(s);
}
