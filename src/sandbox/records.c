#include "sandbox/rows.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

enum op_kind { OP_PUT, OP_NETWORK, OP_FORGET, OP_END, OP_PRUNE, OP_PUT_SNAPSHOT, OP_FORGET_SNAPSHOT, OP_PUT_POOL, OP_FORGET_POOL, OP_CALL };

struct op {
	struct op *next;
	enum op_kind kind;
	enum store_sync sync;
	enum sandbox_state state;
	struct sandbox s; /* a copy, metadata owned */
	struct snapshot_record snapshot; /* a copy, start owned */
	struct pool_record pool;
	int64_t at;
	unsigned most;
	int (*apply)(struct store *st, const void *what, struct error *err);
	void *what;
	void (*release)(void *what);
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

/* The writer */

static int apply_op(struct store *st, struct op *op, struct error *err)
{
	switch (op->kind) {
	case OP_PUT:
		return rows_put(st, &op->s, op->state, err);
	case OP_NETWORK:
		return rows_network(st, &op->s, err);
	case OP_FORGET:
		return rows_forget(st, op->s.id, err);
	case OP_END:
		return rows_end(st, &op->s, err);
	case OP_PRUNE:
		return rows_prune(st, op->at, op->most, err);
	case OP_PUT_SNAPSHOT:
		return rows_put_snapshot(st, &op->snapshot, err);
	case OP_FORGET_SNAPSHOT:
		return rows_forget_snapshot(st, op->snapshot.id, err);
	case OP_PUT_POOL:
		return rows_put_pool(st, &op->pool, err);
	case OP_FORGET_POOL:
		return rows_forget_pool(st, op->pool.template_id, err);
	case OP_CALL:
		return op->apply(st, op->what, err);
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
		r = apply_op(st, op, err);
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
	if (op->release)
		op->release(op->what);
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
	int e = store_open(path, 0, rows_migrations, RECORDS_VERSION, &r->store, err);
	if (e == 0)
		e = store_open(path, STORE_READER, rows_migrations, RECORDS_VERSION, &r->reader, err);
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

void records_put_pool(struct records *r, const struct pool_record *p, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_PUT_POOL, STORE_FULL, fn, arg);
	op->pool = *p;
	push(r, op);
}

void records_forget_pool(struct records *r, const char *template_id, records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_FORGET_POOL, STORE_FULL, fn, arg);
	sandbox_copy(op->pool.template_id, sizeof(op->pool.template_id), str_of(template_id));
	push(r, op);
}

void records_call(struct records *r, enum store_sync sync, int (*apply)(struct store *st, const void *what, struct error *err), void *what,
	void (*release)(void *what), records_fn *fn, void *arg)
{
	struct op *op = op_new(OP_CALL, sync, fn, arg);
	op->apply = apply;
	op->what = what;
	op->release = release;
	push(r, op);
}

struct store *records_reader(struct records *r)
{
	return r->reader;
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
	return rows_key(r->store, ret, err);
}

int records_load(struct records *r, void (*fn)(struct sandbox *s, void *arg), void *arg, struct error *err)
{
	return rows_load(r->reader, fn, arg, err);
}

int records_load_snapshots(struct records *r, void (*fn)(struct snapshot_record *s, void *arg), void *arg, struct error *err)
{
	return rows_load_snapshots(r->reader, fn, arg, err);
}

int records_load_pools(struct records *r, void (*fn)(const struct pool_record *p, void *arg), void *arg, struct error *err)
{
	return rows_load_pools(r->reader, fn, arg, err);
}

int records_ended(struct records *r, int64_t *at, char id[SANDBOX_ID + 1], unsigned limit,
	void (*fn)(const struct sandbox *s, void *arg), void *arg, struct error *err)
{
	return rows_ended(r->reader, at, id, limit, fn, arg, err);
}
