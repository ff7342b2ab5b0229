#include "sandbox/namespace/namespace_slot.h"
#include "sandbox/namespace/inside.h"
#include "sandbox/namespace/layers.h"
#include "sandbox/box/birth.h"
#include "sandbox/box/host.h"
#include "sandbox/box/slot_control.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

enum {
	AGENT_MB = 128, /* PID 1's own reserve: nothing that happens in work can take it */
	AGENT_PIDS = 32,
};

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

static int make_cgroups(struct host *h, struct slot *s, struct error *err)
{
	const struct options *o = h->options;
	const struct cgroup_limits agent = {.memory = (uint64_t)AGENT_MB << 20, .pids = AGENT_PIDS, .cpu_count = 1};
	const struct cgroup_limits work = work_limits((uint32_t)o->sandbox_memory, (uint32_t)o->sandbox_pids, (uint32_t)o->sandbox_cpu);
	return slot_make_cgroups(h, s, &agent, &work, err);
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

static int send_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err)
{
	char address[INET_ADDRSTRLEN];
	struct in_addr in = {htonl(s->net.guest_address)};
	inet_ntop(AF_INET, &in, address, sizeof(address));
	struct msg_claim m = {.nameserver = str_of(NETWORK_NAMESERVER), .seccomp = buf_str(c->spec.nested_userns ? &h->filter_nested : &h->filter)};
	msg_set(&m, claim, address, str_of(address));
	msg_set(&m, claim, drop_caps, (struct msg_list){buf_str(&h->drop_caps)});
	return slot_send_claim(h, s, c, &m, err);
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
	return r == 0 ? send_claim(h, s, c, err) : r;
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
	return r < 0 ? r : send_claim(h, s, c, err);
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
	r = slot_adopt_network(h, s, network_slot_adopt, reach, err);
	if (r < 0)
		return r;
	return disk < 0 ? error_set(err, disk, 500, "%s", lost.message) : 0;
}
