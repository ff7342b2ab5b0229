#include "api/create.h"
#include "api/handlers.h"
#include "api/request.h"
#include "api/sandbox_json.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>

static void answer_access(struct api_request *r, int status)
{
	const struct index_sandbox *s = index_find(r->api->config.index, str_of(r->sandbox));
	if (!s) {
		api_sandbox_not_found(r);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	sandbox_access(&o, s, r->api->config.options);
	api_answer(r, status, &body);
}

static void created(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err) {
		api_fail(r, a->err);
		return;
	}
	snprintf(r->sandbox, sizeof(r->sandbox), "%.*s", STR_FMT(a->body->sandbox.id));
	if (index_find(r->api->config.index, str_of(r->sandbox)))
		answer_access(r, 201);
	else
		api_failf(r, 500, "sandbox %s ended while it was created", r->sandbox);
}

static void create(struct api_request *r, bool v2)
{
	cleanup_create_args struct create_args args = {0};
	struct error err = {0};
	if (http_find(r->http->head, "idempotency-key")) {
		api_failf(r, 501, "Idempotency-Key is not implemented by this server");
		return;
	}
	if (create_parse(r->body, v2, r->api->config.options, &args, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	if (!api_index_ready(r))
		return;
	const struct index_template *t = index_template_find(r->api->config.index, str_of(args.template.name));
	if (!t) {
		api_failf(r, 404, "template '%s' not found", args.template.name);
		return;
	}
	if (args.template.tag[0]) {
		api_failf(r, 404, "template '%s' with tag '%s' not found", args.template.name, args.template.tag);
		return;
	}
	struct quota_lease *lease;
	if (quota_take(r->api->quota, r->team, 1, t->memory_mb, &lease, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_create m = {.template = t->id, .team = r->team, .timeout = args.timeout, .secure = args.secure,
		.public_traffic = args.network.public_traffic, .metadata = {buf_str(&args.metadata)}, .envs = {buf_str(&args.envs)}};
	msg_set(&m, create, request, str_of(r->id));
	if (args.network.has_internet)
		msg_set(&m, create, internet, args.network.internet);
	if (buf_len(&args.network.allow_out))
		msg_set(&m, create, allow_out, (struct msg_list){buf_str(&args.network.allow_out)});
	if (buf_len(&args.network.deny_out))
		msg_set(&m, create, deny_out, (struct msg_list){buf_str(&args.network.deny_out)});
	api_wait(r, quota_hold(lease, node_create(r->api->config.node, &m, created, r, &err)), &err);
}

void handle_create(struct api_request *r)
{
	create(r, false);
}

void handle_create_v2(struct api_request *r)
{
	create(r, true);
}

/* Answers of calls that bring nothing. */
static void done_empty(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err)
		api_fail_call(r, a->err);
	else
		api_answer_empty(r);
}

static void connected(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err)
		api_fail_call(r, a->err);
	else
		answer_access(r, 200);
}

static void set_timeout(struct api_request *r, enum timeout_mode mode, int64_t seconds, node_done_fn *done)
{
	struct error err = {0};
	struct msg_timeout m = {.sandbox = str_of(r->sandbox), .mode = mode, .timeout = seconds};
	msg_set(&m, timeout, request, str_of(r->id));
	api_wait(r, node_timeout(r->api->config.node, &m, done, r, &err), &err);
}

void handle_connect(struct api_request *r)
{
	struct error err = {0};
	int64_t seconds;
	bool memory = true;
	int e = decode_timeout(r->body, TIMEOUT_OF_CONNECT, r->api->config.options, &seconds, &err);
	if (e >= 0)
		e = field_bool(r->body, "memory", NULL, &memory, &err);
	if (e >= 0 && !memory)
		e = error_set(&err, -EOPNOTSUPP, 400, "memory: false is not supported: sandboxes keep their memory");
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	const struct index_sandbox *s = api_sandbox(r, true);
	if (!s)
		return;
	if (s->state == SANDBOX_KILLING)
		api_failf(r, 409, "Sandbox \"%s\" is being killed", r->sandbox);
	else if (index_is_paused(s))
		api_failf(r, 501, "resuming a paused sandbox is not implemented by this server");
	else if (!index_is_running(s))
		api_sandbox_not_found(r);
	else if (seconds == 0)
		answer_access(r, 200); /* asks for no time: nothing changes */
	else
		set_timeout(r, TIMEOUT_CONNECT, seconds, connected);
}

void handle_resume(struct api_request *r)
{
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	if (index_is_running(s))
		api_failf(r, 409, "Sandbox %s is already running", r->sandbox);
	else
		api_failf(r, 501, "resuming a paused sandbox is not implemented by this server");
}

void handle_kill(struct api_request *r)
{
	const struct index_sandbox *s = api_sandbox(r, true);
	if (!s)
		return;
	/* A kill joins a kill. What ended for another reason is gone for its clients, though its remains are still being cleared away. */
	const struct index_end *end = s->state == SANDBOX_KILLING ? index_end_of(r->api->config.index, s->id, clock_realtime()) : NULL;
	if (end && !str_is(end->reason, "killed")) {
		api_sandbox_not_found(r);
		return;
	}
	struct error err = {0};
	struct msg_kill m = {.sandbox = str_of(r->sandbox)};
	msg_set(&m, kill, request, str_of(r->id));
	api_wait(r, node_kill(r->api->config.node, &m, done_empty, r, &err), &err);
}

void handle_timeout(struct api_request *r)
{
	struct error err = {0};
	int64_t seconds;
	if (decode_timeout(r->body, TIMEOUT_OF_SET, r->api->config.options, &seconds, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	if (s->state == SANDBOX_PAUSED)
		api_sandbox_not_found(r);
	else
		set_timeout(r, TIMEOUT_SET, seconds, done_empty);
}

void handle_refresh(struct api_request *r)
{
	enum { SHORTEST = 15 }; /* e2b.md A.5.5 */
	struct error err = {0};
	int64_t seconds = 0, most = r->api->config.options->timeout_max;
	int e = field_int(r->body, "duration", NULL, &seconds, &err);
	if (e >= 0 && (seconds < 0 || seconds > most))
		e = error_set(&err, -EINVAL, 400, "duration must be between 0 and %lld", (long long)most);
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	const struct index_sandbox *s = api_sandbox(r, false);
	if (!s)
		return;
	if (s->state == SANDBOX_PAUSED)
		api_sandbox_not_found(r);
	else
		set_timeout(r, TIMEOUT_REFRESH, MAX(seconds, (int64_t)SHORTEST), done_empty);
}
