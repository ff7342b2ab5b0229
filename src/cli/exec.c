#include "cli/exec.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "cli/signals.h"
#include "io/connect.h"
#include "io/json.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <termios.h>

enum {
	STDIN_CHUNK = 48 * 1024,      /* one SendInput: 64 KiB in base64 */
	OUTPUT_HIGH = 1024 * 1024,    /* queued for a slow reader of ours; beyond, the sandbox waits */
	OUTPUT_PIECE = 4096,          /* PIPE_BUF: what a pipe that polls writable takes without blocking */
	MAX_EVENT = 1024 * 1024,      /* envd's chunks are 32 KiB before base64 */
	MAX_ERROR_BODY = 64 * 1024,
	MAX_ANSWER = 64 * 1024,
	CONTROL_TIMEOUT_S = 30,
};

/* One of our output streams with what it has not taken yet. */
struct outlet {
	int fd;
	bool broken; /* nobody reads any more */
	struct buf pending;
};

enum control { CONTROL_NONE, CONTROL_INPUT, CONTROL_CLOSE, CONTROL_RESIZE, CONTROL_SIGNAL };

struct session {
	struct client *cl;
	const struct target *target;
	const struct exec_request *q;
	CURLM *multi;
	CURL *stream, *control;
	struct curl_slist *stream_headers, *control_headers;
	struct buf in;      /* bytes of the stream that are no whole envelope yet */
	struct buf failure; /* body of an answer that is no stream */
	struct outlet out, err;
	bool paused;
	int64_t pid; /* inside; 0 = not started */
	bool ended, closed;
	int exit_code;
	struct error error; /* of the end-of-stream envelope or of the protocol */
	int code;           /* exit code that goes with it, or negative */
	char detail[CURL_ERROR_SIZE];

	int signals, first_signal, signal_count;
	enum control busy;
	struct buf body, answer; /* of the control request under way */
	char input[STDIN_CHUNK];
	size_t input_n;
	bool input_eof, input_off, input_closed;
	bool resize;
	int kill; /* signal to send, or 0 */
	bool raw;
	struct termios saved;
};

/* The texts of the agent's Go-like status (e2b.md B.6), for the exit code that a shell would show. */
static const struct {
	const char *text;
	int number;
} signal_texts[] = {
	{"hangup", SIGHUP}, {"interrupt", SIGINT}, {"quit", SIGQUIT}, {"illegal instruction", SIGILL}, {"trace/breakpoint trap", SIGTRAP},
	{"aborted", SIGABRT}, {"bus error", SIGBUS}, {"floating point exception", SIGFPE}, {"killed", SIGKILL},
	{"user defined signal 1", SIGUSR1}, {"segmentation fault", SIGSEGV}, {"user defined signal 2", SIGUSR2}, {"broken pipe", SIGPIPE},
	{"alarm clock", SIGALRM}, {"terminated", SIGTERM},
};

static int exit_code_of(const json_t *end)
{
	struct str status = json_str(json_object_get(end, "status"));
	json_t *code = json_object_get(end, "exitCode");
	if (!str_starts(status, STR("signal: ")))
		return json_is_integer(code) ? (int)(json_integer_value(code) & 255) : 0;
	status = str_from(status, strlen("signal: "));
	for (size_t i = 0; i < ARRAY_SIZE(signal_texts); i++)
		if (str_starts(status, str_of(signal_texts[i].text)))
			return 128 + signal_texts[i].number;
	return 255;
}

/* Output */

static bool would_block(const struct outlet *o)
{
	struct pollfd p = {.fd = o->fd, .events = POLLOUT};
	return poll(&p, 1, 0) == 0;
}

/* Writes what can be written now, or everything. */
static void outlet_flush(struct outlet *o, bool wait)
{
	while (buf_len(&o->pending) && !o->broken && (wait || !would_block(o))) {
		size_t n = MIN(buf_len(&o->pending), (size_t)OUTPUT_PIECE);
		if (fd_write_all(o->fd, buf_str(&o->pending).p, n) < 0)
			o->broken = true;
		buf_consume(&o->pending, n);
	}
	if (o->broken)
		buf_clear(&o->pending);
}

static void fail(struct session *s, int code, int errnum, int status, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void fail(struct session *s, int code, int errnum, int status, const char *fmt, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!s->error.code) {
		error_set(&s->error, errnum, status, "%s", text);
		s->code = code;
	}
	s->closed = true;
}

static void take_data(struct session *s, const json_t *data)
{
	static const char *const names[] = {"stdout", "pty", "stderr"};
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		json_t *text = json_object_get(data, names[i]);
		struct outlet *o = i == 2 ? &s->err : &s->out;
		if (text && base64_decode(&o->pending, json_str(text)) < 0)
			fail(s, -EPROTO, -EPROTO, 502, "the sandbox sent output that is no base64");
	}
}

static void take_event(struct session *s, const json_t *event)
{
	json_t *start = json_object_get(event, "start"), *data = json_object_get(event, "data"), *end = json_object_get(event, "end");
	if (s->q->cli->json && (start || data || end)) {
		cleanup_free char *line = json_dumps(event, JSON_COMPACT);
		buf_add_c(&s->out.pending, line ? line : "");
		buf_add_c(&s->out.pending, "\n");
	}
	if (start)
		s->pid = json_integer_value(json_object_get(start, "pid"));
	else if (data && !s->q->cli->json)
		take_data(s, data);
	else if (end) {
		s->ended = true;
		s->exit_code = exit_code_of(end);
	}
}

static void take_end(struct session *s, const json_t *message)
{
	json_t *error = json_object_get(message, "error");
	struct str code = json_str(json_object_get(error, "code")), text = json_str(json_object_get(error, "message"));
	s->closed = true;
	if (!error && s->ended)
		return;
	if (str_is(code, "deadline_exceeded") && s->q->timeout_s && s->pid)
		fail(s, EXEC_TIMED_OUT, -ETIMEDOUT, 504, "the command was ended: it ran for longer than %lld s", (long long)s->q->timeout_s);
	else if (!error)
		fail(s, -EPROTO, -EPROTO, 502, "the sandbox ended the stream without saying how the command ended");
	else
		fail(s, s->pid ? -EREMOTEIO : EXIT_NOT_STARTED, -EREMOTEIO, 502, "%s%.*s", s->pid ? "" : "the command was not started: ", STR_FMT(text));
}

static void take_envelopes(struct session *s)
{
	while (!s->closed) {
		unsigned flags;
		struct str message;
		ssize_t n = connect_parse_envelope(buf_str(&s->in), MAX_EVENT, &flags, &message);
		if (n == 0)
			return;
		struct error err = {0};
		cleanup_json json_t *j = n < 0 ? NULL : json_parse(message, MAX_EVENT, "event", &err);
		if (!j) {
			fail(s, -EPROTO, -EPROTO, 502, "the sandbox sent something that is no event");
			return;
		}
		if (flags & CONNECT_FLAG_END)
			take_end(s, j);
		else
			take_event(s, json_object_get(j, "event"));
		buf_consume(&s->in, (size_t)n);
	}
}

static size_t on_stream(char *p, size_t size, size_t n, void *arg)
{
	struct session *s = arg;
	long status = 0;
	curl_easy_getinfo(s->stream, CURLINFO_RESPONSE_CODE, &status);
	if (status != 200) {
		if (buf_len(&s->failure) + n <= MAX_ERROR_BODY)
			buf_add(&s->failure, p, size * n);
		return size * n;
	}
	if (buf_len(&s->out.pending) + buf_len(&s->err.pending) > OUTPUT_HIGH) {
		s->paused = true;
		return CURL_WRITEFUNC_PAUSE;
	}
	if (buf_add(&s->in, p, size * n) < 0)
		return 0;
	take_envelopes(s);
	return size * n;
}

static void stream_over(struct session *s, CURLcode code)
{
	long status = 0;
	curl_easy_getinfo(s->stream, CURLINFO_RESPONSE_CODE, &status);
	if (s->closed)
		return;
	if (code != CURLE_OK && !status) {
		s->code = client_transfer_error(s->cl, code, s->detail, &s->error);
		s->closed = true;
	} else if (status != 200) {
		struct error ignored;
		cleanup_json json_t *j = json_parse(buf_str(&s->failure), MAX_ERROR_BODY, "answer", &ignored);
		struct str text = json_str(json_object_get(j, "message"));
		fail(s, -EREMOTEIO, -EREMOTEIO, (int)status, "%.*s (status %ld)", text.n ? (int)text.n : 26, text.n ? text.p : "the sandbox did not answer", status);
	} else if (s->ended) {
		s->closed = true;
	} else {
		fail(s, -ECONNRESET, -ECONNRESET, 502, "the connection broke before the command ended: the sandbox is gone or the server was stopped (see `cubicle sandbox info %s`)",
			s->target->id);
	}
}

/* What goes to the command: one unary call at a time, so that the order holds. */

static size_t on_answer(char *p, size_t size, size_t n, void *arg)
{
	struct session *s = arg;
	if (buf_len(&s->answer) + n <= MAX_ANSWER)
		buf_add(&s->answer, p, size * n);
	return size * n;
}

static void window_size(unsigned *cols, unsigned *rows)
{
	struct winsize w;
	bool known = ioctl(1, TIOCGWINSZ, &w) == 0 || ioctl(0, TIOCGWINSZ, &w) == 0;
	*cols = known && w.ws_col ? w.ws_col : 80;
	*rows = known && w.ws_row ? w.ws_row : 24;
}

static json_t *pty_json(void)
{
	unsigned cols, rows;
	window_size(&cols, &rows);
	return json_pack("{s:{s:i,s:i}}", "size", "cols", (int)cols, "rows", (int)rows);
}

static json_t *input_json(struct session *s)
{
	cleanup_buf struct buf text = BUF_INIT;
	if (base64_encode(&text, str_n(s->input, s->input_n)) < 0)
		return NULL;
	return json_pack("{s:s#}", s->q->tty ? "pty" : "stdin", buf_str(&text).p, buf_len(&text));
}

/* The most urgent thing to tell the command, and the message for it. */
static enum control next_control(struct session *s, const char **ret_procedure, json_t *message)
{
	if (s->kill) {
		*ret_procedure = "process.Process/SendSignal";
		json_object_set_new(message, "signal", json_string(s->kill == SIGKILL ? "SIGNAL_SIGKILL" : "SIGNAL_SIGTERM"));
		return CONTROL_SIGNAL;
	}
	if (s->resize) {
		*ret_procedure = "process.Process/Update";
		json_object_set_new(message, "pty", pty_json());
		return CONTROL_RESIZE;
	}
	if (s->input_n && !s->input_off) {
		*ret_procedure = "process.Process/SendInput";
		json_object_set_new(message, "input", input_json(s));
		return CONTROL_INPUT;
	}
	if (s->input_eof && !s->input_closed && !s->q->tty && !s->input_off) {
		*ret_procedure = "process.Process/CloseStdin";
		return CONTROL_CLOSE;
	}
	return CONTROL_NONE;
}

static void control_start(struct session *s)
{
	const char *procedure;
	cleanup_json json_t *message = json_pack("{s:{s:I}}", "process", "pid", (json_int_t)s->pid);
	enum control what = s->pid && !s->ended && !s->busy ? next_control(s, &procedure, message) : CONTROL_NONE;
	if (what == CONTROL_NONE)
		return;
	cleanup_free char *text = json_dumps(message, JSON_COMPACT);
	if (!text)
		return;
	buf_clear(&s->body);
	buf_clear(&s->answer);
	buf_add_c(&s->body, text);
	curl_slist_free_all(s->control_headers);
	s->control_headers = client_envd(s->cl, s->control, s->target, procedure, "application/json", NULL);
	curl_easy_setopt(s->control, CURLOPT_POSTFIELDSIZE, (long)buf_len(&s->body));
	curl_easy_setopt(s->control, CURLOPT_POSTFIELDS, buf_str(&s->body).p);
	curl_easy_setopt(s->control, CURLOPT_WRITEFUNCTION, on_answer);
	curl_easy_setopt(s->control, CURLOPT_WRITEDATA, s);
	/* Input waits for as long as the command does not read: it has no limit. */
	curl_easy_setopt(s->control, CURLOPT_TIMEOUT, what == CONTROL_INPUT ? 0L : (long)CONTROL_TIMEOUT_S);
	s->busy = what;
	if (what == CONTROL_SIGNAL)
		s->kill = 0;
	if (what == CONTROL_RESIZE)
		s->resize = false;
	curl_multi_add_handle(s->multi, s->control);
}

static void control_over(struct session *s, CURLcode code)
{
	long status = 0;
	curl_easy_getinfo(s->control, CURLINFO_RESPONSE_CODE, &status);
	curl_multi_remove_handle(s->multi, s->control);
	bool ok = code == CURLE_OK && status == 200;
	if (s->busy == CONTROL_INPUT) {
		s->input_n = 0;
		s->input_off |= !ok; /* the command closed its end, or is gone */
	}
	if (s->busy == CONTROL_CLOSE)
		s->input_closed = true;
	s->busy = CONTROL_NONE;
}

static void read_input(struct session *s)
{
	ssize_t n = read(0, s->input, sizeof(s->input));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
		s->input_eof = true;
	else
		s->input_n = (size_t)n;
}

static void read_signals(struct session *s)
{
	struct signalfd_siginfo info;
	while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_signo == SIGWINCH) {
			s->resize = s->q->tty;
			continue;
		}
		if (!s->first_signal)
			s->first_signal = (int)info.ssi_signo;
		s->kill = s->signal_count++ ? SIGKILL : SIGTERM;
		/* Not started, or the third time: leave. */
		if (!s->pid || s->signal_count > 2)
			fail(s, 128 + (int)info.ssi_signo, -EINTR, 499, "interrupted");
	}
}

/* A stdin that can give nothing: the command gets /dev/null, and no call is spent on it. */
static bool stdin_is_null(void)
{
	struct stat st, null;
	return fstat(0, &st) < 0 || (S_ISCHR(st.st_mode) && stat("/dev/null", &null) == 0 && st.st_rdev == null.st_rdev);
}

static json_t *envs_json(const struct exec_request *q)
{
	json_t *envs = json_object();
	for (size_t i = 0; i < q->cli->n_pairs; i++) {
		const struct cli_pair *p = &q->cli->pairs[i];
		cleanup_free char *key = strcmp(p->flag->name, "env") ? NULL : str_dup(p->key);
		if (key)
			json_object_set_new(envs, key, json_stringn(p->value.p, p->value.n));
	}
	if (q->tty) {
		const char *term = getenv("TERM");
		if (!json_object_get(envs, "TERM"))
			json_object_set_new(envs, "TERM", json_string(term && *term ? term : "xterm-256color"));
		if (!json_object_get(envs, "LANG"))
			json_object_set_new(envs, "LANG", json_string("C.UTF-8"));
	}
	return envs;
}

static int start_request(struct session *s, struct error *err)
{
	const struct exec_request *q = s->q;
	json_t *args = json_array();
	for (const char *const *a = q->argv + 1; *a; a++)
		if (json_array_append_new(args, json_string(*a)) < 0) {
			json_decref(args);
			return error_set(err, -EINVAL, 400, "an argument of the command is no UTF-8: the protocol cannot carry it");
		}
	cleanup_json json_t *message = json_pack("{s:{s:s,s:o,s:o},s:b}", "process", "cmd", q->argv[0], "args", args, "envs", envs_json(q), "stdin",
		!s->input_off);
	if (!message)
		return error_set(err, -EINVAL, 400, "the command or its environment is no UTF-8: the protocol cannot carry it");
	if (q->cwd)
		json_object_set_new(json_object_get(message, "process"), "cwd", json_string(q->cwd));
	if (q->tty)
		json_object_set_new(message, "pty", pty_json());
	cleanup_free char *text = json_dumps(message, JSON_COMPACT);
	buf_clear(&s->body);
	if (!text || connect_envelope(&s->body, 0, str_of(text)) < 0)
		return error_errno(err, -ENOMEM, "request");
	s->stream_headers = client_envd(s->cl, s->stream, s->target, "process.Process/Start", "application/connect+json", q->user);
	char header[64];
	snprintf(header, sizeof(header), "Connect-Timeout-Ms: %lld", (long long)q->timeout_s * 1000);
	if (q->timeout_s)
		s->stream_headers = curl_slist_append(s->stream_headers, header);
	s->stream_headers = curl_slist_append(s->stream_headers, "Keepalive-Ping-Interval: 30");
	if (!s->stream_headers)
		return error_errno(err, -ENOMEM, "request");
	curl_easy_setopt(s->stream, CURLOPT_HTTPHEADER, s->stream_headers);
	curl_easy_setopt(s->stream, CURLOPT_POSTFIELDSIZE, (long)buf_len(&s->body));
	curl_easy_setopt(s->stream, CURLOPT_COPYPOSTFIELDS, buf_str(&s->body).p);
	curl_easy_setopt(s->stream, CURLOPT_WRITEFUNCTION, on_stream);
	curl_easy_setopt(s->stream, CURLOPT_WRITEDATA, s);
	curl_easy_setopt(s->stream, CURLOPT_ERRORBUFFER, s->detail);
	curl_multi_add_handle(s->multi, s->stream);
	return 0;
}

static void take_finished(struct session *s)
{
	int left;
	CURLMsg *m;
	while ((m = curl_multi_info_read(s->multi, &left))) {
		if (m->msg != CURLMSG_DONE)
			continue;
		if (m->easy_handle == s->stream)
			stream_over(s, m->data.result);
		else
			control_over(s, m->data.result);
	}
}

static void step(struct session *s)
{
	struct curl_waitfd fds[4];
	unsigned n = 0;
	bool want_input = s->pid && !s->input_off && !s->input_eof && !s->input_n;
	fds[n++] = (struct curl_waitfd){.fd = s->signals, .events = CURL_WAIT_POLLIN};
	if (buf_len(&s->out.pending))
		fds[n++] = (struct curl_waitfd){.fd = s->out.fd, .events = CURL_WAIT_POLLOUT};
	if (buf_len(&s->err.pending))
		fds[n++] = (struct curl_waitfd){.fd = s->err.fd, .events = CURL_WAIT_POLLOUT};
	if (want_input)
		fds[n++] = (struct curl_waitfd){.fd = 0, .events = CURL_WAIT_POLLIN};
	int running;
	curl_multi_poll(s->multi, fds, n, 1000, NULL);
	curl_multi_perform(s->multi, &running);
	take_finished(s);
	read_signals(s);
	outlet_flush(&s->out, false);
	outlet_flush(&s->err, false);
	if ((s->out.broken || s->err.broken) && !s->signal_count) {
		s->signal_count = 1;
		s->first_signal = SIGPIPE;
		s->kill = SIGKILL; /* as the kernel does to a program whose reader is gone */
	}
	if (s->paused && buf_len(&s->out.pending) + buf_len(&s->err.pending) < OUTPUT_HIGH / 4) {
		s->paused = false;
		curl_easy_pause(s->stream, CURLPAUSE_CONT);
	}
	if (want_input && fds[n - 1].revents)
		read_input(s);
	control_start(s);
	if (s->q->tick)
		s->q->tick(s->q->tick_arg);
}

static void make_raw(struct session *s)
{
	if (!s->q->tty || !isatty(0) || tcgetattr(0, &s->saved) < 0)
		return;
	struct termios raw = s->saved;
	cfmakeraw(&raw);
	s->raw = tcsetattr(0, TCSADRAIN, &raw) == 0;
}

static void session_done(struct session *s)
{
	if (s->raw)
		tcsetattr(0, TCSADRAIN, &s->saved);
	curl_multi_remove_handle(s->multi, s->stream);
	curl_multi_remove_handle(s->multi, s->control);
	curl_easy_cleanup(s->stream);
	curl_easy_cleanup(s->control);
	curl_multi_cleanup(s->multi);
	curl_slist_free_all(s->stream_headers);
	curl_slist_free_all(s->control_headers);
	struct buf *bufs[] = {&s->in, &s->failure, &s->out.pending, &s->err.pending, &s->body, &s->answer};
	for (size_t i = 0; i < ARRAY_SIZE(bufs); i++)
		buf_done(bufs[i]);
	free(s);
}

int exec_run(struct client *cl, const struct target *t, const struct exec_request *q, int *ret_signal, struct error *err)
{
	struct session *s = calloc(1, sizeof(*s));
	if (!s)
		return error_errno(err, -ENOMEM, "exec");
	*s = (struct session){.cl = cl, .target = t, .q = q, .out.fd = 1, .err.fd = 2, .signals = signals_block(true),
		.input_off = q->stdin_closed || (!q->tty && stdin_is_null())};
	s->multi = curl_multi_init();
	s->stream = curl_easy_init();
	s->control = curl_easy_init();
	int r = s->signals < 0 || !s->multi || !s->stream || !s->control ? error_errno(err, -ENOMEM, "exec") : start_request(s, err);
	if (r == 0) {
		make_raw(s);
		while (!s->closed)
			step(s);
		outlet_flush(&s->out, true);
		outlet_flush(&s->err, true);
		r = s->error.code ? s->code : s->exit_code;
		if (s->error.code && err)
			*err = s->error;
		if (s->first_signal == SIGPIPE)
			r = 128 + SIGPIPE;
	}
	*ret_signal = s->first_signal;
	if (s->signals >= 0)
		close(s->signals);
	session_done(s);
	return r;
}
