#include "api_world.h"
#include "template_node.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "node/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define BASE_ID "tmplbase000000000000" /* the template "base" */

struct fake_sandbox *world_find(struct world *w, const char *id)
{
	for (size_t i = 0; i < w->n_sandboxes; i++)
		if (w->sandboxes[i].alive && !strcmp(w->sandboxes[i].id, id))
			return &w->sandboxes[i];
	return NULL;
}

static struct fake_sandbox *find(struct world *w, struct str id)
{
	char text[33];
	snprintf(text, sizeof(text), "%.*s", STR_FMT(id));
	return world_find(w, text);
}

static struct msg_sandbox message_of(struct world *w, struct fake_sandbox *s)
{
	struct msg_sandbox m = {.id = str_of(s->id), .state = s->state, .team = str_of(s->team), .template_id = str_of(s->template_id),
		.started_at = s->started_at, .end_at = s->end_at, .cpu_count = 2, .memory_mb = 512, .disk_mb = 10240,
		.metadata = {buf_str(&s->metadata)}, .isolation = STR("namespace"), .auto_pause = s->auto_pause, .auto_resume = s->auto_resume,
		.auto_pause_memory = s->auto_pause_memory, .sequence = w->sequence};
	/* The encoder copies it before the next one is written. */
	static char generation[33];
	snprintf(generation, sizeof(generation), "%032x", s->generation);
	m.generation = str_of(generation);
	msg_set(&m, sandbox, alias, STR("base"));
	msg_set(&m, sandbox, launch, STR("warm"));
	if (s->envd_token[0])
		msg_set(&m, sandbox, envd_token, str_of(s->envd_token));
	if (s->traffic_token[0])
		msg_set(&m, sandbox, traffic_token, str_of(s->traffic_token));
	if (s->reason && s->state == SANDBOX_KILLING)
		msg_set(&m, sandbox, reason, str_of(s->reason));
	if (s->state == SANDBOX_PAUSED && s->memory_kept)
		msg_set(&m, sandbox, memory_kept, true);
	if (s->resumed_from)
		msg_set(&m, sandbox, resumed_from, str_of(s->resumed_from));
	if (s->origin[0])
		msg_set(&m, sandbox, origin, str_of(s->origin));
	if (s->name[0]) {
		msg_set(&m, sandbox, idempotency, str_of(s->name));
		msg_set(&m, sandbox, fingerprint, str_of(s->fingerprint));
	}
	if (s->shutdown_after)
		msg_set(&m, sandbox, shutdown_at, s->started_at + s->shutdown_after * NS_PER_S);
	if (s->internet >= 0)
		msg_set(&m, sandbox, internet, s->internet > 0);
	if (buf_len(&s->allow_out))
		msg_set(&m, sandbox, allow_out, (struct msg_list){buf_str(&s->allow_out)});
	if (buf_len(&s->deny_out))
		msg_set(&m, sandbox, deny_out, (struct msg_list){buf_str(&s->deny_out)});
	return m;
}

static void tell(struct world *w, struct fake_sandbox *s, uint64_t request)
{
	struct msg_sandbox m = message_of(w, s);
	assert_int_equal(chan_send(w->node, MSG_ID_sandbox, &m, request, NULL, 0, NULL), 0);
}

void world_event(struct world *w, struct fake_sandbox *s)
{
	w->sequence++;
	tell(w, s, 0);
}

/* The event and the answer of a change, in either order: both are allowed on the wire. */
static void tell_both(struct world *w, struct fake_sandbox *s, uint64_t request)
{
	w->sequence++;
	if (w->answer_first)
		tell(w, s, request);
	tell(w, s, 0);
	if (!w->answer_first)
		tell(w, s, request);
}

static void end_sandbox(struct world *w, struct fake_sandbox *s, const char *reason, const char *detail, int64_t at)
{
	s->alive = false;
	s->state = SANDBOX_GONE;
	w->sequence++;
	struct msg_sandbox m = message_of(w, s);
	msg_set(&m, sandbox, reason, str_of(reason));
	msg_set(&m, sandbox, ended_at, at);
	if (detail)
		msg_set(&m, sandbox, detail, str_of(detail));
	chan_send(w->node, MSG_ID_sandbox, &m, 0, NULL, 0, NULL);
}

void world_end(struct world *w, const char *id, const char *reason, const char *detail, int64_t at)
{
	end_sandbox(w, world_find(w, id), reason, detail, at);
	world_turn(w);
}

static struct msg_snapshot snapshot_of(const struct fake_snapshot *s)
{
	struct msg_snapshot m = {.id = str_of(s->id), .team = str_of(s->team), .sandbox = str_of(s->sandbox), .template_id = STR(BASE_ID),
		.created_at = s->created_at, .cpu_count = 2, .memory_mb = 512, .disk_mb = 10240, .size = 8192};
	if (s->name[0])
		msg_set(&m, snapshot, name, str_of(s->name));
	if (!s->alive)
		msg_set(&m, snapshot, gone, true);
	return m;
}

static void tell_snapshot(struct world *w, const struct fake_snapshot *s, uint64_t request)
{
	struct msg_snapshot m = snapshot_of(s);
	assert_int_equal(chan_send(w->node, MSG_ID_snapshot, &m, request, NULL, 0, NULL), 0);
}

/* Snapshots are sent as events are, or as answers to the subscription: both are allowed. */
static void subscribe(struct world *w, uint64_t request)
{
	struct msg_template t = {.id = STR(BASE_ID), .created_at = 1000 * NS_PER_S, .cpu_count = 2, .memory_mb = 512,
		.disk_mb = 10240, .size = 4096, .build_id = STR("123e4567-e89b-12d3-a456-426614174000")};
	msg_set(&t, template, alias, STR("base"));
	chan_send(w->node, MSG_ID_template, &t, request, NULL, 0, NULL);
	template_node_subscribe(w, request);
	for (size_t i = 0; i < w->n_sandboxes; i++)
		if (w->sandboxes[i].alive && !(w->held[i] && w->unborn))
			tell(w, &w->sandboxes[i], request);
	for (size_t i = 0; i < w->n_snapshots; i++)
		if (w->snapshots[i].alive)
			tell_snapshot(w, &w->snapshots[i], request);
	struct msg_synced m = {.sequence = w->sequence};
	chan_send(w->node, MSG_ID_synced, &m, request, NULL, 0, NULL);
}

static void refuse(struct world *w, uint64_t request, int code, int status, const char *message)
{
	struct error err = {.code = code, .status = status};
	snprintf(err.message, sizeof(err.message), "%s", message);
	chan_send_error(w->node, request, &err);
}

/* What was made, or is being made, by the name of this create: true = answered, or joined to it. */
static bool named(struct world *w, const struct msg_create *m, uint64_t request)
{
	for (size_t i = 0; msg_has(m, create, idempotency) && i < w->n_sandboxes; i++) {
		struct fake_sandbox *s = &w->sandboxes[i];
		if (!s->alive || !str_is(m->idempotency, s->name) || !str_is(m->team, s->team))
			continue;
		if (!str_is(m->fingerprint, s->fingerprint)) {
			refuse(w, request, -EEXIST, 409, "Idempotency-Key: another request has it");
		} else if (w->held[i]) {
			assert_true(w->n_joined < WORLD_WAITING);
			w->joined[w->n_joined].request = request;
			w->joined[w->n_joined++].sandbox = i;
		} else {
			tell(w, s, request);
		}
		return true;
	}
	return false;
}

static void create(struct world *w, const struct msg_create *m, uint64_t request)
{
	assert_true(w->n_sandboxes < WORLD_SANDBOXES);
	snprintf(w->last_template, sizeof(w->last_template), "%.*s", STR_FMT(m->template));
	if (named(w, m, request))
		return;
	struct fake_sandbox *s = &w->sandboxes[w->n_sandboxes++];
	*s = (struct fake_sandbox){.alive = true, .state = SANDBOX_RUNNING, .started_at = clock_realtime(), .internet = -1, .generation = 1,
		.auto_pause = m->auto_pause, .auto_resume = m->auto_resume, .auto_pause_memory = m->auto_pause_memory};
	if (str_starts(m->template, STR("snap-")))
		snprintf(s->origin, sizeof(s->origin), "%.*s", STR_FMT(m->template));
	s->end_at = m->timeout < 0 ? INT64_MAX : s->started_at + m->timeout * NS_PER_S;
	snprintf(s->id, sizeof(s->id), "i%020zu", w->n_sandboxes);
	snprintf(s->team, sizeof(s->team), "%.*s", STR_FMT(m->team));
	snprintf(s->template_id, sizeof(s->template_id), "%.*s", STR_FMT(m->template));
	if (m->secure)
		snprintf(s->envd_token, sizeof(s->envd_token), "envd%zu", w->n_sandboxes);
	if (!m->public_traffic)
		snprintf(s->traffic_token, sizeof(s->traffic_token), "traffic%zu", w->n_sandboxes);
	if (msg_has(m, create, internet))
		s->internet = m->internet;
	buf_add_str(&s->metadata, m->metadata.raw);
	buf_add_str(&s->allow_out, m->allow_out.raw);
	buf_add_str(&s->deny_out, m->deny_out.raw);
	buf_clear(&w->last_envs);
	buf_add_str(&w->last_envs, m->envs.raw);
	w->last_create_timeout = m->timeout;
	snprintf(w->last_request_id, sizeof(w->last_request_id), "%.*s", STR_FMT(m->request));
	if (msg_has(m, create, idempotency)) {
		snprintf(s->name, sizeof(s->name), "%.*s", STR_FMT(m->idempotency));
		snprintf(s->fingerprint, sizeof(s->fingerprint), "%.*s", STR_FMT(m->fingerprint));
	}
	s->shutdown_after = msg_has(m, create, shutdown_after) ? m->shutdown_after : 0;
	if (w->hold) {
		if (!w->unborn)
			world_event(w, s);
		w->held[w->n_sandboxes - 1] = request;
	} else {
		tell_both(w, s, request);
	}
}

void world_release(struct world *w)
{
	for (size_t i = w->n_sandboxes; i-- > 0;)
		if (w->held[i]) {
			if (w->unborn)
				world_event(w, &w->sandboxes[i]);
			tell(w, &w->sandboxes[i], w->held[i]);
			w->held[i] = 0;
		}
	for (size_t i = 0; i < w->n_joined; i++)
		tell(w, &w->sandboxes[w->joined[i].sandbox], w->joined[i].request);
	w->n_joined = 0;
	w->hold = false;
}

void world_fail_held(struct world *w, int status)
{
	for (size_t i = 0; i < w->n_sandboxes; i++)
		if (w->held[i]) {
			refuse(w, w->held[i], -EIO, status, "it could not be started");
			w->sandboxes[i].alive = false;
			w->held[i] = 0;
		}
	for (size_t i = 0; i < w->n_joined; i++)
		refuse(w, w->joined[i].request, -EIO, status, "it could not be started");
	w->n_joined = 0;
	w->hold = false;
}

static struct pool_info *find_pool(struct world *w, struct str template)
{
	for (size_t i = 0; i < w->n_pools; i++)
		if (str_is(template, w->pools[i].template_id) || (str_is(template, "base") && !strcmp(w->pools[i].template_id, BASE_ID)))
			return &w->pools[i];
	return NULL;
}

static void tell_pools(struct world *w, const struct pool_info *pools, size_t n, uint64_t request)
{
	struct msg_pools_page page = {.pools = str_n(pools, n * sizeof(*pools))};
	chan_send(w->node, MSG_ID_pools_page, &page, request, NULL, 0, NULL);
}

static void set_pool(struct world *w, const struct msg_set_pool *m, uint64_t request)
{
	struct pool_info *p = find_pool(w, m->template);
	if (!p) {
		assert_true(w->n_pools < WORLD_POOLS);
		p = &w->pools[w->n_pools++];
		*p = (struct pool_info){0};
		snprintf(p->template_id, sizeof(p->template_id), "%.*s", STR_FMT(str_is(m->template, "base") ? STR(BASE_ID) : m->template));
	}
	p->set = true;
	p->min = (uint32_t)m->min;
	p->size = (uint32_t)m->size;
	p->max = (uint32_t)m->max;
	tell_pools(w, p, 1, request);
}

static void unset_pool(struct world *w, const struct msg_unset_pool *m, uint64_t request)
{
	struct pool_info *p = find_pool(w, m->template);
	if (!p || !p->set) {
		refuse(w, request, -ENOENT, 404, "no pool is set for this template");
		return;
	}
	p->set = false;
	chan_send(w->node, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
}

static void set_timeout(struct world *w, const struct msg_timeout *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	w->last_timeout = *m;
	if (!s) {
		refuse(w, request, -ENOENT, 404, "no such sandbox");
		return;
	}
	if (m->timeout == 0) {
		struct msg_sandbox answer = message_of(w, s);
		end_sandbox(w, s, "timeout", NULL, clock_realtime());
		chan_send(w->node, MSG_ID_sandbox, &answer, request, NULL, 0, NULL);
		return;
	}
	int64_t end = m->timeout < 0 ? INT64_MAX : clock_realtime() + m->timeout * NS_PER_S;
	s->end_at = m->mode == TIMEOUT_SET || end > s->end_at ? end : s->end_at;
	tell_both(w, s, request);
}

static void set_network(struct world *w, const struct msg_network *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	if (!s) {
		refuse(w, request, -ENOENT, 404, "no such sandbox");
		return;
	}
	buf_clear(&s->allow_out);
	buf_clear(&s->deny_out);
	buf_add_str(&s->allow_out, m->allow_out.raw);
	buf_add_str(&s->deny_out, m->deny_out.raw);
	s->internet = msg_has(m, network, internet) ? m->internet : -1;
	world_event(w, s);
	chan_send(w->node, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
}

static void kill_sandbox(struct world *w, const struct msg_kill *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	if (!s) {
		refuse(w, request, -ENOENT, 404, "no such sandbox");
		return;
	}
	if (!w->answer_first)
		end_sandbox(w, s, "killed", NULL, clock_realtime());
	chan_send(w->node, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
	if (w->answer_first)
		end_sandbox(w, s, "killed", NULL, clock_realtime());
}

/* Second i has sample i; a page holds few. */
static void metrics(struct world *w, const struct msg_metrics *m, uint64_t request)
{
	enum { FEW = 7 };
	struct metrics_sample one[FEW];
	struct metrics_newest several[METRICS_BATCH];
	struct msg_metrics_page page = {0};
	struct str rest = m->sandboxes.raw, id;
	size_t n = 0;
	w->metrics_asked++;
	if (msg_has(m, metrics, sandboxes)) {
		for (; msg_list_next(&rest, &id); n++) {
			assert_true(n < METRICS_BATCH);
			several[n] = (struct metrics_newest){.sample = {.at = 1500000000, .cpu_count = 2, .cpu_percent = 1}};
			memcpy(several[n].id, id.p, id.n);
		}
		page.samples = str_n(several, n * sizeof(several[0]));
	} else {
		for (int64_t i = 0; i < w->metrics && !page.more; i++) {
			int64_t at = i * NS_PER_S;
			if (at < m->start || at > m->end)
				continue;
			if (n == FEW)
				page.more = true;
			else
				one[n++] = (struct metrics_sample){.at = at, .mem_used = 1, .mem_cache = 2, .mem_total = 3, .disk_used = 4, .disk_total = 5, .cpu_count = 6, .cpu_percent = 705};
		}
		page.samples = str_n(one, n * sizeof(one[0]));
	}
	chan_send(w->node, MSG_ID_metrics_page, &page, request, NULL, 0, NULL);
}

static void ok(struct world *w, uint64_t request)
{
	chan_send(w->node, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
}

static void finish_pause(struct world *w, struct fake_sandbox *s)
{
	s->state = SANDBOX_PAUSED;
	s->end_at = clock_realtime();
	world_event(w, s);
}

static void wait_for_pause(struct world *w, struct fake_sandbox *s, uint64_t request, bool resume)
{
	assert_true(w->n_waiting < WORLD_WAITING);
	w->waiting[w->n_waiting].request = request;
	w->waiting[w->n_waiting].resume = resume;
	memcpy(w->waiting[w->n_waiting++].id, s->id, sizeof(s->id));
}

static void pause_sandbox(struct world *w, const struct msg_pause *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	w->last_pause_memory = m->memory;
	if (!s) {
		refuse(w, request, -ENOENT, 404, "no such sandbox");
	} else if (s->state == SANDBOX_PAUSED) {
		char text[128];
		snprintf(text, sizeof(text), "Error pausing sandbox - sandbox '%s' is already paused", s->id);
		refuse(w, request, -EALREADY, 409, text);
	} else if (w->slow) {
		if (s->state == SANDBOX_RUNNING) {
			s->state = SANDBOX_PAUSING;
			s->memory_kept = m->memory;
			world_event(w, s);
		}
		wait_for_pause(w, s, request, false);
	} else {
		s->memory_kept = m->memory;
		finish_pause(w, s);
		ok(w, request);
	}
}

/* The node's rules of design.md §6, as far as a client sees them. */
static void resume_now(struct world *w, struct fake_sandbox *s, uint64_t request)
{
	int64_t seconds = w->last_resume.timeout ? w->last_resume.timeout : 300, end = seconds < 0 ? INT64_MAX : clock_realtime() + seconds * NS_PER_S;
	if (s->state == SANDBOX_PAUSED) {
		s->state = SANDBOX_RUNNING;
		s->generation++;
		s->started_at = clock_realtime();
		s->end_at = end;
		s->resumed_from = s->memory_kept && w->last_resume.memory ? "memory" : "disk";
	} else if (w->last_resume.timeout && end > s->end_at) {
		s->end_at = end;
	}
	if (msg_has(&w->last_resume, resume, auto_pause))
		s->auto_pause = w->last_resume.auto_pause;
	tell_both(w, s, request);
}

static void resume_sandbox(struct world *w, const struct msg_resume *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	w->last_resume = *m;
	if (!s)
		refuse(w, request, -ENOENT, 404, "no such sandbox");
	else if (s->state == SANDBOX_RUNNING && m->mode == RESUME_EXPLICIT)
		refuse(w, request, -EALREADY, 409, "it runs");
	else if (s->state == SANDBOX_PAUSING)
		wait_for_pause(w, s, request, true);
	else
		resume_now(w, s, request);
}

void world_settle(struct world *w)
{
	w->slow = false;
	for (size_t i = 0; i < w->n_sandboxes; i++)
		if (w->sandboxes[i].alive && w->sandboxes[i].state == SANDBOX_PAUSING)
			finish_pause(w, &w->sandboxes[i]);
	for (size_t i = 0; i < w->n_waiting; i++) {
		if (w->waiting[i].resume)
			resume_now(w, world_find(w, w->waiting[i].id), w->waiting[i].request);
		else
			ok(w, w->waiting[i].request);
	}
	w->n_waiting = 0;
	world_turn(w);
}

static void make_snapshot(struct world *w, const struct msg_make_snapshot *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	if (!s) {
		refuse(w, request, -ENOENT, 404, "no such sandbox");
		return;
	}
	assert_true(w->n_snapshots < WORLD_SNAPSHOTS);
	struct fake_snapshot *t = &w->snapshots[w->n_snapshots++];
	*t = (struct fake_snapshot){.alive = true, .created_at = 1000 * NS_PER_S + (int64_t)w->n_snapshots};
	snprintf(t->id, sizeof(t->id), "snap-%020zu", w->n_snapshots);
	memcpy(t->team, s->team, sizeof(t->team));
	memcpy(t->sandbox, s->id, sizeof(t->sandbox));
	if (msg_has(m, make_snapshot, name))
		snprintf(t->name, sizeof(t->name), "%.*s", STR_FMT(m->name));
	if (!w->answer_first)
		tell_snapshot(w, t, 0);
	tell_snapshot(w, t, request);
}

static struct fake_snapshot *find_snapshot(struct world *w, struct str id)
{
	for (size_t i = 0; i < w->n_snapshots; i++)
		if (w->snapshots[i].alive && str_is(id, w->snapshots[i].id))
			return &w->snapshots[i];
	return NULL;
}

static void delete_snapshot(struct world *w, const struct msg_delete_snapshot *m, uint64_t request)
{
	struct fake_snapshot *t = find_snapshot(w, m->snapshot);
	if (!t) {
		refuse(w, request, -ENOENT, 404, "no such snapshot");
		return;
	}
	t->alive = false;
	if (!w->answer_first)
		tell_snapshot(w, t, 0);
	ok(w, request);
	if (w->answer_first)
		tell_snapshot(w, t, 0);
}

static void fork_sandbox(struct world *w, const struct msg_fork *m, uint64_t request)
{
	struct fake_sandbox *parent = find(w, m->sandbox);
	cleanup_buf struct buf results = BUF_INIT;
	w->last_fork = *m;
	if (!parent) {
		refuse(w, request, -ENOENT, 404, "no such sandbox");
		return;
	}
	for (uint64_t i = 0; i < m->count; i++) {
		cleanup_buf struct buf item = BUF_INIT;
		if (w->forks_fail) {
			w->forks_fail--;
			msg_list_add(&item, STR(""));
			msg_list_add(&item, STR("507"));
			msg_list_add(&item, STR("the disk is full"));
		} else {
			struct fake_sandbox *s = &w->sandboxes[w->n_sandboxes++];
			*s = *parent;
			s->metadata = BUF_INIT;
			snprintf(s->id, sizeof(s->id), "i%020zu", w->n_sandboxes);
			memcpy(s->origin, parent->id, sizeof(s->origin));
			world_event(w, s);
			msg_list_add(&item, str_of(s->id));
			msg_list_add(&item, STR("201"));
			msg_list_add(&item, STR(""));
		}
		msg_list_add(&results, buf_str(&item));
	}
	chan_send(w->node, MSG_ID_forked, &(struct msg_forked){.results = {buf_str(&results)}}, request, NULL, 0, NULL);
}

static void roll_back(struct world *w, const struct msg_rollback *m, uint64_t request)
{
	struct fake_sandbox *s = find(w, m->sandbox);
	if (!s || !find_snapshot(w, m->snapshot)) {
		refuse(w, request, -ENOENT, 404, s ? "no such snapshot" : "no such sandbox");
		return;
	}
	s->generation++;
	tell_both(w, s, request);
}

static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
	struct world *w = arg;
	uint64_t request = m->header.request;
	if (m->header.type == MSG_ID_hello)
		return;
	if (m->header.type == MSG_ID_subscribe) {
		subscribe(w, w->answer_first ? request : 0);
		return;
	}
	w->calls++;
	if (w->silent) {
		w->silent = false;
		w->silent_request = request;
		return;
	}
	if (w->refuse.status) {
		chan_send_error(c, request, &w->refuse);
		w->refuse = (struct error){0};
		return;
	}
	if (template_node_message(w, m)) {
		return;
	} else if (m->header.type == MSG_ID_create) {
		create(w, &m->body->create, request);
	} else if (m->header.type == MSG_ID_kill) {
		kill_sandbox(w, &m->body->kill, request);
	} else if (m->header.type == MSG_ID_timeout) {
		set_timeout(w, &m->body->timeout, request);
	} else if (m->header.type == MSG_ID_network) {
		set_network(w, &m->body->network, request);
	} else if (m->header.type == MSG_ID_pause) {
		pause_sandbox(w, &m->body->pause, request);
	} else if (m->header.type == MSG_ID_resume) {
		resume_sandbox(w, &m->body->resume, request);
	} else if (m->header.type == MSG_ID_make_snapshot) {
		make_snapshot(w, &m->body->make_snapshot, request);
	} else if (m->header.type == MSG_ID_delete_snapshot) {
		delete_snapshot(w, &m->body->delete_snapshot, request);
	} else if (m->header.type == MSG_ID_fork) {
		fork_sandbox(w, &m->body->fork, request);
	} else if (m->header.type == MSG_ID_rollback) {
		roll_back(w, &m->body->rollback, request);
	} else if (m->header.type == MSG_ID_logs) {
		struct msg_log_page page = {.entries = str_of(w->log ? w->log : ""), .next = m->body->logs.after + 1, .more = w->log_endless};
		w->log_reads++;
		chan_send(c, MSG_ID_log_page, &page, request, NULL, 0, NULL);
	} else if (m->header.type == MSG_ID_metrics) {
		metrics(w, &m->body->metrics, request);
	} else if (m->header.type == MSG_ID_pools) {
		tell_pools(w, w->pools, w->n_pools, request);
	} else if (m->header.type == MSG_ID_set_pool) {
		set_pool(w, &m->body->set_pool, request);
	} else if (m->header.type == MSG_ID_unset_pool) {
		unset_pool(w, &m->body->unset_pool, request);
	} else if (m->header.type == MSG_ID_reload_templates) {
		w->reloads++;
		chan_send(c, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
	}
}

static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	((struct world *)arg)->node = NULL;
}

static const struct chan_ops node_ops = {.message = on_message, .closed = on_closed};

void world_turn(struct world *w)
{
	for (int i = 0; i < 8; i++)
		assert_int_equal(loop_turn(w->loop, 0), 0);
}

void world_connect_node(struct world *w)
{
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	w->node = chan_new(w->loop, fds[1], MSG_FROM_FRONT, 0, &node_ops, w);
	assert_non_null(w->node);
	assert_int_equal(node_client_attach(w->client, fds[0]), 0);
	world_turn(w);
	assert_true(index_ready(w->index));
}

void world_lose_node(struct world *w)
{
	chan_free(w->node);
	w->node = NULL;
	world_turn(w);
	assert_false(node_client_connected(w->client));
}

static void on_public(struct http_req *r, void *arg)
{
	api_handle(((struct world *)arg)->api, r, false);
}

static void on_admin(struct http_req *r, void *arg)
{
	api_handle(((struct world *)arg)->api, r, true);
}

struct world *world_new(void)
{
	struct world *w = calloc(1, sizeof(*w));
	struct error err = {0};
	w->templates = calloc(1, sizeof(*w->templates));
	w->templates->file = -1;
	options_init(&w->options);
	snprintf(w->directory, sizeof(w->directory), "/tmp/cubicle-test-api-XXXXXX");
	assert_non_null(mkdtemp(w->directory));
	w->loop = loop_new();
	w->workq = workq_new(1, 64);
	w->index = index_new();
	w->client = node_client_new(w->loop, w->index);
	struct api_config c = {.loop = w->loop, .workq = w->workq, .options = &w->options, .index = w->index, .node = w->client,
		.directory = w->directory};
	if (api_new(&c, &w->api, &err) < 0)
		fail_msg("%s", err.message);
	for (int i = 0; i < 2; i++) {
		struct http_server_config config = {.on_request = i ? on_admin : on_public, .arg = w};
		w->servers[i] = http_server_new(w->loop, &config);
	}
	cleanup_reply struct reply r = world_admin(w, "POST", "/admin/keys", "{\"name\":\"first\"}");
	assert_int_equal(r.status, 201);
	snprintf(w->key, sizeof(w->key), "%s", reply_text(&r, "key"));
	return w;
}

static void nothing(void *arg)
{
}

static void set(void *arg)
{
	*(bool *)arg = true;
}

void world_free(struct world *w)
{
	for (int i = 0; i < 2; i++)
		http_server_free(w->servers[i]);
	/* The one worker takes jobs in order: what was asked before is done then. */
	bool idle = false;
	assert_int_equal(workq_push(w->workq, w->loop, nothing, set, &idle), 0);
	while (!idle)
		loop_turn(w->loop, 100);
	world_turn(w);
	workq_free(w->workq);
	world_turn(w);
	api_free(w->api);
	node_client_free(w->client);
	index_free(w->index);
	chan_free(w->node);
	loop_free(w->loop);
	options_done(&w->options);
	for (size_t i = 0; i < w->n_sandboxes; i++) {
		buf_done(&w->sandboxes[i].metadata);
		buf_done(&w->sandboxes[i].allow_out);
		buf_done(&w->sandboxes[i].deny_out);
	}
	buf_done(&w->last_envs);
	if (w->templates->file >= 0)
		close(w->templates->file);
	free(w->templates);
	remove_tree(AT_FDCWD, w->directory);
	free(w);
}

int world_open(struct world *w, bool admin)
{
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	fd_set_nonblock(fds[1], true);
	assert_int_equal(http_server_adopt(w->servers[admin], fds[1], STR("")), 0);
	return fds[0];
}

/* True when a whole answer stands in r->bytes. */
static bool parse(struct reply *r, bool was_head)
{
	ssize_t n = http_parse_response(buf_str(&r->bytes), was_head, r->head);
	assert_true(n >= 0);
	if (n == 0)
		return false;
	struct str rest = str_from(buf_str(&r->bytes), (size_t)n);
	uint64_t length = r->head->framing == HTTP_BODY_LENGTH ? r->head->length : 0;
	assert_true(r->head->framing == HTTP_BODY_NONE || r->head->framing == HTTP_BODY_LENGTH);
	if (rest.n < length)
		return false;
	r->status = r->head->status;
	r->body = str_n(rest.p, (size_t)length);
	return true;
}

struct reply world_send(struct world *w, int fd, struct str bytes)
{
	struct reply r = {.head = calloc(1, sizeof(*r.head))};
	bool was_head = str_starts(bytes, STR("HEAD ")), ended = false;
	for (int idle = 0; idle < 2000;) {
		ssize_t sent = bytes.n ? send(fd, bytes.p, bytes.n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
		if (sent > 0)
			bytes = str_from(bytes, (size_t)sent);
		loop_turn(w->loop, sent > 0 ? 0 : 5);
		char *to = buf_reserve(&r.bytes, 65536);
		ssize_t n = recv(fd, to, 65536, MSG_DONTWAIT);
		if (n > 0)
			buf_commit(&r.bytes, (size_t)n);
		if (buf_len(&r.bytes) && parse(&r, was_head))
			break;
		ended = n == 0;
		if (ended)
			break;
		idle = n > 0 || sent > 0 ? 0 : idle + 1;
	}
	if (r.status && r.body.n)
		r.json = json_loadb(r.body.p, r.body.n, 0, NULL);
	return r;
}

static struct reply ask(struct world *w, bool admin, const char *method, const char *target, const char *headers, const char *body)
{
	cleanup_buf struct buf bytes = BUF_INIT;
	char own[128];
	snprintf(own, sizeof(own), "X-API-KEY: %s\r\n", w->key);
	buf_addf(&bytes, "%s %s HTTP/1.1\r\nHost: api.test\r\n%s", method, target, headers ? headers : own);
	if (body)
		buf_addf(&bytes, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
	buf_addf(&bytes, "\r\n%s", body ? body : "");
	int fd = world_open(w, admin);
	struct reply r = world_send(w, fd, buf_str(&bytes));
	close(fd);
	world_turn(w);
	return r;
}

struct reply world_ask(struct world *w, const char *method, const char *target, const char *headers, const char *body)
{
	return ask(w, false, method, target, headers, body);
}

struct reply world_admin(struct world *w, const char *method, const char *target, const char *body)
{
	return ask(w, true, method, target, "", body);
}

void reply_done(struct reply *r)
{
	json_decref(r->json);
	buf_done(&r->bytes);
	free(r->head);
	*r = (struct reply){0};
}

const char *reply_text(const struct reply *r, const char *key)
{
	const char *text = json_string_value(json_object_get(r->json, key));
	return text ? text : "";
}

struct str reply_header(const struct reply *r, const char *name)
{
	return http_value(r->head, name);
}
