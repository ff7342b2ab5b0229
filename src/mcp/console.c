#include "mcp/console.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

enum {
	READ_SIZE = 64 * 1024,
	OUTPUT_HIGH = 8 * 1024 * 1024, /* queued for a client that does not read: it is not read either */
	GIVE_UP_S = 30,
};

struct console {
	struct loop *loop;
	struct mcp_session *session; /* NULL once it is being closed */
	struct loop_fd *in, *out, *signal;
	struct loop_timer *patience;
	struct buf line, pending;
	bool skipping; /* a line that is too long */
	bool in_is_file, out_is_file; /* no epoll for these */
	unsigned left;
};

static void on_closed(unsigned left, void *arg)
{
	struct console *c = arg;
	c->left = left;
	loop_stop(c->loop);
}

static void begin_end(struct console *c)
{
	if (!c->session)
		return;
	loop_fd_del(c->in);
	c->in = NULL;
	loop_timer_in(c->patience, GIVE_UP_S * NS_PER_S);
	mcp_session_close(steal_pointer(&c->session), on_closed, c);
}

static void on_patience(struct loop_timer *t, void *arg)
{
	struct console *c = arg;
	c->left = c->left ? c->left : 1;
	loop_stop(c->loop);
}

static void flush(struct console *c)
{
	while (buf_len(&c->pending)) {
		struct str s = buf_str(&c->pending);
		ssize_t n = write(1, s.p, s.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0) { /* nobody reads any more */
			buf_clear(&c->pending);
			begin_end(c);
			break;
		}
		buf_consume(&c->pending, (size_t)n);
	}
	bool waiting = buf_len(&c->pending) > 0;
	/* A reader that is gone shows as an error also when there is nothing to say. */
	if (c->out)
		loop_fd_set(c->out, waiting ? EPOLLOUT : EPOLLERR);
	if (c->in)
		loop_fd_set(c->in, buf_len(&c->pending) > OUTPUT_HIGH ? 0 : EPOLLIN);
}

static void on_send(struct str message, const char *related, void *arg)
{
	struct console *c = arg;
	if (!message.n)
		return;
	buf_add_str(&c->pending, message);
	buf_add_c(&c->pending, "\n");
	flush(c);
}

static void take_lines(struct console *c)
{
	struct str line, rest;
	while (c->session && str_cut(buf_str(&c->line), '\n', &line, &rest)) {
		size_t whole = line.n + 1;
		if (line.n && line.p[line.n - 1] == '\r')
			line.n--;
		if (c->skipping)
			c->skipping = false;
		else if (str_trim(line).n)
			mcp_session_take(c->session, line, NULL);
		buf_consume(&c->line, whole);
	}
	if (buf_len(&c->line) > MCP_MAX_MESSAGE) {
		if (!c->skipping && c->session) /* refused as too long */
			mcp_session_take(c->session, buf_str(&c->line), NULL);
		c->skipping = true;
		buf_clear(&c->line);
	}
}

static void on_input(struct loop_fd *w, uint32_t events, void *arg)
{
	struct console *c = arg;
	char *to = buf_reserve(&c->line, READ_SIZE);
	ssize_t n = to ? read(0, to, READ_SIZE) : -1;
	if (n < 0 && to && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		begin_end(c);
		return;
	}
	buf_commit(&c->line, (size_t)n);
	take_lines(c);
}

static void on_output(struct loop_fd *w, uint32_t events, void *arg)
{
	struct console *c = arg;
	if (events & (EPOLLERR | EPOLLHUP)) {
		loop_fd_del(c->out);
		c->out = NULL;
		buf_clear(&c->pending);
		begin_end(c);
		return;
	}
	flush(c);
}

static void on_signal(struct loop_fd *w, uint32_t events, void *arg)
{
	struct signalfd_siginfo info;
	while (read(loop_fd_get(w), &info, sizeof(info)) == (ssize_t)sizeof(info))
		begin_end(arg);
}

/* A regular file is always ready, and epoll does not take it. */
static bool is_file(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

static void read_file(void *arg)
{
	struct console *c = arg;
	if (!c->session)
		return;
	on_input(NULL, EPOLLIN, c);
	if (c->session)
		loop_defer(c->loop, read_file, c);
}

int mcp_stdio(const struct mcp_config *config, const struct remote_server *server, int signals, struct error *err)
{
	struct console c = {.loop = config->loop, .in_is_file = is_file(0), .out_is_file = is_file(1)};
	int r = 0;
	if (!c.out_is_file)
		r = fd_set_nonblock(1, true);
	c.patience = loop_timer_new(c.loop, on_patience, &c);
	c.session = mcp_session_new(config, server, on_send, &c);
	c.signal = loop_fd_add(c.loop, signals, EPOLLIN, on_signal, &c);
	c.in = c.in_is_file ? NULL : loop_fd_add(c.loop, 0, EPOLLIN, on_input, &c);
	c.out = c.out_is_file ? NULL : loop_fd_add(c.loop, 1, EPOLLERR, on_output, &c);
	if (r < 0 || !c.patience || !c.session || !c.signal || (!c.in && !c.in_is_file) || (!c.out && !c.out_is_file))
		r = error_errno(err, r < 0 ? r : -errno, "standard input and output");
	if (r == 0) {
		if (c.in_is_file)
			loop_defer(c.loop, read_file, &c);
		loop_run(c.loop);
		r = (int)c.left;
	}
	loop_fd_del(c.in);
	loop_fd_del(c.out);
	loop_fd_del(c.signal);
	loop_timer_free(c.patience);
	if (!c.out_is_file)
		fd_set_nonblock(1, false);
	buf_done(&c.line);
	buf_done(&c.pending);
	return r;
}
