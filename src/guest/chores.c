#include "guest/chores.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { MAX_WAITING = 64 };

struct chore {
	struct chore *next;
	struct chore_order order;
	_Alignas(16) char arg[];
};

struct chores {
	struct loop *loop;
	struct chore *first, **last; /* the first one runs */
	size_t n;
	int pipe; /* of the child that runs; -1 = none */
	struct loop_fd *watch;
};

struct chores *chores_new(struct loop *l)
{
	struct chores *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct chores){.loop = l, .last = &c->first, .pipe = -1};
	return c;
}

static void close_pipe(struct chores *c)
{
	loop_fd_del(c->watch);
	c->watch = NULL;
	if (c->pipe >= 0)
		close(steal_fd(&c->pipe));
}

void chores_free(struct chores *c)
{
	if (!c)
		return;
	close_pipe(c);
	while (c->first) {
		struct chore *next = c->first->next;
		free(c->first);
		c->first = next;
	}
	free(c);
}

/* In the child. Connections of PID 1 must not live on in it. */
static _Noreturn void work(const struct chore *w, int pipe)
{
	int keep[3], n = 0;
	const int wanted[] = {w->order.keep[0], w->order.keep[1], pipe};
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		int at = n;
		if (wanted[i] < 3)
			continue;
		for (; at > 0 && keep[at - 1] > wanted[i]; at--)
			keep[at] = keep[at - 1];
		keep[at] = wanted[i];
		n++;
	}
	fd_close_all_except(3, keep, (size_t)n);
	prctl(PR_SET_NAME, "cubicle-chore");
	int r = w->order.work(w->order.arg);
	fd_write_all(pipe, &r, sizeof(r));
	_exit(0);
}

static struct chore_order take_first(struct chores *c)
{
	struct chore *w = c->first;
	struct chore_order o = w->order;
	c->first = w->next;
	if (!c->first)
		c->last = &c->first;
	c->n--;
	free(w);
	return o;
}

static int start(struct chores *c);

static void finish(struct chores *c, int result)
{
	close_pipe(c);
	for (int next = -1; next < 0; result = next) {
		struct chore_order o = take_first(c);
		next = c->first ? start(c) : 0;
		if (o.done)
			o.done(result, o.owner, o.request);
	}
}

static void on_result(struct loop_fd *w, uint32_t events, void *arg)
{
	struct chores *c = arg;
	int result;
	ssize_t n = read(c->pipe, &result, sizeof(result));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	finish(c, n == sizeof(result) ? result : -EIO);
}

static int start(struct chores *c)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	c->pipe = ends[0];
	c->watch = loop_fd_add(c->loop, c->pipe, EPOLLIN, on_result, c);
	pid_t pid = c->watch ? fork() : -1;
	if (pid == 0)
		work(c->first, ends[1]);
	int r = pid < 0 ? -errno : 0;
	close(ends[1]);
	if (r < 0)
		close_pipe(c);
	return r;
}

int chores_add(struct chores *c, const struct chore_order *o)
{
	if (c->n >= MAX_WAITING)
		return -EBUSY;
	struct chore *w = malloc(sizeof(*w) + o->size);
	if (!w)
		return -ENOMEM;
	w->next = NULL;
	w->order = *o;
	if (o->size)
		memcpy(w->arg, o->arg, o->size);
	w->order.arg = w->arg;
	*c->last = w;
	c->last = &w->next;
	int r = c->n++ == 0 ? start(c) : 0;
	if (r < 0)
		take_first(c);
	return r;
}

void chores_forget(struct chores *c, const void *owner)
{
	for (struct chore *w = c ? c->first : NULL; w; w = w->next)
		if (w->order.owner == owner)
			w->order.done = NULL;
}
