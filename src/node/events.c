#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "node/builds.h"
#include "node/snapshots.h"

/* What the front is told: the snapshot after `subscribe`, then every change. */

enum {
	MESSAGES_PER_TURN = 128, /* of a snapshot; then others on the loop get their turn */
};

struct snapshot {
	char (*ids)[SANDBOX_ID + 1]; /* the sandboxes when it began; what is new comes as an event anyway */
	size_t n_ids, next;
	char (*snapshots)[SNAPSHOT_ID + 1];
	size_t n_snapshots, next_snapshot;
	int64_t ended_at; /* where the terminations go on */
	char ended_id[SANDBOX_ID + 1];
	bool posted;      /* snapshot_continue() is on its way */
};

static void set_text(struct str *field, uint64_t *present, unsigned tag, const char *text)
{
	if (!*text)
		return;
	*field = str_of(text);
	*present |= UINT64_C(1) << tag;
}

void sandbox_message(const struct node *n, const struct sandbox *s, struct msg_sandbox *ret)
{
	struct msg_sandbox m = {
		/* Its programs run while its disk is copied: nobody need know. */
		.id = str_of(s->id), .state = sandbox_runs(s) ? SANDBOX_RUNNING : s->state, .team = str_of(s->team), .template_id = str_of(s->template_id),
		.started_at = s->started_at, .end_at = MIN(s->end_at, s->shutdown_at), .cpu_count = s->cpu_count, .memory_mb = s->memory_mb, .disk_mb = s->disk_mb,
		.metadata = {buf_str(&s->metadata)}, .auto_pause = s->auto_pause, .auto_resume = s->auto_resume, .auto_pause_memory = s->auto_pause_memory,
		.generation = str_of(s->generation), .isolation = str_of(sandbox_isolation(s)), .sequence = n->sequence,
	};
	set_text(&m.alias, &m.present, MSG_TAG_sandbox_alias, s->alias);
	set_text(&m.envd_token, &m.present, MSG_TAG_sandbox_envd_token, s->envd_token);
	set_text(&m.traffic_token, &m.present, MSG_TAG_sandbox_traffic_token, s->traffic_token);
	set_text(&m.launch, &m.present, MSG_TAG_sandbox_launch, s->launch);
	set_text(&m.origin, &m.present, MSG_TAG_sandbox_origin, s->origin);
	set_text(&m.resumed_from, &m.present, MSG_TAG_sandbox_resumed_from, s->resumed_from);
	set_text(&m.idempotency, &m.present, MSG_TAG_sandbox_idempotency, s->idempotency);
	set_text(&m.fingerprint, &m.present, MSG_TAG_sandbox_fingerprint, s->fingerprint);
	if (s->shutdown_at != SANDBOX_NEVER)
		msg_set(&m, sandbox, shutdown_at, s->shutdown_at);
	if (s->state == SANDBOX_PAUSED && s->memory_kept)
		msg_set(&m, sandbox, memory_kept, true);
	if (s->has_internet)
		msg_set(&m, sandbox, internet, s->internet);
	if (buf_len(&s->allow_out))
		msg_set(&m, sandbox, allow_out, (struct msg_list){buf_str(&s->allow_out)});
	if (buf_len(&s->deny_out))
		msg_set(&m, sandbox, deny_out, (struct msg_list){buf_str(&s->deny_out)});
	if (s->state == SANDBOX_GONE || s->state == SANDBOX_KILLING) {
		set_text(&m.reason, &m.present, MSG_TAG_sandbox_reason, s->reason);
		set_text(&m.detail, &m.present, MSG_TAG_sandbox_detail, s->detail);
	}
	if (s->state == SANDBOX_GONE)
		msg_set(&m, sandbox, ended_at, s->ended_at);
	*ret = m;
}

static void send_sandbox(struct peer *p, const struct sandbox *s)
{
	struct msg_sandbox m;
	struct error err = {0};
	sandbox_message(p->node, s, &m);
	if (p->chan && chan_send(p->chan, MSG_ID_sandbox, &m, 0, NULL, 0, &err) < 0)
		log_write(LOG_ERROR, &(struct log_ids){.sandbox = str_of(s->id)}, "event to the front: %s", err.message);
}

void node_event(struct node *n, const struct sandbox *s)
{
	struct live *l = live_find(n, str_of(s->id));
	if (l) {
		enum sandbox_state before = l->told ? l->told : SANDBOX_CREATING;
		sampling_note(l, false);
		if (before != s->state)
			figures_note(l, before);
		if (before != s->state)
			logs_note(l, before);
		l->told = s->state;
	}
	n->sequence++;
	if (n->front && n->front->subscribed)
		send_sandbox(n->front, s);
}

static void send_template(struct peer *p, const struct template *t, bool gone)
{
	const struct options *o = p->node->options;
	struct msg_template m = {
		.id = str_of(t->id), .created_at = t->created_at, .build_id = str_of(t->build_id), .size = template_size(t),
		.cpu_count = t->cpu_count ? t->cpu_count : (uint64_t)o->sandbox_cpu,
		.memory_mb = t->memory_mb ? t->memory_mb : (uint64_t)o->sandbox_memory,
		.disk_mb = t->disk_mb ? t->disk_mb : (uint64_t)o->sandbox_disk,
	};
	set_text(&m.alias, &m.present, MSG_TAG_template_alias, t->alias);
	if (gone)
		msg_set(&m, template, gone, true);
	if (p->chan)
		chan_send(p->chan, MSG_ID_template, &m, 0, NULL, 0, NULL);
}

void node_template_event(const struct template *t, bool gone, void *arg)
{
	struct node *n = arg;
	if (n->front && n->front->subscribed)
		send_template(n->front, t, gone);
}

static void send_snapshot(struct peer *p, const struct snapshot_record *s, bool gone)
{
	struct msg_snapshot m;
	snapshot_message(s, gone, &m);
	if (p->chan)
		chan_send(p->chan, MSG_ID_snapshot, &m, 0, NULL, 0, NULL);
}

void node_snapshot_event(struct node *n, const struct snapshot_record *s, bool gone)
{
	if (n->front && n->front->subscribed)
		send_snapshot(n->front, s, gone);
}

static void snapshot_template(const struct template *t, void *arg)
{
	send_template(arg, t, false);
}

void snapshot_free(struct peer *p)
{
	if (!p->snapshot)
		return;
	free(p->snapshot->ids);
	free(p->snapshot->snapshots);
	free(p->snapshot);
	p->snapshot = NULL;
}

void node_subscribe(struct peer *p)
{
	struct node *n = p->node;
	snapshot_free(p);
	struct snapshot *s = calloc(1, sizeof(*s));
	if (s && n->live.count)
		s->ids = calloc(n->live.count, sizeof(*s->ids));
	if (s && n->snapshots.count)
		s->snapshots = calloc(n->snapshots.count, sizeof(*s->snapshots));
	if (!s || (n->live.count && !s->ids) || (n->snapshots.count && !s->snapshots)) {
		if (s)
			free(s->ids);
		free(s);
		log_error("snapshot for the front: no memory");
		chan_free(steal_pointer(&p->chan)); /* it comes back and asks again */
		return;
	}
	map_foreach(&n->live, slot)
	{
		const struct live *l = slot->value;
		memcpy(s->ids[s->n_ids++], l->s.id, sizeof(l->s.id));
	}
	map_foreach(&n->snapshots, slot)
	{
		const struct snapshot_record *one = slot->value;
		memcpy(s->snapshots[s->n_snapshots++], one->id, sizeof(one->id));
	}
	/* Older terminations are not told, also when they are not pruned yet. */
	s->ended_at = node_realtime(n) - ENDS_KEPT_S * NS_PER_S;
	p->snapshot = s;
	p->subscribed = true;
	templates_each(n->templates, snapshot_template, p);
	builds_tell(p);
	snapshot_continue(p);
}

static void continue_later(void *arg)
{
	struct peer *p = arg;
	if (p->snapshot)
		p->snapshot->posted = false;
	if (p->chan)
		snapshot_continue(p);
	peer_unref(p);
}

static void send_ended(const struct sandbox *s, void *arg)
{
	send_sandbox(arg, s);
}

/* One piece: true when there may be more. */
static bool snapshot_piece(struct peer *p)
{
	struct snapshot *s = p->snapshot;
	struct error err = {0};
	if (s->next_snapshot < s->n_snapshots) {
		size_t end = MIN(s->next_snapshot + MESSAGES_PER_TURN, s->n_snapshots);
		while (s->next_snapshot < end) {
			const struct snapshot_record *one = snapshot_find(p->node, str_of(s->snapshots[s->next_snapshot++]));
			if (one)
				send_snapshot(p, one, false);
		}
		return true;
	}
	if (s->next < s->n_ids) {
		size_t end = MIN(s->next + MESSAGES_PER_TURN, s->n_ids);
		while (s->next < end) {
			/* Of one that is being created nobody has heard; it comes as an event. */
			const struct live *l = live_find(p->node, str_of(s->ids[s->next++]));
			if (l && l->s.state != SANDBOX_CREATING)
				send_sandbox(p, &l->s);
		}
		return true;
	}
	int rows = records_ended(p->node->records, &s->ended_at, s->ended_id, MESSAGES_PER_TURN, send_ended, p, &err);
	if (rows < 0)
		log_error("terminations for the front: %s", err.message);
	return rows == MESSAGES_PER_TURN;
}

void snapshot_continue(struct peer *p)
{
	/* What waits in the channel is bounded by stopping here until it is drained. */
	if (!p->snapshot || p->snapshot->posted || chan_queued(p->chan))
		return;
	if (snapshot_piece(p)) {
		p->snapshot->posted = true;
		p->refs++;
		if (loop_post(p->node->loop, continue_later, p) < 0) {
			p->refs--;
			chan_free(steal_pointer(&p->chan));
		}
		return;
	}
	snapshot_free(p);
	struct msg_synced m = {.sequence = p->node->sequence};
	chan_send(p->chan, MSG_ID_synced, &m, 0, NULL, 0, NULL);
}
