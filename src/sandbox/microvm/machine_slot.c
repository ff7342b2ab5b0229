#include "sandbox/microvm/machine_slot.h"
#include "sandbox/microvm/machines.h"
#include "sandbox/box/birth.h"
#include "sandbox/box/host.h"
#include "sandbox/box/slot_control.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "sys/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
	LOOK_MS = 200,      /* how often a create that is waited for looks whether it is cancelled */
	MONITOR_MB = 64,    /* beside the guest's memory, for the monitor */
	TABLES_SHARE = 128, /* and the kernel's tables: eight bytes a page for the host and as many for the guest are a 256th; twice that */
	LOG_LINES = 40,     /* of what is said in the end */
	LAST_MS = 2000,     /* from the end of its connection to the end of the monitor */
	MONITOR_PIDS = 48,  /* beside a thread for each processor */
	MONITOR_UID = 1000, /* inside its user namespace */
	ARGUMENTS = BIRTH_FDS + 8,
};

/* The monitor's arguments and the descriptors that they name, in order (docs/microvm.md). */
struct monitor {
	struct buf text;
	size_t at[ARGUMENTS];
	size_t n_args;
	int fds[BIRTH_FDS];
	size_t n_fds;
	int owned[BIRTH_FDS]; /* of fds, those to be closed */
	size_t n_owned;
};

static void monitor_done(struct monitor *m)
{
	while (m->n_owned)
		close(m->owned[--m->n_owned]);
	buf_done(&m->text);
}
#define cleanup_monitor __attribute__((__cleanup__(monitor_done)))

static void __attribute__((format(printf, 2, 3))) argument(struct monitor *m, const char *format, ...)
{
	va_list ap;
	if (m->n_args == ARGUMENTS)
		abort(); /* there are as many as layers and some more */
	m->at[m->n_args++] = buf_len(&m->text);
	va_start(ap, format);
	buf_vaddf(&m->text, format, ap);
	va_end(ap);
	buf_add(&m->text, "", 1);
}

/* key=NUMBER, where the descriptor will have that number; `more` behind it. */
static void descriptor(struct monitor *m, const char *key, int fd, const char *more)
{
	if (m->n_fds == BIRTH_FDS)
		abort();
	argument(m, "%s=%d%s", key, 3 + (int)m->n_fds, more);
	m->fds[m->n_fds++] = fd;
}

static void owned_descriptor(struct monitor *m, const char *key, int fd, const char *more)
{
	descriptor(m, key, fd, more);
	m->owned[m->n_owned++] = fd;
}

/* --- what it needs --- */

static int make_cgroups(struct host *h, struct slot *s, const struct box_spec *spec, struct error *err)
{
	const uint64_t beside = MONITOR_MB + spec->memory_mb / TABLES_SHARE;
	const struct cgroup_limits agent = {.memory = (uint64_t)MONITOR_MB << 20, .pids = MONITOR_PIDS, .cpu_count = 1};
	const struct cgroup_limits work = {.memory = (spec->memory_mb + beside) << 20, .pids = spec->cpu_count + MONITOR_PIDS, .cpu_count = spec->cpu_count};
	return slot_make_cgroups(h, s, &agent, &work, err);
}

static int add_layers(struct monitor *m, const struct box_spec *spec, struct error *err)
{
	for (size_t i = 0; i < spec->n_layers; i++) {
		int fd = open(spec->layers[i], O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return error_errno(err, -errno, "layer %s", spec->layers[i]);
		owned_descriptor(m, "disk", fd, ",ro");
	}
	return 0;
}

static int add_disk(struct host *h, struct slot *s, struct monitor *m, const struct box_spec *spec, struct error *err)
{
	char name[32];
	snprintf(name, sizeof(name), "%s.img", s->name);
	int fd = disk_image(h, name, spec->disk_mb, spec->disk, &s->disk, err);
	if (fd < 0)
		return fd;
	owned_descriptor(m, "disk", fd, "");
	return 0;
}

/* Node is connected to both before the monitor exists, so that nothing is missed. */
static int add_sockets(struct host *h, struct slot *s, struct monitor *m, struct error *err)
{
	s->has_socket = true;
	int admin = slot_listen(h, s->monitor_name, err);
	if (admin < 0)
		return admin;
	owned_descriptor(m, "admin", admin, "");
	int control = slot_listen(h, s->name, err);
	if (control < 0)
		return control;
	owned_descriptor(m, "control", control, "");
	s->monitor = slot_connect(h, s->monitor_name, err);
	if (s->monitor < 0)
		return s->monitor;
	s->conn = slot_connect(h, s->name, err);
	return MIN(s->conn, 0);
}

/* In text, into `to`. */
static const char *dotted(uint32_t address, char to[INET_ADDRSTRLEN])
{
	struct in_addr in = {htonl(address)};
	return inet_ntop(AF_INET, &in, to, INET_ADDRSTRLEN);
}

static int arguments(struct host *h, struct slot *s, const struct slot_claim *c, struct monitor *m, struct error *err)
{
	const struct box_spec *spec = &c->spec;
	const struct machines *all = h->machines;
	char address[INET_ADDRSTRLEN], gateway[INET_ADDRSTRLEN];
	const unsigned char *mac = machine_mac;
	argument(m, "cubicle-vmm");
	argument(m, "name=%.*s", STR_FMT(spec->id));
	argument(m, "vcpus=%u", spec->cpu_count);
	argument(m, "memory=%u", spec->memory_mb & ~1u);
	argument(m, "cmdline=console=ttyS0 quiet panic=-1 reboot=k,a random.trust_cpu=on cubicle.layers=%zu cubicle.net=%s/%d,%s cubicle.mtu=%u cubicle.pids=%u", spec->n_layers,
		dotted(MACHINE_ADDRESS, address), MACHINE_PREFIX, dotted(MACHINE_GATEWAY, gateway), network_mtu(h->network), spec->pids);
	argument(m, "jail=%d", MONITOR_UID);
	argument(m, "mac=%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
	argument(m, "mtu=%u", network_mtu(h->network));
	descriptor(m, "kvm", all->kvm, "");
	descriptor(m, "kernel", all->kernel, "");
	descriptor(m, "initramfs", all->initramfs, "");
	descriptor(m, "tap", s->net.tap, "");
	descriptor(m, "console", s->console, "");
	int r = add_sockets(h, s, m, err);
	if (r == 0)
		r = add_layers(m, spec, err);
	if (r == 0)
		r = add_disk(h, s, m, spec, err);
	return r == 0 && m->text.failed ? error_errno(err, -ENOMEM, "arguments of a monitor") : r;
}

/* --- its start --- */

static int give_birth(struct host *h, struct slot *s, const struct monitor *m, struct error *err)
{
	const char *argv[ARGUMENTS + 1];
	struct newborn n = {.pidfd = -1, .go = -1};
	for (size_t i = 0; i < m->n_args; i++)
		argv[i] = buf_str(&m->text).p + m->at[i];
	argv[m->n_args] = NULL;
	const struct birth c = {.program = h->machines->program, .argv = argv, .fds = m->fds, .n_fds = m->n_fds, .log = s->log};
	int r = birth_clone(h, &c, host_uid(h, s->number), s->net.netns, &n, err);
	return slot_begin(h, s, &n, r, CGROUP_WORK, err);
}

struct boot {
	struct slot *slot;
	const bool *cancelled;
	int64_t until; /* CLOCK_MONOTONIC */
	unsigned seconds; /* what that is from the order on */
	char *storage;
	union msg_any any;
};

static int fail_boot(const struct slot *s, int code, int status, struct error *err, const char *what)
{
	char words[120];
	machine_last_words(s, words, sizeof(words));
	return error_set(err, code, status, "%s%s%s", what, words[0] ? ": " : "", words);
}

/* Its connection ends before the process does: what the console says tells more. */
static int lost_boot(const struct slot *s, struct error *err)
{
	struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
	bool ended = poll(&p, 1, LAST_MS) > 0;
	return fail_boot(s, ended ? -ESRCH : -EPROTO, 500, err, ended ? "the microVM ended while it started" : "the microVM gave its control channel up while it started");
}

static int await(struct boot *b, enum msg_id type, struct error *err)
{
	struct slot *s = b->slot;
	struct pollfd p[] = {{.fd = s->conn, .events = POLLIN}, {.fd = s->pidfd, .events = POLLIN}};
	char what[80];
	pid_t sender;
	for (;;) {
		int64_t left = b->until - clock_monotonic();
		int n = poll(p, 2, (int)MIN(MAX(left / NS_PER_MS + 1, 0), LOOK_MS));
		if (__atomic_load_n(b->cancelled, __ATOMIC_RELAXED))
			return error_set(err, -ECANCELED, 500, "the sandbox was ended while it started");
		if (n > 0 && p[0].revents) {
			struct error how = {0};
			int r = slot_expect(s, b->storage, type, &b->any, &sender, &how);
			if (r == -EPIPE || r == -ECONNRESET)
				return lost_boot(s, err);
			if (r < 0 && err)
				*err = how;
			return r;
		}
		if (n > 0 && p[1].revents)
			return lost_boot(s, err);
		if (left <= 0) {
			snprintf(what, sizeof(what), "the microVM did not start within %u s", b->seconds);
			return fail_boot(s, -ETIMEDOUT, 504, err, what);
		}
	}
}

/* The same words as with an init in a namespace; it attaches its spawner itself. */
static int park(struct slot *s, const bool *cancelled, int64_t until, unsigned seconds, struct error *err)
{
	cleanup_free char *storage = malloc(MSG_MAX);
	struct boot b = {.slot = s, .cancelled = cancelled, .until = until, .seconds = seconds, .storage = storage};
	struct msg_hello hello = {.version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION};
	if (!storage)
		return error_errno(err, -ENOMEM, "slot");
	int r = slot_say(s, MSG_ID_hello, &hello, err);
	if (r == 0)
		r = await(&b, MSG_ID_init_state, err);
	s->knows_still = r == 0 && msg_has(&b.any.init_state, init_state, still);
	if (r == 0)
		r = await(&b, MSG_ID_spawner, err);
	if (r == 0)
		r = slot_say(s, MSG_ID_attached, &(struct msg_attached){0}, err);
	return r == 0 ? await(&b, MSG_ID_parked, err) : r;
}

/* For the operator: the end of the file, line by line; hostile bytes. */
static void log_end(int file, const char *what, struct str id)
{
	char tail[4096];
	struct stat st;
	const struct log_ids ids = {.sandbox = id};
	if (file < 0 || fstat(file, &st) < 0)
		return;
	ssize_t n = pread(file, tail, sizeof(tail), MAX(st.st_size - (off_t)sizeof(tail), 0));
	struct str rest = str_n(tail, n > 0 ? (size_t)n : 0), line;
	size_t lines = 0;
	for (size_t k = 0; k < rest.n; k++)
		lines += rest.p[k] == '\n';
	for (; str_cut(rest, '\n', &line, &rest); lines--)
		if (lines <= LOG_LINES && str_trim(line).n)
			log_write(LOG_WARN, &ids, "its %s: %.*s", what, STR_FMT(str_trim(line)));
}

void machine_log(const struct slot *s, struct str id)
{
	log_end(s->log, "monitor", id);
	log_end(s->console, "console", id);
}

/* Its root is root of its own kernel only: there is no filter, and nothing is dropped. */
static int send_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err)
{
	char address[INET_ADDRSTRLEN];
	struct msg_claim m = {.realtime = clock_realtime(), .nameserver = str_of(MACHINE_NAMESERVER), .seccomp = STR("")};
	msg_set(&m, claim, address, str_of(dotted(MACHINE_ADDRESS, address)));
	return slot_send_claim(h, s, c, &m, err);
}

int machine_start(struct host *h, struct slot *s, const struct slot_claim *c, const bool *cancelled, int64_t until, struct error *err)
{
	cleanup_monitor struct monitor m = {0};
	int r = host_enter(h, err);
	if (r == 0)
		r = network_machine_create(h->network, s->number, &s->net, err);
	if (r == 0) {
		s->has_net = true;
		r = reach_is_default(c->reach) ? 0 : network_slot_set(h->network, &s->net, c->reach, err);
	}
	if (r == 0)
		r = make_cgroups(h, s, &c->spec, err);
	if (r == 0 && ((s->console = memfd_create("console", MFD_CLOEXEC)) < 0 || (s->log = memfd_create("log", MFD_CLOEXEC)) < 0))
		r = error_errno(err, -errno, "console");
	if (r == 0)
		r = arguments(h, s, c, &m, err);
	if (r == 0)
		r = give_birth(h, s, &m, err);
	/* The monitor has its own: with its end these are gone. */
	monitor_done(&m);
	if (s->net.tap >= 0)
		close(steal_fd(&s->net.tap));
	if (r == 0)
		r = park(s, cancelled, until, h->machines->boot_seconds, err);
	if (r < 0 && r != -ECANCELED)
		machine_log(s, c->spec.id);
	return r == 0 ? send_claim(h, s, c, err) : r;
}

int machine_adopt(struct host *h, struct slot *s, const struct reach *reach, struct error *err)
{
	int r = host_enter(h, err);
	if (r < 0)
		return r;
	s->has_cgroups = s->has_socket = s->knows_still = true;
	s->disk.unbound = true;
	/* Pid, start and boot of its record are proof enough: nothing inside could have taken the monitor's place. */
	r = slot_find_process(s, err);
	if (r == 0)
		r = MIN(s->monitor = slot_connect(h, s->monitor_name, err), 0);
	if (r == 0)
		r = MIN(s->conn = slot_connect(h, s->name, err), 0);
	return r == 0 ? slot_adopt_network(h, s, network_machine_adopt, reach, err) : r;
}

void machine_last_words(const struct slot *s, char *to, size_t size)
{
	char tail[512];
	to[0] = '\0';
	struct stat st;
	off_t end = s->console < 0 || fstat(s->console, &st) < 0 ? -1 : st.st_size;
	off_t from = end > (off_t)sizeof(tail) ? end - (off_t)sizeof(tail) : 0;
	ssize_t n = end <= 0 ? 0 : pread(s->console, tail, sizeof(tail), from);
	while (n > 0 && (unsigned char)tail[n - 1] <= ' ')
		n--;
	ssize_t begin = n;
	while (begin > 0 && tail[begin - 1] != '\n' && tail[begin - 1] != '\r')
		begin--;
	size_t used = 0;
	for (ssize_t i = begin; i < n && used + 1 < size; i++)
		to[used++] = tail[i] >= ' ' && tail[i] < 0x7f ? tail[i] : '?';
	to[used] = '\0';
}
