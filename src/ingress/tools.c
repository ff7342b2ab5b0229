#include "ingress/tools.h"
#include "base/cleanup.h"

#include <errno.h>

struct tools_call {
	struct tools_call *next;
	uint64_t request;
	tools_done_fn *done; /* NULL: cancelled */
	void *arg;
};

struct tools {
	struct loop *loop;
	struct chan *chan;
	struct tools_call *first;
	uint64_t last;
};

struct tools *tools_new(struct loop *l)
{
	struct tools *t = calloc(1, sizeof(*t));
	if (t)
		t->loop = l;
	return t;
}

static void finish(struct tools *t, uint64_t request, int fd)
{
	struct tools_call **p = &t->first;
	while (*p && (*p)->request != request)
		p = &(*p)->next;
	struct tools_call *c = *p;
	if (c)
		*p = c->next;
	if (c && c->done)
		c->done(fd, c->arg);
	else if (fd >= 0)
		close(fd);
	free(c);
}

static void fail_all(struct tools *t)
{
	while (t->first)
		finish(t, t->first->request, -EPIPE);
}

static void on_message(struct chan *chan, struct chan_message *m, void *arg)
{
	if (m->header.type == MSG_ID_stream)
		finish(arg, m->header.request, steal_fd(&m->fds[0]));
	else if (m->header.type == MSG_ID_error)
		finish(arg, m->header.request, (int)m->body->error.code);
}

static void on_closed(struct chan *chan, const struct error *err, void *arg)
{
	struct tools *t = arg;
	t->chan = NULL;
	fail_all(t);
}

static const struct chan_ops ops = {on_message, on_closed, NULL};

int tools_attach(struct tools *t, int fd)
{
	chan_free(steal_pointer(&t->chan));
	fail_all(t);
	t->chan = chan_new(t->loop, fd, MSG_FROM_TOOLS, 0, &ops, t);
	return t->chan ? 0 : -errno;
}

struct tools_call *tools_open(struct tools *t, tools_done_fn *done, void *arg)
{
	struct tools_call *c = t->chan ? malloc(sizeof(*c)) : NULL;
	struct msg_open_tools m = {0};
	if (!c)
		return NULL;
	*c = (struct tools_call){.next = t->first, .request = ++t->last, .done = done, .arg = arg};
	if (chan_send(t->chan, MSG_ID_open_tools, &m, c->request, NULL, 0, NULL) < 0) {
		free(c);
		return NULL;
	}
	t->first = c;
	return c;
}

void tools_call_cancel(struct tools_call *c)
{
	if (c)
		c->done = NULL;
}

void tools_free(struct tools *t)
{
	if (!t)
		return;
	chan_free(t->chan);
	while (t->first) {
		struct tools_call *c = t->first;
		t->first = c->next;
		free(c);
	}
	free(t);
}
