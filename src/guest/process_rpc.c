#include "base/cleanup.h"
#include "base/log.h"
#include "guest/pb.h"
#include "guest/process.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/ioctl.h>

enum {
	MAX_START = 4 * 1024 * 1024,
	MAX_SEND = 24 * 1024 * 1024, /* base64 of 16 MiB and more */
	MAX_STREAMED = 4 * 1024 * 1024,
	MAX_SMALL = 64 * 1024,
	MAX_ARG = 128 * 1024, /* the kernel's limit of one string */
	DEFAULT_COLS = 80,
	DEFAULT_ROWS = 24,
};

static void invalid(struct rpc *c, const struct error *err)
{
	rpc_fail(c, err->code == -ENOMEM ? CONNECT_RESOURCE_EXHAUSTED : CONNECT_INVALID_ARGUMENT, "%s",
		err->message);
}

/* The process that {"process":{"pid"|"tag"}} names; NULL after the call was failed. */
static struct process *select_process(struct rpc *c, const json_t *m, bool ended)
{
	struct error err = {0};
	const json_t *selector = NULL;
	uint32_t pid = 0;
	struct str tag = STR("");
	int by_pid = 0, by_tag = 0;
	if (pb_object(m, "process", &selector, &err) < 0 ||
		(selector && (by_pid = pb_u32(selector, "pid", &pid, &err)) < 0) ||
		(selector && (by_tag = pb_string(selector, "tag", PROCESS_MAX_TAG, &tag, &err)) < 0)) {
		invalid(c, &err);
		return NULL;
	}
	if (by_pid + by_tag != 1) {
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "process: one of pid and tag is required");
		return NULL;
	}
	struct processes *all = c->envd->processes;
	struct process *p = by_pid ? process_by_pid(all, pid, ended) : process_by_tag(all, tag, ended);
	if (!p && by_pid)
		rpc_fail(c, CONNECT_NOT_FOUND, "process with pid %u not found", pid);
	else if (!p)
		rpc_fail(c, CONNECT_NOT_FOUND, "process with tag %.*s not found", STR_FMT(tag));
	return p;
}

/* {"size":{"cols","rows"}} of a pty message: 1 = there, 0 = absent, -EINVAL. */
static int read_size(const json_t *pty, uint16_t *ret_cols, uint16_t *ret_rows, struct error *err)
{
	const json_t *size = NULL;
	uint32_t cols = 0, rows = 0;
	int r = pb_object(pty, "size", &size, err);
	if (r <= 0)
		return r;
	if (pb_u32(size, "cols", &cols, err) < 0 || pb_u32(size, "rows", &rows, err) < 0)
		return -EINVAL;
	if (cols < 1 || cols > USHRT_MAX || rows < 1 || rows > USHRT_MAX)
		return error_set(err, -EINVAL, 400,
			"pty.size: cols and rows must be between 1 and %d, not %u and %u", USHRT_MAX, cols,
			rows);
	*ret_cols = (uint16_t)cols;
	*ret_rows = (uint16_t)rows;
	return 1;
}

/* Start */

static int add_string(struct buf *to, struct str s)
{
	buf_add_str(to, s);
	return buf_add(to, "", 1);
}

/* A string of the arguments or variables. */
static int check_string(const char *what, const json_t *v, struct str *ret, struct error *err)
{
	if (!json_is_string(v))
		return error_set(err, -EINVAL, 400, "%s: a string expected", what);
	*ret = json_str(v);
	if (memchr(ret->p, '\0', ret->n))
		return error_set(err, -EINVAL, 400, "%s: holds a NUL byte", what);
	if (ret->n >= MAX_ARG)
		return error_set(err, -EINVAL, 400, "%s: longer than %d bytes", what, MAX_ARG - 1);
	return 0;
}

/* cmd and args, for the spawner and for List. */
static int add_args(
	struct process_request *q, struct buf *config, struct str cmd, const json_t *args, struct error *err)
{
	size_t i;
	const json_t *v;
	struct str s;
	add_string(&q->body, cmd);
	q->head.n_args = 1;
	buf_add_c(config, "{\"cmd\":");
	json_quote(config, cmd);
	if (args && json_array_size(args)) {
		json_array_foreach(args, i, v)
		{
			int r = check_string("args", v, &s, err);
			if (r < 0)
				return r;
			add_string(&q->body, s);
			q->head.n_args++;
			buf_add_c(config, i ? "," : ",\"args\":[");
			json_quote(config, s);
		}
		buf_add_c(config, "]");
	}
	return 0;
}

static int add_env(struct process_request *q, struct str name, struct str value, struct error *err)
{
	if (q->head.n_envs >= SPAWN_MAX_ENVS)
		return error_set(err, -EINVAL, 400, "envs: more than %d variables", SPAWN_MAX_ENVS);
	buf_add_str(&q->body, name);
	buf_add_c(&q->body, "=");
	add_string(&q->body, value);
	q->head.n_envs++;
	return 0;
}

static int check_name(struct str name, struct error *err)
{
	if (name.n == 0 || memchr(name.p, '=', name.n) || memchr(name.p, '\0', name.n))
		return error_set(err, -EINVAL, 400, "envs: '%.*s' cannot be the name of a variable",
			(int)MIN(name.n, 100), name.p);
	return name.n >= MAX_ARG
		       ? error_set(err, -EINVAL, 400, "envs: a name is longer than %d bytes", MAX_ARG - 1)
		       : 0;
}

/* The sandbox's variables, then those of the request, which win. */
static int add_envs(
	struct envd *e, struct process_request *q, struct buf *config, const json_t *envs, struct error *err)
{
	struct str rest = buf_str(&e->identity->envs), name, value;
	int r = 0;
	while (r == 0 && msg_map_next(&rest, &name, &value))
		if (check_name(name, NULL) == 0 && !memchr(value.p, '\0', value.n))
			r = add_env(q, name, value, err);
	bool first = true;
	void *it = envs ? json_object_iter((json_t *)(uintptr_t)envs) : NULL;
	for (; it && r == 0; it = json_object_iter_next((json_t *)(uintptr_t)envs, it)) {
		name = str_n(json_object_iter_key(it), json_object_iter_key_len(it));
		if ((r = check_name(name, err)) < 0 ||
			(r = check_string("envs", json_object_iter_value(it), &value, err)) < 0)
			return r;
		r = add_env(q, name, value, err);
		buf_add_c(config, first ? ",\"envs\":{" : ",");
		json_quote(config, name);
		buf_add_c(config, ":");
		json_quote(config, value);
		first = false;
	}
	if (!first)
		buf_add_c(config, "}");
	return r;
}

/* The whole body for the spawner: user, cwd, workdir, arguments, variables (spawn.h). */
static int build_request(struct rpc *c, const json_t *process, struct process_request *q, struct buf *config,
	struct error *err)
{
	const struct guest_identity *id = c->envd->identity;
	const json_t *args = NULL, *envs = NULL;
	struct str cmd = STR(""), cwd = STR("");
	if (pb_string(process, "cmd", PATH_MAX, &cmd, err) < 0 || pb_array(process, "args", &args, err) < 0 ||
		pb_object(process, "envs", &envs, err) < 0 ||
		pb_string(process, "cwd", PATH_MAX, &cwd, err) < 0)
		return -EINVAL;
	if (cmd.n == 0)
		return error_set(err, -EINVAL, 400, "process.cmd is required");
	add_string(&q->body, c->user[0] ? str_of(c->user) : str_of(id->user ? id->user : "root"));
	add_string(&q->body, cwd);
	add_string(&q->body, str_of(id->workdir));
	q->args_at = buf_len(&q->body);
	int r = add_args(q, config, cmd, args, err);
	q->args_end = buf_len(&q->body);
	if (r == 0)
		r = add_envs(c->envd, q, config, envs, err);
	if (r == 0 && cwd.n) {
		buf_add_c(config, ",\"cwd\":");
		json_quote(config, cwd);
	}
	buf_add_c(config, "}");
	if (r == 0 && (q->body.failed || config->failed))
		r = error_errno(err, -ENOMEM, "the command");
	return r;
}

static int read_start(
	struct rpc *c, const json_t *m, struct process_request *q, struct buf *config, struct error *err)
{
	const json_t *process = NULL, *pty = NULL;
	q->has_stdin = true; /* when it is not said */
	q->cols = DEFAULT_COLS;
	q->rows = DEFAULT_ROWS;
	if (pb_object(m, "process", &process, err) < 0 || pb_object(m, "pty", &pty, err) < 0 ||
		pb_bool(m, "stdin", &q->has_stdin, err) < 0 ||
		pb_string(m, "tag", PROCESS_MAX_TAG, &q->tag, err) < 0)
		return -EINVAL;
	if (!process)
		return error_set(err, -EINVAL, 400, "process is required");
	if (pty && read_size(pty, &q->cols, &q->rows, err) < 0)
		return -EINVAL;
	q->pty = pty != NULL;
	q->head.flags = q->pty ? SPAWN_PTY : 0;
	return build_request(c, process, q, config, err);
}

static void call_start(struct rpc *c, const json_t *m)
{
	struct error err = {0};
	cleanup_buf struct buf config = BUF_INIT;
	struct process_request q = {.head.kind = SPAWN_COMMAND, .timeout_ns = c->timeout_ns};
	int r = read_start(c, m, &q, &config, &err);
	q.config = buf_str(&config);
	if (r < 0)
		invalid(c, &err);
	else if (q.pty && c->envd->pts < 0)
		rpc_fail(c, CONNECT_UNAVAILABLE, "this sandbox has no terminals");
	else
		process_start(c->envd->processes, c, &q);
	buf_done(&q.body);
}

static void call_connect(struct rpc *c, const json_t *m)
{
	struct process *p = select_process(c, m, true);
	if (p)
		process_watch(p, c);
}

static void call_list(struct rpc *c, const json_t *m)
{
	cleanup_buf struct buf out = BUF_INIT;
	bool first = true;
	buf_add_c(&out, "{\"processes\":[");
	for (struct process *p = c->envd->processes->live; p; p = p->next) {
		if (p->state == PROCESS_STARTING)
			continue;
		buf_addf(&out, "%s{\"config\":%s,\"pid\":%d", first ? "" : ",", p->config, p->pid);
		if (p->tag) {
			buf_add_c(&out, ",\"tag\":");
			json_quote(&out, str_of(p->tag));
		}
		buf_add_c(&out, "}");
		first = false;
	}
	buf_add_c(&out, "]}");
	if (out.failed)
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED, "no memory for the list");
	else
		rpc_reply(c, buf_str(&out));
}

static void call_update(struct rpc *c, const json_t *m)
{
	struct error err = {0};
	const json_t *pty = NULL;
	struct winsize size = {0};
	struct process *p = select_process(c, m, false);
	if (!p)
		return;
	int r = pb_object(m, "pty", &pty, &err);
	if (r == 1)
		r = read_size(pty, &size.ws_col, &size.ws_row, &err);
	if (r < 0)
		invalid(c, &err);
	else if (pty && p->terminal < 0)
		rpc_fail(c, CONNECT_INTERNAL, "error resizing tty: tty not assigned to process");
	else if (r == 1 && ioctl(p->terminal, TIOCSWINSZ, &size) < 0)
		rpc_fail(c, CONNECT_INTERNAL, "error resizing tty: %s", strerror(errno));
	else
		rpc_reply(c, STR("{}"));
}

/* Input */

static void input_gone(struct rpc *c)
{
	if (c->state)
		process_input_orphan(c->state, c);
}

static void input_writable(struct rpc *c)
{
}

static const struct rpc_ops input_ops = {.gone = input_gone, .writable = input_writable};

/* The bytes of a field, or those that were decoded on their way in its place. */
static int read_bytes(
	struct rpc *c, const json_t *input, const char *name, struct buf *ret, struct error *err)
{
	const json_t *v = pb_get(input, name);
	if (!c->payload.taken || !v || !str_is(json_str(v), PAYLOAD_MARK))
		return pb_bytes(input, name, ret, err);
	buf_done(ret);
	*ret = c->payload.bytes;
	c->payload.bytes = BUF_INIT;
	return 1;
}

/* {"input":{"stdin"|"pty"}} to the process; the call is answered when it was written. */
static void give_input(struct rpc *c, struct process *p, const json_t *m)
{
	struct error err = {0};
	const json_t *input = NULL;
	cleanup_buf struct buf bytes = BUF_INIT;
	int in = 0, pty = 0;
	if (pb_object(m, "input", &input, &err) < 0 ||
		(input && (in = read_bytes(c, input, "stdin", &bytes, &err)) < 0) ||
		(input && (pty = read_bytes(c, input, "pty", &bytes, &err)) < 0)) {
		invalid(c, &err);
		return;
	}
	if (in + pty != 1) {
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "input: one of stdin and pty is required");
		return;
	}
	if (in && p->terminal >= 0) {
		rpc_fail(c, CONNECT_INTERNAL,
			"error writing to stdin: the process has a terminal; send pty input");
		return;
	}
	if (pty && p->terminal < 0) {
		rpc_fail(c, CONNECT_INTERNAL, "error writing to tty: tty not assigned to process");
		return;
	}
	c->ops = &input_ops;
	int r = process_input(p, c, &bytes);
	if (r == -EPIPE)
		rpc_fail(c, CONNECT_INTERNAL, "error writing to stdin: stdin not enabled or closed");
	else if (r < 0)
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED,
			"too much input is waiting in this sandbox; try again when some was read");
}

static void call_send_input(struct rpc *c, const json_t *m)
{
	struct process *p = select_process(c, m, false);
	if (p)
		give_input(c, p, m);
}

static void call_stream_input(struct rpc *c, const json_t *m)
{
	struct error err = {0};
	const json_t *start = NULL, *data = NULL;
	if (pb_object(m, "start", &start, &err) < 0 || pb_object(m, "data", &data, &err) < 0) {
		invalid(c, &err);
		return;
	}
	if (start) {
		struct process *p = c->pid ? NULL : select_process(c, start, false);
		if (p && p->state == PROCESS_STARTING)
			rpc_fail(c, CONNECT_FAILED_PRECONDITION, "the process is still being started");
		else if (p)
			c->pid = (uint32_t)p->pid;
		else if (!c->answered)
			rpc_fail(c, CONNECT_INVALID_ARGUMENT, "start: comes once, first");
		return;
	}
	if (!data)
		return; /* keepalive */
	struct process *p = process_by_pid(c->envd->processes, c->pid, false);
	if (!c->pid)
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "the first message must be start");
	else if (!p)
		rpc_fail(c, CONNECT_NOT_FOUND, "process with pid %u not found", c->pid);
	else {
		rpc_pause(c); /* until it is written */
		give_input(c, p, data);
	}
}

static void end_stream_input(struct rpc *c)
{
	if (c->pid)
		rpc_reply(c, STR("{}"));
	else
		rpc_fail(c, CONNECT_INVALID_ARGUMENT, "the first message must be start");
}

static void call_close_stdin(struct rpc *c, const json_t *m)
{
	struct process *p = select_process(c, m, false);
	if (!p)
		return;
	if (p->terminal >= 0) {
		rpc_fail(c, CONNECT_UNKNOWN,
			"error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) "
			"instead");
		return;
	}
	process_close_input(p);
	rpc_reply(c, STR("{}"));
}

static void call_send_signal(struct rpc *c, const json_t *m)
{
	static const struct pb_enum signals[] = {{"SIGNAL_UNSPECIFIED", 0}, {"SIGNAL_SIGTERM", SIGTERM},
		{"SIGNAL_SIGKILL", SIGKILL}, {NULL, 0}};
	struct error err = {0};
	int sig = 0;
	bool descendants = false;
	struct process *p = select_process(c, m, false);
	if (!p)
		return;
	if (pb_enum(m, "signal", signals, &sig, &err) < 0 ||
		pb_bool(m, "descendants", &descendants, &err) < 0)
		invalid(c, &err);
	else if (sig == 0)
		rpc_fail(c, CONNECT_UNIMPLEMENTED,
			"signal: only SIGNAL_SIGTERM and SIGNAL_SIGKILL can be sent");
	else
		process_signal(p, c, sig, descendants);
}

static const struct rpc_method methods[] = {
	{"List", RPC_UNARY, MAX_SMALL, call_list, NULL, false},
	{"Start", RPC_SERVER_STREAM, MAX_START, call_start, NULL, false},
	{"Connect", RPC_SERVER_STREAM, MAX_SMALL, call_connect, NULL, false},
	{"Update", RPC_UNARY, MAX_SMALL, call_update, NULL, false},
	{"SendInput", RPC_UNARY, MAX_SEND, call_send_input, NULL, true},
	{"StreamInput", RPC_CLIENT_STREAM, MAX_STREAMED, call_stream_input, end_stream_input, false},
	{"SendSignal", RPC_UNARY, MAX_SMALL, call_send_signal, NULL, false},
	{"CloseStdin", RPC_UNARY, MAX_SMALL, call_close_stdin, NULL, false},
};

const struct rpc_method *process_method(struct str name)
{
	for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
		if (str_is(name, methods[i].name))
			return &methods[i];
	return NULL;
}
