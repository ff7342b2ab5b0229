#include "mcp/tools.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/random.h"
#include "io/json.h"
#include "io/url.h"
#include "mcp/path.h"
#include "mcp/run.h"
#include "mcp/scrub.h"

#include <stdio.h>
#include <string.h>

enum {
	CREATE_S = 60,
	CALL_S = 60,
	MAX_ANSWER = 8 * 1024 * 1024,
	MAX_READ = 1024 * 1024,       /* bytes of a file: more is not fetched */
	MAX_BINARY = 512 * 1024,
	MAX_ENTRIES = 1000,
	ENVD = 49983,
	FORK_MOST = 20,
};

enum kind { TEXT, NUMBER, FLAG, STRINGS };

struct argument {
	const char *name;
	enum kind kind;
	int64_t min, max; /* NUMBER: its bounds; TEXT, STRINGS: bytes */
	int64_t usual;    /* NUMBER: when it is absent */
	bool required;
	const char *doc;
};

enum { NO_BOX = 1, READ_ONLY = 2, DESTROYS = 4 };

struct tool {
	const char *name, *title, *doc;
	unsigned flags;
	struct argument args[8]; /* ended by one without name */
	int (*run)(struct tool_run *r, struct error *err);
};

/* Arguments */

static const json_t *arg(const struct tool_run *r, const char *name)
{
	return json_object_get(r->args, name);
}

static const char *text_of(const struct tool_run *r, const char *name)
{
	const json_t *v = arg(r, name);
	return json_is_string(v) ? json_string_value(v) : NULL;
}

/* Absent ones have been filled in by tool_prepare(). */
static int64_t number_of(const struct tool_run *r, const char *name)
{
	return json_integer_value(arg(r, name));
}

/* Results */

static void add_text(struct tool_run *r, struct str text)
{
	if (!r->content)
		r->content = json_array();
	json_array_append_new(r->content, json_pack("{s:s,s:s#}", "type", "text", "text", text.p, text.n));
}

static void add_textf(struct tool_run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_textf(struct tool_run *r, const char *fmt, ...)
{
	cleanup_buf struct buf text = BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&text, fmt, ap);
	va_end(ap);
	add_text(r, buf_str(&text));
}

/* Appends "title:\n<text>\n" when there is any. */
static void add_section(struct buf *to, const char *title, const struct clipped *c)
{
	if (!c->total)
		return;
	buf_addf(to, "%s%s:\n", buf_len(to) ? "\n" : "", title);
	clipped_text(c, to);
}

static void fail(struct tool_run *r, const struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	scrub_text(str_of(err->message), str_of(r->server->key), &text);
	json_decref(r->content);
	r->content = NULL;
	r->failed = true;
	add_text(r, buf_str(&text));
}

static const char gone_text[] = "the sandbox is gone";

static int lost(struct error *err)
{
	return error_set(err, -ENOENT, 404, "%s", gone_text);
}

/* The control plane */

/* 0 with the answer's JSON (NULL: empty), or -errno with the server's words. */
static int call(const struct tool_run *r, const char *method, const char *path, const json_t *body, const char *header, int timeout_s, json_t **ret, struct error *err)
{
	cleanup_free char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	cleanup_buf struct buf answer = BUF_INIT;
	long status = 0;
	struct remote_request q = {.method = method, .path = path, .body = str_of(text), .header = header, .timeout_s = timeout_s, .max = MAX_ANSWER, .cancelled = r->hurry};
	int e = remote_call(r->server, &q, &answer, &status, err);
	if (e < 0)
		return e;
	struct error parse;
	cleanup_json json_t *j = buf_len(&answer) ? json_parse(buf_str(&answer), MAX_ANSWER, "answer", &parse) : NULL;
	if (status == 404)
		return error_set(err, -ENOENT, 404, "%.*s", STR_FMT(json_object_get(j, "message") ? json_str(json_object_get(j, "message")) : STR("not found")));
	if (status < 200 || status > 299) {
		struct str message = json_str(json_object_get(j, "message"));
		return error_set(err, -EREMOTEIO, (int)status, "the server refused this with status %ld%s%.*s", status, message.n ? ":\n" : "", STR_FMT(message));
	}
	if (buf_len(&answer) && !j)
		return error_set(err, -EPROTO, 502, "the server answered something that is no JSON");
	if (ret)
		*ret = steal_pointer(&j);
	return 0;
}

static int about_box(const struct tool_run *r, const char *method, const char *tail, const json_t *body, int timeout_s, json_t **ret, struct error *err)
{
	char path[96];
	snprintf(path, sizeof(path), "/sandboxes/%s%s", r->box->id, tail);
	int e = call(r, method, path, body, NULL, timeout_s, ret, err);
	return e == -ENOENT ? lost(err) : e;
}

int tools_end_box(const struct remote_server *s, const char *id, bool keep, int timeout_s, struct error *err)
{
	struct tool_run r = {.server = s};
	char path[96];
	snprintf(path, sizeof(path), "/sandboxes/%s%s", id, keep ? "/pause" : "");
	cleanup_json json_t *body = keep ? json_pack("{s:b}", "memory", true) : NULL;
	int e = call(&r, keep ? "POST" : "DELETE", path, body, NULL, timeout_s, NULL, err);
	return e == -ENOENT ? 0 : e;
}

static int remaining(const struct box_entry *box, int lease_s)
{
	int64_t left = (box->ends - clock_boottime()) / NS_PER_S;
	return (int)MIN(left, (int64_t)lease_s);
}

int tools_renew(const struct remote_server *s, const struct box_entry *box, int lease_s, struct error *err)
{
	struct tool_run r = {.server = s, .box = (struct box_entry *)(uintptr_t)box};
	int seconds = remaining(box, lease_s);
	if (seconds < 1)
		return 0;
	cleanup_json json_t *body = json_pack("{s:i}", "timeout", seconds);
	return about_box(&r, "POST", "/timeout", body, lease_s, NULL, err);
}

/* What a create or a fork made is the session's from here on, or is ended at once. */
static int take_box(struct tool_run *r, const json_t *made, struct str template, int64_t ends, struct error *err)
{
	struct str id = json_str(json_object_get(made, "sandboxID")), token = json_str(json_object_get(made, "envdAccessToken"));
	if (!id.n || id.n > 31)
		return error_set(err, -EPROTO, 502, "the server did not say which sandbox it made");
	char name[32];
	snprintf(name, sizeof(name), "%.*s", STR_FMT(id));
	int e = atomic_load(r->cancelled) ? -ECANCELED : boxes_add(r->boxes, id, token, template, ends);
	if (e == 0)
		return 0;
	struct error ignored;
	tools_end_box(r->server, name, false, CALL_S, &ignored);
	return error_set(err, e, 499, "the session ended, or this was cancelled, while the sandbox was made: it is destroyed again");
}

static int create(struct tool_run *r, struct error *err)
{
	const char *template = text_of(r, "template");
	int64_t timeout = number_of(r, "timeout"), ends = clock_boottime() + timeout * NS_PER_S;
	char key[33], header[64];
	if (!template)
		template = r->config->template;
	cleanup_json json_t *body = json_pack("{s:s,s:I,s:b}", "templateID", template, "timeout", (json_int_t)MIN(timeout, (int64_t)r->config->lease_s), "autoPause", r->config->keep), *made = NULL;
	if (!body)
		return error_errno(err, -ENOMEM, "create");
	if (arg(r, "envs"))
		json_object_set(body, "envVars", (json_t *)(uintptr_t)arg(r, "envs"));
	if (arg(r, "metadata"))
		json_object_set(body, "metadata", (json_t *)(uintptr_t)arg(r, "metadata"));
	if (arg(r, "allow_internet"))
		json_object_set(body, "allow_internet_access", (json_t *)(uintptr_t)arg(r, "allow_internet"));
	/* A create whose answer was lost is asked for again under its name, so that nothing is left that nobody knows of. */
	random_text(key, 32, "abcdefghijklmnopqrstuvwxyz0123456789");
	snprintf(header, sizeof(header), "Idempotency-Key: mcp-%s", key);
	int64_t deadline = clock_boottime() + CREATE_S * NS_PER_S;
	int e = call(r, "POST", "/v2/sandboxes", body, header, CREATE_S, &made, err);
	if (e == -ECONNRESET && clock_boottime() < deadline)
		e = call(r, "POST", "/v2/sandboxes", body, header, (int)MAX((deadline - clock_boottime()) / NS_PER_S, (int64_t)1), &made, err);
	if (e == 0)
		e = take_box(r, made, str_of(template), ends, err);
	if (e < 0)
		return e == -ETIMEDOUT ? error_set(err, e, 504, "the server made no sandbox in %d s", CREATE_S) : e;
	struct str id = json_str(json_object_get(made, "sandboxID"));
	add_textf(r, "Sandbox %.*s of template %s. It ends in %lld s.", STR_FMT(id), template, (long long)timeout);
	return 0;
}

static int run_cell(struct tool_run *r, struct error *err)
{
	struct code_result result;
	int seconds = (int)number_of(r, "timeout");
	int e = run_code(r->server, r->box, text_of(r, "code"), text_of(r, "language"), seconds, r->cancelled, &result, err);
	if (e == 0) {
		cleanup_buf struct buf text = BUF_INIT;
		add_section(&text, "result", &result.text);
		add_section(&text, "stdout", &result.out);
		add_section(&text, "stderr", &result.err);
		if (result.failed) {
			struct clipped c = {0};
			clipped_add(&c, buf_str(&result.error));
			add_section(&text, "error", &c);
			clipped_done(&c);
		}
		if (result.timed_out)
			buf_addf(&text, "%sThe code was interrupted: it ran for longer than its timeout of %d s.", buf_len(&text) ? "\n" : "", seconds);
		if (result.dropped)
			buf_addf(&text, "%s%u images are left out: too many, or too big.", buf_len(&text) ? "\n" : "", result.dropped);
		add_text(r, buf_len(&text) ? buf_str(&text) : json_array_size(result.images) ? STR("(an image)") : STR("(no output)"));
		json_array_extend(r->content, result.images);
		r->failed = result.failed || result.timed_out;
	}
	code_result_done(&result);
	return e;
}

/* A call of envd's file service (e2b.md B.7); body NULL: `field` is what was no UTF-8. 0 with the status and the answer's JSON (or NULL), or -errno. */
static int filesystem(struct tool_run *r, const char *method, const json_t *body, const char *field, size_t max, long *ret_status, json_t **ret, struct error *err)
{
	cleanup_free char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	cleanup_buf struct buf answer = BUF_INIT;
	char path[64];
	snprintf(path, sizeof(path), "/filesystem.Filesystem/%s", method);
	struct remote_request q = {.method = "POST", .path = path, .body = str_of(text), .header = "Connect-Protocol-Version: 1", .sandbox = r->box->id, .token = r->box->token, .port = ENVD,
		.timeout_s = CALL_S, .max = max, .cancelled = r->cancelled};
	if (!text)
		return error_set(err, -EINVAL, 400, "%s must be UTF-8", field);
	int e = remote_call(r->server, &q, &answer, ret_status, err);
	if (e < 0)
		return e;
	struct error ignored;
	*ret = json_parse(buf_str(&answer), max, "answer", &ignored);
	/* Else it is the ingress that does not know the sandbox. */
	bool of_envd = str_is(json_str(json_object_get(*ret, "code")), "not_found");
	return *ret_status == 502 || (*ret_status == 404 && !of_envd) ? lost(err) : 0;
}

/* Where a path that a caller gave stands, without a symbolic link that leads out of the workspace. */
static int settle_path(struct tool_run *r, const char *field, struct buf *to, struct error *err)
{
	const json_t *given = arg(r, field);
	int e = mcp_path(json_str(given), r->config->allow_absolute, to, err);
	if (e < 0 || r->config->allow_absolute)
		return e;
	struct str path = buf_str(to);
	for (size_t n = strlen(MCP_WORKSPACE); n < path.n;) {
		for (n++; n < path.n && path.p[n] != '/'; n++)
			;
		cleanup_json json_t *body = json_pack("{s:s#}", "path", path.p, n), *j = NULL;
		long status = 0;
		e = filesystem(r, "Stat", body, field, 256 * 1024, &status, &j, err);
		if (e < 0)
			return e;
		if (status != 200)
			return 0; /* nothing is there: no link either */
		struct str target = json_str(json_object_get(json_object_get(j, "entry"), "symlinkTarget"));
		if (target.n && (!mcp_path_inside(target) || str_eq(target, str_n(path.p, n))))
			return error_set(err, -EINVAL, 400, "%s goes through a symbolic link that leaves the workspace (" MCP_WORKSPACE "), or leads nowhere", field);
	}
	return 0;
}

static int run_shell(struct tool_run *r, struct error *err)
{
	struct command_result result = {0};
	int seconds = (int)number_of(r, "timeout");
	cleanup_buf struct buf cwd = BUF_INIT;
	int e = arg(r, "cwd") ? settle_path(r, "cwd", &cwd, err) : 0;
	if (e < 0)
		return e;
	e = run_command(r->server, r->box, text_of(r, "command"), buf_len(&cwd) ? buf_cstr(&cwd) : NULL, seconds, r->cancelled, &result, err);
	if (e == 0) {
		cleanup_buf struct buf text = BUF_INIT;
		add_section(&text, "stdout", &result.out);
		add_section(&text, "stderr", &result.err);
		if (result.timed_out)
			buf_addf(&text, "%sThe command was killed: it ran for longer than its timeout of %d s.", buf_len(&text) ? "\n" : "", seconds);
		else
			buf_addf(&text, "%sexit code: %d", buf_len(&text) ? "\n" : "", result.exit_code);
		if (!result.timed_out && str_starts(str_of(result.status), STR("signal")))
			buf_addf(&text, " (%s)", result.status);
		add_text(r, buf_str(&text));
		r->failed = result.timed_out;
	}
	command_result_done(&result);
	return e;
}

/* Files */

static void files_query(struct buf *to, struct str path)
{
	buf_add_c(to, "/files?path=");
	url_encode(to, path);
}

/* What a refusal of /files means. */
static int files_error(long status, const struct buf *answer, const char *given, struct error *err)
{
	struct error ignored;
	cleanup_json json_t *j = json_parse(buf_str(answer), 64 * 1024, "answer", &ignored);
	struct str message = json_str(json_object_get(j, "message"));
	if (status == 502 || (status == 404 && memmem(message.p, message.n, "sandbox", 7)))
		return lost(err);
	if (status == 404)
		return error_set(err, -ENOENT, 404, "there is no file '%s'", given);
	if (status == 400 && memmem(message.p, message.n, "directory", 9))
		return error_set(err, -EISDIR, 400, "'%s' is a directory", given);
	if (status == 507)
		return error_set(err, -ENOSPC, 507, "the sandbox's disk is full");
	return error_set(err, -EREMOTEIO, (int)status, "'%s': the sandbox refused this with status %ld", given, status);
}

struct reading {
	struct buf bytes;
	bool more;
};

static bool take_file(struct str bytes, void *arg)
{
	struct reading *f = arg;
	size_t room = MAX_READ - buf_len(&f->bytes);
	f->more = bytes.n > room;
	buf_add(&f->bytes, bytes.p, MIN(bytes.n, room));
	return !f->more && !f->bytes.failed;
}

/* Appends at most so many characters; true: there were more. */
static bool add_characters(struct buf *to, struct str text, size_t most)
{
	size_t i = 0;
	for (size_t n = 0; n < most && i < text.n; n++)
		for (i++; i < text.n && ((unsigned char)text.p[i] & 0xc0) == 0x80; i++)
			;
	buf_add(to, text.p, i);
	return i < text.n;
}

/* UTF-8 without NUL, perhaps cut in its last character. */
static bool is_text(struct str s, bool cut)
{
	for (int back = 0; cut && back < 3 && s.n && !str_is_utf8(s); back++)
		s.n--;
	return str_is_utf8(s) && !memchr(s.p, 0, s.n);
}

static const char *media_type(struct str path)
{
	static const char *const types[][2] = {{".png", "image/png"}, {".jpg", "image/jpeg"}, {".jpeg", "image/jpeg"}, {".gif", "image/gif"}, {".webp", "image/webp"},
		{".pdf", "application/pdf"}, {".zip", "application/zip"}, {".gz", "application/gzip"}};
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (str_ends(path, str_of(types[i][0])))
			return types[i][1];
	return "application/octet-stream";
}

static int read_file(struct tool_run *r, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT, url = BUF_INIT, answer = BUF_INIT;
	struct reading f = {.more = false};
	long status = 0;
	int e = settle_path(r, "path", &path, err);
	if (e < 0)
		return e;
	files_query(&url, buf_str(&path));
	struct remote_request q = {.method = "GET", .path = buf_cstr(&url), .sandbox = r->box->id, .token = r->box->token, .port = ENVD, .timeout_s = CALL_S, .sink = take_file, .arg = &f,
		.cancelled = r->cancelled};
	e = q.path ? remote_call(r->server, &q, &answer, &status, err) : error_errno(err, -ENOMEM, "path");
	if (e == -EPIPE && f.more)
		e = 0;
	if (e == 0 && status != 200)
		e = files_error(status, &answer, text_of(r, "path"), err);
	struct str bytes = buf_str(&f.bytes);
	if (e == 0 && is_text(bytes, f.more)) {
		cleanup_buf struct buf text = BUF_INIT;
		if (add_characters(&text, bytes, RUN_MAX_OUTPUT) || f.more)
			buf_addf(&text, "\n[… cut: only the first %d characters of the file are here]", RUN_MAX_OUTPUT);
		add_text(r, buf_str(&text));
	} else if (e == 0 && (f.more || bytes.n > MAX_BINARY)) {
		e = error_set(err, -EFBIG, 400, "'%s' is binary and has more than %d bytes: too much to read", text_of(r, "path"), MAX_BINARY);
	} else if (e == 0) {
		cleanup_buf struct buf data = BUF_INIT, uri = BUF_INIT;
		base64_encode(&data, bytes);
		buf_add_c(&uri, "sandbox://");
		buf_addf(&uri, "%s%s", r->box->id, buf_cstr(&path));
		r->content = json_pack("[{s:s,s:{s:s,s:s,s:s#}}]", "type", "resource", "resource", "uri", buf_cstr(&uri), "mimeType", media_type(buf_str(&path)), "blob", buf_str(&data).p,
			buf_len(&data));
	}
	buf_done(&f.bytes);
	return e;
}

static int write_file(struct tool_run *r, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT, url = BUF_INIT, answer = BUF_INIT;
	struct str content = json_str(arg(r, "content"));
	long status = 0;
	int e = settle_path(r, "path", &path, err);
	if (e < 0)
		return e;
	files_query(&url, buf_str(&path));
	struct remote_request q = {.method = "POST", .path = buf_cstr(&url), .body = content, .content_type = "application/octet-stream", .sandbox = r->box->id, .token = r->box->token,
		.port = ENVD, .timeout_s = CALL_S, .max = 64 * 1024, .cancelled = r->cancelled};
	if (!content.n)
		q.header = "Content-Type: application/octet-stream";
	e = q.path ? remote_call(r->server, &q, &answer, &status, err) : error_errno(err, -ENOMEM, "path");
	if (e == 0 && status != 200)
		e = files_error(status, &answer, text_of(r, "path"), err);
	if (e == 0)
		add_textf(r, "%zu bytes written to %s", content.n, buf_cstr(&path));
	return e;
}

static int list_files(struct tool_run *r, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT, text = BUF_INIT;
	long status = 0;
	int e = settle_path(r, "path", &path, err);
	if (e < 0)
		return e;
	cleanup_json json_t *body = json_pack("{s:s#,s:I}", "path", buf_str(&path).p, buf_len(&path), "depth", (json_int_t)number_of(r, "depth")), *j = NULL;
	e = filesystem(r, "ListDir", body, "path", MAX_ANSWER, &status, &j, err);
	if (e < 0)
		return e;
	if (status == 404)
		return error_set(err, -ENOENT, 404, "there is no directory '%s'", text_of(r, "path"));
	if (status != 200)
		return error_set(err, -EREMOTEIO, (int)status, "'%s' is no directory that can be listed", text_of(r, "path"));
	size_t i, shown = 0;
	json_t *one;
	json_array_foreach(json_object_get(j, "entries"), i, one) {
		bool directory = str_is(json_str(json_object_get(one, "type")), "FILE_TYPE_DIRECTORY");
		struct str where = json_str(json_object_get(one, "path"));
		if (shown++ == MAX_ENTRIES)
			break;
		if (str_starts(where, buf_str(&path)) && where.n > buf_len(&path))
			where = str_from(where, buf_len(&path) + (buf_str(&path).p[buf_len(&path) - 1] != '/'));
		buf_addf(&text, "%s%.*s%s", buf_len(&text) ? "\n" : "", STR_FMT(where), directory ? "/" : "");
		if (!directory)
			buf_addf(&text, "  %.*s bytes", STR_FMT(json_str(json_object_get(one, "size"))));
	}
	size_t all = json_array_size(json_object_get(j, "entries"));
	if (all > MAX_ENTRIES)
		buf_addf(&text, "\n[… %zu entries more]", all - MAX_ENTRIES);
	add_text(r, buf_len(&text) ? buf_str(&text) : STR("(empty)"));
	return 0;
}

/* Life */

static int get_info(struct tool_run *r, struct error *err)
{
	cleanup_json json_t *info = NULL;
	int e = about_box(r, "GET", "", NULL, CALL_S, &info, err);
	if (e < 0)
		return e;
	char ends[RFC3339_SIZE];
	rfc3339_format(ends, clock_realtime() + (r->box->ends - clock_boottime()));
	add_textf(r, "id: %s\ntemplate: %s\nstate: %.*s\ncpu: %lld\nmemory: %lld MiB\nstarted: %.*s\nends: %s", r->box->id, r->box->template,
		STR_FMT(json_str(json_object_get(info, "state"))), (long long)json_integer_value(json_object_get(info, "cpuCount")),
		(long long)json_integer_value(json_object_get(info, "memoryMB")), STR_FMT(json_str(json_object_get(info, "startedAt"))), ends);
	return 0;
}

/* What state the server says that it has now. */
static int verify_state(struct tool_run *r, const char *wanted, struct error *err)
{
	cleanup_json json_t *info = NULL;
	int e = about_box(r, "GET", "", NULL, CALL_S, &info, err);
	if (e < 0)
		return e;
	struct str state = json_str(json_object_get(info, "state"));
	if (!str_is(state, wanted))
		return error_set(err, -EBUSY, 409, "the sandbox is not %s: the server says that it is %.*s", wanted, STR_FMT(state));
	add_textf(r, "state: %s", wanted);
	return 0;
}

static int pause_box(struct tool_run *r, struct error *err)
{
	cleanup_json json_t *body = json_pack("{s:b}", "memory", true);
	bool was = atomic_exchange(&r->box->paused, true); /* no renewal meanwhile */
	int e = about_box(r, "POST", "/pause", body, CALL_S, NULL, err);
	if (e < 0 && err->status != 409) {
		atomic_store(&r->box->paused, was);
		return e;
	}
	return verify_state(r, "paused", err);
}

static int resume_box(struct tool_run *r, struct error *err)
{
	cleanup_json json_t *body = json_pack("{s:i}", "timeout", r->config->lease_s);
	if (remaining(r->box, 1) < 1)
		r->box->ends = clock_boottime() + 600 * NS_PER_S;
	int e = about_box(r, "POST", "/connect", body, CALL_S, NULL, err);
	if (e < 0)
		return e;
	atomic_store(&r->box->paused, false);
	return verify_state(r, "running", err);
}

static int snapshot(struct tool_run *r, struct error *err)
{
	cleanup_json json_t *made = NULL;
	struct str name = json_str(arg(r, "name"));
	cleanup_json json_t *body = arg(r, "name") ? json_pack("{s:s#}", "name", name.p, name.n) : json_object();
	if (arg(r, "name") && !name.n)
		return error_set(err, -EINVAL, 400, "name must not be empty");
	int e = about_box(r, "POST", "/snapshots", body, CALL_S, &made, err);
	if (e < 0)
		return e;
	struct str id = json_str(json_object_get(made, "snapshotID"));
	struct str told = json_str(json_array_get(json_object_get(made, "names"), 0));
	if (!id.n || (name.n && !told.n))
		return error_set(err, -EPROTO, 502, "the server did not confirm the snapshot");
	add_textf(r, "snapshot %.*s%s%.*s (files only: programs do not run on in what is made from it)", STR_FMT(id), told.n ? ", named " : "", STR_FMT(told));
	return 0;
}

static int fork_box(struct tool_run *r, struct error *err)
{
	cleanup_json json_t *all = NULL;
	int64_t count = number_of(r, "count");
	cleanup_json json_t *body = json_pack("{s:I,s:i}", "count", (json_int_t)count, "timeout", r->config->lease_s);
	int e = about_box(r, "POST", "/fork", body, CALL_S + 30, &all, err);
	if (e < 0)
		return e;
	cleanup_buf struct buf text = BUF_INIT;
	size_t i, made = 0;
	json_t *one;
	json_array_foreach(all, i, one) {
		json_t *sandbox = json_object_get(one, "sandbox");
		if (!sandbox)
			continue;
		struct error lost;
		if (take_box(r, sandbox, str_of(r->box->template), r->box->ends, &lost) == 0)
			buf_addf(&text, "%s%.*s", made++ ? "\n" : "", STR_FMT(json_str(json_object_get(sandbox, "sandboxID"))));
	}
	if (!made)
		return error_set(err, -EREMOTEIO, 502, "no fork was made");
	if ((int64_t)made < count)
		buf_addf(&text, "\n[only %zu of %lld were made]", made, (long long)count);
	add_text(r, buf_str(&text));
	return 0;
}

static int destroy(struct tool_run *r, struct error *err)
{
	/* Only this one, also when another was made meanwhile; and only once. */
	if (!boxes_take(r->boxes, r->box))
		return lost(err);
	int e = tools_end_box(r->server, r->box->id, false, CALL_S, err);
	if (e < 0) {
		/* It is still the session's to end. */
		struct error ignored = {0};
		if (boxes_add(r->boxes, str_of(r->box->id), str_of(r->box->token), str_of(r->box->template), r->box->ends) < 0)
			tools_end_box(r->server, r->box->id, false, CALL_S, &ignored);
		return e;
	}
	add_textf(r, "sandbox %s is destroyed", r->box->id);
	return 0;
}

#define TIMEOUT(least, most, normal, what) {"timeout", NUMBER, least, most, normal, false, what}
#define WHERE {"sandbox", TEXT, 1, 31, 0, false, "Id of a sandbox of this session; the newest one when absent."}

static const struct tool tools[] = {
	{"sandbox_create", "Create a sandbox", "Starts a new sandbox: a Linux machine of its own, that later calls use. It ends after its timeout, and with this session.", NO_BOX,
		{{"template", TEXT, 1, 256, 0, false, "What it is made from."}, TIMEOUT(30, 86400, 600, "Seconds that it lives."),
			{"envs", STRINGS, 0, 32768, 0, false, "Environment variables of every command."}, {"metadata", STRINGS, 0, 16384, 0, false, "What lists can filter by."},
			{"allow_internet", FLAG, 0, 0, 0, false, "false: nothing leaves it."}}, create},
	{"sandbox_run_code", "Run code", "Runs code in a kernel that keeps its variables between calls, like a notebook. Answers its result, output, error with traceback, and images.", 0,
		{{"code", TEXT, 0, 100 * 1024, 0, true, "What to run."}, {"language", TEXT, 1, 32, 0, false, "python (default), javascript, typescript, bash, r, …"},
			TIMEOUT(1, 3600, 120, "Seconds after which it is interrupted."), WHERE}, run_cell},
	{"sandbox_run_command", "Run a command", "Runs a shell command. Answers its output and its exit code.", 0,
		{{"command", TEXT, 1, 64 * 1024, 0, true, "For a login shell."}, {"cwd", TEXT, 1, MCP_MAX_PATH, 0, false, "Working directory."},
			TIMEOUT(1, 3600, 60, "Seconds after which it is killed."), WHERE}, run_shell},
	{"sandbox_read_file", "Read a file", "Answers the file's text (the first 50,000 characters, and says when that is not all), or its bytes when it is no text.", READ_ONLY,
		{{"path", TEXT, 1, MCP_MAX_PATH, 0, true, "Relative to " MCP_WORKSPACE "."}, WHERE}, read_file},
	{"sandbox_write_file", "Write a file", "Writes the file; missing directories are made.", 0,
		{{"path", TEXT, 1, MCP_MAX_PATH, 0, true, "Relative to " MCP_WORKSPACE "."}, {"content", TEXT, 0, 512 * 1024, 0, true, "All of it."}, WHERE}, write_file},
	{"sandbox_list_files", "List files", "Lists a directory.", READ_ONLY,
		{{"path", TEXT, 1, MCP_MAX_PATH, 0, true, "Relative to " MCP_WORKSPACE "; \".\" is that."}, {"depth", NUMBER, 1, 5, 1, false, "How many levels."}, WHERE}, list_files},
	{"sandbox_get_info", "Get information", "Tells id, template, state, processors, memory, start and end of the sandbox.", READ_ONLY, {WHERE}, get_info},
	{"sandbox_pause", "Pause", "Stops the sandbox and keeps it; sandbox_resume goes on with it.", 0, {WHERE}, pause_box},
	{"sandbox_resume", "Resume", "Goes on with a paused sandbox.", 0, {WHERE}, resume_box},
	{"sandbox_snapshot", "Snapshot", "Keeps a copy of the sandbox's files under an id, which sandbox_create takes as a template.", 0,
		{{"name", TEXT, 0, 128, 0, false, "A name for it."}, WHERE}, snapshot},
	{"sandbox_fork", "Fork", "Makes further sandboxes that begin with the files of this one. The last of them is what calls without an id mean from then on.", 0,
		{{"count", NUMBER, 1, FORK_MOST, 1, false, "How many."}, WHERE}, fork_box},
	{"sandbox_destroy", "Destroy", "Ends the sandbox and what is in it.", DESTROYS, {WHERE}, destroy},
};

const struct tool *tool_find(struct str name)
{
	for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
		if (str_is(name, tools[i].name))
			return &tools[i];
	return NULL;
}

static json_t *schema_of(const struct argument *a)
{
	switch (a->kind) {
	case NUMBER:
		return json_pack("{s:s,s:I,s:I,s:I,s:s}", "type", "integer", "minimum", (json_int_t)a->min, "maximum", (json_int_t)a->max, "default", (json_int_t)a->usual, "description", a->doc);
	case FLAG:
		return json_pack("{s:s,s:s}", "type", "boolean", "description", a->doc);
	case STRINGS:
		return json_pack("{s:s,s:{s:s},s:s}", "type", "object", "additionalProperties", "type", "string", "description", a->doc);
	case TEXT:
		break;
	}
	return json_pack("{s:s,s:I,s:I,s:s}", "type", "string", "minLength", (json_int_t)a->min, "maxLength", (json_int_t)a->max, "description", a->doc);
}

json_t *tools_list(void)
{
	json_t *all = json_array();
	for (size_t i = 0; i < ARRAY_SIZE(tools); i++) {
		const struct tool *t = &tools[i];
		json_t *properties = json_object(), *required = json_array();
		for (const struct argument *a = t->args; a->name; a++) {
			json_object_set_new(properties, a->name, schema_of(a));
			if (a->required)
				json_array_append_new(required, json_string(a->name));
		}
		json_array_append_new(all,
			json_pack("{s:s,s:s,s:s,s:{s:s,s:o,s:o,s:b},s:{s:s,s:b,s:b,s:b}}", "name", t->name, "title", t->title, "description", t->doc, "inputSchema", "type", "object", "properties",
				properties, "required", required, "additionalProperties", 0, "annotations", "title", t->title, "readOnlyHint", (t->flags & READ_ONLY) != 0, "destructiveHint",
				(t->flags & DESTROYS) != 0, "openWorldHint", !(t->flags & (READ_ONLY | DESTROYS))));
	}
	return all;
}

static int check_argument(const struct argument *a, const json_t *v, struct error *err)
{
	size_t bytes = 0;
	const char *key;
	json_t *one;
	switch (a->kind) {
	case NUMBER:
		if (!json_is_integer(v) || json_integer_value(v) < a->min || json_integer_value(v) > a->max)
			return error_set(err, -EINVAL, 400, "%s must be an integer from %lld to %lld", a->name, (long long)a->min, (long long)a->max);
		return 0;
	case FLAG:
		return json_is_boolean(v) ? 0 : error_set(err, -EINVAL, 400, "%s must be true or false", a->name);
	case TEXT:
		if (!json_is_string(v))
			return error_set(err, -EINVAL, 400, "%s must be a string", a->name);
		bytes = json_string_length(v);
		if ((int64_t)bytes < a->min)
			return error_set(err, -EINVAL, 400, "%s must not be empty", a->name);
		if (strlen(json_string_value(v)) != bytes && strcmp(a->name, "content") != 0)
			return error_set(err, -EINVAL, 400, "%s must not have a NUL character", a->name);
		break;
	case STRINGS:
		if (!json_is_object(v))
			return error_set(err, -EINVAL, 400, "%s must be an object of strings", a->name);
		json_object_foreach((json_t *)(uintptr_t)v, key, one) {
			if (!json_is_string(one))
				return error_set(err, -EINVAL, 400, "%s.%.64s must be a string", a->name, key);
			bytes += strlen(key) + json_string_length(one);
		}
		break;
	}
	return (int64_t)bytes <= a->max ? 0 : error_set(err, -EINVAL, 400, "%s must have at most %lld bytes, it has %zu", a->name, (long long)a->max, bytes);
}

/* Numbers that are absent get their usual value. */
static int check_arguments(const struct tool *t, json_t *args, struct error *err)
{
	const char *key;
	json_t *value;
	json_object_foreach(args, key, value) {
		const struct argument *a = t->args;
		while (a->name && strcmp(a->name, key) != 0)
			a++;
		if (!a->name)
			return error_set(err, -EINVAL, 400, "%.64s: %s has no such argument", key, t->name);
		int e = check_argument(a, value, err);
		if (e < 0)
			return e;
	}
	for (const struct argument *a = t->args; a->name; a++) {
		if (json_object_get(args, a->name))
			continue;
		if (a->required)
			return error_set(err, -EINVAL, 400, "%s is missing", a->name);
		if (a->kind == NUMBER && json_object_set_new(args, a->name, json_integer(a->usual)) < 0)
			return error_errno(err, -ENOMEM, "%s", a->name);
	}
	return 0;
}

int tool_prepare(const struct tool *t, struct tool_run *r)
{
	struct error err = {0};
	/* null is what some clients send for "not given". */
	void *next;
	const char *key;
	json_t *value;
	json_object_foreach_safe(r->args, next, key, value) if (json_is_null(value))
		json_object_del(r->args, key);
	int e = check_arguments(t, r->args, &err);
	if (e == 0 && !(t->flags & NO_BOX)) {
		r->box = boxes_capture(r->boxes, json_str(arg(r, "sandbox")), &err);
		e = r->box ? 0 : err.code;
	}
	if (e < 0)
		fail(r, &err);
	return e;
}

/* A sandbox did not answer: is it gone, or paused (by its deadline, by somebody else)? The server knows. */
static void explain_loss(struct tool_run *r, struct error *err)
{
	struct error why = {0};
	cleanup_json json_t *info = NULL;
	if (about_box(r, "GET", "", NULL, CALL_S, &info, &why) < 0) {
		/* The server does not know it any more: nothing else will. */
		if (why.status == 404)
			boxes_take(r->boxes, r->box);
		else
			*err = why;
		return;
	}
	if (str_is(json_str(json_object_get(info, "state")), "paused")) {
		atomic_store(&r->box->paused, true);
		error_set(err, -EBUSY, 409, "the sandbox is paused: call sandbox_resume");
	} else {
		error_set(err, -ECONNRESET, 502, "the sandbox does not answer: try again");
	}
}

void tool_call(const struct tool *t, struct tool_run *r)
{
	struct error err = {0};
	int e = r->box && atomic_load(&r->box->gone) ? lost(&err) : t->run(r, &err);
	if (e < 0 && r->box && e != -EINVAL && e != -ECANCELED && atomic_load(&r->box->gone))
		e = lost(&err);
	if (e < 0 && r->box && err.status == 404 && !strcmp(err.message, gone_text))
		explain_loss(r, &err);
	if (e < 0)
		fail(r, &err);
}
