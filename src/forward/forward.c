#include "forward/forward.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "ingress/forward.h"
#include "io/http_server.h"

#include <errno.h>
#include <stdio.h>
#include <strings.h>

enum {
	ENVD_PORT = 49983,
	MAX_INTERIM = 16,
	ROUTING_MAX = 1024,
};

struct http_forward {
	struct loop *loop;
	const struct destination *to;
	struct http_server *server;
	int listener;
	char routing[ROUTING_MAX]; /* header lines */
	struct passage *all;
	unsigned n;
};

enum step { SENT, BODY, TUNNEL, DONE };

/* One request on its way. */
struct passage {
	struct http_forward *forward;
	struct passage *prev, *next;
	struct http_req *req;
	struct connection *up; /* DONE: NULL */
	enum step step;
	struct http_body body;
	struct buf trailers;
	unsigned interim;
	bool upgrade, head_request, request_done, up_done;
};

/* Ends */

static void drop_up(struct passage *p)
{
	connection_free(steal_pointer(&p->up));
}

/* Nothing of an answer has left: one of our own; else a cut. */
static void fail(struct passage *p, int status, const char *message)
{
	if (p->step == DONE)
		return;
	bool fresh = p->step == SENT;
	p->step = DONE;
	drop_up(p);
	if (fresh)
		http_respond_error(p->req, status, "%s", message);
	else
		http_abort(p->req);
}

static void complete(struct passage *p)
{
	cleanup_buf struct buf trailers = BUF_INIT;
	p->step = DONE;
	drop_up(p);
	if (forward_trailers(&trailers, buf_str(&p->trailers), NULL) == 0)
		http_trailers(p->req, buf_str(&trailers));
	http_finish(p->req);
}

/* Answers */

static bool same_origin(struct str url, const char *scheme, struct str authority)
{
	struct str rest = str_from(url, strlen(scheme));
	if (url.n < strlen(scheme) || strncasecmp(url.p, scheme, strlen(scheme)) != 0)
		return false;
	size_t n = 0;
	while (n < rest.n && !strchr("/?#\\", rest.p[n]))
		n++;
	return str_eq_nocase(str_n(rest.p, n), authority);
}

bool http_forward_stays(struct str location, const struct destination *to, struct str own_authority)
{
	size_t n = 0;
	location = str_trim(location);
	/* Browsers take a backslash for a slash, and pass over control characters. */
	for (size_t i = 0; i < location.n; i++)
		if ((unsigned char)location.p[i] < 0x20 || location.p[i] == '\\')
			return false;
	if (location.n >= 2 && location.p[0] == '/' && location.p[1] == '/')
		return false;
	while (n < location.n && !strchr("/?#:", location.p[n]))
		n++;
	if (n == location.n || location.p[n] != ':')
		return true; /* a path */
	return same_origin(location, to->ctx ? "https://" : "http://", str_of(to->authority)) || same_origin(location, "http://", own_authority);
}

/* Sends on; false when the client is behind. */
static bool pass(struct passage *p, struct str bytes)
{
	if (bytes.n && http_send(p->req, bytes.p, bytes.n) > HTTP_HIGH_WATER) {
		connection_set_reading(p->up, false);
		return false;
	}
	return true;
}

static void take_interim(struct passage *p, const struct http_head *h)
{
	cleanup_buf struct buf lines = BUF_INIT;
	if (++p->interim > MAX_INTERIM || forward_response(&lines, h, false) < 0)
		fail(p, 502, "the sandbox sent no valid answer");
	else if ((h->status != 100 || p->req->head->expect_continue) && buf_cstr(&lines))
		http_interim(p->req, h->status, buf_cstr(&lines));
}

/* Which one of several counts is up to the client. */
static bool leads_elsewhere(const struct passage *p, const struct http_head *h)
{
	for (size_t i = 0; h->status >= 300 && h->status < 400 && i < h->n_headers; i++)
		if (str_eq_nocase(h->headers[i].name, STR("Location")) && !http_forward_stays(h->headers[i].value, p->forward->to, p->req->head->host))
			return true;
	return false;
}

static void take_head(struct passage *p, const struct http_head *h)
{
	cleanup_buf struct buf lines = BUF_INIT, reason = BUF_INIT;
	if (leads_elsewhere(p, h)) {
		fail(p, 502, "the sandbox redirected to somewhere else, which is not followed");
		return;
	}
	buf_add_str(&reason, h->reason);
	if (forward_response(&lines, h, p->head_request) < 0 || !buf_cstr(&lines) || !buf_cstr(&reason)) {
		fail(p, 503, "out of memory");
		return;
	}
	const char *words = h->reason.n ? buf_cstr(&reason) : NULL;
	if (h->status == 101) {
		if (!p->upgrade) {
			fail(p, 502, "the sandbox sent no valid answer");
			return;
		}
		p->step = TUNNEL;
		http_upgrade(p->req, 101, words, buf_cstr(&lines));
		return;
	}
	p->step = BODY;
	http_body_init(&p->body, h->framing, h->length);
	p->body.trailers = &p->trailers;
	http_start(p->req, h->status, words, buf_cstr(&lines), h->framing == HTTP_BODY_UNTIL_CLOSE ? HTTP_BODY_CHUNKED : h->framing, h->length);
}

static bool parse_head(struct passage *p)
{
	struct http_head h;
	struct buf *in = connection_in(p->up);
	ssize_t n = http_parse_response(buf_str(in), p->head_request, &h);
	if (n < 0)
		fail(p, 502, "the sandbox sent no valid answer");
	if (n <= 0)
		return false;
	if (h.status < 200 && h.status != 101)
		take_interim(p, &h);
	else
		take_head(p, &h);
	if (p->up)
		buf_consume(connection_in(p->up), (size_t)n);
	return p->step != DONE;
}

static void parse_body(struct passage *p)
{
	struct buf *from = connection_in(p->up);
	struct str in = buf_str(from), run;
	size_t all = in.n;
	bool more = true;
	while (more && in.n && !p->body.done) {
		if (http_body_next(&p->body, &in, &run) < 0) {
			fail(p, 502, "the sandbox sent no valid answer");
			return;
		}
		more = pass(p, run);
	}
	buf_consume(from, all - in.n);
	if (p->body.done)
		complete(p);
}

static void process(struct passage *p)
{
	while (p->step == SENT && parse_head(p))
		;
	if (p->step == BODY && (buf_len(connection_in(p->up)) || p->body.done)) {
		parse_body(p);
	} else if (p->step == BODY && p->body.framing == HTTP_BODY_NONE) {
		complete(p);
	} else if (p->step == TUNNEL) {
		pass(p, buf_str(connection_in(p->up)));
		buf_clear(connection_in(p->up));
	}
}

static void on_up_readable(struct connection *c, void *arg)
{
	process(arg);
}

static void on_up_drained(struct connection *c, void *arg)
{
	struct passage *p = arg;
	http_req_resume(p->req);
}

static void on_up_ended(struct connection *c, int why, void *arg)
{
	struct passage *p = arg;
	if (p->step == TUNNEL && why == 0) {
		p->up_done = true;
		http_finish(p->req);
	} else if (p->step == BODY && why == 0 && p->body.framing == HTTP_BODY_UNTIL_CLOSE) {
		complete(p);
	} else {
		fail(p, 502, "the server cannot be reached, or closed the connection without an answer");
	}
}

static const struct connection_ops up_ops = {on_up_readable, on_up_drained, on_up_ended};

/* Requests */

static size_t send_body(struct passage *p, const char *bytes, size_t n)
{
	if (p->step == TUNNEL || p->req->head->framing != HTTP_BODY_CHUNKED)
		return connection_send(p->up, str_n(bytes, n));
	char size[20];
	int digits = snprintf(size, sizeof(size), "%zx\r\n", n);
	connection_send(p->up, str_n(size, (size_t)digits));
	connection_send(p->up, str_n(bytes, n));
	return connection_send(p->up, STR("\r\n"));
}

static size_t on_body(struct http_req *r, const char *bytes, size_t n)
{
	struct passage *p = r->arg;
	if (p->step == DONE)
		return n;
	if (connection_queued(p->up) > CONNECTION_HIGH)
		return 0;
	send_body(p, bytes, n);
	return n;
}

static void send_end(struct passage *p)
{
	static const struct forward plain = {.proto = "http"};
	if (p->req->head->framing != HTTP_BODY_CHUNKED)
		return;
	cleanup_buf struct buf trailers = BUF_INIT;
	if (forward_trailers(&trailers, http_req_trailers(p->req), &plain) < 0) {
		fail(p, 503, "out of memory");
		return;
	}
	connection_send(p->up, STR("0\r\n"));
	connection_send(p->up, buf_str(&trailers));
	connection_send(p->up, STR("\r\n"));
}

static void on_end(struct http_req *r)
{
	struct passage *p = r->arg;
	if (p->step == DONE)
		return;
	if (p->step == TUNNEL) {
		connection_shutdown(p->up);
		return;
	}
	bool known = p->request_done;
	p->request_done = true;
	if (!known)
		send_end(p);
}

static void on_writable(struct http_req *r)
{
	struct passage *p = r->arg;
	if (!p->up || p->up_done)
		return;
	connection_set_reading(p->up, true);
	if (buf_len(connection_in(p->up)))
		process(p);
}

/* The client closed its half. Whether it is gone is judged where the sandbox is near: the ingress ends what stays silent then. */
static void on_hangup(struct http_req *r)
{
	struct passage *p = r->arg;
	if ((p->step == SENT || p->step == BODY) && p->request_done)
		connection_shutdown(p->up);
}

static void on_closed(struct http_req *r, bool complete_)
{
	struct passage *p = r->arg;
	struct http_forward *f = p->forward;
	drop_up(p);
	if (p->prev)
		p->prev->next = p->next;
	else
		f->all = p->next;
	if (p->next)
		p->next->prev = p->prev;
	f->n--;
	buf_done(&p->trailers);
	free(p);
}

static const struct http_req_ops req_ops = {.body = on_body, .end = on_end, .writable = on_writable, .hangup = on_hangup, .closed = on_closed};

/* The head as the ingress wants it: the lines that route stand before the blank one. */
static int make_head(const struct passage *p, struct buf *to)
{
	const struct http_head *h = p->req->head;
	const struct forward plain = {.proto = "http"};
	struct http_head copy = *h;
	copy.host = str_of(p->forward->to->authority);
	int r = forward_request(to, &copy, &plain);
	if (r < 0)
		return r;
	to->end -= 2;
	buf_add_c(to, p->forward->routing);
	buf_add_c(to, "\r\n");
	return to->failed ? -ENOMEM : 0;
}

static void on_request(struct http_req *r, void *arg)
{
	struct http_forward *f = arg;
	cleanup_buf struct buf head = BUF_INIT;
	struct passage *p = calloc(1, sizeof(*p));
	if (str_is(r->head->method, "CONNECT")) {
		free(p);
		http_respond_error(r, 501, "CONNECT is not supported");
		return;
	}
	if (p)
		*p = (struct passage){.forward = f, .req = r, .upgrade = forward_upgrades(r->head), .head_request = str_is(r->head->method, "HEAD"),
			.request_done = r->head->framing == HTTP_BODY_NONE};
	if (p)
		p->up = connection_new(f->loop, f->to, &up_ops, p);
	if (!p || !p->up || make_head(p, &head) < 0) {
		if (p)
			connection_free(p->up);
		free(p);
		http_respond_error(r, 503, "the forward is out of memory or descriptors");
		return;
	}
	p->next = f->all;
	if (f->all)
		f->all->prev = p;
	f->all = p;
	f->n++;
	r->ops = &req_ops;
	r->arg = p;
	r->own_continue = true;
	connection_send(p->up, buf_str(&head));
}

/* Life */

struct http_forward *http_forward_start(const struct http_forward_config *c, int listen_fd, struct error *err)
{
	cleanup_fd int listener = listen_fd;
	struct http_forward *f = calloc(1, sizeof(*f));
	if (!f) {
		error_errno(err, -ENOMEM, "forward");
		return NULL;
	}
	*f = (struct http_forward){.loop = c->loop, .to = c->to, .listener = -1};
	int n = snprintf(f->routing, sizeof(f->routing), "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %u\r\n", c->sandbox, c->port);
	if (c->traffic_token)
		n += snprintf(f->routing + n, sizeof(f->routing) - (size_t)n, "E2b-Traffic-Access-Token: %s\r\n", c->traffic_token);
	if (c->envd_token && c->port == ENVD_PORT && (size_t)n < sizeof(f->routing))
		n += snprintf(f->routing + n, sizeof(f->routing) - (size_t)n, "X-Access-Token: %s\r\n", c->envd_token);
	struct http_server_config config = {.on_request = on_request, .arg = f};
	f->server = http_server_new(c->loop, &config);
	int r = (size_t)n >= sizeof(f->routing) ? -E2BIG : f->server ? http_server_listen(f->server, listener) : -ENOMEM;
	if (r < 0) {
		error_errno(err, r, "forward");
		http_forward_free(f);
		return NULL;
	}
	f->listener = steal_fd(&listener);
	return f;
}

struct http_forward_load http_forward_stats(const struct http_forward *f)
{
	return (struct http_forward_load){.connections = f->server ? http_server_connections(f->server) : 0, .requests = f->n};
}

void http_forward_stop(struct http_forward *f)
{
	http_server_drain(f->server);
	for (struct passage *p = f->all, *next; p; p = next) {
		next = p->next;
		if (p->step != DONE) {
			p->step = DONE;
			drop_up(p);
		}
		http_abort(p->req);
	}
	cleanup_fd_p(&f->listener);
	f->listener = -1;
}

void http_forward_free(struct http_forward *f)
{
	if (!f)
		return;
	http_server_free(f->server);
	cleanup_fd_p(&f->listener);
	explicit_bzero(f->routing, sizeof(f->routing));
	free(f);
}
