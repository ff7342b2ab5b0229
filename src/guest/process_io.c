#include "base/clock.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "guest/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

enum { MAX_CHUNK = 32 * 1024, MAX_PTY_CHUNK = 16 * 1024, READS_PER_EVENT = 4, MAX_DRAIN = 1024 * 1024 };

static bool any_full(const struct process *p)
{
	for (const struct watcher *w = p->watchers; w; w = w->next)
		if (w->full)
			return true;
	return false;
}

void output_close(struct output *o)
{
	if (o->fd < 0)
		return;
	loop_fd_del(o->watch);
	o->watch = NULL;
	/* The terminal is also written to and resized: process.c closes it. */
	if (o->fd != o->process->terminal)
		close(o->fd);
	o->fd = -1;
}

/* One data event. The bytes go out as base64 as they are: they may end inside a character. */
static void send_data(struct process *p, const char *kind, struct str bytes)
{
	if (!p->watchers)
		return; /* nobody watches: output is not kept */
	struct buf *out = &p->all->scratch;
	static const char head[CONNECT_HEADER];
	buf_clear(out);
	buf_add(out, head, sizeof(head));
	buf_addf(out, "{\"event\":{\"data\":{\"%s\":\"", kind);
	base64_encode(out, bytes);
	buf_add_c(out, "\"}}}");
	if (out->failed)
		return;
	size_t n = buf_len(out) - CONNECT_HEADER;
	unsigned char *at = (unsigned char *)out->data + out->start;
	at[1] = (unsigned char)(n >> 24);
	at[2] = (unsigned char)(n >> 16);
	at[3] = (unsigned char)(n >> 8);
	at[4] = (unsigned char)n;
	process_send(p, buf_str(out));
}

/* Reads once: false when there is nothing now, or the output is closed. */
static bool read_output(struct output *o)
{
	static char chunk[MAX_CHUNK];
	struct process *p = o->process;
	bool draining = p->reaped && p->impatient;
	size_t want = p->terminal >= 0 ? MAX_PTY_CHUNK : MAX_CHUNK;
	if (draining)
		want = MIN(want, o->left);
	ssize_t n = want ? read(o->fd, chunk, want) : 0;
	if (n < 0 && errno == EINTR)
		return true;
	if (n < 0 && errno == EAGAIN && !draining)
		return false;
	if (n <= 0) {
		/* End of file; EIO is that of a terminal whose other side is closed. */
		output_close(o);
		return false;
	}
	if (draining)
		o->left -= (size_t)n;
	send_data(p, o->kind, str_n(chunk, (size_t)n));
	return true;
}

static void on_output(struct loop_fd *w, uint32_t events, void *arg)
{
	struct output *o = arg;
	struct process *p = o->process;
	for (int i = 0; i < READS_PER_EVENT; i++)
		if (!read_output(o) || any_full(p))
			break;
	process_flow(p);
	process_check_end(p);
}

void process_flow(struct process *p)
{
	bool wanted = p->state != PROCESS_STARTING && !any_full(p);
	for (size_t i = 0; i < p->n_outputs; i++) {
		struct output *o = &p->outputs[i];
		if (o->fd < 0)
			continue;
		if (!o->watch)
			o->watch = loop_fd_add(p->all->envd->loop, o->fd, 0, on_output, o);
		if (!o->watch || loop_fd_set(o->watch, wanted ? EPOLLIN : 0) < 0)
			output_close(o);
	}
}

void process_drain(struct process *p)
{
	for (size_t i = 0; i < p->n_outputs; i++) {
		struct output *o = &p->outputs[i];
		/* Others may go on writing for ever: what counts is what a pipe can hold now. */
		if (!o->left)
			o->left = MAX_DRAIN;
		while (o->fd >= 0 && !any_full(p) && read_output(o))
			;
	}
}

/* Input */

static void input_free(struct process *p, struct input *i)
{
	loop_timer_free(i->timer);
	buf_done(&i->bytes);
	envd_release(p->all->envd, i->held);
	free(i);
}

static struct input *take_first(struct process *p)
{
	struct input *i = p->in_first;
	p->in_first = i->next;
	if (!p->in_first)
		p->in_last = &p->in_first;
	return i;
}

static void close_input(struct process *p)
{
	loop_fd_del(p->in_watch);
	p->in_watch = NULL;
	if (p->in >= 0 && p->in != p->terminal)
		close(p->in);
	p->in = -1;
}

/* Whoever waits on this input gets its answer. */
static void answer(struct input *i, enum connect_code code, const char *message)
{
	struct rpc *c = i->rpc;
	if (!c)
		return;
	i->rpc = NULL;
	c->state = NULL;
	if (code) {
		rpc_fail(c, code, "%s", message);
		return;
	}
	if (c->method->kind == RPC_CLIENT_STREAM)
		rpc_resume(c);
	else
		rpc_reply(c, STR("{}"));
}

void process_drop_input(struct process *p, enum connect_code code, const char *message)
{
	close_input(p);
	while (p->in_first) {
		struct input *i = take_first(p);
		answer(i, code, message);
		input_free(p, i);
	}
}

/* Writes what the pipe takes; the queue keeps the order. */
static void write_input(struct process *p)
{
	while (p->in_first) {
		struct input *i = p->in_first;
		struct str bytes = buf_str(&i->bytes);
		ssize_t n = bytes.n ? write(p->in, bytes.p, bytes.n) : 0;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0) {
			char text[128];
			snprintf(text, sizeof(text), "error writing to stdin: %s", strerror(errno));
			process_drop_input(p, CONNECT_INTERNAL, text);
			return;
		}
		i->begun = true;
		buf_consume(&i->bytes, (size_t)n);
		if (buf_len(&i->bytes))
			continue;
		take_first(p);
		answer(i, 0, NULL);
		input_free(p, i);
	}
	if (!p->in_first && p->close_in)
		close_input(p);
	else if (p->in_watch && loop_fd_set(p->in_watch, p->in_first ? EPOLLOUT : 0) < 0)
		process_drop_input(p, CONNECT_INTERNAL, "error writing to stdin: no memory");
}

static void on_input(struct loop_fd *w, uint32_t events, void *arg)
{
	write_input(arg);
}

static struct input **find_input(struct process *p, struct rpc *c)
{
	for (struct input **at = &p->in_first; *at; at = &(*at)->next)
		if ((*at)->rpc == c)
			return at;
	return NULL;
}

/* Takes input out of the queue of which nothing was written; what was begun stays, so that the process gets
 * it whole. */
static void withdraw(struct process *p, struct rpc *c)
{
	struct input **at = find_input(p, c);
	if (!at)
		return;
	struct input *i = *at;
	i->rpc = NULL;
	loop_timer_free(steal_pointer(&i->timer));
	if (i->begun)
		return;
	*at = i->next;
	if (!i->next)
		p->in_last = at;
	input_free(p, i);
	if (!p->in_first)
		write_input(p);
}

void process_input_orphan(struct process *p, struct rpc *c)
{
	withdraw(p, c);
}

static void on_input_deadline(struct loop_timer *t, void *arg)
{
	struct rpc *c = arg;
	withdraw(c->state, c);
	c->state = NULL;
	rpc_fail(c, CONNECT_DEADLINE_EXCEEDED, "the process did not read its input in time");
}

/* The terminal is read through a descriptor of its own number: an epoll set takes each number once. */
static int watch_input(struct process *p)
{
	if (p->in_watch)
		return 0;
	if (p->in == p->terminal) {
		int copy = fcntl(p->terminal, F_DUPFD_CLOEXEC, 3);
		if (copy < 0)
			return -errno;
		p->in = copy;
	}
	p->in_watch = loop_fd_add(p->all->envd->loop, p->in, 0, on_input, p);
	return p->in_watch ? 0 : -ENOMEM;
}

int process_input(struct process *p, struct rpc *c, struct buf *bytes)
{
	if (p->in < 0 || p->close_in)
		return -EPIPE;
	struct envd *e = p->all->envd;
	struct input *i = malloc(sizeof(*i));
	if (!i || watch_input(p) < 0 || !envd_hold(e, buf_len(bytes))) {
		free(i);
		return -ENOMEM;
	}
	*i = (struct input){.bytes = *bytes, .held = buf_len(bytes), .rpc = c};
	*bytes = BUF_INIT;
	if (c)
		c->state = p;
	if (c && c->timeout_ns && c->method->kind == RPC_UNARY &&
		(i->timer = loop_timer_new(e->loop, on_input_deadline, c)))
		loop_timer_in(i->timer, c->timeout_ns);
	if (!p->in_first)
		p->in_last = &p->in_first;
	*p->in_last = i;
	p->in_last = &i->next;
	if (p->in_first == i)
		write_input(p);
	return 0;
}

void process_close_input(struct process *p)
{
	p->close_in = true;
	if (!p->in_first)
		close_input(p);
}
