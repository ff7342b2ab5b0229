/* What is in node.db: its schema, and each row written and read. Behind records.h only. All functions block; 0 or -errno with *err. */
#ifndef CUBICLE_SANDBOX_ROWS_H
#define CUBICLE_SANDBOX_ROWS_H

#include "sandbox/records.h"

/* For store_open(). */
extern const char *const rows_migrations[RECORDS_VERSION];

/* For files beside records.c: a write of another kind. *what is owned, release(what) follows; apply() runs on the writer's thread inside a transaction: 0 or -errno with *err. */
void records_call(struct records *r, enum store_sync sync, int (*apply)(struct store *st, const void *what, struct error *err), void *what,
	void (*release)(void *what), records_fn *fn, void *arg);
struct store *records_reader(struct records *r);

/* Inside a transaction of the caller's. */
int rows_put(struct store *st, const struct sandbox *s, enum sandbox_state state, struct error *err);
int rows_network(struct store *st, const struct sandbox *s, struct error *err);
int rows_forget(struct store *st, const char *id, struct error *err);
int rows_end(struct store *st, const struct sandbox *s, struct error *err);
int rows_prune(struct store *st, int64_t at, unsigned most, struct error *err);
int rows_put_snapshot(struct store *st, const struct snapshot_record *s, struct error *err);
int rows_forget_snapshot(struct store *st, const char *id, struct error *err);
int rows_put_pool(struct store *st, const struct pool_record *p, struct error *err);
int rows_forget_pool(struct store *st, const char *template_id, struct error *err);

/* As the functions of the same name in records.h. */
int rows_key(struct store *st, unsigned char ret[SANDBOX_KEY], struct error *err);
int rows_load(struct store *st, void (*fn)(struct sandbox *s, void *arg), void *arg, struct error *err);
int rows_load_snapshots(struct store *st, void (*fn)(struct snapshot_record *s, void *arg), void *arg, struct error *err);
int rows_load_pools(struct store *st, void (*fn)(const struct pool_record *p, void *arg), void *arg, struct error *err);
int rows_ended(struct store *st, int64_t *at, char id[SANDBOX_ID + 1], unsigned limit,
	void (*fn)(const struct sandbox *s, void *arg), void *arg, struct error *err);

#endif
