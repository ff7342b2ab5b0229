#include "sandbox/box/box.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/chan.h"

#include <errno.h>

/* Nobody's until now: it gets the share of the processors that others of its size have, then what its owner brings. */

static void finish(struct box *b, const struct error *err)
{
	box_assigned_fn *done = b->assign.done;
	void *arg = b->assign.arg;
	if (!b->assign.request)
		return;
	b->assign.request = 0;
	loop_timer_stop(b->timer);
	done(err, arg);
}

void box_assign_failed(struct box *b, const struct error *err)
{
	finish(b, err);
}

int box_assign(struct box *b, const struct box_assignment *a, box_assigned_fn *done, void *arg)
{
	struct msg_assign m = {.envs = a->envs};
	if (b->state != BOX_RUNNING || !b->chan || !b->unassigned)
		return -EAGAIN;
	int r = cgroups_weigh(b->backend->host->cgroups, b->slot->name, b->slot->limits.cpu_count);
	if (r < 0)
		return r;
	if (a->token.n)
		msg_set(&m, assign, token, a->token);
	if (a->template_envs)
		msg_set(&m, assign, template_envs, a->template_envs);
	/* The numbers of questions for its log, so that an error can be told from theirs. */
	uint64_t request = ++b->log_reads.last_request;
	r = loop_timer_in(b->timer, BOX_ASSIGN_SECONDS * NS_PER_S);
	if (r == 0)
		r = chan_send(b->chan, MSG_ID_assign, &m, request, NULL, 0, NULL);
	if (r < 0) {
		loop_timer_stop(b->timer);
		return r;
	}
	b->unassigned = false;
	b->assign.request = request;
	b->assign.done = done;
	b->assign.arg = arg;
	return 0;
}

enum { WHY_SIZE = 480 };

/* What a guest says of itself, as a part of an error: its lines are joined. */
static const char *copy_why(struct str why, char text[WHY_SIZE])
{
	size_t n = MIN(why.n, (size_t)WHY_SIZE - 1);
	for (size_t i = 0; i < n; i++)
		text[i] = (unsigned char)why.p[i] < 0x20 || why.p[i] == 0x7f ? ' ' : why.p[i];
	text[n] = '\0';
	return text;
}

static void take_prepared(struct box *b, const struct msg_prepared *m)
{
	char text[WHY_SIZE];
	bool never = !m->ready && msg_has(m, prepared, why);
	if ((m->ready == b->ready && !never) || !b->ops->prepared)
		return;
	b->ready = m->ready;
	b->ops->prepared(b, m->ready, never ? copy_why(m->why, text) : NULL, b->arg);
}

bool box_await_message(struct box *b, const struct chan_message *m)
{
	struct error err = {0};
	char text[WHY_SIZE];
	if (!b->awaits_ready)
		return false;
	if (m->header.type == MSG_ID_claimed && b->claimed)
		return true; /* said twice: it is waited for all the same */
	if (m->header.type == MSG_ID_claimed) {
		b->claimed = true;
		int r = loop_timer_in(b->timer, BOX_READY_SECONDS * NS_PER_S);
		if (r < 0) {
			error_errno(&err, r, "sandbox");
			box_fail(b, &err);
			return true;
		}
		b->ops->programs(b, b->arg);
		return true;
	}
	if (m->header.type != MSG_ID_prepared || !b->claimed)
		return false;
	if (m->body->prepared.ready) {
		box_is_running(b);
		return true;
	}
	bool told = msg_has(&m->body->prepared, prepared, why);
	error_set(&err, -ETIMEDOUT, 504, "%s", told ? copy_why(m->body->prepared.why, text) : "the services of the sandbox are not ready");
	box_fail(b, &err);
	return true;
}

/* An answer to something else than what was asked last is none. */
static bool is_answer(const struct box *b, const struct chan_message *m)
{
	return b->assign.request && m->header.request == b->assign.request;
}

bool box_assign_message(struct box *b, const struct chan_message *m)
{
	struct error err = {0};
	if (m->header.type == MSG_ID_prepared && b->unassigned) {
		take_prepared(b, &m->body->prepared);
		return true;
	}
	if (m->header.type == MSG_ID_prepared)
		return true; /* said before it knew of the assignment, whose answer tells */
	if (m->header.type == MSG_ID_assigned && is_answer(b, m) && m->body->assigned.ready)
		finish(b, NULL);
	else if (m->header.type == MSG_ID_assigned && is_answer(b, m))
		error_set(&err, -EAGAIN, 503, "the services of the sandbox have ended");
	else if (m->header.type == MSG_ID_error && is_answer(b, m))
		error_set(&err, -EIO, 500, "cubicle-init: %.*s", STR_FMT(m->body->error.message));
	else
		return false;
	if (err.code)
		finish(b, &err);
	return true;
}
