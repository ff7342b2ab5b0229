/*
 * envd of cubicle-init on the machine itself, without a sandbox around it: for protocol tests. Prints "ready"
 * when it listens, and ends at the end of file of its standard input. Arguments: PORT, then token=...,
 * user=..., workdir=..., memory=DIR, cpu=DIR, env:NAME=VALUE, and services, their parts separated by 0x1f: service:NAME USER PORT ARGUMENT...
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "guest/envd.h"
#include "guest/services.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>

struct host {
	struct loop *loop;
	struct spawner *spawner;
	struct guest_identity identity;
	struct guest_cgroup cgroup;
	struct envd envd;
};

/* There is nothing to give up here; the sandbox's own is in park.c. */
int guest_confine(struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err)
{
	return 0;
}

static int fork_spawner(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		close(ends[0]);
		spawner_run(ends[1]);
	}
	close(ends[1]);
	fprintf(stderr, "spawner %d\n", pid);
	return ends[0];
}

static void on_died(void *arg)
{
	struct host *h = arg;
	spawner_set(h->spawner, fork_spawner());
}

static const struct spawner_ops ops = {.died = on_died};

static void on_stdin(struct loop_fd *w, uint32_t events, void *arg)
{
	char bytes[64];
	if (read(0, bytes, sizeof(bytes)) == 0)
		loop_stop(((struct host *)arg)->loop);
}

static const char *value_of(const char *arg, const char *name)
{
	size_t n = strlen(name);
	return strncmp(arg, name, n) == 0 ? arg + n : NULL;
}

static void add_service(struct host *h, struct str rest)
{
	cleanup_buf struct buf item = BUF_INIT;
	struct str line, after;
	while (str_cut(rest, '\x1f', &line, &after)) {
		msg_list_add(&item, line);
		rest = after;
	}
	msg_list_add(&item, rest);
	msg_list_add(&h->identity.services, buf_str(&item));
}

/* "once" or "", working directory, NAME=value... */
static void add_option(struct host *h, struct str rest)
{
	cleanup_buf struct buf item = BUF_INIT, envs = BUF_INIT;
	struct str once = rest, workdir = STR(""), line, name, value;
	if (str_cut(rest, '\x1f', &once, &rest))
		while (str_cut(rest, '\x1f', &line, &rest) || (line = rest, rest = STR(""), line.n)) {
			if (str_cut(line, '=', &name, &value))
				msg_map_add(&envs, name, value);
			else
				workdir = line;
		}
	msg_list_add(&item, workdir);
	msg_list_add(&item, once);
	msg_list_add(&item, buf_str(&envs));
	msg_list_add(&h->identity.service_options, buf_str(&item));
}

static void read_arguments(struct host *h, char **argv, const char **ret_memory, const char **ret_cpu)
{
	for (; *argv; argv++) {
		const char *v;
		struct str name, value;
		if ((v = value_of(*argv, "token=")))
			h->identity.token = str_dup(str_of(v));
		else if ((v = value_of(*argv, "user=")))
			h->identity.user = str_dup(str_of(v));
		else if ((v = value_of(*argv, "workdir=")))
			h->identity.workdir = str_dup(str_of(v));
		else if ((v = value_of(*argv, "memory=")))
			*ret_memory = v;
		else if ((v = value_of(*argv, "cpu=")))
			*ret_cpu = v;
		else if ((v = value_of(*argv, "env:")) && str_cut(str_of(v), '=', &name, &value))
			msg_map_add(&h->identity.envs, name, value);
		else if ((v = value_of(*argv, "service:")))
			add_service(h, str_of(v));
		else if ((v = value_of(*argv, "option:")))
			add_option(h, str_of(v));
		else if ((v = value_of(*argv, "template_envs=")))
			str_to_u64(str_of(v), &h->identity.template_envs);
	}
}

int main(int argc, char **argv)
{
	static struct host h;
	uint64_t port;
	const char *memory = NULL, *cpu = NULL;
	if (argc < 2 || str_to_u64(str_of(argv[1]), &port) < 0 || port > 65535)
		return 2;
	log_setup("envd_host", 2, LOG_DEBUG);
	/* Orphans come here, as they come to PID 1. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	read_arguments(&h, argv + 2, &memory, &cpu);
	guest_cgroup_open(&h.cgroup, memory, cpu);
	int spawner = fork_spawner();
	h.loop = loop_new();
	h.spawner = h.loop ? spawner_new(h.loop, &ops, &h) : NULL;
	if (!h.spawner || spawner_set(h.spawner, spawner) < 0 ||
		envd_init(&h.envd, h.loop, h.spawner, &h.identity, &h.cgroup, NULL) < 0)
		return 1;
	int r = envd_listen(&h.envd, (uint16_t)port);
	if (r < 0) {
		fprintf(stderr, "port %s: %s\n", argv[1], strerror(-r));
		return 1;
	}
	struct error err = {0};
	if (services_new(&h.envd, (struct msg_list){buf_str(&h.identity.services)}, (struct msg_list){buf_str(&h.identity.service_options)}, &h.envd.services, &err) < 0) {
		fprintf(stderr, "%s\n", err.message);
		return 1;
	}
	services_start(h.envd.services);
	loop_fd_add(h.loop, 0, EPOLLIN, on_stdin, &h);
	puts("ready");
	fflush(stdout);
	r = loop_run(h.loop);
	envd_done(&h.envd);
	spawner_free(h.spawner);
	loop_free(h.loop);
	guest_cgroup_close(&h.cgroup);
	return r < 0;
}
