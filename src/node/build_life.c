#include "node/builds.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/random.h"
#include "io/workq.h"
#include "node/builders.h"
#include "node/snapshots.h"

#include <stdio.h>
#include <sys/stat.h>

/* A build from its request to its end. */

#define build_note(level, b, ...) log_write(level, &(struct log_ids){.request = str_of((b)->request)}, __VA_ARGS__)

static const char id_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";

/* Making one */

int team_build_take_tags(struct msg_list tags, struct buf *to, struct error *err)
{
	struct str rest = tags.raw, tag;
	unsigned n = 0;
	for (; msg_list_next(&rest, &tag); n++) {
		if (!tag.n || tag.n > TEMPLATE_TAG || memchr(tag.p, '\0', tag.n) || memchr(tag.p, ':', tag.n) || memchr(tag.p, ',', tag.n))
			return error_set(err, -EINVAL, 400, "tags: '%.*s' is no tag: 1 to %d characters of [a-z0-9_.-]", (int)MIN(tag.n, 64u), tag.p, TEMPLATE_TAG);
		if (n == BUILD_TAGS_MOST)
			return error_set(err, -EINVAL, 400, "tags: at most %d", BUILD_TAGS_MOST);
		msg_list_add(to, tag);
	}
	if (!n)
		msg_list_add(to, STR("default"));
	return to->failed ? error_errno(err, -ENOMEM, "tags") : 0;
}

void team_build_answer_made(struct request *r, const struct build *b, struct msg_list tags, bool made)
{
	const struct team_template *t = b->of;
	struct msg_build_made m = {.template = str_of(t->r.id), .build = str_of(b->r.id), .made = made, .tags = tags, .public = t->r.public};
	if (*t->r.name)
		msg_set(&m, build_made, name, str_of(t->r.name));
	request_answer(r, MSG_ID_build_made, &m, -1);
}

static int check_make(const struct node *n, const struct msg_make_template *m, struct error *err)
{
	bool image = str_is(m->kind, "image");
	if (n->stopping)
		return error_set(err, -EAGAIN, 503, "the server is stopping");
	if (!m->team.n || m->team.n > 64 || memchr(m->team.p, '\0', m->team.n))
		return error_set(err, -EINVAL, 400, "team: 1 to 64 bytes are needed");
	if (!image && !str_is(m->kind, "e2b") && !str_is(m->kind, "cube"))
		return error_set(err, -EINVAL, 400, "kind: e2b, cube or image");
	if (m->name.n > 128 || memchr(m->name.p, '\0', m->name.n))
		return error_set(err, -EINVAL, 400, "name: at most 128 bytes");
	if (str_is(m->kind, "e2b") && !m->name.n && !msg_has(m, make_template, template))
		return error_set(err, -EINVAL, 400, "Name is required");
	if (image != (msg_has(m, make_template, reference) && m->reference.n > 0) || (m->reference.n && memchr(m->reference.p, '\0', m->reference.n)))
		return error_set(err, -EINVAL, 400, "reference: that of the image, with kind image only");
	if (msg_has(m, make_template, cpu_count) && (m->cpu_count < 1 || m->cpu_count > 256))
		return error_set(err, -EINVAL, 400, "cpuCount: 1 to 256");
	if (msg_has(m, make_template, memory_mb) && (m->memory_mb < 64 || m->memory_mb > 1048576))
		return error_set(err, -EINVAL, 400, "memoryMB: 64 to 1048576");
	if (msg_has(m, make_template, disk_mb) && (m->disk_mb < 64 || m->disk_mb > 1048576))
		return error_set(err, -EINVAL, 400, "diskSizeMB: 64 to 1048576");
	return 0;
}

static struct team_template *new_template(struct node *n, const struct msg_make_template *m)
{
	struct template_record r = {.created_at = node_realtime(n)};
	bool cube = str_is(m->kind, "cube");
	do {
		memcpy(r.id, "tpl-", 4);
		random_text(cube ? r.id + 4 : r.id, cube ? TEMPLATE_ID - 4 : TEMPLATE_OWN_ID, cube ? "0123456789abcdef" : id_letters);
	} while (map_get(&n->builds->templates, str_of(r.id)) || templates_find(n->templates, str_of(r.id)));
	sandbox_copy(r.team, sizeof(r.team), m->team);
	sandbox_copy(r.name, sizeof(r.name), m->name);
	sandbox_copy(r.kind, sizeof(r.kind), m->kind);
	if (msg_has(m, make_template, reference))
		sandbox_copy(r.reference, sizeof(r.reference), m->reference);
	return team_template_new(n, &r);
}

/* The template that the request is about; NULL: a new one, or (err) none. */
static struct team_template *old_template(struct node *n, const struct msg_make_template *m, struct error *err)
{
	char team[65] = "", name[513] = "";
	struct team_template *t = NULL;
	sandbox_copy(team, sizeof(team), m->team);
	if (msg_has(m, make_template, template)) {
		t = team_build_find_template(n, m->team, m->template);
		if (!t)
			error_set(err, -ENOENT, 404, "template '%.*s' not found", STR_FMT(m->template));
	} else if (str_is(m->kind, "image") && sandbox_copy(name, sizeof(name), m->reference)) {
		t = team_build_find_by(&n->builds->references, team, name);
	} else if (m->name.n && sandbox_copy(name, sizeof(name), m->name)) {
		t = team_build_find_by(&n->builds->names, team, name);
	}
	return t;
}

/* The build of an image that others have asked for already: it is waited for, or is ready. One that nobody has started is for the next who asks. */
static bool join(struct node *n, struct request *r, const struct team_template *t)
{
	struct build *b = t->builds;
	if (!b || b->r.status == BUILD_ERROR || (b->r.status == BUILD_READY && !b->recording && !team_build_has_tag(t, b)))
		return false;
	bool lost = b->r.status == BUILD_WAITING && node_realtime(n) - b->r.created_at > IMAGE_WAITS_S * NS_PER_S;
	team_build_answer_made(r, b, (struct msg_list){buf_str(&b->r.tags)}, lost);
	return true;
}

/* Tags that it will have, when everything that is under way has got its own. */
static int check_tags(const struct team_template *t, const struct buf *more, struct error *err)
{
	size_t n = t->n_tags;
	struct str rest = buf_str(more), tag;
	for (const struct build *b = t->builds; b; b = b->older)
		for (struct str its = buf_str(&b->r.tags); (b->r.status == BUILD_WAITING || b->r.status == BUILD_BUILDING || b->recording) && msg_list_next(&its, &tag);)
			n += !team_build_find_tag(t, tag) && !str_is(tag, "default");
	while (msg_list_next(&rest, &tag))
		n += !team_build_find_tag(t, tag) && !str_is(tag, "default");
	return n <= TEMPLATE_TAGS_MOST ? 0 : error_set(err, -E2BIG, 400, "tags: template %s would have more than %d: remove some first", t->r.id, TEMPLATE_TAGS_MOST);
}

static int check_templates(const struct node *n, struct str team, struct error *err)
{
	unsigned count = 0;
	map_foreach(&n->builds->templates, s) count += str_is(team, ((const struct team_template *)s->value)->r.team);
	return count < TEMPLATES_OF_TEAM ? 0 : error_set(err, -EDQUOT, 429, "the team has %u templates: delete some first", count);
}

struct making {
	struct request *request;
	struct build *build;
	bool fresh; /* so is the template */
};

static void made(const struct error *err, void *arg)
{
	struct making *g = arg;
	struct build *b = g->build;
	struct team_template *t = b->of;
	struct node *n = b->node;
	b->recording = false;
	if (!t) {
		struct error gone;
		error_set(&gone, -ENOENT, 404, "the template was deleted meanwhile");
		request_fail(g->request, &gone);
	} else if (err) {
		request_fail(g->request, err);
		requests_answer(&b->waiting, err);
		if (g->fresh && t->builds == b && !b->older) {
			team_template_free(n, t);
		} else {
			b->r.status = BUILD_ERROR; /* it is in no record, and goes with the next start */
			snprintf(b->r.reason, sizeof(b->r.reason), "%s", err->message);
		}
	} else {
		build_note(LOG_INFO, b, "build %s of template %s (%s)", b->r.id, t->r.id, t->r.name);
		team_build_tell(n, t, false);
		team_build_answer_made(g->request, b, (struct msg_list){buf_str(&b->r.tags)}, true);
		team_build_prune(t);
	}
	free(g);
	team_build_let(b);
}

static void make(struct node *n, struct request *r, struct team_template *t, const struct msg_make_template *m, struct buf *tags)
{
	struct build_record record = {.status = BUILD_WAITING, .created_at = node_realtime(n), .cpu_count = (uint32_t)m->cpu_count, .memory_mb = (uint32_t)m->memory_mb, .disk_mb = (uint32_t)m->disk_mb};
	struct making *g = calloc(1, sizeof(*g));
	if (!g)
		abort();
	g->fresh = !t;
	g->request = r;
	if (!t)
		t = new_template(n, m);
	/* Builds are in the order of their times. */
	if (t->builds && record.created_at <= t->builds->r.created_at)
		record.created_at = t->builds->r.created_at + 1;
	t->r.updated_at = record.created_at;
	if (msg_has(m, make_template, source))
		sandbox_copy(t->r.source, sizeof(t->r.source), m->source);
	t->r.cpu_count = record.cpu_count, t->r.memory_mb = record.memory_mb, t->r.disk_mb = record.disk_mb;
	random_uuid(record.id);
	memcpy(record.template_id, t->r.id, sizeof(record.template_id));
	sandbox_copy(record.kind, sizeof(record.kind), m->kind);
	record.tags = *tags;
	*tags = BUF_INIT;
	struct build *b = g->build = team_build_new(n, t, &record);
	memcpy(b->request, r->text, sizeof(b->request));
	b->recording = true;
	team_build_hold(b);
	records_put_template(n->records, &t->r, NULL, NULL);
	records_put_build(n->records, &b->r, false, made, g);
}

void team_build_make(struct node *n, struct request *r, const struct msg_make_template *m)
{
	struct error err = {0};
	cleanup_buf struct buf tags = BUF_INIT;
	struct team_template *t = NULL;
	if (check_make(n, m, &err) == 0 && team_build_take_tags(m->tags, &tags, &err) == 0)
		t = old_template(n, m, &err);
	if (!err.code && t)
		check_tags(t, &tags, &err);
	else if (!err.code)
		check_templates(n, m->team, &err);
	if (err.code)
		request_fail(r, &err);
	else if (!t || !str_is(m->kind, "image") || msg_has(m, make_template, template) || !join(n, r, t))
		make(n, r, t, m, &tags);
}

/* Starting it */

/* What it is made on, as a description. Its layers are in use from here. */
static int take_base(struct build *b, const struct template *t, struct msg_list layers, struct error *err)
{
	struct node *n = b->node;
	struct str rest = layers.raw, file;
	uint64_t sizes[BOX_MAX_LAYERS];
	size_t count = 0;
	while (msg_list_next(&rest, &file)) {
		char path[PATH_MAX];
		struct stat st;
		snprintf(path, sizeof(path), "%s/%.*s", n->directory, STR_FMT(file));
		if (count == BOX_MAX_LAYERS)
			return error_set(err, -E2BIG, 409, "the base has more than %d layers", BOX_MAX_LAYERS);
		if (lstat(path, &st) < 0)
			return error_set(err, -ENOENT, 500, "the base is damaged: layer %.*s is missing", STR_FMT(file));
		sizes[count++] = MAX((uint64_t)st.st_blocks * 512, UINT64_C(1));
	}
	if (template_serialize_base(t, layers, sizes, &b->base) < 0 || buf_add_str(&b->base_layers, layers.raw) < 0)
		return error_errno(err, -ENOMEM, "base");
	memcpy(b->base_isolation, t->isolation, sizeof(b->base_isolation));
	b->base_nested = t->nested_userns;
	b->base_no_setuid = t->no_setuid;
	images_use_all(&n->images, layers);
	return 0;
}

static int base_of_template(struct build *b, const struct template *t, struct error *err)
{
	cleanup_buf struct buf layers = BUF_INIT;
	for (size_t i = 0; i < t->n_layers; i++)
		if (msg_list_add(&layers, str_of(t->layers[i].file)) < 0)
			return error_errno(err, -ENOMEM, "base");
	return take_base(b, t, (struct msg_list){buf_str(&layers)}, err);
}

/* The snapshot's disk on what it was made on, with the settings of that template, if it is there still. */
static int base_of_snapshot(struct build *b, const struct snapshot_record *s, struct error *err)
{
	struct node *n = b->node;
	struct msg_start start;
	cleanup_buf struct buf layers = BUF_INIT;
	const struct template *of = templates_find(n->templates, str_of(s->template_id));
	struct template *t = of ? malloc(sizeof(*t)) : calloc(1, sizeof(*t));
	int r = t ? snapshot_layers(s, &layers, err) : error_errno(err, -ENOMEM, "base");
	if (r == 0 && start_decode(&s->start, &start) < 0)
		r = error_set(err, -EPROTO, 500, "the record of snapshot %s is damaged", s->id);
	if (r == 0 && msg_has(&start, start, isolation) && str_is(start.isolation, "microvm"))
		/* Its root may have written what it liked to the device: no file system for this machine's kernel to mount. */
		r = error_set(err, -EOPNOTSUPP, 501, "snapshot %s is of a microVM: no template can be built on that yet", s->id);
	if (r == 0) {
		if (of)
			*t = *of;
		sandbox_copy(t->user, sizeof(t->user), start.user);
		sandbox_copy(t->workdir, sizeof(t->workdir), start.workdir);
		r = take_base(b, t, (struct msg_list){buf_str(&layers)}, err);
	}
	free(t);
	return r;
}

static int find_base(struct build *b, struct str base, struct error *err)
{
	struct node *n = b->node;
	const char *team = b->of->r.team;
	const struct snapshot_record *s = snapshot_find(n, base);
	const struct template *t = s ? NULL : templates_find(n->templates, base);
	if (s && strcmp(s->team, team) == 0)
		return base_of_snapshot(b, s, err);
	if (t && (!*t->team || t->public || strcmp(t->team, team) == 0))
		return base_of_template(b, t, err);
	return error_set(err, -ENOENT, 404, "template '%.*s' not found", STR_FMT(base));
}

enum { RUNNING_MOST = 64 }; /* build.max */

/* The first in the queue of a team that has fewest builders and, of such, did not have the last turn: however many builds one has sent, the others' turn comes. */
static struct build *next_queued(const struct builds *all)
{
	const struct build *running[RUNNING_MOST];
	struct build *best = NULL;
	size_t n = 0, least = 0;
	map_foreach(&all->by_id, s)
	{
		const struct build *b = s->value;
		if (b->builder && b->of && n < RUNNING_MOST)
			running[n++] = b;
	}
	for (struct build *b = all->queue; b && !(best && !least); b = b->next_queued) {
		size_t had = strcmp(all->last_team, b->of->r.team) == 0;
		for (size_t i = 0; i < n; i++)
			had += 2 * (strcmp(running[i]->of->r.team, b->of->r.team) == 0);
		if (best && had >= least)
			continue;
		best = b;
		least = had;
	}
	return best;
}

/* Those that wait get their turn. */
static void go_on(struct node *n)
{
	struct builds *all = n->builds;
	while (all->queue && all->running < (unsigned)n->options->build_max && !n->stopping) {
		struct build *b = next_queued(all);
		struct error err = {0};
		team_build_leave_queue(b);
		if (builder_start(b, &err) < 0) {
			team_build_failed(b, err.message, "base");
			continue;
		}
		all->running++;
		memcpy(all->last_team, b->of->r.team, sizeof(all->last_team));
		team_build_hold(b);
	}
}

static void started(const struct error *err, void *arg)
{
	struct build *b = arg;
	struct node *n = b->node;
	b->recording = false;
	if (b->of && !b->ending && err) {
		team_build_failed(b, err->message, "base");
	} else if (b->of && !b->ending) {
		FAULT(build_intended);
		b->next_queued = NULL;
		if (!n->builds->queue)
			n->builds->queue_end = &n->builds->queue;
		*n->builds->queue_end = b;
		n->builds->queue_end = &b->next_queued;
		b->queued = true;
		go_on(n);
	}
	team_build_let(b);
}

static int take_isolation(struct build *b, struct str wanted, struct error *err)
{
	if (!str_is(wanted, "auto") && !str_is(wanted, "namespace") && !str_is(wanted, "microvm"))
		return error_set(err, -EINVAL, 400, "isolation must be \"auto\", \"namespace\" or \"microvm\"");
	/* An operator who insists on microVMs does not leave the choice to whoever has a key. */
	if (str_is(wanted, "namespace") && strcmp(b->node->options->isolation, "microvm") == 0)
		return error_set(err, -EPERM, 400, "isolation: this server runs sandboxes in microVMs");
	/* No template that nothing could be made of. */
	if (!backend_isolation(b->node->backend, wanted, err))
		return err->code;
	sandbox_copy(b->isolation, sizeof(b->isolation), wanted);
	return 0;
}

/* A build that waits holds what it is to be made of. */
static int check_builds(const struct node *n, struct str team, struct error *err)
{
	unsigned count = 0;
	map_foreach(&n->builds->by_id, s)
	{
		const struct build *b = s->value;
		count += b->r.status == BUILD_BUILDING && b->of && str_is(team, b->of->r.team);
	}
	if (count < BUILDS_OF_TEAM)
		return 0;
	return error_set(err, -EDQUOT, 429, "the team has %u builds under way: wait for some of them", count);
}

void team_build_start(struct node *n, struct request *r, const struct msg_start_build *m, int spec)
{
	struct error err = {0};
	cleanup_fd int owned = spec;
	struct build *b = team_build_find(n, m->team, m->build);
	if (n->stopping)
		error_set(&err, -EAGAIN, 503, "the server is stopping");
	else if (!b)
		error_set(&err, -ENOENT, 404, "build '%.*s' not found", STR_FMT(m->build));
	else if (b->r.status != BUILD_WAITING || b->recording)
		error_set(&err, -EINVAL, 400, "build is not in waiting state");
	else if (check_builds(n, m->team, &err) == 0 && (!msg_has(m, start_build, isolation) || take_isolation(b, m->isolation, &err) == 0) && msg_has(m, start_build, base))
		find_base(b, m->base, &err);
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	b->r.status = BUILD_BUILDING;
	b->spec = steal_fd(&owned);
	b->force = m->force;
	memcpy(b->request, r->text, sizeof(b->request));
	team_build_log_begin(b);
	b->recording = true;
	team_build_hold(b);
	records_put_build(n->records, &b->r, false, started, b);
	team_build_tell(n, b->of, false);
	request_answer(r, MSG_ID_ok, NULL, -1);
}

void team_build_set_progress(struct build *b, struct str phase, unsigned percent)
{
	sandbox_copy(b->r.phase, sizeof(b->r.phase), phase);
	b->progress = MIN(percent, 100u);
}

/* The end */

void team_build_left(struct build *b)
{
	struct node *n = b->node;
	b->builder = NULL;
	n->builds->running--;
	go_on(n);
	team_build_let(b);
}

static void finished(const struct error *err, void *arg)
{
	struct build *b = arg;
	struct node *n = b->node;
	struct error why = {0};
	b->recording = false;
	team_build_leave_base(b);
	team_build_log_end(b);
	if (err && b->r.status == BUILD_READY) {
		/* Nothing of it is in the file. */
		b->r.status = BUILD_ERROR;
		buf_clear(&b->r.description);
		snprintf(b->r.reason, sizeof(b->r.reason), "the result could not be recorded: %s", err->message);
	}
	if (b->r.status != BUILD_READY)
		error_set(&why, -EIO, 400, "the template could not be built: %s", b->r.reason);
	/* Who waited finds it. */
	if (b->of && !b->of->going)
		team_build_tell(n, b->of, false);
	requests_answer(&b->waiting, why.code ? &why : NULL);
	if (b->of && !b->of->going)
		team_build_prune(b->of);
	team_build_let(b);
}

static void ready(const struct error *err, void *arg)
{
	struct build *b = arg;
	struct node *n = b->node;
	struct template *t = malloc(sizeof(*t));
	struct template *id = malloc(sizeof(*id));
	if (!t || !id)
		abort();
	if (!err && b->of && !b->of->going) {
		FAULT(build_recorded);
		struct error wrong = {0};
		struct str rest = buf_str(&b->r.tags), tag;
		team_build_identity(b, id);
		if (template_parse_build(buf_str(&b->r.description), b->r.id, id, t, &wrong) < 0 || templates_put_build(n->templates, t) < 0)
			abort(); /* it was checked */
		while (msg_list_next(&rest, &tag))
			team_build_set_tag(b->of, tag, b, b->r.finished_at);
		if (team_build_find_tag(b->of, STR("default")) && team_build_find_tag(b->of, STR("default"))->build == b)
			team_build_default_changed(n, b->of);
	}
	free(t);
	free(id);
	finished(err, b);
}

void team_build_succeeded(struct build *b, const struct template *t, struct str digest)
{
	struct node *n = b->node;
	b->r.status = BUILD_READY;
	b->r.finished_at = MAX(node_realtime(n), b->r.created_at);
	b->progress = 100;
	sandbox_copy(b->r.digest, sizeof(b->r.digest), digest);
	buf_clear(&b->r.description);
	if (template_serialize_build(t, &b->r.description) < 0)
		abort();
	team_build_set_progress(b, STR("READY"), 100);
	build_note(LOG_INFO, b, "build %s of template %s is ready", b->r.id, b->of ? b->of->r.id : "");
	if (b->of && !b->of->going) {
		b->of->r.updated_at = b->r.finished_at;
		records_put_template(n->records, &b->of->r, NULL, NULL);
	}
	b->recording = true;
	team_build_hold(b);
	if (b->of && !b->of->going)
		records_put_build(n->records, &b->r, true, ready, b);
	else
		finished(NULL, b);
}

void team_build_failed(struct build *b, const char *reason, const char *step)
{
	struct node *n = b->node;
	b->ending = true;
	team_build_leave_queue(b);
	if (b->spec >= 0)
		close(steal_fd(&b->spec));
	b->r.status = BUILD_ERROR;
	b->r.finished_at = MAX(node_realtime(n), b->r.created_at);
	snprintf(b->r.reason, sizeof(b->r.reason), "%s", reason);
	snprintf(b->r.step, sizeof(b->r.step), "%s", step);
	build_note(LOG_WARN, b, "build %s failed: %s", b->r.id, b->r.reason);
	if (b->logging)
		team_build_log_line(b, 3, b->r.step, str_of(b->r.reason));
	b->recording = true;
	team_build_hold(b);
	if (b->of && !b->of->going)
		records_put_build(n->records, &b->r, false, finished, b);
	else
		finished(NULL, b);
}

void team_build_abandon(struct build *b, const char *reason)
{
	if (b->builder)
		builder_end(b->builder, reason);
	else if (b->r.status == BUILD_BUILDING && !b->ending)
		team_build_failed(b, reason, "base");
}

void team_build_await(struct node *n, struct request *r, const struct msg_await_build *m)
{
	struct error err = {0};
	struct build *b = team_build_find(n, m->team, m->build);
	if (!b)
		error_set(&err, -ENOENT, 404, "build '%.*s' not found", STR_FMT(m->build));
	else if (b->r.status == BUILD_ERROR && !b->recording)
		error_set(&err, -EIO, 400, "the template could not be built: %s", b->r.reason);
	if (err.code)
		request_fail(r, &err);
	else if (b->r.status == BUILD_READY && !b->recording)
		request_answer(r, MSG_ID_ok, NULL, -1);
	else
		request_queue(&b->waiting, r);
}
