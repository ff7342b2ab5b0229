#include "sandbox/box/slot_control.h"
#include "sandbox/box/host.h"
#include "base/cleanup.h"
#include "io/chan.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Through /proc, because the path of the state directory may be longer than a socket address. */
static struct sockaddr_un control_address(const struct host *h, const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%s", h->control, name);
	return a;
}

int slot_connect(const struct host *h, const char *name, struct error *err)
{
	struct sockaddr_un a = control_address(h, name);
	struct timeval limit = {.tv_sec = ANSWER_SECONDS};
	int on = 1;
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return error_errno(err, -errno, "control socket %s", name);
	return steal_fd(&fd);
}

int slot_connect_monitor(const struct host *h, const struct slot *s)
{
	struct sockaddr_un a = control_address(h, s->monitor_name);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return -errno;
	return steal_fd(&fd);
}

/* Much room: a monitor that is frozen takes nobody's connection, and each start of node brings one more. */
int slot_listen(const struct host *h, const char *name, struct error *err)
{
	struct sockaddr_un a = control_address(h, name);
	unlinkat(h->control, name, 0);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, SOMAXCONN) < 0)
		return error_errno(err, -errno, "control socket %s", name);
	return steal_fd(&fd);
}

void slot_unlisten(const struct host *h, const struct slot *s)
{
	unlinkat(h->control, s->name, 0);
	unlinkat(h->control, s->monitor_name, 0);
}

int slot_receive(int conn, char *storage, struct msg_header *header, union msg_any *any, pid_t *ret_sender, struct error *err)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec iov = {storage, MSG_MAX};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n;
	do
		n = recvmsg(conn, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return error_set(err, n < 0 ? -errno : -EPIPE, 500, "cubicle-init: %s", n < 0 ? strerror(errno) : "it closed its control connection");
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	pid_t sender = 0;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
		struct ucred cred;
		memcpy(&cred, CMSG_DATA(c), sizeof(cred));
		sender = cred.pid;
	}
	int r = msg_decode(str_n(storage, (size_t)n), header, any, sizeof(*any), err);
	if (r == 0 && !(msg_type(header->type)->directions & MSG_FROM_INIT))
		r = error_set(err, -EPROTO, 500, "cubicle-init sent %s", msg_type(header->type)->name);
	if (r == 0 && header->type == MSG_ID_error)
		r = error_set(err, -EPROTO, 500, "cubicle-init: %.*s", STR_FMT(any->error.message));
	*ret_sender = sender;
	return r;
}

int slot_expect(struct slot *s, char *storage, enum msg_id type, union msg_any *any, pid_t *ret_sender, struct error *err)
{
	struct msg_header header;
	int r = slot_receive(s->conn, storage, &header, any, ret_sender, err);
	if (r == 0 && header.type != type)
		r = error_set(err, -EPROTO, 500, "cubicle-init sent %s instead of %s", msg_type(header.type)->name, msg_type(type)->name);
	return r;
}

int slot_say(struct slot *s, enum msg_id type, const void *m, struct error *err)
{
	return msg_send_fd(s->conn, type, m, 0, NULL, 0, err);
}

int slot_greet(struct slot *s, char *storage, union msg_any *any, struct error *err)
{
	struct msg_hello hello = {.version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION};
	pid_t sender;
	int r = slot_say(s, MSG_ID_hello, &hello, err);
	if (r == 0)
		r = slot_expect(s, storage, MSG_ID_init_state, any, &sender, err);
	if (r == 0 && (any->init_state.version_max < MSG_VERSION_OLDEST || any->init_state.version_min > MSG_VERSION))
		r = error_set(err, -EPROTONOSUPPORT, 500, "cubicle-init of slot %u speaks versions %llu to %llu", s->number,
			(unsigned long long)any->init_state.version_min, (unsigned long long)any->init_state.version_max);
	s->knows_still = r == 0 && msg_has(&any->init_state, init_state, still);
	return r;
}

