#include "api/teams.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/random.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Limits: NULL = the server's, 0 = none. */
const char teams_schema[] =
	"CREATE TABLE team ("
	" id TEXT PRIMARY KEY, ref TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE, created_at INTEGER NOT NULL, blocked INTEGER NOT NULL DEFAULT 0,"
	" max_sandboxes INTEGER, max_creates INTEGER, max_memory INTEGER"
	") STRICT, WITHOUT ROWID;"
	"INSERT INTO team (id, ref, name, created_at) SELECT substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-'"
	" || substr('89ab', 1 + abs(random() % 4), 1) || substr(h, 18, 3) || '-' || substr(h, 21), '" TEAM_DEFAULT "', '" TEAM_DEFAULT "',"
	" CAST(strftime('%s', 'now') AS INTEGER) * 1000000000 FROM (SELECT lower(hex(randomblob(16))) AS h)";

struct teams {
	struct map by_ref;
	struct team **list;
	size_t count, cap;
};

static void copy(char *to, size_t size, struct str s)
{
	size_t n = MIN(s.n, size - 1);
	memcpy(to, s.p, n);
	to[n] = 0;
}

bool team_is_default(const struct team *team)
{
	return strcmp(team->ref, TEAM_DEFAULT) == 0;
}

void team_make(struct team *ret, struct str name)
{
	*ret = (struct team){.created_at = clock_realtime(), .limits = {QUOTA_DEFAULT, QUOTA_DEFAULT, QUOTA_DEFAULT}};
	random_uuid(ret->id);
	memcpy(ret->ref, ret->id, sizeof(ret->ref));
	copy(ret->name, sizeof(ret->name), name);
}

struct team *teams_add(struct teams *t, const struct team *team)
{
	if (t->count == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 16;
		struct team **list = realloc(t->list, cap * sizeof(*list));
		if (!list)
			return NULL;
		t->list = list;
		t->cap = cap;
	}
	struct team *mine = malloc(sizeof(*mine));
	if (!mine)
		return NULL;
	*mine = *team;
	if (map_put(&t->by_ref, str_of(mine->ref), mine, NULL) < 0) {
		free(mine);
		return NULL;
	}
	t->list[t->count++] = mine;
	return mine;
}

/* Of a statement that could not be prepared. */
static int code_of(const struct error *err)
{
	return err ? err->code : -EIO;
}

static int load(struct teams *t, struct store *store, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(store,
		"SELECT id, ref, name, created_at, blocked, max_sandboxes, max_creates, max_memory FROM team ORDER BY created_at, id", err);
	if (!q)
		return code_of(err);
	int r;
	while ((r = stmt_step(q, err)) > 0) {
		struct team team = {.created_at = stmt_get_i64(q, 3), .blocked = stmt_get_i64(q, 4) != 0};
		copy(team.id, sizeof(team.id), stmt_get_str(q, 0));
		copy(team.ref, sizeof(team.ref), stmt_get_str(q, 1));
		copy(team.name, sizeof(team.name), stmt_get_str(q, 2));
		for (int i = 0; i < QUOTA_KINDS; i++)
			team.limits[i] = stmt_get_null(q, 5 + i) ? QUOTA_DEFAULT : stmt_get_i64(q, 5 + i);
		if (!teams_add(t, &team))
			return error_errno(err, -ENOMEM, "teams");
	}
	return r;
}

int teams_new(struct store *store, struct teams **ret, struct error *err)
{
	struct teams *t = calloc(1, sizeof(*t));
	if (!t)
		return error_errno(err, -ENOMEM, "teams");
	int r = load(t, store, err);
	if (r < 0) {
		teams_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

void teams_free(struct teams *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->count; i++)
		free(t->list[i]);
	free(t->list);
	map_done(&t->by_ref);
	free(t);
}

struct team *teams_by_ref(const struct teams *t, struct str ref)
{
	struct team *team = map_get(&t->by_ref, ref);
	return team && !team->deleted ? team : NULL;
}

struct team *teams_find(const struct teams *t, struct str id_or_name)
{
	for (size_t i = 0; i < t->count; i++) {
		struct team *team = t->list[i];
		if (!team->deleted && (str_is(id_or_name, team->id) || str_is(id_or_name, team->name)))
			return team;
	}
	return NULL;
}

size_t teams_count(const struct teams *t)
{
	return t->count;
}

struct team *teams_at(const struct teams *t, size_t i)
{
	assert(i < t->count);
	return t->list[i];
}

static void bind_limits(struct stmt *q, int at, const struct team *team)
{
	for (int i = 0; i < QUOTA_KINDS; i++)
		if (team->limits[i] == QUOTA_DEFAULT)
			stmt_null(q, at + i);
		else
			stmt_i64(q, at + i, team->limits[i]);
}

/* Ends the transaction that a statement's result `r` belongs to. */
static int finish(struct store *store, int r, struct error *err)
{
	if (r >= 0)
		return store_commit(store, err);
	store_rollback(store);
	return r;
}

int teams_store(struct store *store, const struct team *team, struct error *err)
{
	int r = store_begin(store, STORE_FULL, err);
	if (r < 0)
		return r;
	struct stmt *q = store_prepare(store,
		"INSERT INTO team (id, ref, name, created_at, blocked, max_sandboxes, max_creates, max_memory) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", err);
	r = q ? 0 : code_of(err);
	if (q) {
		stmt_text(q, 1, str_of(team->id));
		stmt_text(q, 2, str_of(team->ref));
		stmt_text(q, 3, str_of(team->name));
		stmt_i64(q, 4, team->created_at);
		stmt_i64(q, 5, team->blocked);
		bind_limits(q, 6, team);
		r = stmt_step(q, err);
		stmt_done(q);
	}
	return finish(store, r, err);
}

int teams_store_changed(struct store *store, const struct team *team, struct error *err)
{
	int r = store_begin(store, STORE_FULL, err);
	if (r < 0)
		return r;
	struct stmt *q = store_prepare(store,
		"UPDATE team SET name = ?, blocked = ?, max_sandboxes = ?, max_creates = ?, max_memory = ? WHERE id = ?", err);
	r = q ? 0 : code_of(err);
	if (q) {
		stmt_text(q, 1, str_of(team->name));
		stmt_i64(q, 2, team->blocked);
		bind_limits(q, 3, team);
		stmt_text(q, 3 + QUOTA_KINDS, str_of(team->id));
		r = stmt_step(q, err);
		stmt_done(q);
	}
	return finish(store, r, err);
}

int teams_store_deleted(struct store *store, const struct team *team, struct error *err)
{
	int r = store_begin(store, STORE_FULL, err);
	if (r < 0)
		return r;
	struct stmt *q = store_prepare(store, "DELETE FROM key WHERE team = ?", err);
	r = q ? 0 : code_of(err);
	if (q) {
		stmt_text(q, 1, str_of(team->ref));
		r = stmt_step(q, err);
		stmt_done(q);
	}
	q = r < 0 ? NULL : store_prepare(store, "DELETE FROM team WHERE id = ?", err);
	if (r >= 0 && !q)
		r = code_of(err);
	if (q) {
		stmt_text(q, 1, str_of(team->id));
		r = stmt_step(q, err);
		stmt_done(q);
	}
	return finish(store, r, err);
}
