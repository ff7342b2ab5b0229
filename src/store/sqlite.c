#include "store/store.h"
#include "base/cleanup.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>

enum {
	BUSY_MS = 5000,      /* for the checkpoint of another handle */
	WAL_PAGES = 1024,    /* 4 MiB */
	MAX_STATEMENTS = 64, /* kept prepared */
};

struct stmt {
	struct store *store;
	sqlite3_stmt *handle;
	const char *sql;
	int bind_result;
	bool busy, kept;
};

struct store {
	sqlite3 *db;
	pthread_mutex_t lock; /* recursive: a statement inside a transaction */
	struct stmt kept[MAX_STATEMENTS];
	size_t n_kept;
	enum store_sync sync;
	bool in_transaction, synced;
};

static int code_of(int rc)
{
	if (rc == SQLITE_CONSTRAINT_UNIQUE || rc == SQLITE_CONSTRAINT_PRIMARYKEY || rc == SQLITE_CONSTRAINT_ROWID)
		return -EEXIST;
	switch (rc & 0xff) {
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_IOERR:
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_CANTOPEN:
	case SQLITE_READONLY:
		return -EIO;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return -EBUSY;
	case SQLITE_CONSTRAINT:
	case SQLITE_TOOBIG:
		return -EINVAL;
	case SQLITE_NOMEM:
		return -ENOMEM;
	default:
		return -EPROTO;
	}
}

static int fail(struct store *s, int rc, const char *what, struct error *err)
{
	int code = code_of(rc);
	return error_set(err, code, code == -ENOSPC ? 507 : 500, "store: %s: %s", what, sqlite3_errmsg(s->db));
}

static int run(struct store *s, const char *sql, struct error *err)
{
	int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
	return rc == SQLITE_OK ? 0 : fail(s, rc, sql, err);
}

static int version_of(struct store *s, int64_t *ret, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(s, "PRAGMA user_version", err);
	if (!q)
		return err ? err->code : -EIO;
	int r = stmt_step(q, err);
	if (r < 0)
		return r;
	*ret = stmt_get_i64(q, 0);
	return 0;
}

static int migrate(struct store *s, const char *const *migrations, size_t n, bool reader, struct error *err)
{
	int64_t version = 0;
	int r = version_of(s, &version, err);
	if (r < 0)
		return r;
	if (version > (int64_t)n || (reader && version != (int64_t)n))
		return error_set(err, -EPROTO, 500, "store: the file has version %lld of its schema, this program knows %zu",
			(long long)version, n);
	for (size_t i = (size_t)version; i < n; i++) {
		char sql[64];
		snprintf(sql, sizeof(sql), "PRAGMA user_version = %zu", i + 1);
		r = store_begin(s, STORE_FULL, err);
		if (r < 0)
			return r;
		r = run(s, migrations[i], err);
		if (r == 0)
			r = run(s, sql, err);
		if (r < 0) {
			store_rollback(s);
			return error_wrap(err, r, "migration %zu", i + 1);
		}
		r = store_commit(s, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The file is made here, so that its mode is right from its first moment; the log and its index take the mode of the file. */
static int make_file(const char *path, struct error *err)
{
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	return fd < 0 ? error_errno(err, -errno, "store: %s", path) : 0;
}

int store_open(const char *path, unsigned flags, const char *const *migrations, size_t n, struct store **ret, struct error *err)
{
	bool reader = flags & STORE_READER;
	int r = reader ? 0 : make_file(path, err);
	if (r < 0)
		return r;
	struct store *s = calloc(1, sizeof(*s));
	if (!s)
		return error_errno(err, -ENOMEM, "store");
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&s->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	int rc = sqlite3_open_v2(path, &s->db,
		(reader ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, NULL);
	if (rc != SQLITE_OK) {
		r = s->db ? fail(s, rc, path, err) : error_errno(err, -ENOMEM, "store");
	} else {
		sqlite3_busy_timeout(s->db, BUSY_MS);
		char pragmas[256];
		snprintf(pragmas, sizeof(pragmas), "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = %d; PRAGMA foreign_keys = ON;"
			"PRAGMA trusted_schema = OFF; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY", WAL_PAGES);
		r = reader ? run(s, "PRAGMA query_only = ON", err) : run(s, pragmas, err);
	}
	if (r == 0)
		r = migrate(s, migrations, n, reader, err);
	if (r < 0) {
		store_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

void store_free(struct store *s)
{
	if (!s)
		return;
	assert(!s->in_transaction);
	for (size_t i = 0; i < s->n_kept; i++) {
		assert(!s->kept[i].busy);
		sqlite3_finalize(s->kept[i].handle);
	}
	sqlite3_close(s->db);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

int store_exec(struct store *s, const char *sql, struct error *err)
{
	pthread_mutex_lock(&s->lock);
	int r = run(s, sql, err);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int store_begin(struct store *s, enum store_sync sync, struct error *err)
{
	pthread_mutex_lock(&s->lock);
	assert(!s->in_transaction);
	int r = 0;
	/* The pragma has no effect inside a transaction. */
	if (!s->synced || s->sync != sync)
		r = run(s, sync == STORE_FULL ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL", err);
	if (r == 0) {
		s->sync = sync;
		s->synced = true;
		r = run(s, "BEGIN IMMEDIATE", err);
	}
	if (r < 0) {
		pthread_mutex_unlock(&s->lock);
		return r;
	}
	s->in_transaction = true;
	return 0;
}

static void end(struct store *s)
{
	s->in_transaction = false;
	pthread_mutex_unlock(&s->lock);
}

int store_commit(struct store *s, struct error *err)
{
	assert(s->in_transaction);
	int r = run(s, "COMMIT", err);
	if (r < 0 && !sqlite3_get_autocommit(s->db))
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
	end(s);
	return r;
}

void store_rollback(struct store *s)
{
	assert(s->in_transaction);
	/* Some failures (full disk) have rolled back already. */
	if (!sqlite3_get_autocommit(s->db))
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
	end(s);
}

static struct stmt *find_kept(struct store *s, const char *sql)
{
	for (size_t i = 0; i < s->n_kept; i++)
		if (s->kept[i].sql == sql && !s->kept[i].busy)
			return &s->kept[i];
	return NULL;
}

struct stmt *store_prepare(struct store *s, const char *sql, struct error *err)
{
	pthread_mutex_lock(&s->lock);
	struct stmt *q = find_kept(s, sql);
	if (!q) {
		sqlite3_stmt *handle = NULL;
		int rc = sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &handle, NULL);
		if (rc != SQLITE_OK) {
			fail(s, rc, sql, err);
			pthread_mutex_unlock(&s->lock);
			return NULL;
		}
		bool keep = s->n_kept < MAX_STATEMENTS;
		q = keep ? &s->kept[s->n_kept] : malloc(sizeof(*q));
		if (!q) {
			sqlite3_finalize(handle);
			error_errno(err, -ENOMEM, "store");
			pthread_mutex_unlock(&s->lock);
			return NULL;
		}
		s->n_kept += keep;
		*q = (struct stmt){.store = s, .handle = handle, .sql = sql, .kept = keep};
	}
	q->busy = true;
	q->bind_result = SQLITE_OK;
	return q;
}

static void bound(struct stmt *q, int rc)
{
	if (rc != SQLITE_OK && q->bind_result == SQLITE_OK)
		q->bind_result = rc;
}

void stmt_i64(struct stmt *q, int at, int64_t value)
{
	bound(q, sqlite3_bind_int64(q->handle, at, value));
}

void stmt_text(struct stmt *q, int at, struct str value)
{
	bound(q, sqlite3_bind_text64(q->handle, at, value.n ? value.p : "", value.n, SQLITE_STATIC, SQLITE_UTF8));
}

void stmt_blob(struct stmt *q, int at, struct str value)
{
	bound(q, sqlite3_bind_blob64(q->handle, at, value.n ? value.p : "", value.n, SQLITE_STATIC));
}

void stmt_null(struct stmt *q, int at)
{
	bound(q, sqlite3_bind_null(q->handle, at));
}

int stmt_step(struct stmt *q, struct error *err)
{
	if (q->bind_result != SQLITE_OK)
		return fail(q->store, q->bind_result, q->sql, err);
	int rc = sqlite3_step(q->handle);
	return rc == SQLITE_ROW ? 1 : rc == SQLITE_DONE ? 0 : fail(q->store, rc, q->sql, err);
}

int64_t stmt_get_i64(struct stmt *q, int column)
{
	return sqlite3_column_int64(q->handle, column);
}

struct str stmt_get_str(struct stmt *q, int column)
{
	const void *p = sqlite3_column_blob(q->handle, column);
	int n = sqlite3_column_bytes(q->handle, column);
	return p ? str_n(p, (size_t)n) : str_n("", 0);
}

bool stmt_get_null(struct stmt *q, int column)
{
	return sqlite3_column_type(q->handle, column) == SQLITE_NULL;
}

int64_t stmt_changes(struct stmt *q)
{
	return sqlite3_changes64(q->store->db);
}

void stmt_done(struct stmt *q)
{
	if (!q)
		return;
	struct store *s = q->store;
	sqlite3_reset(q->handle);
	sqlite3_clear_bindings(q->handle);
	q->busy = false;
	if (!q->kept) {
		sqlite3_finalize(q->handle);
		free(q);
	}
	pthread_mutex_unlock(&s->lock);
}

int store_checkpoint(struct store *s, struct error *err)
{
	return store_exec(s, "PRAGMA wal_checkpoint(PASSIVE)", err);
}
