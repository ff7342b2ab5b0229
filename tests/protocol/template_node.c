#include "template_node.h"

#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct template_node *of(struct world *w)
{
	return w->templates;
}

struct fake_template *template_node_find(struct world *w, const char *id)
{
	struct template_node *n = of(w);
	for (size_t i = 0; i < n->n; i++)
		if (n->templates[i].alive && !strcmp(n->templates[i].id, id))
			return &n->templates[i];
	return NULL;
}

static struct fake_template *find(struct world *w, struct str team, struct str id)
{
	struct template_node *n = of(w);
	for (size_t i = 0; i < n->n; i++)
		if (n->templates[i].alive && str_is(id, n->templates[i].id) && str_is(team, n->templates[i].team))
			return &n->templates[i];
	return NULL;
}

static struct fake_template *find_build(struct world *w, struct str team, struct str build)
{
	struct template_node *n = of(w);
	for (size_t i = 0; i < n->n; i++)
		if (n->templates[i].alive && str_is(build, n->templates[i].build) && str_is(team, n->templates[i].team))
			return &n->templates[i];
	return NULL;
}

static void tell(struct world *w, const struct fake_template *t, uint64_t request)
{
	cleanup_buf struct buf tags = BUF_INIT;
	struct msg_template m = {.id = str_of(t->id), .created_at = t->created_at, .cpu_count = 2, .memory_mb = 512, .disk_mb = 10240, .size = 4096, .build_id = str_of(t->build)};
	for (size_t i = 0; i < t->n_tags; i++) {
		char value[80];
		snprintf(value, sizeof(value), "%s %lld", t->tags[i].build, 1700000000000000000LL);
		msg_map_add(&tags, str_of(t->tags[i].tag), str_of(value));
	}
	if (t->name[0])
		msg_set(&m, template, alias, str_of(t->name));
	msg_set(&m, template, team, str_of(t->team));
	msg_set(&m, template, public, t->public);
	msg_set(&m, template, kind, str_of(t->kind));
	msg_set(&m, template, tags, (struct msg_map){buf_str(&tags)});
	msg_set(&m, template, status, str_of(t->status));
	msg_set(&m, template, build_count, t->builds);
	if (t->reason[0])
		msg_set(&m, template, last_error, str_of(t->reason));
	if (t->reference[0])
		msg_set(&m, template, reference, str_of(t->reference));
	if (t->source[0])
		msg_set(&m, template, source, str_of(t->source));
	if (!t->alive)
		msg_set(&m, template, gone, true);
	assert_int_equal(chan_send(w->node, MSG_ID_template, &m, request, NULL, 0, NULL), 0);
}

void template_node_tell(struct world *w, struct fake_template *t)
{
	tell(w, t, 0);
	world_turn(w);
}

void template_node_subscribe(struct world *w, uint64_t request)
{
	for (size_t i = 0; i < of(w)->n; i++)
		if (of(w)->templates[i].alive)
			tell(w, &of(w)->templates[i], request);
}

static void refuse(struct world *w, uint64_t request, int status, const char *message)
{
	struct error err = {.code = -EINVAL, .status = status};
	snprintf(err.message, sizeof(err.message), "%s", message);
	chan_send_error(w->node, request, &err);
}

static void ok(struct world *w, uint64_t request)
{
	chan_send(w->node, MSG_ID_ok, &(struct msg_ok){0}, request, NULL, 0, NULL);
}

static void text(char *to, size_t size, struct str s)
{
	assert_true(s.n < size);
	snprintf(to, size, "%.*s", STR_FMT(s));
}

static void answer_made(struct world *w, const struct fake_template *t, struct msg_list tags, const char *build, bool made, uint64_t request)
{
	struct msg_build_made m = {.template = str_of(t->id), .build = str_of(build), .made = made, .tags = tags, .public = t->public};
	if (t->name[0])
		msg_set(&m, build_made, name, str_of(t->name));
	chan_send(w->node, MSG_ID_build_made, &m, request, NULL, 0, NULL);
}

static struct fake_template *old_one(struct world *w, const struct msg_make_template *m)
{
	struct template_node *n = of(w);
	for (size_t i = 0; i < n->n; i++) {
		struct fake_template *t = &n->templates[i];
		bool same = msg_has(m, make_template, template) ? str_is(m->template, t->id) : str_is(m->kind, "image") ? str_is(m->reference, t->reference) :
			m->name.n && str_is(m->name, t->name);
		if (t->alive && same && str_is(m->team, t->team))
			return t;
	}
	return NULL;
}

static void make(struct world *w, const struct msg_make_template *m, uint64_t request)
{
	struct template_node *n = of(w);
	struct fake_template *t = old_one(w, m);
	cleanup_buf struct buf tags = BUF_INIT;
	if (t && str_is(m->kind, "image") && strcmp(t->status, "error") != 0) {
		answer_made(w, t, (struct msg_list){STR("")}, t->build, false, request);
		return;
	}
	if (!t) {
		assert_true(n->n < FAKE_TEMPLATES);
		t = &n->templates[n->n++];
		*t = (struct fake_template){.alive = true, .created_at = 2000000000000 + (int64_t)n->n};
		snprintf(t->id, sizeof(t->id), "t%019zu", n->n);
		text(t->team, sizeof(t->team), m->team);
		text(t->name, sizeof(t->name), m->name);
		text(t->kind, sizeof(t->kind), m->kind);
		if (msg_has(m, make_template, reference))
			text(t->reference, sizeof(t->reference), m->reference);
	}
	if (msg_has(m, make_template, source))
		text(t->source, sizeof(t->source), m->source);
	snprintf(t->build, sizeof(t->build), "00000000-0000-4000-8000-%06zu%06u", (size_t)(t - n->templates) % 1000000, ++t->builds % 1000000);
	snprintf(t->status, sizeof(t->status), "waiting");
	t->reason[0] = 0;
	struct str rest = m->tags.raw, tag;
	t->n_wanted = 0;
	while (msg_list_next(&rest, &tag))
		text(t->wanted[t->n_wanted++], 65, tag);
	if (!t->n_wanted)
		snprintf(t->wanted[t->n_wanted++], 65, "default");
	for (size_t i = 0; i < t->n_wanted; i++)
		msg_list_add(&tags, str_of(t->wanted[i]));
	tell(w, t, 0);
	answer_made(w, t, (struct msg_list){buf_str(&tags)}, t->build, true, request);
}

static void start(struct world *w, const struct msg_start_build *m, int fd, uint64_t request)
{
	struct template_node *n = of(w);
	struct fake_template *t = find_build(w, m->team, m->build);
	if (!t || !str_is(m->template, t->id)) {
		refuse(w, request, 404, "build not found");
		return;
	}
	if (strcmp(t->status, "waiting") != 0) {
		refuse(w, request, 400, "build is not in waiting state");
		return;
	}
	/* Nobody can change it any more. */
	assert_int_equal(fcntl(fd, F_GET_SEALS) & (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK);
	ssize_t got = pread(fd, n->spec, sizeof(n->spec) - 1, 0);
	assert_true(got >= 0);
	n->spec[got] = 0;
	n->base[0] = 0;
	if (msg_has(m, start_build, base))
		text(n->base, sizeof(n->base), m->base);
	n->force = m->force;
	n->isolation[0] = 0;
	if (msg_has(m, start_build, isolation))
		text(n->isolation, sizeof(n->isolation), m->isolation);
	snprintf(t->status, sizeof(t->status), "building");
	tell(w, t, 0);
	ok(w, request);
}

static void set_tag(struct fake_template *t, const char *tag, const char *build)
{
	size_t i = 0;
	while (i < t->n_tags && strcmp(t->tags[i].tag, tag) != 0)
		i++;
	assert_true(i < FAKE_TAGS);
	snprintf(t->tags[i].tag, sizeof(t->tags[i].tag), "%s", tag);
	memmove(t->tags[i].build, build, strlen(build) + 1);
	if (i == t->n_tags)
		t->n_tags++;
}

void template_node_end(struct world *w, struct fake_template *t, const char *reason, const char *step, int status)
{
	struct template_node *n = of(w);
	snprintf(t->status, sizeof(t->status), "%s", reason ? "error" : "ready");
	snprintf(t->reason, sizeof(t->reason), "%s", reason ? reason : "");
	snprintf(t->step, sizeof(t->step), "%s", step ? step : "");
	for (size_t i = 0; !reason && i < t->n_wanted; i++)
		set_tag(t, t->wanted[i], t->build);
	tell(w, t, 0);
	for (size_t i = 0; i < n->n_waiting; i++) {
		if (reason)
			refuse(w, n->waiting[i], status, reason);
		else
			ok(w, n->waiting[i]);
	}
	n->n_waiting = 0;
	world_turn(w);
}

/* Line i of a log of so many: one in ten is an error. */
static void page(struct world *w, const struct msg_build_status *m, uint64_t request)
{
	struct fake_template *t = find_build(w, m->team, m->build);
	cleanup_buf struct buf entries = BUF_INIT;
	of(w)->status_level = msg_has(m, build_status, level) ? (int64_t)m->level : -1;
	if (!t || !str_is(m->template, t->id)) {
		refuse(w, request, 404, "build not found");
		return;
	}
	uint64_t next = m->after;
	for (uint64_t taken = 0; taken < m->limit && next < t->lines; taken++, next++) {
		size_t i = m->backward ? t->lines - 1 - (size_t)next : (size_t)next;
		buf_addf(&entries, "{\"timestamp\":\"2026-01-02T03:%02zu:%02zu.000001Z\",\"level\":\"%s\",\"message\":\"line %zu\"%s}\n", i / 60, i % 60, i % 10 == 9 ? "error" : "info", i,
			i ? ",\"step\":\"1\"" : "");
	}
	struct msg_build_page p = {.template = str_of(t->id), .build = str_of(t->build), .status = str_of(t->status), .kind = str_of(t->kind), .phase = STR("PULLING"), .progress = 40,
		.entries = buf_str(&entries), .next = next, .created_at = t->created_at};
	if (t->reason[0])
		msg_set(&p, build_page, reason, str_of(t->reason));
	if (t->step[0])
		msg_set(&p, build_page, step, str_of(t->step));
	chan_send(w->node, MSG_ID_build_page, &p, request, NULL, 0, NULL);
}

static void builds(struct world *w, const struct msg_builds *m, uint64_t request)
{
	struct fake_template *t = find(w, m->team, m->template);
	cleanup_buf struct buf list = BUF_INIT;
	if (!t) {
		refuse(w, request, 404, "template not found");
		return;
	}
	/* The newest first; only that has a state of its own. */
	unsigned i = t->builds, given = 0;
	if (msg_has(m, builds, after))
		i = (unsigned)strtoul(m->after.p + 30, NULL, 10) - 1;
	for (; i > 0 && given < m->limit; i--, given++) {
		cleanup_buf struct buf item = BUF_INIT;
		char id[37];
		snprintf(id, sizeof(id), "%.30s%06u", t->build, i % 1000000);
		const char *const fields[] = {id, i == t->builds ? t->status : "error", "2000000000001", "", "2", "512", "10240", "", ""};
		for (size_t k = 0; k < ARRAY_SIZE(fields); k++)
			msg_list_add(&item, str_of(fields[k]));
		msg_list_add(&list, buf_str(&item));
	}
	struct msg_builds_page p = {.builds = {buf_str(&list)}, .more = i > 0};
	chan_send(w->node, MSG_ID_builds_page, &p, request, NULL, 0, NULL);
}

static const char *build_of(const struct fake_template *t, struct str tag)
{
	for (size_t i = 0; i < t->n_tags; i++)
		if (str_is(tag, t->tags[i].tag))
			return t->tags[i].build;
	return NULL;
}

static void drop_tag(struct fake_template *t, struct str tag)
{
	for (size_t i = 0; i < t->n_tags; i++)
		if (str_is(tag, t->tags[i].tag)) {
			memmove(&t->tags[i], &t->tags[i + 1], (--t->n_tags - i) * sizeof(t->tags[0]));
			return;
		}
}

static void change_tags(struct world *w, struct str team, struct str id, struct str from, struct msg_list tags, uint64_t request)
{
	struct fake_template *t = find(w, team, id);
	struct str rest = tags.raw, tag;
	const char *build = t && from.n ? build_of(t, from) : NULL;
	if (!t || (from.n && !build)) {
		refuse(w, request, 404, "template not found");
		return;
	}
	while (msg_list_next(&rest, &tag)) {
		char name[65];
		text(name, sizeof(name), tag);
		if (build)
			set_tag(t, name, build);
		else
			drop_tag(t, tag);
	}
	tell(w, t, 0);
	if (build)
		answer_made(w, t, tags, build, true, request);
	else
		ok(w, request);
}

static void change(struct world *w, const struct msg_change_template *m, uint64_t request)
{
	struct template_node *n = of(w);
	struct fake_template *t = find(w, m->team, m->template);
	if (!t) {
		refuse(w, request, 404, "template not found");
		return;
	}
	if (msg_has(m, change_template, public))
		t->public = m->public;
	if (msg_has(m, change_template, name)) {
		for (size_t i = 0; i < n->n; i++)
			if (m->name.n && n->templates[i].alive && str_is(m->name, n->templates[i].name) && str_is(m->team, n->templates[i].team)) {
				n->templates[i].name[0] = 0;
				tell(w, &n->templates[i], 0);
			}
		text(t->name, sizeof(t->name), m->name);
	}
	tell(w, t, 0);
	ok(w, request);
}

static void delete(struct world *w, const struct msg_delete_template *m, uint64_t request)
{
	struct template_node *n = of(w);
	struct fake_template *t = find(w, m->team, m->template);
	n->deleted_tag[0] = 0;
	if (!t) {
		refuse(w, request, 404, "template not found");
		return;
	}
	if (n->in_use && !m->force) {
		refuse(w, request, 409, "template is used by 1 running or paused sandbox");
		return;
	}
	if (msg_has(m, delete_template, tag)) {
		text(n->deleted_tag, sizeof(n->deleted_tag), m->tag);
		drop_tag(t, m->tag);
	}
	t->alive = msg_has(m, delete_template, tag) && t->n_tags > 0;
	/* The event of a deletion may come after its answer. */
	if (t->alive)
		tell(w, t, 0);
	ok(w, request);
	if (!t->alive)
		tell(w, t, 0);
}

static void write_file(struct world *w, const struct msg_write_file *m, uint64_t request)
{
	struct template_node *n = of(w);
	if (n->file >= 0)
		close(n->file);
	n->file = memfd_create("upload", MFD_CLOEXEC);
	assert_true(n->file >= 0);
	n->file_size = m->size;
	text(n->file_hash, sizeof(n->file_hash), m->hash);
	text(n->file_team, sizeof(n->file_team), m->team);
	struct msg_file_writer answer = {.writer = ++n->writers};
	chan_send(w->node, MSG_ID_file_writer, &answer, request, &n->file, 1, NULL);
}

static void keep_file(struct world *w, const struct msg_keep_file *m, uint64_t request)
{
	struct template_node *n = of(w);
	assert_true(m->writer <= n->writers);
	if (m->whole)
		n->kept++;
	else
		n->thrown++;
	ok(w, request);
}

bool template_node_message(struct world *w, struct chan_message *m)
{
	uint64_t request = m->header.request;
	const union msg_any *b = m->body;
	struct template_node *n = of(w);
	if (m->header.type == MSG_ID_make_template) {
		make(w, &b->make_template, request);
	} else if (m->header.type == MSG_ID_start_build) {
		start(w, &b->start_build, m->fds[0], request);
	} else if (m->header.type == MSG_ID_build_status) {
		page(w, &b->build_status, request);
	} else if (m->header.type == MSG_ID_builds) {
		builds(w, &b->builds, request);
	} else if (m->header.type == MSG_ID_await_build) {
		struct fake_template *t = find_build(w, b->await_build.team, b->await_build.build);
		if (!t)
			refuse(w, request, 404, "build not found");
		else if (!strcmp(t->status, "ready"))
			ok(w, request);
		else
			n->waiting[n->n_waiting++] = request;
	} else if (m->header.type == MSG_ID_tag_template) {
		change_tags(w, b->tag_template.team, b->tag_template.template, b->tag_template.from, b->tag_template.tags, request);
	} else if (m->header.type == MSG_ID_untag_template) {
		change_tags(w, b->untag_template.team, b->untag_template.template, STR(""), b->untag_template.tags, request);
	} else if (m->header.type == MSG_ID_change_template) {
		change(w, &b->change_template, request);
	} else if (m->header.type == MSG_ID_delete_template) {
		delete(w, &b->delete_template, request);
	} else if (m->header.type == MSG_ID_find_file) {
		struct msg_file_found f = {.found = n->kept && str_is(b->find_file.hash, n->file_hash) && str_is(b->find_file.team, n->file_team)};
		chan_send(w->node, MSG_ID_file_found, &f, request, NULL, 0, NULL);
	} else if (m->header.type == MSG_ID_write_file) {
		write_file(w, &b->write_file, request);
	} else if (m->header.type == MSG_ID_keep_file) {
		keep_file(w, &b->keep_file, request);
	} else {
		return false;
	}
	return true;
}
