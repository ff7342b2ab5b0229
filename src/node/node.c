#include "node/node.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "node/mounts.h"
#include "node/service.h"
#include "sys/caps.h"
#include "sys/program.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>

/* docs/architecture.md, "Descriptors at start" */
enum { SERVE_FD = 3, OPTIONS_FD = 4, LOCK_FD = 5 };

/* What making and ending sandboxes needs; docs/security.md says what each is for. All others are given up, also for what the node executes. */
static const unsigned char kept[] = {
	CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_MKNOD, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE,
	CAP_NET_RAW, CAP_SETFCAP, CAP_SETGID, CAP_SETPCAP, CAP_SETUID, CAP_SYS_ADMIN, CAP_SYS_CHROOT, CAP_SYS_NICE, CAP_SYS_PTRACE, CAP_SYS_RESOURCE,
};

struct process {
	struct options options;
	struct host host;
	struct loop *loop;
	struct chan *serve;
	struct node *node;
	char directory[PATH_MAX], init_path[PATH_MAX], monitor_path[PATH_MAX];
	uid_t build_uid;
	gid_t build_gid;
	int status;
};

static int drop_capabilities(struct error *err)
{
	uint64_t keep = 0;
	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		keep |= UINT64_C(1) << kept[i];
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
		if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap) < 0)
			return error_errno(err, -errno, "dropping capability %d", cap);
	int r = caps_keep_only(keep);
	return r < 0 ? error_errno(err, r, "capset") : 0;
}

static int make_directories(const char *directory, struct error *err)
{
	static const char *const names[] = {"images", "templates", "disks", "control", "builds"};
	char path[PATH_MAX + 16];
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
		int r = make_dirs(path, 0700);
		if (r < 0)
			return error_errno(err, r, "%s", path);
	}
	return 0;
}

static int find_user(struct process *p, struct error *err)
{
	const struct passwd *user = getpwnam(p->options.user_build);
	if (!user)
		return error_set(err, -ENOENT, 500, "user.build: there is no system user '%s'", p->options.user_build);
	p->build_uid = user->pw_uid;
	p->build_gid = user->pw_gid;
	return 0;
}

static int own_view(const struct process *p, struct error *err)
{
	char state[PATH_MAX], init[PATH_MAX], resolv[PATH_MAX], kernel[PATH_MAX];
	if (!realpath(p->options.state_dir, state) || !realpath(p->init_path, init))
		return error_errno(err, -errno, "%s", p->options.state_dir);
	/* Where the machine's resolver is said, which a builder is shown: often a link to /run. */
	if (!realpath("/etc/resolv.conf", resolv))
		snprintf(resolv, sizeof(resolv), "/etc");
	if (!realpath(p->options.guest_kernel, kernel))
		snprintf(kernel, sizeof(kernel), "/boot");
	const char *const needed[] = {state, init, resolv, kernel};
	return mounts_own(needed, ARRAY_SIZE(needed), err);
}

static void on_stopped(void *arg)
{
	struct process *p = arg;
	log_info("stopped");
	loop_stop(p->loop);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct process *p = arg;
	if (m->header.type == MSG_ID_peer)
		node_peer(p->node, m->body->peer.role, steal_fd(&m->fds[0]));
	else if (m->header.type == MSG_ID_stop)
		node_stop(p->node, on_stopped, p);
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	struct process *p = arg;
	p->serve = NULL;
	log_warn("serve is gone; leaving the sandboxes to the next node");
	loop_stop(p->loop);
}

static const struct chan_ops serve_ops = {on_message, on_closed, NULL};

static void on_ready(void *arg)
{
	struct process *p = arg;
	struct msg_ready m = {0};
	if (p->serve)
		chan_send(p->serve, MSG_ID_ready, &m, 0, NULL, 0, NULL);
}

static int read_options(struct process *p, struct error *err)
{
	int r = options_init(&p->options);
	if (r < 0)
		return error_errno(err, r, "options");
	/* Opened anew: the descriptor's position is shared with the other children. */
	r = options_read_file(&p->options, "/proc/self/fd/4", true, err);
	close(OPTIONS_FD);
	return r;
}

static int prepare(struct process *p, struct error *err)
{
	enum log_level level = LOG_INFO;
	int r = read_options(p, err);
	if (r < 0)
		return r;
	log_level_parse(str_of(p->options.log_level), &level);
	log_setup("node", STDERR_FILENO, level);
	umask(077);
	signal(SIGPIPE, SIG_IGN);
	fd_set_cloexec(SERVE_FD, true);
	fd_set_cloexec(LOCK_FD, true);
	fd_raise_limit();
	snprintf(p->directory, sizeof(p->directory), "%s/node", p->options.state_dir);
	if ((r = make_directories(p->directory, err)) < 0 || (r = program_of_ours("cubicle-init", "../guest", p->init_path, err)) < 0 || (r = find_user(p, err)) < 0)
		return r;
	/* Without it there are no microVMs, and who asks for one is told (machines.h). */
	if (program_of_ours("cubicle-vmm", "../vmm", p->monitor_path, NULL) < 0)
		p->monitor_path[0] = 0;
	if ((r = own_view(p, err)) < 0 || (r = drop_capabilities(err)) < 0)
		return r;
	if (prctl(PR_SET_DUMPABLE, 0) < 0)
		return error_errno(err, -errno, "dumpable");
	return host_init(&p->host, p->options.state_dir, err);
}

static int run(struct process *p, struct error *err)
{
	p->loop = loop_new();
	if (!p->loop)
		return error_errno(err, -ENOMEM, "loop");
	struct node_config config = {.loop = p->loop, .options = &p->options, .host = &p->host, .directory = p->directory, .init_path = p->init_path, .monitor_path = p->monitor_path,
		.build_uid = p->build_uid, .build_gid = p->build_gid};
	int r = node_new(&config, &p->node, err);
	if (r < 0)
		return r;
	p->serve = chan_new(p->loop, SERVE_FD, MSG_FROM_SERVE, 0, &serve_ops, p);
	if (!p->serve)
		return error_errno(err, -errno, "channel to serve");
	r = node_start(p->node, on_ready, p, err);
	if (r == 0 && (r = loop_run(p->loop)) < 0)
		error_errno(err, r, "loop");
	return r;
}

int node_main(int argc, char **argv)
{
	struct process p = {0};
	struct error err = {0};
	log_setup("node", STDERR_FILENO, LOG_INFO);
	int r = prepare(&p, &err);
	if (r == 0)
		r = run(&p, &err);
	if (r < 0)
		log_error("%s", err.message);
	node_free(p.node);
	chan_free(p.serve);
	loop_free(p.loop);
	options_done(&p.options);
	return r < 0 ? 1 : 0;
}
