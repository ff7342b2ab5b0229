#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/command.h"
#include "guest/files.h"
#include "guest/guest.h"
#include "guest/machine.h"
#include "guest/spawn.h"
#include "io/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

struct request {
	struct spawn_head head;
	char inline_body[SPAWN_MAX_INLINE];
	int fds[SPAWN_MAX_FDS];
	size_t n_fds;
};

/* Takes no memory of ours: it has to work when there is none. 0 or -errno (-ENOMEM: the pipe's page is charged to the sandbox). */
static int put_record(int status, enum spawn_record_kind kind, int value, struct str bytes)
{
	struct spawn_record h = {kind, value, (uint32_t)bytes.n};
	int r = fd_write_all(status, &h, sizeof(h));
	return r == 0 && bytes.n ? fd_write_all(status, bytes.p, bytes.n) : r;
}

void spawn_fail(int status, enum connect_code code, const char *fmt, ...)
{
	char text[2048];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	put_record(status, SPAWN_FAILED, (int)code, str_n(text, MIN((size_t)MAX(n, 0), sizeof(text) - 1)));
	_exit(127);
}

/* The body as it is, or mapped from the memfd (copied on write): the process ends or executes soon, so nobody
 * unmaps it. */
static char *body_of(struct request *q)
{
	if (q->head.length <= sizeof(q->inline_body))
		return q->inline_body;
	void *p = mmap(NULL, q->head.length, PROT_READ | PROT_WRITE, MAP_PRIVATE, q->fds[q->n_fds - 1], 0);
	return p == MAP_FAILED ? NULL : p;
}

static const char *take_string(char **at)
{
	const char *s = *at;
	*at += strlen(s) + 1;
	return s;
}

static void run_files(struct request *q, char *body)
{
	int status = q->fds[0];
	char *at = body;
	const char *user = take_string(&at), *workdir = take_string(&at);
	struct files_request f = {
		.conn = q->fds[1],
		.head_bytes = str_n(at, q->head.n_head),
		.rest = str_n(at + q->head.n_head, q->head.length - (size_t)(at - body) - q->head.n_head),
		.default_user = *user ? user : NULL,
		.default_workdir = *workdir ? workdir : NULL,
	};
	prctl(PR_SET_NAME, "cubicle-files");
	struct buf rest = BUF_INIT;
	bool keep = false;
	int r = files_worker(&f, &rest, &keep);
	keep = keep && r == 0 && buf_len(&rest) <= SPAWN_MAX_RECORD;
	put_record(status, SPAWN_SERVED, keep, keep ? buf_str(&rest) : STR(""));
	_exit(0);
}

/* In the new process. */
static _Noreturn void run_child(struct request *q, int socket)
{
	int status = q->fds[0];
	close(socket);
	signal(SIGPIPE, SIG_IGN);
	/* Without the pid nobody would know of it, and it will be asked for again: it must not run. */
	if (put_record(status, SPAWN_PID, getpid(), STR("")) < 0)
		_exit(127);
	char *body = body_of(q);
	if (!body)
		spawn_fail(
			status, CONNECT_RESOURCE_EXHAUSTED, "cannot start the process: %s", strerror(errno));
	if (q->head.kind == SPAWN_FILES)
		run_files(q, body);
	else
		command_run(&q->head, body, status, q->fds + 1);
	_exit(127);
}

static void start(struct request *q, int socket)
{
	/* PID 1 becomes the parent, so it reaps; raw, because glibc's fork() cannot say so. There is one
	 * thread, and no memory is shared. */
	long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, NULL, NULL, 0);
	if (pid == 0)
		run_child(q, socket);
	if (pid > 0)
		return;
	int e = errno;
	char text[256];
	snprintf(text, sizeof(text),
		e == EAGAIN ? "the sandbox's limit of processes is reached" : "cannot start a process: %s",
		strerror(e));
	/* Memory of processes that have just been killed comes back. */
	put_record(q->fds[0], e == ENOMEM ? SPAWN_AGAIN : SPAWN_FAILED, CONNECT_RESOURCE_EXHAUSTED, str_of(text));
}

static void confine(struct request *q, int socket)
{
	struct error err = {0};
	struct str filter = str_n(q->inline_body, q->head.n_filter);
	struct msg_list caps = {str_n(q->inline_body + q->head.n_filter, q->head.length - q->head.n_filter)};
	int r = guest_confine(filter, caps, q->head.flags != 0, &err);
	struct iovec iov[2] = {{&r, sizeof(r)}, {err.message, r < 0 ? strlen(err.message) : 0}};
	struct msghdr h = {.msg_iov = iov, .msg_iovlen = 2};
	sendmsg(socket, &h, MSG_NOSIGNAL);
	if (r < 0)
		_exit(1);
}

static void close_fds(struct request *q)
{
	for (size_t i = 0; i < q->n_fds; i++)
		close(q->fds[i]);
	q->n_fds = 0;
}

/* One request: false at end of file. Without any descriptor when not all of them could be taken. */
static bool receive(int socket, struct request *q)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * SPAWN_MAX_FDS)];
	} control;
	struct iovec iov[2] = {{&q->head, sizeof(q->head)}, {q->inline_body, sizeof(q->inline_body)}};
	struct msghdr h = {.msg_iov = iov,
		.msg_iovlen = 2,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n;
	do
		n = recvmsg(socket, &h, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	q->n_fds = 0;
	if (n <= 0)
		return false;
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		q->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(q->fds, CMSG_DATA(c), q->n_fds * sizeof(int));
	}
	if (h.msg_flags & MSG_CTRUNC)
		close_fds(q);
	return true;
}

/* What commands inherit: PID 1's own limits are for its many connections. */
static void set_limits(void)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
		l.rlim_cur = MIN(l.rlim_max, (rlim_t)65536);
		setrlimit(RLIMIT_NOFILE, &l);
	}
	/* No cores, also where the host pipes them to a program: only a limit of 1 byte keeps the kernel from starting that (core(5)). The filter keeps it there. */
	setrlimit(RLIMIT_CORE, &(struct rlimit){1, 1});
}

void spawner_run(int socket)
{
	static struct request q;
	fd_close_all_except(3, (int[]){socket}, 1);
	fd_set_nonblock(socket, false);
	prctl(PR_SET_NAME, "cubicle-spawn");
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* A command that ends between two writes of its status must not take the spawner with it. */
	signal(SIGPIPE, SIG_IGN);
	set_limits();
	while (receive(socket, &q)) {
		if (q.head.kind == SPAWN_CONFINE)
			confine(&q, socket);
		else if (q.n_fds)
			start(&q, socket);
		close_fds(&q);
	}
	_exit(0);
}

void spawner_begin(int node, int socket)
{
	/* Before node is told: what it attaches is attached. */
	int r = machine_join_work();
	if (r < 0)
		log_error("the spawner cannot join the cgroup of commands: %s", strerror(-r));
	if (r < 0 || msg_send_fd(node, MSG_ID_spawner, &(struct msg_spawner){0}, 0, NULL, 0, NULL) < 0)
		_exit(1);
	spawner_run(socket);
}

int spawner_confine(int socket, struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err)
{
	struct spawn_head head = {.kind = SPAWN_CONFINE, .flags = no_setuid, .n_filter = (uint32_t)seccomp.n};
	head.length = (uint32_t)(seccomp.n + drop_caps.raw.n);
	struct iovec iov[3] = {
		{&head, sizeof(head)},
		{(void *)(uintptr_t)seccomp.p, seccomp.n},
		{(void *)(uintptr_t)drop_caps.raw.p, drop_caps.raw.n},
	};
	struct msghdr h = {.msg_iov = iov, .msg_iovlen = 3};
	if (head.length > SPAWN_MAX_INLINE)
		return error_set(err, -EMSGSIZE, 500, "the seccomp filter is too long");
	if (sendmsg(socket, &h, MSG_NOSIGNAL) < 0)
		return error_errno(err, -errno, "asking the spawner to confine itself");
	return 0;
}

int spawner_confined(int socket, struct error *err)
{
	struct {
		int r;
		char message[480];
	} answer;
	ssize_t n;
	do
		n = recv(socket, &answer, sizeof(answer), 0);
	while (n < 0 && errno == EINTR);
	if (n < (ssize_t)sizeof(answer.r))
		return error_set(err, -EPIPE, 500, "the spawner died while it confined itself");
	if (answer.r < 0)
		return error_set(err, answer.r, 500, "the spawner cannot confine itself: %.*s",
			(int)((size_t)n - sizeof(answer.r)), answer.message);
	return 0;
}
