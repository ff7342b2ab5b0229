#include "ingress/ingress.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "ingress/admit.h"
#include "ingress/exchange.h"
#include "ingress/forward.h"
#include "ingress/page.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>

enum {
	CONNECT_TRIES = 3,
	FULL_TRIES = 8,
	MAX_WAKES = 4,
};

/* Waits between tries of a port where nothing listens: 300 ms in all. */
static const int64_t retry_after[CONNECT_TRIES - 1] = {100 * NS_PER_MS, 200 * NS_PER_MS};
/* A service whose queue of connections is full gives no answer at all, which takes the node 2 s to see: many keep no more than five or ten. */
#define FULL_RETRY_AFTER (200 * NS_PER_MS)
/* How long a request waits for its sandbox to run again; clients give up after 60 s. */
#define WAKE_PATIENCE (30 * NS_PER_S)
/* A client that waits for 100 is told to go on when the service does not say so by then (many never do). */
#define CONTINUE_PATIENCE (300 * NS_PER_MS)

static void wake(struct exchange *x, const struct index_sandbox *s);

/* Ends */

void exchange_release(struct exchange *x)
{
	node_call_cancel(steal_pointer(&x->call));
	tools_call_cancel(steal_pointer(&x->tools_call));
	gate_leave(&x->waiter);
	if (x->timer)
		loop_timer_stop(x->timer);
}

static void answer(struct exchange *x, const struct page *p)
{
	exchange_release(x);
	upstream_close(steal_pointer(&x->up), false);
	x->state = DONE;
	page_respond(x->req, p);
}

void exchange_fail(struct exchange *x, const char *message, bool name_port)
{
	if (x->state == DONE)
		return;
	if (x->state == WAKING || x->state == OPENING || x->state == WAITING) {
		answer(x, &(struct page){.status = 502, .sandbox = x->id, .message = message, .port = name_port ? x->port : 0});
		return;
	}
	bool reset = x->state == TUNNEL;
	exchange_release(x);
	x->state = DONE;
	upstream_close(steal_pointer(&x->up), reset);
	http_abort(x->req);
}

static void fail_with(struct exchange *x, const struct error *err)
{
	answer(x, &(struct page){.status = err->status, .sandbox = x->id, .message = err->message, .retry_after = err->retry_after});
}

static void fail_gone(struct exchange *x)
{
	exchange_fail(x, "The sandbox was not found", false);
}

static void fail_transition(struct exchange *x)
{
	answer(x, &(struct page){.status = 409, .sandbox = x->id, .message = "The sandbox is still transitioning. Try again in a moment.", .retry_after = 1});
}

static void fail_closed_port(struct exchange *x)
{
	exchange_fail(x, "The sandbox is running but port is not open", true);
}

/* Sending the request */

static const char *peer_address(const struct http_req *r, char *to, size_t n)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof(a);
	if (getpeername(http_conn_fd(r->conn), (struct sockaddr *)&a, &size) < 0)
		return NULL;
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
	if (a.ss_family == AF_INET)
		return inet_ntop(AF_INET, &v4->sin_addr, to, (socklen_t)n);
	if (a.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		return inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], to, (socklen_t)n);
	if (a.ss_family == AF_INET6)
		return inet_ntop(AF_INET6, &v6->sin6_addr, to, (socklen_t)n);
	return NULL;
}

static void on_timer(struct loop_timer *t, void *arg);

void exchange_set_timer(struct exchange *x, int64_t ns)
{
	if (!x->timer)
		x->timer = loop_timer_new(x->ingress->config.loop, on_timer, x);
	if (x->timer)
		loop_timer_in(x->timer, ns);
}

/* Keys of this server stay outside of sandboxes; the MCP server works with them. */
static struct forward forward_rules(const struct exchange *x)
{
	return (struct forward){.own_key = x->tools ? NULL : x->ingress->config.own_key, .arg = x->ingress->config.arg};
}

/* The end of the request's body, with what follows it. */
static void send_end(struct exchange *x)
{
	if (x->req->head->framing == HTTP_BODY_CHUNKED) {
		const struct forward f = forward_rules(x);
		cleanup_buf struct buf trailers = BUF_INIT;
		if (forward_trailers(&trailers, http_req_trailers(x->req), &f) < 0) {
			exchange_fail(x, "The server is out of memory", false);
			return;
		}
		upstream_send(x->up, STR("0\r\n"), buf_str(&trailers), STR("\r\n"));
	}
	upstream_flush(x->up);
}

static void pass_hangup(struct exchange *x)
{
	if (x->request_done)
		upstream_shutdown(x->up);
	exchange_set_timer(x, HANGUP_PATIENCE);
}

/* Has a connection: the head goes first, bytes of the body follow as they come. */
static void send_head(struct exchange *x)
{
	char peer[INET6_ADDRSTRLEN];
	struct forward f = forward_rules(x);
	f.peer = peer_address(x->req, peer, sizeof(peer));
	f.proto = http_conn_is_secure(x->req->conn) ? "https" : "http";
	cleanup_buf struct buf head = BUF_INIT;
	if (forward_request(&head, x->req->head, &f) < 0) {
		exchange_fail(x, "The server is out of memory", false);
		return;
	}
	x->state = WAITING;
	upstream_send(x->up, buf_str(&head), STR(""), STR(""));
	if (x->request_done)
		send_end(x);
	else
		http_req_resume(x->req);
	if (x->hung_up)
		pass_hangup(x);
	else if (x->req->head->expect_continue && !x->continued)
		exchange_set_timer(x, CONTINUE_PATIENCE);
}

/*
 * The node knows more than the index: at this moment it may be pausing the sandbox, or has just put another life in its place (a rollback). The index will tell, and
 * on_ended() then takes the exchange where it belongs.
 */
static void refused_by_state(struct exchange *x, int status)
{
	const struct index_sandbox *s = index_find(x->ingress->config.index, str_of(x->id));
	if (s && s->auto_resume)
		wake(x, s);
	else if (s && x->tries < CONNECT_TRIES)
		exchange_set_timer(x, retry_after[x->tries - 1]);
	else if (status == 404)
		fail_gone(x);
	else
		fail_transition(x);
}

static void on_opened(const struct node_answer *a, void *arg)
{
	struct exchange *x = arg;
	x->call = NULL;
	if (!a->err && !target_is(x->target, str_of(x->id), a->body->stream.generation)) {
		close(a->fd);
		refused_by_state(x, 404);
	} else if (!a->err) {
		x->up = target_add(x->target, a->fd, x->port, &answer_ops, x);
		if (x->up)
			send_head(x);
		else
			exchange_fail(x, "The server is out of memory", false);
	} else if (a->err->status == 404 || a->err->status == 409) {
		refused_by_state(x, a->err->status);
	} else if (a->err->status != 502) {
		fail_with(x, a->err);
	} else if (a->err->code == -ECONNREFUSED && x->tries < CONNECT_TRIES) {
		exchange_set_timer(x, retry_after[x->tries - 1]);
	} else if (a->err->code == -ETIMEDOUT && x->tries < FULL_TRIES) {
		exchange_set_timer(x, FULL_RETRY_AFTER);
	} else {
		fail_closed_port(x);
	}
}

static void fail_no_tools(struct exchange *x)
{
	answer(x, &(struct page){.status = 503, .message = "The MCP server is starting. Try again in a moment.", .retry_after = 1});
}

static void on_tools_opened(int fd, void *arg)
{
	struct exchange *x = arg;
	x->tools_call = NULL;
	x->up = fd < 0 ? NULL : target_add(x->target, fd, x->port, &answer_ops, x);
	if (x->up)
		send_head(x);
	else
		fail_no_tools(x);
}

static void open_connection(struct exchange *x)
{
	struct error err = {0};
	x->state = OPENING;
	x->tries++;
	if (x->tools) {
		x->tools_call = tools_open(x->ingress->config.tools, on_tools_opened, x);
		if (!x->tools_call)
			fail_no_tools(x);
		return;
	}
	x->call = node_open(x->ingress->config.node, str_of(x->id), x->port, on_opened, x, &err);
	if (!x->call)
		fail_with(x, &err);
}

void exchange_begin(struct exchange *x)
{
	x->up = x->fresh_only ? NULL : target_take(x->target, x->port, &answer_ops, x);
	if (x->up)
		send_head(x);
	else
		open_connection(x);
}

/* Into the list of a target, or (NULL) of none. The target that it leaves is gone when it was the last in there. */
static void move(struct exchange *x, struct target *to)
{
	struct target *from = x->target;
	if (from) {
		if (x->prev)
			x->prev->next = x->next;
		else
			from->exchanges = x->next;
		if (x->next)
			x->next->prev = x->prev;
		from->n_exchanges--;
		if (from != to)
			target_settle(from);
	}
	x->target = to;
	x->prev = NULL;
	x->next = to ? to->exchanges : NULL;
	if (!to)
		return;
	if (x->next)
		x->next->prev = x;
	to->exchanges = x;
	to->n_exchanges++;
}

/* Goes where the index says that the sandbox is: nothing of the request has been sent, so that is as good as coming now. */
static void enter(struct exchange *x)
{
	const struct index_sandbox *s = index_find(x->ingress->config.index, str_of(x->id));
	exchange_release(x);
	x->tries = 0;
	if (s && index_is_running(s)) {
		struct target *to = pool_target(x->ingress->pool, s->id, s->generation);
		x->state = OPENING;
		if (to) {
			move(x, to);
			exchange_begin(x);
		} else {
			exchange_fail(x, "The server is out of memory", false);
		}
	} else if (admit_wakes(s)) {
		wake(x, s);
	} else {
		fail_gone(x);
	}
}

static void on_woken(const struct error *err, void *arg)
{
	struct exchange *x = arg;
	const struct index_sandbox *s = index_find(x->ingress->config.index, str_of(x->id));
	if (!err)
		enter(x);
	else if (err->status == 404 || !s || !(index_is_running(s) || index_is_paused(s)))
		fail_gone(x);
	else if (err->status == 409)
		fail_transition(x);
	else
		fail_with(x, err);
}

/* Waits for a resume. One that was paused again meanwhile is resumed again, but not for ever. */
static void wake(struct exchange *x, const struct index_sandbox *s)
{
	struct error err = {0};
	int64_t now = clock_boottime();
	exchange_release(x);
	x->state = WAKING;
	move(x, NULL);
	if (!x->wake_deadline)
		x->wake_deadline = now + x->ingress->config.wake_patience;
	x->waiter.done = on_woken;
	x->waiter.arg = x;
	if (x->wakes++ >= MAX_WAKES)
		fail_transition(x);
	else if (gate_wait(x->ingress->gates, s, str_of(x->req->id), &x->waiter, &err) < 0)
		on_woken(&err, x);
	else
		exchange_set_timer(x, MAX(x->wake_deadline - now, 0));
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct exchange *x = arg;
	if (x->state == WAKING) {
		fail_transition(x);
	} else if (x->state == OPENING) {
		open_connection(x);
	} else if (x->hung_up) {
		exchange_fail(x, "The client is gone", false);
	} else if (x->state == WAITING && !x->continued) {
		x->continued = true;
		http_interim(x->req, 100, NULL);
	}
}

/* The client's side */

/* In chunks when the client sent chunks, else as it is. */
static size_t send_body(struct exchange *x, const char *p, size_t n)
{
	if (x->state == TUNNEL || x->req->head->framing != HTTP_BODY_CHUNKED)
		return upstream_send(x->up, str_n(p, n), STR(""), STR(""));
	char size[20];
	int digits = snprintf(size, sizeof(size), "%zx\r\n", n);
	return upstream_send(x->up, str_n(size, (size_t)digits), str_n(p, n), STR("\r\n"));
}

static size_t on_body(struct http_req *r, const char *p, size_t n)
{
	struct exchange *x = r->arg;
	if (x->state == DONE)
		return n;
	if (x->state == WAKING || x->state == OPENING || buf_len(&x->up->out) > HTTP_HIGH_WATER)
		return 0;
	x->sent_body = true;
	/* Over the mark: these bytes are taken, the next wait for on_drained(). */
	send_body(x, p, n);
	return n;
}

static void on_end(struct http_req *r)
{
	struct exchange *x = r->arg;
	if (x->state == TUNNEL) {
		upstream_shutdown(x->up);
		return;
	}
	bool known = x->request_done;
	x->request_done = true;
	if (x->up && !known)
		send_end(x);
}

static void on_writable(struct http_req *r)
{
	struct exchange *x = r->arg;
	if (!x->up || x->peer_done)
		return;
	upstream_set_reading(x->up, true);
	/* What was read before the client fell behind is not told by the socket. */
	if (buf_len(&x->up->in))
		answer_ops.readable(x->up, x);
}

static void on_hangup(struct http_req *r)
{
	struct exchange *x = r->arg;
	x->hung_up = true;
	if (x->state == WAKING)
		exchange_fail(x, "The client is gone", false);
	else if (x->state == WAITING || x->state == BODY)
		pass_hangup(x);
}

static void on_closed(struct http_req *r, bool complete_)
{
	struct exchange *x = r->arg;
	exchange_release(x);
	loop_timer_free(x->timer);
	if (complete_ && x->state == TUNNEL)
		upstream_drain(x->up);
	else
		upstream_close(x->up, x->state == TUNNEL);
	move(x, NULL);
	buf_done(&x->trailers);
	free(x);
}

static const struct http_req_ops req_ops = {
	.body = on_body, .end = on_end, .writable = on_writable, .hangup = on_hangup, .closed = on_closed};

/* A sandbox's generation ends: nothing of it may be reached any more. */
static void on_ended(const struct index_sandbox *s, void *arg)
{
	struct ingress *g = arg;
	struct target *t = pool_find(g->pool, s->id, s->generation);
	if (!t)
		return;
	target_close_idle(t);
	for (struct exchange *x = t->exchanges, *next; x; x = next) {
		next = x->next;
		if (x->state == OPENING)
			enter(x);
		else
			fail_gone(x);
	}
	t = pool_find(g->pool, s->id, s->generation);
	if (t)
		target_settle(t);
}

/* Requests */

static void refuse_crowd(struct ingress *g, struct http_req *r, const struct route *route)
{
	char message[128];
	snprintf(message, sizeof(message), "The sandbox has too many concurrent incoming connections (limit: %u)", g->config.connection_limit);
	page_respond(r, &(struct page){.status = 429, .sandbox = route->id, .message = message, .limit = g->config.connection_limit, .retry_after = 1});
}

static struct exchange *exchange_new(struct ingress *g, struct http_req *r, const struct route *route)
{
	struct exchange *x = calloc(1, sizeof(*x));
	if (!x)
		return NULL;
	*x = (struct exchange){.ingress = g, .req = r, .port = route->port};
	memcpy(x->id, route->id, sizeof(x->id));
	x->upgrade = forward_upgrades(r->head);
	x->head_request = str_is(r->head->method, "HEAD");
	x->request_done = r->head->framing == HTTP_BODY_NONE;
	r->ops = &req_ops;
	r->arg = x;
	r->own_continue = true;
	return x;
}

void ingress_handle(struct ingress *g, struct http_req *r, const struct route *route)
{
	const struct index_sandbox *s = index_find(g->config.index, str_of(route->id));
	struct log_ids ids = {.request = str_of(r->id), .sandbox = str_of(route->id)};
	log_write(LOG_DEBUG, &ids, "%.*s to port %u", (int)MIN(r->head->method.n, (size_t)32), r->head->method.p, route->port);
	struct page page;
	enum admission admission = admit(g->config.index, s, r->head, route, &page);
	if (admission == ADMIT_REFUSE) {
		page_respond(r, &page);
		return;
	}
	struct target *t = admission == ADMIT_PASS ? pool_target(g->pool, s->id, s->generation) : NULL;
	if ((t ? t->n_exchanges : gate_count(g->gates, s->id)) >= g->config.connection_limit) {
		refuse_crowd(g, r, route);
		return;
	}
	struct exchange *x = t || admission == ADMIT_WAKE ? exchange_new(g, r, route) : NULL;
	if (!x) {
		if (t)
			target_settle(t);
		http_respond_error(r, 503, "the server is out of memory");
	} else if (t) {
		move(x, t);
		exchange_begin(x);
	} else {
		wake(x, s);
	}
}

void ingress_handle_tools(struct ingress *g, struct http_req *r)
{
	static const struct route tools = {.kind = ROUTE_SANDBOX, .id = "mcp", .port = 0}; /* no id of a sandbox: these are longer */
	struct target *t = g->config.tools ? pool_target(g->pool, str_of(tools.id), STR("")) : NULL;
	struct exchange *x = t && t->n_exchanges < g->config.connection_limit ? exchange_new(g, r, &tools) : NULL;
	if (!x) {
		if (t)
			target_settle(t);
		http_respond_error(r, t ? 503 : 501, t ? "the MCP server has too many connections" : "this server has no MCP server");
		return;
	}
	x->tools = true;
	move(x, t);
	exchange_begin(x);
}

struct ingress *ingress_new(const struct ingress_config *config)
{
	struct ingress *g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->config = *config;
	if (!g->config.wake_patience)
		g->config.wake_patience = WAKE_PATIENCE;
	g->pool = pool_new(config->loop);
	g->gates = gates_new(config->node, config->quota);
	if (!g->pool || !g->gates) {
		gates_free(g->gates);
		pool_free(g->pool);
		free(g);
		return NULL;
	}
	g->listener = (struct index_listener){.ended = on_ended, .arg = g};
	index_listen(config->index, &g->listener);
	return g;
}

void ingress_free(struct ingress *g)
{
	if (!g)
		return;
	index_unlisten(g->config.index, &g->listener);
	gates_free(g->gates);
	pool_free(g->pool);
	free(g);
}
