/* Teams, keys, quotas, and that nobody sees what is another team's (case 179), on the table of routes itself. */
#include "api_world.h"
#include "template_node.h"

#include "api/keys.h"
#include "api/routes.h"
#include "api/teams.h"
#include "base/clock.h"
#include "base/log.h"
#include "store/store.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct world *world;

static int set_up(void **state)
{
	world = world_new();
	world_connect_node(world);
	return 0;
}

static int tear_down(void **state)
{
	world_free(world);
	return 0;
}

/* A team of its own and a header with a key of it. */
struct member {
	char team[64];
	char header[128];
};

/* As root, for a team. */
static struct reply admin_for(const char *team, const char *method, const char *target, const char *body)
{
	char text[512];
	int fd = world_open(world, true);
	snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: x\r\nX-Cubicle-Team: %s\r\nContent-Length: %zu\r\n\r\n%s", method, target, team, strlen(body), body);
	struct reply r = world_send(world, fd, str_of(text));
	close(fd);
	return r;
}

static void new_key(const char *team, char header[128])
{
	cleanup_reply struct reply key = admin_for(team, "POST", "/admin/keys", "{\"name\":\"k\"}");
	assert_int_equal(key.status, 201);
	assert_string_equal(reply_text(&key, "teamID"), team);
	snprintf(header, 128, "X-API-KEY: %s\r\n", reply_text(&key, "key"));
}

static struct member member_new(const char *name, const char *quotas)
{
	struct member m = {0};
	char body[256];
	snprintf(body, sizeof(body), "{\"name\":\"%s\",\"quotas\":%s}", name, quotas ? quotas : "{}");
	cleanup_reply struct reply team = world_admin(world, "POST", "/admin/teams", body);
	assert_int_equal(team.status, 201);
	snprintf(m.team, sizeof(m.team), "%s", reply_text(&team, "teamID"));
	new_key(m.team, m.header);
	return m;
}

static int status_of(const struct member *m, const char *method, const char *target, const char *body)
{
	cleanup_reply struct reply r = world_ask(world, method, target, m ? m->header : NULL, body);
	return r.status;
}

static int create_as(const struct member *m)
{
	return status_of(m, "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
}

static const char *newest(void)
{
	return world->sandboxes[world->n_sandboxes - 1].id;
}

/* The pattern with `id` in the place of a sandbox, template or alias, something for other parameters. */
static void fill(const char *pattern, const char *id, char to[256])
{
	size_t n = 0;
	for (const char *p = pattern; *p; p++) {
		if (*p != '{') {
			to[n++] = *p;
			continue;
		}
		const char *end = strchr(p, '}');
		bool named = !strncmp(p, "{sandboxID}", 11) || !strncmp(p, "{templateID}", 12) || !strncmp(p, "{alias}", 7);
		n += (size_t)snprintf(to + n, 256 - n, "%s", named ? id : "x");
		p = end;
	}
	to[n] = 0;
}

/* Bodies: none, an empty one, and one that fits every route. */
static const char *const bodies[] = {NULL, "{}",
	"{\"timeout\":60,\"duration\":60,\"count\":1,\"memory\":true,\"name\":\"x\",\"snapshotID\":\"x\",\"templateID\":\"base\",\"allowOut\":[],\"denyOut\":[]}"};

static void replace(char *text, const char *from, const char *to)
{
	for (char *at; (at = strstr(text, from));)
		memcpy(at, to, strlen(to));
}

/* The answers to another team are those of an id that never was: with 404. */
static void check_hidden(const struct member *m, const struct route *route, const char *id, const char *never)
{
	bool found = false;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		char target[256], unknown[256], text[1024];
		fill(route->pattern, id, target);
		fill(route->pattern, never, unknown);
		cleanup_reply struct reply theirs = world_ask(world, route->method, target, m->header, bodies[i]);
		cleanup_reply struct reply none = world_ask(world, route->method, unknown, m->header, bodies[i]);
		snprintf(text, sizeof(text), "%.*s", STR_FMT(theirs.body));
		replace(text, id, never);
		assert_int_equal(theirs.status, none.status);
		assert_str(none.body, text);
		found |= theirs.status == 404;
		if (theirs.status < 400)
			fail_msg("%s %s is %d for another team", route->method, route->pattern, theirs.status);
	}
	if (!found)
		fail_msg("%s %s is never 404 for another team", route->method, route->pattern);
}

/* case 179: whatever is asked of another team's sandbox, running, paused or gone, the answer is that of an id that never was. */
static void every_route_of_a_sandbox_is_404_for_another_team(void **state)
{
	struct member b = member_new("b", NULL);
	assert_int_equal(create_as(NULL), 201);
	char id[33], never[33], target[64];
	snprintf(id, sizeof(id), "%s", newest());
	snprintf(never, sizeof(never), "%s", id);
	never[1] = 'z';
	snprintf(target, sizeof(target), "/sandboxes/%s", id);
	static const enum sandbox_state states[] = {SANDBOX_RUNNING, SANDBOX_SNAPSHOTTING, SANDBOX_PAUSING, SANDBOX_PAUSED, SANDBOX_CREATING, SANDBOX_KILLING,
		SANDBOX_GONE};
	for (size_t k = 0; k < sizeof(states) / sizeof(states[0]); k++) {
		size_t routes = 0;
		if (states[k] == SANDBOX_GONE) {
			world_end(world, id, "oom_killed", "secret detail", clock_realtime());
		} else {
			world_find(world, id)->state = states[k];
			world_event(world, world_find(world, id));
			world_turn(world);
		}
		unsigned calls = world->calls;
		for (size_t i = 0; i < api_n_routes; i++)
			if (strstr(api_routes[i].pattern, "{sandboxID}")) {
				check_hidden(&b, &api_routes[i], id, never);
				routes++;
			}
		assert_true(routes >= 15);
		assert_int_equal(world->calls, calls); /* the node was asked for nothing */
	}
	/* How it ended is its team's to know. */
	cleanup_reply struct reply theirs = world_ask(world, "GET", target, b.header, NULL);
	cleanup_reply struct reply ours = world_ask(world, "GET", target, NULL, NULL);
	assert_int_equal(theirs.status, 404);
	assert_null(json_object_get(theirs.json, "lastTermination"));
	assert_non_null(json_object_get(ours.json, "lastTermination"));
}

/* case 179: the same for a snapshot, by its id and by its name. */
static void every_route_of_a_snapshot_is_404_for_another_team(void **state)
{
	struct member b = member_new("b", NULL);
	char target[128], snapshot[64], body[128];
	assert_int_equal(create_as(NULL), 201);
	snprintf(target, sizeof(target), "/sandboxes/%s/snapshots", newest());
	cleanup_reply struct reply made = world_ask(world, "POST", target, NULL, "{\"name\":\"aaaaaaaaaa\"}");
	assert_int_equal(made.status, 201);
	snprintf(snapshot, sizeof(snapshot), "%s", reply_text(&made, "snapshotID"));
	char never[64];
	snprintf(never, sizeof(never), "%s", snapshot);
	never[5] = never[5] == 'z' ? 'y' : 'z';
	size_t routes = 0;
	unsigned calls = world->calls;
	for (size_t i = 0; i < api_n_routes; i++)
		if (strstr(api_routes[i].pattern, "{templateID}") || strstr(api_routes[i].pattern, "{alias}")) {
			check_hidden(&b, &api_routes[i], snapshot, never);
			check_hidden(&b, &api_routes[i], "aaaaaaaaaa", "bbbbbbbbbb");
			routes++;
		}
	assert_true(routes >= 10);
	const char *const references[] = {snapshot, "aaaaaaaaaa", "default/aaaaaaaaaa"};
	for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
		snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", references[i]);
		assert_int_equal(status_of(&b, "POST", "/v2/sandboxes", body), 404);
		assert_int_equal(status_of(&b, "POST", "/sandboxes", body), 404);
	}
	assert_int_equal(world->calls, calls);
	/* Nor is an own sandbox taken back to it. */
	assert_int_equal(create_as(&b), 201);
	snprintf(target, sizeof(target), "/sandboxes/%s/rollback", newest());
	for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
		snprintf(body, sizeof(body), "{\"snapshotID\":\"%s\"}", references[i]);
		assert_int_equal(status_of(&b, "POST", target, body), 404);
	}
	cleanup_reply struct reply list = world_ask(world, "GET", "/snapshots", b.header, NULL);
	assert_int_equal(json_array_size(list.json), 0);
	cleanup_reply struct reply own = world_ask(world, "GET", "/snapshots", NULL, NULL);
	assert_int_equal(json_array_size(own.json), 1);
	/* Two teams may use one name, each for its own. */
	snprintf(target, sizeof(target), "/sandboxes/%s/snapshots", newest());
	cleanup_reply struct reply same = world_ask(world, "POST", target, b.header, "{\"name\":\"aaaaaaaaaa\"}");
	assert_int_equal(same.status, 201);
	cleanup_reply struct reply busy = world_admin(world, "DELETE", "/admin/teams/b", NULL);
	assert_int_equal(busy.status, 409);
	world_end(world, newest(), "killed", NULL, clock_realtime());
	cleanup_reply struct reply still = world_admin(world, "DELETE", "/admin/teams/b", NULL);
	assert_int_equal(still.status, 409);
	assert_int_equal(status_of(&b, "DELETE", "/templates/aaaaaaaaaa", NULL), 204);
	cleanup_reply struct reply gone = world_admin(world, "DELETE", "/admin/teams/b", NULL);
	assert_int_equal(gone.status, 204);
	assert_int_equal(status_of(NULL, "GET", "/templates/aaaaaaaaaa", NULL), 200);
}

/* case 179: the same for a template, by its id and by its name, before it is ready and after; one that its team lets others use can be used, and not changed. */
static void every_route_of_a_template_is_404_for_another_team(void **state)
{
	struct member b = member_new("b", NULL);
	cleanup_reply struct reply made = world_ask(world, "POST", "/v3/templates", NULL, "{\"name\":\"aaaaaaaaaa\"}");
	assert_int_equal(made.status, 202);
	struct fake_template *t = &world->templates->templates[0];
	char never[64], body[128], target[256];
	snprintf(never, sizeof(never), "%s", t->id);
	never[19] = 'z';
	for (int ready = 0; ready < 2; ready++) {
		size_t routes = 0;
		unsigned calls = world->calls;
		for (size_t i = 0; i < api_n_routes; i++) {
			const struct route *route = &api_routes[i];
			if (!strstr(route->pattern, "{templateID}") && !strstr(route->pattern, "{alias}"))
				continue;
			check_hidden(&b, route, t->id, never);
			check_hidden(&b, route, "aaaaaaaaaa", "bbbbbbbbbb");
			routes++;
		}
		assert_true(routes >= 20);
		const char *const references[] = {t->id, "aaaaaaaaaa", "default/aaaaaaaaaa"};
		for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
			snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", references[i]);
			assert_int_equal(status_of(&b, "POST", "/v2/sandboxes", body), 404);
			snprintf(body, sizeof(body), "{\"target\":\"%s\",\"tags\":[\"x\"]}", references[i]);
			assert_int_equal(status_of(&b, "POST", "/templates/tags", body), 404);
			snprintf(body, sizeof(body), "{\"name\":\"%s\",\"tags\":[\"x\"]}", references[i]);
			assert_int_equal(status_of(&b, "DELETE", "/templates/tags", body), 404);
		}
		assert_int_equal(world->calls, calls); /* the node was asked for nothing */
		cleanup_reply struct reply list = world_ask(world, "GET", "/templates", b.header, NULL);
		assert_int_equal(json_array_size(list.json), 1); /* of the machine */
		if (!ready)
			template_node_end(world, t, NULL, NULL, 0);
	}
	/* Two teams may use one name, each for its own. */
	assert_int_equal(status_of(&b, "POST", "/v3/templates", "{\"name\":\"aaaaaaaaaa\"}"), 202);
	struct fake_template *theirs = &world->templates->templates[1];
	assert_string_equal(theirs->team, b.team);
	cleanup_reply struct reply busy = world_admin(world, "DELETE", "/admin/teams/b", NULL);
	assert_int_equal(busy.status, 409);
	assert_int_equal(status_of(&b, "DELETE", "/templates/aaaaaaaaaa", NULL), 204);
	/* Others may use it, and see that it is there; they change nothing. */
	assert_int_equal(status_of(NULL, "PATCH", "/v2/templates/aaaaaaaaaa", "{\"public\":true}"), 200);
	assert_int_equal(status_of(&b, "GET", "/templates/aliases/aaaaaaaaaa", NULL), 403);
	assert_int_equal(status_of(NULL, "GET", "/templates/aliases/aaaaaaaaaa", NULL), 200);
	const char *const references[] = {t->id, "aaaaaaaaaa", "default/aaaaaaaaaa"};
	for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
		snprintf(body, sizeof(body), "{\"templateID\":\"%s\"}", references[i]);
		assert_int_equal(status_of(&b, "POST", "/v2/sandboxes", body), 201);
		assert_string_equal(world->last_template, t->id);
		snprintf(body, sizeof(body), "{\"target\":\"%s\",\"tags\":[\"x\"]}", references[i]);
		assert_int_equal(status_of(&b, "POST", "/templates/tags", body), 403);
	}
	static const struct {
		const char *method, *pattern, *body;
	} changes[] = {{"DELETE", "/templates/{templateID}", NULL}, {"PATCH", "/v2/templates/{templateID}", "{\"public\":false}"}, {"PUT", "/templates/{templateID}/alias", "{\"alias\":\"x\"}"},
		{"POST", "/templates/{templateID}", "{}"}, {"GET", "/templates/{templateID}/files/x", NULL}, {"GET", "/templates/{templateID}/builds/x/status", NULL}};
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		fill(changes[i].pattern, t->id, target);
		assert_int_equal(status_of(&b, changes[i].method, target, changes[i].body), 403);
	}
	/* It takes the place of nothing that a team has itself. */
	assert_int_equal(status_of(NULL, "POST", "/v3/templates", "{\"name\":\"base\"}"), 202);
	struct fake_template *base = &world->templates->templates[2];
	template_node_end(world, base, NULL, NULL, 0);
	assert_int_equal(status_of(NULL, "PATCH", "/v2/templates/base", "{\"public\":true}"), 200);
	assert_int_equal(create_as(&b), 201);
	assert_string_equal(world->last_template, "tmplbase000000000000");
	assert_int_equal(create_as(NULL), 201);
	assert_string_equal(world->last_template, base->id);
}

/* Nothing that is answered without a parameter tells of another team's sandbox. */
static void lists_show_only_the_own_team(void **state)
{
	struct member b = member_new("b", NULL);
	assert_int_equal(status_of(NULL, "POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"metadata\":{\"who\":\"aaaaaaaaaa\"}}"), 201);
	char snapshots[64], query[96];
	snprintf(snapshots, sizeof(snapshots), "/sandboxes/%s/snapshots", newest());
	assert_int_equal(status_of(NULL, "POST", snapshots, "{\"name\":\"aaaaaaaaaa\"}"), 201);
	snprintf(query, sizeof(query), "/snapshots?sandboxID=%s", newest());
	cleanup_reply struct reply made_of = world_ask(world, "GET", query, b.header, NULL);
	assert_int_equal(json_array_size(made_of.json), 0);
	size_t lists = 0;
	for (size_t i = 0; i < api_n_routes; i++) {
		const struct route *route = &api_routes[i];
		if (strcmp(route->method, "GET") != 0 || strchr(route->pattern, '{') || (route->flags & ROUTE_ADMIN))
			continue;
		cleanup_reply struct reply r = world_ask(world, "GET", route->pattern, b.header, NULL);
		assert_true(r.status > 0);
		lists++;
		if (memmem(r.body.p, r.body.n, newest(), strlen(newest())) || memmem(r.body.p, r.body.n, "aaaaaaaaaa", 10))
			fail_msg("GET %s shows another team's sandbox: %.*s", route->pattern, STR_FMT(r.body));
	}
	assert_true(lists >= 8);
	cleanup_reply struct reply list = world_ask(world, "GET", "/v2/sandboxes", b.header, NULL);
	assert_int_equal(json_array_size(list.json), 0);
	assert_str(reply_header(&list, "x-total-running"), "0");
	/* How busy a template is counts the own sandboxes only. */
	cleanup_reply struct reply busy = world_ask(world, "GET", "/templates/base", NULL, NULL);
	cleanup_reply struct reply idle = world_ask(world, "GET", "/templates/base", b.header, NULL);
	assert_int_equal(json_integer_value(json_object_get(busy.json, "spawnCount")), 1);
	assert_int_equal(json_integer_value(json_object_get(idle.json, "spawnCount")), 0);
	assert_true(json_is_null(json_object_get(idle.json, "lastSpawnedAt")));
}

static void keys_serve_their_team(void **state)
{
	struct member a = member_new("a", NULL), b = member_new("b", NULL);
	cleanup_reply struct reply made = world_ask(world, "POST", "/api-keys", a.header, "{\"name\":\"second\"}");
	assert_int_equal(made.status, 201);
	const char *id = reply_text(&made, "id"), *key = reply_text(&made, "key");
	const json_t *mask = json_object_get(made.json, "mask");
	assert_string_equal(json_string_value(json_object_get(mask, "prefix")), "e2b_");
	assert_int_equal(json_integer_value(json_object_get(mask, "valueLength")), 40);
	assert_memory_equal(json_string_value(json_object_get(mask, "maskedValuePrefix")), key + 4, 8);
	assert_true(json_is_string(json_object_get(mask, "maskedValueSuffix")));
	assert_true(json_is_null(json_object_get(made.json, "lastUsed")));
	char header[128], target[128];
	snprintf(header, sizeof(header), "Authorization: Bearer %s\r\n", key);
	cleanup_reply struct reply teams = world_ask(world, "GET", "/teams", header, NULL);
	assert_int_equal(teams.status, 200);
	assert_int_equal(json_array_size(teams.json), 1);
	const json_t *team = json_array_get(teams.json, 0);
	assert_string_equal(json_string_value(json_object_get(team, "teamID")), a.team);
	assert_string_equal(json_string_value(json_object_get(team, "name")), "a");
	assert_string_equal(json_string_value(json_object_get(team, "apiKey")), key);
	assert_true(json_is_true(json_object_get(team, "isDefault")));

	/* Another team neither sees, renames nor revokes it. */
	snprintf(target, sizeof(target), "/api-keys/%s", id);
	cleanup_reply struct reply theirs = world_ask(world, "GET", "/api-keys", b.header, NULL);
	assert_int_equal(json_array_size(theirs.json), 1);
	assert_int_equal(status_of(&b, "PATCH", target, "{\"name\":\"stolen\"}"), 404);
	assert_int_equal(status_of(&b, "DELETE", target, NULL), 404);
	assert_int_equal(status_of(NULL, "DELETE", target, NULL), 404);

	assert_int_equal(status_of(&a, "PATCH", target, "{}"), 400);
	assert_int_equal(status_of(&a, "PATCH", target, "{\"name\":\"renamed\"}"), 200);
	cleanup_reply struct reply ours = world_ask(world, "GET", "/api-keys", a.header, NULL);
	assert_int_equal(json_array_size(ours.json), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(ours.json, 1), "name")), "renamed");
	assert_null(json_object_get(json_array_get(ours.json, 1), "key"));
	assert_null(json_object_get(json_array_get(ours.json, 1), "hint"));
	assert_int_equal(status_of(&a, "DELETE", target, NULL), 204);
	cleanup_reply struct reply after = world_ask(world, "GET", "/teams", header, NULL);
	assert_int_equal(after.status, 401);
	assert_int_equal(status_of(&a, "DELETE", target, NULL), 404);
	assert_int_equal(status_of(&a, "POST", "/api-keys", "{\"name\":\"\"}"), 400);
	/* Only over the admin socket a key for another team is made. */
	assert_int_equal(status_of(&a, "POST", "/api-keys", "{\"name\":\"x\",\"team\":\"b\"}"), 201);
	cleanup_reply struct reply still = world_ask(world, "GET", "/api-keys", b.header, NULL);
	assert_int_equal(json_array_size(still.json), 1);
	static const char *const unknown[] = {"nobody", "%zz", "%00"};
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		cleanup_reply struct reply nobody = admin_for(unknown[i], "POST", "/admin/keys", "{\"name\":\"x\"}");
		assert_int_equal(nobody.status, 404);
	}
	/* Root acts for a team by its name, too; a key does not choose. */
	cleanup_reply struct reply named = admin_for("%61", "POST", "/v2/sandboxes", "{\"templateID\":\"base\"}");
	assert_int_equal(named.status, 201);
	assert_string_equal(world_find(world, newest())->team, a.team);
	snprintf(header, sizeof(header), "%.100sX-Cubicle-Team: a\r\n", b.header);
	cleanup_reply struct reply chosen = world_ask(world, "GET", "/v2/sandboxes", header, NULL);
	assert_int_equal(json_array_size(chosen.json), 0);
}

static void teams_are_changed_blocked_and_deleted(void **state)
{
	struct member a = member_new("a", "{\"sandboxes\":3}");
	char target[128];
	snprintf(target, sizeof(target), "/admin/teams/%s", a.team);
	static const char *const bad[] = {"{}", "{\"name\":\"\"}", "{\"name\":\"a\\tb\"}", "{\"name\":\"x\",\"quotas\":{\"sandboxes\":-1}}",
		"{\"name\":\"x\",\"quotas\":{\"sandboxes\":1.5}}", "{\"name\":\"x\",\"quotas\":{\"sandbox\":1}}", "{\"name\":\"x\",\"quotas\":[]}",
		"{\"name\":\"x\",\"blocked\":1}", "{\"name\":\"x\",\"quotas\":{\"memoryMB\":1000000001}}"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cleanup_reply struct reply refused = world_admin(world, "POST", "/admin/teams", bad[i]);
		assert_int_equal(refused.status, 400);
	}
	cleanup_reply struct reply twice = world_admin(world, "POST", "/admin/teams", "{\"name\":\"a\"}");
	assert_int_equal(twice.status, 409);
	cleanup_reply struct reply taken = world_admin(world, "PATCH", target, "{\"name\":\"default\"}");
	assert_int_equal(taken.status, 409);
	cleanup_reply struct reply changed = world_admin(world, "PATCH", target, "{\"name\":\"a2\",\"quotas\":{\"sandboxes\":null,\"memoryMB\":0}}");
	assert_int_equal(changed.status, 200);
	assert_string_equal(reply_text(&changed, "name"), "a2");
	assert_true(json_is_null(json_object_get(json_object_get(changed.json, "quotas"), "sandboxes")));
	assert_true(json_is_integer(json_object_get(json_object_get(changed.json, "quotas"), "memoryMB")));
	assert_true(json_is_null(json_object_get(json_object_get(changed.json, "limits"), "memoryMB")));
	/* Public clients know nothing of this. */
	assert_int_equal(status_of(&a, "GET", "/admin/teams", NULL), 404);
	assert_int_equal(status_of(&a, "PATCH", target, "{}"), 404);

	assert_int_equal(create_as(&a), 201);
	cleanup_reply struct reply blocked = world_admin(world, "PATCH", target, "{\"blocked\":true}");
	assert_int_equal(blocked.status, 200);
	assert_int_equal(status_of(&a, "GET", "/v2/sandboxes", NULL), 403);
	assert_int_equal(create_as(&a), 403);
	assert_true(world_find(world, newest())->alive);
	cleanup_reply struct reply busy = world_admin(world, "DELETE", target, NULL);
	assert_int_equal(busy.status, 409);

	/* All of it is in the file. */
	struct api_config c = {.loop = world->loop, .workq = world->workq, .options = &world->options, .index = world->index, .node = world->client,
		.directory = world->directory};
	api_free(world->api);
	assert_int_equal(api_new(&c, &world->api, NULL), 0);
	assert_int_equal(create_as(&a), 403);
	cleanup_reply struct reply free_again = world_admin(world, "PATCH", target, "{\"blocked\":false}");
	assert_int_equal(free_again.status, 200);
	assert_string_equal(reply_text(&free_again, "name"), "a2");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(free_again.json, "quotas"), "memoryMB")), 0);

	world_end(world, newest(), "killed", NULL, clock_realtime());
	cleanup_reply struct reply gone = world_admin(world, "DELETE", target, NULL);
	assert_int_equal(gone.status, 204);
	assert_int_equal(status_of(&a, "GET", "/v2/sandboxes", NULL), 401);
	cleanup_reply struct reply again = world_admin(world, "DELETE", target, NULL);
	assert_int_equal(again.status, 404);
	cleanup_reply struct reply first = world_admin(world, "DELETE", "/admin/teams/default", NULL);
	assert_int_equal(first.status, 409);
	cleanup_reply struct reply list = world_admin(world, "GET", "/admin/teams", NULL);
	assert_int_equal(json_array_size(list.json), 1);
	api_free(world->api);
	assert_int_equal(api_new(&c, &world->api, NULL), 0);
	assert_int_equal(status_of(&a, "GET", "/v2/sandboxes", NULL), 401);
	assert_int_equal(status_of(NULL, "GET", "/v2/sandboxes", NULL), 200);
}

/* A refusal is 429, names the quota, and says when to come again in whole seconds (e2b.md A.3). */
static void is_refusal(const struct reply *r, const char *quota)
{
	uint64_t seconds;
	assert_int_equal(r->status, 429);
	assert_int_equal(json_integer_value(json_object_get(r->json, "code")), 429);
	if (!strstr(reply_text(r, "message"), quota))
		fail_msg("'%s' does not name '%s'", reply_text(r, "message"), quota);
	assert_int_equal(str_to_u64(reply_header(r, "retry-after"), &seconds), 0);
	assert_true(seconds >= 1);
}

static void check_refusal(const struct member *m, const char *quota)
{
	cleanup_reply struct reply r = world_ask(world, "POST", "/sandboxes", m->header, "{\"templateID\":\"base\"}");
	is_refusal(&r, quota);
}

static void a_team_over_its_quota_gets_429(void **state)
{
	struct member a = member_new("a", "{\"sandboxes\":2}"), b = member_new("b", "{\"memoryMB\":1100}"), c = member_new("c", NULL);
	assert_int_equal(create_as(&a), 201);
	assert_int_equal(create_as(&a), 201);
	check_refusal(&a, "quota sandboxes");
	/* The fake template has 512 MiB. */
	assert_int_equal(create_as(&b), 201);
	assert_int_equal(create_as(&b), 201);
	check_refusal(&b, "quota memory");
	/* The server's option counts for who has no limit of its own, also when it has none: 0. */
	world->options.quota_sandboxes = 1;
	assert_int_equal(create_as(&c), 201);
	check_refusal(&c, "quota sandboxes");
	char target[128];
	snprintf(target, sizeof(target), "/admin/teams/%s", c.team);
	cleanup_reply struct reply more = world_admin(world, "PATCH", target, "{\"quotas\":{\"sandboxes\":0}}");
	assert_int_equal(more.status, 200);
	assert_int_equal(create_as(&c), 201);
	world->options.quota_sandboxes = 0;
	/* One that ended makes room, one that is paused too; one that is being paused does not yet. */
	struct fake_sandbox *last = world_find(world, newest());
	world->options.quota_sandboxes = 2;
	cleanup_reply struct reply servers = world_admin(world, "PATCH", target, "{\"quotas\":{\"sandboxes\":null}}");
	assert_int_equal(servers.status, 200);
	check_refusal(&c, "quota sandboxes");
	last->state = SANDBOX_PAUSING;
	world_event(world, last);
	world_turn(world);
	check_refusal(&c, "quota sandboxes");
	last->state = SANDBOX_PAUSED;
	world_event(world, last);
	world_turn(world);
	assert_int_equal(create_as(&c), 201);
	check_refusal(&c, "quota sandboxes");
	world_end(world, newest(), "timeout", NULL, clock_realtime());
	assert_int_equal(create_as(&c), 201);
}

static void creates_in_flight_count(void **state)
{
	enum { N = 100, LIMIT = 10 };
	struct member a = member_new("a", "{\"sandboxes\":10}");
	int fds[N];
	/* The node tells of each sandbox, and answers later: each counts once all the time. */
	world->hold = true;
	for (int i = 0; i < N; i++) {
		static const char body[] = "{\"templateID\":\"base\"}";
		char text[512];
		fds[i] = world_open(world, false);
		int n = snprintf(text, sizeof(text), "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s", a.header, strlen(body), body);
		assert_true(write(fds[i], text, (size_t)n) == n);
		if (i == LIMIT - 2)
			world_turn(world);
	}
	world_turn(world);
	world_release(world);
	int made = 0, refused = 0;
	for (int i = 0; i < N; i++) {
		cleanup_reply struct reply r = world_send(world, fds[i], STR(""));
		made += r.status == 201;
		refused += r.status == 429;
		close(fds[i]);
	}
	assert_int_equal(made, LIMIT);
	assert_int_equal(refused, N - LIMIT);
	assert_int_equal(world->n_sandboxes, LIMIT);
}

static void a_create_counts_until_the_node_has_answered(void **state)
{
	struct member a = member_new("a", "{\"sandboxes\":1}"), b = member_new("b", "{\"sandboxes\":2}");
	char text[512];
	/* The client leaves, the create goes on. */
	world->silent = true;
	int fd = world_open(world, false);
	int n = snprintf(text, sizeof(text), "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n%sContent-Length: 21\r\n\r\n{\"templateID\":\"base\"}", a.header);
	assert_true(write(fd, text, (size_t)n) == n);
	world_turn(world);
	close(fd);
	world_turn(world);
	check_refusal(&a, "quota sandboxes");
	cleanup_reply struct reply busy = world_admin(world, "DELETE", "/admin/teams/a", NULL);
	assert_int_equal(busy.status, 409);
	/* A later one that is there before it changes nothing of that. */
	world->silent = true;
	fd = world_open(world, false);
	n = snprintf(text, sizeof(text), "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n%sContent-Length: 21\r\n\r\n{\"templateID\":\"base\"}", b.header);
	assert_true(write(fd, text, (size_t)n) == n);
	world_turn(world);
	assert_int_equal(create_as(&b), 201);
	check_refusal(&b, "quota sandboxes");
	close(fd);
	/* With its node the question is gone, and the next snapshot says what there is. */
	world_lose_node(world);
	assert_int_equal(create_as(&a), 503);
	world_connect_node(world);
	assert_int_equal(create_as(&a), 201);
	check_refusal(&a, "quota sandboxes");
	/* A create that failed counts for nothing. */
	world_end(world, newest(), "killed", NULL, clock_realtime());
	world->refuse = (struct error){.code = -ENOSPC, .status = 507, .message = "full"};
	assert_int_equal(create_as(&a), 507);
	assert_int_equal(create_as(&a), 201);
	check_refusal(&a, "quota sandboxes");
}

static void forks_count_for_each_child(void **state)
{
	struct member a = member_new("a", "{\"sandboxes\":4}"), b = member_new("b", "{\"creates\":2}");
	char target[64];
	assert_int_equal(create_as(&a), 201);
	snprintf(target, sizeof(target), "/sandboxes/%s/fork", newest());
	/* Whole or not at all. */
	size_t before = world->n_sandboxes;
	assert_int_equal(status_of(&a, "POST", target, "{\"count\":4}"), 429);
	assert_int_equal(world->n_sandboxes, before);
	/* What comes to nothing takes no place. */
	world->forks_fail = 2;
	assert_int_equal(status_of(&a, "POST", target, "{\"count\":3}"), 201);
	assert_int_equal(create_as(&a), 201);
	assert_int_equal(create_as(&a), 201);
	check_refusal(&a, "quota sandboxes");
	assert_int_equal(status_of(&a, "POST", target, NULL), 429);
	/* In time a big fork is let through and paid for afterwards. */
	assert_int_equal(create_as(&b), 201);
	snprintf(target, sizeof(target), "/sandboxes/%s/fork", newest());
	assert_int_equal(status_of(&b, "POST", target, "{\"count\":100}"), 201);
	cleanup_reply struct reply r = world_ask(world, "POST", target, b.header, "{\"count\":1}");
	uint64_t seconds;
	assert_int_equal(r.status, 429);
	assert_int_equal(str_to_u64(reply_header(&r, "retry-after"), &seconds), 0);
	assert_in_range(seconds, 20, 51);
}

static void a_resume_needs_room_again(void **state)
{
	struct member a = member_new("a", "{\"sandboxes\":1,\"creates\":1000}");
	char pause[64], resume[64], connect[64], first[33], text[512];
	assert_int_equal(create_as(&a), 201);
	snprintf(first, sizeof(first), "%s", newest());
	snprintf(pause, sizeof(pause), "/sandboxes/%s/pause", first);
	snprintf(resume, sizeof(resume), "/sandboxes/%s/resume", first);
	snprintf(connect, sizeof(connect), "/v2/sandboxes/%s/connect", first);
	assert_int_equal(status_of(&a, "POST", pause, NULL), 204);
	assert_int_equal(create_as(&a), 201);
	assert_int_equal(status_of(&a, "POST", resume, NULL), 429);
	assert_int_equal(status_of(&a, "POST", connect, "{}"), 429);
	assert_int_equal(world_find(world, first)->state, SANDBOX_PAUSED);
	world_end(world, newest(), "killed", NULL, clock_realtime());
	/* Several at once resume one sandbox. */
	int fds[3];
	world->slow = true;
	assert_int_equal(status_of(&a, "POST", connect, "{}"), 201);
	int pausing = world_open(world, false);
	int n = snprintf(text, sizeof(text), "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n", pause, a.header);
	assert_true(write(pausing, text, (size_t)n) == n);
	world_turn(world);
	for (size_t i = 0; i < 3; i++) {
		fds[i] = world_open(world, false);
		n = snprintf(text, sizeof(text), "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: 2\r\n\r\n{}", connect, a.header);
		assert_true(write(fds[i], text, (size_t)n) == n);
	}
	world_turn(world);
	check_refusal(&a, "quota sandboxes");
	/* The first of them leaves. */
	close(fds[0]);
	world_turn(world);
	world_settle(world);
	for (size_t i = 1; i < 3; i++) {
		cleanup_reply struct reply r = world_send(world, fds[i], STR(""));
		assert_int_equal(r.status, 201);
		close(fds[i]);
	}
	close(pausing);
	check_refusal(&a, "quota sandboxes");
	world_end(world, first, "killed", NULL, clock_realtime());
	assert_int_equal(create_as(&a), 201);
	check_refusal(&a, "quota sandboxes");
}

static void memory_that_a_paused_sandbox_keeps_counts(void **state)
{
	struct member a = member_new("a", "{\"memoryMB\":1024}");
	char first[33], target[64];
	assert_int_equal(create_as(&a), 201);
	snprintf(first, sizeof(first), "%s", newest());
	assert_int_equal(create_as(&a), 201);
	snprintf(target, sizeof(target), "/sandboxes/%s/pause", first);
	assert_int_equal(status_of(&a, "POST", target, "{\"memory\":true}"), 204);
	check_refusal(&a, "quota memory");
	/* It comes back into what it kept. */
	snprintf(target, sizeof(target), "/v2/sandboxes/%s/connect", first);
	assert_int_equal(status_of(&a, "POST", target, "{}"), 201);
	snprintf(target, sizeof(target), "/sandboxes/%s/pause", first);
	assert_int_equal(status_of(&a, "POST", target, "{\"memory\":false}"), 204);
	assert_int_equal(create_as(&a), 201);
	snprintf(target, sizeof(target), "/v2/sandboxes/%s/connect", first);
	assert_int_equal(status_of(&a, "POST", target, "{}"), 429);
}

static void creates_are_limited_in_time(void **state)
{
	struct member a = member_new("a", "{\"creates\":2}");
	int made = 0;
	bool refused = false;
	while (!refused && made < WORLD_SANDBOXES - 2) {
		cleanup_reply struct reply r = world_ask(world, "POST", "/sandboxes", a.header, "{\"templateID\":\"base\"}");
		refused = r.status != 201;
		made += !refused;
		if (refused)
			is_refusal(&r, "quota creates");
	}
	/* More only on a machine so slow that some come back meanwhile. */
	assert_true(refused && made >= 2);
	/* What is refused costs nothing, or clients that ask again would never get one. */
	int64_t patience = clock_monotonic() + 60 * NS_PER_S;
	while (create_as(&a) != 201 && clock_monotonic() < patience)
		usleep(20000);
	assert_true(clock_monotonic() < patience);
}

/* A database of before there were teams: its keys and the node's sandboxes stay with the default team. */
static void an_old_database_is_taken_over(void **state)
{
	static const char *const before[] = {keys_schema};
	char secret[KEY_SECRET + 1], path[128], header[128];
	struct key key;
	struct store *store;
	api_free(world->api);
	snprintf(path, sizeof(path), "%s/old", world->directory);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/old/front.db", world->directory);
	assert_int_equal(store_open(path, 0, before, 1, &store, NULL), 0);
	key_make(secret, &key);
	snprintf(key.name, sizeof(key.name), "old");
	snprintf(key.team, sizeof(key.team), "default");
	assert_int_equal(keys_store(store, &key, NULL), 0);
	store_free(store);
	snprintf(path, sizeof(path), "%s/old", world->directory);
	struct api_config c = {.loop = world->loop, .workq = world->workq, .options = &world->options, .index = world->index, .node = world->client,
		.directory = path};
	char id[64] = "";
	for (int i = 0; i < 2; i++) {
		assert_int_equal(api_new(&c, &world->api, NULL), 0);
		snprintf(header, sizeof(header), "X-API-KEY: %s\r\n", secret);
		cleanup_reply struct reply made = world_ask(world, "POST", "/v2/sandboxes", header, "{\"templateID\":\"base\"}");
		assert_int_equal(made.status, 201);
		assert_string_equal(world_find(world, newest())->team, "default");
		cleanup_reply struct reply teams = world_ask(world, "GET", "/teams", header, NULL);
		const char *given = json_string_value(json_object_get(json_array_get(teams.json, 0), "teamID"));
		assert_int_equal(strlen(given), 36);
		for (size_t k = 0; k < 36; k++)
			assert_true(k == 8 || k == 13 || k == 18 || k == 23 ? given[k] == '-' : strchr("0123456789abcdef", given[k]) != NULL);
		assert_true(given[14] == '4' && strchr("89ab", given[19]));
		if (i)
			assert_string_equal(given, id);
		snprintf(id, sizeof(id), "%s", given);
		if (!i)
			api_free(world->api);
	}
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	log_setup("test", 2, LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(every_route_of_a_sandbox_is_404_for_another_team),
		T(every_route_of_a_snapshot_is_404_for_another_team),
		T(every_route_of_a_template_is_404_for_another_team),
		T(lists_show_only_the_own_team),
		T(keys_serve_their_team),
		T(teams_are_changed_blocked_and_deleted),
		T(a_team_over_its_quota_gets_429),
		T(creates_in_flight_count),
		T(a_create_counts_until_the_node_has_answered),
		T(forks_count_for_each_child),
		T(a_resume_needs_room_again),
		T(memory_that_a_paused_sandbox_keeps_counts),
		T(creates_are_limited_in_time),
		T(an_old_database_is_taken_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
