#include "sandbox/box/slot.h"
#include "sandbox/box/birth.h"
#include "sandbox/box/host.h"
#include "sandbox/box/saved.h"
#include "sandbox/box/slot_control.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "sys/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
	OOM_SCORE_SPAWNER = 400, /* killed before anything of the host's, after any command (COMMAND_OOM_SCORE in guest/process.c) */
	REMOVE_TRIES = 2000, /* of a ms each */
};

struct slot *slot_new(unsigned number)
{
	struct slot *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->number = number;
	s->pidfd = s->conn = s->mnt = s->monitor = s->log = s->console = -1;
	s->disk = DISK_NONE;
	s->net.netns = s->net.dns_udp = s->net.dns_tcp = s->net.tap = -1;
	snprintf(s->name, sizeof(s->name), "s%u", number);
	snprintf(s->monitor_name, sizeof(s->monitor_name), "%s" SLOT_MONITOR_SUFFIX, s->name);
	return s;
}

static int offer_to_oom_killer(pid_t pid, struct error *err)
{
	char path[40], score[8];
	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
	int n = snprintf(score, sizeof(score), "%d", OOM_SCORE_SPAWNER);
	int r = file_write_value(AT_FDCWD, path, str_n(score, (size_t)n));
	return r < 0 ? error_errno(err, r, "%s", path) : 0;
}

int slot_attach_spawner(struct host *h, struct slot *s, pid_t pid, struct error *err)
{
	struct stat mine, its;
	cleanup_fd int pidns = process_namespace(s->pid, "pid");
	cleanup_fd int other = pid > 1 ? process_namespace(pid, "pid") : -ESRCH;
	/* A root inside may put another pid of its own into the credentials, and that may end and its number be used anew: look where it lives. */
	if (pidns < 0 || other < 0 || fstat(pidns, &mine) < 0 || fstat(other, &its) < 0 || mine.st_ino != its.st_ino)
		return error_set(err, -EPERM, 500, "the spawner of slot %u is no process of it", s->number);
	int r = cgroups_attach(h->cgroups, s->name, CGROUP_WORK, pid, err);
	if (r < 0)
		return r;
	return offer_to_oom_killer(pid, err);
}

/* Its part of the processors among the sandboxes: what the groups below it have is for each other. */
int slot_weigh(struct host *h, const struct slot *s, uint32_t cpu_count, struct error *err)
{
	int r = cgroups_weigh(h->cgroups, s->name, cpu_count);
	return r < 0 ? error_errno(err, r, "weight of slot %u", s->number) : 0;
}

int slot_make_cgroups(struct host *h, struct slot *s, const struct cgroup_limits *agent, const struct cgroup_limits *work, struct error *err)
{
	s->limits = *work;
	s->has_cgroups = true;
	int r = cgroups_create(h->cgroups, s->name, err);
	if (r == 0)
		r = cgroups_limit(h->cgroups, s->name, CGROUP_AGENT, agent, err);
	if (r == 0)
		r = cgroups_limit(h->cgroups, s->name, CGROUP_WORK, work, err);
	return r == 0 ? slot_weigh(h, s, work->cpu_count, err) : r;
}

int slot_begin(struct host *h, struct slot *s, struct newborn *n, int r, enum cgroup_part group, struct error *err)
{
	s->pid = n->pid;
	s->pidfd = n->pidfd;
	if (r == 0 && (r = process_start_time(s->pid, &s->start)) < 0)
		error_errno(err, r, "start time of slot %u", s->number);
	if (r == 0)
		r = cgroups_attach(h->cgroups, s->name, group, s->pid, err);
	if (r == 0 && group == CGROUP_WORK)
		r = offer_to_oom_killer(s->pid, err);
	if (r == 0)
		r = birth_start(n, err);
	if (n->go >= 0)
		close(n->go);
	return r;
}

/* What somebody waits for. */
static void claim_ready(const struct box_spec *spec, struct msg_claim *m)
{
	if (spec->ready.raw.n)
		msg_set(m, claim, ready, spec->ready);
	if (spec->probe_port)
		msg_set(m, claim, probe_port, spec->probe_port);
	if (spec->probe_path.n)
		msg_set(m, claim, probe_path, spec->probe_path);
	if (spec->wait_ready && !spec->unassigned)
		msg_set(m, claim, wait_ready, true);
}

int slot_send_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct msg_claim *m, struct error *err)
{
	const struct box_spec *spec = &c->spec;
	m->sandbox = spec->id;
	m->template = spec->template_id;
	m->hostname = str_of(c->hostname);
	m->envs = spec->envs;
	m->user = spec->user;
	m->boot_id = str_of(c->boot_id);
	m->machine_id = str_of(c->machine_id);
	if (spec->token.n)
		msg_set(m, claim, token, spec->token);
	if (spec->workdir.n)
		msg_set(m, claim, workdir, spec->workdir);
	if (spec->no_setuid)
		msg_set(m, claim, no_setuid, true);
	if (spec->services.raw.n)
		msg_set(m, claim, services, spec->services);
	if (spec->service_options.raw.n)
		msg_set(m, claim, service_options, spec->service_options);
	if (spec->template_envs)
		msg_set(m, claim, template_envs, spec->template_envs);
	if (spec->unassigned || spec->wait_ready)
		claim_ready(spec, m);
	if (spec->unassigned) {
		msg_set(m, claim, unassigned, true);
		int r = slot_weigh(h, s, 0, err);
		if (r < 0)
			return r;
	}
	return slot_say(s, MSG_ID_claim, m, err);
}

void slot_rest_close(struct slot_rest *r)
{
	while (r->n)
		close(r->fds[--r->n]);
}

int slot_find_process(struct slot *s, struct error *err)
{
	uint64_t start;
	s->pidfd = process_pidfd(s->pid);
	/* The start time is read after the descriptor is held: from then on the pid cannot become another's. */
	if (s->pidfd >= 0 && process_start_time(s->pid, &start) == 0 && start == s->start && !process_ended(s->pidfd))
		return 0;
	if (s->pidfd >= 0)
		close(steal_fd(&s->pidfd));
	s->pid = 0;
	return error_set(err, -ESRCH, 500, "its first process had ended when the node came back");
}

int slot_adopt_network(struct host *h, struct slot *s, slot_adopt_network_fn *adopt, const struct reach *reach, struct error *err)
{
	int netns = process_namespace(s->pid, "net");
	if (netns < 0)
		return error_errno(err, netns, "network namespace of slot %u", s->number);
	int r = adopt(h->network, s->number, netns, &s->net, err);
	if (r < 0) {
		close(netns);
		return r;
	}
	s->has_net = true;
	/* The node may have ended between a change of the policy and its record. */
	return network_slot_set(h->network, &s->net, reach, err);
}

int slot_status(const struct slot *s, int *ret_code, int *ret_status)
{
	siginfo_t info = {0};
	if (s->pidfd < 0 || waitid(P_PIDFD, (id_t)s->pidfd, &info, WEXITED | WNOWAIT | WNOHANG) < 0)
		return -ECHILD;
	*ret_code = info.si_code;
	*ret_status = info.si_status;
	return info.si_pid ? 0 : -EAGAIN;
}

/* The end of PID 1 is the end of its whole pid namespace: the kernel waits for the others first. How long that takes is up to what they are in the middle of there, a disk that does not
 * answer for one: who waits here keeps others from being ended. */
static int await_end(const struct slot *s, int patience_ms)
{
	struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
	siginfo_t info;
	int r;
	do
		r = poll(&p, 1, patience_ms);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return -ETIMEDOUT;
	waitid(P_PIDFD, (id_t)s->pidfd, &info, WEXITED | WNOHANG);
	return 0;
}

static void remove_cgroups(struct host *h, struct slot *s)
{
	int r = -EBUSY;
	for (int i = 0; i < REMOVE_TRIES && r == -EBUSY; i++) {
		r = cgroups_remove(h->cgroups, s->name);
		if (r == -EBUSY)
			usleep(1000);
	}
	if (r < 0)
		log_error("slot %u: its cgroups stay: %s", s->number, strerror(-r));
}

void slot_leave(struct slot *s)
{
	if (!s)
		return;
	disk_leave(&s->disk);
	slot_rest_close(&s->rest);
	if (s->mnt >= 0)
		close(s->mnt);
	if (s->has_net)
		network_slot_done(&s->net);
	int *fds[] = {&s->conn, &s->monitor, &s->log, &s->console};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (*fds[i] >= 0)
			close(steal_fd(fds[i]));
	if (s->pidfd >= 0)
		close(s->pidfd);
	free(s);
}

void slot_hold_mounts(struct slot *s)
{
	if (s->mnt < 0 && s->pid)
		s->mnt = process_namespace(s->pid, "mnt");
}

int slot_kill(struct host *h, struct slot *s, int patience_ms)
{
	struct error err = {0};
	int r = 0;
	if (host_enter(h, &err) < 0)
		log_error("%s", err.message);
	if (s->pidfd >= 0) {
		slot_hold_mounts(s);
		process_signal(s->pidfd, SIGKILL);
		cgroups_kill(h->cgroups, s->name);
		r = await_end(s, patience_ms);
		if (r < 0)
			return r;
		close(steal_fd(&s->pidfd));
	} else if (s->has_cgroups) {
		cgroups_kill(h->cgroups, s->name);
	}
	s->pid = 0;
	return 0;
}

int slot_save(struct host *h, struct slot *s, const char *image, bool check, struct error *err)
{
	FAULT(pause_killed);
	if (s->mnt >= 0)
		close(steal_fd(&s->mnt));
	slot_rest_close(&s->rest);
	/* A layer is kept for long: what was deleted in it need not be. */
	if (saved_is_layer(image))
		disk_trim(h, &s->disk);
	disk_leave(&s->disk);
	const uid_t uid = host_uid(h, s->number);
	int r = saved_keep(h, s->disk.name, image, check ? &uid : NULL, err);
	if (r < 0)
		return r;
	s->disk.name[0] = '\0';
	disk_unbind(h, &s->disk);
	return 0;
}

int slot_release(struct host *h, struct slot *s, int patience_ms)
{
	int r = slot_kill(h, s, patience_ms);
	if (r < 0)
		return r;
	disk_abandon(h, &s->disk);
	if (s->mnt >= 0)
		close(steal_fd(&s->mnt));
	slot_rest_close(&s->rest);
	disk_drop(h, &s->disk);
	if (s->has_socket)
		slot_unlisten(h, s);
	if (s->has_cgroups)
		remove_cgroups(h, s);
	slot_leave(s);
	return 0;
}
