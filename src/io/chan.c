#include "io/chan.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <assert.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>

enum {
	MAX_QUEUED = 32 * 1024 * 1024,
	MESSAGES_PER_TURN = 64, /* then others on the loop get their turn */
};

struct datagram {
	struct datagram *next;
	size_t length;
	size_t n_fds;
	int fds[MSG_MAX_FDS]; /* duplicates, owned */
	char bytes[];
};

struct chan {
	struct loop *loop;
	struct loop_fd *source;
	const struct chan_ops *ops;
	void *arg;
	struct datagram *first, **last; /* waiting for room */
	size_t queued;
	char *storage; /* MSG_MAX bytes to receive into */
	uint32_t accept;
	unsigned flags;
	int fd;
	bool busy;  /* inside ops->message */
	bool ended; /* closed() was called or is on its way */
	bool freed; /* chan_free() while busy */
};

/* fds of one datagram as control data. */
union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int) * MSG_MAX_FDS) + CMSG_SPACE(sizeof(struct ucred))];
};

static ssize_t send_datagram(int fd, struct str d, const int *fds, size_t n_fds, int flags)
{
	union control control = {0};
	struct iovec iov = {(void *)(uintptr_t)d.p, d.n};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
	if (n_fds) {
		h.msg_control = control.bytes;
		h.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	ssize_t r;
	do
		r = sendmsg(fd, &h, MSG_NOSIGNAL | flags);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

/* Receives one datagram of at most MSG_MAX bytes: its length, 0 at end of file, -errno; -EPROTO when it was cut. */
static ssize_t receive_datagram(int fd, char *storage, int *ret_fds, size_t *ret_n_fds, pid_t *ret_sender, bool want_control, int flags)
{
	union control control;
	struct iovec iov = {storage, MSG_MAX};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
	if (want_control) {
		h.msg_control = control.bytes;
		h.msg_controllen = sizeof(control.bytes);
	}
	ssize_t r;
	do
		r = recvmsg(fd, &h, MSG_CMSG_CLOEXEC | flags);
	while (r < 0 && errno == EINTR);
	*ret_n_fds = 0;
	*ret_sender = 0;
	if (r < 0)
		return -errno;
	for (struct cmsghdr *c = want_control ? CMSG_FIRSTHDR(&h) : NULL; c; c = CMSG_NXTHDR(&h, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			for (size_t i = 0; i < n; i++) {
				int got;
				memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
				if (*ret_n_fds < MSG_MAX_FDS)
					ret_fds[(*ret_n_fds)++] = got;
				else
					close(got);
			}
		} else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
			struct ucred cred;
			memcpy(&cred, CMSG_DATA(c), sizeof(cred));
			*ret_sender = cred.pid;
		}
	}
	return (h.msg_flags & MSG_TRUNC) || (want_control && (h.msg_flags & MSG_CTRUNC)) ? -EPROTO : r;
}

static void close_fds(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static void datagram_free(struct datagram *d)
{
	close_fds(d->fds, d->n_fds);
	free(d);
}

static void destroy(void *arg)
{
	struct chan *c = arg;
	while (c->first) {
		struct datagram *d = c->first;
		c->first = d->next;
		datagram_free(d);
	}
	free(c->storage);
	free(c);
}

/* Stops I/O; memory goes after the current callback. */
static void shut(struct chan *c)
{
	loop_fd_del(c->source);
	c->source = NULL;
	if (c->fd >= 0)
		close(steal_fd(&c->fd));
	c->ended = true;
}

struct ending {
	struct chan *chan;
	struct error err;
};

static void tell_end(void *arg)
{
	struct ending *e = arg;
	if (!e->chan->freed)
		e->chan->ops->closed(e->chan, &e->err, e->chan->arg);
	destroy(e->chan);
	free(e);
}

/* Ends the channel; closed() is told at the end of the turn, so a caller of chan_send() never sees it freed under its feet. */
static void end(struct chan *c, const struct error *err)
{
	if (c->ended)
		return;
	shut(c);
	struct ending *e = malloc(sizeof(*e));
	if (e) {
		*e = (struct ending){c, *err};
		if (loop_defer(c->loop, tell_end, e) == 0)
			return;
		free(e);
	}
	c->ops->closed(c, err, c->arg);
	destroy(c);
}

static void end_errno(struct chan *c, int code, const char *what)
{
	struct error err = {0};
	error_errno(&err, code, "%s", what);
	end(c, &err);
}

static int check_datagram(struct chan *c, struct str d, struct chan_message *m, union msg_any *any, struct error *err)
{
	int r = msg_decode(d, &m->header, any, sizeof(*any), err);
	if (r < 0)
		return r;
	const struct msg_type *t = msg_type(m->header.type);
	if (!(t->directions & c->accept))
		return error_set(err, -EPROTO, 500, "message %s is not for this channel", t->name);
	if (t->fds != m->n_fds)
		return error_set(err, -EPROTO, 500, "message %s brought %zu descriptors, not %u", t->name, m->n_fds, t->fds);
	m->body = any;
	return 0;
}

/* One datagram: false when there is none, or the channel ended. */
static bool receive_one(struct chan *c)
{
	struct chan_message m = {0};
	union msg_any any;
	struct error err = {0};
	ssize_t n = receive_datagram(c->fd, c->storage, m.fds, &m.n_fds, &m.sender, !(c->flags & CHAN_NO_FDS) || (c->flags & CHAN_CREDENTIALS), MSG_DONTWAIT);
	if (n == -EAGAIN)
		return false;
	if ((c->flags & CHAN_NO_FDS) && m.n_fds) {
		/* Only seen together with CHAN_CREDENTIALS, which needs control data. */
		close_fds(m.fds, m.n_fds);
		m.n_fds = 0;
		n = -EPROTO;
	}
	if (n <= 0) {
		close_fds(m.fds, m.n_fds);
		if (n == 0)
			error_set(&err, -EPIPE, 500, "the peer closed the channel");
		else
			error_errno(&err, (int)n, "channel");
		end(c, &err);
		return false;
	}
	int r = check_datagram(c, str_n(c->storage, (size_t)n), &m, &any, &err);
	if (r == 0) {
		c->busy = true;
		c->ops->message(c, &m, c->arg);
		c->busy = false;
	}
	close_fds(m.fds, m.n_fds);
	if (c->freed && !c->ended) {
		shut(c);
		destroy(c);
		return false;
	}
	/* A message from a newer peer is skipped; one that breaks the rules ends the channel. */
	if (r < 0 && r != -EOPNOTSUPP)
		end(c, &err);
	return !c->ended;
}

static void flush(struct chan *c)
{
	while (c->first) {
		struct datagram *d = c->first;
		ssize_t r = send_datagram(c->fd, str_n(d->bytes, d->length), d->fds, d->n_fds, MSG_DONTWAIT);
		if (r == -EAGAIN || r == -ENOBUFS)
			return;
		if (r < 0) {
			end_errno(c, (int)r, "channel");
			return;
		}
		c->first = d->next;
		c->queued -= d->length;
		datagram_free(d);
	}
	loop_fd_set(c->source, EPOLLIN);
	if (c->ops->drained) {
		c->busy = true;
		c->ops->drained(c, c->arg);
		c->busy = false;
	}
}

static void on_event(struct loop_fd *w, uint32_t events, void *arg)
{
	struct chan *c = arg;
	if (events & EPOLLOUT)
		flush(c);
	if (c->freed && !c->ended) {
		shut(c);
		destroy(c);
		return;
	}
	if (c->ended || !(events & ~(uint32_t)EPOLLOUT))
		return;
	for (int i = 0; i < MESSAGES_PER_TURN && receive_one(c); i++)
		;
}

struct chan *chan_new(struct loop *l, int fd, uint32_t accept, unsigned flags, const struct chan_ops *ops, void *arg)
{
	struct chan *c = calloc(1, sizeof(*c));
	if (!c || !(c->storage = malloc(MSG_MAX)))
		goto fail;
	*c = (struct chan){.loop = l, .ops = ops, .arg = arg, .storage = c->storage, .accept = accept, .flags = flags, .fd = fd};
	int one = 1;
	if ((flags & CHAN_CREDENTIALS) && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) < 0)
		goto fail;
	c->source = loop_fd_add(l, fd, EPOLLIN, on_event, c);
	if (c->source)
		return c;
fail:
	if (c)
		free(c->storage);
	free(c);
	close(fd);
	return NULL;
}

static int queue(struct chan *c, struct str d, const int *fds, size_t n_fds)
{
	struct datagram *q = malloc(sizeof(*q) + d.n);
	if (!q)
		return -ENOMEM;
	*q = (struct datagram){.length = d.n};
	memcpy(q->bytes, d.p, d.n);
	for (size_t i = 0; i < n_fds; i++) {
		q->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		if (q->fds[i] < 0) {
			int r = -errno;
			datagram_free(q);
			return r;
		}
		q->n_fds++;
	}
	if (!c->first)
		c->last = &c->first;
	*c->last = q;
	c->last = &q->next;
	c->queued += d.n;
	return loop_fd_set(c->source, EPOLLIN | EPOLLOUT);
}

int chan_send(struct chan *c, enum msg_id type, const void *m, uint64_t request, const int *fds, size_t n_fds, struct error *err)
{
	assert(msg_type(type)->fds == n_fds);
	if (c->ended)
		return error_set(err, -EPIPE, 503, "the channel is closed");
	cleanup_buf struct buf wire = BUF_INIT;
	int r = msg_encode(type, m, request, &wire, err);
	if (r < 0)
		return r;
	if (!c->first) {
		ssize_t n = send_datagram(c->fd, buf_str(&wire), fds, n_fds, MSG_DONTWAIT);
		if (n >= 0)
			return 0;
		if (n != -EAGAIN && n != -ENOBUFS) {
			end_errno(c, (int)n, "channel");
			return error_set(err, -EPIPE, 503, "the channel is closed");
		}
	}
	r = c->queued + buf_len(&wire) > MAX_QUEUED ? -ENOBUFS : queue(c, buf_str(&wire), fds, n_fds);
	if (r < 0) {
		end_errno(c, r, "channel: too much is waiting");
		return error_errno(err, r, "channel");
	}
	return 0;
}

size_t chan_queued(const struct chan *c)
{
	return c->queued;
}

int chan_send_error(struct chan *c, uint64_t request, const struct error *e)
{
	struct msg_error m = {.code = e->code, .status = (uint64_t)(e->status ? e->status : 500), .message = str_of(e->message)};
	if (e->retry_after > 0)
		msg_set(&m, error, retry_after, (uint64_t)e->retry_after);
	return chan_send(c, MSG_ID_error, &m, request, NULL, 0, NULL);
}

void chan_take(struct chan *c)
{
	for (int i = 0; c && !c->ended && !c->busy && i < MESSAGES_PER_TURN && receive_one(c); i++)
		;
}

void chan_free(struct chan *c)
{
	if (!c)
		return;
	c->freed = true;
	if (c->ended || c->busy)
		return; /* tell_end() or receive_one() destroys it */
	shut(c);
	destroy(c);
}

int msg_send_fd(int fd, enum msg_id type, const void *m, uint64_t request, const int *fds, size_t n_fds, struct error *err)
{
	cleanup_buf struct buf wire = BUF_INIT;
	int r = msg_encode(type, m, request, &wire, err);
	if (r < 0)
		return r;
	ssize_t n = send_datagram(fd, buf_str(&wire), fds, n_fds, 0);
	return n < 0 ? error_errno(err, (int)n, "sending %s", msg_type(type)->name) : 0;
}

int msg_receive_fd(int fd, char *storage, struct msg_header *ret_header, union msg_any *ret, int *ret_fds, size_t *n_fds, struct error *err)
{
	int fds[MSG_MAX_FDS];
	size_t n = 0;
	pid_t sender;
	ssize_t got = receive_datagram(fd, storage, fds, &n, &sender, ret_fds != NULL, 0);
	int r = got < 0 ? error_errno(err, (int)got, "receiving a message") : got == 0 ? error_set(err, -EPIPE, 500, "the peer closed the channel") : 0;
	if (r == 0)
		r = msg_decode(str_n(storage, (size_t)got), ret_header, ret, sizeof(*ret), err);
	if (r == 0 && msg_type(ret_header->type)->fds != n)
		r = error_set(err, -EPROTO, 500, "message %s brought %zu descriptors", msg_type(ret_header->type)->name, n);
	if (r < 0) {
		close_fds(fds, n);
		return r;
	}
	for (size_t i = 0; i < n; i++)
		ret_fds[i] = fds[i];
	if (n_fds)
		*n_fds = n;
	return 0;
}
