#include "guest/program.h"

static void add_string(struct buf *body, struct str s)
{
	buf_add_str(body, s);
	buf_add(body, "", 1);
}

/* The next `most` variables of a map, which is moved on. */
static void add_variables(struct str *map, uint64_t most, struct spawn_head *head, struct buf *body)
{
	struct str name, value;
	for (; most && head->n_envs < SPAWN_MAX_ENVS && msg_map_next(map, &name, &value); most--) {
		if (!name.n || memchr(name.p, '=', name.n) || memchr(name.p, '\0', name.n) || memchr(value.p, '\0', value.n))
			continue;
		buf_add_str(body, name);
		buf_add_c(body, "=");
		add_string(body, value);
		head->n_envs++;
	}
}

/* Of two with one name the later counts (command.c). */
void program_request(const struct guest_identity *id, const struct program *p, struct spawn_head *head, struct buf *body)
{
	struct str rest = p->arguments, argument, own = p->envs;
	add_string(body, p->user);
	add_string(body, p->workdir);
	add_string(body, STR("")); /* not the default working directory, which may be one that the template's users make later */
	for (; msg_list_next(&rest, &argument); head->n_args++)
		add_string(body, argument);
	rest = buf_str(&id->envs);
	add_variables(&rest, id->template_envs, head, body);
	add_variables(&own, UINT64_MAX, head, body);
	add_variables(&rest, UINT64_MAX, head, body);
}
