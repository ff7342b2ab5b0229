#include "sandbox/records.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/random.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

static const char *const migrations[] = {
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
};

_Static_assert(ARRAY_SIZE(migrations) == RECORDS_VERSION, "a migration for each version");

enum op_kind { OP_PUT, OP_NETWORK, OP_FORGET, OP_END, OP_PRUNE, OP_PUT_SNAPSHOT, OP_FORGET_SNAPSHOT };

struct op {
	struct op *next;
	enum op_kind kind;
	enum store_sync sync;
	enum sandbox_state state;
	struct sandbox s; /* a copy, metadata owned */
	struct snapshot_record snapshot; /* a copy, start owned */
	int64_t at;
	unsigned most;
	records_fn *fn;
	void *arg;
	struct error err; /* code 0 = committed */
};

struct records {
	struct store *store, *reader;
	struct loop *loop;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct op *first, **last;
	bool stop, started, writing;
	struct op *written, **last_written; /* whose report is under way */
};

/* The rows */

static void bind_internet(struct stmt *q, int at, const struct sandbox *s)
{
	if (s->has_internet)
		stmt_i64(q, at, s->internet);
	else
		stmt_null(q, at);
}

/* What changes in a sandbox's life: values 1 to 19 of both statements below. */
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
}

/* 1 = there was a row, 0 = there is none. */
static int update_row(struct store *st, const struct sandbox *s, enum sandbox_state state, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"UPDATE sandboxes SET state = ?2, boot_id = ?3, started_at = ?4, end_at = ?5, deadline = ?6, generation = ?7, launch = ?8, handle = ?9,"
		" reason = ?10, detail = ?11, memory_kept = ?12, image = ?13, resumed_from = ?14, auto_pause = ?15, allow_out = ?16, deny_out = ?17, start = ?18,"
		" internet = ?19 WHERE id = ?1", err);
	if (!q)
		return -EIO;
	bind_changing(q, s, state);
	int r = stmt_step(q, err);
	return r < 0 ? r : stmt_changes(q) == 1;
}

static int put_row(struct store *st, const struct sandbox *s, enum sandbox_state state, struct error *err)
{
	int r = update_row(st, s, state, err);
	if (r != 0)
		return r < 0 ? r : 0;
	cleanup_stmt struct stmt *q = store_prepare(st,
		"INSERT INTO sandboxes (id, state, boot_id, started_at, end_at, deadline, generation, launch, handle, reason, detail, memory_kept, image,"
		" resumed_from, auto_pause, allow_out, deny_out, start, internet, team, template_id, alias, cpu_count, memory_mb, disk_mb, secure, public_traffic,"
		" auto_resume, auto_pause_memory, timeout, metadata, origin)"
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28,"
		" ?29, ?30, ?31, ?32)", err);
	if (!q)
		return -EIO;
	bind_changing(q, s, state);
	stmt_text(q, 20, str_of(s->team));
	stmt_text(q, 21, str_of(s->template_id));
	stmt_text(q, 22, str_of(s->alias));
	stmt_i64(q, 23, s->cpu_count);
	stmt_i64(q, 24, s->memory_mb);
	stmt_i64(q, 25, s->disk_mb);
	stmt_i64(q, 26, s->secure);
	stmt_i64(q, 27, s->public_traffic);
	stmt_i64(q, 28, s->auto_resume);
	stmt_i64(q, 29, s->auto_pause_memory);
	stmt_i64(q, 30, s->timeout);
	stmt_blob(q, 31, buf_str(&s->metadata));
	stmt_text(q, 32, str_of(s->origin));
	return stmt_step(q, err);
}

static int network_row(struct store *st, const struct sandbox *s, struct error *err)
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

static int forget_row(struct store *st, const char *id, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM sandboxes WHERE id = ?", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(id));
	return stmt_step(q, err);
}

static int end_row(struct store *st, const struct sandbox *s, struct error *err)
{
	int r = forget_row(st, s->id, err);
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

static int prune_rows(struct store *st, int64_t at, unsigned most, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st,
		"DELETE FROM ends WHERE ended_at < ?1 OR id IN (SELECT id FROM ends ORDER BY ended_at DESC, id DESC LIMIT -1 OFFSET ?2)", err);
	if (!q)
		return -EIO;
	stmt_i64(q, 1, at);
	stmt_i64(q, 2, most);
	return stmt_step(q, err);
}

static int put_snapshot(struct store *st, const struct snapshot_record *s, struct error *err)
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

static int forget_snapshot(struct store *st, const char *id, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM snapshots WHERE id = ?", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(id));
	return stmt_step(q, err);
}

/* The writer */

static int apply(struct store *st, struct op *op, struct error *err)
{
	switch (op->kind) {
	case OP_PUT:
		return put_row(st, &op->s, op->state, err);
	case OP_NETWORK:
		return network_row(st, &op->s, err);
	case OP_FORGET:
		return forget_row(st, op->s.id, err);
	case OP_END:
		return end_row(st, &op->s, err);
	case OP_PRUNE:
		return prune_rows(st, op->at, op->most, err);
	case OP_PUT_SNAPSHOT:
		return put_snapshot(st, &op->snapshot, err);
	case OP_FORGET_SNAPSHOT:
		return forget_snapshot(st, op->snapshot.id, err);
	}
	return -EINVAL;
}

/* All of a list in one transaction: 0, or -errno with nothing done. `end` is the first op that does not belong to it. */
static int commit(struct store *st, struct op *ops, const struct op *end, struct error *err)
{
	enum store_sync sync = STORE_NORMAL;
	for (struct op *op = ops; op != end; op = op->next)
		if (op->sync == STORE_FULL)
			sync = STORE_FULL;
	int r = store_begin(st, sync, err);
	if (r < 0)
		return r;
	for (struct op *op = ops; op != end; op = op->next) {
		r = apply(st, op, err);
		if (r < 0) {
			store_rollback(st);
			return r;
		}
	}
	return store_commit(st, err);
}

static void write_batch(struct store *st, struct op *ops)
{
	struct error err = {0};
	if (commit(st, ops, NULL, &err) == 0)
		return;
	/* One of them is at fault, or the disk is: each for itself, so that the others do not suffer. */
	for (struct op *op = ops; op; op = op->next) {
		int r = commit(st, op, op->next, &op->err);
		if (r < 0 && !op->err.code)
			error_errno(&op->err, r, "record");
	}
}

static void op_free(struct op *op)
{
	sandbox_done(&op->s);
	buf_done(&op->snapshot.start);
	free(op);
}

static void free_ops(struct op *op)
{
	while (op) {
		struct op *next = op->next;
		op_free(op);
		op = next;
	}
}

static void report(void *arg)
{
	struct records *r = arg;
	pthread_mutex_lock(&r->lock);
	struct op *ops = r->written;
	r->written = NULL;
	pthread_mutex_unlock(&r->lock);
	for (struct op *op = ops; op; op = op->next)
		if (op->fn)
			op->fn(op->err.code ? &op->err : NULL, op->arg);
	free_ops(ops);
}

/* Hands written ops to the loop; one post is enough for all that it has not taken yet. */
static void hand_over(struct records *r, struct op *ops)
{
	pthread_mutex_lock(&r->lock);
	bool first = !r->written;
	if (first)
		r->last_written = &r->written;
	*r->last_written = ops;
	while (*r->last_written)
		r->last_written = &(*r->last_written)->next;
	r->writing = false;
	pthread_mutex_unlock(&r->lock);
	while (first && loop_post(r->loop, report, r) < 0)
		sched_yield();
}

static void *writer(void *arg)
{
	struct records *r = arg;
	for (;;) {
		pthread_mutex_lock(&r->lock);
		while (!r->first && !r->stop)
			pthread_cond_wait(&r->wake, &r->lock);
		struct op *ops = r->first;
		r->first = NULL;
		r->writing = ops != NULL;
		pthread_mutex_unlock(&r->lock);
		if (!ops)
			return NULL;
		write_batch(r->store, ops);
		hand_over(r, ops);
	}
}

int records_open(const char *path, struct loop *l, struct records **ret, struct error *err)
{
	struct records *r = calloc(1, sizeof(*r));
	if (!r)
		return error_errno(err, -ENOMEM, "records");
	r->loop = l;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->wake, NULL);
	int e = store_open(path, 0, migrations, ARRAY_SIZE(migrations), &r->store, err);
	if (e == 0)
		e = store_open(path, STORE_READER, migrations, ARRAY_SIZE(migrations), &r->reader, err);
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (e == 0 && (e = -pthread_create(&r->thread, NULL, writer, r)) < 0)
		error_errno(err, e, "records");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	r->started = e == 0;
	if (e < 0) {
		records_free(r);
		return e;
	}
	*ret = r;
	return 0;
}

void records_free(struct records *r)
{
	if (!r)
		return;
	if (r->started) {
		pthread_mutex_lock(&r->lock);
		r->stop = true;
		pthread_cond_signal(&r->wake);
		pthread_mutex_unlock(&r->lock);
		pthread_join(r->thread, NULL);
	}
	free_ops(r->written);
	store_free(r->reader);
	store_free(r->store);
	pthread_cond_destroy(&r->wake);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static void push(struct records *r, struct op *op)
{
	pthread_mutex_lock(&r->lock);
	if (!r->first)
		r->last = &r->first;
	*r->last = op;
	r->last = &op->next;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
}

/* Memory for a record is a few kilobytes; a node that cannot get it cannot keep its promises and starts anew, finding everything by its records. */
static struct op *op_new(enum op_kind kind, enum store_sync sync, records_fn *fn, void *arg)
{
	struct op *op = calloc(1, sizeof(*op));
	if (!op)
		abort();
	op->kind = kind;
	op->sync = sync;
	op->fn = fn;
	op->arg = arg;
	return op;
}

/* What an end or a forgotten create needs of it. */
static void copy_plain(struct op *op, const struct sandbox *s)
{
	op->s = *s;
	op->s.metadata = op->s.allow_out = op->s.deny_out = op->s.start = BUF_INIT;
}

void records_put(struct records *r, const struct sandbox *s, enum sandbox_state state, enum store_sync sync, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_PUT, sync, fn, arg);
	op->state = state;
	if (sandbox_clone(&op->s, s) < 0)
		abort();
	push(r, op);
}

void records_put_network(struct records *r, const struct sandbox *s, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_NETWORK, STORE_FULL, fn, arg);
	if (sandbox_clone(&op->s, s) < 0)
		abort();
	push(r, op);
}

void records_forget(struct records *r, const struct sandbox *s, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_FORGET, STORE_NORMAL, fn, arg);
	copy_plain(op, s);
	push(r, op);
}

void records_end(struct records *r, const struct sandbox *s, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_END, STORE_FULL, fn, arg);
	copy_plain(op, s);
	push(r, op);
}

void records_put_snapshot(struct records *r, const struct snapshot_record *s, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_PUT_SNAPSHOT, STORE_FULL, fn, arg);
	op->snapshot = *s;
	op->snapshot.start = BUF_INIT;
	if (buf_add_str(&op->snapshot.start, buf_str(&s->start)) < 0)
		abort();
	push(r, op);
}

void records_forget_snapshot(struct records *r, const char *id, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_FORGET_SNAPSHOT, STORE_FULL, fn, arg);
	sandbox_copy(op->snapshot.id, sizeof(op->snapshot.id), str_of(id));
	push(r, op);
}

void records_prune(struct records *r, int64_t at, unsigned most)
{
	struct op *op = op_new(OP_PRUNE, STORE_NORMAL, NULL, NULL);
	op->at = at;
	op->most = most;
	push(r, op);
}

bool records_idle(struct records *r)
{
	pthread_mutex_lock(&r->lock);
	bool idle = !r->first && !r->writing && !r->written;
	pthread_mutex_unlock(&r->lock);
	return idle;
}

/* Reading */

int records_key(struct records *r, unsigned char ret[SANDBOX_KEY], struct error *err)
{
	int e = store_begin(r->store, STORE_FULL, err);
	if (e < 0)
		return e;
	cleanup_stmt struct stmt *q = store_prepare(r->store, "SELECT value FROM meta WHERE name = 'token-key'", err);
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
		cleanup_stmt struct stmt *w = store_prepare(r->store, "INSERT INTO meta (name, value) VALUES ('token-key', ?)", err);
		if (w)
			stmt_blob(w, 1, str_n(ret, SANDBOX_KEY));
		e = w ? stmt_step(w, err) : -EIO;
	}
	if (e < 0) {
		store_rollback(r->store);
		return e;
	}
	return store_commit(r->store, err);
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

int records_load(struct records *r, void (*fn)(struct sandbox *s, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(r->reader,
		"SELECT id, state, team, template_id, alias, boot_id, started_at, end_at, deadline, cpu_count, memory_mb, disk_mb, secure, public_traffic,"
		" internet, auto_pause, auto_resume, metadata, generation, launch, handle, reason, detail, auto_pause_memory, memory_kept, timeout, image,"
		" resumed_from, allow_out, deny_out, start, origin FROM sandboxes", err);
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
		fn(&s, arg);
	}
	return e;
}

int records_load_snapshots(struct records *r, void (*fn)(struct snapshot_record *s, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(r->reader,
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

int records_ended(struct records *r, int64_t *at, char id[SANDBOX_ID + 1], unsigned limit,
	void (*fn)(const struct sandbox *s, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(r->reader,
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
		struct sandbox s = {.state = SANDBOX_GONE, .public_traffic = true};
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
