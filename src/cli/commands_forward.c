/* `cubicle forward`: a loopback address for a port of a sandbox (forward/forward.h). */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "cli/client.h"
#include "cli/listen.h"
#include "cli/signals.h"
#include "forward/forward.h"
#include "io/json.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

enum { STOP_S = 5 };

struct run {
	struct loop *loop;
	struct http_forward *forward;
	struct loop_timer *check;
	int64_t deadline; /* 0: it serves */
	bool late;        /* it could not stop in time, and said so */
};

static void on_check(struct loop_timer *t, void *arg)
{
	struct run *r = arg;
	struct http_forward_load left = http_forward_stats(r->forward);
	if (!left.connections && !left.requests) {
		loop_stop(r->loop);
		return;
	}
	if (clock_boottime() >= r->deadline && !r->late) {
		r->late = true;
		fprintf(stderr, "cubicle: %u connections did not end in %d s; interrupt again to leave them\n", left.connections, STOP_S);
	}
	loop_timer_in(t, 20 * NS_PER_MS);
}

static void on_signal(struct loop_fd *w, uint32_t events, void *arg)
{
	struct run *r = arg;
	struct signalfd_siginfo info;
	while (read(loop_fd_get(w), &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (r->late)
			loop_stop(r->loop);
		if (!r->deadline)
			r->deadline = clock_boottime() + STOP_S * NS_PER_S;
		http_forward_stop(r->forward);
		on_check(r->check, r);
	}
}

static int parse_port(const char *text, uint16_t *ret, struct error *err)
{
	uint64_t n;
	if (str_to_u64(str_of(text), &n) < 0 || n < 1 || n > 65535)
		return error_set(err, -EINVAL, 400, "'%s' is no port: 1 to 65535", text);
	*ret = (uint16_t)n;
	return 0;
}

/* Only this machine may use it: who connects is in the sandbox. */
static int listen_here(const char *address, char ret_url[80], struct error *err)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof(a);
	char host[INET6_ADDRSTRLEN];
	cleanup_fd int fd = listen_tcp("--listen", address, err);
	if (fd < 0)
		return fd;
	if (getsockname(fd, (struct sockaddr *)&a, &size) < 0)
		return error_errno(err, -errno, "--listen");
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
	bool is_v4 = a.ss_family == AF_INET;
	if (is_v4 ? (ntohl(v4->sin_addr.s_addr) >> 24) != 127 : !IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr))
		return error_set(err, -EINVAL, 400, "--listen: '%s' is no loopback address: everybody who reaches it would be in the sandbox", address);
	inet_ntop(a.ss_family, is_v4 ? (const void *)&v4->sin_addr : &v6->sin6_addr, host, sizeof(host));
	snprintf(ret_url, 80, is_v4 ? "http://%s:%u" : "http://[%s]:%u", host, ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
	return steal_fd(&fd);
}

/* The sandbox's id and tokens. */
static int find_sandbox(struct client *cl, const char *given, json_t **ret, struct error *err)
{
	char id[32], path[64];
	int r = client_resolve(cl, given, id, err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/sandboxes/%s", id);
	r = client_call(cl, "GET", path, NULL, ret, NULL, err);
	return r == 0 && !json_is_object(*ret) ? error_set(err, -EPROTO, 502, "the server did not describe the sandbox") : r;
}

static void announce(const struct cli *c, const char *url, const char *id, uint16_t port)
{
	if (c->json)
		printf("{\"url\":\"%s\",\"sandboxID\":\"%s\",\"port\":%u}\n", url, id, port);
	else
		printf("%s\n", url);
	fflush(stdout);
}

static int serve(const struct http_forward_config *config, int listener, int signals, struct error *err)
{
	struct run run = {.loop = config->loop};
	run.forward = http_forward_start(config, listener, err);
	if (!run.forward)
		return err->code;
	run.check = loop_timer_new(run.loop, on_check, &run);
	struct loop_fd *w = loop_fd_add(run.loop, signals, EPOLLIN, on_signal, &run);
	int r = run.check && w ? loop_run(run.loop) : -ENOMEM;
	loop_fd_del(w);
	loop_timer_free(run.check);
	http_forward_free(run.forward);
	return r < 0 ? error_errno(err, r, "forward") : run.late;
}

int cmd_forward(struct cli *c)
{
	struct error err = {0};
	uint16_t port = 0;
	char url[80];
	cleanup_client struct client cl = {0};
	cleanup_json json_t *info = NULL;
	cleanup_fd int signals = signals_block(false);
	const struct cli_value *listen = cli_flag(c, "listen");
	struct destination to = {.ctx = NULL};
	const char *ca = getenv("SSL_CERT_FILE");
	if (parse_port(c->words[1], &port, &err) < 0 || client_open(&cl, c, &err) < 0 || find_sandbox(&cl, c->words[0], &info, &err) < 0)
		return cli_fail(c, &err);
	int r = destination_init(&to, cl.sandbox_url, cl.socket, ca && *ca ? ca : NULL, &err);
	if (r == 0 && !to.ctx && !to.loopback && !cli_flag(c, "allow-insecure")->set)
		r = error_set(&err, -EPERM, 403, "the server is not on this machine and its address is no https:// one: what is sent could be read on the way (--allow-insecure allows that)");
	cleanup_fd int listener = r == 0 ? listen_here(listen->set ? listen->text : "127.0.0.1:0", url, &err) : -1;
	if (listener >= 0) {
		struct str id = json_str(json_object_get(info, "sandboxID"));
		const char *traffic = json_string_value(json_object_get(info, "trafficAccessToken")), *envd = json_string_value(json_object_get(info, "envdAccessToken"));
		cleanup_free char *sandbox = str_dup(id);
		struct http_forward_config config = {.loop = loop_new(), .to = &to, .sandbox = sandbox, .port = port, .traffic_token = traffic, .envd_token = envd};
		announce(c, url, sandbox, port);
		r = config.loop ? serve(&config, steal_fd(&listener), signals, &err) : error_errno(&err, -ENOMEM, "forward");
		loop_free(config.loop);
	}
	destination_done(&to);
	if (err.code)
		return cli_fail(c, &err);
	return r ? EXIT_FAILED : EXIT_OK;
}
