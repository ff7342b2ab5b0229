#include "guest/envd.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/cors.h"
#include "guest/files.h"
#include "guest/machine.h"
#include "guest/process.h"
#include "guest/ready.h"
#include "guest/services.h"
#include "guest/workers.h"
#include "io/envd_auth.h"
#include "vmm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <linux/vm_sockets.h>

#define COMMAND_OOM_SCORE "500"

static const char *const no_store = "Cache-Control: no-store\r\n";

static void get_health(struct envd *e, struct http_req *r)
{
	http_respond(r, 204, NULL, no_store, STR(""));
}

static void get_envs(struct envd *e, struct http_req *r)
{
	cleanup_buf struct buf out = BUF_INIT;
	struct str rest = buf_str(&e->identity->envs), name, value;
	bool first = true;
	buf_add_c(&out, "{");
	while (msg_map_next(&rest, &name, &value)) {
		buf_add_c(&out, first ? "" : ",");
		json_quote(&out, name);
		buf_add_c(&out, ":");
		json_quote(&out, value);
		first = false;
	}
	buf_add_c(&out, "}");
	if (out.failed)
		http_respond_error(r, 503, "no memory");
	else
		http_respond(r, 200, "application/json", no_store, buf_str(&out));
}

static void get_metrics(struct envd *e, struct http_req *r)
{
	cleanup_buf struct buf out = BUF_INIT;
	int x = metrics_json(e->cgroup, e->proc, &e->sample, &out);
	if (x < 0)
		http_respond_error(r, 500, "metrics: %s", strerror(-x));
	else
		http_respond(r, 200, "application/json", no_store, buf_str(&out));
}

static void get_services(struct envd *e, struct http_req *r)
{
	cleanup_buf struct buf out = BUF_INIT;
	services_json(e->services, &out);
	if (out.failed)
		http_respond_error(r, 503, "no memory");
	else
		http_respond(r, 200, "application/json", no_store, buf_str(&out));
}

static const struct route {
	const char *path;
	void (*get)(struct envd *e, struct http_req *r);
	bool open; /* no token wanted */
} routes[] = {
	{"/health", get_health, true},
	{"/metrics", get_metrics, false},
	{"/envs", get_envs, false},
	{"/services", get_services, false},
};

static bool allowed(const struct envd *e, struct http_req *r)
{
	const char *token = e->identity->token;
	if (!token || str_eq_secret(http_value(r->head, "X-Access-Token"), str_of(token)))
		return true;
	http_respond_error(r, 401,
		"unauthorized access, please provide a valid access token or method signing if supported");
	return false;
}

static bool files_allowed(const struct envd *e, struct http_req *r)
{
	const char *message;
	const char *token = e->identity->token;
	int status = envd_auth_refusal(r->head, token ? str_of(token) : STR(""), &message);
	if (status)
		http_respond_error(r, status, "%s", message);
	return !status;
}

static void wrong_method(struct http_req *r, const char *allow)
{
	cleanup_buf struct buf header = BUF_INIT;
	buf_addf(&header, "Allow: %s\r\n", allow);
	http_respond(r, 405, "application/json", buf_cstr(&header),
		STR("{\"code\":405,\"message\":\"method not allowed\"}"));
}

/* For any path, as the reference does: what the request itself may do is settled when it comes. */
static void preflight(struct http_req *r)
{
	cleanup_buf struct buf headers = BUF_INIT;
	cors_add_preflight(r->head, &headers);
	const char *lines = buf_cstr(&headers);
	if (headers.failed || !lines)
		http_respond_error(r, 503, "no memory");
	else
		http_respond(r, 204, NULL, lines, STR(""));
}

static void on_request(struct http_req *r, void *arg)
{
	struct envd *e = arg;
	const struct http_head *h = r->head;
	const struct str processes = STR("/process.Process/");
	if (str_is(h->method, "OPTIONS")) {
		preflight(r);
		return;
	}
	if (files_serves(h)) {
		if (files_allowed(e, r))
			file_workers_serve(e->files, r);
		return;
	}
	for (const struct route *to = routes; to < routes + ARRAY_SIZE(routes); to++) {
		if (!str_is(h->path, to->path))
			continue;
		if (!to->open && !allowed(e, r))
			return;
		if (!str_is(h->method, "GET") && !str_is(h->method, "HEAD"))
			wrong_method(r, "GET, HEAD");
		else
			to->get(e, r);
		return;
	}
	if (!allowed(e, r))
		return;
	const struct rpc_method *m =
		str_starts(h->path, processes) ? process_method(str_from(h->path, processes.n)) : NULL;
	if (!m)
		http_respond_error(r, 404, "path not found");
	else if (!str_is(h->method, "POST"))
		wrong_method(r, "POST");
	else
		rpc_begin(e, m, r);
}

/* Stopping commands is a user's right. The spawner and file workers, which have our process group, are not commands: all calls would wait for them. */
static void go_on(pid_t pid)
{
	if (getpgid(pid) == getpgrp())
		kill(pid, SIGCONT);
}

static bool reaped(struct envd *e, pid_t pid, struct exit_info exit)
{
	return process_reaped(e->processes, pid, exit) || services_reaped(e->services, pid, exit) || ready_reaped(e->ready, pid, exit);
}

/* Everything that died, commands and orphans alike: init reaps them all. */
static void reap(struct envd *e)
{
	for (;;) {
		siginfo_t info = {0};
		if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG) < 0) {
			if (errno == EINTR)
				continue;
			return;
		}
		if (info.si_pid == 0)
			return;
		if (info.si_code == CLD_STOPPED || info.si_code == CLD_TRAPPED) {
			go_on(info.si_pid);
			continue;
		}
		struct exit_info exit = {info.si_code, info.si_status};
		if (reaped(e, info.si_pid, exit))
			continue;
		/* A command may end before its pid was read; it wrote it first, so it is there. */
		spawner_poll(e->spawner);
		reaped(e, info.si_pid, exit);
	}
}

static void on_signal(struct loop_fd *w, uint32_t events, void *arg)
{
	struct envd *e = arg;
	struct signalfd_siginfo info[16];
	ssize_t n = read(e->signals, info, sizeof(info));
	(void)n; /* what died is asked of the kernel: signals of one kind are merged */
	reap(e);
}

static int watch_children(struct envd *e)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	e->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (e->signals < 0)
		return -errno;
	e->signals_watch = loop_fd_add(e->loop, e->signals, EPOLLIN, on_signal, e);
	return e->signals_watch ? 0 : -errno;
}

int envd_init(struct envd *e, struct loop *l, struct spawner *s, const struct guest_identity *id,
	const struct guest_cgroup *g, struct logs *logs)
{
	/* Freed memory goes back to the machine at once: an idle sandbox should hold little. */
	mallopt(M_MMAP_THRESHOLD, 64 * 1024);
	mallopt(M_TRIM_THRESHOLD, 128 * 1024);
	*e = (struct envd){.loop = l, .spawner = s, .identity = id, .cgroup = g, .logs = logs, .signals = -1};
	e->pts = open("/dev/pts", O_PATH | O_DIRECTORY | O_CLOEXEC);
	e->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	e->null = open("/dev/null", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	struct http_server_config config = {.on_request = on_request,
		.add_headers = cors_add,
		.arg = e,
		.high_water = ENVD_HIGH_WATER,
		.low_water = ENVD_LOW_WATER,
		.max_connections = ENVD_MAX_CONNECTIONS};
	e->http = http_server_new(l, &config);
	e->processes = processes_new(e);
	e->files = file_workers_new(e);
	int r = e->null < 0 ? -errno : watch_children(e);
	if (!e->http || !e->processes || !e->files)
		r = -ENOMEM;
	if (r < 0)
		envd_done(e);
	return r;
}

void envd_done(struct envd *e)
{
	http_server_free(e->http);
	ready_free(e->ready);
	services_free(e->services);
	processes_free(e->processes);
	file_workers_free(e->files);
	loop_fd_del(e->signals_watch);
	int fds[] = {e->signals, e->pts, e->proc, e->null};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	*e = (struct envd){.signals = -1, .pts = -1, .proc = -1, .null = -1};
}

void envd_offer_to_oom_killer(const struct envd *e, pid_t pid)
{
	char path[32];
	snprintf(path, sizeof(path), "%d/oom_score_adj", pid);
	file_write_value(e->proc, path, STR(COMMAND_OOM_SCORE));
}

static int listen_on(struct envd *e, const struct sockaddr *to, socklen_t size)
{
	/* What the kernel may keep for one slow client; it counts against this process's cgroup. */
	const int one = 1, buffer = 64 * 1024;
	cleanup_fd int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
	if (to->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, to, size) < 0 || listen(fd, 1024) < 0)
		return -errno;
	int r = http_server_listen(e->http, fd);
	if (r == 0)
		steal_fd(&fd);
	return r;
}

int envd_listen(struct envd *e, uint16_t port)
{
	struct sockaddr_in v4 = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {
		.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int r = listen_on(e, (struct sockaddr *)&v4, sizeof(v4));
	if (r < 0)
		return r;
	r = listen_on(e, (struct sockaddr *)&v6, sizeof(v6));
	if (r < 0)
		log_debug("no IPv6 for envd: %s", strerror(-r));
	/* What comes from outside a microVM does not pass by another process, which a command could end. */
	const struct sockaddr_vm vm = {.svm_family = AF_VSOCK, .svm_port = VSOCK_PORT_ENVD, .svm_cid = VMADDR_CID_ANY};
	return machine_get() ? listen_on(e, (const struct sockaddr *)&vm, sizeof(vm)) : 0;
}
