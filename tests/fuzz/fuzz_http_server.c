/*
 * A whole server connection: the input's bytes arrive in pieces, handlers answer in every way there is. The first byte chooses how the owner behaves, the
 * second the size of the pieces. Callbacks must come in order, each request must be closed exactly once, and nothing may be left.
 */
#include "fuzz.h"

#include "base/fd.h"
#include "io/http_server.h"

#include <sys/socket.h>

static struct {
	unsigned mode, open, begun, closed;
	struct http_req *paused;
} t;

struct seen {
	bool ended;
	unsigned pauses;
};

static size_t on_body(struct http_req *r, const char *p, size_t n)
{
	struct seen *s = r->arg;
	hold(n > 0 && s);
	if (t.mode & 1 && s->pauses < 8) {
		s->pauses++;
		t.paused = r;
		return n / 2;
	}
	if (t.mode & 2)
		http_abort(r);
	return n;
}

static void on_end(struct http_req *r)
{
	struct seen *s = r->arg;
	bool again = s->ended;
	s->ended = true;
	if (t.mode & 4 && r->head->upgrade && !again)
		http_upgrade(r, 101, NULL, "Upgrade: x\r\n");
	else if (t.mode & 4 && r->head->upgrade)
		http_finish(r);
	else
		http_respond(r, 200, "text/plain", NULL, STR("ok"));
}

static void on_closed(struct http_req *r, bool complete)
{
	hold(t.open == 1);
	t.open--;
	t.closed++;
	if (t.paused == r)
		t.paused = NULL;
	free(r->arg);
}

static const struct http_req_ops ops = {.body = on_body, .end = on_end, .closed = on_closed};

static void on_request(struct http_req *r, void *arg)
{
	hold(t.open == 0);
	t.open++;
	t.begun++;
	r->ops = &ops;
	r->arg = calloc(1, sizeof(struct seen));
	hold(r->arg);
	if (t.mode & 8) {
		http_respond_error(r, 404, "no");
	} else if (t.mode & 16) {
		http_start(r, 200, NULL, NULL, HTTP_BODY_CHUNKED, 0);
		http_send(r, "abc", 3);
		http_finish(r);
	} else if (t.mode & 32) {
		http_abort(r);
	}
	r->own_continue = t.mode & 64;
}

static void serve(struct loop *l, int fd, struct str bytes, size_t step)
{
	char away[4096];
	for (size_t at = 0; at < bytes.n; at += step) {
		if (send(fd, bytes.p + at, MIN(step, bytes.n - at), MSG_NOSIGNAL | MSG_DONTWAIT) <= 0)
			break;
		hold(loop_turn(l, 0) == 0);
		if (t.paused) {
			struct http_req *r = t.paused;
			t.paused = NULL;
			http_req_resume(r);
		}
		while (recv(fd, away, sizeof(away), MSG_DONTWAIT) > 0)
			;
	}
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 4; i++)
		hold(loop_turn(l, 0) == 0);
}

void fuzz_one(struct str input)
{
	int fds[2];
	if (input.n < 3)
		return;
	memset(&t, 0, sizeof(t));
	t.mode = (unsigned char)input.p[0];
	size_t step = (size_t)(unsigned char)input.p[1] + 1;
	struct loop *l = loop_new();
	struct http_server *s = http_server_new(l, &(struct http_server_config){.on_request = on_request});
	hold(s && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
	hold(http_server_adopt(s, fds[1], STR("")) == 0);
	serve(l, fds[0], str_from(input, 2), step * (t.mode & 128 ? 64 : 1));
	close(fds[0]);
	loop_turn(l, 0);
	http_server_free(s);
	hold(t.open == 0 && t.begun == t.closed);
	loop_turn(l, 0);
	loop_free(l);
}
