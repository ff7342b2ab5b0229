#include "api/index_impl.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>

enum {
	ENDS_KEPT = 20000, /* beyond, the oldest is forgotten before its 24 hours are over */
};
static const int64_t end_lifetime = 24 * 3600 * NS_PER_S;

struct end_record {
	struct index_end end;
	struct str id;
	struct end_record *next; /* in order of arrival */
	bool stale;              /* taken out of the map, waits for its turn in the queue */
	char bytes[];
};

struct sandbox_index *index_new(void)
{
	struct sandbox_index *ix = calloc(1, sizeof(*ix));
	if (ix)
		ix->last_end = &ix->first_end;
	return ix;
}

void index_free(struct sandbox_index *ix)
{
	if (!ix)
		return;
	for (size_t i = 0; i < ix->count; i++)
		free(ix->sorted[i]);
	index_templates_free(ix);
	while (ix->first_end) {
		struct end_record *e = ix->first_end;
		ix->first_end = e->next;
		free(e);
	}
	map_done(&ix->by_id);
	map_done(&ix->by_name);
	map_done(&ix->ends);
	free(ix->sorted);
	free(ix);
}

void index_listen(struct sandbox_index *ix, struct index_listener *l)
{
	l->next = ix->listeners;
	ix->listeners = l;
}

void index_unlisten(struct sandbox_index *ix, struct index_listener *l)
{
	for (struct index_listener **at = &ix->listeners; *at; at = &(*at)->next)
		if (*at == l) {
			*at = l->next;
			return;
		}
}

static void tell_ended(struct sandbox_index *ix, const struct index_sandbox *s)
{
	for (struct index_listener *l = ix->listeners, *next; l; l = next) {
		next = l->next;
		if (l->ended)
			l->ended(s, l->arg);
	}
}

static void tell_appeared(struct sandbox_index *ix, const struct index_sandbox *s)
{
	for (struct index_listener *l = ix->listeners, *next; l; l = next) {
		next = l->next;
		if (l->appeared)
			l->appeared(s, l->arg);
	}
}

bool index_ready(const struct sandbox_index *ix)
{
	return ix->ready;
}

bool index_is_running(const struct index_sandbox *s)
{
	return s->state == SANDBOX_RUNNING || s->state == SANDBOX_SNAPSHOTTING;
}

bool index_is_paused(const struct index_sandbox *s)
{
	return s->state == SANDBOX_PAUSED || s->state == SANDBOX_PAUSING;
}

const struct index_sandbox *index_find(const struct sandbox_index *ix, struct str id)
{
	return map_get(&ix->by_id, id);
}

const struct index_sandbox *index_named(const struct sandbox_index *ix, struct str team, struct str name)
{
	struct name_key k;
	return map_get(&ix->by_name, name_key(&k, team, name));
}

/* The newest one of a name counts: an older one is there as long as its end was overtaken. Without memory it has no name here; the node knows it. */
static void name_put(struct sandbox_index *ix, struct index_sandbox *s)
{
	struct name_key k;
	void *ignored;
	if (s->name.n)
		map_put(&ix->by_name, name_key(&k, s->team, s->name), s, &ignored);
}

static void name_drop(struct sandbox_index *ix, const struct index_sandbox *s)
{
	struct name_key k;
	if (s->name.n && index_named(ix, s->team, s->name) == s)
		map_del(&ix->by_name, name_key(&k, s->team, s->name));
}

size_t index_count(const struct sandbox_index *ix)
{
	return ix->count;
}

const struct index_sandbox *index_at(const struct sandbox_index *ix, size_t i)
{
	assert(i < ix->count);
	return ix->sorted[i];
}

int index_compare(int64_t a_at, struct str a, int64_t b_at, struct str b)
{
	if (a_at != b_at)
		return a_at < b_at ? -1 : 1;
	int r = memcmp(a.p, b.p, MIN(a.n, b.n));
	return r ? r : a.n < b.n ? -1 : a.n > b.n;
}

int index_make_room(void *array, size_t count, size_t *cap)
{
	if (count < *cap)
		return 0;
	size_t more = *cap ? *cap * 2 : 64;
	void *p = realloc(*(void **)array, more * sizeof(void *));
	if (!p)
		return -ENOMEM;
	*(void **)array = p;
	*cap = more;
	return 0;
}

size_t index_position(const struct sandbox_index *ix, int64_t started_at, struct str id)
{
	size_t low = 0, high = ix->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct index_sandbox *s = ix->sorted[middle];
		if (index_compare(s->started_at, s->id, started_at, id) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void sorted_insert(struct sandbox_index *ix, struct index_sandbox *s)
{
	size_t at = index_position(ix, s->started_at, s->id);
	memmove(ix->sorted + at + 1, ix->sorted + at, (ix->count - at) * sizeof(ix->sorted[0]));
	ix->sorted[at] = s;
	ix->count++;
}

static void sorted_remove(struct sandbox_index *ix, const struct index_sandbox *s)
{
	size_t at = index_position(ix, s->started_at, s->id);
	assert(at < ix->count && ix->sorted[at] == s);
	memmove(ix->sorted + at, ix->sorted + at + 1, (ix->count - at - 1) * sizeof(ix->sorted[0]));
	ix->count--;
}

static struct index_sandbox *sandbox_of(const struct msg_sandbox *m)
{
	struct index_sandbox s = {
		.id = m->id, .team = m->team, .template_id = m->template_id, .state = (enum sandbox_state)m->state,
		.generation = m->generation, .isolation = m->isolation, .started_at = m->started_at, .end_at = m->end_at,
		.cpu_count = m->cpu_count, .memory_mb = m->memory_mb, .disk_mb = m->disk_mb, .metadata = m->metadata,
		.has_internet = msg_has(m, sandbox, internet), .auto_pause = m->auto_pause, .auto_resume = m->auto_resume,
		.auto_pause_memory = m->auto_pause_memory, .sequence = m->sequence};
	if (msg_has(m, sandbox, alias))
		s.alias = m->alias;
	if (msg_has(m, sandbox, launch))
		s.launch = m->launch;
	if (msg_has(m, sandbox, envd_token))
		s.envd_token = m->envd_token;
	if (msg_has(m, sandbox, traffic_token))
		s.traffic_token = m->traffic_token;
	if (msg_has(m, sandbox, resumed_from))
		s.resumed_from = m->resumed_from;
	if (msg_has(m, sandbox, origin))
		s.origin = m->origin;
	if (msg_has(m, sandbox, idempotency))
		s.name = m->idempotency;
	if (msg_has(m, sandbox, fingerprint))
		s.fingerprint = m->fingerprint;
	s.shutdown_at = msg_has(m, sandbox, shutdown_at) ? m->shutdown_at : INT64_MAX;
	s.internet = s.has_internet && m->internet;
	s.memory_kept = msg_has(m, sandbox, memory_kept) && m->memory_kept;
	if (msg_has(m, sandbox, allow_out))
		s.allow_out = m->allow_out;
	if (msg_has(m, sandbox, deny_out))
		s.deny_out = m->deny_out;
	struct str *views[] = {&s.id, &s.team, &s.template_id, &s.alias, &s.generation, &s.isolation, &s.launch, &s.envd_token,
		&s.traffic_token, &s.resumed_from, &s.origin, &s.name, &s.fingerprint, &s.metadata.raw, &s.allow_out.raw, &s.deny_out.raw};
	size_t n = sizeof(s);
	for (size_t i = 0; i < ARRAY_SIZE(views); i++)
		n += views[i]->n;
	struct index_sandbox *copy = malloc(n);
	if (!copy)
		return NULL;
	char *to = (char *)(copy + 1);
	for (size_t i = 0; i < ARRAY_SIZE(views); i++)
		keep(&to, views[i]);
	*copy = s;
	return copy;
}

static void forget_end(struct sandbox_index *ix, struct str id)
{
	struct end_record *e = map_del(&ix->ends, id);
	if (e)
		e->stale = true;
}

/* Drops records from the front of the queue that are over their time, or too many. */
static void trim_ends(struct sandbox_index *ix, int64_t now)
{
	while (ix->first_end && (ix->first_end->stale || ix->end_count > ENDS_KEPT || ix->first_end->end.at <= now - end_lifetime)) {
		struct end_record *e = ix->first_end;
		if (!e->stale)
			map_del(&ix->ends, e->id);
		ix->first_end = e->next;
		if (!ix->first_end)
			ix->last_end = &ix->first_end;
		ix->end_count--;
		free(e);
	}
}

static int put_end(struct sandbox_index *ix, struct str id, const struct index_end *end)
{
	struct end_record *e = malloc(sizeof(*e) + id.n + end->team.n + end->reason.n + end->detail.n);
	if (!e)
		return -ENOMEM;
	*e = (struct end_record){.end = *end, .id = id};
	char *to = e->bytes;
	keep(&to, &e->id);
	keep(&to, &e->end.team);
	keep(&to, &e->end.reason);
	keep(&to, &e->end.detail);
	forget_end(ix, id);
	if (map_put(&ix->ends, id, e, NULL) < 0) {
		free(e);
		return -ENOMEM;
	}
	*ix->last_end = e;
	ix->last_end = &e->next;
	ix->end_count++;
	trim_ends(ix, clock_realtime());
	return 0;
}

const struct index_end *index_end_of(struct sandbox_index *ix, struct str id, int64_t now)
{
	trim_ends(ix, now);
	struct end_record *e = map_get(&ix->ends, id);
	return e && e->end.at > now - end_lifetime ? &e->end : NULL;
}

/* Takes the entry out and tells the listeners when its generation was running. */
static void vanish(struct sandbox_index *ix, struct index_sandbox *s)
{
	sorted_remove(ix, s);
	map_del(&ix->by_id, s->id);
	name_drop(ix, s);
	if (index_is_running(s))
		tell_ended(ix, s);
	free(s);
}

/* Of one that is gone, or is being killed: then its intent is known already, and from now on clients see it as ended. */
static struct index_end end_of(const struct msg_sandbox *m)
{
	struct index_end end = {.team = m->team, .reason = STR("crashed"), .at = clock_realtime()};
	if (msg_has(m, sandbox, reason))
		end.reason = m->reason;
	if (msg_has(m, sandbox, detail))
		end.detail = m->detail;
	if (msg_has(m, sandbox, ended_at))
		end.at = m->ended_at;
	return end;
}

static int put_gone(struct sandbox_index *ix, const struct msg_sandbox *m)
{
	struct index_end end = end_of(m);
	struct index_sandbox *old = map_get(&ix->by_id, m->id);
	if (old)
		vanish(ix, old);
	return put_end(ix, m->id, &end);
}

static int put_live(struct sandbox_index *ix, const struct msg_sandbox *m)
{
	struct index_sandbox *old = map_get(&ix->by_id, m->id);
	if (!old && !ix->syncing && map_get(&ix->ends, m->id))
		return 0; /* an answer that its own end overtook */
	struct index_sandbox *s = sandbox_of(m);
	void *ignored;
	if (!s || index_make_room(&ix->sorted, ix->count, &ix->cap) < 0 || map_put(&ix->by_id, s->id, s, &ignored) < 0) {
		free(s);
		return -ENOMEM;
	}
	s->epoch = ix->epoch;
	if (old) {
		sorted_remove(ix, old);
		name_drop(ix, old);
	}
	sorted_insert(ix, s);
	name_put(ix, s);
	forget_end(ix, s->id);
	if (old && index_is_running(old) && (!index_is_running(s) || !str_eq(old->generation, s->generation)))
		tell_ended(ix, old);
	if (!old && !ix->syncing)
		tell_appeared(ix, s);
	free(old);
	struct index_end end = end_of(m);
	return m->state == SANDBOX_KILLING && msg_has(m, sandbox, reason) ? put_end(ix, m->id, &end) : 0;
}

int index_put_sandbox(struct sandbox_index *ix, const struct msg_sandbox *m, bool event)
{
	if (event && !ix->syncing) {
		if (m->sequence <= ix->sequence)
			return 0;
		if (m->sequence != ix->sequence + 1)
			return -ESTALE;
		ix->sequence = m->sequence;
	}
	const struct index_sandbox *old = map_get(&ix->by_id, m->id);
	if (old && m->sequence < old->sequence)
		return 0; /* an answer that a newer event overtook */
	return m->state == SANDBOX_GONE ? put_gone(ix, m) : put_live(ix, m);
}

void index_begin(struct sandbox_index *ix)
{
	ix->syncing = true;
	ix->epoch++;
	for (size_t i = 0; i < ix->count; i++)
		ix->sorted[i]->sequence = 0; /* a new node may count anew */
}

void index_synced(struct sandbox_index *ix, uint64_t sequence)
{
	for (size_t i = ix->count; i-- > 0;)
		if (ix->sorted[i]->epoch != ix->epoch)
			vanish(ix, ix->sorted[i]);
	index_templates_synced(ix);
	ix->sequence = sequence;
	ix->syncing = false;
	ix->ready = true;
}

void index_killed(struct sandbox_index *ix, struct str id)
{
	struct index_sandbox *s = map_get(&ix->by_id, id);
	if (!s)
		return;
	struct index_end end = {.team = s->team, .reason = STR("killed"), .at = clock_realtime()};
	/* Without memory the reason is lost, not the end. */
	put_end(ix, id, &end);
	vanish(ix, s);
}
