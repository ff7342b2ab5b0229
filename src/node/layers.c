#include "node/layers.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fault.h"
#include "base/sha256.h"
#include "node/builder_impl.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* Which there are */

static void add(struct node *n, const struct layer_record *l)
{
	struct layers_of_builds *all = &n->layers;
	struct layer_record *copy = malloc(sizeof(*copy)), *old = map_del(&all->by_key, str_of(l->key));
	if (!copy)
		abort(); /* see records.c: without memory the node starts anew */
	*copy = *l;
	if (old)
		map_del(&all->by_file, str_of(old->file));
	if (map_put(&all->by_key, str_of(copy->key), copy, NULL) < 0 || map_put(&all->by_file, str_of(copy->file), copy, NULL) < 0)
		abort();
	if (old)
		images_unused(&n->images, str_of(old->file));
	free(old);
}

static bool is_there(const struct node *n, const char *file)
{
	char path[PATH_MAX];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", n->directory, file);
	return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static void loaded(const struct layer_record *l, void *arg)
{
	struct node *n = arg;
	if (is_there(n, l->file))
		add(n, l);
	else
		records_forget_layer(n->records, l->key, NULL, NULL);
}

int layers_load(struct node *n, struct error *err)
{
	n->images.layers = &n->layers;
	int r = records_load_layers(n->records, loaded, n, err);
	return r < 0 ? r : uploads_load(n, err);
}

void layers_sweep(struct node *n)
{
	uploads_sweep(n);
}

bool layers_keep(const struct layers_of_builds *l, struct str file)
{
	return map_get(&l->by_file, file) != NULL;
}

void layer_drop(struct node *n, struct layer_record *l, records_fn *fn, void *arg)
{
	char file[sizeof(l->file)];
	memcpy(file, l->file, sizeof(file));
	records_forget_layer(n->records, l->key, fn, arg);
	map_del(&n->layers.by_file, str_of(l->file));
	free(map_del(&n->layers.by_key, str_of(l->key)));
	images_unused(&n->images, str_of(file));
}

void layers_made(struct node *n, const struct layer_record *l, records_fn *done, void *arg)
{
	add(n, l);
	records_put_layer(n->records, l, STORE_FULL, done, arg);
}

/* Locks */

struct layer_wait {
	struct layer_wait *next;
	struct builder *builder;
	uint64_t request;
	bool make;
	layers_go_fn *go; /* NULL: the builder itself asks */
	void *arg;
	int64_t since;    /* boottime */
};

struct layer_lock {
	char key[LAYER_KEY + 1];
	struct builder *holder;
	struct layer_wait *waits;
};

/* Each builder is asked once, however many ways lead to it. */
static bool leads_to(const struct node *n, struct builder *b, const struct builder *whom)
{
	b->asked = true;
	map_foreach(&n->layers.locks, s)
	{
		const struct layer_lock *k = s->value;
		for (const struct layer_wait *w = k->waits; w; w = w->next)
			if (w->builder == b && k->holder && (k->holder == whom || (!k->holder->asked && leads_to(n, k->holder, whom))))
				return true;
	}
	return false;
}

/* Does b wait, itself or by others, for what `whom` holds? Then he must not be waited for. */
static bool waits_for(const struct node *n, struct builder *b, const struct builder *whom)
{
	map_foreach(&n->layers.locks, s)
	{
		const struct layer_lock *k = s->value;
		if (k->holder)
			k->holder->asked = false;
	}
	return leads_to(n, b, whom);
}

static bool same_team(const struct builder *a, const struct builder *b)
{
	return a->build->of && b->build->of && strcmp(a->build->of->r.team, b->build->of->r.team) == 0;
}

bool layers_used(const struct node *n, int64_t *used_at)
{
	int64_t at = node_realtime(n);
	if (at >= *used_at && at - *used_at < USED_GRAIN_S * NS_PER_S)
		return false;
	*used_at = at;
	return true;
}

static void answer_found(struct builder *b, uint64_t request, struct layer_record *l)
{
	struct node *n = b->node;
	struct msg_layer m = {0};
	if (layers_used(n, &l->used_at))
		records_put_layer(n->records, l, STORE_NORMAL, NULL, NULL);
	builder_use(b, str_of(l->file));
	msg_set(&m, layer, file, str_of(l->file));
	msg_set(&m, layer, size, l->size);
	msg_set(&m, layer, found, true);
	if (layers_implied(l->file))
		msg_set(&m, layer, guessed, true);
	builder_answer(b, request, MSG_ID_layer, &m, -1);
}

bool layers_implied(const char *file)
{
	return str_ends(str_of(file), STR("-implied.erofs"));
}

static void answer_none(struct builder *b, uint64_t request)
{
	struct msg_layer m = {0};
	msg_set(&m, layer, found, false);
	builder_answer(b, request, MSG_ID_layer, &m, -1);
}

void layers_key(const struct builder *b, struct str key, char to[LAYER_KEY + 1])
{
	unsigned char digest[SHA256_SIZE];
	char hex[2 * SHA256_SIZE + 1];
	if (str_starts(key, STR("oci:"))) {
		snprintf(to, LAYER_KEY + 1, "%.*s", STR_FMT(key));
		return;
	}
	sha256(str_of(b->build->of ? b->build->of->r.team : ""), digest);
	snprintf(to, LAYER_KEY + 1, "team:%.32s:%.*s", hex_encode(hex, digest, sizeof(digest)), STR_FMT(key));
}

static struct layer_lock *lock_of(struct node *n, struct str key, bool make)
{
	struct layer_lock *k = map_get(&n->layers.locks, key);
	if (k || !make)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k || map_put(&n->layers.locks, key, k, NULL) < 0)
		abort();
	sandbox_copy(k->key, sizeof(k->key), key);
	return k;
}

static void wait_for(struct layer_lock *k, const struct layer_wait *what)
{
	struct layer_wait *w = malloc(sizeof(*w)), **at = &k->waits;
	if (!w)
		abort();
	*w = *what;
	w->next = NULL;
	w->since = node_boottime(w->builder->node);
	w->builder->n_waits++;
	while (*at)
		at = &(*at)->next;
	*at = w;
}

static bool may_wait(const struct builder *b, struct builder *whom)
{
	return b->n_waits < BUILDER_WAITS_MOST && (!b->impatient || same_team(b, whom)) && !waits_for(b->node, whom, b);
}

static void look(const struct layer_wait *w, struct str key)
{
	struct builder *b = w->builder;
	struct node *n = b->node;
	struct layer_record *l = map_get(&n->layers.by_key, key);
	/* What follows from the bytes of blobs, or of layers, alone would be made the same again. */
	bool taken = l && (!b->build->force || w->go || str_starts(key, STR("oci:")) || builder_uses(b, str_of(l->file)));
	if (taken && is_there(n, l->file)) {
		answer_found(b, w->request, l);
		if (w->go)
			w->go(w->arg, true);
		return;
	}
	struct layer_lock *k = lock_of(n, key, w->make);
	if (k && k->holder && k->holder != b && may_wait(b, k->holder)) {
		wait_for(k, w);
		return;
	}
	if (k && w->make && !k->holder) {
		k->holder = b;
		b->n_keys++;
	}
	/* Two that would wait for each other both make it. */
	if (w->make && k->holder != b && builder_grant(b, key) < 0)
		abort();
	if (w->go)
		w->go(w->arg, false);
	else
		answer_none(b, w->request);
}

void layers_find(struct builder *b, uint64_t request, struct str key, bool make)
{
	struct error err;
	if (make && b->n_keys >= BUILDER_KEYS_MOST) {
		error_set(&err, -E2BIG, 400, "at most %d layers are made by a builder at once", BUILDER_KEYS_MOST);
		builder_refuse(b, request, &err);
		return;
	}
	look(&(struct layer_wait){.builder = b, .request = request, .make = make}, key);
}

void layers_find_for(struct builder *b, uint64_t request, struct str key, layers_go_fn *go, void *arg)
{
	look(&(struct layer_wait){.builder = b, .request = request, .make = true, .go = go, .arg = arg}, key);
}

bool layers_granted(const struct builder *b, struct str key)
{
	const struct layer_lock *k = map_get(&b->node->layers.locks, key);
	return (k && k->holder == b) || builder_has_grant(b, key);
}

void layers_released(struct node *n, struct str key)
{
	char copy[LAYER_KEY + 1];
	struct layer_lock *k = map_del(&n->layers.locks, key);
	if (!k)
		return;
	sandbox_copy(copy, sizeof(copy), str_of(k->key));
	struct layer_wait *waits = k->waits;
	if (k->holder)
		k->holder->n_keys--;
	free(k);
	while (waits) {
		struct layer_wait *w = waits;
		waits = w->next;
		w->builder->n_waits--;
		look(w, str_of(copy));
		free(w);
	}
}

void layers_give(struct builder *b, struct str key)
{
	struct layer_lock *k = map_get(&b->node->layers.locks, key);
	builder_drop_grant(b, key);
	if (k && k->holder == b)
		layers_released(b->node, str_of(k->key));
}

/* A wait of the builder's that has lasted too long, taken out; it may make the layer itself. NULL: there is none. */
static struct layer_wait *take_overdue(struct builder *b)
{
	struct node *n = b->node;
	int64_t since = node_boottime(n) - OTHERS_PATIENCE_S * NS_PER_S;
	map_foreach(&n->layers.locks, s)
	{
		struct layer_lock *k = s->value;
		for (struct layer_wait **at = &k->waits; *at && k->holder && !same_team(b, k->holder); at = &(*at)->next) {
			struct layer_wait *w = *at;
			if (w->builder != b || w->since > since)
				continue;
			*at = w->next;
			b->n_waits--;
			b->impatient = true;
			if (w->make && builder_grant(b, str_of(k->key)) < 0)
				abort();
			return w;
		}
	}
	return NULL;
}

void layers_go_on(struct builder *b)
{
	builder_hold(b);
	for (struct layer_wait *w; b->n_waits && !b->ending && (w = take_overdue(b));) {
		if (w->go)
			w->go(w->arg, false);
		else
			answer_none(b, w->request);
		free(w);
	}
	builder_let(b);
}

/* What it waits for is not asked any more, and what it holds is somebody else's. */
void layers_leave(struct builder *b)
{
	struct node *n = b->node;
	map_foreach(&n->layers.locks, s)
	{
		struct layer_lock *k = s->value;
		for (struct layer_wait **at = &k->waits; *at;) {
			struct layer_wait *w = *at;
			if (w->builder == b) {
				*at = w->next;
				b->n_waits--;
				if (w->go)
					w->go(w->arg, false);
				free(w);
			} else {
				at = &w->next;
			}
		}
	}
	for (bool again = true; again;) {
		again = false;
		map_foreach(&n->layers.locks, s)
		{
			struct layer_lock *k = s->value;
			if (k->holder != b)
				continue;
			layers_released(n, str_of(k->key));
			again = true;
			break;
		}
	}
}

/* Going */

struct collecting {
	struct node *node;
	struct request *request; /* NULL: nobody asked */
	struct buf list;
	uint64_t bytes, count;
	unsigned pending;
	struct error err;
};

enum { LIST_MOST = 40000 };

static void collected(struct collecting *c)
{
	if (--c->pending)
		return;
	struct msg_images_page m = {.images = {buf_str(&c->list)}, .bytes = c->bytes, .count = c->count};
	if (c->request && c->err.code)
		request_fail(c->request, &c->err);
	else if (c->request)
		request_answer(c->request, MSG_ID_images_page, &m, -1);
	c->node->builds->busy--;
	node_stop_check(c->node);
	buf_done(&c->list);
	free(c);
}

static void forgotten(const struct error *err, void *arg)
{
	struct collecting *c = arg;
	if (err)
		c->err = *err;
	collected(c);
}

static void note(struct collecting *c, const char *file, uint64_t size, int64_t age)
{
	cleanup_buf struct buf item = BUF_INIT;
	char text[24];
	c->count++;
	c->bytes += size;
	if (buf_len(&c->list) > LIST_MOST)
		return;
	msg_list_add(&item, str_of(file));
	snprintf(text, sizeof(text), "%llu", (unsigned long long)size);
	msg_list_add(&item, str_of(text));
	snprintf(text, sizeof(text), "%lld", (long long)(age / NS_PER_S));
	msg_list_add(&item, str_of(text));
	msg_list_add(&c->list, buf_str(&item));
}

/* Those that nothing stands on, and that nobody has asked for lately. */
static void collect(struct collecting *c, int64_t older_than, bool dry_run)
{
	struct node *n = c->node;
	int64_t at = node_realtime(n);
	struct { void *what; bool file; } *old = calloc(n->layers.by_key.count + n->uploads.by_name.count + 1, sizeof(*old));
	size_t n_old = 0;
	if (!old)
		abort();
	map_foreach(&n->layers.by_key, s)
	{
		struct layer_record *l = s->value;
		int64_t age = MAX(at - l->used_at, INT64_C(0));
		if (age < older_than || images_in_use(&n->images, str_of(l->file)))
			continue;
		note(c, l->file, l->size, age);
		old[n_old++].what = l;
	}
	map_foreach(&n->uploads.by_name, s)
	{
		struct file_record *f = s->value;
		int64_t age = MAX(at - f->used_at, INT64_C(0));
		if (age < older_than || images_users(&n->images, str_of(f->file)))
			continue;
		note(c, f->file, f->size, age);
		old[n_old].file = true;
		old[n_old++].what = f;
	}
	for (size_t i = 0; i < n_old && !dry_run; i++) {
		if (old[i].file) {
			upload_drop(n, old[i].what);
		} else {
			c->pending++;
			layer_drop(n, old[i].what, forgotten, c);
		}
	}
	free(old);
}

static struct collecting *collecting_new(struct node *n, struct request *r)
{
	struct collecting *c = calloc(1, sizeof(*c));
	if (!c)
		abort();
	*c = (struct collecting){.node = n, .request = r, .pending = 1};
	n->builds->busy++;
	return c;
}

void layers_collect(struct node *n, struct request *r, const struct msg_collect_images *m)
{
	if (m->older_than < 0 || m->older_than > INT64_C(10) * 365 * 24 * 3600) {
		struct error err;
		error_set(&err, -EINVAL, 400, "olderThan: 0 seconds to ten years");
		request_fail(r, &err);
		return;
	}
	struct collecting *c = collecting_new(n, r);
	collect(c, m->older_than * NS_PER_S, m->dry_run);
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text)}, "%llu images and files of %llu bytes %s", (unsigned long long)c->count, (unsigned long long)c->bytes,
		m->dry_run ? "could go" : "go");
	collected(c);
}

void layers_tick(struct node *n)
{
	struct collecting *c = collecting_new(n, NULL);
	collect(c, n->options->image_keep * 3600 * NS_PER_S, false);
	collected(c);
}

void layers_done(struct node *n)
{
	struct layers_of_builds *all = &n->layers;
	map_foreach(&all->locks, s)
	{
		struct layer_lock *k = s->value;
		while (k->waits) {
			struct layer_wait *w = k->waits;
			k->waits = w->next;
			free(w);
		}
		free(k);
	}
	map_foreach(&all->by_key, s) free(s->value);
	map_done(&all->locks);
	map_done(&all->by_key);
	map_done(&all->by_file);
	uploads_done(n);
}
