#include "guest/process.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

void watcher_free(struct watcher *w)
{
	struct process *p = w->process;
	*(w->prev ? &w->prev->next : &p->watchers) = w->next;
	if (w->next)
		w->next->prev = w->prev;
	if (p->starter == w)
		p->starter = NULL;
	w->rpc->state = NULL;
	w->rpc->ops = NULL;
	loop_timer_free(w->keepalive);
	loop_timer_free(w->deadline);
	free(w);
}

static void send_to(struct watcher *w, struct str envelope)
{
	if (rpc_event(w->rpc, envelope))
		w->full = true;
	w->last_event = clock_boottime();
}

void process_send(struct process *p, struct str envelope)
{
	for (struct watcher *w = p->watchers; w; w = w->next)
		send_to(w, envelope);
}

void process_start_event(const struct process *p, struct buf *to)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "{\"event\":{\"start\":{\"pid\":%d}}}", p->pid);
	connect_envelope(to, 0, str_n(text, (size_t)n));
}

static void on_keepalive(struct loop_timer *t, void *arg)
{
	struct watcher *w = arg;
	int64_t due = w->last_event + w->interval;
	/* Moved here, not with every event. */
	if (clock_boottime() >= due) {
		cleanup_buf struct buf out = BUF_INIT;
		connect_envelope(&out, 0, STR("{\"event\":{\"keepalive\":{}}}"));
		/* A client that is behind with reading needs no sign of life. */
		if (w->full)
			w->last_event = clock_boottime();
		else
			send_to(w, buf_str(&out));
		due = w->last_event + w->interval;
	}
	loop_timer_at(t, due);
}

static void on_watch_deadline(struct loop_timer *t, void *arg)
{
	struct watcher *w = arg;
	struct process *p = w->process;
	struct rpc *c = w->rpc;
	watcher_free(w);
	rpc_fail(c, CONNECT_DEADLINE_EXCEEDED, "the deadline of this call has passed");
	process_flow(p);
}

static void watcher_gone(struct rpc *c)
{
	struct watcher *w = c->state;
	struct process *p = w->process;
	watcher_free(w);
	process_go_on(p);
}

static void watcher_writable(struct rpc *c)
{
	struct watcher *w = c->state;
	w->full = false;
	process_go_on(w->process);
}

static const struct rpc_ops watcher_ops = {.gone = watcher_gone, .writable = watcher_writable};

static int64_t keepalive_of(const struct rpc *c)
{
	uint64_t s;
	struct str value = http_value(c->req->head, "Keepalive-Ping-Interval");
	if (str_to_u64(value, &s) < 0 || s == 0 || s > 86400)
		s = 90;
	return (int64_t)s * NS_PER_S;
}

struct watcher *watcher_new(struct process *p, struct rpc *c)
{
	struct watcher *w = malloc(sizeof(*w));
	if (!w)
		return NULL;
	*w = (struct watcher){.process = p,
		.rpc = c,
		.interval = keepalive_of(c),
		.last_event = clock_boottime(),
		.next = p->watchers};
	w->keepalive = loop_timer_new(p->all->envd->loop, on_keepalive, w);
	if (!w->keepalive || loop_timer_in(w->keepalive, w->interval) < 0) {
		loop_timer_free(w->keepalive);
		free(w);
		return NULL;
	}
	if (p->watchers)
		p->watchers->prev = w;
	p->watchers = w;
	c->state = w;
	c->ops = &watcher_ops;
	return w;
}

static const char *signal_text(int sig, char *to, size_t size)
{
	static const char *const names[] = {
		[SIGHUP] = "hangup",
		[SIGINT] = "interrupt",
		[SIGQUIT] = "quit",
		[SIGILL] = "illegal instruction",
		[SIGTRAP] = "trace/breakpoint trap",
		[SIGABRT] = "aborted",
		[SIGBUS] = "bus error",
		[SIGFPE] = "floating point exception",
		[SIGKILL] = "killed",
		[SIGUSR1] = "user defined signal 1",
		[SIGSEGV] = "segmentation fault",
		[SIGUSR2] = "user defined signal 2",
		[SIGPIPE] = "broken pipe",
		[SIGALRM] = "alarm clock",
		[SIGTERM] = "terminated",
		[SIGSTKFLT] = "stack fault",
		[SIGXCPU] = "CPU time limit exceeded",
		[SIGXFSZ] = "file size limit exceeded",
		[SIGVTALRM] = "virtual timer expired",
		[SIGPROF] = "profiling timer expired",
		[SIGIO] = "I/O possible",
		[SIGPWR] = "power failure",
		[SIGSYS] = "bad system call",
	};
	if (sig > 0 && (size_t)sig < ARRAY_SIZE(names) && names[sig])
		return names[sig];
	snprintf(to, size, "signal %d", sig);
	return to;
}

const char *exit_info_text(const struct exit_info *x, char to[PROCESS_STATUS_SIZE])
{
	char number[32];
	if (x->code == CLD_EXITED)
		snprintf(to, PROCESS_STATUS_SIZE, "exit status %d", x->status);
	else
		snprintf(to, PROCESS_STATUS_SIZE, "signal: %s%s", signal_text(x->status, number, sizeof(number)),
			x->code == CLD_DUMPED ? " (core dumped)" : "");
	return to;
}

void process_end_event(const struct process *p, struct buf *to)
{
	const struct exit_info *x = &p->exit;
	bool exited = x->code == CLD_EXITED;
	uint64_t limit;
	char status[PROCESS_STATUS_SIZE], why[128] = "", text[480], error[240] = "";
	exit_info_text(x, status);
	if (x->oom && guest_cgroup_limit(p->all->envd->cgroup, &limit))
		snprintf(why, sizeof(why), " (oom_killed: the memory limit of %llu MiB was reached)",
			(unsigned long long)(limit >> 20));
	else if (x->oom)
		snprintf(why, sizeof(why), " (oom_killed)");
	if (!exited || x->status != 0)
		snprintf(error, sizeof(error), ",\"error\":\"%s%s\"", status, why);
	int n = snprintf(text, sizeof(text),
		"{\"event\":{\"end\":{\"exitCode\":%d,\"exited\":%s,\"status\":\"%s\"%s}}}",
		exited ? x->status : -1, exited ? "true" : "false", status, error);
	connect_envelope(to, 0, str_n(text, (size_t)n));
}

void process_watch(struct process *p, struct rpc *c)
{
	cleanup_buf struct buf out = BUF_INIT;
	if (p->state == PROCESS_ENDED) {
		process_start_event(p, &out);
		process_end_event(p, &out);
		rpc_event(c, buf_str(&out));
		rpc_end(c);
		return;
	}
	struct watcher *w = watcher_new(p, c);
	if (!w) {
		rpc_fail(c, CONNECT_RESOURCE_EXHAUSTED, "no memory for another stream");
		return;
	}
	if (c->timeout_ns && (w->deadline = loop_timer_new(p->all->envd->loop, on_watch_deadline, w)))
		loop_timer_in(w->deadline, c->timeout_ns);
	if (p->state != PROCESS_STARTING) {
		process_start_event(p, &out);
		send_to(w, buf_str(&out));
	}
}

void process_end_watchers(struct process *p, struct str event)
{
	while (p->watchers) {
		struct rpc *c = p->watchers->rpc;
		watcher_free(p->watchers);
		rpc_event(c, event);
		rpc_end(c);
	}
}
