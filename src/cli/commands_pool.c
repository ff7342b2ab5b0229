#include "cli/commands.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cli/client.h"
#include "cli/list.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

enum { LOOK_EVERY_MS = 200, SIZE_MOST = 1000 };

static long long number(const json_t *pool, const char *name)
{
	return json_integer_value(json_object_get(pool, name));
}

/* Why no more are ready, in words; NULL = nothing is in the way. */
static const char *block_text(const json_t *pool)
{
	struct str block = json_str(json_object_get(pool, "blocked"));
	return str_is(block, "no_room") ? "no room" : str_is(block, "failing") ? "starts fail" : NULL;
}

static void add_pool(struct table *t, const json_t *pool)
{
	struct str alias = json_str(json_object_get(pool, "alias"));
	char text[24];
	table_add(t, alias.n ? alias : json_str(json_object_get(pool, "templateID")));
	table_addf(t, "%lld-%lld%s", number(pool, "min"), number(pool, "max"), json_is_true(json_object_get(pool, "set")) ? "" : " (default)");
	table_addf(t, "%lld", number(pool, "size"));
	if (number(pool, "starting"))
		table_addf(t, "%lld, %lld starting", number(pool, "ready"), number(pool, "starting"));
	else if (block_text(pool))
		table_addf(t, "%lld, %s", number(pool, "ready"), block_text(pool));
	else
		table_addf(t, "%lld", number(pool, "ready"));
	table_addf(t, "%lld", number(pool, "hits"));
	table_addf(t, "%lld", number(pool, "misses"));
	if (number(pool, "refillMs"))
		table_addf(t, "%.1f s", (double)number(pool, "refillMs") / 1000);
	else
		table_add(t, STR("-"));
	table_add(t, str_of(size_text(text, (uint64_t)number(pool, "memoryMB") << 20)));
}

static const struct list pools = {{"TEMPLATE", "BOUNDS", "WANTED", "READY", "HITS", "MISSES", "REFILL", "MEMORY"}, add_pool};

static void print_pool(const struct cli *c, json_t *pool)
{
	cleanup_json json_t *one = json_array();
	json_array_append(one, pool);
	if (c->json)
		print_json(pool);
	else
		list_table(&pools, one);
}

static int pool_path(struct buf *path, const char *template, struct error *err)
{
	buf_add_c(path, "/pools/");
	url_encode(path, str_of(template));
	return buf_cstr(path) && !path->failed ? 0 : error_errno(err, -ENOMEM, "path");
}

/* {"size": ..., "min": ..., "max": ...} of the words and flags; NULL with *err. */
static json_t *parse_bounds(const struct cli *c, struct error *err)
{
	static const char *const bounds[] = {"min", "max"};
	uint64_t size;
	if (str_to_u64(str_of(c->words[1]), &size) < 0 || size > SIZE_MOST) {
		error_set(err, -EINVAL, 400, "SIZE must be 0 to %d, not '%s'", SIZE_MOST, c->words[1]);
		return NULL;
	}
	json_t *body = json_pack("{s:I}", "size", (json_int_t)size);
	for (size_t i = 0; i < ARRAY_SIZE(bounds); i++) {
		const struct cli_value *v = cli_flag(c, bounds[i]);
		if (v->set)
			json_object_set_new(body, bounds[i], json_integer(v->number));
	}
	return body;
}

/* The pool of this template id, of all of them; NULL. */
static json_t *find(const json_t *all, struct str id)
{
	size_t i;
	json_t *pool;
	json_array_foreach(all, i, pool)
	{
		if (str_eq(json_str(json_object_get(pool, "templateID")), id))
			return pool;
	}
	return NULL;
}

static int say_why(const json_t *pool, int64_t seconds, struct error *err)
{
	const char *why = block_text(pool);
	if (number(pool, "starting"))
		why = "more are being started";
	return error_set(err, -ETIME, 504, "%lld of %lld sandboxes are ready after %lld s: %s", number(pool, "ready"), number(pool, "min"), (long long)seconds,
		why ? why : "none is being started (does the machine have CPU time to spare?)");
}

/* Until the least are ready. *pool becomes what it is now. 0, or a negative errno with *err: -ETIME says why not. */
static int wait_ready(struct client *cl, json_t **pool, int64_t seconds, struct error *err)
{
	int64_t until = clock_monotonic() + seconds * NS_PER_S;
	while (number(*pool, "ready") < number(*pool, "min")) {
		cleanup_json json_t *all = NULL;
		nanosleep(&(struct timespec){.tv_nsec = LOOK_EVERY_MS * NS_PER_MS}, NULL);
		int r = client_list(cl, "/pools", &all, err);
		if (r < 0)
			return r;
		json_t *now = find(all, json_str(json_object_get(*pool, "templateID")));
		if (!now)
			return error_set(err, -ENOENT, 404, "the pool is gone");
		json_incref(now);
		json_decref(*pool);
		*pool = now;
		if (number(now, "ready") < number(now, "min") && clock_monotonic() >= until)
			return say_why(now, seconds, err);
	}
	return 0;
}

int cmd_pool_set(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_buf struct buf path = BUF_INIT;
	cleanup_json json_t *body = parse_bounds(c, &err), *pool = NULL;
	const struct cli_value *wait = cli_flag(c, "wait");
	if (!body) {
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (pool_path(&path, c->words[0], &err) < 0 || client_open(&cl, c, &err) < 0 || client_call(&cl, "PUT", buf_cstr(&path), body, &pool, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (wait->set && wait_ready(&cl, &pool, wait->number, &err) < 0)
		return cli_fail(c, &err);
	print_pool(c, pool);
	return EXIT_OK;
}

int cmd_pool_list(struct cli *c)
{
	return list_command(c, false, "/pools", &pools);
}

int cmd_pool_unset(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_buf struct buf path = BUF_INIT;
	if (pool_path(&path, c->words[0], &err) < 0 || client_open(&cl, c, &err) < 0 || client_call(&cl, "DELETE", buf_cstr(&path), NULL, NULL, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json) {
		cleanup_json json_t *answer = json_pack("{s:s}", "unset", c->words[0]);
		print_json(answer);
	} else {
		printf("%s\n", c->words[0]);
	}
	return EXIT_OK;
}
