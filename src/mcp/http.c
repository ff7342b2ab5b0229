#include "mcp/http.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "io/http_server.h"
#include "io/json.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

enum {
	SESSION_ID = 40,
	MAX_KEY = 256,
	MAX_IDS = 64,
	CHECK_S = 10,       /* for the API to say whether a key is one */
	EVENT_PAUSE_S = 15, /* a comment keeps the stream open */
	STREAM_HIGH = 8 * 1024 * 1024,
};

/* A session and the requests that wait for its answers. */
struct session {
	struct mcp_http *http;
	struct session *next;
	struct mcp_session *mcp;
	struct remote_server server;
	char id[SESSION_ID + 1], key[MAX_KEY + 1];
	struct post *posts;
	struct post *taking; /* its message is being taken: answers without an id of a request are for it */
	int64_t used;        /* CLOCK_BOOTTIME */
};

/* One POST. */
struct post {
	struct post *next;
	struct mcp_http *http;
	struct http_req *req; /* NULL: the client is gone */
	struct session *session;
	struct buf body, answers; /* answers: those that came while the message was taken */
	char *ids[MAX_IDS];   /* of its requests that are not answered, as JSON */
	size_t n_ids;
	bool stream;          /* the head of an event stream has left */
	bool ended;           /* all of the body is there */
	bool checking;        /* its key is with a worker; the body waits */
	bool known_key, unknown_key; /* neither: nobody could say */
	char key[MAX_KEY + 1];
	int64_t spoke;
};

struct mcp_http {
	const struct mcp_config *config;
	const char *url;
	struct str domain;
	struct http_server *server;
	struct session *sessions, *ending;
	unsigned n_sessions;
	struct loop_timer *timer;
	bool closing;
	void (*closed)(void *arg);
	void *arg;
};

/* Answers */

static void refuse(struct http_req *r, int status, const char *headers, const char *message)
{
	cleanup_buf struct buf body = BUF_INIT;
	buf_add_c(&body, "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":");
	json_quote(&body, str_of(message));
	buf_add_c(&body, "}}");
	cleanup_buf struct buf lines = BUF_INIT;
	buf_addf(&lines, "Content-Type: application/json\r\n%s", headers ? headers : "");
	http_respond(r, status, NULL, buf_cstr(&lines), buf_str(&body));
}

static void drop_id(struct post *p, size_t i)
{
	free(p->ids[i]);
	p->ids[i] = p->ids[--p->n_ids];
}

static void post_free(struct post *p)
{
	if (p->session) {
		struct post **at = &p->session->posts;
		while (*at && *at != p)
			at = &(*at)->next;
		if (*at)
			*at = p->next;
	}
	while (p->n_ids)
		drop_id(p, 0);
	buf_done(&p->body);
	buf_done(&p->answers);
	free(p);
}

static void send_event(struct post *p, struct str message)
{
	cleanup_buf struct buf event = BUF_INIT;
	buf_add_c(&event, "event: message\ndata: ");
	buf_add_str(&event, message);
	buf_add_c(&event, "\n\n");
	p->spoke = clock_boottime();
	if (http_send(p->req, buf_str(&event).p, buf_len(&event)) > STREAM_HIGH)
		http_abort(p->req); /* a client that does not read */
}

static bool takes_id(struct post *p, const char *id)
{
	for (size_t i = 0; i < p->n_ids; i++)
		if (!strcmp(p->ids[i], id))
			return true;
	return false;
}

/* Requests that were refused as a whole, or without their id, are answered as well; those that were cancelled are not waited for. */
static void drop_settled(struct post *p)
{
	for (size_t i = p->n_ids; i--;)
		if (!mcp_session_waits(p->session->mcp, p->ids[i]))
			drop_id(p, i);
}

/* An answer (not a notification) to one of its requests; all of them, when it is a batch. */
static void note_answered(struct post *p, struct str message, const char *related)
{
	if (message.n && message.p[0] == '[')
		while (p->n_ids)
			drop_id(p, 0);
	for (size_t i = 0; i < p->n_ids; i++)
		if (!memmem(message.p, message.n, "\"method\":\"notifications/", 24) && !strcmp(p->ids[i], related)) {
			drop_id(p, i);
			return;
		}
}

static void on_send(struct str message, const char *related, void *arg)
{
	struct session *s = arg;
	struct post *p = message.n ? s->taking : NULL;
	if (!p && related)
		for (p = s->posts; p && !takes_id(p, related);)
			p = p->next;
	if (!p)
		return;
	if (!message.n)
		drop_settled(p);
	else if (related)
		note_answered(p, message, related);
	if (p == s->taking) {
		if (message.n && buf_len(&p->answers))
			buf_add_c(&p->answers, "\n");
		buf_add_str(&p->answers, message);
		return;
	}
	if (!p->req || !p->stream)
		return;
	if (message.n)
		send_event(p, message);
	if (!p->n_ids && p->req)
		http_finish(p->req);
}

/* Sessions */

static struct session *find(struct mcp_http *h, struct str id, const char *key)
{
	for (struct session *s = h->sessions; s; s = s->next)
		if (str_eq_secret(str_of(s->id), id) && str_eq_secret(str_of(s->key), str_of(key)))
			return s;
	return NULL;
}

static bool key_known(struct mcp_http *h, const char *key)
{
	for (struct session *s = h->sessions; s; s = s->next)
		if (str_eq_secret(str_of(s->key), str_of(key)))
			return true;
	return false;
}

static void check_closed(struct mcp_http *h)
{
	if (h->closing && !h->sessions && !h->ending)
		h->closed(h->arg);
}

static void on_session_closed(unsigned left, void *arg)
{
	struct session *s = arg;
	struct mcp_http *h = s->http;
	if (left)
		log_warn("%u sandboxes of an MCP session were not ended: they end by themselves within %d s", left, h->config->lease_s);
	struct session **at = &h->ending;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	explicit_bzero(s->key, sizeof(s->key));
	free(s);
	h->n_sessions--;
	check_closed(h);
}

static void end_session(struct session *s)
{
	struct mcp_http *h = s->http;
	struct session **at = &h->sessions;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	s->next = h->ending;
	h->ending = s;
	while (s->posts) {
		struct post *p = s->posts;
		s->posts = p->next;
		p->session = NULL;
		if (p->req)
			http_abort(p->req);
	}
	mcp_session_close(s->mcp, on_session_closed, s);
}

static struct session *session_new(struct mcp_http *h, const char *key)
{
	struct session *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->http = h;
	snprintf(s->key, sizeof(s->key), "%s", key);
	s->server = (struct remote_server){.url = h->url, .sandbox_url = h->url, .key = s->key};
	random_text(s->id, SESSION_ID, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
	s->mcp = mcp_session_new(h->config, &s->server, on_send, s);
	if (!s->mcp) {
		free(s);
		return NULL;
	}
	s->used = clock_boottime();
	s->next = h->sessions;
	h->sessions = s;
	h->n_sessions++;
	return s;
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct mcp_http *h = arg;
	int64_t now = clock_boottime();
	for (struct session *s = h->sessions, *next; s; s = next) {
		next = s->next;
		if (mcp_session_running(s->mcp))
			s->used = now; /* it begins to be idle when its calls have ended */
		if (now - s->used > MCP_IDLE_S * NS_PER_S) {
			end_session(s);
			continue;
		}
		for (struct post *p = s->posts; p; p = p->next)
			if (p->stream && p->req && now - p->spoke > EVENT_PAUSE_S * NS_PER_S) {
				p->spoke = now;
				http_send(p->req, ": \n\n", 4);
			}
	}
	if (!h->closing)
		loop_timer_in(t, 5 * NS_PER_S);
}

/* Requests */

static struct str host_of(struct str authority)
{
	if (authority.n && authority.p[0] == '[') {
		ptrdiff_t end = str_chr(authority, ']');
		return end > 0 ? str_n(authority.p + 1, (size_t)end - 1) : authority;
	}
	struct str host = authority, port;
	str_cut(authority, ':', &host, &port);
	return host;
}

static bool is_address(struct str host)
{
	char text[INET6_ADDRSTRLEN], bytes[16];
	if (host.n >= sizeof(text))
		return false;
	snprintf(text, sizeof(text), "%.*s", STR_FMT(host));
	return inet_pton(AF_INET, text, bytes) == 1 || inet_pton(AF_INET6, text, bytes) == 1;
}

/* Nobody else can make one of these mean this machine: an address is none that DNS gives. */
static bool is_our_host(const struct mcp_http *h, struct str host)
{
	if (is_address(host) || str_eq_nocase(host, STR("localhost")))
		return true;
	return h->domain.n && (str_eq_nocase(host, h->domain) ||
		(host.n > h->domain.n && host.p[host.n - h->domain.n - 1] == '.' && str_eq_nocase(str_from(host, host.n - h->domain.n), h->domain)));
}

static bool is_rebound(const struct mcp_http *h, const struct http_head *head)
{
	struct str host = host_of(head->host), origin = http_value(head, "Origin"), scheme, rest;
	if (!is_our_host(h, host))
		return true;
	if (!origin.n)
		return false;
	if (!str_cut(origin, '/', &scheme, &rest) || rest.n < 2 || rest.p[0] != '/')
		return true; /* "null", too */
	/* A page of this server's own, or of this machine. */
	struct str page = host_of(str_from(rest, 1));
	return !str_eq_nocase(page, host) && !str_eq_nocase(page, STR("localhost")) && !str_is(page, "127.0.0.1") && !str_is(page, "::1");
}

static bool accepts(struct str value, const char *type)
{
	return !value.n || !value.p || memmem(value.p, value.n, type, strlen(type)) || memmem(value.p, value.n, "*/*", 3);
}

/* The caller's key: a bearer token, or the header that the API has. */
static bool key_of(const struct http_head *head, char ret[MAX_KEY + 1])
{
	struct str value = http_value(head, "Authorization");
	if (value.n > 7 && str_eq_nocase(str_n(value.p, 7), STR("Bearer ")))
		value = str_trim(str_from(value, 7));
	else
		value = http_value(head, "X-API-Key");
	if (!value.n || value.n > MAX_KEY || memchr(value.p, 0, value.n))
		return false;
	snprintf(ret, MAX_KEY + 1, "%.*s", STR_FMT(value));
	return true;
}

#define NOT_ALLOWED "WWW-Authenticate: Bearer realm=\"cubicle\"\r\n"

static void collect_ids(struct post *p, const json_t *m)
{
	size_t i;
	json_t *one;
	if (json_is_array(m)) {
		json_array_foreach((json_t *)(uintptr_t)m, i, one) if (json_is_object(one))
			collect_ids(p, one);
		return;
	}
	json_t *id = json_object_get(m, "id");
	if (!json_object_get(m, "method") || !(json_is_string(id) || json_is_number(id)) || p->n_ids == MAX_IDS)
		return;
	char *text = json_dumps(id, JSON_COMPACT | JSON_ENCODE_ANY);
	if (text)
		p->ids[p->n_ids++] = text;
}

static bool is_initialize(const json_t *m)
{
	return json_is_object(m) && str_is(json_str(json_object_get(m, "method")), "initialize");
}

/* Calls under way of the key's other sessions count, too, also of those that end: each key has its share of the threads. */
static unsigned calls_left(const struct session *s)
{
	const struct session *const lists[] = {s->http->sessions, s->http->ending};
	unsigned others = 0;
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		for (const struct session *o = lists[i]; o; o = o->next)
			if (o != s && str_eq_secret(str_of(o->key), str_of(s->key)))
				others += mcp_session_running(o->mcp);
	return others < MCP_MAX_CALLS ? MCP_MAX_CALLS - others : 0;
}

/* May the key have one more session? Clients that went without a word leave theirs behind: those with nothing in them make room. */
static bool make_room(struct mcp_http *h, const char *key)
{
	struct session *oldest = NULL;
	unsigned own = 0;
	for (struct session *s = h->sessions; s; s = s->next) {
		if (!str_eq_secret(str_of(s->key), str_of(key)))
			continue;
		own++;
		if ((!oldest || s->used < oldest->used) && mcp_session_is_empty(s->mcp))
			oldest = s;
	}
	if (own >= MCP_SESSIONS_OF_KEY && !oldest)
		return false;
	if (own >= MCP_SESSIONS_OF_KEY)
		end_session(oldest);
	return h->n_sessions < MCP_SESSIONS;
}

/* What came at once, and the stream for the rest. */
static void answer(struct post *p, struct session *s, bool requests, bool created)
{
	cleanup_buf struct buf headers = BUF_INIT;
	if (created)
		buf_addf(&headers, "Mcp-Session-Id: %s\r\n", s->id);
	if (!requests) {
		http_respond(p->req, 202, NULL, buf_cstr(&headers), STR(""));
		return;
	}
	if (!p->n_ids) {
		buf_add_c(&headers, "Content-Type: application/json\r\n");
		http_respond(p->req, 200, NULL, buf_cstr(&headers), buf_str(&p->answers));
		return;
	}
	buf_add_c(&headers, "Content-Type: text/event-stream\r\nCache-Control: no-store\r\n");
	http_start(p->req, 200, NULL, buf_cstr(&headers), HTTP_BODY_CHUNKED, 0);
	p->stream = true;
	p->spoke = clock_boottime();
	struct str rest = buf_str(&p->answers), line;
	while (rest.n && p->req) {
		if (!str_cut(rest, '\n', &line, &rest)) {
			line = rest;
			rest = str_n("", 0);
		}
		send_event(p, line);
	}
}

/* The whole message is there, and its key is one. */
static void take_message(struct post *p)
{
	struct mcp_http *h = p->http;
	const struct http_head *head = p->req->head;
	struct error err = {0};
	cleanup_json json_t *m = json_parse(buf_str(&p->body), MCP_MAX_MESSAGE, "message", &err);
	struct str id = http_value(head, "Mcp-Session-Id"), version = http_value(head, "MCP-Protocol-Version");
	bool first = is_initialize(m), created = false;
	if (h->closing) {
		refuse(p->req, 503, NULL, "the server is stopping");
		return;
	}
	if (buf_len(&p->body) > MCP_MAX_MESSAGE || p->body.failed) {
		refuse(p->req, 413, NULL, "the message is too big");
		return;
	}
	if (!m) {
		refuse(p->req, 400, NULL, err.message);
		return;
	}
	if (version.n && !mcp_version_known(version)) {
		refuse(p->req, 400, NULL, "MCP-Protocol-Version: this version is not spoken here");
		return;
	}
	struct session *s = id.n ? find(h, id, p->key) : NULL;
	if (!first && !id.n) {
		refuse(p->req, 400, NULL, "Mcp-Session-Id is missing: initialize comes first");
		return;
	}
	if (id.n && !s) {
		refuse(p->req, 404, NULL, "there is no such session (any more): initialize anew");
		return;
	}
	if (!s) {
		if (!make_room(h, p->key)) {
			refuse(p->req, 429, "Retry-After: 5\r\n", "too many sessions: end one first");
			return;
		}
		s = session_new(h, p->key);
		if (!s) {
			refuse(p->req, 503, NULL, "out of memory");
			return;
		}
	}
	s->used = clock_boottime();
	collect_ids(p, m);
	p->session = s;
	p->next = s->posts;
	s->posts = p;
	s->taking = p;
	mcp_session_limit(s->mcp, calls_left(s));
	bool requests = mcp_session_take(s->mcp, buf_str(&p->body), first && !id.n ? &created : NULL);
	s->taking = NULL;
	drop_settled(p);
	buf_done(&p->body);
	bool useless = first && !id.n && !created;
	if (useless) { /* a session that was not initialized is none */
		p->session = NULL;
		s->posts = NULL;
	}
	answer(p, s, requests, created);
	if (useless)
		end_session(s);
}

/* Is the key one of this server? Asked once; a session shows it for the next requests. */
static void check_work(void *arg)
{
	struct post *p = arg;
	cleanup_buf struct buf ignored = BUF_INIT;
	struct remote_server server = {.url = p->http->url, .key = p->key};
	struct remote_request q = {.method = "GET", .path = "/teams", .timeout_s = CHECK_S, .max = 64 * 1024};
	struct error err;
	long status = 0;
	int r = remote_call(&server, &q, &ignored, &status, &err);
	p->known_key = r == 0 && status == 200;
	p->unknown_key = r == 0 && (status == 401 || status == 403);
}

static void check_done(void *arg)
{
	struct post *p = arg;
	p->checking = false;
	if (p->req && p->known_key && !p->ended) {
		http_req_resume(p->req);
		return;
	}
	if (!p->req)
		post_free(p);
	else if (!p->known_key && !p->unknown_key)
		refuse(p->req, 503, "Retry-After: 1\r\n", "the server cannot check the key at the moment");
	else if (!p->known_key)
		refuse(p->req, 401, NOT_ALLOWED, "a key of this server is needed: Authorization: Bearer KEY");
	else
		take_message(p);
}

/* Nobody's bytes are kept before it is known that the key is one. */
static void check_key(struct post *p)
{
	p->known_key = key_known(p->http, p->key);
	p->checking = !p->known_key;
	if (p->checking && workq_push(p->http->config->chores, p->http->config->loop, check_work, check_done, p) < 0) {
		p->checking = false;
		refuse(p->req, 503, "Retry-After: 1\r\n", "the server has too much to do");
	}
}

static size_t on_body(struct http_req *r, const char *bytes, size_t n)
{
	struct post *p = r->arg;
	if (p->checking)
		return 0;
	if (buf_len(&p->body) <= MCP_MAX_MESSAGE)
		buf_add(&p->body, bytes, n);
	return n;
}

static void on_end(struct http_req *r)
{
	struct post *p = r->arg;
	p->ended = true;
	if (!p->checking)
		take_message(p);
}

static void on_closed(struct http_req *r, bool complete)
{
	struct post *p = r->arg;
	p->req = NULL;
	if (!p->checking)
		post_free(p);
}

static const struct http_req_ops post_ops = {.body = on_body, .end = on_end, .closed = on_closed};

static void begin_post(struct mcp_http *h, struct http_req *r, const char *key)
{
	struct str type = http_value(r->head, "Content-Type"), accept = http_value(r->head, "Accept");
	if (!str_starts(type, STR("application/json"))) {
		refuse(r, 415, NULL, "Content-Type must be application/json");
		return;
	}
	if (!accepts(accept, "application/json") || !accepts(accept, "text/event-stream")) {
		refuse(r, 406, NULL, "Accept must have application/json and text/event-stream");
		return;
	}
	struct post *p = calloc(1, sizeof(*p));
	if (!p) {
		refuse(r, 503, NULL, "out of memory");
		return;
	}
	p->http = h;
	p->req = r;
	snprintf(p->key, sizeof(p->key), "%s", key);
	r->ops = &post_ops;
	r->arg = p;
	check_key(p);
}

static void on_request(struct http_req *r, void *arg)
{
	struct mcp_http *h = arg;
	char key[MAX_KEY + 1];
	if (is_rebound(h, r->head)) {
		refuse(r, 403, NULL, "this Host or Origin may not use the server (option domain)");
		return;
	}
	if (h->closing) {
		refuse(r, 503, NULL, "the server is stopping");
		return;
	}
	if (!key_of(r->head, key)) {
		refuse(r, 401, NOT_ALLOWED, "a key of this server is needed: Authorization: Bearer KEY");
		return;
	}
	if (str_is(r->head->method, "POST")) {
		begin_post(h, r, key);
	} else if (str_is(r->head->method, "DELETE")) {
		struct session *s = find(h, http_value(r->head, "Mcp-Session-Id"), key);
		if (!s) {
			refuse(r, 404, NULL, "there is no such session (any more)");
			return;
		}
		end_session(s);
		http_respond(r, 204, NULL, "", STR(""));
	} else {
		refuse(r, 405, "Allow: POST, DELETE\r\n", "the server begins no messages: there is no stream to get");
	}
}

struct mcp_http *mcp_http_new(const struct mcp_config *c, const char *url, struct str domain)
{
	struct mcp_http *h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	*h = (struct mcp_http){.config = c, .url = url, .domain = domain};
	struct http_server_config server = {.on_request = on_request, .arg = h, .high_water = 2 * STREAM_HIGH};
	h->server = http_server_new(c->loop, &server);
	h->timer = loop_timer_new(c->loop, on_timer, h);
	if (!h->server || !h->timer) {
		mcp_http_free(h);
		return NULL;
	}
	loop_timer_in(h->timer, 5 * NS_PER_S);
	return h;
}

int mcp_http_adopt(struct mcp_http *h, int fd)
{
	return http_server_adopt(h->server, fd, STR(""));
}

void mcp_http_close(struct mcp_http *h, void (*done)(void *arg), void *arg)
{
	h->closing = true;
	h->closed = done;
	h->arg = arg;
	if (!h->sessions && !h->ending) {
		done(arg);
		return;
	}
	for (struct session *s = h->sessions, *next; s; s = next) {
		next = s->next;
		end_session(s);
	}
}

void mcp_http_free(struct mcp_http *h)
{
	if (!h)
		return;
	http_server_free(h->server);
	loop_timer_free(h->timer);
	free(h);
}
