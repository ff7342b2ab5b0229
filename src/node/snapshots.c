#include "node/snapshots.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/random.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#define MIB (UINT64_C(1) << 20)

static const char id_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";

enum { METADATA_MB = 32 }; /* of a copy: journal and tables, which the file system inside does not count as used */

/* The snapshots of this machine */

struct snapshot_record *snapshot_find(const struct node *n, struct str id)
{
	return map_get(&n->snapshots, id);
}

static void record_free(struct snapshot_record *s)
{
	buf_done(&s->start);
	free(s);
}

static struct msg_list layers_of(const struct snapshot_record *s)
{
	struct msg_start start;
	return start_decode(&s->start, &start) < 0 ? (struct msg_list){STR("")} : start.layers;
}

int snapshot_layers(const struct snapshot_record *s, struct buf *to, struct error *err)
{
	struct msg_list below = layers_of(s);
	if (!below.raw.n)
		return error_set(err, -EPROTO, 500, "the record of snapshot %s is damaged", s->id);
	buf_add_str(to, below.raw);
	return msg_list_add(to, str_of(s->image)) < 0 ? error_errno(err, -ENOMEM, "layers") : 0;
}

static void use(struct node *n, const struct snapshot_record *s)
{
	images_use_all(&n->images, layers_of(s));
	images_use(&n->images, str_of(s->image));
}

static void leave(struct node *n, const struct snapshot_record *s)
{
	images_leave(&n->images, str_of(s->image));
	images_leave_all(&n->images, layers_of(s));
}

/* Into the map; takes over what *s owns. */
static struct snapshot_record *keep(struct node *n, const struct snapshot_record *s)
{
	struct snapshot_record *copy = malloc(sizeof(*copy));
	if (!copy || map_put(&n->snapshots, str_of(s->id), copy, NULL) < 0)
		abort(); /* see records.c: without memory the node starts anew */
	*copy = *s;
	use(n, copy);
	return copy;
}

struct loading {
	struct node *node;
	unsigned lost;
};

static void loaded(struct snapshot_record *s, void *arg)
{
	struct loading *g = arg;
	struct node *n = g->node;
	char path[PATH_MAX];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", n->directory, s->image);
	if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || !layers_of(s).raw.n) {
		log_error("snapshot %s is not served: its image %s or its record is damaged", s->id, s->image);
		buf_done(&s->start);
		g->lost++;
		return;
	}
	keep(n, s);
}

int snapshots_load(struct node *n, struct error *err)
{
	struct loading g = {.node = n};
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/snapshots", n->directory);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return error_errno(err, -errno, "%s", path);
	return records_load_snapshots(n->records, loaded, &g, err);
}

void snapshots_done(struct node *n)
{
	struct error err;
	error_set(&err, -ECANCELED, 503, "the server is stopping");
	while (n->shots) {
		shot_answer(n->shots, 0, NULL, &err);
		shot_free(n->shots);
	}
	map_foreach(&n->snapshots, s) record_free(s->value);
	map_done(&n->snapshots);
}

void snapshot_message(const struct snapshot_record *s, bool gone, struct msg_snapshot *ret)
{
	*ret = (struct msg_snapshot){
		.id = str_of(s->id), .team = str_of(s->team), .sandbox = str_of(s->sandbox), .template_id = str_of(s->template_id), .created_at = s->created_at,
		.cpu_count = s->cpu_count, .memory_mb = s->memory_mb, .disk_mb = s->disk_mb, .size = s->size,
	};
	if (*s->name)
		msg_set(ret, snapshot, name, str_of(s->name));
	if (gone)
		msg_set(ret, snapshot, gone, true);
}

/* Deleting: the record goes at once, the image with the last sandbox that stands on it. */

struct deletion {
	struct node *node;
	struct request *request;
	struct snapshot_record *record;
};

static void deleted(const struct error *err, void *arg)
{
	struct deletion *d = arg;
	struct node *n = d->node;
	if (err) {
		if (map_put(&n->snapshots, str_of(d->record->id), d->record, NULL) < 0)
			abort();
		request_fail(d->request, err);
	} else {
		log_info("snapshot %s is deleted", d->record->id);
		node_snapshot_event(n, d->record, true);
		leave(n, d->record);
		record_free(d->record);
		request_answer(d->request, MSG_ID_ok, NULL, -1);
	}
	free(d);
}

void snapshot_delete(struct node *n, struct request *r, const struct msg_delete_snapshot *m)
{
	struct error err = {0};
	struct deletion *d = calloc(1, sizeof(*d));
	struct snapshot_record *s = d ? map_del(&n->snapshots, m->snapshot) : NULL;
	if (!s) {
		if (d)
			error_set(&err, -ENOENT, 404, "template '%.*s' not found: there is no such snapshot", STR_FMT(m->snapshot));
		else
			error_errno(&err, -ENOMEM, "snapshot");
		free(d);
		request_fail(r, &err);
		return;
	}
	/* Nobody can ask for it any more, but its images stay used until the record is gone. */
	*d = (struct deletion){n, r, s};
	records_forget_snapshot(n->records, s->id, deleted, d);
}

/* Shots */

void shot_free(struct shot *x)
{
	struct node *n = x->node;
	if (x->prev_all)
		x->prev_all->next_all = x->next_all;
	else
		n->shots = x->next_all;
	if (x->next_all)
		x->next_all->prev_all = x->prev_all;
	if (x->uses)
		leave(n, &x->record);
	buf_done(&x->record.start);
	buf_done(&x->start);
	sandbox_done(&x->parent);
	free(x->results);
	free(x);
}

static void shot_begin(struct shot *x);

void shot_answer(struct shot *x, enum msg_id type, const void *m, const struct error *err)
{
	struct request *r = steal_pointer(&x->request);
	if (!r)
		return;
	if (err) {
		log_write(LOG_WARN, &(struct log_ids){.request = str_of(r->text)}, "%s", err->message);
		request_fail(r, err);
	} else {
		request_answer(r, type, m, -1);
	}
}

void shot_over(struct shot *x)
{
	struct live *l = x->live;
	if (!l || l->shot != x)
		return;
	l->shot = NULL;
	if (l->s.state == SANDBOX_SNAPSHOTTING)
		sandbox_set_state(&l->s, SANDBOX_RUNNING);
	if (l->s.state != SANDBOX_RUNNING)
		return;
	struct shot *next = l->shots;
	if (next) {
		l->shots = next->next;
		shot_begin(next);
	} else {
		live_settled(l);
	}
}

void shot_done(struct shot *x, enum msg_id type, const void *m, const struct error *err)
{
	shot_answer(x, type, m, err);
	shot_over(x);
	shot_free(x);
}

void live_end_shots(struct live *l)
{
	while (l->shots) {
		struct shot *x = l->shots;
		struct error err;
		l->shots = x->next;
		error_set(&err, -ENOENT, 404, "sandbox %s not found", l->s.id);
		shot_answer(x, 0, NULL, &err);
		shot_free(x);
	}
	/* A copy is ended by the end of the box. */
	if (l->shot && l->shot->kind == SHOT_ROLLBACK)
		rollback_end(l->shot);
}

void live_forget_shot(struct live *l)
{
	if (l->shot)
		l->shot->live = NULL;
	l->shot = NULL;
}

/* A copy */

/* Would what stands on it have too many layers? Each snapshot of what was made from a snapshot, or rolled back to one, is a layer more. */
static int check_chain(const struct live *l, struct msg_list layers, struct error *err)
{
	unsigned disks = 0, all = 0;
	struct str rest = layers.raw, name;
	while (msg_list_next(&rest, &name)) {
		all++;
		disks += str_starts(name, STR("snapshots/"));
	}
	if (all < BOX_MAX_LAYERS)
		return 0;
	return error_set(err, -E2BIG, 409, "sandbox %s stands on %u snapshots, each made on the one before, and there is no room for another (%d layers in all, %u of them its template's). Roll it "
		"back to an earlier snapshot, or copy its files into a sandbox made from a template", l->s.id, disks, BOX_MAX_LAYERS, all - disks);
}

static int check_room(struct shot *x, struct error *err)
{
	struct node *n = x->node;
	struct box_space space;
	int r = box_space(x->live->box, &space);
	if (r < 0)
		return error_set(err, r, 500, "disk of sandbox %s: %s", x->live->s.id, strerror(-r));
	/* What was deleted inside is not copied. */
	x->bytes = MIN(space.backed, space.used + METADATA_MB * MIB) + space.pending;
	return disk_account_room(n->disk, n->copying + x->bytes, err);
}

static int describe(struct shot *x, struct error *err)
{
	const struct sandbox *s = &x->live->s;
	struct snapshot_record *c = &x->record;
	const struct node *n = x->node;
	*c = (struct snapshot_record){.created_at = node_realtime(n), .cpu_count = s->cpu_count, .memory_mb = s->memory_mb, .disk_mb = s->disk_mb};
	memcpy(c->team, s->team, sizeof(c->team));
	memcpy(c->sandbox, s->id, sizeof(c->sandbox));
	memcpy(c->template_id, s->template_id, sizeof(c->template_id));
	memcpy(c->id, "snap-", 5);
	random_text(c->id + 5, SNAPSHOT_ID - 5, id_letters);
	snprintf(c->image, sizeof(c->image), "snapshots/%s%s.img", x->kind == SHOT_FORK ? "fork-" : "", c->id + (x->kind == SHOT_FORK ? 5 : 0));
	return buf_add_str(&c->start, buf_str(&s->start)) < 0 ? error_errno(err, -ENOMEM, "snapshot") : 0;
}

static void snapshot_recorded(const struct error *err, void *arg)
{
	struct shot *x = arg;
	struct msg_snapshot m;
	if (err) {
		shot_done(x, 0, NULL, err);
		return;
	}
	FAULT(snapshot_recorded);
	struct snapshot_record s = x->record;
	s.start = BUF_INIT;
	if (buf_add_str(&s.start, buf_str(&x->record.start)) < 0)
		abort();
	const struct snapshot_record *kept = keep(x->node, &s);
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(x->request->text), .sandbox = str_of(kept->sandbox)}, "snapshot %s", kept->id);
	node_snapshot_event(x->node, kept, false);
	snapshot_message(kept, false, &m);
	shot_done(x, MSG_ID_snapshot, &m, NULL);
}

static void copied(const struct box_copied *c, const struct error *err, void *arg)
{
	struct shot *x = arg;
	struct node *n = x->node;
	n->copying -= x->bytes;
	if (err) {
		shot_done(x, 0, NULL, err);
		return;
	}
	FAULT(snapshot_copied);
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(x->request->text), .sandbox = str_of(x->record.sandbox)}, "its disk is copied: %llu MiB, what writes waited %.1f ms",
		(unsigned long long)(c->size / MIB), (double)c->paused / 1e6);
	x->record.size = c->size;
	if (x->kind == SHOT_FORK)
		fork_copied(x);
	else
		records_put_snapshot(n->records, &x->record, snapshot_recorded, x);
}

static int copy_begin(struct shot *x, struct error *err)
{
	struct live *l = x->live;
	struct node *n = x->node;
	struct msg_start start;
	char path[PATH_MAX], name[sizeof(x->record.name)];
	memcpy(name, x->record.name, sizeof(name));
	if (sandbox_start(&l->s, &start) < 0)
		return error_set(err, -EOPNOTSUPP, 409, "sandbox %s was made by an older version, there can be no snapshot of it", l->s.id);
	int r = check_chain(l, start.layers, err);
	if (r == 0)
		r = check_room(x, err);
	if (r == 0)
		r = describe(x, err);
	if (r == 0 && x->kind == SHOT_FORK && sandbox_clone(&x->parent, &l->s) < 0)
		r = error_errno(err, -ENOMEM, "fork");
	if (r < 0)
		return r;
	memcpy(x->record.name, name, sizeof(name));
	use(n, &x->record);
	x->uses = true;
	snprintf(path, sizeof(path), "%s/%s", n->directory, x->record.image);
	uint64_t bytes = x->bytes;
	n->copying += bytes;
	r = box_copy(l->box, path, copied, x); /* x may be gone behind it */
	if (r < 0) {
		n->copying -= bytes;
		return error_set(err, r, 503, "the disk of sandbox %s cannot be copied now: %s", l->s.id, strerror(-r));
	}
	return 0;
}

static void shot_begin(struct shot *x)
{
	struct live *l = x->live;
	struct error err = {0};
	l->shot = x;
	sandbox_set_state(&l->s, SANDBOX_SNAPSHOTTING);
	if (x->kind == SHOT_ROLLBACK)
		rollback_begin(x);
	else if (copy_begin(x, &err) < 0)
		shot_done(x, 0, NULL, &err);
}

/* Requests */

/* The sandbox of a request, or NULL with *err. */
static struct live *target(struct node *n, struct str id, enum shot_kind kind, struct error *err)
{
	struct live *l = live_find(n, id);
	unsigned waiting = 0;
	if (!l || l->s.state == SANDBOX_CREATING || l->s.state == SANDBOX_KILLING) {
		error_set(err, -ENOENT, 404, "sandbox %.*s not found", STR_FMT(id));
	} else if (l->s.state != SANDBOX_RUNNING && l->s.state != SANDBOX_SNAPSHOTTING) {
		/* The wire rule (e2b): a snapshot of a paused one is 404, a fork 409. */
		if (kind == SHOT_SNAPSHOT)
			error_set(err, -ENOENT, 404, "sandbox %s not found: it is paused", l->s.id);
		else
			error_set(err, -EBUSY, 409, "sandbox %s is paused: resume it first", l->s.id);
	} else if (n->stopping) {
		error_set(err, -EAGAIN, 503, "the server is stopping");
	} else {
		for (const struct shot *x = l->shots; x; x = x->next)
			waiting++;
		if (waiting >= SHOTS_WAITING)
			error_set(err, -EAGAIN, 503, "sandbox %s: %u snapshots or forks wait already", l->s.id, waiting);
	}
	return err->code ? NULL : l;
}

static const char *const names[] = {"snapshot", "fork", "rollback"};

static void submit(struct node *n, struct live *l, struct request *r, const struct shot *what)
{
	struct shot *x = malloc(sizeof(*x)), **end = &l->shots;
	if (!x) {
		struct error err;
		error_errno(&err, -ENOMEM, "snapshot");
		request_fail(r, &err);
		if (what->uses)
			abort(); /* see records.c */
		return;
	}
	*x = *what;
	x->node = n;
	x->live = l;
	x->request = r;
	x->next_all = n->shots;
	if (n->shots)
		n->shots->prev_all = x;
	n->shots = x;
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text), .sandbox = str_of(l->s.id)}, "%s%s", names[x->kind], l->shot ? " waits" : "");
	if (l->s.state == SANDBOX_RUNNING) {
		shot_begin(x);
		return;
	}
	while (*end)
		end = &(*end)->next;
	*end = x;
}

void live_snapshot(struct node *n, struct request *r, const struct msg_make_snapshot *m)
{
	struct error err = {0};
	struct shot x = {.kind = SHOT_SNAPSHOT};
	struct live *l = target(n, m->sandbox, x.kind, &err);
	if (l && msg_has(m, make_snapshot, name) && !sandbox_copy(x.record.name, sizeof(x.record.name), m->name))
		error_set(&err, -EINVAL, 400, "name: too long");
	if (err.code)
		request_fail(r, &err);
	else
		submit(n, l, r, &x);
}

void live_fork(struct node *n, struct request *r, const struct msg_fork *m)
{
	struct error err = {0};
	struct live *l = NULL;
	if (m->count < 1 || m->count > FORK_MOST)
		error_set(&err, -EINVAL, 400, "count: 1 to %d", FORK_MOST);
	else if (check_new_timeout(n, m->timeout, &err) == 0)
		l = target(n, m->sandbox, SHOT_FORK, &err);
	if (err.code)
		request_fail(r, &err);
	else
		submit(n, l, r, &(struct shot){.kind = SHOT_FORK, .count = (unsigned)m->count, .timeout = m->timeout});
}

void live_rollback(struct node *n, struct request *r, const struct msg_rollback *m)
{
	struct error err = {0};
	struct shot x = {.kind = SHOT_ROLLBACK};
	struct live *l = target(n, m->sandbox, x.kind, &err);
	const struct snapshot_record *s = l ? snapshot_find(n, m->snapshot) : NULL;
	if (l && (!s || strcmp(s->team, l->s.team) != 0))
		error_set(&err, -ENOENT, 404, "template '%.*s' not found: there is no such snapshot", STR_FMT(m->snapshot));
	else if (l && strcmp(s->sandbox, l->s.id) != 0)
		error_set(&err, -EINVAL, 409, "snapshot %s was not made of sandbox %s", s->id, l->s.id);
	else if (l && (buf_add_str(&x.record.start, buf_str(&s->start)) < 0))
		error_errno(&err, -ENOMEM, "rollback");
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	/* From here on it may be deleted: its image stays as long as somebody uses it. */
	struct buf start = x.record.start;
	x.record = *s;
	x.record.start = start;
	use(n, &x.record);
	x.uses = true;
	submit(n, l, r, &x);
}
