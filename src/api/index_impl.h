/* The insides of the index, for the files that it is made of. */
#ifndef CUBICLE_API_INDEX_IMPL_H
#define CUBICLE_API_INDEX_IMPL_H

#include "api/index.h"
#include "base/map.h"

#include <assert.h>

struct end_record;

struct sandbox_index {
	struct map by_id;              /* -> struct index_sandbox */
	struct map by_name;            /* team, NUL, name of its create -> the same */
	struct index_sandbox **sorted; /* ascending (started_at, id) */
	size_t count, cap;
	struct map templates;          /* id -> struct index_template, owned */
	struct map template_names;     /* team, NUL, name -> the same; the team is empty for those of this machine */
	struct map image_names;        /* team, NUL, image -> the same, of kind image */
	struct map public_names;       /* name -> the one that others than its team mean by it */
	struct index_template **template_list;
	size_t template_count, template_cap;
	struct map snapshots;          /* id -> struct index_snapshot, owned */
	struct index_snapshot **snapshot_list; /* ascending (created_at, id) */
	size_t snapshot_count, snapshot_cap;
	struct map ends;               /* id -> struct end_record */
	struct end_record *first_end, **last_end;
	size_t end_count;
	struct index_listener *listeners;
	uint64_t epoch, sequence;
	bool syncing, ready;
};

/* Bytes of a key of by_name, template_names and image_names: team (64), NUL, name or reference (512), as long as messages allow them. */
struct name_key {
	char bytes[64 + 1 + 512];
};

static inline struct str name_key(struct name_key *k, struct str team, struct str name)
{
	assert(team.n <= 64 && name.n <= 512);
	if (team.n)
		memcpy(k->bytes, team.p, team.n);
	k->bytes[team.n] = 0;
	memcpy(k->bytes + team.n + 1, name.p, name.n);
	return str_n(k->bytes, team.n + 1 + name.n);
}

/* The order of lists: by time, then by id. */
int index_compare(int64_t a_at, struct str a, int64_t b_at, struct str b);
/* Room for one more pointer in a growing array: 0 or -ENOMEM. */
int index_make_room(void *array, size_t count, size_t *cap);

/* Copies the bytes of a view behind *to and points the view at the copy. */
static inline void keep(char **to, struct str *s)
{
	if (s->n)
		memcpy(*to, s->p, s->n);
	s->p = *to;
	*to += s->n;
}

/* index_templates.c: the templates and snapshots that the newest snapshot of the node did not name vanish; all of them are freed. */
void index_templates_synced(struct sandbox_index *ix);
void index_templates_free(struct sandbox_index *ix);

#endif
