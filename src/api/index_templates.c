#include "api/index_impl.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>

/* The part of the index that holds what sandboxes are made from. */

bool index_tag_next(struct str *rest, struct index_tag *ret)
{
	struct str value, build, at;
	uint64_t created;
	while (msg_map_next(rest, &ret->tag, &value)) {
		if (!str_cut(value, ' ', &build, &at) || str_to_u64(at, &created) < 0 || created > INT64_MAX)
			continue;
		ret->build_id = build;
		ret->created_at = (int64_t)created;
		return true;
	}
	return false;
}

bool index_template_tag(const struct index_template *t, struct str tag, struct index_tag *ret)
{
	struct str rest = t->tags.raw;
	tag = tag.n ? tag : STR("default");
	if (!t->team.n && str_is(tag, "default")) {
		*ret = (struct index_tag){.tag = tag, .build_id = t->build_id, .created_at = t->created_at};
		return true;
	}
	while (index_tag_next(&rest, ret))
		if (str_eq(ret->tag, tag))
			return true;
	return false;
}

/* Whom others mean by a public name: found anew, which is rare, so it does not depend on what came first. */
static void publish(struct sandbox_index *ix, struct str name)
{
	const struct index_template *best = NULL;
	for (size_t i = 0; i < ix->template_count; i++) {
		const struct index_template *t = ix->template_list[i];
		if (t->public && t->team.n && t->tags.raw.n && str_eq(t->alias, name) &&
			(!best || index_compare(t->created_at, t->id, best->created_at, best->id) < 0))
			best = t;
	}
	map_del(&ix->public_names, name);
	/* Without memory it is found by its id only. */
	if (best)
		map_put(&ix->public_names, best->alias, (void *)(uintptr_t)best, NULL);
}

static void template_name_drop(struct sandbox_index *ix, const struct index_template *t)
{
	struct name_key k;
	if (t->alias.n && index_template_named(ix, t->team, t->alias) == t)
		map_del(&ix->template_names, name_key(&k, t->team, t->alias));
	if (t->reference.n && index_template_of_image(ix, t->team, t->reference) == t)
		map_del(&ix->image_names, name_key(&k, t->team, t->reference));
}

static void template_name_put(struct sandbox_index *ix, struct index_template *t)
{
	struct name_key k;
	void *ignored;
	if (t->alias.n)
		map_put(&ix->template_names, name_key(&k, t->team, t->alias), t, &ignored);
	if (t->reference.n)
		map_put(&ix->image_names, name_key(&k, t->team, t->reference), t, &ignored);
}

static void template_vanish(struct sandbox_index *ix, struct index_template *t)
{
	map_del(&ix->templates, t->id);
	template_name_drop(ix, t);
	for (size_t i = 0; i < ix->template_count; i++)
		if (ix->template_list[i] == t) {
			memmove(ix->template_list + i, ix->template_list + i + 1, (--ix->template_count - i) * sizeof(ix->template_list[0]));
			break;
		}
	if (t->public)
		publish(ix, t->alias);
	free(t);
}

void index_template_deleted(struct sandbox_index *ix, struct str id)
{
	struct index_template *t = map_get(&ix->templates, id);
	if (t)
		template_vanish(ix, t);
}

static struct index_template *template_of(const struct msg_template *m)
{
	struct index_template t = {.id = m->id, .build_id = m->build_id, .created_at = m->created_at, .updated_at = m->created_at, .cpu_count = m->cpu_count,
		.memory_mb = m->memory_mb, .disk_mb = m->disk_mb, .size = m->size, .status = STR("ready"), .build_count = 1};
	if (msg_has(m, template, alias))
		t.alias = m->alias;
	if (msg_has(m, template, team))
		t.team = m->team;
	if (msg_has(m, template, kind))
		t.kind = m->kind;
	if (msg_has(m, template, status) && m->status.n)
		t.status = m->status;
	if (msg_has(m, template, last_error))
		t.last_error = m->last_error;
	if (msg_has(m, template, reference))
		t.reference = m->reference;
	if (msg_has(m, template, source))
		t.source = m->source;
	if (msg_has(m, template, tags))
		t.tags = m->tags;
	if (msg_has(m, template, updated_at))
		t.updated_at = m->updated_at;
	if (msg_has(m, template, build_count))
		t.build_count = m->build_count;
	/* What has no team serves everybody. */
	t.public = !t.team.n || (msg_has(m, template, public) && m->public);
	struct str *views[] = {&t.id, &t.alias, &t.build_id, &t.team, &t.kind, &t.status, &t.last_error, &t.reference, &t.source, &t.tags.raw};
	size_t n = sizeof(t);
	for (size_t i = 0; i < ARRAY_SIZE(views); i++)
		n += views[i]->n;
	struct index_template *copy = malloc(n);
	if (!copy)
		return NULL;
	char *to = (char *)(copy + 1);
	for (size_t i = 0; i < ARRAY_SIZE(views); i++)
		keep(&to, views[i]);
	*copy = t;
	return copy;
}

int index_put_template(struct sandbox_index *ix, const struct msg_template *m)
{
	struct index_template *old = map_get(&ix->templates, m->id);
	if (msg_has(m, template, gone) && m->gone) {
		index_template_deleted(ix, m->id);
		return 0;
	}
	struct index_template *t = template_of(m);
	void *ignored;
	if (!t || index_make_room(&ix->template_list, ix->template_count, &ix->template_cap) < 0 || map_put(&ix->templates, t->id, t, &ignored) < 0) {
		free(t);
		return -ENOMEM;
	}
	t->epoch = ix->epoch;
	size_t at = 0;
	while (at < ix->template_count && ix->template_list[at] != old)
		at++;
	ix->template_list[at] = t;
	ix->template_count += at == ix->template_count;
	if (old)
		template_name_drop(ix, old);
	template_name_put(ix, t);
	if (old && old->public && !str_eq(old->alias, t->alias))
		publish(ix, old->alias);
	if (t->public || (old && old->public))
		publish(ix, t->alias);
	free(old);
	return 0;
}

const struct index_template *index_template_find(const struct sandbox_index *ix, struct str id)
{
	return map_get(&ix->templates, id);
}

const struct index_template *index_template_named(const struct sandbox_index *ix, struct str team, struct str name)
{
	struct name_key k;
	return name.n && name.n <= 256 ? map_get(&ix->template_names, name_key(&k, team, name)) : NULL;
}

const struct index_template *index_template_of_image(const struct sandbox_index *ix, struct str team, struct str image)
{
	struct name_key k;
	return image.n && image.n <= 512 ? map_get(&ix->image_names, name_key(&k, team, image)) : NULL;
}

const struct index_template *index_template_public(const struct sandbox_index *ix, struct str name)
{
	return name.n ? map_get(&ix->public_names, name) : NULL;
}

size_t index_template_count(const struct sandbox_index *ix)
{
	return ix->template_count;
}

const struct index_template *index_template_at(const struct sandbox_index *ix, size_t i)
{
	assert(i < ix->template_count);
	return ix->template_list[i];
}

/* Snapshots */

const struct index_snapshot *index_snapshot_find(const struct sandbox_index *ix, struct str id)
{
	return map_get(&ix->snapshots, id);
}

const struct index_snapshot *index_snapshot_named(const struct sandbox_index *ix, struct str team, struct str name)
{
	for (size_t i = ix->snapshot_count; i-- > 0 && name.n;) {
		const struct index_snapshot *s = ix->snapshot_list[i];
		if (str_eq(s->name, name) && str_eq(s->team, team))
			return s;
	}
	return NULL;
}

size_t index_snapshot_count(const struct sandbox_index *ix)
{
	return ix->snapshot_count;
}

const struct index_snapshot *index_snapshot_at(const struct sandbox_index *ix, size_t i)
{
	assert(i < ix->snapshot_count);
	return ix->snapshot_list[i];
}

size_t index_snapshot_position(const struct sandbox_index *ix, int64_t created_at, struct str id)
{
	size_t low = 0, high = ix->snapshot_count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct index_snapshot *s = ix->snapshot_list[middle];
		if (index_compare(s->created_at, s->id, created_at, id) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void snapshot_unlist(struct sandbox_index *ix, const struct index_snapshot *s)
{
	size_t at = index_snapshot_position(ix, s->created_at, s->id);
	assert(at < ix->snapshot_count && ix->snapshot_list[at] == s);
	memmove(ix->snapshot_list + at, ix->snapshot_list + at + 1, (--ix->snapshot_count - at) * sizeof(ix->snapshot_list[0]));
}

void index_snapshot_deleted(struct sandbox_index *ix, struct str id)
{
	struct index_snapshot *s = map_get(&ix->snapshots, id);
	if (!s)
		return;
	snapshot_unlist(ix, s);
	map_del(&ix->snapshots, s->id);
	free(s);
}

int index_put_snapshot(struct sandbox_index *ix, const struct msg_snapshot *m)
{
	if (msg_has(m, snapshot, gone) && m->gone) {
		index_snapshot_deleted(ix, m->id);
		return 0;
	}
	struct index_snapshot *old = map_get(&ix->snapshots, m->id);
	struct index_snapshot s = {.id = m->id, .team = m->team, .sandbox = m->sandbox, .template_id = m->template_id, .created_at = m->created_at,
		.cpu_count = m->cpu_count, .memory_mb = m->memory_mb, .disk_mb = m->disk_mb, .size = m->size, .epoch = ix->epoch};
	if (msg_has(m, snapshot, name))
		s.name = m->name;
	struct index_snapshot *copy = malloc(sizeof(s) + s.id.n + s.team.n + s.name.n + s.sandbox.n + s.template_id.n);
	void *ignored;
	if (!copy || index_make_room(&ix->snapshot_list, ix->snapshot_count, &ix->snapshot_cap) < 0) {
		free(copy);
		return -ENOMEM;
	}
	char *to = (char *)(copy + 1);
	keep(&to, &s.id);
	keep(&to, &s.team);
	keep(&to, &s.name);
	keep(&to, &s.sandbox);
	keep(&to, &s.template_id);
	*copy = s;
	if (map_put(&ix->snapshots, copy->id, copy, &ignored) < 0) {
		free(copy);
		return -ENOMEM;
	}
	if (old) {
		snapshot_unlist(ix, old);
		free(old);
	}
	size_t at = index_snapshot_position(ix, copy->created_at, copy->id);
	memmove(ix->snapshot_list + at + 1, ix->snapshot_list + at, (ix->snapshot_count - at) * sizeof(ix->snapshot_list[0]));
	ix->snapshot_list[at] = copy;
	ix->snapshot_count++;
	return 0;
}

void index_templates_synced(struct sandbox_index *ix)
{
	for (size_t i = ix->template_count; i-- > 0;)
		if (ix->template_list[i]->epoch != ix->epoch)
			template_vanish(ix, ix->template_list[i]);
	for (size_t i = ix->snapshot_count; i-- > 0;)
		if (ix->snapshot_list[i]->epoch != ix->epoch)
			index_snapshot_deleted(ix, ix->snapshot_list[i]->id);
}

void index_templates_free(struct sandbox_index *ix)
{
	for (size_t i = 0; i < ix->template_count; i++)
		free(ix->template_list[i]);
	for (size_t i = 0; i < ix->snapshot_count; i++)
		free(ix->snapshot_list[i]);
	map_done(&ix->templates);
	map_done(&ix->template_names);
	map_done(&ix->image_names);
	map_done(&ix->public_names);
	map_done(&ix->snapshots);
	free(ix->template_list);
	free(ix->snapshot_list);
}
