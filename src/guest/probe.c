#include "guest/probe.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { STATUS = sizeof("HTTP/1.1 200") - 1 };

struct probe {
	struct loop *loop;
	uint16_t port;
	const char *path;
	probe_fn *fn;
	void *arg;
	int fd; /* -1 = nothing is asked */
	struct loop_fd *watch;
	struct loop_timer *timer;
	char why[80]; /* what is to be said when the timer fires */
	bool asked;   /* the request is out */
	char answer[STATUS];
	size_t n;
};

void probe_stop(struct probe *p)
{
	loop_timer_stop(p->timer);
	loop_fd_del(p->watch);
	p->watch = NULL;
	cleanup_fd_p(&p->fd);
	p->fd = -1;
}

static void finish(struct probe *p, bool ok, const char *why)
{
	char text[sizeof(p->why)];
	snprintf(text, sizeof(text), "%s", why);
	probe_stop(p);
	p->fn(ok, str_of(text), p->arg);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct probe *p = arg;
	finish(p, false, p->why);
}

/* "HTTP/1.x 2xx" */
static void judge(struct probe *p)
{
	char text[sizeof(p->why)];
	const char *a = p->answer;
	if (memcmp(a, "HTTP/1.", 7) != 0 || a[8] != ' ') {
		finish(p, false, "the probe's port does not answer HTTP");
		return;
	}
	snprintf(text, sizeof(text), "the probe was answered with status %.3s", a + 9);
	for (size_t i = 0; text[i]; i++)
		if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] > 0x7e)
			text[i] = '?';
	finish(p, a[9] == '2', text);
}

static void receive(struct probe *p)
{
	ssize_t n = recv(p->fd, p->answer + p->n, STATUS - p->n, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		finish(p, false, "the probe's connection was closed before an answer came");
		return;
	}
	p->n += (size_t)n;
	if (p->n == STATUS)
		judge(p);
}

static void send_request(struct probe *p)
{
	char request[512];
	int n = snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: localhost:%u\r\nAccept: */*\r\nUser-Agent: cubicle-probe\r\nConnection: close\r\n\r\n", p->path,
		p->port);
	/* A new connection takes all of it. */
	if (n < 0 || (size_t)n >= sizeof(request) || send(p->fd, request, (size_t)n, MSG_NOSIGNAL) != n) {
		finish(p, false, "the probe could not be sent");
		return;
	}
	p->asked = true;
	snprintf(p->why, sizeof(p->why), "the probe was not answered within %d s", PROBE_TRY_MS / 1000);
	loop_fd_set(p->watch, EPOLLIN);
}

static void on_socket(struct loop_fd *w, uint32_t events, void *arg)
{
	struct probe *p = arg;
	int error = 0;
	socklen_t size = sizeof(error);
	if (p->asked) {
		receive(p);
		return;
	}
	if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		error = errno;
	if (error) {
		char text[sizeof(p->why)];
		snprintf(text, sizeof(text), "port %u: %s", p->port, strerror(error));
		finish(p, false, text);
	} else if (p->path) {
		send_request(p);
	} else {
		finish(p, true, "");
	}
}

/* Said from the loop. */
static void fail_later(struct probe *p, int error)
{
	snprintf(p->why, sizeof(p->why), "port %u: %s", p->port, strerror(error));
	loop_timer_in(p->timer, 0);
}

void probe_ask(struct probe *p)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(p->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	p->asked = false;
	p->n = 0;
	p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (p->fd < 0 || (connect(p->fd, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)) {
		fail_later(p, errno);
		return;
	}
	p->watch = loop_fd_add(p->loop, p->fd, EPOLLOUT, on_socket, p);
	if (!p->watch) {
		fail_later(p, errno);
		return;
	}
	snprintf(p->why, sizeof(p->why), "port %u takes no connection", p->port);
	loop_timer_in(p->timer, PROBE_TRY_MS * NS_PER_MS);
}

struct probe *probe_new(struct loop *l, uint16_t port, const char *path, probe_fn *fn, void *arg)
{
	struct probe *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct probe){.loop = l, .port = port, .path = path, .fn = fn, .arg = arg, .fd = -1, .timer = loop_timer_new(l, on_timer, p)};
	if (!p->timer) {
		free(p);
		return NULL;
	}
	return p;
}

void probe_free(struct probe *p)
{
	if (!p)
		return;
	probe_stop(p);
	loop_timer_free(p->timer);
	free(p);
}
