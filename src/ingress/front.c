#include "ingress/front.h"

#include "api/api.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "ingress/ingress.h"
#include "ingress/page.h"
#include "ingress/upstream.h"
#include "io/chan.h"
#include "io/json.h"
#include "io/tls.h"
#include "sys/confine.h"

#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* docs/architecture.md, "Descriptors at start" */
enum { FD_SERVE = 3, FD_OPTIONS = 4, FD_PUBLIC = 5, FD_ADMIN = 6, FD_TLS = 7 /* with listen.tls; then that of metrics.listen */ };
enum { WORKERS = 4, MAX_JOBS = 4096, MAX_CONNECTIONS = 100000, MAX_MONITORS = 64 };

/* Clients wait in the backlog until the index is there: after a restart of this process they see a pause and no error. A node that stays away is told as such. */
#define INDEX_PATIENCE (3 * NS_PER_S)
#define INDEX_CHECK (5 * NS_PER_MS)
#define STOP_PATIENCE (5 * NS_PER_S)
#define STOP_CHECK (20 * NS_PER_MS)

/* After its start nothing may be executed, no process or thread made, no socket opened. */
/* What the loop, the worker threads, SQLite and the allocator use. */
static const int allowed[] = {
	/* sockets and the loop */
	SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(recvfrom), SCMP_SYS(recvmsg), SCMP_SYS(sendto),
	SCMP_SYS(sendmsg), SCMP_SYS(accept4), SCMP_SYS(shutdown), SCMP_SYS(close), SCMP_SYS(getsockopt), SCMP_SYS(setsockopt),
	SCMP_SYS(getsockname), SCMP_SYS(getpeername), SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait), SCMP_SYS(epoll_ctl),
	SCMP_SYS(timerfd_settime), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(fcntl),
	/* SQLite's files */
	SCMP_SYS(openat), SCMP_SYS(pread64), SCMP_SYS(pwrite64), SCMP_SYS(lseek), SCMP_SYS(fsync), SCMP_SYS(fdatasync), SCMP_SYS(ftruncate),
	SCMP_SYS(fallocate), SCMP_SYS(fstat), SCMP_SYS(fstatfs), SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(access),
	SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(unlink), SCMP_SYS(unlinkat), SCMP_SYS(readlink), SCMP_SYS(readlinkat),
	SCMP_SYS(getcwd), SCMP_SYS(fchmod), SCMP_SYS(fchown),
	/* specifications of builds (api/template_builds.h) */
	SCMP_SYS(memfd_create),
	/* memory, threads, time */
	SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(futex),
	SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday), SCMP_SYS(nanosleep),
	SCMP_SYS(clock_nanosleep), SCMP_SYS(getrandom), SCMP_SYS(sysinfo), SCMP_SYS(restart_syscall),
	/* one's own */
	SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(getrlimit),
	SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack), SCMP_SYS(tgkill),
	SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(exit), SCMP_SYS(exit_group),
};

struct front {
	struct loop *loop;
	struct options options;
	struct workq *workq;
	struct sandbox_index *index;
	struct node_client *node;
	struct api *api;
	struct ingress *ingress;
	struct tools *tools;
	struct http_server *public, *admin, *metrics;
	struct tls_server *tls; /* of new connections to FD_TLS; NULL without listen.tls */
	struct chan *serve;
	struct loop_timer *timer;
	int64_t deadline; /* CLOCK_BOOTTIME: of waiting for the index, then of stopping */
	bool listening, ready, stopping;
};

static void take_request(struct front *f, struct http_req *r, bool admin)
{
	struct route route;
	route_request(r->head, &route);
	if (route.kind == ROUTE_API && !admin && str_is(r->head->path, "/mcp"))
		ingress_handle_tools(f->ingress, r);
	else if (route.kind == ROUTE_API)
		api_handle(f->api, r, admin);
	else if (route.kind == ROUTE_SANDBOX)
		ingress_handle(f->ingress, r, &route);
	else
		page_respond(r, &(struct page){.status = 400, .message = route.why});
}

static void on_public_request(struct http_req *r, void *arg)
{
	take_request(arg, r, false);
}

/* Sandboxes too: the command line reaches them wherever the public listener is. */
static void on_admin_request(struct http_req *r, void *arg)
{
	take_request(arg, r, true);
}

static void on_metrics_request(struct http_req *r, void *arg)
{
	struct front *f = arg;
	api_handle_metrics(f->api, r);
}

static unsigned connections(void *arg)
{
	struct front *f = arg;
	return http_server_connections(f->public);
}

static bool own_key(struct str value, void *arg)
{
	struct front *f = arg;
	return api_key_valid(f->api, value);
}

static void start_listening(struct front *f)
{
	int r = http_server_listen(f->public, FD_PUBLIC);
	if (r == 0)
		r = http_server_listen(f->admin, FD_ADMIN);
	if (r == 0 && *f->options.listen_tls)
		r = http_server_listen_with(f->public, FD_TLS, tls_accept, &f->tls);
	if (r == 0 && *f->options.metrics_listen)
		r = http_server_listen(f->metrics, *f->options.listen_tls ? FD_TLS + 1 : FD_TLS);
	if (r < 0) {
		log_error("listening: %s", strerror(-r));
		loop_stop(f->loop);
		return;
	}
	f->listening = true;
}

static void await_index(struct front *f)
{
	bool known = index_ready(f->index);
	/* serve sends the certificates before anything else can be known. */
	if (!f->listening && (known || clock_boottime() >= f->deadline))
		start_listening(f);
	if (known && !f->ready && f->serve) {
		struct msg_ready ready = {0};
		f->ready = chan_send(f->serve, MSG_ID_ready, &ready, 0, NULL, 0, NULL) == 0;
	}
	if (!known)
		loop_timer_in(f->timer, INDEX_CHECK);
}

static void await_end(struct front *f)
{
	bool busy = http_server_connections(f->public) || http_server_connections(f->admin) || http_server_connections(f->metrics);
	if (!busy || clock_boottime() >= f->deadline)
		loop_stop(f->loop);
	else
		loop_timer_in(f->timer, STOP_CHECK);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct front *f = arg;
	if (f->stopping)
		await_end(f);
	else
		await_index(f);
}

static int take_certificates(struct front *f, int fd, struct error *err)
{
	struct stat st;
	struct tls_server *tls = NULL;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "certificates");
	if (st.st_size > TLS_MAX_PEM)
		return error_errno(err, -EFBIG, "certificates");
	size_t n = (size_t)st.st_size;
	cleanup_free char *text = malloc(n + 1);
	if (!text)
		return error_errno(err, -ENOMEM, "certificates");
	/* The descriptor's position is serve's as well. */
	int r = pread(fd, text, n, 0) == (ssize_t)n ? tls_server_new(str_n(text, n), &tls, err) : error_errno(err, -EIO, "certificates");
	explicit_bzero(text, n);
	if (r < 0)
		return r;
	tls_server_unref(f->tls);
	f->tls = tls;
	return 0;
}

/* Asks serve, which reads files that are root's. */
static int ask_for_certificates(void *arg, struct error *err)
{
	struct front *f = arg;
	struct msg_reload_certificates m = {0};
	return f->serve ? chan_send(f->serve, MSG_ID_reload_certificates, &m, 1, NULL, 0, err) : error_errno(err, -EPIPE, "serve");
}

static void on_certificates(struct front *f, struct chan_message *m)
{
	struct error err = {0};
	if (take_certificates(f, m->fds[0], &err) < 0)
		log_error("certificates: %s", err.message);
	if (m->header.request)
		api_certificates_reloaded(f->api, err.code ? &err : NULL, f->tls);
}

static void on_error(struct front *f, const struct msg_error *m)
{
	struct error err = {.code = (int)m->code, .status = (int)m->status};
	snprintf(err.message, sizeof(err.message), "%.*s", STR_FMT(m->message));
	api_certificates_reloaded(f->api, &err, f->tls);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct front *f = arg;
	struct error err = {0};
	if (m->header.type == MSG_ID_peer && str_is(m->body->peer.role, "node")) {
		int r = node_client_attach(f->node, steal_fd(&m->fds[0]));
		if (r < 0)
			log_error("the node's channel: %s", strerror(-r));
	} else if (m->header.type == MSG_ID_peer && str_is(m->body->peer.role, "tools")) {
		int r = tools_attach(f->tools, steal_fd(&m->fds[0]));
		if (r < 0)
			log_error("the channel to the MCP server: %s", strerror(-r));
	} else if (m->header.type == MSG_ID_first_key) {
		if (api_first_key(f->api, &m->body->first_key, &err) < 0)
			log_error("the first key: %s", err.message);
	} else if (m->header.type == MSG_ID_certificates) {
		on_certificates(f, m);
	} else if (m->header.type == MSG_ID_error) {
		on_error(f, &m->body->error);
	} else if (m->header.type == MSG_ID_stop && !f->stopping) {
		f->stopping = true;
		f->deadline = clock_boottime() + STOP_PATIENCE;
		http_server_drain(f->public);
		http_server_drain(f->admin);
		http_server_drain(f->metrics);
		await_end(f);
	}
}

static void on_serve_closed(struct chan *c, const struct error *err, void *arg)
{
	struct front *f = arg;
	f->serve = NULL;
	loop_stop(f->loop);
}

static const struct chan_ops serve_ops = {on_message, on_serve_closed};

static int read_options(struct options *o, struct error *err)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", FD_OPTIONS);
	if (options_init(o) < 0)
		return error_errno(err, -ENOMEM, "options");
	int r = options_read_file(o, path, true, err);
	close(FD_OPTIONS);
	return r;
}

/* Each may need a second descriptor into a sandbox. Without one left, a descriptor from node would be lost and its channel with it. */
static unsigned max_connections(void)
{
	enum { OTHERS = 128 + UPSTREAM_IDLE_MAX };
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur <= 2 * OTHERS)
		return OTHERS / 4;
	return (unsigned)MIN((files.rlim_cur - OTHERS) / 2, (rlim_t)MAX_CONNECTIONS);
}

static int start(struct front *f, struct error *err)
{
	f->loop = loop_new();
	f->workq = workq_new(WORKERS, MAX_JOBS);
	f->index = f->loop ? index_new() : NULL;
	f->node = f->index ? node_client_new(f->loop, f->index) : NULL;
	f->tools = f->node ? tools_new(f->loop) : NULL;
	f->timer = f->tools ? loop_timer_new(f->loop, on_timer, f) : NULL;
	if (!f->workq || !f->timer)
		return error_errno(err, -ENOMEM, "starting");
	/* "/" is the front's own directory by now. */
	struct api_config api = {.loop = f->loop, .workq = f->workq, .options = &f->options, .index = f->index, .node = f->node, .directory = "/",
		.reload_certificates = ask_for_certificates, .connections = connections, .arg = f};
	int r = api_new(&api, &f->api, err);
	if (r < 0)
		return r;
	struct ingress_config ingress = {.loop = f->loop, .index = f->index, .node = f->node, .quota = api_quota(f->api), .tools = f->tools, .own_key = own_key, .arg = f,
		.connection_limit = (unsigned)f->options.ingress_connections};
	struct http_server_config public = {.on_request = on_public_request, .arg = f, .max_connections = max_connections()};
	struct http_server_config admin = {.on_request = on_admin_request, .arg = f};
	struct http_server_config metrics = {.on_request = on_metrics_request, .arg = f, .max_connections = MAX_MONITORS};
	f->ingress = ingress_new(&ingress);
	f->public = http_server_new(f->loop, &public);
	f->admin = http_server_new(f->loop, &admin);
	f->metrics = http_server_new(f->loop, &metrics);
	f->serve = chan_new(f->loop, FD_SERVE, MSG_FROM_SERVE, 0, &serve_ops, f);
	if (!f->ingress || !f->public || !f->admin || !f->metrics || !f->serve)
		return error_errno(err, -ENOMEM, "starting");
	return confine_syscalls(allowed, ARRAY_SIZE(allowed), err);
}

/* In this order: requests end before what they hang on. */
static void finish(struct front *f)
{
	http_server_free(f->public);
	http_server_free(f->admin);
	http_server_free(f->metrics);
	if (f->loop)
		loop_turn(f->loop, 0); /* what was put off to the end of a turn, and work that is done */
	workq_free(f->workq);
	ingress_free(f->ingress);
	tools_free(f->tools);
	api_free(f->api);
	node_client_free(f->node);
	index_free(f->index);
	chan_free(f->serve);
	loop_free(f->loop);
	tls_server_unref(f->tls);
	options_done(&f->options);
}

int front_main(int argc, char **argv)
{
	struct front f = {0};
	struct error err = {0};
	enum log_level level = LOG_INFO;
	log_setup("front", 2, level);
	signal(SIGPIPE, SIG_IGN);
	json_object_seed(0); /* may read /dev/urandom, which is out of reach later */
	int r = read_options(&f.options, &err);
	if (r == 0 && log_level_parse(str_of(f.options.log_level), &level) == 0)
		log_setup("front", 2, level);
	cleanup_buf struct buf directory = BUF_INIT;
	buf_addf(&directory, "%s/front", f.options.state_dir ? f.options.state_dir : "");
	if (r == 0)
		r = confine_process("user.front", f.options.user_front, buf_cstr(&directory), &err);
	if (r == 0)
		r = start(&f, &err);
	if (r == 0) {
		f.deadline = clock_boottime() + INDEX_PATIENCE;
		await_index(&f);
		r = loop_run(f.loop);
		if (r < 0)
			error_errno(&err, r, "loop");
	}
	if (r < 0)
		log_error("%s", err.message);
	finish(&f);
	return r < 0 ? 1 : 0;
}
