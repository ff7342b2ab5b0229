#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "node/service.h"

/* Deadlines (design.md §6, "Time"): run on CLOCK_BOOTTIME, shown as wall time, recorded as both. */

void live_deadline_of(const struct node *n, int64_t seconds, int64_t *ret_deadline, int64_t *ret_end_at)
{
	bool never = seconds < 0;
	*ret_deadline = never ? SANDBOX_NEVER : node_boottime(n) + seconds * NS_PER_S;
	*ret_end_at = never ? SANDBOX_NEVER : node_realtime(n) + seconds * NS_PER_S;
}

int live_set_deadline(struct live *l, int64_t seconds)
{
	struct node *n = l->node;
	int64_t deadline, end_at;
	live_deadline_of(n, seconds, &deadline, &end_at);
	int r = deadlines_set(&n->deadlines, &l->deadline, deadline);
	if (r < 0)
		return r;
	l->s.deadline = deadline;
	l->s.end_at = end_at;
	return 0;
}

int live_start_clocks(struct live *l)
{
	l->s.started_at = node_realtime(l->node);
	int r = live_set_deadline(l, l->s.timeout);
	return r < 0 ? r : live_set_shutdown(l);
}

void show_deadline(const struct node *n, int64_t deadline, int64_t *shown)
{
	if (deadline == SANDBOX_NEVER)
		return;
	int64_t moved = deadline - node_boottime(n) - (*shown - node_realtime(n));
	if (moved > NS_PER_S || moved < -NS_PER_S)
		*shown += moved;
}

void live_restore_deadline(struct live *l, int64_t not_before)
{
	struct node *n = l->node;
	int64_t at = l->s.deadline == SANDBOX_NEVER ? SANDBOX_NEVER : MAX(l->s.deadline, node_boottime(n) + not_before);
	if (deadlines_set(&n->deadlines, &l->deadline, at) < 0)
		abort(); /* it would run for ever */
	node_arm_deadlines(n);
}

void node_arm_deadlines(struct node *n)
{
	int64_t at = MIN(deadlines_next(&n->deadlines), deadlines_next(&n->shutdowns));
	if (at == INT64_MAX)
		loop_timer_stop(n->deadline_timer);
	else
		loop_timer_at(n->deadline_timer, at);
}

/* Nothing to do in any other state: where a transition leads back to running, the deadline counts again from there. */
static void expire(struct live *l, const char *detail)
{
	if (l->s.auto_pause && l->s.state == SANDBOX_RUNNING)
		live_begin_pause(l, l->s.auto_pause_memory);
	else if (!l->s.auto_pause)
		live_end(l, "timeout", detail);
}

void node_expire(struct node *n)
{
	struct deadline *x;
	int64_t now = node_boottime(n);
	node_expire_shutdowns(n); /* first: there is no pause instead of these */
	while ((x = deadlines_due(&n->deadlines, now)))
		expire(container_of(x, struct live, deadline), "its timeout passed");
	node_arm_deadlines(n);
}

void node_clock_stepped(struct node *n)
{
	int64_t offset = node_realtime(n) - node_boottime(n), step = offset - n->clock_offset;
	n->clock_offset = offset;
	if (step > -NS_PER_MS && step < NS_PER_MS)
		return;
	log_warn("the wall clock stepped by %lld ms: what is shown of deadlines moves, the deadlines do not", (long long)(step / NS_PER_MS));
	map_foreach(&n->live, slot)
	{
		struct live *l = slot->value;
		bool moved = live_shutdown_stepped(l, step);
		if (l->s.end_at != SANDBOX_NEVER && l->s.deadline != SANDBOX_NEVER && l->s.state != SANDBOX_CREATING) {
			l->s.end_at += step;
			moved = true;
		}
		bool runs = sandbox_runs(&l->s);
		if (!moved || (!runs && (l->s.state != SANDBOX_PAUSED || l->resuming)))
			continue; /* a transition writes the record */
		records_put(n->records, &l->s, runs ? SANDBOX_RUNNING : SANDBOX_PAUSED, STORE_NORMAL, NULL, NULL);
		node_event(n, &l->s);
	}
	node_arm_deadlines(n);
}

int check_seconds(const struct node *n, int64_t seconds, struct error *err)
{
	if (seconds < -1)
		return error_set(err, -EINVAL, 400, "timeout: must be greater than 0, 0 (now), or -1 (never)");
	if (seconds > n->options->timeout_max)
		return error_set(err, -EINVAL, 400, "timeout: longer than the server's limit of %lld seconds (timeout.max)",
			(long long)n->options->timeout_max);
	return 0;
}

/* Whether connect and refreshes move the deadline: they never shorten it. */
static bool extends(const struct live *l, int64_t seconds)
{
	if (l->s.deadline == SANDBOX_NEVER || seconds == 0)
		return false;
	return seconds < 0 || node_boottime(l->node) + seconds * NS_PER_S > l->s.deadline;
}

int check_new_timeout(const struct node *n, int64_t seconds, struct error *err)
{
	if (seconds != -1 && seconds < 1)
		return error_set(err, -EINVAL, 400, "Timeout must be greater than 0");
	return check_seconds(n, seconds, err);
}

struct change {
	struct request *request;
	struct node *node;
	char id[SANDBOX_ID + 1];
	enum timeout_mode mode;
	int64_t timeout;
};

bool live_extend(struct live *l, int64_t seconds)
{
	if (!extends(l, seconds) || live_set_deadline(l, seconds) < 0)
		return false;
	node_arm_deadlines(l->node);
	return true;
}

/* It is not running any more when the change is recorded. Who connects wants it to run; the change of a deadline was there when the transition began. */
static void changed_late(struct change *c, struct live *l)
{
	struct msg_resume m = {.sandbox = str_of(c->id), .mode = RESUME_CONNECT, .timeout = c->timeout, .memory = true};
	struct error err;
	if (!l || l->s.state == SANDBOX_KILLING) {
		error_set(&err, -ENOENT, 404, "sandbox %s not found", c->id);
		request_fail(c->request, &err);
	} else if (c->mode == TIMEOUT_CONNECT) {
		live_resume(c->node, c->request, &m);
	} else {
		request_answer_sandbox(c->request, l, false);
	}
}

static void changed(const struct error *err, void *arg)
{
	struct change *c = arg;
	struct live *l = live_find(c->node, str_of(c->id));
	if (err) {
		request_fail(c->request, err);
	} else if (!l || !sandbox_runs(&l->s)) {
		changed_late(c, l);
	} else {
		request_answer_sandbox(c->request, l, false);
		if (c->mode == TIMEOUT_SET && c->timeout == 0)
			expire(l, "its timeout was set to 0");
	}
	free(c);
}

static void refuse(const struct live *l, struct error *err)
{
	if (l->s.state == SANDBOX_KILLING)
		error_set(err, -EBUSY, 409, "Sandbox \"%s\" is being killed", l->s.id);
	else if (l->s.state == SANDBOX_PAUSED)
		error_set(err, -ENOENT, 404, "sandbox %s not found: it is paused", l->s.id);
	else
		error_set(err, -EBUSY, 409, "sandbox %s is %s, try again", l->s.id, sandbox_state_name(l->s.state));
}

void live_timeout(struct node *n, struct request *r, const struct msg_timeout *m)
{
	struct error err = {0};
	struct live *l = live_find(n, m->sandbox);
	if (m->mode > TIMEOUT_REFRESH)
		error_set(&err, -EINVAL, 400, "timeout: mode %llu is unknown", (unsigned long long)m->mode);
	else if (check_seconds(n, m->timeout, &err) == 0 && (!l || l->s.state == SANDBOX_CREATING))
		error_set(&err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
	else if (!err.code && !sandbox_runs(&l->s))
		refuse(l, &err);
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	struct change *c = calloc(1, sizeof(*c));
	if (!c) {
		error_errno(&err, -ENOMEM, "timeout");
		request_fail(r, &err);
		return;
	}
	*c = (struct change){.request = r, .node = n, .mode = (enum timeout_mode)m->mode, .timeout = m->timeout};
	memcpy(c->id, l->s.id, sizeof(c->id));
	if ((m->mode == TIMEOUT_SET && m->timeout == 0) || (m->mode != TIMEOUT_SET && !extends(l, m->timeout))) {
		changed(NULL, c);
		return;
	}
	/* Stands from now on, also while the record is written: the deadline before may be near. A record that cannot be written is told to the
	 * client; the new deadline then holds until a restart of the node. */
	int e = live_set_deadline(l, m->timeout);
	if (e < 0) {
		error_errno(&err, e, "timeout");
		changed(&err, c);
		return;
	}
	node_arm_deadlines(n);
	node_event(n, &l->s);
	records_put(n->records, &l->s, l->s.state, STORE_NORMAL, changed, c);
}
