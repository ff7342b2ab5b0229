/*
 * Polled watchers. Each is a process that lives in the sandbox between the calls (in the work cgroup, a child
 * of PID 1 as the workers are). It listens on an abstract socket that carries its id; whoever serves a later
 * call connects to that. Both sides look at the other's uid, since any process of the sandbox may use such
 * names. One question is a byte; the answer is a byte, 0 or a code, and text to the end of file.
 */
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "guest/filesystem_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>

enum { ID_RANDOM = 20, ASK_EVENTS = 'e', ASK_END = 'r', PEER_PATIENCE_S = 10, ROUNDS = 256 };

static const char PREFIX[] = "cubicle-watch-";

static socklen_t address_of(struct sockaddr_un *to, struct str id)
{
	*to = (struct sockaddr_un){.sun_family = AF_UNIX};
	int n = snprintf(to->sun_path + 1, sizeof(to->sun_path) - 1, "%s%.*s", PREFIX, STR_FMT(id));
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Nobody but this user's processes takes part. */
static bool is_ours(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void set_patience(int fd)
{
	struct timeval t = {.tv_sec = PEER_PATIENCE_S};
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
}

/* ---- the watcher ---- */

struct watcher {
	struct watch_request watch; /* without a watch once that failed */
	struct buf events;          /* comma-separated */
	int failure;                /* negative errno, told when the events before it were */
};

static void on_event(enum watch_op op, struct str name, void *arg)
{
	struct watcher *w = arg;
	if (w->failure)
		return;
	if (buf_len(&w->events) >= WATCHER_MAX_BYTES) {
		w->failure = -EOVERFLOW;
		return;
	}
	size_t before = buf_len(&w->events);
	if (before)
		buf_add_c(&w->events, ",");
	watch_event_add(&w->watch, &w->events, op, name);
	if (w->events.failed) {
		/* What is whole can still be had. */
		w->events.failed = false;
		w->events.end = w->events.start + before;
		w->failure = -ENOMEM;
	}
}

/* What the queue holds, within bounds: somebody may be filling it without end. */
static void take_events(struct watcher *w)
{
	for (int i = 0; i < ROUNDS && w->failure == 0; i++) {
		int r = watch_request_read(&w->watch, on_event, w);
		if (r < 0 && w->failure == 0)
			w->failure = r;
		if (r <= 0)
			break;
	}
	if (w->failure && w->watch.watch) {
		watch_free(w->watch.watch);
		w->watch.watch = NULL;
	}
}

static bool send_answer(int fd, enum connect_code code, struct str text)
{
	char first = (char)code;
	return fd_write_all(fd, &first, 1) == 0 && fd_write_all(fd, text.p, text.n) == 0;
}

/* One caller. */
static void answer(struct watcher *w, int listener)
{
	cleanup_fd int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	char what;
	if (fd < 0 || !is_ours(fd))
		return;
	set_patience(fd);
	if (recv(fd, &what, 1, 0) != 1)
		return;
	if (what == ASK_END) {
		send_answer(fd, 0, STR(""));
		_exit(0);
	}
	take_events(w);
	if (w->failure && buf_len(&w->events) == 0) {
		const char *text;
		enum connect_code code = watch_failure(w->failure, &text);
		send_answer(fd, code, str_of(text));
	} else if (send_answer(fd, 0, buf_str(&w->events))) {
		buf_done(&w->events);
	}
}

static _Noreturn void be_watcher(const struct watch_request *q, int listener)
{
	struct watcher w = {.watch = *q};
	int keep[2] = {MIN(listener, watch_fd(q->watch)), MAX(listener, watch_fd(q->watch))};
	fd_close_all_except(3, keep, 2);
	prctl(PR_SET_NAME, "cubicle-watch");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		struct pollfd p[2] = {{.fd = listener, .events = POLLIN},
			{.fd = w.watch.watch ? watch_fd(w.watch.watch) : -1, .events = POLLIN}};
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			_exit(1);
		if (p[1].revents)
			take_events(&w);
		if (p[0].revents)
			answer(&w, listener);
	}
}

/* ---- the calls ---- */

/* Those whose sockets are there. Where that cannot be read the kernel's limit of inotify instances is the
 * only one. */
static size_t count_watchers(void)
{
	cleanup_buf struct buf text = BUF_INIT;
	char wanted[32];
	size_t count = 0;
	if (file_read(AT_FDCWD, "/proc/self/net/unix", 16 * 1024 * 1024, &text) < 0)
		return 0;
	int n = snprintf(wanted, sizeof(wanted), " @%s", PREFIX);
	struct str rest = buf_str(&text);
	for (const char *at; (at = memmem(rest.p, rest.n, wanted, (size_t)n)); count++)
		rest = str_from(rest, (size_t)(at - rest.p) + (size_t)n);
	return count;
}

static int listen_as(struct str id)
{
	struct sockaddr_un address;
	socklen_t size = address_of(&address, id);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, 128) < 0)
		return -errno;
	return steal_fd(&fd);
}

int filesystem_create_watcher(struct filesystem_call *q)
{
	char id[1 + ID_RANDOM + 1] = "w";
	struct watch_request watch;
	if (count_watchers() >= WATCHERS_MAX)
		return files_fail_rpc(q->call, CONNECT_RESOURCE_EXHAUSTED,
			"%d watchers are there already; remove some", WATCHERS_MAX);
	int r = watch_request_open(q, &watch);
	if (r < 0)
		return r;
	random_text(id + 1, ID_RANDOM, "0123456789abcdefghijklmnopqrstuvwxyz");
	id[1 + ID_RANDOM] = '\0';
	cleanup_fd int listener = listen_as(str_of(id));
	/* A child of PID 1, as this process is; raw, because glibc's fork() cannot say so. */
	long pid = listener < 0 ? -1 : syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, NULL, NULL, 0);
	if (pid == 0)
		be_watcher(&watch, listener);
	int error = listener < 0 ? listener : -errno;
	watch_request_done(&watch);
	if (pid < 0)
		return files_fail_rpc(q->call, CONNECT_RESOURCE_EXHAUSTED, "cannot start a watcher: %s",
			error == -EAGAIN ? "the sandbox's limit of processes is reached" : strerror(-error));
	q->watcher = (pid_t)pid;
	return buf_addf(&q->answer, "{\"watcherId\":\"%s\"}", id);
}

static bool is_id(struct str s)
{
	if (s.n != 1 + ID_RANDOM || s.p[0] != 'w')
		return false;
	for (size_t i = 1; i < s.n; i++)
		if (!(s.p[i] >= '0' && s.p[i] <= '9') && !(s.p[i] >= 'a' && s.p[i] <= 'z'))
			return false;
	return true;
}

static int connect_to(struct str id)
{
	struct sockaddr_un address;
	socklen_t size = address_of(&address, id);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	set_patience(fd);
	if (connect(fd, (struct sockaddr *)&address, size) < 0)
		return -errno;
	return is_ours(fd) ? steal_fd(&fd) : -ECONNREFUSED;
}

/* The answer to the end of file, without its first byte, which is returned; or a negative errno. */
static int exchange(int fd, char what, struct buf *ret)
{
	unsigned char code;
	/* One event may go over the watcher's limit. */
	const size_t max = WATCHER_MAX_BYTES + 64 * 1024;
	if (send(fd, &what, 1, MSG_NOSIGNAL) != 1)
		return -errno;
	ssize_t n = recv(fd, &code, 1, 0);
	if (n != 1)
		return n == 0 ? -EPIPE : -errno;
	while (buf_len(ret) <= max) {
		char *to = buf_reserve(ret, 64 * 1024);
		if (!to)
			return -ENOMEM;
		n = recv(fd, to, 64 * 1024, 0);
		if (n == 0)
			return code;
		if (n < 0 && errno != EINTR)
			return -errno;
		buf_commit(ret, (size_t)MAX(n, 0));
	}
	return -EMSGSIZE;
}

/* Asks the watcher of the message. */
static int ask(struct filesystem_call *q, char what, struct buf *ret)
{
	const json_t *value = json_object_get(q->message, "watcherId");
	struct str id = json_str(value ? value : json_object_get(q->message, "watcher_id"));
	int fd = is_id(id) ? connect_to(id) : -ECONNREFUSED;
	int code = fd < 0 ? fd : exchange(fd, what, ret);
	if (fd >= 0)
		close(fd);
	if (code == -ECONNREFUSED || code == -EPIPE || code == -ECONNRESET)
		return files_fail_rpc(q->call, CONNECT_NOT_FOUND, "watcher with id %.*s not found",
			(int)MIN(id.n, 64), id.p);
	if (code < 0)
		return files_fail_rpc(
			q->call, CONNECT_INTERNAL, "the watcher does not answer: %s", strerror(-code));
	if (code > CONNECT_UNAUTHENTICATED)
		return files_fail_rpc(q->call, CONNECT_INTERNAL, "the watcher's answer is broken");
	return code == 0 ? 0
			 : files_fail_rpc(q->call, (enum connect_code)code, "%.*s",
				   (int)MIN(buf_len(ret), 1000), buf_str(ret).p);
}

int filesystem_get_watcher_events(struct filesystem_call *q)
{
	cleanup_buf struct buf events = BUF_INIT;
	int r = ask(q, ASK_EVENTS, &events);
	if (r < 0)
		return r;
	buf_add_c(&q->answer, "{\"events\":[");
	buf_add_str(&q->answer, buf_str(&events));
	return buf_add_c(&q->answer, "]}");
}

int filesystem_remove_watcher(struct filesystem_call *q)
{
	cleanup_buf struct buf nothing = BUF_INIT;
	int r = ask(q, ASK_END, &nothing);
	return r < 0 ? r : buf_add_c(&q->answer, "{}");
}
