#include "sandbox/rows.h"
#include "base/cleanup.h"
#include "base/random.h"

#include <stdlib.h>

const char *const rows_migrations[RECORDS_VERSION] = {
	"CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;"
	"CREATE TABLE sandboxes ("
	" id TEXT PRIMARY KEY, state INTEGER NOT NULL, team TEXT NOT NULL, template_id TEXT NOT NULL, alias TEXT NOT NULL, boot_id TEXT NOT NULL,"
	" started_at INTEGER NOT NULL, end_at INTEGER NOT NULL, deadline INTEGER NOT NULL,"
	" cpu_count INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_mb INTEGER NOT NULL, secure INTEGER NOT NULL, public_traffic INTEGER NOT NULL,"
	" internet INTEGER, auto_pause INTEGER NOT NULL, auto_resume INTEGER NOT NULL, metadata BLOB NOT NULL, generation TEXT NOT NULL,"
	" launch TEXT NOT NULL, handle TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL) STRICT;"
	"CREATE TABLE ends ("
	" id TEXT PRIMARY KEY, team TEXT NOT NULL, template_id TEXT NOT NULL, alias TEXT NOT NULL,"
	" started_at INTEGER NOT NULL, ended_at INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL) STRICT;"
	"CREATE INDEX ends_by_time ON ends (ended_at, id)",
	"ALTER TABLE sandboxes ADD COLUMN auto_pause_memory INTEGER NOT NULL DEFAULT 1;"
	"ALTER TABLE sandboxes ADD COLUMN memory_kept INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE sandboxes ADD COLUMN timeout INTEGER NOT NULL DEFAULT 300;"
	"ALTER TABLE sandboxes ADD COLUMN image TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE sandboxes ADD COLUMN resumed_from TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE sandboxes ADD COLUMN allow_out BLOB NOT NULL DEFAULT x'';"
	"ALTER TABLE sandboxes ADD COLUMN deny_out BLOB NOT NULL DEFAULT x'';"
	"ALTER TABLE sandboxes ADD COLUMN start BLOB NOT NULL DEFAULT x'';"
	"ALTER TABLE sandboxes ADD COLUMN origin TEXT NOT NULL DEFAULT '';"
	"CREATE TABLE snapshots ("
	" id TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, sandbox TEXT NOT NULL, template_id TEXT NOT NULL, created_at INTEGER NOT NULL,"
	" cpu_count INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_mb INTEGER NOT NULL, image TEXT NOT NULL, size INTEGER NOT NULL, start BLOB NOT NULL) STRICT",
	"ALTER TABLE sandboxes ADD COLUMN idempotency TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE sandboxes ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';"
	"ALTER TABLE sandboxes ADD COLUMN shutdown_at INTEGER NOT NULL DEFAULT 9223372036854775807;"
	"ALTER TABLE sandboxes ADD COLUMN shutdown INTEGER NOT NULL DEFAULT 9223372036854775807;"
	"CREATE TABLE pools (template_id TEXT PRIMARY KEY, min INTEGER NOT NULL, size INTEGER NOT NULL, max INTEGER NOT NULL) STRICT",
	"ALTER TABLE sandboxes ADD COLUMN build TEXT NOT NULL DEFAULT '';"
	"CREATE TABLE templates ("
	" id TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, reference TEXT NOT NULL, public INTEGER NOT NULL, cpu_count INTEGER NOT NULL,"
	" memory_mb INTEGER NOT NULL, disk_mb INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, source TEXT NOT NULL) STRICT;"
	"CREATE TABLE builds ("
	" id TEXT PRIMARY KEY, template_id TEXT NOT NULL, kind TEXT NOT NULL, status INTEGER NOT NULL, phase TEXT NOT NULL, reason TEXT NOT NULL, step TEXT NOT NULL, digest TEXT NOT NULL,"
	" cpu_count INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_mb INTEGER NOT NULL, created_at INTEGER NOT NULL, finished_at INTEGER NOT NULL, tags BLOB NOT NULL,"
	" description TEXT NOT NULL) STRICT;"
	"CREATE INDEX builds_by_template ON builds (template_id);"
	"CREATE TABLE tags (template_id TEXT NOT NULL, tag TEXT NOT NULL, build TEXT NOT NULL, created_at INTEGER NOT NULL, PRIMARY KEY (template_id, tag)) STRICT;"
	"CREATE INDEX tags_by_build ON tags (build);"
	"CREATE TABLE layers (key TEXT PRIMARY KEY, file TEXT NOT NULL, size INTEGER NOT NULL, used_at INTEGER NOT NULL) STRICT;"
	"CREATE TABLE files (team TEXT NOT NULL, hash TEXT NOT NULL, file TEXT NOT NULL, size INTEGER NOT NULL, used_at INTEGER NOT NULL, PRIMARY KEY (team, hash)) STRICT",
};

static void bind_internet(struct stmt *q, int at, const struct sandbox *s)
{
	if (s->has_internet)
		stmt_i64(q, at, s->internet);
	else
		stmt_null(q, at);
}

/* What changes in a sandbox's life: values 1 to 21 of both statements below. */
static void bind_changing(struct stmt *q, const struct sandbox *s, enum sandbox_state state)
{
	stmt_text(q, 1, str_of(s->id));
	stmt_i64(q, 2, state);
	stmt_text(q, 3, str_of(s->boot_id));
	stmt_i64(q, 4, s->started_at);
	stmt_i64(q, 5, s->end_at);
	stmt_i64(q, 6, s->deadline);
	stmt_text(q, 7, str_of(s->generation));
	stmt_text(q, 8, str_of(s->launch));
	stmt_text(q, 9, str_of(s->handle.text));
	stmt_text(q, 10, str_of(s->reason));
	stmt_text(q, 11, str_of(s->detail));
	stmt_i64(q, 12, s->memory_kept);
	stmt_text(q, 13, str_of(s->image));
	stmt_text(q, 14, str_of(s->resumed_from));
	stmt_i64(q, 15, s->auto_pause);
	stmt_blob(q, 16, buf_str(&s->allow_out));
	stmt_blob(q, 17, buf_str(&s->deny_out));
	stmt_blob(q, 18, buf_str(&s->start));
	bind_internet(q, 19, s);
	stmt_i64(q, 20, s->shutdown_at);
	stmt_i64(q, 21, s->shutdown);
}

/* 1 = there was a row, 0 = there is none. */
static int update_row(struct store *st, const struct sandbox *s, enum sandbox_state state, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"UPDATE sandboxes SET state = ?2, boot_id = ?3, started_at = ?4, end_at = ?5, deadline = ?6, generation = ?7, launch = ?8, handle = ?9,"
		" reason = ?10, detail = ?11, memory_kept = ?12, image = ?13, resumed_from = ?14, auto_pause = ?15, allow_out = ?16, deny_out = ?17, start = ?18,"
		" internet = ?19, shutdown_at = ?20, shutdown = ?21 WHERE id = ?1", err);
	if (!q)
		return -EIO;
	bind_changing(q, s, state);
	int r = stmt_step(q, err);
	return r < 0 ? r : stmt_changes(q) == 1;
}

int rows_put(struct store *st, const struct sandbox *s, enum sandbox_state state, struct error *err)
{
	int r = update_row(st, s, state, err);
	if (r != 0)
		return r < 0 ? r : 0;
	cleanup_stmt struct stmt *q = store_prepare(st,
		"INSERT INTO sandboxes (id, state, boot_id, started_at, end_at, deadline, generation, launch, handle, reason, detail, memory_kept, image,"
		" resumed_from, auto_pause, allow_out, deny_out, start, internet, shutdown_at, shutdown, team, template_id, alias, cpu_count, memory_mb, disk_mb, secure, public_traffic,"
		" auto_resume, auto_pause_memory, timeout, metadata, origin, idempotency, fingerprint, build)"
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28,"
		" ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37)", err);
	if (!q)
		return -EIO;
	bind_changing(q, s, state);
	stmt_text(q, 22, str_of(s->team));
	stmt_text(q, 23, str_of(s->template_id));
	stmt_text(q, 24, str_of(s->alias));
	stmt_i64(q, 25, s->cpu_count);
	stmt_i64(q, 26, s->memory_mb);
	stmt_i64(q, 27, s->disk_mb);
	stmt_i64(q, 28, s->secure);
	stmt_i64(q, 29, s->public_traffic);
	stmt_i64(q, 30, s->auto_resume);
	stmt_i64(q, 31, s->auto_pause_memory);
	stmt_i64(q, 32, s->timeout);
	stmt_blob(q, 33, buf_str(&s->metadata));
	stmt_text(q, 34, str_of(s->origin));
	stmt_text(q, 35, str_of(s->idempotency));
	stmt_text(q, 36, str_of(s->fingerprint));
	stmt_text(q, 37, str_of(s->build));
	return stmt_step(q, err);
}

int rows_network(struct store *st, const struct sandbox *s, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "UPDATE sandboxes SET allow_out = ?2, deny_out = ?3, internet = ?4 WHERE id = ?1", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(s->id));
	stmt_blob(q, 2, buf_str(&s->allow_out));
	stmt_blob(q, 3, buf_str(&s->deny_out));
	bind_internet(q, 4, s);
	return stmt_step(q, err);
}

int rows_forget(struct store *st, const char *id, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM sandboxes WHERE id = ?", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(id));
	return stmt_step(q, err);
}

int rows_end(struct store *st, const struct sandbox *s, struct error *err)
{
	int r = rows_forget(st, s->id, err);
	if (r < 0)
		return r;
	cleanup_stmt struct stmt *q = store_prepare(st,
		"INSERT OR REPLACE INTO ends (id, team, template_id, alias, started_at, ended_at, reason, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(s->id));
	stmt_text(q, 2, str_of(s->team));
	stmt_text(q, 3, str_of(s->template_id));
	stmt_text(q, 4, str_of(s->alias));
	stmt_i64(q, 5, s->started_at);
	stmt_i64(q, 6, s->ended_at);
	stmt_text(q, 7, str_of(s->reason));
	stmt_text(q, 8, str_of(s->detail));
	return stmt_step(q, err);
}

int rows_prune(struct store *st, int64_t at, unsigned most, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"DELETE FROM ends WHERE ended_at < ?1 OR id IN (SELECT id FROM ends ORDER BY ended_at DESC, id DESC LIMIT -1 OFFSET ?2)", err);
	if (!q)
		return -EIO;
	stmt_i64(q, 1, at);
	stmt_i64(q, 2, most);
	return stmt_step(q, err);
}

int rows_put_snapshot(struct store *st, const struct snapshot_record *s, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"INSERT INTO snapshots (id, team, name, sandbox, template_id, created_at, cpu_count, memory_mb, disk_mb, image, size, start)"
		" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(s->id));
	stmt_text(q, 2, str_of(s->team));
	stmt_text(q, 3, str_of(s->name));
	stmt_text(q, 4, str_of(s->sandbox));
	stmt_text(q, 5, str_of(s->template_id));
	stmt_i64(q, 6, s->created_at);
	stmt_i64(q, 7, s->cpu_count);
	stmt_i64(q, 8, s->memory_mb);
	stmt_i64(q, 9, s->disk_mb);
	stmt_text(q, 10, str_of(s->image));
	stmt_i64(q, 11, (int64_t)s->size);
	stmt_blob(q, 12, buf_str(&s->start));
	return stmt_step(q, err);
}

int rows_forget_snapshot(struct store *st, const char *id, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM snapshots WHERE id = ?", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(id));
	return stmt_step(q, err);
}

int rows_put_pool(struct store *st, const struct pool_record *p, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "INSERT OR REPLACE INTO pools (template_id, min, size, max) VALUES (?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(p->template_id));
	stmt_i64(q, 2, p->min);
	stmt_i64(q, 3, p->size);
	stmt_i64(q, 4, p->max);
	return stmt_step(q, err);
}

int rows_forget_pool(struct store *st, const char *template_id, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM pools WHERE template_id = ?", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(template_id));
	return stmt_step(q, err);
}

/* Reading */

int rows_key(struct store *st, unsigned char ret[SANDBOX_KEY], struct error *err)
{
	int e = store_begin(st, STORE_FULL, err);
	if (e < 0)
		return e;
	cleanup_stmt struct stmt *q = store_prepare(st, "SELECT value FROM meta WHERE name = 'token-key'", err);
	e = q ? stmt_step(q, err) : -EIO;
	if (e == 1) {
		struct str key = stmt_get_str(q, 0);
		if (key.n == SANDBOX_KEY)
			memcpy(ret, key.p, key.n);
		else
			e = error_set(err, -EIO, 500, "records: the token key is damaged");
	}
	stmt_done(steal_pointer(&q));
	if (e == 0) {
		random_bytes(ret, SANDBOX_KEY);
		cleanup_stmt struct stmt *w = store_prepare(st, "INSERT INTO meta (name, value) VALUES ('token-key', ?)", err);
		if (w)
			stmt_blob(w, 1, str_n(ret, SANDBOX_KEY));
		e = w ? stmt_step(w, err) : -EIO;
	}
	if (e < 0) {
		store_rollback(st);
		return e;
	}
	return store_commit(st, err);
}

static void take(struct stmt *q, int column, char *to, size_t size)
{
	sandbox_copy(to, size, stmt_get_str(q, column));
}

static void take_bytes(struct stmt *q, int column, struct buf *to)
{
	if (buf_add_str(to, stmt_get_str(q, column)) < 0)
		abort();
}

int rows_load(struct store *st, void (*fn)(struct sandbox *s, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"SELECT id, state, team, template_id, alias, boot_id, started_at, end_at, deadline, cpu_count, memory_mb, disk_mb, secure, public_traffic,"
		" internet, auto_pause, auto_resume, metadata, generation, launch, handle, reason, detail, auto_pause_memory, memory_kept, timeout, image,"
		" resumed_from, allow_out, deny_out, start, origin, idempotency, fingerprint,"
		" shutdown_at, shutdown, build FROM sandboxes", err);
	if (!q)
		return -EIO;
	int e;
	while ((e = stmt_step(q, err)) == 1) {
		struct sandbox s = {.state = (enum sandbox_state)stmt_get_i64(q, 1)};
		take(q, 0, s.id, sizeof(s.id));
		take(q, 2, s.team, sizeof(s.team));
		take(q, 3, s.template_id, sizeof(s.template_id));
		take(q, 4, s.alias, sizeof(s.alias));
		take(q, 5, s.boot_id, sizeof(s.boot_id));
		s.started_at = stmt_get_i64(q, 6);
		s.end_at = stmt_get_i64(q, 7);
		s.deadline = stmt_get_i64(q, 8);
		s.cpu_count = (uint32_t)stmt_get_i64(q, 9);
		s.memory_mb = (uint32_t)stmt_get_i64(q, 10);
		s.disk_mb = (uint32_t)stmt_get_i64(q, 11);
		s.secure = stmt_get_i64(q, 12);
		s.public_traffic = stmt_get_i64(q, 13);
		s.has_internet = !stmt_get_null(q, 14);
		s.internet = stmt_get_i64(q, 14);
		s.auto_pause = stmt_get_i64(q, 15);
		s.auto_resume = stmt_get_i64(q, 16);
		take_bytes(q, 17, &s.metadata);
		take(q, 18, s.generation, sizeof(s.generation));
		take(q, 19, s.launch, sizeof(s.launch));
		take(q, 20, s.handle.text, sizeof(s.handle.text));
		take(q, 21, s.reason, sizeof(s.reason));
		take(q, 22, s.detail, sizeof(s.detail));
		s.auto_pause_memory = stmt_get_i64(q, 23);
		s.memory_kept = stmt_get_i64(q, 24);
		s.timeout = stmt_get_i64(q, 25);
		take(q, 26, s.image, sizeof(s.image));
		take(q, 27, s.resumed_from, sizeof(s.resumed_from));
		take_bytes(q, 28, &s.allow_out);
		take_bytes(q, 29, &s.deny_out);
		take_bytes(q, 30, &s.start);
		take(q, 31, s.origin, sizeof(s.origin));
		take(q, 32, s.idempotency, sizeof(s.idempotency));
		take(q, 33, s.fingerprint, sizeof(s.fingerprint));
		s.shutdown_at = stmt_get_i64(q, 34);
		s.shutdown = stmt_get_i64(q, 35);
		take(q, 36, s.build, sizeof(s.build));
		fn(&s, arg);
	}
	return e;
}

int rows_load_snapshots(struct store *st, void (*fn)(struct snapshot_record *s, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"SELECT id, team, name, sandbox, template_id, created_at, cpu_count, memory_mb, disk_mb, image, size, start FROM snapshots", err);
	if (!q)
		return -EIO;
	int e;
	while ((e = stmt_step(q, err)) == 1) {
		struct snapshot_record s = {.created_at = stmt_get_i64(q, 5), .cpu_count = (uint32_t)stmt_get_i64(q, 6),
			.memory_mb = (uint32_t)stmt_get_i64(q, 7), .disk_mb = (uint32_t)stmt_get_i64(q, 8), .size = (uint64_t)stmt_get_i64(q, 10)};
		take(q, 0, s.id, sizeof(s.id));
		take(q, 1, s.team, sizeof(s.team));
		take(q, 2, s.name, sizeof(s.name));
		take(q, 3, s.sandbox, sizeof(s.sandbox));
		take(q, 4, s.template_id, sizeof(s.template_id));
		take(q, 9, s.image, sizeof(s.image));
		take_bytes(q, 11, &s.start);
		fn(&s, arg);
	}
	return e;
}

int rows_load_pools(struct store *st, void (*fn)(const struct pool_record *p, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "SELECT template_id, min, size, max FROM pools ORDER BY template_id", err);
	if (!q)
		return -EIO;
	int e;
	while ((e = stmt_step(q, err)) == 1) {
		struct pool_record p = {.min = (uint32_t)stmt_get_i64(q, 1), .size = (uint32_t)stmt_get_i64(q, 2), .max = (uint32_t)stmt_get_i64(q, 3)};
		take(q, 0, p.template_id, sizeof(p.template_id));
		fn(&p, arg);
	}
	return e;
}

int rows_ended(struct store *st, int64_t *at, char id[SANDBOX_ID + 1], unsigned limit,
	void (*fn)(const struct sandbox *s, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"SELECT id, team, template_id, alias, started_at, ended_at, reason, detail FROM ends WHERE (ended_at, id) > (?, ?)"
		" ORDER BY ended_at, id LIMIT ?", err);
	if (!q)
		return -EIO;
	char from[SANDBOX_ID + 1];
	memcpy(from, id, sizeof(from));
	stmt_i64(q, 1, *at);
	stmt_text(q, 2, str_of(from));
	stmt_i64(q, 3, limit);
	int e, n = 0;
	while ((e = stmt_step(q, err)) == 1) {
		struct sandbox s = {.state = SANDBOX_GONE, .public_traffic = true, .shutdown_at = SANDBOX_NEVER, .shutdown = SANDBOX_NEVER};
		take(q, 0, s.id, sizeof(s.id));
		take(q, 1, s.team, sizeof(s.team));
		take(q, 2, s.template_id, sizeof(s.template_id));
		take(q, 3, s.alias, sizeof(s.alias));
		s.started_at = stmt_get_i64(q, 4);
		s.end_at = s.ended_at = stmt_get_i64(q, 5);
		take(q, 6, s.reason, sizeof(s.reason));
		take(q, 7, s.detail, sizeof(s.detail));
		*at = s.ended_at;
		memcpy(id, s.id, sizeof(s.id));
		fn(&s, arg);
		n++;
	}
	return e < 0 ? e : n;
}
