/* JSON-RPC and the life of a session; what the tools do is in tools.c. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/json.h"
#include "io/loop.h"
#include "mcp/scrub.h"
#include "mcp/server.h"
#include "mcp/tools.h"

#include <stdio.h>
#include <string.h>

enum {
	MAX_ID = 256,
	MAX_BATCH = 64,
	PROGRESS_S = 5,
	HURRY_S = 5,           /* at the end, for what makes sandboxes: so long their ids are waited for */
	CLOSE_S = 20,          /* for clean-up in all */
	END_S = 10,            /* for one sandbox of it */
	MAX_BOXES = 1024,
	/* JSON-RPC 2.0 §5.1 */
	PARSE_ERROR = -32700,
	INVALID_REQUEST = -32600,
	METHOD_NOT_FOUND = -32601,
	INVALID_PARAMS = -32602,
	BUSY = -32000,
};

/* Newest first. Batches came with the third and went with the second. */
static const char *const versions[] = {"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"};
#define BATCHES "2025-03-26"

/* One call of a tool, from its request to its answer. */
struct call {
	struct call *next;
	struct mcp_session *session;
	char *id;                /* of the request, as JSON */
	const struct tool *tool;
	struct tool_run run;
	json_t *token;           /* for progress, or NULL */
	int64_t began;
	atomic_bool cancelled;
	bool silent;             /* nobody waits for the answer */
	struct batch *batch;     /* or NULL */
};

/* Answers that leave together. */
struct batch {
	unsigned waiting;
	struct buf text;
};

struct mcp_session {
	const struct mcp_config *config;
	const struct remote_server *server;
	mcp_send_fn *send;
	void *arg;
	struct boxes boxes;
	const char *version;
	struct call *calls;
	unsigned running, limit;
	struct loop_timer *progress, *lease, *patience;
	atomic_bool hurry;
	atomic_bool closing;
	bool renewing, ending, ticking;
	void (*closed)(unsigned left, void *arg);
	void *closed_arg;
	unsigned left;
};

/* Answers */

static void send_text(struct mcp_session *s, struct batch *batch, struct str text, const char *related)
{
	if (s->closing)
		return;
	if (!batch) {
		s->send(text, related, s->arg);
		return;
	}
	buf_add_c(&batch->text, buf_len(&batch->text) ? "," : "[");
	buf_add_str(&batch->text, text);
}

static void batch_less(struct mcp_session *s, struct batch *batch, const char *related)
{
	if (!batch || --batch->waiting)
		return;
	if (buf_len(&batch->text))
		buf_add_c(&batch->text, "]");
	if (!s->closing && (buf_len(&batch->text) || related))
		s->send(buf_str(&batch->text), related, s->arg);
	buf_done(&batch->text);
	free(batch);
}

/* Takes `result`. */
static void answer(struct mcp_session *s, struct batch *batch, const char *id, json_t *result)
{
	cleanup_free char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;
	cleanup_buf struct buf line = BUF_INIT;
	json_decref(result);
	if (text)
		buf_addf(&line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}", id, text);
	else
		buf_addf(&line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32603,\"message\":\"out of memory\"}}", id);
	send_text(s, batch, buf_str(&line), id);
}

static void refuse(struct mcp_session *s, struct batch *batch, const char *id, int code, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void refuse(struct mcp_session *s, struct batch *batch, const char *id, int code, const char *fmt, ...)
{
	cleanup_buf struct buf line = BUF_INIT, message = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&message, fmt, ap);
	va_end(ap);
	buf_addf(&line, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":%d,\"message\":", id ? id : "null", code);
	json_quote(&line, buf_str(&message));
	buf_add_c(&line, "}}");
	send_text(s, batch, buf_str(&line), id);
}

/* Calls */

static void call_free(struct call *c)
{
	if (c->run.box)
		boxes_release(&c->session->boxes, c->run.box);
	json_decref(c->run.args);
	json_decref(c->run.content);
	json_decref(c->token);
	free(c->id);
	free(c);
}

static void end_boxes(struct mcp_session *s);

static void call_work(void *arg)
{
	struct call *c = arg;
	if (!atomic_load(&c->cancelled))
		tool_call(c->tool, &c->run);
}

static void call_done(void *arg)
{
	struct call *c = arg;
	struct mcp_session *s = c->session;
	struct call **p = &s->calls;
	while (*p != c)
		p = &(*p)->next;
	*p = c->next;
	s->running--;
	if (!c->silent) {
		json_t *result = c->run.content ? json_pack("{s:O}", "content", c->run.content) : NULL;
		if (c->run.failed)
			json_object_set_new(result, "isError", json_true());
		answer(s, c->batch, c->id, result);
	}
	batch_less(s, c->batch, c->id);
	call_free(c);
	if (s->closing && !s->calls)
		end_boxes(s);
}

static void on_progress(struct loop_timer *t, void *arg)
{
	struct mcp_session *s = arg;
	bool more = false;
	for (struct call *c = s->calls; c && !s->closing; c = c->next) {
		if (!c->token || c->silent)
			continue;
		long long seconds = (clock_boottime() - c->began) / NS_PER_S;
		more = true;
		if (seconds < PROGRESS_S)
			continue;
		cleanup_json json_t *note = json_pack("{s:s,s:s,s:{s:O,s:I,s:s}}", "jsonrpc", "2.0", "method", "notifications/progress", "params", "progressToken", c->token, "progress",
			(json_int_t)seconds, "message", "still running");
		cleanup_free char *text = note ? json_dumps(note, JSON_COMPACT) : NULL;
		if (text)
			s->send(str_of(text), c->id, s->arg);
	}
	s->ticking = more;
	if (more)
		loop_timer_in(t, PROGRESS_S * NS_PER_S);
}

static void start_call(struct mcp_session *s, struct batch *batch, const char *id, const json_t *params)
{
	struct str name = json_str(json_object_get(params, "name"));
	const struct tool *tool = tool_find(name);
	json_t *args = json_object_get(params, "arguments");
	if (!tool || (args && !json_is_object(args) && !json_is_null(args))) {
		if (!tool)
			refuse(s, batch, id, INVALID_PARAMS, "there is no tool '%.*s'", (int)MIN(name.n, (size_t)64), name.p);
		else
			refuse(s, batch, id, INVALID_PARAMS, "arguments must be an object");
		return;
	}
	if (s->running >= s->limit) {
		refuse(s, batch, id, BUSY, "%u calls are under way: try again when one of them has ended", s->running);
		return;
	}
	struct call *c = calloc(1, sizeof(*c));
	if (!c || !(c->id = str_dup(str_of(id)))) {
		free(c);
		refuse(s, batch, id, BUSY, "out of memory");
		return;
	}
	c->session = s;
	c->tool = tool;
	c->began = clock_boottime();
	c->run = (struct tool_run){.config = s->config, .server = s->server, .boxes = &s->boxes, .cancelled = &c->cancelled, .hurry = &s->hurry,
		.args = json_is_object(args) ? json_copy(args) : json_object()};
	json_t *token = json_object_get(json_object_get(params, "_meta"), "progressToken");
	if (json_is_string(token) || json_is_integer(token))
		c->token = json_incref(token);
	c->batch = batch;
	if (batch)
		batch->waiting++;
	c->next = s->calls;
	s->calls = c;
	s->running++;
	if (tool_prepare(tool, &c->run) < 0)
		call_done(c);
	else if (workq_push(s->config->calls, s->config->loop, call_work, call_done, c) < 0) {
		c->silent = true;
		refuse(s, batch, id, BUSY, "the server has too much to do: try again");
		call_done(c);
	} else if (c->token && !s->ticking) {
		s->ticking = true;
		loop_timer_in(s->progress, PROGRESS_S * NS_PER_S);
	}
}

void mcp_session_cancel(struct mcp_session *s, const char *id)
{
	for (struct call *c = s->calls; c; c = c->next)
		if (!c->silent && !strcmp(c->id, id)) {
			atomic_store(&c->cancelled, true);
			c->silent = true;
			if (!c->batch)
				send_text(s, NULL, STR(""), c->id);
		}
}

/* Leases */

struct renewal {
	struct mcp_session *session;
	unsigned n;
	struct box_entry *boxes[MAX_BOXES];
};

static void renew_work(void *arg)
{
	struct renewal *r = arg;
	for (unsigned i = 0; i < r->n; i++) {
		struct box_entry *b = r->boxes[i];
		struct error err = {0};
		if (atomic_load(&b->gone) || atomic_load(&b->paused) || r->session->closing)
			continue;
		int e = tools_renew(r->session->server, b, r->session->config->lease_s, &err);
		if (e == -ENOENT)
			boxes_take(&r->session->boxes, b);
	}
}

static void renew_done(void *arg)
{
	struct renewal *r = arg;
	struct mcp_session *s = r->session;
	for (unsigned i = 0; i < r->n; i++)
		boxes_release(&s->boxes, r->boxes[i]);
	free(r);
	s->renewing = false;
	if (s->closing && !s->calls)
		end_boxes(s);
	else if (!s->closing)
		loop_timer_in(s->lease, s->config->lease_s * NS_PER_S / 4);
}

static void on_lease(struct loop_timer *t, void *arg)
{
	struct mcp_session *s = arg;
	struct renewal *r = s->closing ? NULL : calloc(1, sizeof(*r));
	if (!r)
		return;
	r->session = s;
	r->n = boxes_list(&s->boxes, r->boxes, MAX_BOXES);
	s->renewing = true;
	if (workq_push(s->config->chores, s->config->loop, renew_work, renew_done, r) < 0)
		renew_done(r);
}

/* The end */

static void session_free(struct mcp_session *s)
{
	loop_timer_free(s->progress);
	loop_timer_free(s->lease);
	loop_timer_free(s->patience);
	boxes_done(&s->boxes);
	free(s);
}

static void end_work(void *arg)
{
	struct mcp_session *s = arg;
	struct box_entry *b[MAX_BOXES];
	unsigned n = boxes_list(&s->boxes, b, MAX_BOXES);
	int64_t deadline = clock_boottime() + CLOSE_S * NS_PER_S;
	for (unsigned i = 0; i < n; i++) {
		struct error err = {0};
		if (boxes_take(&s->boxes, b[i]) && (clock_boottime() >= deadline || tools_end_box(s->server, b[i]->id, s->config->keep, END_S, &err) < 0))
			s->left++;
		boxes_release(&s->boxes, b[i]);
	}
}

static void end_done(void *arg)
{
	struct mcp_session *s = arg;
	s->closed(s->left, s->closed_arg);
	session_free(s);
}

/* When nothing of it is under way any more. */
static void end_boxes(struct mcp_session *s)
{
	if (s->ending || s->renewing)
		return;
	s->ending = true;
	if (workq_push(s->config->chores, s->config->loop, end_work, end_done, s) < 0) {
		s->left = 1;
		loop_defer(s->config->loop, end_done, s);
	}
}

void mcp_session_close(struct mcp_session *s, void (*done)(unsigned left, void *arg), void *arg)
{
	loop_timer_in(s->patience, HURRY_S * NS_PER_S);
	s->closing = true;
	s->closed = done;
	s->closed_arg = arg;
	boxes_close(&s->boxes);
	for (struct call *c = s->calls; c; c = c->next)
		atomic_store(&c->cancelled, true);
	if (!s->calls)
		end_boxes(s);
}

static void on_patience(struct loop_timer *t, void *arg)
{
	struct mcp_session *s = arg;
	atomic_store(&s->hurry, true);
}

struct mcp_session *mcp_session_new(const struct mcp_config *c, const struct remote_server *server, mcp_send_fn *send, void *arg)
{
	struct mcp_session *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	*s = (struct mcp_session){.config = c, .server = server, .send = send, .arg = arg, .limit = MCP_MAX_CALLS};
	boxes_init(&s->boxes);
	s->progress = loop_timer_new(c->loop, on_progress, s);
	s->lease = loop_timer_new(c->loop, on_lease, s);
	s->patience = loop_timer_new(c->loop, on_patience, s);
	if (!s->progress || !s->lease || !s->patience) {
		session_free(s);
		return NULL;
	}
	loop_timer_in(s->lease, c->lease_s * NS_PER_S / 4);
	return s;
}

const char *mcp_session_version(const struct mcp_session *s)
{
	return s->version;
}

bool mcp_version_known(struct str version)
{
	for (size_t i = 0; i < ARRAY_SIZE(versions); i++)
		if (str_is(version, versions[i]))
			return true;
	return false;
}

unsigned mcp_session_running(const struct mcp_session *s)
{
	return s->running;
}

void mcp_session_limit(struct mcp_session *s, unsigned calls)
{
	s->limit = MIN(calls, (unsigned)MCP_MAX_CALLS);
}

bool mcp_session_waits(const struct mcp_session *s, const char *id)
{
	for (const struct call *c = s->calls; c; c = c->next)
		if ((!c->silent || c->batch) && !strcmp(c->id, id))
			return true;
	return false;
}

bool mcp_session_is_empty(struct mcp_session *s)
{
	struct error none;
	struct box_entry *b = boxes_capture(&s->boxes, STR(""), &none);
	if (b)
		boxes_release(&s->boxes, b);
	return !b && !s->calls;
}

/* Messages */

static const char instructions[] =
	"Sandboxes: Linux machines of their own for code that should not run on the user's. Call sandbox_create first; the other tools act on the newest sandbox, or on the one that "
	"`sandbox` names. Files are under /home/user. Everything is destroyed at the end of the session, unless it was started with --keep.";

static bool initialize(struct mcp_session *s, struct batch *batch, const char *id, const json_t *params)
{
	struct str wanted = json_str(json_object_get(params, "protocolVersion"));
	if (!wanted.n) {
		refuse(s, batch, id, INVALID_PARAMS, "protocolVersion must be a string");
		return false;
	}
	if (s->version) {
		refuse(s, batch, id, INVALID_REQUEST, "this session is initialized already");
		return false;
	}
	s->version = versions[0];
	for (size_t i = 0; i < ARRAY_SIZE(versions); i++)
		if (str_is(wanted, versions[i]))
			s->version = versions[i];
	answer(s, batch, id,
		json_pack("{s:s,s:{s:{s:b}},s:{s:s,s:s,s:s},s:s}", "protocolVersion", s->version, "capabilities", "tools", "listChanged", 0, "serverInfo", "name", "cubicle", "title",
			"Cubicle sandboxes", "version", CUBICLE_VERSION, "instructions", instructions));
	return true;
}

static void take_notification(struct mcp_session *s, struct str method, const json_t *params)
{
	json_t *id = json_object_get(params, "requestId");
	if (!str_is(method, "notifications/cancelled") || !(json_is_string(id) || json_is_integer(id)))
		return;
	cleanup_free char *text = json_dumps(id, JSON_COMPACT | JSON_ENCODE_ANY);
	if (text)
		mcp_session_cancel(s, text);
}

/* One object. True: it is a request. */
static bool take_one(struct mcp_session *s, struct batch *batch, const json_t *m, bool *initialized)
{
	json_t *id = json_object_get(m, "id");
	const json_t *params = json_object_get(m, "params");
	struct str method = json_str(json_object_get(m, "method"));
	bool answerable = json_is_string(id) || json_is_integer(id) || json_is_real(id);
	cleanup_free char *text = answerable ? json_dumps(id, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	if (text && strlen(text) > MAX_ID)
		cleanup_free_p(&text), text = NULL;
	if (!json_is_object(m) || !str_is(json_str(json_object_get(m, "jsonrpc")), "2.0") || (id && !text)) {
		refuse(s, batch, NULL, INVALID_REQUEST, "a JSON-RPC 2.0 message is needed");
		return true;
	}
	if (!json_object_get(m, "method")) {
		/* An answer to a request of ours: there are none. */
		if (json_object_get(m, "result") || json_object_get(m, "error"))
			return false;
		refuse(s, batch, text, INVALID_REQUEST, "method is missing");
		return true;
	}
	if (!id) {
		take_notification(s, method, params);
		return false;
	}
	if (params && !json_is_object(params))
		refuse(s, batch, text, INVALID_PARAMS, "params must be an object");
	else if (str_is(method, "initialize")) {
		bool good = initialize(s, batch, text, params);
		if (initialized)
			*initialized = good;
	} else if (str_is(method, "ping"))
		answer(s, batch, text, json_object());
	else if (!str_is(method, "tools/list") && !str_is(method, "tools/call"))
		refuse(s, batch, text, METHOD_NOT_FOUND, "there is no method '%.*s'", (int)MIN(method.n, (size_t)64), method.p);
	else if (!s->version)
		refuse(s, batch, text, INVALID_REQUEST, "initialize comes first");
	else if (str_is(method, "tools/list"))
		answer(s, batch, text, json_pack("{s:o}", "tools", tools_list()));
	else
		start_call(s, batch, text, params);
	return true;
}

static bool take_batch(struct mcp_session *s, const json_t *all)
{
	size_t i;
	json_t *one;
	bool requests = false;
	if (!s->version || strcmp(s->version, BATCHES) != 0) {
		refuse(s, NULL, NULL, INVALID_REQUEST, "this version of the protocol has no batches");
		return true;
	}
	if (!json_array_size(all) || json_array_size(all) > MAX_BATCH) {
		refuse(s, NULL, NULL, INVALID_REQUEST, "a batch has 1 to %d messages", MAX_BATCH);
		return true;
	}
	struct batch *batch = calloc(1, sizeof(*batch));
	if (!batch) {
		refuse(s, NULL, NULL, BUSY, "out of memory");
		return true;
	}
	batch->waiting = 1;
	json_array_foreach(all, i, one) requests |= take_one(s, batch, one, NULL);
	batch_less(s, batch, NULL);
	return requests;
}

bool mcp_session_take(struct mcp_session *s, struct str message, bool *initialized)
{
	struct error err = {0};
	cleanup_json json_t *m = json_parse(message, MCP_MAX_MESSAGE, "message", &err);
	if (initialized)
		*initialized = false;
	if (!m) {
		refuse(s, NULL, NULL, PARSE_ERROR, "%s", err.message);
		return true;
	}
	return json_is_array(m) ? take_batch(s, m) : take_one(s, NULL, m, initialized);
}
