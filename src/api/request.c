#include "api/request.h"
#include "api/decode.h"
#include "api/handlers.h"
#include "api/request_counts.h"
#include "api/sources.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/url.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static void request_free(struct api_request *r)
{
	buf_done(&r->path);
	buf_done(&r->body_bytes);
	buf_done(&r->headers);
	json_decref(r->body);
	if (r->release)
		r->release(r->work);
	free(r->work);
	free(r);
}

/* One line a request. `why` is an error's message, or empty. */
static void log_end(struct api_request *r, int status, const char *why)
{
	struct log_ids ids = {.request = str_of(r->id), .team = r->team, .sandbox = str_of(r->sandbox)};
	const struct route *route = r->match.route;
	/* Without its client the head is gone: the route's pattern stands for the path. */
	struct str method = r->http ? r->http->head->method : str_of(route ? route->method : "?");
	struct str path = r->http ? r->http->head->path : str_of(route ? route->pattern : "?");
	bool probe = route && (route->flags & ROUTE_PUBLIC) && str_is(str_of(route->method), "GET") && status < 400;
	bool grave = status >= 500 && status != 501 && status != 503;
	int64_t took = clock_monotonic() - r->began;
	request_counts_add(r->api->counts, route, status, took);
	log_write(grave ? LOG_WARN : probe ? LOG_DEBUG : LOG_INFO, &ids, "%.*s %.*s %d %.1f ms%s%s", (int)MIN(method.n, (size_t)32),
		method.p, (int)MIN(path.n, (size_t)512), path.p, status, (double)took / NS_PER_MS,
		why[0] ? ": " : "", why);
}

/* The last thing done with a request: http_respond() may free it. */
static void respond(struct api_request *r, int status, const char *content_type, struct str body, const char *why)
{
	/* What was answered before its work was done ends with it, without a word. */
	if (!r->answered)
		log_end(r, status, why);
	if (!r->http) {
		request_free(r);
		return;
	}
	r->answered = true;
	const char *headers = buf_cstr(&r->headers);
	if (!headers || r->headers.failed)
		http_respond_error(r->http, 503, "the server is out of memory");
	else
		http_respond(r->http, status, content_type, headers, body);
}

void api_answer(struct api_request *r, int status, const struct buf *json)
{
	if (json->failed)
		api_failf(r, 503, "the server is out of memory");
	else
		respond(r, status, "application/json", buf_str(json), "");
}

void api_answer_text(struct api_request *r, const char *content_type, const struct buf *text)
{
	if (text->failed)
		api_failf(r, 503, "the server is out of memory");
	else
		respond(r, 200, content_type, buf_str(text), "");
}

void api_answer_empty(struct api_request *r)
{
	respond(r, 204, NULL, STR(""), "");
}

void api_answer_accepted(struct api_request *r)
{
	respond(r, 202, NULL, STR(""), "");
}

static void add_retry_advice(struct api_request *r, const struct error *err)
{
	if (err->status == 429 || err->status == 503)
		buf_addf(&r->headers, "Retry-After: %d\r\n", err->retry_after > 0 ? err->retry_after : 1);
	/* What was asked for may still happen; newer clients would ask again, and have two sandboxes. */
	if (err->status == 504 && !r->repeatable)
		buf_add_c(&r->headers, "Should-Retry: false\r\n");
}

void api_fail(struct api_request *r, const struct error *err)
{
	int status = err->status >= 400 && err->status <= 599 ? err->status : 500;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_int(&o, "code", status);
	out_str(&o, "message", err->message[0] ? str_of(err->message) : str_of(http_reason(status)));
	out_close(&o, '}');
	add_retry_advice(r, err);
	respond(r, status, "application/json", body.failed ? STR("{\"code\":503,\"message\":\"out of memory\"}") : buf_str(&body),
		err->message);
}

void api_failf(struct api_request *r, int status, const char *fmt, ...)
{
	struct error err = {.status = status};
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(err.message, sizeof(err.message), fmt, ap);
	va_end(ap);
	api_fail(r, &err);
}

void api_fail_call(struct api_request *r, const struct error *err)
{
	if (err->status == 404)
		api_sandbox_not_found(r);
	else
		api_fail(r, err);
}

bool api_query(struct api_request *r, query_pair_fn *fn, void *arg)
{
	struct error err = {0};
	int e = decode_query(r->http->head->query, fn, arg, &err);
	if (e < 0)
		api_fail(r, &err);
	return e == 0;
}

bool api_called(struct api_request *r, const struct node_answer *a)
{
	r->call = NULL;
	if (a->err)
		api_fail(r, a->err);
	return !a->err;
}

void api_done_empty(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err)
		api_fail_call(r, a->err);
	else
		api_answer_empty(r);
}

void api_done_plain(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	if (api_called(r, a))
		api_answer_empty(r);
}

void api_wait(struct api_request *r, struct node_call *call, const struct error *err)
{
	r->call = call;
	if (!call)
		api_fail(r, err);
}

struct job {
	struct api_request *request;
	void (*work)(void *r);
	void (*done)(struct api_request *r);
};

static void job_work(void *arg)
{
	struct job *job = arg;
	job->work(job->request);
}

static void job_done(void *arg)
{
	struct job job = *(struct job *)arg;
	free(arg);
	job.request->working = false;
	job.done(job.request);
}

void api_work(struct api_request *r, void (*work)(void *r), void (*done)(struct api_request *r))
{
	struct job *job = malloc(sizeof(*job));
	if (job)
		*job = (struct job){r, work, done};
	r->working = true;
	if (job && workq_push(r->api->config.workq, r->api->config.loop, job_work, job_done, job) == 0)
		return;
	free(job);
	r->working = false;
	api_failf(r, 503, "the server is too busy; try again");
}

bool api_index_ready(struct api_request *r)
{
	if (index_ready(r->api->config.index))
		return true;
	api_failf(r, 503, "the server is starting; try again");
	return false;
}

static void not_found(struct api_request *r, const struct index_end *end)
{
	/* Clients tell kinds of 404 by their words: this one must not hold the word "template" (e2b.md A.3). */
	bool quote = !strstr(r->sandbox, "template");
	cleanup_buf struct buf body = BUF_INIT, message = BUF_INIT;
	buf_addf(&message, "sandbox %s%snot found", quote ? r->sandbox : "", quote ? " " : "");
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_int(&o, "code", 404);
	out_str(&o, "message", buf_str(&message));
	if (end) {
		out_open(&o, "lastTermination", '{');
		out_str(&o, "reason", end->reason);
		out_time(&o, "at", end->at);
		if (end->detail.n)
			out_str(&o, "detail", end->detail);
		out_close(&o, '}');
	}
	out_close(&o, '}');
	api_answer(r, 404, &body);
}

void api_sandbox_not_found(struct api_request *r)
{
	const struct index_end *end = index_end_of(r->api->config.index, str_of(r->sandbox), clock_realtime());
	not_found(r, end && str_eq(end->team, r->team) ? end : NULL);
}

const struct index_sandbox *api_sandbox(struct api_request *r, bool hidden)
{
	struct error err = {0};
	struct str id;
	if (decode_sandbox_id(r->match.params[0], &id, &err) < 0) {
		api_fail(r, &err);
		return NULL;
	}
	snprintf(r->sandbox, sizeof(r->sandbox), "%.*s", STR_FMT(id));
	if (!api_index_ready(r))
		return NULL;
	const struct index_sandbox *s = index_find(r->api->config.index, id);
	bool shown = s && str_eq(s->team, r->team) && (hidden || index_is_running(s) || index_is_paused(s));
	if (!shown)
		api_sandbox_not_found(r);
	return shown ? s : NULL;
}

void handle_later(struct api_request *r)
{
	const struct route *route = r->match.route;
	struct source ignored;
	if (strstr(route->pattern, "{sandboxID}") && !api_sandbox(r, false))
		return;
	if (strstr(route->pattern, "{templateID}") && !source_of_path(r, &ignored))
		return;
	api_failf(r, 501, "%s %s is not implemented by this server", route->method, route->pattern);
}

void handle_health(struct api_request *r)
{
	const struct sandbox_index *ix = r->api->config.index;
	size_t running = 0;
	if (!api_index_ready(r))
		return;
	for (size_t i = 0; i < index_count(ix); i++)
		running += index_is_running(index_at(ix, i));
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '{');
	out_str(&o, "status", node_client_connected(r->api->config.node) ? STR("ok") : STR("degraded"));
	out_int(&o, "sandboxes", (int64_t)running);
	out_close(&o, '}');
	api_answer(r, 200, &body);
}

static void dispatch(struct api_request *r)
{
	r->dispatched = true;
	struct error err = {0};
	struct str text = str_trim(buf_str(&r->body_bytes));
	if ((r->match.route->flags & ROUTE_BODY) && text.n) {
		r->body = json_parse(text, API_BODY_MAX, "the request's body", &err);
		if (r->body && !json_is_object(r->body))
			error_set(&err, -EINVAL, 400, "the request's body must be a JSON object");
		buf_done(&r->body_bytes);
	}
	if (err.code)
		api_fail(r, &err);
	else
		r->match.route->handler(r);
}

static size_t on_body(struct http_req *http, const char *p, size_t n)
{
	struct api_request *r = http->arg;
	if (r->stream && !r->answered)
		return r->stream->body(r, p, n);
	if (r->answered || r->dispatched)
		return n;
	if (n > API_BODY_MAX - buf_len(&r->body_bytes))
		api_failf(r, 413, "the request's body is longer than %d bytes", API_BODY_MAX);
	else if (buf_add(&r->body_bytes, p, n) < 0)
		api_failf(r, 503, "the server is out of memory");
	return n;
}

static void on_end(struct http_req *http)
{
	struct api_request *r = http->arg;
	if (r->stream && !r->answered)
		r->stream->end(r);
	else if (!r->answered && !r->dispatched)
		dispatch(r);
}

static void on_closed(struct http_req *http, bool complete)
{
	struct api_request *r = http->arg;
	if (r->working) {
		r->http = NULL; /* freed when the worker is done */
		return;
	}
	if (!r->answered)
		log_end(r, 499, "the client left"); /* nginx's number for it; nobody receives it */
	node_call_cancel(r->call);
	request_free(r);
}

static const struct http_req_ops request_ops = {.body = on_body, .end = on_end, .closed = on_closed};

/* The client's own request id where it is harmless, else the server's. */
static void choose_id(struct api_request *r)
{
	struct str given = http_value(r->http->head, "x-request-id");
	bool fits = given.n > 0 && given.n < sizeof(r->id);
	for (size_t i = 0; fits && i < given.n; i++) {
		char c = given.p[i];
		fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
	}
	snprintf(r->id, sizeof(r->id), "%.*s", STR_FMT(fits ? given : str_of(r->http->id)));
	http_add_header(&r->headers, "x-request-id", str_of(r->id));
}

/* Any page may call the API: what guards it is the key, which a browser does not add by itself (cases.md 37). */
static void add_cors(struct api_request *r)
{
	buf_add_c(&r->headers, "Access-Control-Allow-Origin: *\r\n"
		"Access-Control-Expose-Headers: X-Next-Token, X-Total-Running, X-Request-Id, Retry-After, Should-Retry\r\n");
}

static void preflight(struct api_request *r)
{
	struct str wanted = http_value(r->http->head, "access-control-request-headers");
	buf_addf(&r->headers, "Allow: %s\r\nAccess-Control-Allow-Methods: %s\r\nAccess-Control-Max-Age: 7200\r\n", r->match.allow, r->match.allow);
	if (http_add_header(&r->headers, "Access-Control-Allow-Headers", wanted.n ? wanted : STR("*")) < 0)
		api_failf(r, 400, "Access-Control-Request-Headers is malformed");
	else
		api_answer_empty(r);
}

static void note_client(struct api_request *r)
{
	struct clients_seen *seen = &r->api->clients;
	const char *tested;
	if (clients_newer(seen, http_value(r->http->head, "user-agent"), &tested))
		log_warn("the client %s is newer than what was tested (%s): if it fails, see docs/compatibility.md", seen->names[seen->n - 1], tested);
}

/* Root acts for the default team, or for the one that X-Cubicle-Team names (percent-encoded name or id). False = answered. */
static bool choose_team(struct api_request *r)
{
	struct str given = http_value(r->http->head, "x-cubicle-team");
	cleanup_buf struct buf name = BUF_INIT;
	const struct team *team = NULL;
	if (!given.n)
		team = teams_by_ref(r->api->teams, STR(TEAM_DEFAULT));
	else if (url_decode(&name, given, false) == 0)
		team = teams_find(r->api->teams, buf_str(&name));
	if (team)
		r->team = str_of(team->ref);
	else
		api_failf(r, 404, "team '%.*s' not found", (int)MIN(given.n, (size_t)(3 * TEAM_NAME_MAX)), given.p);
	return team;
}

/* True when the caller is known: r->team is set. Else answered. */
static bool authenticate(struct api_request *r, bool admin)
{
	if (admin)
		return choose_team(r);
	struct str header = http_value(r->http->head, "x-api-key"), bearer = http_value(r->http->head, "authorization"), scheme;
	if (!str_cut(bearer, ' ', &scheme, &bearer) || !str_eq_nocase(scheme, STR("bearer")))
		bearer.n = 0;
	bearer = str_trim(bearer);
	struct str secret = header;
	struct key *key = keys_check(r->api->keys, header);
	if (!key)
		key = keys_check(r->api->keys, secret = bearer);
	const struct team *team = key ? teams_by_ref(r->api->teams, str_of(key->team)) : NULL;
	if (team && team->blocked) {
		api_failf(r, 403, "team '%s' is blocked", team->name);
		return false;
	}
	if (team) {
		keys_used(key, clock_realtime());
		note_client(r);
		r->team = str_of(team->ref);
		r->secret = secret;
		return true;
	}
	buf_add_c(&r->headers, "WWW-Authenticate: Bearer\r\n");
	api_failf(r, 401, "%s", header.n || bearer.n ? "Invalid API key or token" :
		"Missing authentication: provide 'Authorization: Bearer <token>' or 'X-API-Key: <key>'");
	return false;
}

/* True when a route is found. Else answered. */
static bool route(struct api_request *r, bool admin)
{
	const struct http_head *head = r->http->head;
	bool options = str_is(head->method, "OPTIONS");
	int e = route_find(head->method, head->path, admin, &r->path, &r->match);
	if (e == 0)
		return true;
	if (e == -EPERM && options) {
		preflight(r);
	} else if (e == -EPERM) {
		buf_addf(&r->headers, "Allow: %s\r\n", r->match.allow);
		api_failf(r, 405, "%.*s is not allowed here, but %s", (int)MIN(head->method.n, (size_t)32), head->method.p, r->match.allow);
	} else if (e == -EINVAL) {
		api_failf(r, 400, "the path holds a broken percent-escape");
	} else if (e == -ENOENT) {
		api_failf(r, 404, "no such path: %.*s", (int)MIN(head->path.n, (size_t)200), head->path.p);
	} else {
		api_failf(r, 503, "the server is out of memory");
	}
	return false;
}

void api_handle(struct api *a, struct http_req *http, bool admin)
{
	struct api_request *r = calloc(1, sizeof(*r));
	if (!r) {
		http_respond_error(http, 503, "the server is out of memory");
		return;
	}
	*r = (struct api_request){.api = a, .http = http, .began = clock_monotonic()};
	http->ops = &request_ops;
	http->arg = r;
	choose_id(r);
	add_cors(r);
	if (!route(r, admin) || (!(r->match.route->flags & ROUTE_PUBLIC) && !authenticate(r, admin)))
		return;
	const struct http_head *head = http->head;
	if (head->framing == HTTP_BODY_LENGTH && head->length > API_BODY_MAX && (r->match.route->flags & ROUTE_BODY))
		api_failf(r, 413, "the request's body is longer than %d bytes", API_BODY_MAX);
	else if (head->framing == HTTP_BODY_NONE || !(r->match.route->flags & ROUTE_BODY))
		dispatch(r);
}

void api_handle_metrics(struct api *a, struct http_req *http)
{
	/* Of no interest to the log when it works: once every few seconds. */
	static const struct route only = {"GET", "/metrics", ROUTE_PUBLIC, handle_prometheus, "Metrics of the server."};
	struct api_request *r = calloc(1, sizeof(*r));
	if (!r) {
		http_respond_error(http, 503, "the server is out of memory");
		return;
	}
	*r = (struct api_request){.api = a, .http = http, .began = clock_monotonic(), .match.route = &only};
	http->ops = &request_ops;
	http->arg = r;
	choose_id(r);
	bool get = str_is(http->head->method, "GET") || str_is(http->head->method, "HEAD");
	if (!str_is(http->head->path, "/metrics"))
		api_failf(r, 404, "only /metrics is here");
	else if (!get)
		api_failf(r, 405, "only GET is allowed here");
	else
		dispatch(r);
}
