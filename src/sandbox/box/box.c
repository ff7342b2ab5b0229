#include "sandbox/box/box.h"
#include "sandbox/box/handle.h"
#include "sandbox/microvm/asks.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/chan.h"
#include "sys/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

enum { LAST_SECONDS = 2 };

void box_set_state(struct box *b, enum box_state to)
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

struct box *box_new(struct backend *backend, const struct runtime *runtime, struct str id, const struct box_ops *ops, void *arg)
{
	struct box *b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->backend = backend;
	b->runtime = runtime;
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
	chan_free(steal_pointer(&b->chan)); /* who is told may ask something else */
	log_reads_fail(&b->log_reads);
	asks_fail(b, -ECANCELED);
	b->runtime->unwatch(b);
	box_stats_cancel(b);
	loop_timer_free(b->timer);
	b->watch = NULL;
	b->timer = NULL;
}

void box_free(struct box *b)
{
	stop_watching(b);
	if (b->slow)
		b->slow->box = NULL;
	box_copy_stop(b, false);
	if (b->network)
		network_job_leave(b->network);
	box_forget_flush(b);
	free(b->save.image);
	if (b->prev)
		b->prev->next = b->next;
	else
		b->backend->boxes = b->next;
	if (b->next)
		b->next->prev = b->prev;
	free(b->order.texts);
	reach_done(&b->reach);
	free(b);
}

void boxes_leave(struct backend *backend)
{
	while (backend->boxes) {
		struct box *b = backend->boxes;
		/* Nobody has a handle of one that was being made: nobody could find it again. */
		bool lost = b->state == BOX_STARTING || (b->state == BOX_MAKING && b->ordered);
		if (lost && b->slot && b->slot->pidfd >= 0)
			process_signal(b->slot->pidfd, SIGKILL);
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
	b->lives = b->slot && slot_kill(b->backend->host, b->slot, b->late ? 0 : SLOT_DIES_MS) < 0;
	if (b->save.image && !b->lives)
		b->save.error.code = slot_save(b->backend->host, b->slot, b->save.image, !b->runtime->kernel_inside, &b->save.error);
}

static void hand_to_reaper(struct box *b);

static void try_again(struct box *b)
{
	loop_fd_del(b->watch);
	loop_timer_free(b->timer);
	b->watch = NULL;
	b->timer = NULL;
	hand_to_reaper(b);
}

static void on_late_end(struct loop_fd *w, uint32_t events, void *arg)
{
	try_again(arg);
}

static void on_no_end(struct loop_timer *t, void *arg)
{
	try_again(arg);
}

/* Nobody who is ended meanwhile waits for this one. Whoever wants it ended does. */
static void await_end(struct box *b)
{
	struct log_ids i = ids(b);
	b->kills++;
	/* Said after 5, 15, 35 s and so on: the end of one with much memory takes its time. */
	if (b->kills > 1 && !(b->kills & (b->kills - 1)))
		log_write(LOG_WARN, &i, "its processes do not die (killed %u times)", b->kills);
	b->watch = loop_fd_add(b->backend->loop, b->slot->pidfd, EPOLLIN, on_late_end, b);
	b->timer = loop_timer_new(b->backend->loop, on_no_end, b);
	b->late = b->watch && b->timer && loop_timer_in(b->timer, SLOT_DIES_AGAIN_MS * NS_PER_MS) == 0;
	if (!b->late)
		try_again(b); /* without memory: a worker waits */
}

static void release_done(void *arg)
{
	struct box *b = arg;
	struct backend *backend = b->backend;
	if (b->lives) {
		await_end(b);
		return;
	}
	/* Nobody waits for the rest: deleting the image can take as long as the host's disk is busy. */
	if (b->slot)
		backend_discard(backend, steal_pointer(&b->slot));
	if (b->save.done)
		b->save.done(b->save.error.code ? &b->save.error : NULL, b->save.arg);
	if (!b->reported)
		b->ops->released(b, b->arg);
	box_free(b);
	backend_let_drain(backend);
}

static void hand_to_reaper(struct box *b)
{
	if (workq_push(b->backend->reapers, b->backend->loop, release_work, release_done, b) < 0) {
		/* Only without memory for a list entry: better here and now, late, than never. */
		b->late = false;
		do
			release_work(b);
		while (b->lives);
		release_done(b);
	}
}

void box_release(struct box *b)
{
	box_set_state(b, BOX_RELEASING);
	/* Also one whose create failed, which nobody waits for: the end of the backend before its slot is discarded would leave disk and cgroups behind. */
	backend_hold_drain(b->backend);
	chan_take(b->chan); /* the last entries of its log */
	stop_watching(b);
	box_copy_stop(b, true);
	if (b->slot && b->slot->pidfd >= 0) {
		slot_hold_mounts(b->slot);
		process_signal(b->slot->pidfd, SIGKILL);
	}
	if (b->has_number && b->slot && b->slot->has_net)
		b->backend->config.dns_stop(b->number, b->backend->config.arg);
	if (!b->attaching)
		hand_to_reaper(b);
}

void box_fail(struct box *b, const struct error *err)
{
	struct error copy = *err;
	if (!copy.code)
		error_set(&copy, -EIO, 500, "the sandbox could not be started");
	b->reported = true;
	b->ops->started(b, NULL, &copy, b->arg);
	box_release(b);
}

/* --- evidence --- */

void box_find_evidence(struct box *b)
{
	struct box_death *d = &b->death;
	struct cgroup_stats agent = {0}, work = {0};
	if (d->reason[0] || !b->slot)
		return;
	if (b->slot->has_cgroups) {
		cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_AGENT, &agent);
		cgroups_stats(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, &work);
	}
	char status[200];
	b->runtime->say_end(b, status, sizeof(status));
	if (agent.oom_kills || (b->runtime->kernel_inside && work.oom_kills))
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
	box_find_evidence(b);
	*ret = b->death;
}

/* --- running --- */

static void make_handle(struct box *b, struct box_handle *ret)
{
	struct handle h = {
		.runtime = b->runtime,
		.pid = (uint64_t)b->slot->pid,
		.start = b->slot->start,
		.slot = b->number,
		.loop = b->slot->disk.loop,
		.warm = b->warm,
	};
	memcpy(h.boot, b->backend->host->boot_id, sizeof(h.boot));
	handle_format(&h, ret);
}

void box_is_running(struct box *b)
{
	struct box_handle h;
	loop_timer_stop(b->timer);
	box_set_state(b, BOX_RUNNING);
	make_handle(b, &h);
	b->ops->started(b, &h, NULL, b->arg);
}

static void fail_start(struct box *b)
{
	struct error err = b->error;
	if (!err.code)
		error_set(&err, -ECHILD, 500, "the sandbox ended while it started: %s", b->death.detail);
	box_fail(b, &err);
}

static void is_dead(struct box *b)
{
	if (b->state == BOX_STARTING) {
		fail_start(b);
		return;
	}
	box_set_state(b, BOX_DEAD);
	b->assign.request = 0;
	loop_timer_stop(b->timer);
	asks_fail(b, -ECANCELED);
	if (b->state != BOX_DEAD) /* who was told has ended it */
		return;
	if (b->save.image) /* it was about to end anyway */
		box_release(b);
	else
		b->ops->died(b, &b->death, b->arg);
}

static void on_end(struct loop_fd *w, uint32_t events, void *arg)
{
	struct box *b = arg;
	loop_fd_del(b->watch);
	b->watch = NULL;
	box_find_evidence(b);
	/* What it said last may still be in the channel: its end of file comes behind that. */
	if (!b->chan)
		is_dead(b);
}

static void on_timeout(struct loop_timer *t, void *arg)
{
	struct box *b = arg;
	struct error err = b->error;
	if (b->state == BOX_RUNNING) {
		error_set(&err, -ETIMEDOUT, 500, "cubicle-init did not answer its assignment within %d s", BOX_ASSIGN_SECONDS);
		box_assign_failed(b, &err);
		return;
	}
	if (!err.code && !b->chan)
		error_set(&err, -EPROTO, 500, "cubicle-init gave its control channel up while it started");
	else if (!err.code && b->claimed)
		error_set(&err, -ETIMEDOUT, 504, "the sandbox did not tell within %d s whether its services are ready", BOX_READY_SECONDS);
	else if (!err.code)
		error_set(&err, -ETIMEDOUT, 500, "cubicle-init did not answer its claim within %d s", BOX_CLAIM_SECONDS);
	box_fail(b, &err);
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

void box_attach_spawner(struct box *b, pid_t pid)
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
	if (b->state == BOX_STARTING && box_await_message(b, m))
		return;
	if (m->header.type == MSG_ID_claimed && b->state == BOX_STARTING)
		box_is_running(b);
	else if (m->header.type == MSG_ID_error && b->state == BOX_STARTING)
		/* It ends itself now; that end brings the answer. */
		refuse_start(b, m->body->error.message);
	else if (m->header.type == MSG_ID_spawner && (b->state == BOX_RUNNING || b->claimed))
		b->runtime->attach(b, m->sender);
	else if (asks_answer(b, m))
		return;
	else if (m->header.type == MSG_ID_log_page)
		log_reads_answer(&b->log_reads, m->header.request, &m->body->log_page);
	else if (b->state == BOX_RUNNING && box_assign_message(b, m))
		return;
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
	if (!b->watch) {
		is_dead(b);
		return;
	}
	expect_end(b);
	if (b->state == BOX_RUNNING)
		box_assign_failed(b, &(struct error){.code = -EPROTO, .status = 500, .message = "cubicle-init gave its control channel up"});
	asks_fail(b, -EPIPE); /* the last: the box may be released by it */
}

static const struct chan_ops chan_ops = {.message = on_message, .closed = on_closed};

int box_watch(struct box *b, struct error *err)
{
	struct backend *backend = b->backend;
	b->chan = chan_new(backend->loop, steal_fd(&b->slot->conn), MSG_FROM_INIT, CHAN_NO_FDS | CHAN_CREDENTIALS, &chan_ops, b);
	if (!b->chan)
		return error_errno(err, -errno, "control channel");
	b->watch = loop_fd_add(backend->loop, b->slot->pidfd, EPOLLIN, on_end, b);
	b->timer = loop_timer_new(backend->loop, on_timeout, b);
	if (!b->watch || !b->timer)
		return error_errno(err, -ENOMEM, "sandbox");
	int r = b->runtime->watch(b, err);
	if (r < 0)
		return r;
	backend->config.dns_serve(b->number, b->slot->net.dns_udp, b->slot->net.dns_tcp, b->reach.names, str_of(b->id), backend->config.arg);
	return 0;
}

void box_hand_over(struct box *b, const struct box_ops *ops, void *arg)
{
	b->ops = ops;
	b->arg = arg;
}

void box_kill(struct box *b)
{
	if (b->state == BOX_MAKING)
		__atomic_store_n(&b->cancelled, true, __ATOMIC_RELAXED);
	if (b->state == BOX_MAKING && !box_take_back(b))
		return;
	if (b->state != BOX_RELEASING)
		box_release(b);
}
