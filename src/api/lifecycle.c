#include "api/create.h"
#include "api/handlers.h"
#include "api/idempotency.h"
#include "api/request.h"
#include "api/sandbox_json.h"
#include "api/sources.h"
#include "api/template_builds.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void answer_access(struct api_request *r, int status)
{
	const struct index_sandbox *s = index_find(r->api->config.index, str_of(r->sandbox));
	if (!s) {
		api_sandbox_not_found(r);
		return;
	}
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	sandbox_access(&o, NULL, s, r->api->config.options);
	api_answer(r, status, &body);
}

static void created(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	if (!api_called(r, a))
		return;
	snprintf(r->sandbox, sizeof(r->sandbox), "%.*s", STR_FMT(a->body->sandbox.id));
	if (index_find(r->api->config.index, str_of(r->sandbox)))
		answer_access(r, 201);
	else
		api_failf(r, 500, "sandbox %s ended while it was created", r->sandbox);
}

/* What was made by this name already; true = answered. */
static bool answer_named(struct api_request *r, const struct create_name *name)
{
	const struct index_sandbox *s;
	struct error err = {0};
	r->repeatable = name->key.n > 0;
	int e = create_name_find(r->api->config.index, r->team, name, &s, &err);
	if (e < 0) {
		api_fail(r, &err);
	} else if (e > 0) {
		snprintf(r->sandbox, sizeof(r->sandbox), "%.*s", STR_FMT(s->id));
		answer_access(r, 201);
	}
	return e != 0;
}

/* Asks the node for a sandbox. */
static void create_from(struct api_request *r, const struct create_args *args, const struct create_name *name, const struct source *from)
{
	struct error err = {0};
	struct quota_lease *lease;
	char tagged[2 * TEMPLATE_REFERENCE_MAX];
	const struct index_template *t = from->template;
	if (quota_take_create(r->api->quota, r->team, name->key, t ? t->memory_mb : from->snapshot->memory_mb, &lease, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_create m = {.template = t ? t->id : from->snapshot->id, .team = r->team, .timeout = args->timeout,
		.secure = args->secure, .public_traffic = args->network.public_traffic, .auto_pause = args->auto_pause, .auto_resume = args->auto_resume,
		.auto_pause_memory = args->auto_pause_memory, .metadata = {buf_str(&args->metadata)}, .envs = {buf_str(&args->envs)}};
	if (t && !str_is(from->build.tag, "default")) {
		snprintf(tagged, sizeof(tagged), "%.*s:%.*s", STR_FMT(t->id), STR_FMT(from->build.tag));
		m.template = str_of(tagged);
	}
	msg_set(&m, create, request, str_of(r->id));
	if (args->network.has_internet)
		msg_set(&m, create, internet, args->network.internet);
	if (buf_len(&args->network.allow_out))
		msg_set(&m, create, allow_out, (struct msg_list){buf_str(&args->network.allow_out)});
	if (buf_len(&args->network.deny_out))
		msg_set(&m, create, deny_out, (struct msg_list){buf_str(&args->network.deny_out)});
	if (args->shutdown_after)
		msg_set(&m, create, shutdown_after, args->shutdown_after);
	if (name->key.n) {
		msg_set(&m, create, idempotency, name->key);
		msg_set(&m, create, fingerprint, str_of(name->fingerprint));
	}
	api_wait(r, quota_hold(lease, node_create(r->api->config.node, &m, created, r, &err)), &err);
}

/*
 * A create of an image: the template of the image is the team's, made when it is asked for first and pinned from then on; whoever asks meanwhile waits for the same build.
 * The request waits as long as its client does; what was begun goes on when that leaves.
 */
struct image_create {
	struct template_build b;
	bool v2;
	char image[REFERENCE_TEXT_MAX];
};

static void create(struct api_request *r, bool v2);

/* A failed build's reason, in words that clients understand. */
static void image_failed(struct api_request *r, const struct error *err)
{
	const struct image_create *w = r->work;
	struct error told = *err;
	error_wrap(&told, told.code, "a template of the image %s could not be made", w->image);
	if (told.status == 404)
		api_failf(r, 404, "%s: not found", told.message);
	else
		api_fail(r, &told);
}

static void image_built(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct image_create *w = r->work;
	r->call = NULL;
	if (a->err)
		image_failed(r, a->err);
	else
		create(r, w->v2);
}

static void await_image(struct api_request *r)
{
	const struct image_create *w = r->work;
	struct error err = {0};
	struct msg_await_build m = {.team = r->team, .build = str_of(w->b.build)};
	api_wait(r, node_await_build(r->api->config.node, &m, image_built, r, &err), &err);
}

static void image_started(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	r->call = NULL;
	if (a->err)
		image_failed(r, a->err);
	else
		await_image(r);
}

static void image_made(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	struct image_create *w = r->work;
	struct error err = {0};
	r->call = NULL;
	if (a->err) {
		image_failed(r, a->err);
		return;
	}
	const struct msg_build_made *m = &a->body->build_made;
	snprintf(w->b.template, sizeof(w->b.template), "%.*s", STR_FMT(m->template));
	snprintf(w->b.build, sizeof(w->b.build), "%.*s", STR_FMT(m->build));
	if (!m->made) {
		await_image(r);
		return;
	}
	cleanup_build_args struct build_args args = {.spec = build_spec_of_image(w->image)};
	if (args.spec)
		api_wait(r, build_start(r, &w->b, &args, NULL, image_started, &err), &err);
	else
		api_failf(r, 503, "the server is out of memory");
}

static void create_of_image(struct api_request *r, bool v2, const struct create_args *args, const struct create_name *name)
{
	struct error err = {0};
	struct source from = {.template = index_template_of_image(r->api->config.index, r->team, str_of(args->image))};
	if (from.template && index_template_tag(from.template, STR(""), &from.build)) {
		create_from(r, args, name, &from);
		return;
	}
	if (r->work) {
		api_failf(r, 409, "the template of the image %s was deleted while the sandbox was created", args->image);
		return;
	}
	struct image_create *w = r->work = calloc(1, sizeof(*w));
	if (!w) {
		api_failf(r, 503, "the server is out of memory");
		return;
	}
	w->v2 = v2;
	snprintf(w->image, sizeof(w->image), "%s", args->image);
	struct template_args template = {0};
	api_wait(r, template_make(r, "image", &template, str_of(w->image), STR(""), STR(""), image_made, &err), &err);
}

static void create(struct api_request *r, bool v2)
{
	cleanup_create_args struct create_args args = {0};
	struct create_name name;
	struct error err = {0};
	if (create_name_parse(r->http->head, r->body, v2, &name, &err) < 0 || create_parse(r->body, v2, r->api->config.options, &args, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	if (!api_index_ready(r) || answer_named(r, &name))
		return;
	if (args.image[0]) {
		create_of_image(r, v2, &args, &name);
		return;
	}
	struct source from = source_find(r->api->config.index, r->team, &args.template);
	if (from.template || from.snapshot)
		create_from(r, &args, &name, &from);
	else
		source_not_found(r, &args.template);
}

void handle_create(struct api_request *r)
{
	create(r, false);
}

void handle_create_v2(struct api_request *r)
{
	create(r, true);
}

static void set_timeout(struct api_request *r, enum timeout_mode mode, int64_t seconds)
{
	struct error err = {0};
	struct msg_timeout m = {.sandbox = str_of(r->sandbox), .mode = mode, .timeout = seconds};
	msg_set(&m, timeout, request, str_of(r->id));
	api_wait(r, node_timeout(r->api->config.node, &m, api_done_empty, r, &err), &err);
}

void handle_pause(struct api_request *r)
{
	struct error err = {0};
	bool memory = true, healthy = false;
	int e = field_bool(r->body, "memory", NULL, &memory, &err);
	if (e >= 0)
		e = field_bool(r->body, "requireHealthyGuest", NULL, &healthy, &err);
	if (e >= 0 && healthy)
		e = error_set(&err, -EOPNOTSUPP, 501, "requireHealthyGuest is not implemented by this server");
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	if (!api_sandbox(r, false))
		return;
	struct msg_pause m = {.sandbox = str_of(r->sandbox), .memory = memory};
	msg_set(&m, pause, request, str_of(r->id));
	api_wait(r, node_pause(r->api->config.node, &m, api_done_empty, r, &err), &err);
}

/* Connect and resume: what they were asked for, until the node has answered. */
struct wake {
	enum resume_mode mode;
	int64_t seconds;
	bool memory;
	bool has_auto_pause, auto_pause;
	char generation[33]; /* that the sandbox had before */
};

static void resumed(const struct node_answer *a, void *arg)
{
	struct api_request *r = arg;
	const struct wake *w = r->work;
	r->call = NULL;
	if (a->err) {
		api_fail_call(r, a->err);
		return;
	}
	/* 201 = it was resumed, by this call or another one meanwhile: each resume is a generation of its own. */
	const struct index_sandbox *s = index_find(r->api->config.index, str_of(r->sandbox));
	answer_access(r, s && str_is(s->generation, w->generation) ? 200 : 201);
}

/* Waits for what the node has under way with it, a pause or a snapshot. */
static void resume(struct api_request *r, const struct index_sandbox *s)
{
	const struct wake *w = r->work;
	struct error err = {0};
	struct quota_lease *lease;
	if (quota_take_resume(r->api->quota, s, &lease, &err) < 0) {
		api_fail(r, &err);
		return;
	}
	struct msg_resume m = {.sandbox = str_of(r->sandbox), .mode = w->mode, .timeout = w->seconds, .memory = w->memory};
	if (w->has_auto_pause)
		msg_set(&m, resume, auto_pause, w->auto_pause);
	msg_set(&m, resume, request, str_of(r->id));
	api_wait(r, quota_hold(lease, node_resume(r->api->config.node, &m, resumed, r, &err)), &err);
}

static int parse_wake(const json_t *body, enum timeout_rule rule, const struct options *o, struct wake *w, struct error *err)
{
	w->memory = true;
	int e = decode_timeout(body, rule, o, &w->seconds, err);
	return e < 0 ? e : field_bool(body, "memory", NULL, &w->memory, err);
}

/* What the body asks for, kept in r->work. NULL = answered. */
static struct wake *new_wake(struct api_request *r, enum resume_mode mode)
{
	struct error err = {0};
	struct wake *w = r->work = calloc(1, sizeof(*w));
	int e = w ? parse_wake(r->body, mode == RESUME_CONNECT ? TIMEOUT_OF_CONNECT : TIMEOUT_OF_CREATE, r->api->config.options, w, &err) :
		error_set(&err, -ENOMEM, 503, "the server is out of memory");
	if (e >= 0 && mode == RESUME_EXPLICIT) {
		e = field_bool(r->body, "autoPause", "auto_pause", &w->auto_pause, &err);
		w->has_auto_pause = e > 0;
	}
	if (e < 0) {
		api_fail(r, &err);
		return NULL;
	}
	w->mode = mode;
	return w;
}

void handle_connect(struct api_request *r)
{
	struct wake *w = new_wake(r, RESUME_CONNECT);
	const struct index_sandbox *s = w ? api_sandbox(r, true) : NULL;
	if (!s)
		return;
	snprintf(w->generation, sizeof(w->generation), "%.*s", STR_FMT(s->generation));
	if (s->state == SANDBOX_KILLING)
		api_failf(r, 409, "Sandbox \"%s\" is being killed", r->sandbox);
	else if (index_is_running(s) && w->seconds == 0)
		answer_access(r, 200); /* asks for no time: nothing changes */
	else if (index_is_running(s) || index_is_paused(s))
		resume(r, s);
	else
		api_sandbox_not_found(r);
}

void handle_resume(struct api_request *r)
{
	struct wake *w = new_wake(r, RESUME_EXPLICIT);
	const struct index_sandbox *s = w ? api_sandbox(r, false) : NULL;
	if (!s)
		return;
	if (index_is_running(s))
		api_failf(r, 409, "Sandbox %s is already running", r->sandbox);
	else
		resume(r, s);
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
	api_wait(r, node_kill(r->api->config.node, &m, api_done_empty, r, &err), &err);
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
		set_timeout(r, TIMEOUT_SET, seconds);
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
		set_timeout(r, TIMEOUT_REFRESH, MAX(seconds, (int64_t)SHORTEST));
}
