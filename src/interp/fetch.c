#include "interp/fetch.h"
#include "interp/patience.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "io/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { MAX_BODY = 4 << 20, READ = 16 * 1024 };
#define TIME (5 * NS_PER_S)

struct fetch {
	struct loop_fd *w;
	int fd;
	fetch_fn *fn;
	void *arg;
	struct patience patience;
	struct buf out, in, text;
	struct http_body body;
	int status; /* 0 until the head is there */
};

int fetch_target_parse(struct str url, struct fetch_target *ret)
{
	struct str host, port;
	uint64_t number;
	char text[INET_ADDRSTRLEN];
	struct fetch_target t = {.address = {.sin_family = AF_INET}, .set = true};
	if (!str_starts(url, STR("http://")) || !str_cut(str_from(url, 7), ':', &host, &port) ||
		host.n >= sizeof(text) || str_to_u64(port, &number) < 0 || !number || number > 65535)
		return -EINVAL;
	memcpy(text, host.p, host.n);
	text[host.n] = '\0';
	if (inet_pton(AF_INET, text, &t.address.sin_addr) != 1)
		return -EINVAL;
	t.address.sin_port = htons((uint16_t)number);
	*ret = t;
	return 0;
}

void fetch_free(struct fetch *f)
{
	if (!f)
		return;
	loop_fd_del(f->w);
	if (f->fd >= 0)
		close(f->fd);
	patience_done(&f->patience);
	buf_done(&f->out);
	buf_done(&f->in);
	buf_done(&f->text);
	free(f);
}

static void finish(struct fetch *f, int status, struct str body)
{
	f->fn(status, body, f->arg);
	fetch_free(f);
}

static void on_patience(void *arg)
{
	finish(arg, 0, STR("no answer in time"));
}

/* Takes what was read: 0 = more is needed, 1 = complete, -EPROTO. */
static int take(struct fetch *f, bool at_end)
{
	if (!f->status) {
		struct http_head head;
		ssize_t n = http_parse_response(buf_str(&f->in), false, &head);
		if (n <= 0)
			return n < 0 || at_end ? -EPROTO : 0;
		http_body_init(&f->body, head.framing, head.length);
		f->status = head.status;
		buf_consume(&f->in, (size_t)n);
		if (f->status < 200)
			f->status = 0;
		return take(f, at_end);
	}
	struct str in = buf_str(&f->in), run;
	while (!f->body.done && in.n) {
		if (http_body_next(&f->body, &in, &run) < 0 || buf_len(&f->text) + run.n > MAX_BODY ||
			buf_add_str(&f->text, run) < 0)
			return -EPROTO;
	}
	buf_clear(&f->in);
	if (f->body.done || (at_end && f->body.framing == HTTP_BODY_UNTIL_CLOSE))
		return 1;
	return at_end ? -EPROTO : 0;
}

static void on_readable(struct fetch *f)
{
	char *to = buf_reserve(&f->in, READ);
	ssize_t n = to ? read(f->fd, to, READ) : -1;
	if (n < 0 && to && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		buf_commit(&f->in, (size_t)n);
	int r = n < 0 ? -EPROTO : take(f, n == 0);
	if (r > 0)
		finish(f, f->status, buf_str(&f->text));
	else if (r < 0)
		finish(f, 0, STR("the answer is broken"));
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct fetch *f = arg;
	if (!buf_len(&f->out)) {
		on_readable(f);
		return;
	}
	ssize_t n = send(f->fd, buf_str(&f->out).p, buf_len(&f->out), MSG_NOSIGNAL);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		finish(f, 0, str_of(strerror(errno)));
		return;
	}
	buf_consume(&f->out, (size_t)n);
	if (!buf_len(&f->out))
		loop_fd_set(w, EPOLLIN);
}

static int begin(struct fetch *f, struct loop *l, const struct fetch_target *to)
{
	f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (f->fd < 0)
		return -errno;
	/* A refusal is told by the first event. */
	if (connect(f->fd, (const struct sockaddr *)&to->address, sizeof(to->address)) < 0 &&
		errno != EINPROGRESS)
		return -errno;
	f->w = loop_fd_add(l, f->fd, EPOLLOUT, on_event, f);
	return f->w ? 0 : -errno;
}

struct fetch *fetch_new(struct loop *l, const struct fetch_target *to, const char *path, struct str token,
	fetch_fn *fn, void *arg)
{
	struct fetch *f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->fd = -1;
	f->fn = fn;
	f->arg = arg;
	buf_addf(&f->out, "GET %s HTTP/1.1\r\nHost: envd\r\nConnection: close\r\n", path);
	if (token.n)
		http_add_header(&f->out, "X-Access-Token", token);
	buf_add_c(&f->out, "\r\n");
	if (patience_init(&f->patience, l, on_patience, f) < 0 || f->out.failed || begin(f, l, to) < 0) {
		fetch_free(f);
		return NULL;
	}
	patience_start(&f->patience, TIME);
	return f;
}
