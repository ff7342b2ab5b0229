#include "node/builds.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/workq.h"
#include "node/builders.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* Which templates and builds there are. */

enum { MAKERS = 4 };

static const char *const status_names[] = {[BUILD_WAITING] = "waiting", [BUILD_BUILDING] = "building", [BUILD_READY] = "ready", [BUILD_ERROR] = "error"};

const char *team_build_status_name(enum build_status s)
{
	return status_names[s];
}

/* What is found */

struct team_template *team_build_find_template(const struct node *n, struct str team, struct str id)
{
	struct team_template *t = map_get(&n->builds->templates, id);
	return t && !t->going && str_is(team, t->r.team) ? t : NULL;
}

struct build *team_build_find(const struct node *n, struct str team, struct str id)
{
	struct build *b = map_get(&n->builds->by_id, id);
	return b && b->of && !b->of->going && str_is(team, b->of->r.team) ? b : NULL;
}

struct template_tag *team_build_find_tag(const struct team_template *t, struct str name)
{
	for (size_t i = 0; i < t->n_tags; i++)
		if (str_is(name, t->tags[i].name))
			return &t->tags[i];
	return NULL;
}

bool team_build_has_tag(const struct team_template *t, const struct build *b)
{
	for (size_t i = 0; i < t->n_tags; i++)
		if (t->tags[i].build == b)
			return true;
	return false;
}

const struct build *team_build_main(const struct team_template *t)
{
	const struct template_tag *tag = team_build_find_tag(t, STR("default"));
	if (tag)
		return tag->build;
	for (const struct build *b = t->builds; b; b = b->older)
		if (b->r.status == BUILD_READY && team_build_has_tag(t, b))
			return b;
	return t->builds;
}

/* "team NUL name" */
static int put_key(struct buf *to, const char *team, const char *name)
{
	buf_add_c(to, team);
	buf_add(to, "", 1);
	return buf_add_c(to, name);
}

struct team_template *team_build_find_by(const struct map *m, const char *team, const char *name)
{
	cleanup_buf struct buf key = BUF_INIT;
	if (put_key(&key, team, name) < 0)
		abort(); /* see records.c: without memory the node starts anew */
	struct team_template *t = map_get(m, buf_str(&key));
	return t && !t->going ? t : NULL;
}

/* Only if it is this one's: a name may have moved. */
static void set_key(struct map *m, struct team_template *t, const char *name, bool on)
{
	cleanup_buf struct buf key = BUF_INIT;
	if (!*name)
		return;
	if (put_key(&key, t->r.team, name) < 0)
		abort();
	if (on && map_put(m, buf_str(&key), t, NULL) < 0)
		abort();
	if (!on && map_get(m, buf_str(&key)) == t)
		map_del(m, buf_str(&key));
}

void team_build_set_name(struct node *n, struct team_template *t, const char *name)
{
	set_key(&n->builds->names, t, t->r.name, false);
	sandbox_copy(t->r.name, sizeof(t->r.name), str_of(name));
	set_key(&n->builds->names, t, t->r.name, true);
}

/* Tags, in memory */

void team_build_identity(const struct build *b, struct template *ret)
{
	const struct team_template *t = b->of;
	memset(ret, 0, sizeof(*ret));
	sandbox_copy(ret->id, sizeof(ret->id), str_of(t->r.id));
	sandbox_copy(ret->alias, sizeof(ret->alias), str_of(t->r.name));
	sandbox_copy(ret->team, sizeof(ret->team), str_of(t->r.team));
	sandbox_copy(ret->build_id, sizeof(ret->build_id), str_of(b->r.id));
	ret->public = t->r.public;
	ret->created_at = t->r.created_at;
}

/* Nothing can be made of it any more; sandboxes that stand on it keep its layers. */
static void retire(struct build *b)
{
	struct node *n = b->node;
	cleanup_buf struct buf layers = BUF_INIT;
	const struct template *t = templates_find_build(n->templates, str_of(b->r.id));
	for (size_t i = 0; t && i < t->n_layers; i++)
		if (msg_list_add(&layers, str_of(t->layers[i].file)) < 0)
			abort();
	templates_drop_build(n->templates, b->r.id);
	images_unnamed(&n->images, (struct msg_list){buf_str(&layers)});
	buf_clear(&b->r.description);
}

void team_build_set_tag(struct team_template *t, struct str name, struct build *b, int64_t at)
{
	struct template_tag *tag = team_build_find_tag(t, name);
	struct build *before = tag ? tag->build : NULL;
	if (!tag) {
		struct template_tag *more = realloc(t->tags, (t->n_tags + 1) * sizeof(*more));
		if (!more)
			abort(); /* see records.c */
		t->tags = more;
		tag = &more[t->n_tags++];
		*tag = (struct template_tag){0};
		sandbox_copy(tag->name, sizeof(tag->name), name);
	}
	tag->build = b;
	tag->created_at = at;
	if (templates_set_tag(b->node->templates, t->r.id, tag->name, b->r.id) < 0)
		abort();
	if (before && before != b && !team_build_has_tag(t, before)) {
		retire(before);
		records_put_build(b->node->records, &before->r, false, NULL, NULL);
	}
}

void team_build_drop_tag(struct team_template *t, struct str name)
{
	struct template_tag *tag = team_build_find_tag(t, name);
	if (!tag)
		return;
	struct build *b = tag->build;
	templates_set_tag(b->node->templates, t->r.id, tag->name, NULL);
	*tag = t->tags[--t->n_tags];
	if (team_build_has_tag(t, b))
		return;
	retire(b);
	records_put_build(b->node->records, &b->r, false, NULL, NULL);
}

void team_build_default_changed(struct node *n, const struct team_template *t)
{
	const struct template *now_it_is = templates_find(n->templates, str_of(t->r.id));
	struct template gone = {0};
	memcpy(gone.id, t->r.id, sizeof(gone.id));
	memcpy(gone.team, t->r.team, sizeof(gone.team));
	if (now_it_is && !t->going)
		ready_template(n, now_it_is, false);
	else
		ready_template(n, &gone, true);
}

/* Objects */

struct build *team_build_new(struct node *n, struct team_template *t, const struct build_record *r)
{
	struct build *b = calloc(1, sizeof(*b));
	if (!b || map_put(&n->builds->by_id, str_of(r->id), b, NULL) < 0)
		abort(); /* see records.c */
	b->node = n;
	b->of = t;
	b->r = *r;
	b->spec = -1;
	b->older = t->builds;
	t->builds = b;
	return b;
}

struct team_template *team_template_new(struct node *n, const struct template_record *r)
{
	struct team_template *t = calloc(1, sizeof(*t));
	if (!t || map_put(&n->builds->templates, str_of(r->id), t, NULL) < 0)
		abort();
	t->r = *r;
	set_key(&n->builds->names, t, t->r.name, true);
	set_key(&n->builds->references, t, t->r.reference, true);
	return t;
}

void team_build_leave_base(struct build *b)
{
	images_leave_all(&b->node->images, (struct msg_list){buf_str(&b->base_layers)});
	buf_done(&b->base_layers);
	buf_done(&b->base);
	b->base = b->base_layers = BUF_INIT;
}

void team_build_leave_queue(struct build *b)
{
	struct builds *all = b->node->builds;
	struct build **at = &all->queue;
	if (!b->queued)
		return;
	while (*at != b)
		at = &(*at)->next_queued;
	*at = b->next_queued;
	if (!*at)
		all->queue_end = at;
	b->queued = false;
}

static void remove_log(struct build *b)
{
	char path[PATH_MAX];
	team_build_log_path(b->node, b->r.id, path);
	unlink(path);
}

static void build_free(struct build *b)
{
	struct node *n = b->node;
	team_build_leave_queue(b);
	if (b->of) {
		struct build **at = &b->of->builds;
		while (*at != b)
			at = &(*at)->older;
		*at = b->older;
	}
	map_del(&n->builds->by_id, str_of(b->r.id));
	team_build_leave_base(b);
	team_build_log_free(b);
	build_record_done(&b->r);
	if (b->spec >= 0)
		close(b->spec);
	free(b);
}

void team_build_hold(struct build *b)
{
	b->holds++;
	b->node->builds->busy++;
}

void team_build_let(struct build *b)
{
	struct node *n = b->node;
	b->holds--;
	n->builds->busy--;
	if (!b->of && !b->holds) {
		/* Its writer was the last that held it. */
		remove_log(b);
		build_free(b);
	}
	node_stop_check(n);
}

/* Its template is deleted: who waits is told. */
static void orphan(struct build *b)
{
	struct error err;
	error_set(&err, -ENOENT, 404, "the template was deleted");
	requests_answer(&b->waiting, &err);
	b->of = NULL;
	if (!b->holds)
		build_free(b);
}

void team_template_free(struct node *n, struct team_template *t)
{
	for (struct build *b = t->builds, *older; b; b = older) {
		older = b->older;
		orphan(b);
	}
	map_del(&n->builds->templates, str_of(t->r.id));
	set_key(&n->builds->names, t, t->r.name, false);
	set_key(&n->builds->references, t, t->r.reference, false);
	free(t->tags);
	free(t);
}

void team_build_forget(struct build *b)
{
	remove_log(b);
	records_forget_build(b->node->records, b->r.id, NULL, NULL);
	build_free(b);
}

void team_build_prune(struct team_template *t)
{
	unsigned n = 0;
	struct build *oldest = NULL;
	for (struct build *b = t->builds; b; b = b->older) {
		n++;
		if (!b->holds && !b->queued && !b->waiting && b->r.status != BUILD_BUILDING && !team_build_has_tag(t, b))
			oldest = b;
	}
	if (n > BUILDS_KEPT && oldest)
		team_build_forget(oldest);
}

/* At start */

static void load_template(const struct template_record *r, void *arg)
{
	team_template_new(arg, r);
}

static void load_build(struct build_record *r, void *arg)
{
	struct node *n = arg;
	struct team_template *t = map_get(&n->builds->templates, str_of(r->template_id));
	if (!t || map_get(&n->builds->by_id, str_of(r->id))) {
		records_forget_build(n->records, r->id, NULL, NULL);
		build_record_done(r);
		return;
	}
	struct build *b = team_build_new(n, t, r);
	/* Nobody starts a build of an image again that he has heard nothing of. */
	if (b->r.status != BUILD_BUILDING && !(b->r.status == BUILD_WAITING && strcmp(t->r.kind, "image") == 0))
		return;
	b->r.status = BUILD_ERROR;
	b->r.finished_at = MAX(node_realtime(n), b->r.created_at);
	snprintf(b->r.reason, sizeof(b->r.reason), "the server was restarted");
	snprintf(b->r.step, sizeof(b->r.step), "base");
	records_put_build(n->records, &b->r, false, NULL, NULL);
}

/* Into the registry, at its first tag. A layer that is missing makes it useless. */
static bool load_ready(struct build *b)
{
	struct node *n = b->node;
	struct error err = {0};
	struct template *t = malloc(sizeof(*t)), *id = malloc(sizeof(*id));
	if (!t || !id)
		abort();
	team_build_identity(b, id);
	int r = template_parse_build(buf_str(&b->r.description), b->r.id, id, t, &err);
	if (r == 0)
		r = template_check_layers(n->directory, t, b->r.id, &err);
	if (r == 0 && templates_put_build(n->templates, t) < 0)
		abort();
	if (r < 0)
		log_error("build %s of template %s is not served: %s", b->r.id, b->r.template_id, err.message);
	free(t);
	free(id);
	return r == 0;
}

struct loading {
	struct node *node;
	unsigned lost; /* tags of builds that are damaged */
};

static void load_tag(const struct tag_record *r, void *arg)
{
	struct loading *g = arg;
	struct node *n = g->node;
	struct team_template *t = map_get(&n->builds->templates, str_of(r->template_id));
	struct build *b = map_get(&n->builds->by_id, str_of(r->build));
	if (!t || !b || b->of != t || b->r.status != BUILD_READY)
		return;
	if (!templates_find_build(n->templates, str_of(b->r.id)) && !load_ready(b)) {
		g->lost++;
		return;
	}
	team_build_set_tag(t, str_of(r->tag), b, r->created_at);
}

int builds_load(struct node *n, struct error *err)
{
	char path[PATH_MAX];
	struct builds *all = n->builds = calloc(1, sizeof(*all));
	struct loading g = {.node = n};
	if (!all || !(all->writer = workq_new(1, 65536)) || !(all->reader = workq_new(1, 4096)) || !(all->makers = workq_new(MAKERS, 4096)))
		return error_errno(err, -ENOMEM, "builds");
	all->queue_end = &all->queue;
	snprintf(path, sizeof(path), "%s/builds", n->directory);
	int r = make_dirs(path, 0700);
	if (r < 0)
		return error_errno(err, r, "%s", path);
	r = records_load_templates(n->records, load_template, n, err);
	if (r == 0)
		r = records_load_builds(n->records, load_build, n, err);
	if (r == 0)
		r = records_load_tags(n->records, load_tag, &g, err);
	return r;
}

void builds_sweep(struct node *n)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/builds", n->directory);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		struct str name = str_of(e->d_name);
		bool ours = name.n == 40 && map_get(&n->builds->by_id, str_n(name.p, 36)) && strcmp(e->d_name + 36, ".log") == 0;
		if (e->d_name[0] != '.' && !ours)
			unlinkat(dirfd(d), e->d_name, 0);
	}
}

void builds_tick(struct node *n)
{
	map_foreach(&n->builds->by_id, s)
	{
		struct build *b = s->value;
		if (b->r.status == BUILD_WAITING && !b->recording && node_realtime(n) - b->r.created_at > BUILD_WAITS_S * NS_PER_S)
			team_build_failed(b, "it was never started", "base");
	}
}

void builds_stop(struct node *n)
{
	size_t before;
	/* One whose template is deleted may be freed at once, which moves the others. */
	do {
		before = n->builds->by_id.count;
		map_foreach(&n->builds->by_id, s)
		{
			team_build_abandon(s->value, "the server was stopped");
			if (n->builds->by_id.count != before)
				break;
		}
	} while (n->builds->by_id.count != before);
}

bool builds_stopped(const struct node *n)
{
	return !n->builds->busy;
}

void builds_drain(struct node *n)
{
	if (!n->builds)
		return;
	workq_free(n->builds->writer);
	workq_free(n->builds->reader);
	workq_free(n->builds->makers);
	n->builds->writer = n->builds->reader = n->builds->makers = NULL;
}

void builds_free(struct node *n)
{
	struct builds *all = n->builds;
	if (!all)
		return;
	while (all->by_id.count)
		map_foreach(&all->by_id, s)
		{
			struct build *b = s->value;
			builder_forget(b->builder);
			while (b->waiting) {
				struct request *r = b->waiting;
				b->waiting = r->next;
				request_free(r);
			}
			build_free(b);
			break;
		}
	while (all->templates.count)
		map_foreach(&all->templates, s)
		{
			team_template_free(n, s->value);
			break;
		}
	map_done(&all->templates);
	map_done(&all->by_id);
	map_done(&all->names);
	map_done(&all->references);
	free(all);
	n->builds = NULL;
}
