#include "guest/program.h"

static void add_string(struct buf *body, struct str s)
{
	buf_add_str(body, s);
	buf_add(body, "", 1);
}

/* The body's length is that of the claim's parts, which fits a datagram. */
void program_request(const struct guest_identity *id, struct str user, struct str arguments, struct spawn_head *head, struct buf *body)
{
	struct str rest = arguments, argument, name, value;
	add_string(body, user);
	add_string(body, STR(""));
	add_string(body, STR("")); /* not the default working directory, which may be one that the template's users make later */
	for (; msg_list_next(&rest, &argument); head->n_args++)
		add_string(body, argument);
	rest = buf_str(&id->envs);
	while (head->n_envs < SPAWN_MAX_ENVS && msg_map_next(&rest, &name, &value)) {
		if (!name.n || memchr(name.p, '=', name.n) || memchr(name.p, '\0', name.n) || memchr(value.p, '\0', value.n))
			continue;
		buf_add_str(body, name);
		buf_add_c(body, "=");
		add_string(body, value);
		head->n_envs++;
	}
}
