#include "guest/spawn.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

struct spawn {
	struct spawner *spawner;
	struct spawn *prev, *next;
	const struct spawn_ops *ops;
	void *arg;
	struct spawn_head head;
	struct buf body;
	/* The first is the child's end of the status pipe, -1 once sent; the others, and the body, are kept until the process exists. */
	int fds[SPAWN_MAX_FDS];
	size_t n_fds;
	int status;
	struct loop_fd *watch;
	struct buf in; /* records not yet whole */
	bool sent, heard /* anything on the status pipe */, has_pid;
	/* After it got lost: how often it was asked for again, when not before, and until when (CLOCK_BOOTTIME). */
	unsigned tries;
	int64_t not_before, give_up;
};

/* Doubled with each try: 1.3 s in all. */
#define FIRST_PAUSE (20 * NS_PER_MS)

struct spawner {
	struct loop *loop;
	const struct spawner_ops *ops;
	void *arg;
	int socket; /* -1 = there is no spawner now */
	struct loop_fd *watch;
	struct loop_timer *patience; /* runs while there is none */
	struct loop_timer *again;    /* runs while one waits to be asked for again */
	struct spawn *first, *last;  /* in the order of asking: waiting and starting ones */
	size_t count;
};

static void unlink_spawn(struct spawn *p)
{
	struct spawner *s = p->spawner;
	*(p->prev ? &p->prev->next : &s->first) = p->next;
	*(p->next ? &p->next->prev : &s->last) = p->prev;
	s->count--;
}

static void close_fds(struct spawn *p)
{
	for (size_t i = 0; i < p->n_fds; i++)
		if (p->fds[i] >= 0)
			close(p->fds[i]);
	p->n_fds = 0;
}

static void close_status(struct spawn *p)
{
	loop_fd_del(p->watch);
	p->watch = NULL;
	if (p->status >= 0)
		close(steal_fd(&p->status));
	if (p->fds[0] >= 0)
		close(steal_fd(&p->fds[0]));
}

static void spawn_free(struct spawn *p)
{
	close_status(p);
	close_fds(p);
	buf_done(&p->body);
	buf_done(&p->in);
	free(p);
}

static void finish(struct spawn *p, const struct spawn_result *r)
{
	unlink_spawn(p);
	p->ops->done(p, r, p->arg);
	spawn_free(p);
}

static void fail(struct spawn *p, enum connect_code code, struct str message)
{
	finish(p, &(struct spawn_result){.code = code, .message = message});
}

/* Moves the bytes to a memfd that becomes the last descriptor. */
static int body_to_memfd(struct spawn *p)
{
	cleanup_fd int fd = memfd_create("spawn", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	int r = fd_write_all(fd, buf_str(&p->body).p, buf_len(&p->body));
	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return -errno;
	p->fds[p->n_fds++] = steal_fd(&fd);
	buf_done(&p->body);
	return 0;
}

/* 0, -EAGAIN, or what is wrong with the socket. */
static int send_request(struct spawn *p)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * SPAWN_MAX_FDS)];
	} control = {0};
	struct iovec iov[2] = {
		{&p->head, sizeof(p->head)}, {(void *)(uintptr_t)buf_str(&p->body).p, buf_len(&p->body)}};
	struct msghdr h = {.msg_iov = iov,
		.msg_iovlen = 2,
		.msg_control = control.bytes,
		.msg_controllen = CMSG_SPACE(sizeof(int) * p->n_fds)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int) * p->n_fds);
	memcpy(CMSG_DATA(c), p->fds, sizeof(int) * p->n_fds);
	if (sendmsg(p->spawner->socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return errno == ENOBUFS || errno == EINTR || errno == ETOOMANYREFS ? -EAGAIN : -errno;
	return 0;
}

static void lose_spawner(struct spawner *s)
{
	loop_fd_del(s->watch);
	s->watch = NULL;
	close(steal_fd(&s->socket));
	loop_timer_in(s->patience, SPAWN_PATIENCE_MS * NS_PER_MS);
	s->ops->died(s->arg);
}

/* Sends what waits, in order, but for those that have to wait a moment yet. */
static void flush(struct spawner *s)
{
	if (s->socket < 0)
		return;
	uint32_t events = EPOLLIN;
	int64_t now = clock_boottime(), next = INT64_MAX;
	for (struct spawn *p = s->first; p; p = p->next) {
		if (p->sent)
			continue;
		if (p->not_before > now) {
			next = MIN(next, p->not_before);
			continue;
		}
		int r = send_request(p);
		if (r == -EAGAIN) {
			events |= EPOLLOUT;
			break;
		}
		if (r < 0)
			break; /* the watch tells of its end */
		p->sent = true;
		close(steal_fd(&p->fds[0]));
	}
	loop_fd_set(s->watch, events);
	if (next < INT64_MAX)
		loop_timer_at(s->again, next);
}

static void on_again(struct loop_timer *t, void *arg)
{
	flush(arg);
}

static void on_socket(struct loop_fd *w, uint32_t events, void *arg)
{
	struct spawner *s = arg;
	char byte;
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		ssize_t n = recv(s->socket, &byte, 1, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
			lose_spawner(s);
			return;
		}
	}
	flush(s);
}

static void on_impatient(struct loop_timer *t, void *arg)
{
	struct spawner *s = arg;
	for (struct spawn *p = s->first, *next; p; p = next) {
		next = p->next;
		if (!p->sent)
			fail(p, CONNECT_UNAVAILABLE,
				STR("processes cannot be started now: the process that starts them died and "
				    "could not be replaced"));
	}
	loop_timer_in(t, SPAWN_PATIENCE_MS * NS_PER_MS);
}

struct spawner *spawner_new(struct loop *l, const struct spawner_ops *ops, void *arg)
{
	struct spawner *s = malloc(sizeof(*s));
	if (!s)
		return NULL;
	*s = (struct spawner){.loop = l, .ops = ops, .arg = arg, .socket = -1};
	s->patience = loop_timer_new(l, on_impatient, s);
	s->again = loop_timer_new(l, on_again, s);
	if (s->patience && s->again)
		return s;
	loop_timer_free(s->patience);
	loop_timer_free(s->again);
	free(s);
	return NULL;
}

int spawner_set(struct spawner *s, int socket)
{
	struct loop_fd *w = loop_fd_add(s->loop, socket, EPOLLIN, on_socket, s);
	if (!w) {
		int r = -errno;
		close(socket);
		return r;
	}
	if (s->socket >= 0) {
		loop_fd_del(s->watch);
		close(s->socket);
	}
	s->socket = socket;
	s->watch = w;
	loop_timer_stop(s->patience);
	flush(s);
	return 0;
}

void spawner_free(struct spawner *s)
{
	if (!s)
		return;
	while (s->first) {
		struct spawn *p = s->first;
		unlink_spawn(p);
		spawn_free(p);
	}
	loop_fd_del(s->watch);
	if (s->socket >= 0)
		close(s->socket);
	loop_timer_free(s->patience);
	loop_timer_free(s->again);
	free(s);
}

/* The next whole record off p->in, or 0. A length that no record has counts as damage: the rest is dropped.
 */
static bool next_record(struct spawn *p, struct spawn_record *ret, struct str *ret_bytes)
{
	struct str in = buf_str(&p->in);
	if (in.n < sizeof(*ret))
		return false;
	memcpy(ret, in.p, sizeof(*ret));
	if (ret->length > SPAWN_MAX_RECORD) {
		buf_clear(&p->in);
		return false;
	}
	if (in.n - sizeof(*ret) < ret->length)
		return false;
	*ret_bytes = str_n(in.p + sizeof(*ret), ret->length);
	buf_consume(&p->in, sizeof(*ret) + ret->length);
	return true;
}

static void on_status(struct loop_fd *w, uint32_t events, void *arg);

/* The status pipe and its watch. */
static int open_status(struct spawn *p)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	p->status = ends[0];
	p->fds[0] = ends[1];
	/* Only our end: the writer must not lose a record. */
	fd_set_nonblock(p->status, true);
	p->watch = loop_fd_add(p->spawner->loop, p->status, EPOLLIN, on_status, p);
	return p->watch ? 0 : -errno;
}

/*
 * Nothing of the request has run, so it can be asked for again: after a moment, in which the memory of who was killed is given back, or by the next spawner.
 * False when that was done often enough.
 */
static bool ask_again(struct spawn *p)
{
	int64_t now = clock_boottime();
	if (p->tries == 0)
		p->give_up = now + SPAWN_PATIENCE_MS * NS_PER_MS;
	if (p->tries == SPAWN_MAX_TRIES || now >= p->give_up)
		return false;
	close_status(p);
	if (open_status(p) < 0)
		return false;
	p->not_before = now + (FIRST_PAUSE << p->tries++);
	p->sent = p->heard = false;
	buf_clear(&p->in);
	flush(p->spawner);
	return true;
}

static void end_of_status(struct spawn *p)
{
	if (p->head.kind == SPAWN_COMMAND && p->has_pid)
		finish(p, &(struct spawn_result){
				  0}); /* closed by exec; or killed before it, which the exit status tells */
	else if (p->has_pid)
		fail(p, CONNECT_UNAVAILABLE, STR("the process that served the request was killed"));
	else if (p->heard || !ask_again(p))
		fail(p, CONNECT_UNAVAILABLE,
			STR("the process could not be started, nor when it was tried again: it, or the one "
			    "that starts it, was killed before (out of memory?)"));
}

/* The process exists: nobody else needs what it was given. */
static void on_pid(struct spawn *p, pid_t pid)
{
	p->has_pid = true;
	close_fds(p);
	buf_done(&p->body);
	p->ops->pid(p, pid, p->arg);
}

static void on_failed(struct spawn *p, const struct spawn_record *rec, struct str message)
{
	bool known = rec->value > 0 && rec->value <= CONNECT_UNAUTHENTICATED;
	fail(p, known ? (enum connect_code)rec->value : CONNECT_INTERNAL, message);
}

/* Reads what is there. At the end of the stream and on the last record p is freed, or asked for again. */
static void read_status(struct spawn *p)
{
	for (;;) {
		char *at = buf_reserve(&p->in, 512);
		ssize_t n = at ? read(p->status, at, 512) : 0;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		/* What it said cannot be known then. */
		p->heard |= !at || n != 0;
		if (n <= 0) {
			end_of_status(p);
			return;
		}
		buf_commit(&p->in, (size_t)n);
		struct spawn_record rec;
		struct str bytes;
		while (next_record(p, &rec, &bytes)) {
			if (rec.kind == SPAWN_PID && !p->has_pid && rec.value > 1) {
				on_pid(p, rec.value);
			} else if (rec.kind == SPAWN_AGAIN && !p->has_pid && ask_again(p)) {
				return;
			} else if (rec.kind == SPAWN_AGAIN || rec.kind == SPAWN_FAILED) {
				on_failed(p, &rec, bytes);
				return;
			} else if (rec.kind == SPAWN_SERVED) {
				finish(p,
					&(struct spawn_result){.keep_alive = rec.value == 1, .rest = bytes});
				return;
			}
		}
	}
}

static void on_status(struct loop_fd *w, uint32_t events, void *arg)
{
	read_status(arg);
}

void spawner_poll(struct spawner *s)
{
	for (struct spawn *p = s->first, *next; p; p = next) {
		next = p->next;
		if (p->sent && !p->has_pid)
			read_status(p);
	}
}

static struct spawn *spawn_alloc(struct spawner *s, const struct spawn_head *head, struct buf *body,
	const struct spawn_ops *ops, void *arg)
{
	struct spawn *p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct spawn){.spawner = s, .ops = ops, .arg = arg, .head = *head, .body = *body, .status = -1, .fds = {-1}, .n_fds = 1};
	*body = BUF_INIT;
	p->head.length = (uint32_t)buf_len(&p->body);
	return p;
}

struct spawn *spawn_new(struct spawner *s, const struct spawn_head *head, struct buf *body, const int *fds,
	size_t n_fds, const struct spawn_ops *ops, void *arg)
{
	struct spawn *p = NULL;
	int r = s->count >= SPAWN_MAX_WAITING    ? -EAGAIN
		: body->failed                   ? -ENOMEM
		: buf_len(body) > SPAWN_MAX_BODY ? -EMSGSIZE
						 : 0;
	if (r == 0 && !(p = spawn_alloc(s, head, body, ops, arg)))
		r = -ENOMEM;
	if (r < 0) {
		for (size_t i = 0; i < n_fds; i++)
			close(fds[i]);
		errno = -r;
		return NULL;
	}
	memcpy(p->fds + 1, fds, n_fds * sizeof(int));
	p->n_fds += n_fds;
	r = open_status(p);
	if (r == 0 && buf_len(&p->body) > SPAWN_MAX_INLINE)
		r = body_to_memfd(p);
	if (r < 0) {
		spawn_free(p);
		errno = -r;
		return NULL;
	}
	p->prev = s->last;
	*(s->last ? &s->last->next : &s->first) = p;
	s->last = p;
	s->count++;
	flush(s);
	return p;
}
