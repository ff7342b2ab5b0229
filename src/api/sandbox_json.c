#include "api/sandbox_json.h"
#include "api/request.h"

static void add_identity(struct out *o, const struct index_sandbox *s)
{
	out_str(o, "sandboxID", s->id);
	out_str(o, "templateID", s->template_id);
	if (s->alias.n)
		out_str(o, "alias", s->alias);
	out_str(o, "clientID", STR(API_CLIENT_ID));
	out_str(o, "envdVersion", STR(API_ENVD_VERSION));
	out_str(o, "isolation", s->isolation);
}

static void add_tokens(struct out *o, const struct index_sandbox *s, const struct options *options)
{
	if (s->envd_token.n)
		out_str(o, "envdAccessToken", s->envd_token);
	if (s->traffic_token.n)
		out_str(o, "trafficAccessToken", s->traffic_token);
	cleanup_buf struct buf domain = BUF_INIT;
	options_client_domain(options, &domain);
	if (buf_len(&domain))
		out_str(o, "domain", buf_str(&domain));
	if (s->launch.n)
		out_str(o, "launch", s->launch);
	/* What came of the memory, where a client could expect it (design.md §7). */
	if (s->resumed_from.n)
		out_str(o, "resumedFrom", s->resumed_from);
	if (s->origin.n)
		out_bool(o, "memory", false);
}

static void add_state(struct out *o, const struct index_sandbox *s)
{
	out_str(o, "state", index_is_running(s) ? STR("running") : STR("paused"));
	out_time(o, "startedAt", s->started_at);
	out_time(o, "endAt", s->end_at);
	out_int(o, "cpuCount", (int64_t)s->cpu_count);
	out_int(o, "memoryMB", (int64_t)s->memory_mb);
	out_int(o, "diskSizeMB", (int64_t)s->disk_mb);
	struct str rest = s->metadata.raw, key, value;
	if (!rest.n)
		return;
	out_open(o, "metadata", '{');
	while (msg_map_next(&rest, &key, &value))
		out_pair(o, key, value);
	out_close(o, '}');
}

static void add_lifecycle(struct out *o, const struct index_sandbox *s)
{
	out_open(o, "lifecycle", '{');
	out_bool(o, "autoResume", s->auto_resume);
	out_str(o, "onTimeout", s->auto_pause ? STR("pause") : STR("kill"));
	if (s->shutdown_at != INT64_MAX)
		out_time(o, "shutdownAt", s->shutdown_at);
	out_close(o, '}');
}

void sandbox_access(struct out *o, const char *key, const struct index_sandbox *s, const struct options *options)
{
	out_open(o, key, '{');
	add_identity(o, s);
	add_tokens(o, s, options);
	out_close(o, '}');
}

void sandbox_listed(struct out *o, const struct index_sandbox *s)
{
	out_open(o, NULL, '{');
	add_identity(o, s);
	add_state(o, s);
	if (s->shutdown_at != INT64_MAX)
		add_lifecycle(o, s);
	out_close(o, '}');
}

/* Absent when it has no entries. */
static void add_list(struct out *o, const char *name, struct msg_list list)
{
	struct str rest = list.raw, item;
	if (!rest.n)
		return;
	out_open(o, name, '[');
	while (msg_list_next(&rest, &item))
		out_str(o, NULL, item);
	out_close(o, ']');
}

void sandbox_detail(struct out *o, const struct index_sandbox *s, const struct options *options)
{
	out_open(o, NULL, '{');
	add_identity(o, s);
	add_tokens(o, s, options);
	add_state(o, s);
	if (s->has_internet)
		out_bool(o, "allowInternetAccess", s->internet);
	else
		out_null(o, "allowInternetAccess");
	out_open(o, "network", '{');
	add_list(o, "allowOut", s->allow_out);
	add_list(o, "denyOut", s->deny_out);
	out_bool(o, "allowPublicTraffic", s->traffic_token.n == 0);
	out_close(o, '}');
	/* Of one whose pause is over, as newer clients know it. */
	if (s->state == SANDBOX_PAUSED)
		out_str(o, "pauseMode", s->memory_kept ? STR("full") : STR("filesystem"));
	add_lifecycle(o, s);
	out_close(o, '}');
}
