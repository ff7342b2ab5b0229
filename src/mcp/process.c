#include "mcp/process.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "config/options.h"
#include "io/chan.h"
#include "mcp/http.h"
#include "sys/confine.h"

#include <errno.h>
#include <jansson.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

enum { FD_SERVE = 3, FD_OPTIONS = 4 };
enum { CALL_THREADS = 256, CHORE_THREADS = 4, MAX_JOBS = 4096 };

/* What the loop, curl on the worker threads and the allocator use. Sockets are made for the API and for the front's requests. */
static const int allowed[] = {
	SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(recvfrom), SCMP_SYS(recvmsg), SCMP_SYS(sendto), SCMP_SYS(sendmsg), SCMP_SYS(shutdown),
	SCMP_SYS(close), SCMP_SYS(socket), SCMP_SYS(socketpair), SCMP_SYS(connect), SCMP_SYS(getsockopt), SCMP_SYS(setsockopt), SCMP_SYS(getsockname), SCMP_SYS(getpeername),
	SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait), SCMP_SYS(epoll_ctl), SCMP_SYS(timerfd_settime), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(fcntl), SCMP_SYS(ioctl),
	SCMP_SYS(eventfd2), SCMP_SYS(pipe2), SCMP_SYS(openat), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(lseek), SCMP_SYS(access), SCMP_SYS(uname),
	SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(futex), SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity),
	SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday), SCMP_SYS(nanosleep), SCMP_SYS(clock_nanosleep), SCMP_SYS(getrandom), SCMP_SYS(sysinfo), SCMP_SYS(restart_syscall),
	SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(tgkill), SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(exit), SCMP_SYS(exit_group),
};

struct process {
	struct loop *loop;
	struct options options;
	struct mcp_config config;
	struct mcp_http *http;
	struct chan *serve, *front;
	char *url; /* of the front */
	bool stopping;
};

static void on_http_closed(void *arg)
{
	struct process *p = arg;
	loop_stop(p->loop);
}

static void open_connection(struct process *p, struct chan *front, uint64_t request)
{
	int pair[2];
	struct error err = {0};
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) {
		error_errno(&err, -errno, "connection");
		chan_send_error(front, request, &err);
		return;
	}
	cleanup_fd int theirs = pair[1];
	int r = mcp_http_adopt(p->http, pair[0]);
	struct msg_stream m = {.generation = STR("")};
	if (r < 0) {
		error_errno(&err, r, "connection");
		chan_send_error(front, request, &err);
	} else {
		chan_send(front, MSG_ID_stream, &m, request, &theirs, 1, NULL);
	}
}

static void on_front_message(struct chan *c, struct chan_message *m, void *arg)
{
	if (m->header.type == MSG_ID_open_tools)
		open_connection(arg, c, m->header.request);
}

static void on_front_closed(struct chan *c, const struct error *err, void *arg)
{
	struct process *p = arg;
	if (p->front == c)
		p->front = NULL;
}

static const struct chan_ops front_ops = {on_front_message, on_front_closed, NULL};

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct process *p = arg;
	if (m->header.type == MSG_ID_peer && str_is(m->body->peer.role, "front")) {
		chan_free(p->front);
		p->front = chan_new(p->loop, steal_fd(&m->fds[0]), MSG_FROM_FRONT, CHAN_NO_FDS, &front_ops, p);
	} else if (m->header.type == MSG_ID_stop && !p->stopping) {
		p->stopping = true;
		mcp_http_close(p->http, on_http_closed, p);
	}
}

static void on_serve_closed(struct chan *c, const struct error *err, void *arg)
{
	struct process *p = arg;
	p->serve = NULL;
	loop_stop(p->loop);
}

static const struct chan_ops serve_ops = {on_message, on_serve_closed, NULL};

static int start(struct process *p, struct error *err)
{
	p->loop = loop_new();
	p->config = (struct mcp_config){.loop = p->loop, .template = "code-interpreter-v1", .lease_s = MCP_LEASE_S};
	p->config.calls = workq_new(CALL_THREADS, MAX_JOBS);
	p->config.chores = workq_new(CHORE_THREADS, MAX_JOBS);
	p->url = options_listen_url(&p->options);
	p->http = p->loop && p->config.calls && p->config.chores && p->url ? mcp_http_new(&p->config, p->url, options_domain_name(&p->options)) : NULL;
	p->serve = p->http ? chan_new(p->loop, FD_SERVE, MSG_FROM_SERVE, 0, &serve_ops, p) : NULL;
	if (!p->serve)
		return error_errno(err, -ENOMEM, "starting");
	int r = confine_syscalls(allowed, ARRAY_SIZE(allowed), err);
	struct msg_ready ready = {0};
	return r < 0 ? r : chan_send(p->serve, MSG_ID_ready, &ready, 0, NULL, 0, err);
}

int tools_main(int argc, char **argv)
{
	struct process p = {.serve = NULL};
	struct error err = {0};
	enum log_level level = LOG_INFO;
	log_setup("tools", 2, level);
	signal(SIGPIPE, SIG_IGN);
	json_object_seed(0); /* may read /dev/urandom, which is out of reach later */
	remote_init();
	int r = options_init(&p.options);
	if (r == 0)
		r = options_read_file(&p.options, "/proc/self/fd/4", true, &err);
	close(FD_OPTIONS);
	if (r == 0 && log_level_parse(str_of(p.options.log_level), &level) == 0)
		log_setup("tools", 2, level);
	cleanup_buf struct buf directory = BUF_INIT;
	buf_addf(&directory, "%s/tools", p.options.state_dir ? p.options.state_dir : "");
	if (r == 0)
		r = confine_process("user.tools", p.options.user_tools, buf_cstr(&directory), &err);
	if (r == 0)
		r = start(&p, &err);
	if (r == 0)
		r = loop_run(p.loop);
	if (r < 0)
		log_error("%s", err.code ? err.message : strerror(-r));
	fflush(NULL);
	_exit(r < 0); /* calls that are under way are not waited for */
}
