#include "interp/kernel.h"
#include "interp/patience.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

enum {
	TAIL = 4096,  /* kept of what the process writes to its stdout and stderr */
	ATTEMPTS = 3, /* somebody else may take a port before the kernel does */
};
#define ASK_AGAIN (100 * NS_PER_MS)
/* A process that ended may have sent something before, which the thread of the library still has to read. */
#define LAST_WORDS (50 * NS_PER_MS)

enum kernel_state {
	KERNEL_STARTING, /* owner: this file; `ready` comes */
	KERNEL_READY,    /* the owner of the kernel */
	KERNEL_ENDING,   /* its process is gone, last messages are read; `ended` comes */
	KERNEL_FREED,    /* told to go; freed at the end of the turn or when its process is reaped */
};

struct kernel {
	struct kernel_host *host;
	const struct kernelspec *spec;
	char *cwd;
	const struct kernel_ops *ops;
	void *arg;
	enum kernel_state state;
	int attempt;
	struct launch launch;
	struct loop_fd *process, *output;
	struct channel *channels[KERNEL_CHANNELS];
	char session[WIRE_ID_SIZE];
	char info_id[WIRE_ID_SIZE];
	bool answered, published;
	bool held, behind,
		stopped; /* why it is stopped: its output is not passed on, or not read fast enough */
	struct loop_timer *timer; /* starting: asks again; ending: last words */
	struct patience start;
	char tail[TAIL];
	size_t tail_n;
};

static int start(struct kernel *k, struct error *err);

static void close_channels(struct kernel *k)
{
	for (int i = 0; i < KERNEL_CHANNELS; i++) {
		channel_free(k->channels[i]);
		k->channels[i] = NULL;
	}
}

static void forget_process(struct kernel *k)
{
	loop_fd_del(k->process);
	loop_fd_del(k->output);
	k->process = k->output = NULL;
}

static void free_now(void *arg)
{
	struct kernel *k = arg;
	forget_process(k);
	k->host->alive--;
	free(k->cwd);
	free(k);
}

void kernel_free(struct kernel *k)
{
	if (!k)
		return;
	k->state = KERNEL_FREED;
	close_channels(k);
	loop_timer_free(k->timer);
	k->timer = NULL;
	patience_done(&k->start);
	launch_kill(&k->launch);
	/* Its process is waited for by the loop. */
	if (k->process)
		loop_fd_set(k->process, EPOLLIN);
	else if (loop_defer(k->host->loop, free_now, k) < 0)
		log_error("a kernel is not freed: no memory");
}

/* What it says outside of the protocol */

static void keep_tail(struct kernel *k, const char *p, size_t n)
{
	if (n > TAIL) {
		p += n - TAIL;
		n = TAIL;
	}
	size_t old = MIN(k->tail_n, TAIL - n);
	memmove(k->tail, k->tail + k->tail_n - old, old);
	memcpy(k->tail + old, p, n);
	k->tail_n = old + n;
}

static void read_output(struct kernel *k)
{
	char b[4096];
	ssize_t n;
	while (k->launch.output >= 0 && (n = read(k->launch.output, b, sizeof(b))) > 0)
		keep_tail(k, b, (size_t)n);
}

static void on_output(struct loop_fd *w, uint32_t events, void *arg)
{
	struct kernel *k = arg;
	char b[4096];
	ssize_t n = read(k->launch.output, b, sizeof(b));
	if (n > 0 && k->state != KERNEL_FREED)
		keep_tail(k, b, (size_t)n);
	else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		loop_fd_set(w, 0);
}

/* The last lines that it wrote, at most what fits into an error. */
static struct str last_lines(const struct kernel *k)
{
	enum { MOST = 360 };
	struct str s = str_n(k->tail, k->tail_n);
	while (s.n && strchr(" \n\r\t", s.p[s.n - 1]))
		s.n--;
	if (s.n > MOST) {
		s = str_from(s, s.n - MOST);
		ptrdiff_t line = str_chr(s, '\n');
		s = str_from(s, line < 0 ? 0 : (size_t)line + 1);
	}
	return s;
}

static int describe_end(const struct kernel *k, int status, const char *why, struct error *err)
{
	struct str last = last_lines(k);
	if (*why)
		return error_set(
			err, -ECHILD, 500, "the kernel %s could not be started: %s", k->spec->name, why);
	if (WIFSIGNALED(status))
		return error_set(err, -ECHILD, 500, "the kernel %s was ended by signal %d: %.*s",
			k->spec->name, WTERMSIG(status), STR_FMT(last));
	return error_set(err, -ECHILD, 500, "the kernel %s ended with status %d: %.*s", k->spec->name,
		WEXITSTATUS(status), STR_FMT(last));
}

/* Its end */

static void on_process_end(struct loop_fd *w, uint32_t events, void *arg)
{
	struct kernel *k = arg;
	if (k->state == KERNEL_FREED) {
		forget_process(k);
		launch_reap(&k->launch);
		free_now(k);
		return;
	}
	loop_fd_set(k->process, 0);
	patience_stop(&k->start);
	/* What was left of it may still hold its output and its ports. */
	launch_kill(&k->launch);
	bool was_ready = k->state == KERNEL_READY;
	k->state = KERNEL_ENDING;
	if (was_ready)
		channel_pause(k->channels[KERNEL_IOPUB], false);
	loop_timer_in(k->timer, was_ready ? LAST_WORDS : 0);
}

static void finish_end(struct kernel *k)
{
	struct error err = {0};
	char why[200] = "";
	read_output(k);
	ssize_t n = read(k->launch.why, why, sizeof(why) - 1);
	why[n > 0 ? n : 0] = '\0';
	forget_process(k);
	close_channels(k);
	describe_end(k, launch_reap(&k->launch), why, &err);
	bool retry = !k->answered && !*why && launch_lost_port(&k->launch) && ++k->attempt < ATTEMPTS;
	if (retry) {
		log_warn("%s; it is tried again with other ports", err.message);
		k->tail_n = 0;
		if (start(k, &err) == 0)
			return;
	}
	k->ops->ended(&err, k->arg);
}

static void on_start_timeout(void *arg)
{
	struct kernel *k = arg;
	struct error err = {0};
	struct str last = last_lines(k);
	error_set(&err, -ETIMEDOUT, 500, "the kernel %s was not ready after %lld s: %.*s", k->spec->name,
		(long long)(k->host->start_time / NS_PER_S), STR_FMT(last));
	k->ops->ended(&err, k->arg);
}

/* Becoming ready: it has answered a request for its info, and something that it published arrived, so nothing
 * of what comes is missed. */

static void ask_info(struct kernel *k)
{
	if (kernel_request(k, "kernel_info_request", STR("{}"), k->info_id) < 0)
		log_warn("kernel %s: no request for its info could be sent", k->spec->name);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct kernel *k = arg;
	if (k->state == KERNEL_ENDING) {
		finish_end(k);
	} else if (k->state == KERNEL_STARTING) {
		/* It answered before its publisher knew of us: each request makes it publish anew. */
		ask_info(k);
		loop_timer_in(t, ASK_AGAIN);
	}
}

static void check_ready(struct kernel *k)
{
	if (k->state != KERNEL_STARTING || !k->answered)
		return;
	if (!k->published) {
		loop_timer_in(k->timer, ASK_AGAIN);
		return;
	}
	loop_timer_stop(k->timer);
	patience_stop(&k->start);
	k->state = KERNEL_READY;
	k->ops->ready(k->arg);
}

static void on_message(struct channel *c, struct frames *f, void *arg)
{
	struct kernel *k = arg;
	struct wire_message m;
	enum kernel_channel from = KERNEL_SHELL;
	while (from < KERNEL_IOPUB && k->channels[from] != c)
		from++;
	int r = wire_parse(f->views, f->n, str_of(k->launch.key), &m);
	if (r < 0) {
		/* Also the welcome of a publisher (JEP 65) has no signature in some kernels. */
		log_debug("kernel %s: a message is left out: %s", k->spec->name, strerror(-r));
		return;
	}
	if (k->state == KERNEL_STARTING) {
		k->published |= from == KERNEL_IOPUB;
		k->answered |= from == KERNEL_SHELL && str_is(m.type, "kernel_info_reply");
		check_ready(k);
	} else {
		k->ops->message(from, &m, f, k->arg);
	}
}

static void set_stopped(struct kernel *k)
{
	bool stop = k->held || k->behind;
	if (k->state != KERNEL_READY || stop == k->stopped)
		return;
	k->stopped = stop;
	kill(k->launch.pid, stop ? SIGSTOP : SIGCONT);
}

static void on_behind(bool behind, void *arg)
{
	struct kernel *k = arg;
	k->behind = behind;
	set_stopped(k);
}

static int connect_channel(struct kernel *k, enum kernel_channel which)
{
	static const struct {
		int type;
		enum launch_port port;
	} how[KERNEL_CHANNELS] = {
		[KERNEL_SHELL] = {ZMQ_DEALER, PORT_SHELL},
		[KERNEL_CONTROL] = {ZMQ_DEALER, PORT_CONTROL},
		[KERNEL_IOPUB] = {ZMQ_SUB, PORT_IOPUB},
	};
	char endpoint[LAUNCH_ENDPOINT];
	launch_endpoint(&k->launch, how[which].port, endpoint);
	k->channels[which] = channel_new(k->host->loop, k->host->zmq, how[which].type, endpoint, on_message,
		which == KERNEL_IOPUB ? on_behind : NULL, k);
	return k->channels[which] ? 0 : -errno;
}

static int connect_channels(struct kernel *k)
{
	int r = 0;
	for (int i = 0; i < KERNEL_CHANNELS && r == 0; i++)
		r = connect_channel(k, (enum kernel_channel)i);
	return r;
}

/* From now on it is becoming ready. */
static void begin_asking(struct kernel *k)
{
	k->state = KERNEL_STARTING;
	k->answered = k->published = false;
	ask_info(k);
	patience_start(&k->start, k->host->start_time);
}

static int start(struct kernel *k, struct error *err)
{
	int r = launch_start(&k->launch, k->host->run_dir, k->spec, &k->host->user, k->cwd, err);
	if (r < 0)
		return r;
	k->held = k->behind = k->stopped = false;
	wire_new_id(k->session);
	k->output = loop_fd_add(k->host->loop, k->launch.output, EPOLLIN, on_output, k);
	k->process = loop_fd_add(k->host->loop, k->launch.pidfd, EPOLLIN, on_process_end, k);
	r = k->output && k->process ? connect_channels(k) : -ENOMEM;
	if (r < 0) {
		close_channels(k);
		forget_process(k);
		launch_kill(&k->launch);
		launch_reap(&k->launch);
		return error_errno(err, r, "channels to the kernel");
	}
	begin_asking(k);
	return 0;
}

struct kernel *kernel_new(struct kernel_host *host, const struct kernelspec *spec, const char *cwd,
	const struct kernel_ops *ops, void *arg, struct error *err)
{
	struct kernel *k = calloc(1, sizeof(*k));
	if (!k) {
		error_errno(err, -ENOMEM, "kernel");
		return NULL;
	}
	host->alive++;
	*k = (struct kernel){.host = host,
		.spec = spec,
		.ops = ops,
		.arg = arg,
		.launch = LAUNCH_NONE,
		.cwd = strdup(cwd)};
	k->timer = loop_timer_new(host->loop, on_timer, k);
	int r = patience_init(&k->start, host->loop, on_start_timeout, k);
	if (r < 0 || !k->timer || !k->cwd)
		error_errno(err, -ENOMEM, "kernel");
	else if (start(k, err) == 0)
		return k;
	kernel_free(k);
	return NULL;
}

int kernel_request(struct kernel *k, const char *type, struct str content, char *ret_id)
{
	cleanup_wire_out struct wire_out out = WIRE_OUT_INIT;
	int r = wire_build(&out, str_of(k->launch.key), k->session, type, content);
	if (r == 0)
		r = channel_send(k->channels[KERNEL_SHELL], out.frames, WIRE_OUT_FRAMES);
	if (r == 0)
		memcpy(ret_id, out.id, WIRE_ID_SIZE);
	return r;
}

void kernel_resubscribe(struct kernel *k)
{
	if (k->state != KERNEL_READY)
		return;
	channel_free(k->channels[KERNEL_IOPUB]);
	k->channels[KERNEL_IOPUB] = NULL;
	k->held = k->behind = false;
	set_stopped(k);
	if (connect_channel(k, KERNEL_IOPUB) < 0)
		log_error("kernel %s: no channel to what it publishes: %s", k->spec->name, strerror(errno));
	begin_asking(k);
}

void kernel_interrupt(struct kernel *k)
{
	cleanup_wire_out struct wire_out out = WIRE_OUT_INIT;
	if (k->state != KERNEL_READY)
		return;
	/* Nothing is read from a kernel that is held, but an interrupt comes before that. */
	kernel_hold(k, false);
	if (k->spec->interrupt_by_message) {
		if (wire_build(&out, str_of(k->launch.key), k->session, "interrupt_request", STR("{}")) == 0)
			channel_send(k->channels[KERNEL_CONTROL], out.frames, WIRE_OUT_FRAMES);
		return;
	}
	kill(-k->launch.pid, SIGINT);
	/* IPython's handler cancels what is awaited, but its event loop sleeps on until something comes in.
	 */
	ask_info(k);
}

void kernel_hold(struct kernel *k, bool on)
{
	if (k->state != KERNEL_READY || k->held == on)
		return;
	k->held = on;
	/* It goes on when what waits here was read: before, its publisher would have no room. */
	k->behind = true;
	channel_pause(k->channels[KERNEL_IOPUB], on);
	set_stopped(k);
}
