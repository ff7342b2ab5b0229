#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "node/service.h"

/*
 * A resume (docs/lifecycle.md). From memory: recorded as running, thawed, told. From the disk: started like a create, with the saved image as its disk; recorded; told. All who wait
 * for one are answered by it. Until it is recorded the sandbox is paused, and when a step fails it stays so.
 */

enum { TRAFFIC_LEAST_S = 300 };

/* What the timeout asks for, in seconds from now; -1 = never. */
static int64_t seconds_of(const struct live *l, const struct resume_wait *w)
{
	if (w->mode == RESUME_TRAFFIC)
		return l->s.timeout < 0 ? -1 : MAX(l->s.timeout, (int64_t)TRAFFIC_LEAST_S);
	return w->timeout ? w->timeout : l->node->options->timeout_default;
}

/* The longest that anybody who waits asks for. */
static int64_t seconds_of_all(const struct live *l)
{
	int64_t most = 0;
	for (const struct resume_wait *w = l->resumes; w; w = w->next) {
		int64_t one = seconds_of(l, w);
		if (one < 0)
			return -1;
		most = MAX(most, one);
	}
	return most;
}

static struct resume_wait *take_wait(struct live *l)
{
	struct resume_wait *w = l->resumes;
	l->resumes = w->next;
	return w;
}

void live_fail_resumes(struct live *l, const struct error *err)
{
	while (l->resumes) {
		struct resume_wait *w = take_wait(l);
		request_fail(w->request, err);
		free(w);
	}
}

/* The record */

static void fill_next(struct live *l)
{
	struct node *n = l->node;
	struct resumption *x = &l->next;
	*x = (struct resumption){.disk = !l->s.memory_kept, .auto_pause = l->s.auto_pause, .started_at = node_realtime(n)};
	sandbox_new_generation(x->generation);
	live_deadline_of(n, seconds_of_all(l), &x->deadline, &x->end_at);
	for (const struct resume_wait *w = l->resumes; w; w = w->next)
		if (w->has_auto_pause)
			x->auto_pause = w->auto_pause;
}

static void apply(struct sandbox *s, const struct node *n, const struct resumption *x, const char *launch)
{
	memcpy(s->generation, x->generation, sizeof(s->generation));
	s->started_at = x->started_at;
	s->end_at = x->end_at;
	s->deadline = x->deadline;
	s->auto_pause = x->auto_pause;
	s->memory_kept = false;
	s->image[0] = 0;
	sandbox_copy(s->resumed_from, sizeof(s->resumed_from), str_of(x->disk ? "disk" : "memory"));
	if (!x->disk)
		return;
	s->handle = x->handle;
	memcpy(s->boot_id, n->host->boot_id, sizeof(s->boot_id));
	sandbox_copy(s->launch, sizeof(s->launch), str_of(launch));
}

/* Those who came while it was under way are as if they met it running. */
static void answer_all(struct live *l)
{
	bool moved = false;
	for (struct resume_wait *w = l->resumes; w; w = w->next)
		if (w->mode != RESUME_TRAFFIC)
			moved |= live_extend(l, seconds_of(l, w));
	if (moved) {
		node_event(l->node, &l->s);
		records_put(l->node->records, &l->s, l->s.state, STORE_NORMAL, NULL, NULL);
	}
	while (l->resumes) {
		struct resume_wait *w = take_wait(l);
		request_answer_sandbox(w->request, l, true);
		free(w);
	}
}

static void runs(struct live *l)
{
	struct node *n = l->node;
	char image[sizeof(l->s.image)];
	memcpy(image, l->s.image, sizeof(image));
	apply(&l->s, n, &l->next, l->box ? live_launch_of(&l->s, l->box) : "");
	l->resuming = false;
	sandbox_set_state(&l->s, SANDBOX_RUNNING);
	live_unhold_disk(l);
	live_watch(l, !l->next.disk);
	live_restore_deadline(l, 0);
	live_log(LOG_INFO, l, "resumed from its %s", l->s.resumed_from);
	node_event(n, &l->s);
	if (l->next.disk)
		saved_remove(n, image, NULL);
	answer_all(l);
	live_settled(l);
}

static void boot_failed(struct live *l);

static void resume_recorded(const struct error *err, void *arg)
{
	struct live *l = arg;
	if (l->s.state != SANDBOX_PAUSED || !l->recording)
		return;
	l->recording = false;
	if (l->next.disk && l->boot_error.code) {
		boot_failed(l);
		return;
	}
	if (err && l->next.disk) {
		l->boot_error = *err;
		box_kill(l->box);
		return;
	}
	if (err) {
		l->resuming = false;
		live_fail_resumes(l, err);
		live_settled(l);
		return;
	}
	if (l->next.disk) {
		FAULT(boot_recorded);
		runs(l);
		return;
	}
	FAULT(resume_recorded);
	int r = live_thaw(l);
	FAULT(resume_thawed);
	if (r < 0)
		live_end(l, "crashed", "it cannot be thawed");
	else
		runs(l);
}

static void record(struct live *l)
{
	struct sandbox result = l->s; /* shares what it holds */
	apply(&result, l->node, &l->next, live_launch_of(&l->s, l->box));
	l->recording = true;
	records_put(l->node->records, &result, SANDBOX_RUNNING, STORE_NORMAL, resume_recorded, l);
}

/* From the disk */

/* The image has its saved name still: it is paused as before. */
static void boot_failed(struct live *l)
{
	struct error err = l->boot_error;
	if (l->box || l->recording)
		return; /* comes here again */
	l->boot_error = (struct error){0};
	l->resuming = false;
	live_give_memory(l);
	live_log(LOG_ERROR, l, "cannot be started from its disk: %s", err.message);
	records_put(l->node->records, &l->s, SANDBOX_PAUSED, STORE_FULL, NULL, NULL);
	live_fail_resumes(l, &err);
	live_settled(l);
}

void live_booted(struct live *l, const struct box_handle *h, const struct error *err)
{
	if (err) {
		l->box = NULL;
		l->boot_error = *err;
		boot_failed(l);
		return;
	}
	FAULT(boot_started);
	fill_next(l);
	l->next.handle = *h;
	record(l);
}

void live_boot_died(struct live *l, const struct box_death *d)
{
	if (!l->boot_error.code)
		error_set(&l->boot_error, -ECONNRESET, 500, "the sandbox ended while it was started from its disk: %s", *d->detail ? d->detail : d->reason);
	box_kill(l->box);
}

void live_boot_released(struct live *l)
{
	if (!l->boot_error.code)
		error_set(&l->boot_error, -ECONNRESET, 500, "the sandbox ended while it was started from its disk");
	boot_failed(l);
}

static void boot(void *arg)
{
	struct live *l = arg;
	struct node *n = l->node;
	struct error err = {0};
	l->boot_error = (struct error){0};
	int r = admission_take(&n->admission, l->s.memory_mb, 0, &err);
	if (r < 0 && ready_make_room(n, &l->room, l->s.memory_mb, 0, boot, l))
		return;
	if (r == 0) {
		l->admitted = true;
		l->box = live_start_box(l, l->s.image, &err);
		if (!l->box)
			live_give_memory(l);
	}
	if (!l->box) {
		l->resuming = false;
		live_log(LOG_WARN, l, "resume refused: %s", err.message);
		live_fail_resumes(l, &err);
		node_stop_check(n);
	}
}

/* Requests */

void live_begin_resume(struct live *l)
{
	bool memory = l->s.memory_kept;
	for (const struct resume_wait *w = l->resumes; w; w = w->next)
		memory &= w->memory;
	if (l->s.memory_kept && !memory) {
		live_keep_disk(l); /* and comes here again */
		return;
	}
	l->resuming = true;
	if (!memory) {
		boot(l);
		return;
	}
	fill_next(l);
	record(l);
}

static void answer_running(struct live *l, struct request *r, const struct resume_wait *w)
{
	struct error err;
	if (w->mode == RESUME_EXPLICIT) {
		error_set(&err, -EALREADY, 409, "Sandbox %s is already running", l->s.id);
		request_fail(r, &err);
	} else if (w->mode == RESUME_TRAFFIC) {
		request_answer_sandbox(r, l, false);
	} else {
		struct msg_timeout m = {.sandbox = str_of(l->s.id), .mode = TIMEOUT_CONNECT, .timeout = w->timeout};
		live_timeout(l->node, r, &m);
	}
}

void live_answer_resumes(struct live *l)
{
	while (l->resumes) {
		struct resume_wait *w = take_wait(l);
		answer_running(l, w->request, w);
		free(w);
	}
}

static int check_resume(const struct node *n, const struct live *l, const struct msg_resume *m, struct error *err)
{
	if (m->mode > RESUME_TRAFFIC)
		return error_set(err, -EINVAL, 400, "resume: mode %llu is unknown", (unsigned long long)m->mode);
	if (m->mode == RESUME_EXPLICIT && check_new_timeout(n, m->timeout, err) < 0)
		return -EINVAL;
	if (m->mode == RESUME_CONNECT && check_seconds(n, m->timeout, err) < 0)
		return -EINVAL;
	if (!l || l->s.state == SANDBOX_CREATING)
		return error_set(err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(m->sandbox));
	if (l->s.state == SANDBOX_KILLING)
		return error_set(err, -EBUSY, 409, "Sandbox \"%s\" is being killed", l->s.id);
	if (l->s.state == SANDBOX_RUNNING)
		return 0;
	if (n->stopping)
		return error_set(err, -EAGAIN, 503, "the server is stopping");
	if (!m->memory && !buf_len(&l->s.start))
		return error_set(err, -EOPNOTSUPP, 400, "memory: false: sandbox %s was made by an older version, it can only be resumed from its memory", l->s.id);
	return 0;
}

void live_resume(struct node *n, struct request *r, const struct msg_resume *m)
{
	struct error err = {0};
	struct live *l = live_find(n, m->sandbox);
	struct resume_wait *w = check_resume(n, l, m, &err) == 0 ? calloc(1, sizeof(*w)) : NULL;
	if (!w) {
		if (!err.code)
			error_errno(&err, -ENOMEM, "resume");
		request_fail(r, &err);
		return;
	}
	*w = (struct resume_wait){.request = r, .mode = (enum resume_mode)m->mode, .timeout = m->timeout, .memory = m->memory,
		.has_auto_pause = msg_has(m, resume, auto_pause), .auto_pause = m->auto_pause};
	if (l->s.state == SANDBOX_RUNNING) {
		answer_running(l, r, w);
		free(w);
		return;
	}
	bool joins = l->s.state != SANDBOX_PAUSED || l->resuming;
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text), .sandbox = str_of(l->s.id)}, "resume%s", joins ? " waits, or joins one under way" : "");
	struct resume_wait **end = &l->resumes;
	while (*end)
		end = &(*end)->next;
	*end = w;
	if (!joins)
		live_settled(l);
}
