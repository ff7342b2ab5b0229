#include "api/quota.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct quota_lease {
	struct quota *quota;
	struct quota_lease *previous, *next;
	const struct team *team;
	struct node_call *call;
	uint64_t memory_mb; /* of each */
	unsigned asked;     /* new sandboxes */
	unsigned unseen;    /* how many of them the index does not hold yet */
	char resumes[33];   /* or the sandbox that is resumed */
	bool counted;       /* one lease counts for a sandbox, however many resume it */
	size_t name_n;      /* of the create's name; 0 = none. One lease has `asked` for it, however many creates have the name */
	char name[];
};

struct quota {
	const struct teams *teams;
	struct sandbox_index *index;
	const struct options *options;
	struct index_listener listener;
	struct quota_lease *first, *last; /* the oldest first */
};

static bool alike(const struct quota_lease *a, const struct quota_lease *b)
{
	return a->team == b->team && a->memory_mb == b->memory_mb;
}

static struct quota_lease *find_named(const struct quota *q, const struct team *team, struct str name, uint64_t memory_mb)
{
	for (struct quota_lease *l = q->first; l && name.n; l = l->next)
		if (l->team == team && l->memory_mb == memory_mb && str_eq(str_n(l->name, l->name_n), name))
			return l;
	return NULL;
}

static void lease_free(struct quota_lease *l)
{
	struct quota *q = l->quota;
	*(l->previous ? &l->previous->next : &q->first) = l->next;
	*(l->next ? &l->next->previous : &q->last) = l->previous;
	/* The next one of its name stands for all that are left. */
	struct quota_lease *same = find_named(q, l->team, str_n(l->name, l->name_n), l->memory_mb);
	if (same && l->asked) {
		same->asked = l->asked;
		same->unseen = l->unseen;
		l->unseen = 0;
	}
	/* What it was given appeared, and was taken for what others wait for. */
	for (struct quota_lease *other = q->first; l->unseen && other; other = other->next)
		if (alike(other, l)) {
			unsigned n = MIN(l->unseen, other->asked - other->unseen);
			other->unseen += n;
			l->unseen -= n;
		}
	for (struct quota_lease *other = q->first; l->counted && other; other = other->next)
		if (strcmp(other->resumes, l->resumes) == 0) {
			other->counted = true;
			break;
		}
	free(l);
}

static void call_ended(void *arg)
{
	lease_free(arg);
}

/* A sandbox that was not known. Which lease it was made for is not told: it is taken off the oldest, lease_free() puts that right. So the sum is exact, and
 * after a call that failed it is too large, never too small, until those end that are under way with it. */
static void appeared(const struct index_sandbox *s, void *arg)
{
	struct quota *q = arg;
	for (struct quota_lease *l = q->first; l; l = l->next)
		if (l->unseen && l->memory_mb == s->memory_mb && str_is(s->team, l->team->ref)) {
			l->unseen--;
			return;
		}
}

struct quota *quota_new(const struct teams *teams, struct sandbox_index *index, const struct options *options)
{
	struct quota *q = malloc(sizeof(*q));
	if (!q)
		return NULL;
	*q = (struct quota){.teams = teams, .index = index, .options = options, .listener = {.appeared = appeared, .arg = q}};
	index_listen(index, &q->listener);
	return q;
}

void quota_free(struct quota *q)
{
	if (!q)
		return;
	while (q->first) {
		if (q->first->call)
			node_call_watch(q->first->call, NULL, NULL);
		lease_free(q->first);
	}
	index_unlisten(q->index, &q->listener);
	free(q);
}

int64_t quota_limit(const struct quota *q, const struct team *team, enum quota_kind kind)
{
	const int64_t of_server[QUOTA_KINDS] = {
		[QUOTA_SANDBOXES] = q->options->quota_sandboxes, [QUOTA_CREATES] = q->options->quota_creates, [QUOTA_MEMORY] = q->options->quota_memory};
	return team->limits[kind] == QUOTA_DEFAULT ? of_server[kind] : team->limits[kind];
}

/* Runs, as far as room is concerned. One that is being paused may come back, one that is being killed does not. */
static bool counts(const struct index_sandbox *s)
{
	return index_is_running(s) || s->state == SANDBOX_CREATING || s->state == SANDBOX_PAUSING;
}

struct quota_usage quota_usage(const struct quota *q, const struct team *team)
{
	struct quota_usage u = {0};
	for (size_t i = 0; i < index_count(q->index); i++) {
		const struct index_sandbox *s = index_at(q->index, i);
		if (!str_is(s->team, team->ref))
			continue;
		u.sandboxes += counts(s);
		u.memory_mb += counts(s) || s->memory_kept ? s->memory_mb : 0;
	}
	for (const struct quota_lease *l = q->first; l; l = l->next) {
		if (l->team != team)
			continue;
		const struct index_sandbox *s = l->counted ? index_find(q->index, str_of(l->resumes)) : NULL;
		uint64_t n = l->unseen + (l->counted && !(s && counts(s)));
		u.sandboxes += n;
		u.memory_mb += s && s->memory_kept ? 0 : n * l->memory_mb; /* what is kept counts already */
	}
	return u;
}

/* The text is told to strangers, too, whose traffic would resume a sandbox: it does not name the team. */
static int exceeded(struct error *err, int seconds, const char *name, const char *detail)
{
	error_set(err, -EDQUOT, 429, "quota %s is exceeded: %s", name, detail);
	if (err)
		err->retry_after = seconds;
	return -EDQUOT;
}

/* A token bucket with one second's tokens. A fork may take more than there are; what it owes passes before the next one. */
static int take_creates(const struct quota *q, struct team *team, unsigned n, struct error *err)
{
	int64_t limit = quota_limit(q, team, QUOTA_CREATES), now = clock_monotonic();
	if (!limit)
		return 0;
	int64_t each = NS_PER_S / limit, paid = MAX(team->paid_until, now), over = paid + each - (now + NS_PER_S);
	if (over <= 0) {
		team->paid_until = paid + (int64_t)n * each;
		return 0;
	}
	char detail[80];
	snprintf(detail, sizeof(detail), "%lld sandboxes may be started in a second", (long long)limit);
	return exceeded(err, (int)((over + NS_PER_S - 1) / NS_PER_S), "creates", detail);
}

static int check_room(const struct quota *q, const struct team *team, unsigned n, uint64_t memory_mb, struct error *err)
{
	enum { SECONDS = 1 }; /* when one will end is not known */
	uint64_t sandboxes = (uint64_t)quota_limit(q, team, QUOTA_SANDBOXES), memory = (uint64_t)quota_limit(q, team, QUOTA_MEMORY);
	if (!sandboxes && !memory)
		return 0;
	struct quota_usage u = quota_usage(q, team);
	char detail[160];
	if (sandboxes && u.sandboxes + n > sandboxes) {
		snprintf(detail, sizeof(detail), "%llu of %llu sandboxes run or are being started, %u more cannot", (unsigned long long)u.sandboxes,
			(unsigned long long)sandboxes, n);
		return exceeded(err, SECONDS, "sandboxes", detail);
	}
	if (memory && u.memory_mb + n * memory_mb > memory) {
		snprintf(detail, sizeof(detail), "%llu of %llu MiB are in use, and %llu more are needed", (unsigned long long)u.memory_mb,
			(unsigned long long)memory, (unsigned long long)(n * memory_mb));
		return exceeded(err, SECONDS, "memory", detail);
	}
	return 0;
}

/* The team, if it may start something; NULL with *err. */
static struct team *starter(const struct quota *q, struct str ref, struct error *err)
{
	struct team *team = teams_by_ref(q->teams, ref);
	if (!team)
		error_set(err, -EACCES, 403, "the team does not exist any more");
	else if (team->blocked)
		error_set(err, -EACCES, 403, "the team is blocked");
	else
		return team;
	return NULL;
}

static int lease_new(struct quota *q, const struct team *team, struct str name, uint64_t memory_mb, struct quota_lease **ret, struct error *err)
{
	struct quota_lease *l = malloc(sizeof(*l) + name.n);
	if (!l)
		return error_set(err, -ENOMEM, 503, "the server is out of memory");
	*l = (struct quota_lease){.quota = q, .previous = q->last, .team = team, .memory_mb = memory_mb, .name_n = name.n};
	memcpy(l->name, name.p, name.n);
	*(q->last ? &q->last->next : &q->first) = l;
	q->last = l;
	*ret = l;
	return 0;
}

static int take(struct quota *q, struct str ref, struct str name, unsigned n, uint64_t memory_mb, struct quota_lease **ret, struct error *err)
{
	struct team *team = starter(q, ref, err);
	if (!team)
		return -EACCES;
	if (find_named(q, team, name, memory_mb))
		return lease_new(q, team, name, memory_mb, ret, err);
	int r = check_room(q, team, n, memory_mb, err);
	if (r == 0)
		r = take_creates(q, team, n, err);
	if (r == 0)
		r = lease_new(q, team, name, memory_mb, ret, err);
	if (r == 0)
		(*ret)->asked = (*ret)->unseen = n;
	return r;
}

int quota_take(struct quota *q, struct str ref, unsigned n, uint64_t memory_mb, struct quota_lease **ret, struct error *err)
{
	return take(q, ref, STR(""), n, memory_mb, ret, err);
}

int quota_take_create(struct quota *q, struct str ref, struct str name, uint64_t memory_mb, struct quota_lease **ret, struct error *err)
{
	return take(q, ref, name, 1, memory_mb, ret, err);
}

int quota_take_resume(struct quota *q, const struct index_sandbox *s, struct quota_lease **ret, struct error *err)
{
	const struct team *team = starter(q, s->team, err);
	if (!team)
		return -EACCES;
	bool joins = counts(s);
	for (const struct quota_lease *l = q->first; l && !joins; l = l->next)
		joins = str_is(s->id, l->resumes);
	int r = joins ? 0 : check_room(q, team, 1, s->memory_kept ? 0 : s->memory_mb, err);
	if (r == 0)
		r = lease_new(q, team, STR(""), s->memory_mb, ret, err);
	if (r < 0)
		return r;
	struct quota_lease *l = *ret;
	snprintf(l->resumes, sizeof(l->resumes), "%.*s", STR_FMT(s->id));
	l->counted = true;
	for (const struct quota_lease *other = q->first; other != l; other = other->next)
		l->counted &= strcmp(other->resumes, l->resumes) != 0;
	return 0;
}

struct node_call *quota_hold(struct quota_lease *lease, struct node_call *call)
{
	lease->call = call;
	if (call)
		node_call_watch(call, call_ended, lease);
	else
		lease_free(lease);
	return call;
}
