#include "sandbox/namespace/impl.h"
#include "sandbox/namespace/handle.h"
#include "sandbox/namespace/log_reads.h"
#include "sandbox/space.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/encode.h"
#include "io/chan.h"
#include "sys/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { CLAIM_SECONDS = 20, LAST_SECONDS = 2, CREATE_TRIES = 3 };

enum box_state {
	BOX_MAKING,    /* a worker owns the slot */
	BOX_STARTING,  /* the loop owns it; init was sent its claim */
	BOX_RUNNING,   /* started() was called */
	BOX_DEAD,      /* died() was called; the slot is kept as evidence */
	BOX_RELEASING, /* a reaper owns the slot, or will as soon as the spawner's job is over */
};

/* The copy of a spec that a worker uses; one block of memory. */
struct order {
	struct slot_claim claim;
	char *texts;
};

struct box {
	struct box *prev, *next;
	struct backend *backend;
	const struct box_ops *ops;
	void *arg;
	enum box_state state;
	bool cancelled;      /* box_kill() while a worker had it; read by the worker: atomic */
	bool reported;       /* the asker knows of the end: no released() */
	bool attaching;      /* a worker attaches a spawner */
	bool warm, internet;
	char id[33];
	struct slot *slot;
	unsigned number;     /* of the slot; valid while has_number */
	bool has_number;
	struct order order;
	struct chan *chan;
	struct log_reads log_reads;
	struct loop_fd *watch;
	struct loop_timer *timer;
	struct slow_job *slow; /* at most one trim or sync at a time */
	struct box_death death;
	struct error error;  /* of the worker */
	pid_t spawner;
};

static void set_state(struct box *b, enum box_state to)
{
	static const unsigned from[] = {
		[BOX_MAKING] = 0,
		[BOX_STARTING] = 1u << BOX_MAKING,
		[BOX_RUNNING] = 1u << BOX_STARTING | 1u << BOX_MAKING,
		[BOX_DEAD] = 1u << BOX_RUNNING,
		[BOX_RELEASING] = 1u << BOX_MAKING | 1u << BOX_STARTING | 1u << BOX_RUNNING | 1u << BOX_DEAD,
	};
	if (!(from[to] >> b->state & 1)) {
		log_error("box %s: illegal step from state %d to %d", b->id, b->state, to);
		abort();
	}
	b->state = to;
}

/* --- memory --- */

static struct str put(char **at, struct str s)
{
	struct str copy = str_n(*at, s.n);
	if (s.n)
		memcpy(*at, s.p, s.n);
	(*at)[s.n] = '\0';
	*at += s.n + 1;
	return copy;
}

static int order_init(struct order *o, const struct box_spec *spec)
{
	if (spec->n_layers == 0 || spec->n_layers > BOX_MAX_LAYERS)
		return -EINVAL;
	size_t size = spec->id.n + spec->template_id.n + spec->envs.raw.n + spec->token.n + spec->user.n + spec->workdir.n + spec->services.raw.n + 7;
	for (size_t i = 0; i < spec->n_layers; i++)
		size += strlen(spec->layers[i]) + 1;
	char *at = o->texts = malloc(size);
	if (!at)
		return -ENOMEM;
	struct box_spec *s = &o->claim.spec;
	*s = *spec;
	s->id = put(&at, spec->id);
	s->template_id = put(&at, spec->template_id);
	s->envs.raw = put(&at, spec->envs.raw);
	s->token = put(&at, spec->token);
	s->user = put(&at, spec->user);
	s->workdir = put(&at, spec->workdir);
	s->services.raw = put(&at, spec->services.raw);
	for (size_t i = 0; i < spec->n_layers; i++)
		s->layers[i] = put(&at, str_of(spec->layers[i])).p;
	return 0;
}

/* Names that a sandbox has of its own: the id as host name, a boot id and a machine id that no other has. */
static void order_identity(struct order *o)
{
	unsigned char bytes[16];
	char hex[33];
	struct slot_claim *c = &o->claim;
	snprintf(c->hostname, sizeof(c->hostname), "%.*s", (int)MIN(c->spec.id.n, sizeof(c->hostname) - 1), c->spec.id.p);
	random_bytes(bytes, sizeof(bytes));
	hex_encode(c->machine_id, bytes, sizeof(bytes));
	random_bytes(bytes, sizeof(bytes));
	bytes[6] = (unsigned char)((bytes[6] & 0x0f) | 0x40); /* RFC 4122, random */
	bytes[8] = (unsigned char)((bytes[8] & 0x3f) | 0x80);
	hex_encode(hex, bytes, sizeof(bytes));
	snprintf(c->boot_id, sizeof(c->boot_id), "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static struct box *box_new(struct backend *backend, struct str id, const struct box_ops *ops, void *arg)
{
	struct box *b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->backend = backend;
	b->ops = ops;
	b->arg = arg;
	snprintf(b->id, sizeof(b->id), "%.*s", (int)MIN(id.n, sizeof(b->id) - 1), id.p);
	b->next = backend->boxes;
	if (b->next)
		b->next->prev = b;
	backend->boxes = b;
	return b;
}

static void stop_watching(struct box *b)
{
	loop_fd_del(b->watch);
	chan_free(b->chan);
	log_reads_fail(&b->log_reads);
	loop_timer_free(b->timer);
	b->watch = NULL;
	b->chan = NULL;
	b->timer = NULL;
}

struct slow_job {
	struct box *box; /* NULL: it is gone */
	int root;
	bool trim;
};

static void box_free(struct box *b)
{
	stop_watching(b);
	if (b->slow)
		b->slow->box = NULL;
	if (b->prev)
		b->prev->next = b->next;
	else
		b->backend->boxes = b->next;
	if (b->next)
		b->next->prev = b->prev;
	free(b->order.texts);
	free(b);
}

void boxes_leave(struct backend *backend)
{
	while (backend->boxes) {
		struct box *b = backend->boxes;
		slot_leave(b->slot);
		box_free(b);
	}
}

static struct log_ids ids(const struct box *b)
{
	return (struct log_ids){.sandbox = str_of(b->id)};
}

/* --- release --- */

static void release_work(void *arg)
{
	struct box *b = arg;
	if (b->slot)
		slot_kill(b->backend->host, b->slot);
}

static void release_done(void *arg)
{
	struct box *b = arg;
	/* Nobody waits for the rest: deleting the image can take as long as the host's disk is busy. */
	if (b->slot)
		backend_discard(b->backend, steal_pointer(&b->slot));
	if (!b->reported)
		b->ops->released(b, b->arg);
	box_free(b);
}

static void hand_to_reaper(struct box *b)
{
	if (workq_push(b->backend->reapers, b->backend->loop, release_work, release_done, b) < 0) {
		/* Only without memory for a list entry: better here and now, late, than never. */
		release_work(b);
		release_done(b);
	}
}

/* From any state in which the loop owns the slot. */
static void release(struct box *b)
{
	set_state(b, BOX_RELEASING);
	stop_watching(b);
	if (b->slot && b->slot->pidfd >= 0) {
		slot_hold_mounts(b->slot);
		process_signal(b->slot->pidfd, SIGKILL);
	}
	if (b->has_number && b->slot && b->slot->has_net)
		b->backend->config.dns_stop(b->number, b->backend->config.arg);
	if (!b->attaching)
		hand_to_reaper(b);
}

/* The create or adoption has failed: the asker learns it now, the rest goes on behind. */
static void fail(struct box *b, const struct error *err)
{
	struct error copy = *err;
	if (!copy.code)
		error_set(&copy, -EIO, 500, "the sandbox could not be started");
	b->reported = true;
	b->ops->started(b, NULL, &copy, b->arg);
	release(b);
}

/* --- evidence --- */

static void say_status(const struct box *b, char *to, size_t size)
{
	int code, status;
	if (slot_status(b->slot, &code, &status) < 0)
		snprintf(to, size, "its first process ended while the node was away or is not the node's child: no exit status");
	else if (code == CLD_EXITED)
		snprintf(to, size, "its first process exited with status %d", status);
	else
		snprintf(to, size, "its first process was killed by signal %d (%s)", status, strsignal(status));
}

static void find_evidence(struct box *b)
{
	struct box_death *d = &b->death;
	struct cgroup_stats agent = {0}, work = {0};
	if (d->reason[0] || !b->slot)
		return;
	if (b->slot->has_cgroups) {
		cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_AGENT, &agent);
		cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, &work);
	}
	char status[160];
	say_status(b, status, sizeof(status));
	if (agent.oom_kills)
		snprintf(d->reason, sizeof(d->reason), "oom_killed");
	else
		snprintf(d->reason, sizeof(d->reason), "crashed");
	if (work.oom_kills || agent.oom_kills)
		snprintf(d->detail, sizeof(d->detail), "%s; processes killed for lack of memory before: %llu", status,
			(unsigned long long)(work.oom_kills + agent.oom_kills));
	else
		snprintf(d->detail, sizeof(d->detail), "%s", status);
}

void box_evidence(struct box *b, struct box_death *ret)
{
	find_evidence(b);
	*ret = b->death;
}

/* --- running --- */

static void make_handle(struct box *b, struct box_handle *ret)
{
	struct handle h = {
		.pid = (uint64_t)b->slot->pid,
		.start = b->slot->start,
		.slot = b->number,
		.loop = b->slot->disk.loop,
		.internet = b->internet,
		.warm = b->warm,
	};
	memcpy(h.boot, b->backend->host->boot_id, sizeof(h.boot));
	handle_format(&h, ret);
}

static void is_running(struct box *b)
{
	struct box_handle h;
	loop_timer_stop(b->timer);
	set_state(b, BOX_RUNNING);
	make_handle(b, &h);
	b->ops->started(b, &h, NULL, b->arg);
}

static void fail_start(struct box *b)
{
	struct error err = b->error;
	if (!err.code)
		error_set(&err, -ECHILD, 500, "the sandbox ended while it started: %s", b->death.detail);
	fail(b, &err);
}

static void is_dead(struct box *b)
{
	if (b->state == BOX_STARTING) {
		fail_start(b);
		return;
	}
	set_state(b, BOX_DEAD);
	b->ops->died(b, &b->death, b->arg);
}

static void on_end(struct loop_fd *w, uint32_t events, void *arg)
{
	struct box *b = arg;
	loop_fd_del(b->watch);
	b->watch = NULL;
	find_evidence(b);
	/* What it said last may still be in the channel: its end of file comes behind that. */
	if (!b->chan)
		is_dead(b);
}

static void on_claim_timeout(struct loop_timer *t, void *arg)
{
	struct box *b = arg;
	struct error err = b->error;
	if (!err.code && !b->chan)
		error_set(&err, -EPROTO, 500, "cubicle-init gave its control channel up while it started");
	else if (!err.code)
		error_set(&err, -ETIMEDOUT, 500, "cubicle-init did not answer its claim within %d s", CLAIM_SECONDS);
	fail(b, &err);
}

/* It will not say that it started any more. What it ended by is known in a moment, if it ended; else it is ended. */
static void expect_end(struct box *b)
{
	if (b->state == BOX_STARTING && b->watch)
		loop_timer_in(b->timer, LAST_SECONDS * NS_PER_S);
}

/* --- spawners that come later --- */

struct attach {
	struct box *box;
	int result;
	struct error error;
};

static void attach_work(void *arg)
{
	struct attach *a = arg;
	struct box *b = a->box;
	a->result = host_enter(b->backend->host, &a->error);
	if (a->result == 0)
		a->result = slot_attach_spawner(b->backend->host, b->slot, b->spawner, &a->error);
}

static void attach_done(void *arg)
{
	struct attach *a = arg;
	struct box *b = a->box;
	struct log_ids i = ids(b);
	b->attaching = false;
	if (b->state == BOX_RELEASING)
		hand_to_reaper(b);
	else if (a->result < 0)
		log_write(LOG_WARN, &i, "%s", a->error.message);
	else if (b->chan)
		chan_send(b->chan, MSG_ID_attached, &(struct msg_attached){0}, 0, NULL, 0, NULL);
	free(a);
}

static void attach_spawner(struct box *b, pid_t pid)
{
	struct attach *a = b->attaching ? NULL : calloc(1, sizeof(*a));
	if (!a) /* one at a time; init asks again */
		return;
	a->box = b;
	b->spawner = pid;
	b->attaching = workq_push(b->backend->workers, b->backend->loop, attach_work, attach_done, a) == 0;
	if (!b->attaching)
		free(a);
}

/* --- the control channel --- */

static void refuse_start(struct box *b, struct str message)
{
	error_set(&b->error, -EIO, 500, "cubicle-init: %.*s", STR_FMT(message));
	expect_end(b);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct box *b = arg;
	struct log_ids i = ids(b);
	if (m->header.type == MSG_ID_claimed && b->state == BOX_STARTING)
		is_running(b);
	else if (m->header.type == MSG_ID_error && b->state == BOX_STARTING)
		/* It ends itself now; that end brings the answer. */
		refuse_start(b, m->body->error.message);
	else if (m->header.type == MSG_ID_spawner && b->state == BOX_RUNNING)
		attach_spawner(b, m->sender);
	else if (m->header.type == MSG_ID_log_page)
		log_reads_answer(&b->log_reads, m->header.request, &m->body->log_page);
	else if (m->header.type == MSG_ID_error && b->state == BOX_RUNNING)
		log_reads_answer(&b->log_reads, m->header.request, NULL);
	else
		log_write(LOG_DEBUG, &i, "cubicle-init sent a message out of order");
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	struct box *b = arg;
	struct log_ids i = ids(b);
	b->chan = NULL;
	log_reads_fail(&b->log_reads);
	/* The end of the process is what counts, and the pidfd tells it. A process that closes the channel and lives on is the sandbox's own loss. */
	log_write(LOG_DEBUG, &i, "control channel closed: %s", err ? err->message : "");
	if (!b->watch)
		is_dead(b);
	else
		expect_end(b);
}

static const struct chan_ops chan_ops = {.message = on_message, .closed = on_closed};

/* The slot belongs to the loop from here. */
static int watch(struct box *b, struct error *err)
{
	struct backend *backend = b->backend;
	b->chan = chan_new(backend->loop, steal_fd(&b->slot->conn), MSG_FROM_INIT, CHAN_NO_FDS | CHAN_CREDENTIALS, &chan_ops, b);
	if (!b->chan)
		return error_errno(err, -errno, "control channel");
	b->watch = loop_fd_add(backend->loop, b->slot->pidfd, EPOLLIN, on_end, b);
	b->timer = loop_timer_new(backend->loop, on_claim_timeout, b);
	if (!b->watch || !b->timer)
		return error_errno(err, -ENOMEM, "sandbox");
	backend->config.dns_serve(b->number, b->slot->net.dns_udp, b->slot->net.dns_tcp, b->internet, str_of(b->id), backend->config.arg);
	return 0;
}

/* --- create --- */

/* 1: no parked slot is to be had. */
static int claim_parked(struct box *b)
{
	struct host *h = b->backend->host;
	for (int i = 0; i < CREATE_TRIES; i++) {
		struct slot *s = pool_take(b->backend->pool, &b->order.claim.spec);
		if (!s)
			return 1;
		int r = slot_claim(h, s, &b->order.claim, &b->error);
		bool lost = r < 0 && process_ended(s->pidfd);
		if (r == 0 || !lost) {
			b->slot = s;
			b->warm = true;
			return r;
		}
		backend_discard(b->backend, s);
	}
	return 1;
}

static int make_cold(struct box *b)
{
	struct host *h = b->backend->host;
	int number = pool_take_number(b->backend->pool);
	if (number < 0)
		return error_set(&b->error, -EAGAIN, 503, "all %u sandbox slots are in use", h->capacity);
	b->slot = slot_new((unsigned)number);
	if (!b->slot) {
		pool_give_number(b->backend->pool, (unsigned)number);
		return error_errno(&b->error, -ENOMEM, "slot");
	}
	int r = slot_prepare(h, b->slot, &b->error);
	return r < 0 ? r : slot_claim(h, b->slot, &b->order.claim, &b->error);
}

static void create_work(void *arg)
{
	struct box *b = arg;
	pool_wait_open(b->backend->pool);
	if (__atomic_load_n(&b->cancelled, __ATOMIC_RELAXED))
		return;
	int r = claim_parked(b);
	if (r == 1) {
		b->error = (struct error){0};
		r = make_cold(b);
	}
	b->error.code = r;
	if (b->slot) {
		b->number = b->slot->number;
		b->has_number = true;
	}
}

static void rest_work(void *arg)
{
	struct slot_rest *rest = arg;
	slot_rest_close(rest);
}

/* What a create has left open is closed behind it. */
static void close_rest(struct box *b)
{
	struct slot_rest *rest = b->slot->rest.n ? malloc(sizeof(*rest)) : NULL;
	if (!rest)
		return; /* the end of the slot closes them */
	*rest = b->slot->rest;
	if (workq_push(b->backend->cleaners, b->backend->loop, rest_work, free, rest) < 0)
		free(rest);
	else
		b->slot->rest.n = 0;
}

static void create_done(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	if (b->cancelled) {
		release(b);
		return;
	}
	if (b->error.code < 0) {
		struct error copy = b->error;
		fail(b, &copy);
		return;
	}
	set_state(b, BOX_STARTING);
	close_rest(b);
	if (watch(b, &err) < 0 || loop_timer_in(b->timer, CLAIM_SECONDS * NS_PER_S) < 0)
		fail(b, &err);
}

/* The way of most creates: a slot that needs nothing but its claim is claimed here and now, without the two wake-ups of a worker. 1: there is none. */
static int claim_dressed(struct box *b)
{
	struct error err = {0};
	const struct box_spec *spec = &b->order.claim.spec;
	struct backend *backend = b->backend;
	struct slot *s = slot_is_usual(backend->host, spec) ? pool_take_dressed(backend->pool, spec) : NULL;
	if (!s)
		return 1;
	if (slot_claim_dressed(backend->host, s, &b->order.claim, &err) < 0) {
		backend_discard(backend, s);
		return 1;
	}
	b->slot = s;
	b->number = s->number;
	b->has_number = b->warm = true;
	set_state(b, BOX_STARTING);
	int r = watch(b, &err);
	if (r == 0)
		r = loop_timer_in(b->timer, CLAIM_SECONDS * NS_PER_S);
	if (r < 0) {
		b->reported = true; /* by box_create() */
		release(b);
	}
	return r;
}

struct box *box_create(struct backend *backend, const struct box_spec *spec, const struct box_ops *ops, void *arg, struct error *err)
{
	struct box *b = box_new(backend, spec->id, ops, arg);
	int r = b ? order_init(&b->order, spec) : -ENOMEM;
	if (r == 0) {
		order_identity(&b->order);
		b->internet = spec->internet;
		b->state = BOX_MAKING;
		r = claim_dressed(b);
		if (r == 0)
			return b;
		if (r < 0) {
			error_set(err, r, 500, "sandbox: %s", strerror(-r));
			return NULL;
		}
		r = workq_push(backend->workers, backend->loop, create_work, create_done, b);
	}
	if (r < 0) {
		if (b)
			box_free(b);
		error_set(err, r, r == -EAGAIN ? 503 : 500, "sandbox: %s", strerror(-r));
		return NULL;
	}
	return b;
}

/* --- adoption --- */

static void adopt_work(void *arg)
{
	struct box *b = arg;
	b->error.code = slot_adopt(b->backend->host, b->slot, str_of(b->id), &b->error);
}

static void adopt_done(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	if (b->cancelled) {
		release(b);
		return;
	}
	if (b->error.code < 0) {
		err = b->error;
		find_evidence(b);
		fail(b, &err);
		return;
	}
	if (watch(b, &err) < 0) {
		fail(b, &err);
		return;
	}
	is_running(b);
}

static void is_host_lost(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	if (b->cancelled) {
		release(b);
		return;
	}
	snprintf(b->death.reason, sizeof(b->death.reason), "host_lost");
	snprintf(b->death.detail, sizeof(b->death.detail), "the machine was started again");
	error_set(&err, -ESTALE, 500, "the machine was started again");
	fail(b, &err);
}

struct box *box_adopt(struct backend *backend, struct str id, const char *text, const struct box_ops *ops, void *arg, struct error *err)
{
	struct handle h;
	if (handle_parse(text, &h) < 0) {
		error_set(err, -EINVAL, 500, "the handle '%.200s' is not understood", text);
		return NULL;
	}
	if (h.slot >= network_capacity(backend->host->network)) {
		error_set(err, -ERANGE, 500, "slot %llu is not within network.pool any more", (unsigned long long)h.slot);
		return NULL;
	}
	bool lost = strcmp(h.boot, backend->host->boot_id) != 0;
	struct box *b = box_new(backend, id, ops, arg);
	struct slot *s = b && !lost ? slot_new((unsigned)h.slot) : NULL;
	int r = !b || (!lost && !s) ? -ENOMEM : lost ? 0 : pool_reserve_number(backend->pool, (unsigned)h.slot);
	if (r < 0) {
		slot_leave(s);
		if (b)
			box_free(b);
		error_errno(err, r, "slot %llu", (unsigned long long)h.slot);
		return NULL;
	}
	b->state = BOX_MAKING;
	b->internet = h.internet;
	b->warm = h.warm;
	if (lost) {
		/* What it had is of another boot: the disk's file goes with the sweep, the rest went with the machine. */
		if (loop_post(backend->loop, is_host_lost, b) == 0)
			return b;
		r = -ENOMEM;
	} else {
		s->pid = (pid_t)h.pid;
		s->start = h.start;
		s->internet = h.internet;
		s->disk.loop = (unsigned)h.loop;
		snprintf(s->disk.name, sizeof(s->disk.name), "%s.img", s->name);
		b->slot = s;
		b->number = s->number;
		b->has_number = true;
		r = workq_push(backend->workers, backend->loop, adopt_work, adopt_done, b);
		if (r == 0)
			return b;
		pool_give_number(backend->pool, b->number);
		slot_leave(s);
	}
	box_free(b);
	error_errno(err, r, "adoption");
	return NULL;
}

/* --- what the node asks --- */

void box_kill(struct box *b)
{
	if (b->state == BOX_MAKING)
		__atomic_store_n(&b->cancelled, true, __ATOMIC_RELAXED);
	else if (b->state != BOX_RELEASING)
		release(b);
}

static bool is_usable(const struct box *b)
{
	return b->state == BOX_RUNNING || b->state == BOX_DEAD;
}

int box_freeze(struct box *b, bool on)
{
	return is_usable(b) ? cgroups_freeze(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, on) : -EBUSY;
}

static int open_image(const struct box *b)
{
	int fd = openat(b->backend->host->disks, b->slot->disk.name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int box_space(const struct box *b, struct box_space *ret)
{
	if (!is_usable(b))
		return -EBUSY;
	cleanup_fd int image = open_image(b);
	return image < 0 ? image : space_read(b->slot->disk.loop, b->slot->disk.root, image, ret);
}

int box_dirty(const struct box *b, uint64_t *ret)
{
	return is_usable(b) ? cgroups_dirty(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, ret) : -EBUSY;
}

int box_brake(struct box *b, uint64_t most)
{
	return is_usable(b) ? space_brake(b->slot->disk.loop, b->slot->disk.root, most) : -EBUSY;
}

int64_t box_disk_bytes(const struct box *b)
{
	struct stat st;
	if (!is_usable(b))
		return -EBUSY;
	return fstatat(b->backend->host->disks, b->slot->disk.name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : (int64_t)st.st_blocks * 512;
}

int box_stats(struct box *b, struct box_stats *ret)
{
	struct cgroup_stats c, agent;
	struct box_space space;
	if (!is_usable(b))
		return -EBUSY;
	int r = cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, &c);
	if (r == 0)
		r = cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_AGENT, &agent);
	if (r == 0)
		r = box_space(b, &space);
	if (r < 0)
		return r;
	*ret = (struct box_stats){
		.cpu_usec = c.cpu_usec + agent.cpu_usec,
		.memory_used = c.memory_used,
		.memory_limit = c.memory_limit,
		.memory_cache = c.memory_cache,
		.disk_used = space.used,
		.disk_total = space.total,
		.pids = c.pids,
		.oom_kills = c.oom_kills,
	};
	return 0;
}

static void slow_work(void *arg)
{
	struct slow_job *j = arg;
	struct fstrim_range all = {.len = UINT64_MAX};
	if (j->trim)
		ioctl(j->root, FITRIM, &all);
	else
		syncfs(j->root);
}

static void slow_done(void *arg)
{
	struct slow_job *j = arg;
	if (j->box)
		j->box->slow = NULL;
	close(j->root);
	free(j);
}

static void start_slow(struct box *b, bool trim)
{
	if (!is_usable(b) || b->slow)
		return;
	struct slow_job *j = calloc(1, sizeof(*j));
	if (!j)
		return;
	*j = (struct slow_job){.box = b, .root = fcntl(b->slot->disk.root, F_DUPFD_CLOEXEC, 3), .trim = trim};
	if (j->root < 0 || workq_push(b->backend->slow, b->backend->loop, slow_work, slow_done, j) < 0) {
		if (j->root >= 0)
			close(j->root);
		free(j);
		return;
	}
	b->slow = j;
}

void box_trim(struct box *b)
{
	/* A preallocated disk keeps what it was given: a trim would punch holes into the promise. */
	if (!b->backend->host->options->disk_guarantee)
		start_slow(b, true);
}

void box_sync(struct box *b)
{
	start_slow(b, false);
}

int box_open(struct box *b, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg)
{
	if (b->state != BOX_RUNNING)
		return -EAGAIN;
	return opener_connect(b->backend->opener, b->slot->net.netns, b->slot->net.guest_address, port, done, arg);
}

int box_log(struct box *b, uint64_t after, int64_t since, box_log_fn *done, void *arg)
{
	return b->state == BOX_RUNNING && b->chan ? log_reads_ask(&b->log_reads, b->chan, after, since, done, arg) : -EAGAIN;
}

const char *box_launch(const struct box *b)
{
	return b->warm ? "warm" : "cold";
}
