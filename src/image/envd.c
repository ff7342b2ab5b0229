#include "image/envd.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "image/envd_http.h"
#include "io/connect.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	MAX_EVENT = 1024 * 1024, /* envd's chunks are 32 KiB before base64 */
	MAX_ANSWER = 1024 * 1024,
	LINE_MOST = 4096,
};

/* Output that is no whole line yet. */
struct lines {
	const struct envd_command *c;
	struct buf pending[2];
};

static void flush(struct lines *l, bool is_stderr, bool all)
{
	struct buf *b = &l->pending[is_stderr];
	for (;;) {
		struct str text = buf_str(b), line = text;
		ptrdiff_t at = str_chr(text, '\n');
		size_t taken = at >= 0 ? (size_t)at + 1 : text.n;
		if (at >= 0 && (size_t)at <= LINE_MOST)
			line.n = (size_t)at;
		else if (text.n > LINE_MOST)
			taken = line.n = LINE_MOST;
		else if (!all || !text.n)
			return;
		/* A progress bar redraws its line: what stands after its last carriage return counts. */
		while (line.n && line.p[line.n - 1] == '\r')
			line.n--;
		const char *back = memrchr(line.p, '\r', line.n);
		if (back)
			line = str_from(line, (size_t)(back - line.p) + 1);
		l->c->line(l->c->arg, is_stderr, line);
		buf_consume(b, taken);
	}
}

static int output(struct lines *l, const json_t *data)
{
	static const char *const names[] = {"stdout", "stderr"};
	for (int i = 0; i < 2; i++) {
		struct str text = json_str(json_object_get(data, names[i]));
		if (!text.n || !l->c->line)
			continue;
		int r = base64_decode(&l->pending[i], text);
		if (r < 0)
			return r;
		flush(l, i, false);
	}
	return 0;
}

static int take_end(const json_t *j, struct envd_end *ret)
{
	json_t *code = json_object_get(j, "exitCode");
	struct str status = json_str(json_object_get(j, "status"));
	ret->code = json_is_integer(code) ? (int)json_integer_value(code) : 0;
	snprintf(ret->status, sizeof(ret->status), "%.*s", (int)MIN(status.n, sizeof(ret->status) - 1), status.p);
	if (str_starts(status, STR("signal: ")))
		ret->code = -1;
	return 1;
}

/* {"error":{"code","message"}} of the last envelope. */
static int take_failure(const json_t *j, struct error *err)
{
	const json_t *e = json_object_get(j, "error");
	struct str code = json_str(json_object_get(e, "code")), message = json_str(json_object_get(e, "message"));
	if (!e)
		return 0;
	return error_set(err, str_is(code, "unauthenticated") ? -EACCES : -EINVAL, 400, "%.*s: %.*s", (int)MIN(code.n, (size_t)40), code.p, (int)MIN(message.n, (size_t)300),
		message.p);
}

static int take_event(struct lines *l, unsigned flags, struct str message, struct envd_end *ret, struct error *err)
{
	cleanup_json json_t *j = json_parse(message, MAX_EVENT, "event", err);
	if (!j)
		return error_set(err, -EPROTO, 502, "the build's sandbox sent an event that is no JSON");
	if (flags & CONNECT_FLAG_END)
		return take_failure(j, err);
	const json_t *event = json_object_get(j, "event"), *data = json_object_get(event, "data"), *end = json_object_get(event, "end");
	int r = data ? output(l, data) : 0;
	return r < 0 ? error_errno(err, r, "output of the build's sandbox") : end ? take_end(end, ret) : 0;
}

/* Reads the stream to its end. *ret_ended: the command's end was told. */
static int take_stream(struct envd_http *h, struct lines *l, struct envd_end *ret, struct error *err)
{
	cleanup_buf struct buf in = BUF_INIT;
	bool ended = false;
	struct str piece, message;
	int r;
	while ((r = envd_http_next(h, &piece, err)) > 0) {
		unsigned flags;
		ssize_t n = 0;
		if (buf_add_str(&in, piece) < 0)
			return error_errno(err, -ENOMEM, "output of the build's sandbox");
		while ((n = connect_parse_envelope(buf_str(&in), MAX_EVENT, &flags, &message)) > 0) {
			r = take_event(l, flags, message, ret, err);
			if (r < 0)
				return r;
			ended |= r > 0;
			buf_consume(&in, (size_t)n);
		}
		if (n < 0)
			return error_set(err, -EPROTO, 502, "the build's sandbox sent an event that is too long");
	}
	return r < 0 ? r : ended ? 0 : error_set(err, -EPIPE, 500, "the build's sandbox ended");
}

static int start_request(const struct envd_command *c, struct buf *to)
{
	cleanup_json json_t *args = json_array(), *envs = json_object();
	int r = 0;
	/* What cannot be sent must not be left out. */
	for (size_t i = 1; c->argv[i]; i++)
		r |= json_array_append_new(args, json_string(c->argv[i]));
	for (size_t i = 0; c->env && i < c->env->n; i++)
		r |= json_object_set_new(envs, c->env->vars[i].name, json_string(c->env->vars[i].value));
	if (r < 0)
		return -EINVAL;
	cleanup_json json_t *j = json_pack("{s:{s:s, s:O, s:O, s:s*}, s:b}", "process", "cmd", c->argv[0], "args", args, "envs", envs, "cwd", c->cwd, "stdin", 0);
	cleanup_free char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	return text ? connect_envelope(to, 0, str_of(text)) : -EINVAL;
}

int envd_run(const struct envd *e, const struct envd_command *c, struct envd_end *ret, struct error *err)
{
	cleanup_envd_http struct envd_http h = ENVD_HTTP_INIT;
	cleanup_buf struct buf body = BUF_INIT, lines = BUF_INIT;
	struct lines l = {.c = c};
	*ret = (struct envd_end){0};
	buf_add_c(&lines, "Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nKeepalive-Ping-Interval: 60\r\n");
	envd_http_user(&lines, c->user);
	if (!buf_cstr(&lines) || start_request(c, &body) < 0)
		return error_set(err, -EINVAL, 400, "the command is no text that can be sent (UTF-8)");
	int r = envd_http_open(&h, e, "POST", "/process.Process/Start", buf_cstr(&lines), (int64_t)buf_len(&body), err);
	if (r == 0)
		r = envd_http_send(&h, buf_str(&body), err);
	if (r == 0)
		r = envd_http_answer(&h, err);
	if (r == 0)
		r = h.status == 200 ? take_stream(&h, &l, ret, err) : envd_http_refused(&h, "starting a command", err);
	for (int i = 0; i < 2; i++) {
		if (c->line)
			flush(&l, i, true);
		buf_done(&l.pending[i]);
	}
	return r;
}

/* A unary call. *ret_status: of the answer; *ret: its JSON. */
static int call(const struct envd *e, const char *method, const char *user, const json_t *request, int *ret_status, json_t **ret, struct error *err)
{
	cleanup_envd_http struct envd_http h = ENVD_HTTP_INIT;
	cleanup_buf struct buf lines = BUF_INIT, body = BUF_INIT;
	cleanup_free char *text = json_dumps(request, JSON_COMPACT);
	buf_add_c(&lines, "Content-Type: application/json\r\nConnect-Protocol-Version: 1\r\n");
	envd_http_user(&lines, user);
	if (!text || !buf_cstr(&lines))
		return error_errno(err, -ENOMEM, "%s", method);
	int r = envd_http_open(&h, e, "POST", method, buf_cstr(&lines), (int64_t)strlen(text), err);
	if (r == 0)
		r = envd_http_send(&h, str_of(text), err);
	if (r == 0)
		r = envd_http_answer(&h, err);
	if (r == 0)
		r = envd_http_body(&h, MAX_ANSWER, &body, err);
	if (r < 0)
		return r;
	*ret_status = h.status;
	*ret = json_parse(buf_str(&body), MAX_ANSWER, "answer", err);
	return *ret ? 0 : error_set(err, -EPROTO, 502, "the build's sandbox answered something that is no JSON");
}

int envd_stat(const struct envd *e, const char *path, struct envd_stat *ret, struct error *err)
{
	cleanup_json json_t *request = json_pack("{s:s}", "path", path), *answer = NULL;
	int status = 0;
	*ret = (struct envd_stat){0};
	int r = call(e, "/filesystem.Filesystem/Stat", "root", request, &status, &answer, err);
	if (r < 0 || status == 404)
		return r;
	const json_t *entry = json_object_get(answer, "entry");
	struct str type = json_str(json_object_get(entry, "type"));
	if (status != 200 || !entry)
		return error_set(err, -EIO, 500, "%s: %.*s", path, (int)MIN(json_str(json_object_get(answer, "message")).n, (size_t)300), json_str(json_object_get(answer, "message")).p);
	*ret = (struct envd_stat){.exists = true, .is_dir = str_is(type, "FILE_TYPE_DIRECTORY"), .is_link = json_object_get(entry, "symlinkTarget") != NULL};
	return 0;
}

int envd_make_dir(const struct envd *e, const char *path, const char *user, struct error *err)
{
	cleanup_json json_t *request = json_pack("{s:s}", "path", path), *answer = NULL;
	int status = 0;
	int r = call(e, "/filesystem.Filesystem/MakeDir", user, request, &status, &answer, err);
	if (r < 0 || status == 200 || status == 409)
		return r;
	struct str code = json_str(json_object_get(answer, "code")), message = json_str(json_object_get(answer, "message"));
	return error_set(err, -EIO, 400, "%.*s: %.*s", (int)MIN(code.n, (size_t)40), code.p, (int)MIN(message.n, (size_t)300), message.p);
}

int envd_remove(const struct envd *e, const char *path, struct error *err)
{
	cleanup_json json_t *request = json_pack("{s:s}", "path", path), *answer = NULL;
	int status = 0;
	int r = call(e, "/filesystem.Filesystem/Remove", "root", request, &status, &answer, err);
	if (r < 0 || status == 200 || status == 404)
		return r;
	struct str message = json_str(json_object_get(answer, "message"));
	return error_set(err, -EIO, 400, "%s: %.*s", path, (int)MIN(message.n, (size_t)300), message.p);
}

int envd_read_file(const struct envd *e, const char *path, size_t max, struct buf *to, struct error *err)
{
	cleanup_envd_http struct envd_http h = ENVD_HTTP_INIT;
	cleanup_buf struct buf target = BUF_INIT;
	buf_add_c(&target, "/files?username=root&path=");
	url_encode(&target, str_of(path));
	if (!buf_cstr(&target))
		return error_errno(err, -ENOMEM, "%s", path);
	int r = envd_http_open(&h, e, "GET", buf_cstr(&target), "", 0, err);
	if (r == 0)
		r = envd_http_answer(&h, err);
	if (r < 0)
		return r;
	return h.status == 200 ? envd_http_body(&h, max, to, err) : envd_http_refused(&h, path, err);
}
