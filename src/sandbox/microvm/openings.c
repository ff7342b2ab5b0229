#include "sandbox/microvm/openings.h"
#include "sandbox/microvm/monitor_link.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "vmm/layout.h"

#include <errno.h>
#include <sys/socket.h>

enum {
	PATIENCE_SECONDS = 5, /* inside two are waited; under load it may come late */
	OPENINGS_MAX = 4096,    /* in all */
	OPENINGS_OF_BOX = 512,
};

/* It lives on when its box ends: then it sees the end of the stream. */
struct opening {
	bool direct; /* to envd, which PID 1 serves itself: nothing is answered, and who is not there is seen as the end of the stream */
	struct opening *prev, *next;
	struct backend *backend;
	struct box *box; /* NULL: it is gone, or goes */
	int fd;
	struct loop_fd *watch;
	struct loop_timer *timer;
	void (*done)(int fd_or_error, void *arg);
	void *arg;
};

static void leave_box(struct opening *o)
{
	if (o->box)
		o->box->openings--;
	o->box = NULL;
}

static void opening_free(struct opening *o)
{
	leave_box(o);
	o->backend->n_openings--;
	loop_fd_del(o->watch);
	loop_timer_free(o->timer);
	if (o->fd >= 0)
		close(o->fd);
	if (o->next)
		o->next->prev = o->prev;
	if (o->prev)
		o->prev->next = o->next;
	else
		o->backend->openings = o->next;
	free(o);
}

static void finish(struct opening *o, int result)
{
	int fd = result < 0 ? result : steal_fd(&o->fd);
	void (*done)(int fd_or_error, void *arg) = o->done;
	void *arg = o->arg;
	opening_free(o);
	done(fd, arg);
}

/* One byte: 0, or an errno of the guest's, which may be anything. */
static int outcome(int fd)
{
	unsigned char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 1 : -ECONNREFUSED;
	if (n == 0 || (byte && byte != ETIMEDOUT))
		return -ECONNREFUSED;
	return byte ? -ETIMEDOUT : 0;
}

static void on_readable(struct loop_fd *w, uint32_t events, void *arg)
{
	struct opening *o = arg;
	int r = outcome(o->fd);
	if (r <= 0)
		finish(o, r);
}

static void on_timeout(struct loop_timer *t, void *arg)
{
	struct opening *o = arg;
	finish(o, o->direct ? 0 : -ETIMEDOUT);
}

/* In the lists, and counted. Owns fd. NULL without memory. */
static struct opening *opening_make(struct box *b, bool direct, int fd)
{
	struct opening *o = malloc(sizeof(*o));
	if (!o) {
		close(fd);
		return NULL;
	}
	*o = (struct opening){.backend = b->backend, .box = b, .direct = direct, .fd = fd, .next = b->backend->openings};
	if (o->next)
		o->next->prev = o;
	b->backend->openings = o;
	b->backend->n_openings++;
	b->openings++;
	return o;
}

static int begin(struct opening *o, uint16_t port, int theirs)
{
	const unsigned char head[] = {(unsigned char)port, (unsigned char)(port >> 8)};
	if (!o->direct && send(o->fd, head, sizeof(head), MSG_NOSIGNAL) != sizeof(head))
		return -errno;
	o->watch = o->direct ? NULL : loop_fd_add(o->backend->loop, o->fd, EPOLLIN | EPOLLRDHUP, on_readable, o);
	o->timer = loop_timer_new(o->backend->loop, on_timeout, o);
	if ((!o->direct && !o->watch) || !o->timer || loop_timer_in(o->timer, o->direct ? 0 : PATIENCE_SECONDS * NS_PER_S) < 0)
		return -ENOMEM;
	return monitor_link_open(o->box->monitor, o->direct ? VSOCK_PORT_ENVD : VSOCK_PORT_OPEN, theirs);
}

int opening_new(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	int ends[2];
	int r = b->monitor ? monitor_link_ready(b->monitor) : -ENOTCONN;
	if (r < 0)
		return r;
	if (b->backend->n_openings >= OPENINGS_MAX || b->openings >= OPENINGS_OF_BOX)
		return -EAGAIN;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return -errno;
	cleanup_fd int theirs = ends[1];
	struct opening *o = opening_make(b, port == VSOCK_PORT_ENVD, ends[0]);
	if (!o)
		return -ENOMEM;
	o->done = done;
	o->arg = arg;
	r = begin(o, port, theirs);
	if (r < 0)
		opening_free(o);
	return r;
}

void openings_leave(struct box *b)
{
	for (struct opening *x = b->backend->openings; x && b->openings; x = x->next)
		if (x->box == b)
			leave_box(x);
}

void openings_cancel(struct backend *b)
{
	while (b->openings)
		finish(b->openings, -ECANCELED);
}
