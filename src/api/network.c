#include "api/network.h"
#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"
#include "network/reach.h"

#include <errno.h>
#include <stdio.h>

void network_args_done(struct network_args *a)
{
	buf_done(&a->allow_out);
	buf_done(&a->deny_out);
}

/* `prefix` says where the fields stand, in errors: "network." or "". */
static int not_served(struct error *err, const char *prefix, const char *field)
{
	return error_set(err, -EOPNOTSUPP, 501, "%s%s is not implemented by this server", prefix, field);
}

static int of_network(const char *prefix, int r, struct error *err)
{
	return r < 0 && *prefix ? error_wrap(err, r, "network") : r;
}

static int take_entry(struct str entry, bool allow, const char *field, struct buf *to, struct error *err)
{
	struct ipv4_range range;
	enum reach_kind kind = reach_parse(entry, &range);
	if (kind == REACH_NAME && allow)
		return error_set(err, -EOPNOTSUPP, 501, "%s: \"%.*s\": domains are not implemented by this server, addresses and CIDR blocks are", field, STR_FMT(entry));
	if (kind == REACH_IPV6 && allow)
		return error_set(err, -EINVAL, 400, "%s: invalid allowed address \"%.*s\": sandboxes have no IPv6", field, STR_FMT(entry));
	if (kind == REACH_BAD || kind == REACH_NAME)
		return error_set(err, -EINVAL, 400, "%s: invalid %s \"%.64s\"", field, allow ? "allowed address" : "denied CIDR", entry.n ? entry.p : "");
	return msg_list_add(to, entry) < 0 ? error_errno(err, -ENOMEM, "%s", field) : 0;
}

/* Entries as they are shown later. */
static int parse_list(const json_t *j, const char *prefix, const char *name, const char *alias, bool allow, struct buf *to, struct error *err)
{
	json_t *list;
	int r = field_array(j, name, alias, &list, err);
	if (r <= 0)
		return of_network(prefix, r, err);
	size_t n = json_array_size(list);
	if (n > REACH_ENTRIES_MAX)
		return error_set(err, -EINVAL, 400, "%s%s: more than %d entries", prefix, name, REACH_ENTRIES_MAX);
	for (size_t i = 0; i < n; i++) {
		const json_t *item = json_array_get(list, i);
		char field[64];
		snprintf(field, sizeof(field), "%s%s[%zu]", prefix, name, i);
		if (!json_is_string(item))
			return error_set(err, -EINVAL, 400, "%s must be a string", field);
		r = take_entry(json_str(item), allow, field, to, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* What clients know, and later versions serve. Empty ones ask for nothing. */
static int refuse_rest(const json_t *j, const char *prefix, struct error *err)
{
	static const char *const objects[][2] = {{"egressProxy", "egress_proxy"}, {"maskRequestHost", "mask_request_host"}};
	json_t *value;
	int r;
	for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
		if ((r = field_any(j, objects[i][0], objects[i][1], &value, err)) != 0)
			return r < 0 ? of_network(prefix, r, err) : not_served(err, prefix, objects[i][0]);
	/* E2B's rules are an object by domain, Cube's an array. */
	if (field_any(j, "rules", NULL, &value, err) > 0) {
		if (!json_is_object(value) && !json_is_array(value))
			return error_set(err, -EINVAL, 400, "%srules must be an object or an array", prefix);
		if (json_object_size(value) + json_array_size(value))
			return not_served(err, prefix, "rules");
	}
	r = field_array(j, "httpsPorts", "https_ports", &value, err);
	if (r != 0 && (r < 0 || json_array_size(value)))
		return r < 0 ? of_network(prefix, r, err) : not_served(err, prefix, "httpsPorts");
	/* Empty means "none may be reached", so that is not the same as absent. */
	r = field_array(j, "dnsServers", "dns_servers", &value, err);
	return r > 0 ? not_served(err, prefix, "dnsServers") : of_network(prefix, r, err);
}

static int parse_fields(const json_t *j, const char *prefix, struct network_args *a, struct error *err)
{
	int r = field_bool(j, "allowPublicTraffic", "allow_public_traffic", &a->public_traffic, err);
	if (r < 0)
		return of_network(prefix, r, err);
	a->has_public_traffic = r > 0;
	r = parse_list(j, prefix, "allowOut", "allow_out", true, &a->allow_out, err);
	if (r == 0)
		r = parse_list(j, prefix, "denyOut", "deny_out", false, &a->deny_out, err);
	return r < 0 ? r : refuse_rest(j, prefix, err);
}

static int parse_internet(const json_t *body, struct network_args *a, struct error *err)
{
	int r = field_bool(body, "allow_internet_access", "allowInternetAccess", &a->internet, err);
	a->has_internet = r > 0;
	return r < 0 ? r : 0;
}

int network_parse_create(const json_t *body, struct network_args *a, struct error *err)
{
	json_t *network;
	*a = (struct network_args){.public_traffic = true};
	int r = field_object(body, "network", NULL, &network, err);
	if (r > 0)
		r = parse_fields(network, "network.", a, err);
	return r < 0 ? r : parse_internet(body, a, err);
}

int network_parse_update(const json_t *body, struct network_args *a, struct error *err)
{
	*a = (struct network_args){.public_traffic = true};
	int r = parse_fields(body, "", a, err);
	return r < 0 ? r : parse_internet(body, a, err);
}

void handle_network(struct api_request *r)
{
	cleanup_network_args struct network_args args = {0};
	struct error err = {0};
	if (network_parse_update(r->body, &args, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	if (!index_is_running(s)) {
		api_failf(r, 409, "Sandbox \"%s\" is not running", r->sandbox);
		return;
	}
	if (args.has_public_traffic && args.public_traffic != (s->traffic_token.n == 0)) {
		api_failf(r, 501, "allowPublicTraffic: changing it is not implemented by this server");
		return;
	}
	struct msg_network m = {.sandbox = str_of(r->sandbox), .allow_out = {buf_str(&args.allow_out)}, .deny_out = {buf_str(&args.deny_out)}};
	msg_set(&m, network, request, str_of(r->id));
	if (args.has_internet)
		msg_set(&m, network, internet, args.internet);
	api_wait(r, node_network(r->api->config.node, &m, api_done_empty, r, &err), &err);
}
