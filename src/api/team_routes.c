#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>

/* What the worker is asked, and what came of it. */
struct team_work {
	struct team team;  /* as it is to be */
	struct team *live; /* what it is now; NULL = it is new */
	struct error err;
};

/* In the order of enum quota_kind: what bodies call them, and the most that may be set. */
static const struct quota_field {
	const char *name;
	int64_t most;
} fields[QUOTA_KINDS] = {
	[QUOTA_SANDBOXES] = {"sandboxes", 1000000},
	[QUOTA_CREATES] = {"creates", 1000000},
	[QUOTA_MEMORY] = {"memoryMB", 1000000000},
};

/* E2B's list of the caller's teams: a key has one. Its `apiKey` is the key that asks, for only hashes are known. */
void handle_own_teams(struct api_request *r)
{
	const struct team *team = teams_by_ref(r->api->teams, r->team);
	if (!team) {
		api_failf(r, 404, "the team was deleted");
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	out_open(&o, NULL, '{');
	out_str(&o, "teamID", str_of(team->id));
	out_str(&o, "name", str_of(team->name));
	out_str(&o, "apiKey", r->secret);
	out_bool(&o, "isDefault", true);
	out_close(&o, '}');
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

static size_t count_sandboxes(const struct sandbox_index *ix, const struct team *team, bool only_paused)
{
	size_t n = 0;
	for (size_t i = 0; i < index_count(ix); i++) {
		const struct index_sandbox *s = index_at(ix, i);
		n += str_is(s->team, team->ref) && (!only_paused || index_is_paused(s));
	}
	return n;
}

static size_t count_snapshots(const struct sandbox_index *ix, const struct team *team)
{
	size_t n = 0;
	for (size_t i = 0; i < index_snapshot_count(ix); i++)
		n += str_is(index_snapshot_at(ix, i)->team, team->ref);
	return n;
}

static size_t count_templates(const struct sandbox_index *ix, const struct team *team)
{
	size_t n = 0;
	for (size_t i = 0; i < index_template_count(ix); i++)
		n += str_is(index_template_at(ix, i)->team, team->ref);
	return n;
}

/* `quotas`: the team's own, null = the server's, 0 = no limit; `limits`: what counts, null = no limit. */
static void add_limits(struct out *o, const struct api *a, const struct team *team)
{
	out_open(o, "quotas", '{');
	for (int i = 0; i < QUOTA_KINDS; i++)
		if (team->limits[i] == QUOTA_DEFAULT)
			out_null(o, fields[i].name);
		else
			out_int(o, fields[i].name, team->limits[i]);
	out_close(o, '}');
	out_open(o, "limits", '{');
	for (int i = 0; i < QUOTA_KINDS; i++) {
		int64_t limit = quota_limit(a->quota, team, (enum quota_kind)i);
		if (limit)
			out_int(o, fields[i].name, limit);
		else
			out_null(o, fields[i].name);
	}
	out_close(o, '}');
}

static void add_team(struct out *o, const struct api *a, const struct team *team)
{
	struct quota_usage usage = quota_usage(a->quota, team);
	out_open(o, NULL, '{');
	out_str(o, "teamID", str_of(team->id));
	out_str(o, "name", str_of(team->name));
	out_bool(o, "isDefault", team_is_default(team));
	out_bool(o, "blocked", team->blocked);
	out_time(o, "createdAt", team->created_at);
	out_int(o, "keys", (int64_t)keys_count_team(a->keys, str_of(team->ref)));
	add_limits(o, a, team);
	out_open(o, "usage", '{');
	out_int(o, "sandboxes", (int64_t)usage.sandboxes);
	out_int(o, "memoryMB", (int64_t)usage.memory_mb);
	out_int(o, "paused", (int64_t)count_sandboxes(a->config.index, team, true));
	out_int(o, "snapshots", (int64_t)count_snapshots(a->config.index, team));
	out_int(o, "templates", (int64_t)count_templates(a->config.index, team));
	out_close(o, '}');
	out_close(o, '}');
}

static void answer_team(struct api_request *r, int status, const struct team *team)
{
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	add_team(&o, r->api, team);
	api_answer(r, status, &body);
}

void handle_teams(struct api_request *r)
{
	const struct teams *teams = r->api->teams;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; i < teams_count(teams); i++)
		if (!teams_at(teams, i)->deleted)
			add_team(&o, r->api, teams_at(teams, i));
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

static int parse_limit(const char *name, const json_t *value, struct team *to, struct error *err)
{
	for (int i = 0; i < QUOTA_KINDS; i++) {
		if (strcmp(name, fields[i].name) != 0)
			continue;
		bool fits = json_is_null(value) || (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= fields[i].most);
		if (!fits)
			return error_set(err, -EINVAL, 400, "quotas: %s must be 0 to %lld, or null for the server's", name, (long long)fields[i].most);
		to->limits[i] = json_is_null(value) ? QUOTA_DEFAULT : json_integer_value(value);
		return 0;
	}
	return error_set(err, -EINVAL, 400, "quotas: there is no quota '%.40s'", name);
}

/* What a body says of a team, into *to; what it does not say stays. 0 or -EINVAL. */
static int parse_team(json_t *body, bool fresh, struct team *to, struct error *err)
{
	json_t *quotas = NULL, *value;
	const char *name;
	int r = fresh || json_object_get(body, "name") ? field_name(body, "name", TEAM_NAME_MAX, to->name, err) : 0;
	if (r >= 0)
		r = field_bool(body, "blocked", NULL, &to->blocked, err);
	if (r >= 0)
		r = field_object(body, "quotas", NULL, &quotas, err);
	json_object_foreach(quotas, name, value)
	{
		if (r >= 0)
			r = parse_limit(name, value, to, err);
	}
	return r < 0 ? r : 0;
}

static struct team_work *work_new(struct api_request *r)
{
	r->work = calloc(1, sizeof(struct team_work));
	if (!r->work)
		api_failf(r, 503, "the server is out of memory");
	return r->work;
}

static void fail(struct api_request *r, struct error *err, const char *name)
{
	if (err->code == -EEXIST)
		error_set(err, -EEXIST, 409, "there is a team '%s' already", name);
	api_fail(r, err);
}

static void store_team(void *arg)
{
	struct api_request *r = arg;
	struct team_work *w = r->work;
	teams_store(r->api->store, &w->team, &w->err);
}

static void team_stored(struct api_request *r)
{
	struct team_work *w = r->work;
	const struct team *team = w->err.code ? NULL : teams_add(r->api->teams, &w->team);
	if (team)
		answer_team(r, 201, team);
	else if (w->err.code)
		fail(r, &w->err, w->team.name);
	else
		api_failf(r, 503, "the server is out of memory");
}

void handle_team_create(struct api_request *r)
{
	struct error err = {0};
	struct team team;
	team_make(&team, STR(""));
	if (parse_team(r->body, true, &team, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct team_work *w = work_new(r);
	if (!w)
		return;
	w->team = team;
	api_work(r, store_team, team_stored);
}

/* The team that the path names, by id or name, unless it is being changed. NULL = answered. */
static struct team *find(struct api_request *r)
{
	struct str given = r->match.params[0];
	struct team *team = teams_find(r->api->teams, given);
	if (!team)
		api_failf(r, 404, "team '%.*s' not found", (int)MIN(given.n, (size_t)TEAM_NAME_MAX), given.p);
	else if (team->changing)
		api_failf(r, 409, "team '%s' is being changed; try again", team->name);
	else
		return team;
	return NULL;
}

static void store_change(void *arg)
{
	struct api_request *r = arg;
	struct team_work *w = r->work;
	teams_store_changed(r->api->store, &w->team, &w->err);
}

static void change_stored(struct api_request *r)
{
	struct team_work *w = r->work;
	struct team *team = w->live;
	team->changing = false;
	if (w->err.code) {
		fail(r, &w->err, w->team.name);
		return;
	}
	memcpy(team->name, w->team.name, sizeof(team->name));
	memcpy(team->limits, w->team.limits, sizeof(team->limits));
	team->blocked = w->team.blocked;
	answer_team(r, 200, team);
}

void handle_team_change(struct api_request *r)
{
	struct error err = {0};
	struct team *team = find(r);
	if (!team)
		return;
	struct team changed = *team;
	if (parse_team(r->body, false, &changed, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct team_work *w = work_new(r);
	if (!w)
		return;
	w->team = changed;
	w->live = team;
	team->changing = true;
	api_work(r, store_change, change_stored);
}

static void store_deletion(void *arg)
{
	struct api_request *r = arg;
	struct team_work *w = r->work;
	teams_store_deleted(r->api->store, &w->team, &w->err);
}

static void deletion_stored(struct api_request *r)
{
	struct team_work *w = r->work;
	if (w->err.code) {
		w->live->deleted = false;
		api_fail(r, &w->err);
		return;
	}
	keys_drop_team(r->api->keys, str_of(w->team.ref));
	api_answer_empty(r);
}

void handle_team_delete(struct api_request *r)
{
	struct team *team = find(r);
	if (!team || !api_index_ready(r))
		return;
	/* What is being made has no entry yet. */
	size_t n = MAX(count_sandboxes(r->api->config.index, team, false), (size_t)quota_usage(r->api->quota, team).sandboxes);
	size_t snapshots = count_snapshots(r->api->config.index, team), templates = count_templates(r->api->config.index, team);
	if (team_is_default(team)) {
		api_failf(r, 409, "the default team cannot be deleted");
		return;
	}
	if (n || snapshots || templates) {
		api_failf(r, 409, "team '%s' has %zu sandbox%s, %zu snapshot%s and %zu template%s: end and delete them first", team->name, n, n == 1 ? "" : "es", snapshots,
			snapshots == 1 ? "" : "s", templates, templates == 1 ? "" : "s");
		return;
	}
	struct team_work *w = work_new(r);
	if (!w)
		return;
	w->team = *team;
	w->live = team;
	/* From now on nothing is begun for it. */
	team->deleted = true;
	api_work(r, store_deletion, deletion_stored);
}
