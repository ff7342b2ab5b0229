#include "interp/channel.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>

/* Messages read in one go, before others of the loop get their turn. */
enum { BUDGET = 64 };

struct channel {
	void *socket;
	struct loop_fd *w;
	struct loop_timer *again;
	channel_fn *fn;
	channel_behind_fn *behind;
	void *arg;
	bool paused, reading, dead, is_behind;
};

struct frames *frames_ref(struct frames *f)
{
	f->refs++;
	return f;
}

void frames_unref(struct frames *f)
{
	if (!f || --f->refs)
		return;
	for (size_t i = 0; i < f->n; i++)
		zmq_msg_close(&f->parts[i]);
	free(f);
}

/* One whole message; parts of one arrive together, so none is waited for. NULL with errno EAGAIN when there
 * is none. */
static struct frames *receive(void *socket)
{
	struct frames *f = malloc(sizeof(*f));
	if (!f)
		return NULL;
	f->refs = 1;
	f->n = 0;
	bool more = true;
	while (more) {
		zmq_msg_t part;
		zmq_msg_init(&part);
		if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
			int code = errno;
			zmq_msg_close(&part);
			frames_unref(f);
			errno = code;
			return NULL;
		}
		more = zmq_msg_more(&part);
		if (f->n == WIRE_MAX_FRAMES) {
			zmq_msg_close(&part);
			continue;
		}
		zmq_msg_init(&f->parts[f->n]);
		zmq_msg_move(&f->parts[f->n], &part);
		f->views[f->n] = str_n(zmq_msg_data(&f->parts[f->n]), zmq_msg_size(&f->parts[f->n]));
		f->n++;
	}
	return f;
}

static void destroy(struct channel *c)
{
	loop_fd_del(c->w);
	loop_timer_free(c->again);
	if (c->socket)
		zmq_close(c->socket);
	free(c);
}

/*
 * The descriptor of a ZeroMQ socket only says that something may have changed, and says it once: it falls
 * silent when the socket is used, also by sending. So all that is there is read whenever it spoke, and looked
 * again after each send and after a pause, and when the budget was used up.
 */
static void read_all(struct channel *c)
{
	c->reading = true;
	int left = BUDGET;
	while (!c->paused && !c->dead && left) {
		struct frames *f = receive(c->socket);
		if (!f)
			break;
		left--;
		c->fn(c, f, c->arg);
		frames_unref(f);
	}
	c->reading = false;
	if (c->dead) {
		destroy(c);
		return;
	}
	if (!c->paused && !left)
		loop_timer_in(c->again, 0);
	if (!c->paused && c->behind && c->is_behind != !left) {
		c->is_behind = !left;
		c->behind(c->is_behind, c->arg);
	}
}

static void on_ready(struct loop_fd *w, uint32_t events, void *arg)
{
	read_all(arg);
}

static void on_again(struct loop_timer *t, void *arg)
{
	read_all(arg);
}

static int set_options(void *socket, int type)
{
	const int64_t longest = CHANNEL_MAX_FRAME;
	/* Steadily: with pauses that grow, a kernel whose socket appears just after a try is met only hundreds of
	 * milliseconds later. */
	const int queue = CHANNEL_QUEUE, linger = 0, retry = 10;
	int r = zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
	r |= zmq_setsockopt(socket, ZMQ_RCVHWM, &queue, sizeof(queue));
	r |= zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof(queue));
	r |= zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &longest, sizeof(longest));
	r |= zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &retry, sizeof(retry));
	if (type == ZMQ_SUB)
		r |= zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
	return r;
}

static int open_channel(struct channel *c, struct loop *l, void *zmq, int type, const char *endpoint)
{
	int fd;
	size_t size = sizeof(fd);
	c->socket = zmq_socket(zmq, type);
	if (!c->socket || set_options(c->socket, type) || zmq_connect(c->socket, endpoint) ||
		zmq_getsockopt(c->socket, ZMQ_FD, &fd, &size))
		return -1;
	c->w = loop_fd_add(l, fd, EPOLLIN, on_ready, c);
	c->again = loop_timer_new(l, on_again, c);
	return c->w && c->again && loop_timer_in(c->again, 0) == 0 ? 0 : -1;
}

struct channel *channel_new(struct loop *l, void *zmq, int type, const char *endpoint, channel_fn *fn,
	channel_behind_fn *behind, void *arg)
{
	struct channel *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->fn = fn;
	c->behind = behind;
	c->arg = arg;
	if (open_channel(c, l, zmq, type, endpoint) < 0) {
		int code = errno;
		destroy(c);
		errno = code;
		return NULL;
	}
	return c;
}

void channel_free(struct channel *c)
{
	if (!c)
		return;
	if (c->reading)
		c->dead = true;
	else
		destroy(c);
}

int channel_send(struct channel *c, const struct str *frames, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int flags = ZMQ_DONTWAIT | (i + 1 < n ? ZMQ_SNDMORE : 0);
		/* Only the first part can be refused: the others of the message then have their place. */
		if (zmq_send(c->socket, frames[i].p, frames[i].n, flags) < 0)
			return -errno;
	}
	return loop_timer_in(c->again, 0);
}

void channel_pause(struct channel *c, bool on)
{
	if (c->paused == on)
		return;
	c->paused = on;
	/* What gathers meanwhile is to be read first. */
	c->is_behind |= on;
	loop_fd_set(c->w, on ? 0 : EPOLLIN);
	if (!on)
		loop_timer_in(c->again, 0);
}
