/*
 * The durable records of sandboxes: node.db, written by one thread of its own, so that the loop never waits for a disk. Writes are done in the order they were
 * asked for; all that wait together share one transaction, so a hundred kills at once cost one fsync.
 */
#ifndef CUBICLE_SANDBOX_RECORDS_H
#define CUBICLE_SANDBOX_RECORDS_H

#include "io/loop.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

enum { RECORDS_VERSION = 4 }; /* of the schema */

struct records;

enum { SNAPSHOT_ID = 25 }; /* "snap-" and 20 of [a-z0-9] */

/* A snapshot: a copy of a sandbox's disk, and how what it was made of is started. */
struct snapshot_record {
	char id[SNAPSHOT_ID + 1];
	char team[65], name[257];  /* name: "" = none */
	char sandbox[SANDBOX_ID + 1]; /* what it was made of */
	char template_id[65];      /* of that sandbox */
	int64_t created_at;        /* ns, CLOCK_REALTIME */
	uint32_t cpu_count, memory_mb, disk_mb;
	char image[64];            /* relative to node/ */
	uint64_t size;             /* bytes that the image holds on disk */
	struct buf start;          /* message `start` of that sandbox: the layers below the image; owned */
};

/* Bounds of a ready pool that somebody has set. */
struct pool_record {
	char template_id[65];
	uint32_t min, size, max;
};

/* Called in the loop's thread after the commit (err NULL), or when it failed (nothing of this write is in the file). */
typedef void records_fn(const struct error *err, void *arg);

/* Opens or makes path. 0 or -errno. */
int records_open(const char *path, struct loop *l, struct records **ret, struct error *err);
/* Finishes the writes that wait; their callbacks are not called any more. The loop must not run after this. Takes NULL. */
void records_free(struct records *r);

/* Nothing waits to be written or reported. */
bool records_idle(struct records *r);

/* The server's secret key, made at the first start. 0 or -errno. */
int records_key(struct records *r, unsigned char ret[SANDBOX_KEY], struct error *err);

/* Records what *s is (copied now), in the state `state`: the intent or the result, which s->state may not show yet. fn(arg) follows in any case, from the loop. */
void records_put(struct records *r, const struct sandbox *s, enum sandbox_state state, enum store_sync sync, records_fn *fn, void *arg);
/* Records its network policy alone, durably: a pause or an end that is under way is none of its business. */
void records_put_network(struct records *r, const struct sandbox *s, records_fn *fn, void *arg);
/* Takes the record away without a trace: a create that came to nothing. */
void records_forget(struct records *r, const struct sandbox *s, records_fn *fn, void *arg);
/* Turns the record into a termination (reason, detail, ended_at), durably. */
void records_end(struct records *r, const struct sandbox *s, records_fn *fn, void *arg);

/* A snapshot, durably; and away with it. *s is copied. */
void records_put_snapshot(struct records *r, const struct snapshot_record *s, records_fn *fn, void *arg);
void records_forget_snapshot(struct records *r, const char *id, records_fn *fn, void *arg);
/* Start-up: every snapshot. *s is moved to fn. 0 or -errno. Blocks. */
int records_load_snapshots(struct records *r, void (*fn)(struct snapshot_record *s, void *arg), void *arg, struct error *err);

/* The bounds of a pool, durably; and away with them. *p is copied. */
void records_put_pool(struct records *r, const struct pool_record *p, records_fn *fn, void *arg);
void records_forget_pool(struct records *r, const char *template_id, records_fn *fn, void *arg);
/* Start-up: every one. 0 or -errno. Blocks. */
int records_load_pools(struct records *r, void (*fn)(const struct pool_record *p, void *arg), void *arg, struct error *err);

/* Start-up: every record that is not a termination. *s is moved to fn, which owns what it holds; tokens are not filled in. 0 or -errno. Blocks. */
int records_load(struct records *r, void (*fn)(struct sandbox *s, void *arg), void *arg, struct error *err);

/* Terminations for a snapshot, oldest first: those after (*at, id), at most `limit`; *at and id are moved on. Start with 0 and "". Only id, team, template_id, alias,
 * started_at, ended_at, reason and detail are set. The number of rows or -errno. Reads beside the writer. */
int records_ended(struct records *r, int64_t *at, char id[SANDBOX_ID + 1], unsigned limit,
	void (*fn)(const struct sandbox *s, void *arg), void *arg, struct error *err);
/* Takes away terminations before `at`, and the oldest beyond `most`. */
void records_prune(struct records *r, int64_t at, unsigned most);

#endif
