/*
 * Durable records in one SQLite file (WAL). One process writes a file; its handle may be used from several threads: a transaction or a statement holds the
 * handle's lock from its start to its end, so writers take turns. Readers that must not wait for a writer's fsync open a second handle with STORE_READER.
 *
 * Values are bound and read as views; a text may hold any bytes. Every function that can fail returns 0 (or a positive value) or a negative errno:
 * -ENOSPC the disk is full, -EIO I/O error or a damaged file, -EBUSY another process holds the file, -EEXIST a UNIQUE rule, -EINVAL a CHECK or
 * NOT NULL rule, -ENOMEM, else -EPROTO (SQL that does not fit the schema: a mistake in the program).
 */
#ifndef CUBICLE_STORE_STORE_H
#define CUBICLE_STORE_STORE_H

#include "base/error.h"
#include "base/str.h"

struct store;
struct stmt;

enum store_flags {
	STORE_READER = 1, /* read only; the file must exist with a schema of this version */
};

enum store_sync {
	STORE_NORMAL, /* survives the end of the process; a power cut may take the last ones */
	STORE_FULL,   /* on the disk when store_commit() returns, with everything committed before */
};

/*
 * Opens or makes the file (mode 0600). migrations[i] is SQL that takes the schema from version i to i + 1; those that are missing run in one
 * transaction each, durably. Append to the list, never change an entry. A file of a newer version is refused (-EPROTO).
 */
int store_open(const char *path, unsigned flags, const char *const *migrations, size_t n_migrations, struct store **ret, struct error *err);
/* Takes NULL. No statement and no transaction may be open. */
void store_free(struct store *s);

/* Runs SQL without values, several statements too. */
int store_exec(struct store *s, const char *sql, struct error *err);

/* A transaction. Between the two calls only the calling thread can use the handle. After a failed statement roll back. */
int store_begin(struct store *s, enum store_sync sync, struct error *err);
/* On failure the transaction is rolled back. */
int store_commit(struct store *s, struct error *err);
void store_rollback(struct store *s);

/*
 * A prepared statement, kept for the next call with the same sql (which must be a literal: it is compared by pointer). Bind 1.., step, read columns 0..,
 * then stmt_done(). Outside a transaction a writing statement is one of its own, with the sync of the last transaction: use store_begin() for what matters.
 * NULL with *err set.
 */
struct stmt *store_prepare(struct store *s, const char *sql, struct error *err);
void stmt_i64(struct stmt *q, int at, int64_t value);
/* The bytes must live until stmt_done(). */
void stmt_text(struct stmt *q, int at, struct str value);
void stmt_blob(struct stmt *q, int at, struct str value);
void stmt_null(struct stmt *q, int at);
/* 1 = a row is there, 0 = done. A failed bind shows here. */
int stmt_step(struct stmt *q, struct error *err);
/* Columns of the row; the views live until the next step. NULL reads as 0 and empty. */
int64_t stmt_get_i64(struct stmt *q, int column);
struct str stmt_get_str(struct stmt *q, int column);
bool stmt_get_null(struct stmt *q, int column);
/* Rows changed by the last writing statement of the handle. */
int64_t stmt_changes(struct stmt *q);
/* Gives the statement back. Takes NULL. */
void stmt_done(struct stmt *q);

static inline void stmt_done_p(struct stmt **q)
{
	stmt_done(*q);
}
#define cleanup_stmt __attribute__((__cleanup__(stmt_done_p)))

/* Moves the log into the file, as far as readers allow; at most this blocks for long, so it runs on a worker. Done by itself at 4 MiB of log. */
int store_checkpoint(struct store *s, struct error *err);

#endif
