#include "mcp/run.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "io/connect.h"
#include "io/json.h"

#include <stdio.h>
#include <string.h>

enum {
	ENVD = 49983,
	INTERPRETER = 49999,
	HALF = RUN_MAX_OUTPUT / 2,
	GRACE_S = 15,           /* for the sandbox to tell that the time is over */
	KILL_S = 10,
	MAX_EVENT = 1024 * 1024,
	MAX_LINE = 16 * 1024 * 1024, /* of the interpreter: a result */
};

int clipped_add(struct clipped *c, struct str bytes)
{
	c->total += bytes.n;
	size_t room = buf_len(&c->head) < HALF ? HALF - buf_len(&c->head) : 0, n = MIN(room, bytes.n);
	buf_add(&c->head, bytes.p, n);
	bytes = str_from(bytes, n);
	if (bytes.n > HALF)
		bytes = str_from(bytes, bytes.n - HALF);
	buf_add_str(&c->tail, bytes);
	if (buf_len(&c->tail) > HALF)
		buf_consume(&c->tail, buf_len(&c->tail) - HALF);
	return c->head.failed || c->tail.failed ? -ENOMEM : 0;
}

/* The bytes as UTF-8: what is none is replaced. */
static void add_utf8(struct buf *to, struct str s)
{
	for (size_t i = 0; i < s.n;) {
		size_t n = 1, most = MIN(s.n - i, (size_t)4);
		while (n < most && ((unsigned char)s.p[i + n] & 0xc0) == 0x80)
			n++;
		size_t good = 0;
		for (size_t k = n; k && !good; k--)
			if (str_is_utf8(str_n(s.p + i, k)))
				good = k;
		if (good && s.p[i]) {
			buf_add(to, s.p + i, good);
		} else {
			buf_add_c(to, "\xef\xbf\xbd");
			good = good ? good : 1;
		}
		i += good;
	}
}

int clipped_text(const struct clipped *c, struct buf *to)
{
	uint64_t shown = buf_len(&c->head) + buf_len(&c->tail);
	struct str head = buf_str(&c->head), tail = buf_str(&c->tail);
	if (c->total == shown) {
		cleanup_buf struct buf whole = BUF_INIT;
		buf_add_str(&whole, head);
		buf_add_str(&whole, tail);
		add_utf8(to, buf_str(&whole));
		return to->failed || whole.failed ? -ENOMEM : 0;
	}
	/* Not in the middle of a character. */
	size_t lead = head.n;
	while (lead && head.n - lead < 3 && ((unsigned char)head.p[lead - 1] & 0xc0) == 0x80)
		lead--;
	if (lead && ((unsigned char)head.p[lead - 1] & 0xc0) == 0xc0 && !str_is_utf8(str_from(head, lead - 1)))
		head.n = lead - 1;
	while (tail.n && ((unsigned char)tail.p[0] & 0xc0) == 0x80)
		tail = str_from(tail, 1);
	add_utf8(to, head);
	buf_addf(to, "\n[… %llu bytes are left out here …]\n", (unsigned long long)(c->total - head.n - tail.n));
	add_utf8(to, tail);
	return to->failed ? -ENOMEM : 0;
}

void clipped_done(struct clipped *c)
{
	buf_done(&c->head);
	buf_done(&c->tail);
}

/* Commands */

struct command {
	struct command_result *to;
	struct buf in;
	int64_t pid;
	bool ended, closed;
	char code[32], message[400]; /* of the stream's error */
};

static void take_event(struct command *c, const json_t *event)
{
	json_t *start = json_object_get(event, "start"), *data = json_object_get(event, "data"), *end = json_object_get(event, "end");
	if (start)
		c->pid = json_integer_value(json_object_get(start, "pid"));
	for (int i = 0; data && i < 2; i++) {
		json_t *text = json_object_get(data, i ? "stderr" : "stdout");
		cleanup_buf struct buf bytes = BUF_INIT;
		if (text && base64_decode(&bytes, json_str(text)) == 0)
			clipped_add(i ? &c->to->err : &c->to->out, buf_str(&bytes));
	}
	if (end) {
		c->ended = true;
		c->to->exit_code = (int)json_integer_value(json_object_get(end, "exitCode"));
		snprintf(c->to->status, sizeof(c->to->status), "%.*s", STR_FMT(json_str(json_object_get(end, "status"))));
	}
}

static bool take_stream(struct str bytes, void *arg)
{
	struct command *c = arg;
	if (buf_add_str(&c->in, bytes) < 0)
		return false;
	for (;;) {
		unsigned flags;
		struct str message;
		ssize_t n = connect_parse_envelope(buf_str(&c->in), MAX_EVENT, &flags, &message);
		if (n == 0)
			return true;
		struct error ignored;
		cleanup_json json_t *j = n < 0 ? NULL : json_parse(message, MAX_EVENT, "event", &ignored);
		if (!j)
			return false;
		if (flags & CONNECT_FLAG_END) {
			json_t *error = json_object_get(j, "error");
			c->closed = true;
			snprintf(c->code, sizeof(c->code), "%.*s", STR_FMT(json_str(json_object_get(error, "code"))));
			snprintf(c->message, sizeof(c->message), "%.*s", STR_FMT(json_str(json_object_get(error, "message"))));
		} else {
			take_event(c, json_object_get(j, "event"));
		}
		buf_consume(&c->in, (size_t)n);
	}
}

static struct remote_request envd(const struct box_entry *box, const char *path, struct str body)
{
	return (struct remote_request){.method = "POST", .path = path, .body = body, .header = "Connect-Protocol-Version: 1", .sandbox = box->id, .token = box->token, .port = ENVD,
		.timeout_s = KILL_S, .max = 64 * 1024};
}

static void kill_command(const struct remote_server *s, const struct box_entry *box, int64_t pid)
{
	cleanup_buf struct buf body = BUF_INIT, answer = BUF_INIT;
	long status;
	struct error ignored;
	buf_addf(&body, "{\"process\":{\"pid\":%lld},\"signal\":\"SIGNAL_SIGKILL\",\"descendants\":true}", (long long)pid);
	struct remote_request q = envd(box, "/process.Process/SendSignal", buf_str(&body));
	remote_call(s, &q, &answer, &status, &ignored);
}

/* 404 and 502 of the ingress: there is no such sandbox (any more). */
static int gone(struct error *err)
{
	return error_set(err, -ENOENT, 404, "the sandbox is gone");
}

static int refused(long status, const struct buf *answer, struct error *err)
{
	struct error ignored;
	cleanup_json json_t *j = json_parse(buf_str(answer), 64 * 1024, "answer", &ignored);
	struct str message = json_str(json_object_get(j, "message"));
	if (status == 404 || status == 502)
		return gone(err);
	return error_set(err, -EREMOTEIO, (int)status, "%.*s (status %ld)", message.n ? (int)message.n : 23, message.n ? message.p : "the sandbox refused this", status);
}

static int start(const struct remote_server *s, const struct box_entry *box, const char *shell, const char *command, const char *cwd, int timeout_s,
	const atomic_bool *cancelled, struct command *c, struct error *err)
{
	cleanup_json json_t *message = json_pack("{s:{s:s,s:[s,s,s]},s:b}", "process", "cmd", shell, "args", "-l", "-c", command, "stdin", false);
	if (cwd)
		json_object_set_new(json_object_get(message, "process"), "cwd", json_string(cwd));
	cleanup_free char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
	cleanup_buf struct buf body = BUF_INIT, answer = BUF_INIT;
	char header[64];
	long status = 0;
	if (!text || connect_envelope(&body, 0, str_of(text)) < 0)
		return error_errno(err, -ENOMEM, "command");
	snprintf(header, sizeof(header), "Connect-Timeout-Ms: %d000", timeout_s);
	struct remote_request q = {.method = "POST", .path = "/process.Process/Start", .body = buf_str(&body), .content_type = "application/connect+json", .header = header,
		.sandbox = box->id, .token = box->token, .port = ENVD, .timeout_s = timeout_s + GRACE_S, .sink = take_stream, .arg = c, .cancelled = cancelled};
	int r = remote_call(s, &q, &answer, &status, err);
	if (r == -ECANCELED && c->pid)
		kill_command(s, box, c->pid);
	if (r < 0)
		return r == -ECONNRESET && atomic_load(&box->gone) ? gone(err) : r;
	return status == 200 ? 0 : refused(status, &answer, err);
}

int run_command(const struct remote_server *s, const struct box_entry *box, const char *command, const char *cwd, int timeout_s, const atomic_bool *cancelled,
	struct command_result *ret, struct error *err)
{
	static const char *const shells[] = {"/bin/bash", "/bin/sh"};
	*ret = (struct command_result){0};
	for (size_t i = 0; i < ARRAY_SIZE(shells); i++) {
		struct command c = {.to = ret};
		int r = start(s, box, shells[i], command, cwd, timeout_s, cancelled, &c, err);
		buf_done(&c.in);
		if (r < 0)
			return r;
		if (!c.closed)
			return atomic_load(&box->gone) ? gone(err) : error_set(err, -ECONNRESET, 502, "the connection broke before the command ended: the sandbox may be gone");
		if (!strcmp(c.code, "deadline_exceeded") && c.pid) {
			ret->timed_out = true;
			return 0;
		}
		if (!*c.code && c.ended)
			return 0;
		bool missing = !c.pid && i == 0 && strstr(c.message, shells[0]);
		if (!missing)
			return error_set(err, -EREMOTEIO, 502, "%s%s", c.pid ? "" : "the command was not started:\n", *c.message ? c.message : "the sandbox ended it");
	}
	return 0;
}

void command_result_done(struct command_result *r)
{
	clipped_done(&r->out);
	clipped_done(&r->err);
}

/* Code */

struct cell {
	struct code_result *to;
	struct buf line;
	bool ended;
};

static void take_image(struct code_result *to, const json_t *event, const char *key, const char *type)
{
	struct str data = json_str(json_object_get(event, key));
	if (!data.n)
		return;
	if (json_array_size(to->images) >= RUN_MAX_IMAGES || data.n > RUN_MAX_IMAGE - to->image_bytes) {
		to->dropped++;
		return;
	}
	to->image_bytes += data.n;
	/* Kernels break long base64 into lines. */
	cleanup_buf struct buf plain = BUF_INIT;
	for (size_t i = 0; i < data.n; i++)
		if ((unsigned char)data.p[i] > ' ')
			buf_add(&plain, data.p + i, 1);
	json_array_append_new(to->images, json_pack("{s:s,s:s#,s:s}", "type", "image", "data", buf_str(&plain).p, buf_len(&plain), "mimeType", type));
}

static void take_cell_event(struct cell *c, const json_t *event)
{
	struct code_result *to = c->to;
	struct str type = json_str(json_object_get(event, "type"));
	if (str_is(type, "stdout"))
		clipped_add(&to->out, json_str(json_object_get(event, "text")));
	else if (str_is(type, "stderr"))
		clipped_add(&to->err, json_str(json_object_get(event, "text")));
	else if (str_is(type, "end_of_execution"))
		c->ended = true;
	else if (str_is(type, "result")) {
		struct str text = json_str(json_object_get(event, "text"));
		if (to->text.total && text.n)
			clipped_add(&to->text, STR("\n"));
		clipped_add(&to->text, text);
		take_image(to, event, "png", "image/png");
		take_image(to, event, "jpeg", "image/jpeg");
	} else if (str_is(type, "error")) {
		struct str traceback = json_str(json_object_get(event, "traceback"));
		to->failed = true;
		buf_clear(&to->error);
		buf_addf(&to->error, "%.*s: %.*s\n", STR_FMT(json_str(json_object_get(event, "name"))), STR_FMT(json_str(json_object_get(event, "value"))));
		buf_add_str(&to->error, traceback);
	}
}

static bool take_lines(struct str bytes, void *arg)
{
	struct cell *c = arg;
	struct str line, rest;
	if (buf_add_str(&c->line, bytes) < 0)
		return false;
	while (str_cut(buf_str(&c->line), '\n', &line, &rest)) {
		struct error ignored;
		cleanup_json json_t *event = json_parse(line, MAX_LINE, "event", &ignored);
		if (!event)
			return false;
		take_cell_event(c, event);
		buf_consume(&c->line, line.n + 1);
	}
	return buf_len(&c->line) <= MAX_LINE;
}

int run_code(const struct remote_server *s, const struct box_entry *box, const char *code, const char *language, int timeout_s, const atomic_bool *cancelled,
	struct code_result *ret, struct error *err)
{
	*ret = (struct code_result){.images = json_array()};
	cleanup_json json_t *message = json_pack("{s:s}", "code", code);
	if (language)
		json_object_set_new(message, "language", json_string(language));
	cleanup_free char *text = message && ret->images ? json_dumps(message, JSON_COMPACT) : NULL;
	cleanup_buf struct buf answer = BUF_INIT;
	struct cell c = {.to = ret};
	long status = 0;
	if (!text)
		return error_errno(err, -ENOMEM, "code");
	struct remote_request q = {.method = "POST", .path = "/execute", .body = str_of(text), .sandbox = box->id, .token = box->token, .port = INTERPRETER, .timeout_s = timeout_s,
		.sink = take_lines, .arg = &c, .cancelled = cancelled};
	int r = remote_call(s, &q, &answer, &status, err);
	buf_done(&c.line);
	if (r == -ETIMEDOUT && status == 200) {
		ret->timed_out = true;
		return 0;
	}
	if (r < 0)
		return r == -ECONNRESET && atomic_load(&box->gone) ? gone(err) : r;
	if (status == 200)
		return c.ended ? 0 : error_set(err, -ECONNRESET, 502, "the connection broke before the code ended: the sandbox may be gone");
	if (status == 502)
		return error_set(err, -ECONNREFUSED, 502, "no code interpreter answers in the sandbox: its template has none, or the sandbox is gone (sandbox_run_command needs none)");
	if (status == 404)
		return gone(err);
	/* The interpreter's own refusals are text; JSON is the server's, of which only the message counts. */
	struct error ignored;
	struct str words = str_trim(buf_str(&answer));
	cleanup_json json_t *j = json_parse(words, 64 * 1024, "answer", &ignored);
	if (j || (words.n && words.p[0] == '{'))
		words = json_str(json_object_get(j, "message"));
	return error_set(err, -EREMOTEIO, (int)status, "%.*s", STR_FMT(words.n ? words : STR("the code interpreter refused this")));
}

void code_result_done(struct code_result *r)
{
	clipped_done(&r->out);
	clipped_done(&r->err);
	clipped_done(&r->text);
	buf_done(&r->error);
	json_decref(r->images);
	r->images = NULL;
}
