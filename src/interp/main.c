/*
 * cubicle-interp: the code interpreter of a sandbox (e2b.md C). It serves on descriptor 3 when it is started
 * with LISTEN_FDS=1 (sd_listen_fds), else on --listen.
 */
#include "interp/probe.h"
#include "interp/server.h"

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#define LAST_TIME (2 * NS_PER_S)

enum { PROBE_SECONDS = 60 };

static const char usage[] =
	"cubicle-interp [--listen ADDRESS:PORT] [--kernels DIR[:DIR]] [--user NAME] [--envd URL] [--start "
	"LANGUAGE[,LANGUAGE]] [--run-dir DIR] [--start-timeout SECONDS]\n"
	"cubicle-interp --probe PORT\n"
	"  --listen         where it serves, unless the socket is passed as descriptor 3 with LISTEN_FDS=1\n"
	"  --kernels        directories with kernel specs "
	"(/usr/local/share/jupyter/kernels:/usr/share/jupyter/kernels)\n"
	"  --user           who kernels run as when this is root (user)\n"
	"  --envd           where the sandbox's variables are asked for, http://ADDRESS:PORT (none)\n"
	"  --start          languages whose default context is started at once (python,javascript)\n"
	"  --run-dir        a directory of its own for connection files and sockets (/run/cubicle-interp)\n"
	"  --start-timeout  how long a kernel may take until it is ready (60)\n"
	"  --probe          asks the one that serves on this port of 127.0.0.1 whether its languages have started, and waits for it: ends with 0 when they have\n";

struct settings {
	const char *listen, *kernels, *user, *envd, *start, *run_dir;
	uint64_t start_timeout, probe /* a port; 0 = serves itself */;
};

static _Noreturn void die(const char *what, const char *why)
{
	log_error("%s: %s", what, why);
	exit(1);
}

static int parse(struct settings *s, int argc, char **argv)
{
	static const struct option options[] = {{"listen", required_argument, NULL, 'l'},
		{"kernels", required_argument, NULL, 'k'}, {"user", required_argument, NULL, 'u'},
		{"envd", required_argument, NULL, 'e'}, {"start", required_argument, NULL, 's'},
		{"run-dir", required_argument, NULL, 'r'}, {"start-timeout", required_argument, NULL, 't'},
		{"probe", required_argument, NULL, 'p'}, {0}};
	int c;
	while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (c == 'l')
			s->listen = optarg;
		else if (c == 'k')
			s->kernels = optarg;
		else if (c == 'u')
			s->user = optarg;
		else if (c == 'e')
			s->envd = optarg;
		else if (c == 's')
			s->start = optarg;
		else if (c == 'r')
			s->run_dir = optarg;
		else if (c == 'p' && str_to_u64(str_of(optarg), &s->probe) == 0 && s->probe > 0 && s->probe <= 65535)
			continue;
		else if (c != 't' || str_to_u64(str_of(optarg), &s->start_timeout) < 0 || !s->start_timeout ||
			 s->start_timeout > 3600)
			return -EINVAL;
	}
	return optind == argc ? 0 : -EINVAL;
}

/* The socket that was passed, or -1. */
static int passed_socket(void)
{
	const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
	uint64_t number;
	int listening = 0;
	socklen_t size = sizeof(listening);
	if (!fds || strcmp(fds, "1") != 0 || !pid || str_to_u64(str_of(pid), &number) < 0 ||
		number != (uint64_t)getpid())
		return -1;
	if (getsockopt(3, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 || !listening)
		die("descriptor 3", "is no listening socket");
	fd_set_cloexec(3, true);
	return 3;
}

static int open_socket(const char *where)
{
	struct str address, port;
	uint64_t number;
	char text[INET_ADDRSTRLEN];
	struct sockaddr_in a = {.sin_family = AF_INET};
	if (!where || !str_cut(str_of(where), ':', &address, &port) || str_to_u64(port, &number) < 0 ||
		number > 65535 || address.n >= sizeof(text))
		return -EINVAL;
	memcpy(text, address.p, address.n);
	text[address.n] = '\0';
	if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
		return -EINVAL;
	a.sin_port = htons((uint16_t)number);
	cleanup_fd int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int on = 1;
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
		bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 512) < 0)
		return -errno;
	socklen_t size = sizeof(a);
	if (getsockname(fd, (struct sockaddr *)&a, &size) == 0)
		log_info("listening on port %d", ntohs(a.sin_port));
	return steal_fd(&fd);
}

static void on_signal(struct loop_fd *w, uint32_t events, void *arg)
{
	struct signalfd_siginfo info;
	if (read(loop_fd_get(w), &info, sizeof(info)) == sizeof(info))
		loop_stop(arg);
}

/* Blocked before any thread exists, so that they arrive nowhere else. */
static int open_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void serve(const struct settings *s, int listening, int signals)
{
	struct error err = {0};
	struct contexts all = {.specs = KERNELSPECS_INIT(s->kernels),
		.host = {.loop = loop_new(),
			.zmq = zmq_ctx_new(),
			.run_dir = s->run_dir,
			.start_time = (int64_t)s->start_timeout * NS_PER_S}};
	if (!all.host.loop || !all.host.zmq ||
		!loop_fd_add(all.host.loop, signals, EPOLLIN, on_signal, all.host.loop))
		die("loop", strerror(errno));
	if (launch_user_init(&all.host.user, geteuid() == 0 ? s->user : NULL, &err) < 0)
		die("user", err.message);
	fd_raise_limit();
	if (s->envd && fetch_target_parse(str_of(s->envd), &all.envd) < 0)
		die("--envd", "http://ADDRESS:PORT is wanted");
	int r = launch_sweep(s->run_dir);
	if (r < 0)
		die(s->run_dir, strerror(-r));
	kernelspecs_scan(&all.specs);
	fd_set_nonblock(listening, true);
	struct server *server = server_new(&all, listening, &err);
	if (!server)
		die("server", err.message);
	server_start_contexts(server, s->start);
	r = loop_run(all.host.loop);
	server_free(server);
	contexts_done(&all);
	/* Killed, they are gone in a moment; one that is not is swept by the next service. */
	for (int64_t end = clock_boottime() + LAST_TIME; all.host.alive && clock_boottime() < end;)
		loop_turn(all.host.loop, 100);
	loop_free(all.host.loop);
	zmq_ctx_term(all.host.zmq);
	launch_user_done(&all.host.user);
	if (r < 0)
		die("loop", strerror(-r));
}

int main(int argc, char **argv)
{
	struct settings s = {
		.kernels = "/usr/local/share/jupyter/kernels:/usr/share/jupyter/kernels",
		.user = "user",
		.start = "python,javascript",
		.run_dir = "/run/cubicle-interp",
		.start_timeout = 60,
	};
	log_setup("interp", 2, LOG_INFO);
	if (parse(&s, argc, argv) < 0) {
		fputs(usage, stderr);
		return 2;
	}
	if (s.probe) {
		struct error err = {0};
		if (probe_health((uint16_t)s.probe, PROBE_SECONDS, &err) == 0)
			return 0;
		die("not ready", err.message);
	}
	/* Its memory holds tokens and code; what runs as the same user shall not trace it. */
	prctl(PR_SET_DUMPABLE, 0);
	int signals = open_signals(), listening = passed_socket();
	if (listening < 0)
		listening = open_socket(s.listen);
	if (signals < 0 || listening < 0)
		die("no socket to serve on", strerror(signals < 0 ? errno : -listening));
	serve(&s, listening, signals);
	return 0;
}
