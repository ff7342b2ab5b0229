#include "node/builds.h"
#include "base/cleanup.h"
#include "base/fault.h"

/* What tags and names mean, who may use a template, and its end. */

/* A change on its way into the records. */
struct change {
	struct node *node;
	struct request *request;
	char template_id[TEMPLATE_ID + 1];
	char build[37];
	struct buf tags;
	int64_t at;
	/* of change_template */
	bool has_name, has_public, public;
	char name[129];
};

static struct change *change_new(struct node *n, struct request *r, const struct team_template *t)
{
	struct change *c = calloc(1, sizeof(*c));
	if (!c)
		abort(); /* see records.c: without memory the node starts anew */
	c->node = n;
	c->request = r;
	memcpy(c->template_id, t->r.id, sizeof(c->template_id));
	c->at = node_realtime(n);
	n->builds->busy++;
	return c;
}

/* NULL: it is gone by now. */
static struct team_template *changed_template(const struct change *c)
{
	struct team_template *t = map_get(&c->node->builds->templates, str_of(c->template_id));
	return t && !t->going ? t : NULL;
}

static void change_over(struct change *c, const struct error *err)
{
	struct node *n = c->node;
	if (c->request && err)
		request_fail(c->request, err);
	else if (c->request)
		request_answer(c->request, MSG_ID_ok, NULL, -1);
	buf_done(&c->tags);
	free(c);
	n->builds->busy--;
	node_stop_check(n);
}

static void not_found(struct request *r, struct str what)
{
	struct error err;
	error_set(&err, -ENOENT, 404, "template '%.*s' not found", STR_FMT(what));
	request_fail(r, &err);
}

/* Tags */

static void tagged(const struct error *err, void *arg)
{
	struct change *c = arg;
	struct node *n = c->node;
	struct team_template *t = changed_template(c);
	struct build *b = t ? map_get(&n->builds->by_id, str_of(c->build)) : NULL;
	struct error gone = {0};
	if (!err && (!b || !templates_find_build(n->templates, str_of(b->r.id))))
		error_set(&gone, -ENOENT, 404, "build %s is gone", c->build), err = &gone;
	if (err) {
		change_over(c, err);
		return;
	}
	struct str rest = buf_str(&c->tags), tag;
	bool main_changed = false;
	while (msg_list_next(&rest, &tag)) {
		const struct template_tag *before = team_build_find_tag(t, tag);
		main_changed |= str_is(tag, "default") && (!before || before->build != b);
		team_build_set_tag(t, tag, b, c->at);
	}
	if (main_changed)
		team_build_default_changed(n, t);
	team_build_tell(n, t, false);
	team_build_answer_made(steal_pointer(&c->request), b, (struct msg_list){buf_str(&c->tags)}, true);
	change_over(c, NULL);
}

void team_build_tag(struct node *n, struct request *r, const struct msg_tag_template *m)
{
	struct error err = {0};
	cleanup_buf struct buf tags = BUF_INIT;
	struct team_template *t = team_build_find_template(n, m->team, m->template);
	const struct template_tag *from = t ? team_build_find_tag(t, m->from) : NULL;
	if (!t) {
		not_found(r, m->template);
		return;
	}
	if (team_build_take_tags(m->tags, &tags, &err) == 0 && !from)
		error_set(&err, -ENOENT, 404, "Template '%s' with tag '%.*s' not found", *t->r.name ? t->r.name : t->r.id, STR_FMT(m->from));
	else if (!err.code && t->n_tags > TEMPLATE_TAGS_MOST - BUILD_TAGS_MOST)
		error_set(&err, -E2BIG, 400, "template %s has %zu tags: remove some first", t->r.id, t->n_tags);
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	struct change *c = change_new(n, r, t);
	memcpy(c->build, from->build->r.id, sizeof(c->build));
	c->tags = tags;
	tags = BUF_INIT;
	t->r.updated_at = c->at;
	records_put_template(n->records, &t->r, NULL, NULL);
	records_put_tags(n->records, t->r.id, (struct msg_list){buf_str(&c->tags)}, c->build, c->at, tagged, c);
}

static void untagged(const struct error *err, void *arg)
{
	struct change *c = arg;
	struct node *n = c->node;
	struct team_template *t = changed_template(c);
	struct str rest = buf_str(&c->tags), tag;
	if (!err && t) {
		while (msg_list_next(&rest, &tag))
			team_build_drop_tag(t, tag);
		team_build_tell(n, t, false);
	}
	change_over(c, err);
}

void team_build_untag(struct node *n, struct request *r, const struct msg_untag_template *m)
{
	struct error err = {0};
	cleanup_buf struct buf tags = BUF_INIT;
	struct team_template *t = team_build_find_template(n, m->team, m->template);
	if (!t) {
		not_found(r, m->template);
		return;
	}
	team_build_take_tags(m->tags, &tags, &err);
	struct str rest = buf_str(&tags), tag;
	while (!err.code && msg_list_next(&rest, &tag))
		if (str_is(tag, "default"))
			error_set(&err, -EINVAL, 400, "the tag 'default' cannot be deleted");
		else if (!team_build_find_tag(t, tag))
			error_set(&err, -ENOENT, 404, "Template '%s' with tag '%.*s' not found", *t->r.name ? t->r.name : t->r.id, STR_FMT(tag));
	if (err.code) {
		request_fail(r, &err);
		return;
	}
	struct change *c = change_new(n, r, t);
	c->tags = tags;
	tags = BUF_INIT;
	records_forget_tags(n->records, t->r.id, (struct msg_list){buf_str(&c->tags)}, untagged, c);
}

/* Name, and who may use it */

/* Builds in the registry are called as their template is. */
static void rename_builds(struct node *n, const struct team_template *t)
{
	struct template *copy = malloc(sizeof(*copy));
	if (!copy)
		abort();
	for (const struct build *b = t->builds; b; b = b->older) {
		const struct template *now = templates_find_build(n->templates, str_of(b->r.id));
		if (!now)
			continue;
		*copy = *now;
		memset(copy->alias, 0, sizeof(copy->alias));
		sandbox_copy(copy->alias, sizeof(copy->alias), str_of(t->r.name));
		copy->public = t->r.public;
		if (templates_put_build(n->templates, copy) < 0)
			abort();
	}
	free(copy);
}

static void changed(const struct error *err, void *arg)
{
	struct change *c = arg;
	struct node *n = c->node;
	struct team_template *t = changed_template(c);
	if (!err && t) {
		rename_builds(n, t);
		team_build_tell(n, t, false);
	}
	change_over(c, err);
}

/* Another of the team that has the name has it no more. */
static void take_name(struct node *n, struct team_template *t, const char *name)
{
	map_foreach(&n->builds->templates, s)
	{
		struct team_template *other = s->value;
		if (other == t || other->going || strcmp(other->r.team, t->r.team) != 0 || strcmp(other->r.name, name) != 0)
			continue;
		team_build_set_name(n, other, "");
		records_put_template(n->records, &other->r, NULL, NULL);
		rename_builds(n, other);
		team_build_tell(n, other, false);
	}
}

void team_build_change(struct node *n, struct request *r, const struct msg_change_template *m)
{
	struct error err = {0};
	char name[129] = "";
	struct team_template *t = team_build_find_template(n, m->team, m->template);
	if (!t) {
		not_found(r, m->template);
		return;
	}
	if (msg_has(m, change_template, name) && !sandbox_copy(name, sizeof(name), m->name)) {
		error_set(&err, -EINVAL, 400, "name: at most 128 bytes");
		request_fail(r, &err);
		return;
	}
	struct change *c = change_new(n, r, t);
	/* In force at once: should the record fail, the next start has what was before, and the client was told so. */
	if (msg_has(m, change_template, name)) {
		if (*name)
			take_name(n, t, name);
		team_build_set_name(n, t, name);
	}
	if (msg_has(m, change_template, public))
		t->r.public = m->public;
	t->r.updated_at = c->at;
	records_put_template(n->records, &t->r, changed, c);
}

/* The end */

/* Sandboxes that stand on it; of one build, or of all. */
static unsigned users_of(const struct node *n, const struct team_template *t, const struct build *b, const char **ret_one)
{
	unsigned users = 0;
	map_foreach(&n->live, slot)
	{
		const struct live *l = slot->value;
		if (strcmp(l->s.template_id, t->r.id) != 0 || (b && strcmp(l->s.build, b->r.id) != 0) || l->s.state == SANDBOX_KILLING)
			continue;
		users++;
		*ret_one = l->s.id;
	}
	return users;
}

static int check_users(const struct node *n, const struct team_template *t, const struct build *b, struct error *err)
{
	const char *one = NULL;
	unsigned users = users_of(n, t, b, &one);
	if (!users)
		return 0;
	return error_set(err, -EBUSY, 409, "template %s is used by %u running or paused sandbox%s (%s%s): end %s first, or delete it by force; then what %s it stays until %s gone", t->r.id, users,
		users == 1 ? "" : "es", one, users == 1 ? "" : ", ...", users == 1 ? "it" : "them", users == 1 ? "needs" : "need", users == 1 ? "it is" : "they are");
}

static void deleted(const struct error *err, void *arg)
{
	struct change *c = arg;
	struct node *n = c->node;
	struct team_template *t = map_get(&n->builds->templates, str_of(c->template_id));
	if (t && err) {
		/* Nothing is gone: it is found again. */
		t->going = false;
		team_build_set_name(n, t, t->r.name);
		team_build_default_changed(n, t);
	} else if (t) {
		FAULT(template_forgotten);
		log_write(LOG_INFO, &(struct log_ids){.request = str_of(c->request->text)}, "template %s (%s) is deleted", t->r.id, t->r.name);
		team_build_tell(n, t, true);
		while (t->n_tags) {
			struct build *b = t->tags[0].build;
			const struct template *gone = templates_find_build(n->templates, str_of(b->r.id));
			cleanup_buf struct buf layers = BUF_INIT;
			for (size_t i = 0; gone && i < gone->n_layers; i++)
				msg_list_add(&layers, str_of(gone->layers[i].file));
			t->tags[0] = t->tags[--t->n_tags];
			if (team_build_has_tag(t, b))
				continue;
			templates_drop_build(n->templates, b->r.id);
			images_unnamed(&n->images, (struct msg_list){buf_str(&layers)});
		}
		for (struct build *b = t->builds; b; b = b->older) {
			char path[PATH_MAX];
			team_build_log_path(n, b->r.id, path);
			if (!b->logging)
				unlink(path);
		}
		team_template_free(n, t);
	}
	change_over(c, err);
}

static void delete_all(struct node *n, struct request *r, struct team_template *t)
{
	struct change *c = change_new(n, r, t);
	for (struct build *b = t->builds, *older; b; b = older) {
		older = b->older;
		team_build_abandon(b, "the template was deleted");
	}
	t->going = true;
	team_build_default_changed(n, t);
	records_forget_template(n->records, t->r.id, deleted, c);
}

void team_build_delete(struct node *n, struct request *r, const struct msg_delete_template *m)
{
	struct error err = {0};
	cleanup_buf struct buf tags = BUF_INIT;
	struct team_template *t = team_build_find_template(n, m->team, m->template);
	if (!t) {
		not_found(r, m->template);
		return;
	}
	const struct template_tag *tag = NULL;
	if (msg_has(m, delete_template, tag) && m->tag.n) {
		tag = team_build_find_tag(t, m->tag);
		if (!tag)
			error_set(&err, -ENOENT, 404, "Template '%s' with tag '%.*s' not found", *t->r.name ? t->r.name : t->r.id, STR_FMT(m->tag));
	}
	unsigned of_build = 0;
	for (size_t i = 0; tag && i < t->n_tags; i++)
		of_build += t->tags[i].build == tag->build;
	/* Sandboxes of a build that another tag means, too, lose nothing. */
	if (!err.code && !m->force && of_build <= 1)
		check_users(n, t, tag ? tag->build : NULL, &err);
	if (err.code) {
		request_fail(r, &err);
	} else if (!tag || t->n_tags == 1) {
		delete_all(n, r, t);
	} else {
		struct change *c = change_new(n, r, t);
		if (msg_list_add(&c->tags, m->tag) < 0)
			abort();
		records_forget_tags(n->records, t->r.id, (struct msg_list){buf_str(&c->tags)}, untagged, c);
	}
}
