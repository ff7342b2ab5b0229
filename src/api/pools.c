#include "api/decode.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/sources.h"
#include "base/cleanup.h"
#include "node/pool_info.h"

#include <errno.h>

/*
 * Ready pools (agents.md §3). They are the server's: every key may look, but what is kept ready takes memory from all teams and counts for no quota, so only the default
 * team and root on the admin socket may set them.
 */

static void add_pool(struct out *o, const struct sandbox_index *ix, const struct pool_info *p)
{
	static const char *const blocks[] = {[POOL_NO_ROOM] = "no_room", [POOL_FAILING] = "failing"};
	const struct index_template *t = index_template_find(ix, str_of(p->template_id));
	out_open(o, NULL, '{');
	out_str(o, "templateID", str_of(p->template_id));
	if (t && t->alias.n)
		out_str(o, "alias", t->alias);
	out_bool(o, "set", p->set);
	out_int(o, "min", p->min);
	out_int(o, "size", p->size);
	out_int(o, "max", p->max);
	out_int(o, "ready", p->ready);
	out_int(o, "starting", p->starting);
	if (p->block < ARRAY_SIZE(blocks) && blocks[p->block])
		out_str(o, "blocked", str_of(blocks[p->block]));
	else
		out_null(o, "blocked");
	out_int(o, "hits", (int64_t)p->hits);
	out_int(o, "misses", (int64_t)p->misses);
	out_int(o, "failed", (int64_t)p->failed);
	out_int(o, "evicted", (int64_t)p->evicted);
	out_int(o, "refillMs", (int64_t)p->refill_ms);
	out_int(o, "memoryMB", (int64_t)p->memory_mb);
	out_close(o, '}');
}

/* The next entry of a page; false at its end. */
static bool next_pool(struct str *rest, struct pool_info *ret)
{
	if (rest->n < sizeof(*ret))
		return false;
	memcpy(ret, rest->p, sizeof(*ret));
	*rest = str_from(*rest, sizeof(*ret));
	return true;
}

static void pools_read(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	if (!api_called(r, a))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = a->body->pools_page.pools;
	struct pool_info pool;
	out_open(&o, NULL, '[');
	while (next_pool(&rest, &pool))
		add_pool(&o, r->api->config.index, &pool);
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

void handle_pools(struct api_request *r)
{
	struct error err = {0};
	if (api_index_ready(r))
		api_wait(r, node_pools(r->api->config.node, pools_read, r, &err), &err);
}

static void pool_set(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	if (!api_called(r, a))
		return;
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	struct str rest = a->body->pools_page.pools;
	struct pool_info pool;
	if (!next_pool(&rest, &pool)) {
		api_failf(r, 500, "the node did not say what became of the pool");
		return;
	}
	add_pool(&o, r->api->config.index, &pool);
	api_answer(r, 200, &body);
}

/* False = answered. */
static bool may_set(struct api_request *r)
{
	bool root = !r->secret.n, allowed = root || str_is(r->team, TEAM_DEFAULT);
	if (!allowed)
		api_failf(r, 403, "ready pools take memory of the whole server: only keys of the default team, and root on its machine, may set them");
	return allowed;
}

/* The template that the path names, however snapshots are called: its id or alias goes to *ret, whichever was given, for the node's words; one that is not there any more may still have a pool that is set, so for `gone` what was
 * given does. False = answered. */
static bool find_template(struct api_request *r, bool gone, struct str *ret)
{
	struct template_reference reference;
	struct error err = {0};
	const struct sandbox_index *ix = r->api->config.index;
	if (decode_template_reference(r->match.params[0], &reference, &err) < 0) {
		api_fail(r, &err);
		return false;
	}
	if (!api_index_ready(r))
		return false;
	const struct index_template *t = reference.tag[0] ? NULL : source_template(ix, r->team, &reference);
	bool snapshot = !t && source_find(ix, r->team, &reference).snapshot;
	/* The node knows those of this machine by their names, too. */
	*ret = !t ? r->match.params[0] : t->team.n || str_is(t->id, reference.name) ? t->id : t->alias;
	if (snapshot)
		api_failf(r, 400, "'%s' is a snapshot: ready pools are of templates only", reference.name);
	else if (!t && !gone)
		source_not_found(r, &reference);
	return t || (gone && !snapshot);
}

static int parse_number(const json_t *body, const char *name, int64_t *to, struct error *err)
{
	int r = field_int(body, name, NULL, to, err);
	if (r > 0 && (*to < 0 || *to > POOL_SIZE_MAX))
		return error_set(err, -EINVAL, 400, "%s must be 0 to %d", name, POOL_SIZE_MAX);
	return r;
}

/* What is not said is `size`. */
static int parse_bounds(const json_t *body, struct msg_set_pool *m, struct error *err)
{
	int64_t size = 0, min, max;
	int r = parse_number(body, "size", &size, err);
	if (r == 0)
		return error_set(err, -EINVAL, 400, "size is missing");
	min = max = size;
	if (r > 0)
		r = parse_number(body, "min", &min, err);
	if (r >= 0)
		r = parse_number(body, "max", &max, err);
	if (r < 0)
		return r;
	if (min > size)
		return error_set(err, -EINVAL, 400, "min must not be larger than size");
	if (max < size)
		return error_set(err, -EINVAL, 400, "max must not be smaller than size");
	m->min = (uint64_t)min;
	m->size = (uint64_t)size;
	m->max = (uint64_t)max;
	return 0;
}

void handle_pool_set(struct api_request *r)
{
	struct msg_set_pool m = {0};
	struct error err = {0};
	if (!may_set(r))
		return;
	if (parse_bounds(r->body, &m, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	if (!find_template(r, false, &m.template))
		return;
	msg_set(&m, set_pool, request, str_of(r->id));
	api_wait(r, node_set_pool(r->api->config.node, &m, pool_set, r, &err), &err);
}

void handle_pool_unset(struct api_request *r)
{
	struct msg_unset_pool m = {0};
	struct error err = {0};
	if (!may_set(r) || !find_template(r, true, &m.template))
		return;
	msg_set(&m, unset_pool, request, str_of(r->id));
	api_wait(r, node_unset_pool(r->api->config.node, &m, api_done_plain, r, &err), &err);
}
