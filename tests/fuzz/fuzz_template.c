#include "fuzz.h"

#include "io/msg.h"
#include "node/templates.h"

/* A description that somebody wrote by hand: what is taken is bounded, is the same when it is written and read again, and fits the claim. */

static size_t items(struct buf *list)
{
	struct str rest = buf_str(list), item;
	size_t n = 0;
	while (msg_list_next(&rest, &item))
		n++;
	hold(rest.n == 0);
	return n;
}

void fuzz_one(struct str input)
{
	static struct template t, again;
	cleanup_buf struct buf text = BUF_INIT, services = BUF_INIT, ready = BUF_INIT;
	struct error err = {0};
	int r = template_parse(input, "fuzz", &t, &err);
	hold(r == 0 || (r < 0 && err.message[0]));
	if (r < 0)
		return;
	hold(t.n_services <= TEMPLATE_MAX_SERVICES && t.n_layers <= TEMPLATE_MAX_LAYERS && t.ready.n_args <= TEMPLATE_MAX_ARGS);
	hold(template_serialize(&t, &text) == 0);
	hold(template_parse(buf_str(&text), "fuzz", &again, &err) == 0);
	hold(memcmp(&t.services, &again.services, sizeof(t.services)) == 0 && memcmp(&t.ready, &again.ready, sizeof(t.ready)) == 0);
	hold(strcmp(t.id, again.id) == 0 && strcmp(t.user, again.user) == 0 && strcmp(t.workdir, again.workdir) == 0 && strcmp(t.alias, again.alias) == 0);
	/* The limits of the claim's fields. */
	hold(template_encode_services(&t, &services) == 0 && items(&services) == t.n_services && buf_len(&services) <= 4096);
	hold(template_encode_ready(&t, &ready) == 0 && items(&ready) == t.ready.n_args && buf_len(&ready) <= 4096);
}
