#include "api/routes.h"
#include "api/handlers.h"
#include "base/cleanup.h"
#include "io/url.h"

#include <errno.h>

#define R(method, pattern, flags, handler, doc) {method, pattern, flags, handler, doc},
#define LATER(method, pattern, doc) {method, pattern, ROUTE_LATER, handle_later, doc},

/* Literal segments stand before parameters where both match. */
const struct route api_routes[] = {
	R("GET", "/health", ROUTE_PUBLIC, handle_health, "Whether the server answers, and how many sandboxes run.")
	/* sandboxes */
	R("POST", "/sandboxes", ROUTE_BODY, handle_create, "Creates a sandbox; an envd token only when `secure` asks for one.")
	R("POST", "/v2/sandboxes", ROUTE_BODY, handle_create_v2, "Creates a secured sandbox.")
	R("GET", "/sandboxes", 0, handle_list, "Lists the running sandboxes.")
	R("GET", "/v2/sandboxes", 0, handle_list_v2, "Lists sandboxes: filters, order, pages.")
	R("GET", "/sandboxes/metrics", 0, handle_metrics_of_several, "The newest metrics of several sandboxes.")
	R("GET", "/sandboxes/{sandboxID}", 0, handle_get, "One sandbox; for 24 hours after its end the 404 says how it ended.")
	R("DELETE", "/sandboxes/{sandboxID}", 0, handle_kill, "Kills a sandbox.")
	R("POST", "/sandboxes/{sandboxID}/connect", ROUTE_BODY, handle_connect, "Gives access to a sandbox: resumes a paused one, extends the deadline of a running one.")
	R("POST", "/v2/sandboxes/{sandboxID}/connect", ROUTE_BODY, handle_connect, "Gives access to a sandbox: resumes a paused one, extends the deadline of a running one.")
	R("POST", "/sandboxes/{sandboxID}/timeout", ROUTE_BODY, handle_timeout, "Sets the deadline.")
	R("POST", "/sandboxes/{sandboxID}/refreshes", ROUTE_BODY, handle_refresh, "Extends the deadline.")
	R("POST", "/sandboxes/{sandboxID}/resume", ROUTE_BODY, handle_resume, "Resumes a paused sandbox.")
	R("POST", "/sandboxes/{sandboxID}/pause", ROUTE_BODY, handle_pause, "Pauses a sandbox: frozen, or with `memory: false` kept as a disk only.")
	R("POST", "/sandboxes/{sandboxID}/fork", ROUTE_BODY, handle_fork, "Makes sandboxes that go on from the file system of a running one.")
	R("POST", "/sandboxes/{sandboxID}/snapshots", ROUTE_BODY, handle_snapshot, "Makes a snapshot of a running sandbox's file system.")
	R("POST", "/sandboxes/{sandboxID}/rollback", ROUTE_BODY, handle_rollback, "Takes a sandbox back to a snapshot.")
	R("PUT", "/sandboxes/{sandboxID}/network", ROUTE_BODY, handle_network, "Replaces the egress policy.")
	R("GET", "/sandboxes/{sandboxID}/metrics", 0, handle_metrics, "Metrics of a sandbox over time.")
	R("GET", "/sandboxes/{sandboxID}/logs", 0, handle_logs, "Log of a sandbox, for 24 hours after its end too.")
	R("GET", "/v2/sandboxes/{sandboxID}/logs", 0, handle_logs_v2, "Log of a sandbox: direction, level, search.")
	LATER("GET", "/sandboxes/{sandboxID}/terminal", "A terminal over a WebSocket.")
	R("GET", "/snapshots", 0, handle_snapshots, "Lists the snapshots, the newest first: filters, pages.")
	/* templates */
	R("GET", "/templates", 0, handle_templates, "Lists the templates.")
	R("GET", "/templates/aliases/{alias}", 0, handle_template_alias, "Which template an alias means.")
	R("GET", "/templates/compat", 0, handle_compat, "Whether templates fit the machine.")
	R("POST", "/templates/compat/{templateID}/adopt-baseline", 0, handle_compat_adopt, "Takes a template's components as the base line; here nothing can differ.")
	R("POST", "/templates/tags", ROUTE_BODY, handle_tags_assign, "Gives tags to a build of a template.")
	R("DELETE", "/templates/tags", ROUTE_BODY, handle_tags_remove, "Takes tags away.")
	R("GET", "/templates/{templateID}", 0, handle_template, "One template, by id or alias.")
	R("POST", "/templates", ROUTE_BODY, handle_cube_make, "Makes a template from an image and starts its build (Cube).")
	R("POST", "/v2/templates", ROUTE_BODY, handle_template_make_v2, "Makes a template and a build that waits (older clients).")
	R("POST", "/v3/templates", ROUTE_BODY, handle_template_make, "Makes a template, or finds it by its name, and a build that waits.")
	R("GET", "/v2/templates", 0, handle_templates_v2, "Lists the templates, by pages.")
	R("PATCH", "/v2/templates/{templateID}", ROUTE_BODY, handle_template_change, "Lets other teams use a template, or not.")
	R("POST", "/templates/{templateID}", ROUTE_BODY, handle_cube_rebuild, "Builds a template again (Cube).")
	R("PATCH", "/templates/{templateID}", ROUTE_BODY, handle_template_change, "Lets other teams use a template, or not (older clients).")
	R("DELETE", "/templates/{templateID}", 0, handle_template_delete, "Deletes a template, one tag of it, or a snapshot.")
	R("PUT", "/templates/{templateID}/alias", ROUTE_BODY, handle_cube_alias, "Gives a template its name, or takes it away (Cube).")
	R("GET", "/templates/{templateID}/description", 0, handle_template_description, "What a template is: layers, user, variables, services, how it gets ready.")
	R("GET", "/templates/{templateID}/tags", 0, handle_tags, "Lists the tags of a template.")
	R("GET", "/templates/{templateID}/tags/exists", 0, handle_tag_exists, "Whether a template has a tag.")
	R("GET", "/templates/{templateID}/tags/count", 0, handle_tag_count, "How many tags a template has.")
	LATER("GET", "/templates/{templateID}/tags/groups", "The tags of a template, by build.")
	LATER("GET", "/templates/{templateID}/tags/{tag}/assignments", "What a tag meant over time.")
	R("GET", "/default-templates", 0, handle_default_templates, "Lists the templates that every team has.")
	R("GET", "/templates/{templateID}/files/{hash}", 0, handle_upload_link, "Where to send the files of a build step, and whether they are there.")
	R("PUT", "/templates/{templateID}/files/{hash}", ROUTE_PUBLIC, handle_upload, "Takes the files of a build step; the link is the permission.")
	R("POST", "/templates/{templateID}/builds/{buildID}", ROUTE_BODY, handle_cube_rebuild, "Builds a template again (Cube).")
	R("POST", "/v2/templates/{templateID}/builds/{buildID}", ROUTE_BODY, handle_build_start, "Starts a build.")
	R("GET", "/templates/{templateID}/builds/{buildID}/status", 0, handle_build_status, "State of a build, and its log from an offset on.")
	R("GET", "/templates/{templateID}/builds/{buildID}/logs", 0, handle_build_log, "Log of a build.")
	/* ready pools */
	R("GET", "/pools", 0, handle_pools, "Lists the ready pools: bounds, what is ready, what they were good for.")
	R("PUT", "/pools/{template}", ROUTE_BODY, handle_pool_set, "Sets how many sandboxes of a template are kept ready.")
	R("DELETE", "/pools/{template}", 0, handle_pool_unset, "Gives a pool back to the server's defaults.")
	/* teams, keys, secrets, volumes, machines */
	R("GET", "/teams", 0, handle_own_teams, "The team of the calling key.")
	LATER("GET", "/teams/{teamID}/metrics", "Metrics of a team.")
	LATER("GET", "/teams/{teamID}/metrics/max", "Largest metric of a team.")
	R("GET", "/api-keys", 0, handle_keys, "Lists the keys of the team.")
	R("POST", "/api-keys", ROUTE_BODY, handle_key_create, "Makes a key; the answer shows it once.")
	R("PATCH", "/api-keys/{keyID}", ROUTE_BODY, handle_key_rename, "Renames a key.")
	R("DELETE", "/api-keys/{keyID}", 0, handle_key_revoke, "Revokes a key.")
	LATER("POST", "/access-tokens", "Makes an access token.")
	LATER("DELETE", "/access-tokens/{tokenID}", "Revokes an access token.")
	LATER("GET", "/secrets", "Lists the secrets.")
	LATER("POST", "/secrets", "Stores a secret.")
	LATER("GET", "/secrets/{secretID}", "One secret, without its value.")
	LATER("POST", "/secrets/{secretID}", "Gives a secret a new value.")
	LATER("DELETE", "/secrets/{secretID}", "Deletes a secret.")
	LATER("GET", "/volumes", "Lists the volumes.")
	LATER("POST", "/volumes", "Makes a volume.")
	LATER("GET", "/volumes/{volumeID}", "One volume.")
	LATER("DELETE", "/volumes/{volumeID}", "Deletes a volume.")
	LATER("GET", "/volumecontent/{volumeID}/dir", "Lists a directory of a volume.")
	LATER("POST", "/volumecontent/{volumeID}/dir", "Makes a directory in a volume.")
	LATER("GET", "/volumecontent/{volumeID}/path", "What stands at a path of a volume.")
	LATER("PATCH", "/volumecontent/{volumeID}/path", "Changes owner and mode in a volume.")
	LATER("DELETE", "/volumecontent/{volumeID}/path", "Deletes a path of a volume.")
	LATER("GET", "/volumecontent/{volumeID}/file", "Reads a file of a volume.")
	LATER("PUT", "/volumecontent/{volumeID}/file", "Writes a file of a volume.")
	LATER("GET", "/nodes", "Lists the machines.")
	R("GET", "/metrics", ROUTE_PUBLIC, handle_no_prometheus, "Metrics of the server: on a listener of their own.")
	/* the admin socket */
	R("GET", "/admin/keys", ROUTE_ADMIN, handle_keys, "Lists the keys.")
	R("POST", "/admin/keys", ROUTE_ADMIN | ROUTE_BODY, handle_key_create, "Makes a key; the answer shows it once.")
	R("DELETE", "/admin/keys/{keyID}", ROUTE_ADMIN, handle_key_revoke, "Revokes a key.")
	R("GET", "/admin/teams", ROUTE_ADMIN, handle_teams, "Lists the teams, their limits and what they use.")
	R("POST", "/admin/teams", ROUTE_ADMIN | ROUTE_BODY, handle_team_create, "Makes a team.")
	R("PATCH", "/admin/teams/{teamID}", ROUTE_ADMIN | ROUTE_BODY, handle_team_change, "Changes name, limits or blocking of a team.")
	R("DELETE", "/admin/teams/{teamID}", ROUTE_ADMIN, handle_team_delete, "Deletes a team without sandboxes, and its keys.")
	R("POST", "/admin/reload-certificates", ROUTE_ADMIN, handle_reload_certificates, "Reads the certificates of listen.tls again.")
	R("POST", "/admin/collect-images", ROUTE_ADMIN | ROUTE_BODY, handle_collect_images, "Removes images and layers that nothing uses; with `dryRun` only shows them.")
	R("POST", "/admin/reload-templates", ROUTE_ADMIN, handle_reload_templates, "Reads the templates of this machine again.")
};
const size_t api_n_routes = ARRAY_SIZE(api_routes);

enum { MAX_SEGMENTS = 8 };

/* Takes the next segment off "/a/b": false at the end. */
static bool next_segment(struct str *rest, struct str *ret)
{
	if (!rest->n || rest->p[0] != '/')
		return false;
	struct str tail = str_from(*rest, 1);
	ptrdiff_t at = str_chr(tail, '/');
	*ret = at < 0 ? tail : str_n(tail.p, (size_t)at);
	*rest = str_from(tail, ret->n);
	return true;
}

/* Decoded segments of a path into `to`, and their number: -ENOENT when there are too many or one is empty. */
static int split(struct str path, struct buf *storage, struct str *to)
{
	size_t ends[MAX_SEGMENTS], n = 0;
	struct str rest = path, segment;
	while (next_segment(&rest, &segment)) {
		if (n == MAX_SEGMENTS || !segment.n)
			return -ENOENT;
		int r = url_decode(storage, segment, false);
		if (r < 0)
			return r;
		ends[n++] = buf_len(storage);
	}
	if (str_chr(buf_str(storage), 0) >= 0)
		return -EINVAL;
	/* Only now the storage has stopped moving. */
	size_t start = 0;
	for (size_t i = 0; i < n; i++) {
		to[i] = str_n(buf_str(storage).p + start, ends[i] - start);
		start = ends[i];
	}
	return (int)n;
}

static bool fits(const struct route *route, const struct str *segments, size_t n, struct route_match *m)
{
	struct str rest = str_of(route->pattern), part;
	size_t i = 0, params = 0;
	while (next_segment(&rest, &part)) {
		if (i == n)
			return false;
		if (part.p[0] == '{')
			m->params[params++] = segments[i];
		else if (!str_eq(part, segments[i]))
			return false;
		i++;
	}
	m->n_params = params;
	return i == n;
}

static void allow(struct route_match *m, const char *method)
{
	struct str all = str_of(m->allow);
	if (all.n + 2 + strlen(method) < sizeof(m->allow) && !strstr(m->allow, method)) {
		if (all.n)
			strcat(m->allow, ", ");
		strcat(m->allow, method);
	}
}

int route_find(struct str method, struct str path, bool admin, struct buf *storage, struct route_match *ret)
{
	struct str segments[MAX_SEGMENTS];
	int n = split(path, storage, segments);
	if (n < 0)
		return n;
	struct str wanted = str_is(method, "HEAD") ? STR("GET") : method;
	struct route_match m = {0}, found = {0};
	for (size_t i = 0; i < api_n_routes; i++) {
		const struct route *route = &api_routes[i];
		if (((route->flags & ROUTE_ADMIN) && !admin) || !fits(route, segments, (size_t)n, &m))
			continue;
		allow(&m, route->method);
		if (str_is(STR("GET"), route->method))
			allow(&m, "HEAD");
		if (!found.route && str_is(wanted, route->method)) {
			found = m;
			found.route = route;
		}
	}
	if (!m.allow[0])
		return -ENOENT;
	allow(&m, "OPTIONS");
	if (!found.route) {
		memcpy(ret->allow, m.allow, sizeof(m.allow));
		return -EPERM;
	}
	*ret = found;
	memcpy(ret->allow, m.allow, sizeof(m.allow));
	return 0;
}
