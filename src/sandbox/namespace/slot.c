#include "sandbox/namespace/slot.h"
#include "sandbox/namespace/birth.h"
#include "sandbox/namespace/host.h"
#include "sandbox/namespace/inside.h"
#include "sandbox/namespace/layers.h"
#include "sandbox/namespace/saved.h"
#include "sandbox/namespace/slot_control.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/chan.h"
#include "sys/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
	OOM_SCORE_SPAWNER = 400, /* killed before anything of the host's, after any command (COMMAND_OOM_SCORE in guest/process.c) */
	AGENT_MB = 128, /* PID 1's own reserve: nothing that happens in work can take it */
	AGENT_PIDS = 32,
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

static int park(struct host *h, struct slot *s, struct error *err)
{
	cleanup_free char *storage = malloc(MSG_MAX);
	union msg_any any;
	pid_t spawner;
	if (!storage)
		return error_errno(err, -ENOMEM, "slot");
	int r = slot_greet(s, storage, &any, err);
	if (r == 0 && any.init_state.claimed)
		r = error_set(err, -EPROTO, 500, "slot %u is claimed already", s->number);
	if (r == 0)
		r = slot_expect(s, storage, MSG_ID_spawner, &any, &spawner, err);
	if (r == 0)
		r = slot_attach_spawner(h, s, spawner, err);
	if (r == 0)
		r = slot_say(s, MSG_ID_attached, &(struct msg_attached){0}, err);
	return r == 0 ? slot_expect(s, storage, MSG_ID_parked, &any, &spawner, err) : r;
}

static struct cgroup_limits work_limits(uint32_t memory_mb, uint32_t pids, uint32_t cpu_count)
{
	return (struct cgroup_limits){.memory = (uint64_t)memory_mb << 20, .pids = pids, .cpu_count = cpu_count};
}

/* Its part of the processors among the sandboxes: what the groups below it have is for each other. */
int slot_weigh(struct host *h, const struct slot *s, uint32_t cpu_count, struct error *err)
{
	int r = cgroups_weigh(h->cgroups, s->name, cpu_count);
	return r < 0 ? error_errno(err, r, "weight of slot %u", s->number) : 0;
}

static int make_cgroups(struct host *h, struct slot *s, struct error *err)
{
	const struct options *o = h->options;
	struct cgroup_limits agent = {.memory = (uint64_t)AGENT_MB << 20, .pids = AGENT_PIDS, .cpu_count = 1};
	s->limits = work_limits((uint32_t)o->sandbox_memory, (uint32_t)o->sandbox_pids, (uint32_t)o->sandbox_cpu);
	s->has_cgroups = true;
	int r = cgroups_create(h->cgroups, s->name, err);
	if (r == 0)
		r = cgroups_limit(h->cgroups, s->name, CGROUP_AGENT, &agent, err);
	if (r == 0)
		r = cgroups_limit(h->cgroups, s->name, CGROUP_WORK, &s->limits, err);
	return r == 0 ? slot_weigh(h, s, s->limits.cpu_count, err) : r;
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

static int give_birth(struct host *h, struct slot *s, struct error *err)
{
	struct newborn n = {.pidfd = -1, .go = -1};
	/* Node is connected before init exists, so that init always learns of node's end. */
	cleanup_fd int listener = slot_listen(h, s->name, err);
	if (listener < 0)
		return listener;
	s->has_socket = true;
	s->conn = slot_connect(h, s->name, err);
	if (s->conn < 0)
		return s->conn;
	int r = birth_init(h, s->name, host_uid(h, s->number), s->net.netns, listener, &n, err);
	return slot_begin(h, s, &n, r, CGROUP_AGENT, err);
}

/* saved: the image that it is; NULL = a new one. */
static int make_disk(struct host *h, struct slot *s, uint32_t size_mb, const char *saved, struct error *err)
{
	char name[32];
	cleanup_fd int userns = process_namespace(s->pid, "user");
	if (userns < 0)
		return error_errno(err, userns, "user namespace of slot %u", s->number);
	snprintf(name, sizeof(name), "%s.img", s->name);
	return saved ? disk_take(h, saved, name, userns, &s->disk, err) : disk_make(h, name, size_mb, userns, &s->disk, err);
}

int slot_prepare(struct host *h, struct slot *s, struct error *err)
{
	int r = host_enter(h, err);
	if (r == 0)
		r = network_slot_create(h->network, s->number, &s->net, err);
	if (r == 0) {
		s->has_net = true;
		r = make_cgroups(h, s, err);
	}
	if (r == 0)
		r = give_birth(h, s, err);
	if (r == 0)
		r = make_disk(h, s, (uint32_t)h->options->sandbox_disk, NULL, err);
	if (r == 0)
		r = park(h, s, err);
	return r == 0 ? inside_park(h, s, err) : r;
}

static int adjust(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err)
{
	const struct box_spec *spec = &c->spec;
	struct cgroup_limits l = work_limits(spec->memory_mb, spec->pids, spec->cpu_count);
	int r = 0;
	if (l.memory != s->limits.memory || l.pids != s->limits.pids || l.cpu_count != s->limits.cpu_count) {
		r = cgroups_limit(h->cgroups, s->name, CGROUP_WORK, &l, err);
		s->limits = l;
		if (r == 0)
			r = slot_weigh(h, s, l.cpu_count, err);
	}
	if (r == 0 && !reach_is_default(c->reach))
		r = network_slot_set(h->network, &s->net, c->reach, err);
	if (r == 0 && (spec->disk || spec->disk_mb != s->disk.size_mb)) { /* another size than parked slots have: a new one is 3 ms */
		disk_drop(h, &s->disk);
		r = make_disk(h, s, spec->disk_mb, spec->disk, err);
	}
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

int slot_send_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err)
{
	const struct box_spec *spec = &c->spec;
	char address[INET_ADDRSTRLEN];
	struct in_addr in = {htonl(s->machine ? (uint32_t)MACHINE_ADDRESS : s->net.guest_address)};
	inet_ntop(AF_INET, &in, address, sizeof(address));
	struct msg_claim m = {
		.sandbox = spec->id,
		.template = spec->template_id,
		.hostname = str_of(c->hostname),
		.envs = spec->envs,
		.realtime = s->machine ? clock_realtime() : 0,
		.user = spec->user,
		.boot_id = str_of(c->boot_id),
		.machine_id = str_of(c->machine_id),
		.nameserver = str_of(s->machine ? MACHINE_NAMESERVER : NETWORK_NAMESERVER),
		.seccomp = s->machine ? STR("") : buf_str(spec->nested_userns ? &h->filter_nested : &h->filter),
	};
	msg_set(&m, claim, address, str_of(address));
	if (!s->machine) /* its root is root of its own kernel only */
		msg_set(&m, claim, drop_caps, (struct msg_list){buf_str(&h->drop_caps)});
	if (spec->token.n)
		msg_set(&m, claim, token, spec->token);
	if (spec->workdir.n)
		msg_set(&m, claim, workdir, spec->workdir);
	if (spec->no_setuid)
		msg_set(&m, claim, no_setuid, true);
	if (spec->services.raw.n)
		msg_set(&m, claim, services, spec->services);
	if (spec->service_options.raw.n)
		msg_set(&m, claim, service_options, spec->service_options);
	if (spec->template_envs)
		msg_set(&m, claim, template_envs, spec->template_envs);
	if (spec->unassigned || spec->wait_ready)
		claim_ready(spec, &m);
	if (spec->unassigned) {
		msg_set(&m, claim, unassigned, true);
		int r = slot_weigh(h, s, 0, err);
		if (r < 0)
			return r;
	}
	return slot_say(s, MSG_ID_claim, &m, err);
}

void slot_rest_close(struct slot_rest *r)
{
	while (r->n)
		close(r->fds[--r->n]);
}

int slot_root_of(struct host *h, const char *const *layers, size_t n_layers, struct slot_root *ret)
{
	ret->n = 0;
	for (size_t i = 0; i < n_layers; i++) {
		int number = layers_number(h, layers[i]);
		if (number < 0)
			return number;
		ret->layers[i] = (unsigned)number;
	}
	ret->n = n_layers;
	return 0;
}

bool slot_root_eq(const struct slot_root *a, const struct slot_root *b)
{
	return a->n == b->n && memcmp(a->layers, b->layers, a->n * sizeof(a->layers[0])) == 0;
}

int slot_dress(struct host *h, struct slot *s, const char *const *layers, size_t n_layers, struct error *err)
{
	cleanup_free char *storage = malloc(MSG_MAX);
	union msg_any any;
	pid_t sender;
	if (!storage)
		return error_errno(err, -ENOMEM, "slot");
	int r = host_enter(h, err);
	if (r == 0)
		r = inside_root(h, s, layers, n_layers, err);
	if (r == 0)
		r = slot_say(s, MSG_ID_enter, &(struct msg_enter){.seccomp = buf_str(&h->filter), .drop_caps = {buf_str(&h->drop_caps)}}, err);
	if (r == 0)
		r = slot_expect(s, storage, MSG_ID_entered, &any, &sender, err);
	slot_rest_close(&s->rest);
	return r;
}

int slot_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err)
{
	bool dressed = s->root.n;
	if (process_ended(s->pidfd))
		return error_set(err, -ESRCH, 500, "the parked init of slot %u has ended", s->number);
	int r = host_enter(h, err);
	if (r == 0)
		r = adjust(h, s, c, err);
	if (r == 0 && !dressed)
		r = inside_root(h, s, c->spec.layers, c->spec.n_layers, err);
	if (r == 0 && s->limits.memory != (uint64_t)h->options->sandbox_memory << 20)
		r = inside_size_memory(h, s, dressed, err);
	return r == 0 ? slot_send_claim(h, s, c, err) : r;
}

bool slot_may_be_dressed(const struct host *h, const struct box_spec *spec)
{
	return !spec->disk && spec->disk_mb == h->options->sandbox_disk && !spec->nested_userns && !spec->no_setuid;
}

/* A policy that is set within a fraction of a ms. */
static bool is_quick(const struct reach *r)
{
	enum { QUICK_RANGES = 64 };
	return !r->opened.n && r->allow.n + r->deny.n <= QUICK_RANGES;
}

bool slot_is_usual(const struct host *h, const struct slot_claim *c)
{
	const struct options *o = h->options;
	const struct box_spec *spec = &c->spec;
	return is_quick(c->reach) && slot_may_be_dressed(h, spec) && spec->memory_mb == o->sandbox_memory && spec->pids == o->sandbox_pids && spec->cpu_count == o->sandbox_cpu;
}

int slot_claim_dressed(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err)
{
	int r = reach_is_default(c->reach) ? 0 : network_slot_set(h->network, &s->net, c->reach, err);
	return r < 0 ? r : slot_send_claim(h, s, c, err);
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

int slot_adopt_network(struct host *h, struct slot *s, const struct reach *reach, struct error *err)
{
	int netns = process_namespace(s->pid, "net");
	if (netns < 0)
		return error_errno(err, netns, "network namespace of slot %u", s->number);
	int r = (s->machine ? network_machine_adopt : network_slot_adopt)(h->network, s->number, netns, &s->net, err);
	if (r < 0) {
		close(netns);
		return r;
	}
	s->has_net = true;
	/* The node may have ended between a change of the policy and its record. */
	return network_slot_set(h->network, &s->net, reach, err);
}

int slot_adopt(struct host *h, struct slot *s, struct str id, const struct reach *reach, struct error *err)
{
	char name[sizeof(s->disk.name)];
	struct error lost = {0};
	memcpy(name, s->disk.name, sizeof(name));
	int r = host_enter(h, err);
	if (r < 0)
		return r;
	s->has_cgroups = s->has_socket = true;
	/* First, also of a dead one: a disk left frozen keeps its processes from ending. */
	int disk = disk_adopt(h, name, s->disk.loop, &s->disk, &lost);
	r = slot_find_process(s, err);
	if (r < 0)
		return r;
	cleanup_free char *storage = malloc(MSG_MAX);
	union msg_any any;
	if (!storage)
		return error_errno(err, -ENOMEM, "adoption");
	s->conn = r = slot_connect(h, s->name, err);
	if (r >= 0)
		r = slot_greet(s, storage, &any, err);
	if (r == 0 && (!any.init_state.claimed || !msg_has(&any.init_state, init_state, sandbox) || !str_eq(any.init_state.sandbox, id)))
		r = error_set(err, -ESTALE, 500, "slot %u holds another sandbox", s->number);
	if (r < 0)
		return r;
	r = slot_adopt_network(h, s, reach, err);
	if (r < 0)
		return r;
	return disk < 0 ? error_set(err, disk, 500, "%s", lost.message) : 0;
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
static int await_end(const struct slot *s)
{
	struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
	siginfo_t info;
	int r;
	do
		r = poll(&p, 1, SLOT_DIES_MS);
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

int slot_kill(struct host *h, struct slot *s)
{
	struct error err = {0};
	int r = 0;
	if (host_enter(h, &err) < 0)
		log_error("%s", err.message);
	if (s->pidfd >= 0) {
		slot_hold_mounts(s);
		process_signal(s->pidfd, SIGKILL);
		cgroups_kill(h->cgroups, s->name);
		r = await_end(s);
		if (r < 0)
			return r;
		close(steal_fd(&s->pidfd));
	} else if (s->has_cgroups) {
		cgroups_kill(h->cgroups, s->name);
	}
	s->pid = 0;
	return 0;
}

int slot_save(struct host *h, struct slot *s, const char *image, struct error *err)
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
	int r = saved_keep(h, s->disk.name, image, s->machine ? NULL : &uid, err);
	if (r < 0)
		return r;
	s->disk.name[0] = '\0';
	disk_unbind(h, &s->disk);
	return 0;
}

int slot_release(struct host *h, struct slot *s)
{
	int r = slot_kill(h, s);
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
