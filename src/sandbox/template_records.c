#include "sandbox/template_records.h"
#include "sandbox/rows.h"
#include "base/cleanup.h"

#include <stdlib.h>

void build_record_done(struct build_record *b)
{
	buf_done(&b->tags);
	buf_done(&b->description);
}

int build_record_clone(struct build_record *to, const struct build_record *from)
{
	*to = *from;
	to->tags = to->description = BUF_INIT;
	if (buf_add_str(&to->tags, buf_str(&from->tags)) == 0 && buf_add_str(&to->description, buf_str(&from->description)) == 0)
		return 0;
	build_record_done(to);
	return -ENOMEM;
}

/* What a write carries; NULL-safe memory is none: see records.c. */
static void *keep(const void *what, size_t size)
{
	void *copy = malloc(size);
	if (!copy)
		abort();
	memcpy(copy, what, size);
	return copy;
}

/* Templates */

static int put_template(struct store *st, const void *what, struct error *err)
{
	const struct template_record *t = what;
	cleanup_stmt struct stmt *q = store_prepare(st,
		"INSERT OR REPLACE INTO templates (id, team, name, kind, reference, public, cpu_count, memory_mb, disk_mb, created_at, updated_at, source)"
		" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(t->id));
	stmt_text(q, 2, str_of(t->team));
	stmt_text(q, 3, str_of(t->name));
	stmt_text(q, 4, str_of(t->kind));
	stmt_text(q, 5, str_of(t->reference));
	stmt_i64(q, 6, t->public);
	stmt_i64(q, 7, t->cpu_count);
	stmt_i64(q, 8, t->memory_mb);
	stmt_i64(q, 9, t->disk_mb);
	stmt_i64(q, 10, t->created_at);
	stmt_i64(q, 11, t->updated_at);
	stmt_text(q, 12, str_of(t->source));
	return stmt_step(q, err);
}

void records_put_template(struct records *r, const struct template_record *t, records_fn *fn, void *arg)
{
	records_call(r, STORE_FULL, put_template, keep(t, sizeof(*t)), free, fn, arg);
}

/* One statement with one text. */
static int run(struct store *st, const char *sql, const char *text, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(st, sql, err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(text));
	return stmt_step(q, err);
}

static int forget_template(struct store *st, const void *what, struct error *err)
{
	int r = run(st, "DELETE FROM tags WHERE template_id = ?", what, err);
	if (r == 0)
		r = run(st, "DELETE FROM builds WHERE template_id = ?", what, err);
	return r < 0 ? r : run(st, "DELETE FROM templates WHERE id = ?", what, err);
}

void records_forget_template(struct records *r, const char *id, records_fn *fn, void *arg)
{
	records_call(r, STORE_FULL, forget_template, keep(id, strlen(id) + 1), free, fn, arg);
}

/* Builds and tags */

static int put_tags(struct store *st, const char *template_id, struct str tags, const char *build, int64_t at, struct error *err)
{
	struct str tag;
	while (msg_list_next(&tags, &tag)) {
		cleanup_stmt struct stmt *q = store_prepare(st, "INSERT OR REPLACE INTO tags (template_id, tag, build, created_at) VALUES (?, ?, ?, ?)", err);
		if (!q)
			return -EIO;
		stmt_text(q, 1, str_of(template_id));
		stmt_text(q, 2, tag);
		stmt_text(q, 3, str_of(build));
		stmt_i64(q, 4, at);
		int r = stmt_step(q, err);
		if (r < 0)
			return r;
	}
	return 0;
}

struct build_write {
	struct build_record b;
	bool tagged;
};

static int put_build(struct store *st, const void *what, struct error *err)
{
	const struct build_write *w = what;
	const struct build_record *b = &w->b;
	cleanup_stmt struct stmt *q = store_prepare(st,
		"INSERT OR REPLACE INTO builds (id, template_id, status, phase, reason, step, digest, cpu_count, memory_mb, disk_mb, created_at, finished_at, tags, description, kind)"
		" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(b->id));
	stmt_text(q, 2, str_of(b->template_id));
	stmt_i64(q, 3, b->status);
	stmt_text(q, 4, str_of(b->phase));
	stmt_text(q, 5, str_of(b->reason));
	stmt_text(q, 6, str_of(b->step));
	stmt_text(q, 7, str_of(b->digest));
	stmt_i64(q, 8, b->cpu_count);
	stmt_i64(q, 9, b->memory_mb);
	stmt_i64(q, 10, b->disk_mb);
	stmt_i64(q, 11, b->created_at);
	stmt_i64(q, 12, b->finished_at);
	stmt_blob(q, 13, buf_str(&b->tags));
	stmt_text(q, 14, buf_str(&b->description));
	stmt_text(q, 15, str_of(b->kind));
	int r = stmt_step(q, err);
	return r < 0 || !w->tagged ? r : put_tags(st, b->template_id, buf_str(&b->tags), b->id, b->finished_at, err);
}

static void build_write_free(void *what)
{
	struct build_write *w = what;
	build_record_done(&w->b);
	free(w);
}

void records_put_build(struct records *r, const struct build_record *b, bool tagged, records_fn *fn, void *arg)
{
	struct build_write *w = calloc(1, sizeof(*w));
	if (!w || build_record_clone(&w->b, b) < 0)
		abort(); /* see records.c */
	w->tagged = tagged;
	records_call(r, STORE_FULL, put_build, w, build_write_free, fn, arg);
}

static int forget_build(struct store *st, const void *what, struct error *err)
{
	int r = run(st, "DELETE FROM tags WHERE build = ?", what, err);
	return r < 0 ? r : run(st, "DELETE FROM builds WHERE id = ?", what, err);
}

void records_forget_build(struct records *r, const char *id, records_fn *fn, void *arg)
{
	records_call(r, STORE_FULL, forget_build, keep(id, strlen(id) + 1), free, fn, arg);
}

struct tags_write {
	char template_id[TEMPLATE_ID + 1], build[37];
	int64_t at;
	struct buf tags;
};

static void tags_write_free(void *what)
{
	struct tags_write *w = what;
	buf_done(&w->tags);
	free(w);
}

static struct tags_write *tags_write_new(const char *template_id, struct msg_list tags)
{
	struct tags_write *w = calloc(1, sizeof(*w));
	if (!w || buf_add_str(&w->tags, tags.raw) < 0)
		abort(); /* see records.c */
	sandbox_copy(w->template_id, sizeof(w->template_id), str_of(template_id));
	return w;
}

static int apply_tags(struct store *st, const void *what, struct error *err)
{
	const struct tags_write *w = what;
	return put_tags(st, w->template_id, buf_str(&w->tags), w->build, w->at, err);
}

void records_put_tags(struct records *r, const char *template_id, struct msg_list tags, const char *build, int64_t at, records_fn *fn, void *arg)
{
	struct tags_write *w = tags_write_new(template_id, tags);
	sandbox_copy(w->build, sizeof(w->build), str_of(build));
	w->at = at;
	records_call(r, STORE_FULL, apply_tags, w, tags_write_free, fn, arg);
}

static int forget_tags(struct store *st, const void *what, struct error *err)
{
	const struct tags_write *w = what;
	struct str rest = buf_str(&w->tags), tag;
	while (msg_list_next(&rest, &tag)) {
		cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM tags WHERE template_id = ? AND tag = ?", err);
		if (!q)
			return -EIO;
		stmt_text(q, 1, str_of(w->template_id));
		stmt_text(q, 2, tag);
		int r = stmt_step(q, err);
		if (r < 0)
			return r;
	}
	return 0;
}

void records_forget_tags(struct records *r, const char *template_id, struct msg_list tags, records_fn *fn, void *arg)
{
	records_call(r, STORE_FULL, forget_tags, tags_write_new(template_id, tags), tags_write_free, fn, arg);
}

/* Layers and files */

static int put_layer(struct store *st, const void *what, struct error *err)
{
	const struct layer_record *l = what;
	cleanup_stmt struct stmt *q = store_prepare(st, "INSERT OR REPLACE INTO layers (key, file, size, used_at) VALUES (?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(l->key));
	stmt_text(q, 2, str_of(l->file));
	stmt_i64(q, 3, (int64_t)l->size);
	stmt_i64(q, 4, l->used_at);
	return stmt_step(q, err);
}

void records_put_layer(struct records *r, const struct layer_record *l, enum store_sync sync, records_fn *fn, void *arg)
{
	records_call(r, sync, put_layer, keep(l, sizeof(*l)), free, fn, arg);
}

static int forget_layer(struct store *st, const void *what, struct error *err)
{
	return run(st, "DELETE FROM layers WHERE key = ?", what, err);
}

void records_forget_layer(struct records *r, const char *key, records_fn *fn, void *arg)
{
	records_call(r, STORE_FULL, forget_layer, keep(key, strlen(key) + 1), free, fn, arg);
}

static int put_file(struct store *st, const void *what, struct error *err)
{
	const struct file_record *f = what;
	cleanup_stmt struct stmt *q = store_prepare(st, "INSERT OR REPLACE INTO files (team, hash, file, size, used_at) VALUES (?, ?, ?, ?, ?)", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(f->team));
	stmt_text(q, 2, str_of(f->hash));
	stmt_text(q, 3, str_of(f->file));
	stmt_i64(q, 4, (int64_t)f->size);
	stmt_i64(q, 5, f->used_at);
	return stmt_step(q, err);
}

void records_put_file(struct records *r, const struct file_record *f, enum store_sync sync, records_fn *fn, void *arg)
{
	records_call(r, sync, put_file, keep(f, sizeof(*f)), free, fn, arg);
}

static int forget_file(struct store *st, const void *what, struct error *err)
{
	const struct file_record *f = what;
	cleanup_stmt struct stmt *q = store_prepare(st, "DELETE FROM files WHERE team = ? AND hash = ?", err);
	if (!q)
		return -EIO;
	stmt_text(q, 1, str_of(f->team));
	stmt_text(q, 2, str_of(f->hash));
	return stmt_step(q, err);
}

void records_forget_file(struct records *r, const char *team, const char *hash, records_fn *fn, void *arg)
{
	struct file_record f = {0};
	sandbox_copy(f.team, sizeof(f.team), str_of(team));
	sandbox_copy(f.hash, sizeof(f.hash), str_of(hash));
	records_call(r, STORE_FULL, forget_file, keep(&f, sizeof(f)), free, fn, arg);
}

/* Reading */

static void take(struct stmt *q, int column, char *to, size_t size)
{
	sandbox_copy(to, size, stmt_get_str(q, column));
}

int records_load_templates(struct records *r, void (*fn)(const struct template_record *t, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(records_reader(r),
		"SELECT id, team, name, kind, reference, public, cpu_count, memory_mb, disk_mb, created_at, updated_at, source FROM templates", err);
	int e = q ? 0 : -EIO;
	while (q && (e = stmt_step(q, err)) == 1) {
		struct template_record t = {.public = stmt_get_i64(q, 5), .cpu_count = (uint32_t)stmt_get_i64(q, 6), .memory_mb = (uint32_t)stmt_get_i64(q, 7),
			.disk_mb = (uint32_t)stmt_get_i64(q, 8), .created_at = stmt_get_i64(q, 9), .updated_at = stmt_get_i64(q, 10)};
		take(q, 0, t.id, sizeof(t.id));
		take(q, 1, t.team, sizeof(t.team));
		take(q, 2, t.name, sizeof(t.name));
		take(q, 3, t.kind, sizeof(t.kind));
		take(q, 4, t.reference, sizeof(t.reference));
		take(q, 11, t.source, sizeof(t.source));
		fn(&t, arg);
	}
	return e;
}

int records_load_builds(struct records *r, void (*fn)(struct build_record *b, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(records_reader(r),
		"SELECT id, template_id, status, phase, reason, step, digest, cpu_count, memory_mb, disk_mb, created_at, finished_at, tags, description, kind FROM builds"
		" ORDER BY created_at, id", err);
	int e = q ? 0 : -EIO;
	while (q && (e = stmt_step(q, err)) == 1) {
		struct build_record b = {.status = (enum build_status)stmt_get_i64(q, 2), .cpu_count = (uint32_t)stmt_get_i64(q, 7),
			.memory_mb = (uint32_t)stmt_get_i64(q, 8), .disk_mb = (uint32_t)stmt_get_i64(q, 9), .created_at = stmt_get_i64(q, 10), .finished_at = stmt_get_i64(q, 11)};
		take(q, 0, b.id, sizeof(b.id));
		take(q, 1, b.template_id, sizeof(b.template_id));
		take(q, 3, b.phase, sizeof(b.phase));
		take(q, 4, b.reason, sizeof(b.reason));
		take(q, 5, b.step, sizeof(b.step));
		take(q, 6, b.digest, sizeof(b.digest));
		take(q, 14, b.kind, sizeof(b.kind));
		if (buf_add_str(&b.tags, stmt_get_str(q, 12)) < 0 || buf_add_str(&b.description, stmt_get_str(q, 13)) < 0)
			abort();
		fn(&b, arg);
	}
	return e;
}

int records_load_tags(struct records *r, void (*fn)(const struct tag_record *t, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(records_reader(r), "SELECT template_id, tag, build, created_at FROM tags ORDER BY template_id, tag", err);
	int e = q ? 0 : -EIO;
	while (q && (e = stmt_step(q, err)) == 1) {
		struct tag_record t = {.created_at = stmt_get_i64(q, 3)};
		take(q, 0, t.template_id, sizeof(t.template_id));
		take(q, 1, t.tag, sizeof(t.tag));
		take(q, 2, t.build, sizeof(t.build));
		fn(&t, arg);
	}
	return e;
}

int records_load_layers(struct records *r, void (*fn)(const struct layer_record *l, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(records_reader(r), "SELECT key, file, size, used_at FROM layers", err);
	int e = q ? 0 : -EIO;
	while (q && (e = stmt_step(q, err)) == 1) {
		struct layer_record l = {.size = (uint64_t)stmt_get_i64(q, 2), .used_at = stmt_get_i64(q, 3)};
		take(q, 0, l.key, sizeof(l.key));
		take(q, 1, l.file, sizeof(l.file));
		fn(&l, arg);
	}
	return e;
}

int records_load_files(struct records *r, void (*fn)(const struct file_record *f, void *arg), void *arg, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(records_reader(r), "SELECT team, hash, file, size, used_at FROM files", err);
	int e = q ? 0 : -EIO;
	while (q && (e = stmt_step(q, err)) == 1) {
		struct file_record f = {.size = (uint64_t)stmt_get_i64(q, 3), .used_at = stmt_get_i64(q, 4)};
		take(q, 0, f.team, sizeof(f.team));
		take(q, 1, f.hash, sizeof(f.hash));
		take(q, 2, f.file, sizeof(f.file));
		fn(&f, arg);
	}
	return e;
}
