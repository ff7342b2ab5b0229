#include "interp/execution.h"
#include "interp/env.h"
#include "interp/result.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

#define KEEPALIVE (5 * NS_PER_S)
/* After its reply a kernel still has to say that it is idle. */
#define IDLE_TIME (10 * NS_PER_S)
/* For our own code, when nobody waits for it. */
#define SILENT_TIME (30 * NS_PER_S)

static const char stuck_notice[] = "The context was restarted because the execution before, which was "
				   "cancelled, could not be interrupted; what it held in memory is lost.\n";

enum { MAX_LATE = 64 };

static struct loop *loop_of(const struct execution *x)
{
	return x->context->all->host.loop;
}

static void drop_late(struct execution *x)
{
	while (x->late) {
		struct execution_late *l = x->late;
		x->late = l->next;
		frames_unref(l->frames);
		free(l);
	}
	x->n_late = 0;
}

static void free_execution(void *arg)
{
	struct execution *x = arg;
	output_done(&x->output);
	drop_late(x);
	fetch_free(x->fetch);
	buf_done(&x->code);
	buf_done(&x->token);
	json_decref(x->env_vars);
	json_decref(x->globals);
	loop_timer_free(x->keepalive);
	patience_done(&x->patience);
	free(x);
}

static void over(struct execution *x)
{
	x->phase = EXECUTION_OVER;
	loop_timer_stop(x->keepalive);
	patience_stop(&x->patience);
	if (loop_defer(loop_of(x), free_execution, x) < 0)
		log_error("an execution is not freed: no memory");
}

/* The request is not ours any more. */
static void let_go(struct execution *x)
{
	output_done(&x->output);
	x->gone = true;
	if (x->owner)
		*x->owner = NULL;
	x->owner = NULL;
	loop_timer_stop(x->keepalive);
}

/* Ends the answer, if there is somebody to answer. */
static void end_answer(struct execution *x)
{
	struct http_req *req = x->output.req;
	if (req) {
		output_line(&x->output, "{\"type\": \"end_of_execution\"}\n");
		http_finish(req);
	}
	let_go(x);
}

static void tell_error(struct execution *x, const char *name, const char *why)
{
	cleanup_event struct event e = EVENT_INIT;
	if (!output_idle(&x->output)) {
		/* The line that is half sent comes first, whole: what is queued then is at most one message.
		 */
		while (x->output.event.n && x->output.req)
			output_writable(&x->output);
	}
	event_error(&e, name, why);
	output_put(&x->output, &e);
}

/* Steps */

static void finish(struct execution *x)
{
	struct context *c = x->context;
	end_answer(x);
	over(x);
	context_release(c);
}

/* The kernel did not do what it had to. */
static void give_up_kernel(struct execution *x, const char *why)
{
	log_warn("context %s: %s; its kernel is replaced", x->context->id, why);
	context_restart(x->context, stuck_notice);
}

static bool request(struct execution *x, enum execution_phase phase, struct buf *content)
{
	x->phase = phase;
	x->replied = x->idle = x->failed = x->begun = false;
	int r = content->failed
			? -ENOMEM
			: kernel_request(x->context->kernel, "execute_request", buf_str(content), x->id);
	if (r < 0) {
		tell_error(x, "UnexpectedEndOfExecution", strerror(-r));
		give_up_kernel(x, "it takes no request");
	}
	return r == 0;
}

static void run_silently(
	struct execution *x, enum execution_phase phase, enum env_action action, json_t *vars)
{
	cleanup_buf struct buf code = BUF_INIT, content = BUF_INIT;
	if (env_code(context_env_language(x->context), action, vars, &code) < 0)
		content.failed = true;
	buf_add_c(&content, "{\"code\":");
	json_quote(&content, buf_str(&code));
	buf_add_c(&content, ",\"silent\":true,\"store_history\":false,\"user_expressions\":{},\"allow_"
			    "stdin\":false,\"stop_on_error\":false}");
	if (request(x, phase, &content) && x->gone)
		patience_start(&x->patience, SILENT_TIME);
}

static void run_code(struct execution *x)
{
	cleanup_buf struct buf content = BUF_INIT;
	if (x->context->notice) {
		cleanup_event struct event e = EVENT_INIT;
		event_notice(&e, x->context->notice);
		x->context->notice = NULL;
		output_put(&x->output, &e);
	}
	buf_add_c(&content, "{\"code\":");
	json_quote(&content, buf_str(&x->code));
	buf_add_c(&content, ",\"silent\":false,\"store_history\":true,\"user_expressions\":{},\"allow_"
			    "stdin\":false,\"stop_on_error\":false}");
	buf_done(&x->code);
	request(x, EXECUTION_CODE, &content);
}

static void after_code(struct execution *x)
{
	patience_stop(&x->patience);
	end_answer(x);
	if (x->env_vars && !x->context->exits)
		run_silently(x, EXECUTION_RESTORE, ENV_RESTORE, x->env_vars);
	else
		finish(x);
}

static void after_globals(struct execution *x)
{
	if (x->gone)
		finish(x);
	else if (x->env_vars)
		run_silently(x, EXECUTION_SWAP, ENV_SWAP, x->env_vars);
	else
		run_code(x);
}

static void on_envs(int status, struct str body, void *arg)
{
	struct execution *x = arg;
	struct error err = {0};
	x->fetch = NULL;
	if (status == 200)
		x->globals = json_parse(body, body.n, "envd's answer", &err);
	if (!json_is_object(x->globals)) {
		/* Without a token, or a wrong one, envd does not tell them. The code runs all the same, and
		 * the next execution asks again. */
		log_warn("the sandbox's variables are not known: %d %.*s", status, (int)MIN(body.n, 200),
			body.p);
		after_globals(x);
	} else if (!json_object_size(x->globals)) {
		x->context->has_env = true;
		after_globals(x);
	} else {
		run_silently(x, EXECUTION_GLOBAL, ENV_SET, x->globals);
	}
}

void execution_begin(struct execution *x)
{
	struct contexts *all = x->context->all;
	if (all->envd.set && !x->context->has_env && env_supported(context_env_language(x->context))) {
		x->phase = EXECUTION_FETCH;
		x->fetch = fetch_new(loop_of(x), &all->envd, "/envs", buf_str(&x->token), on_envs, x);
		if (x->fetch)
			return;
		log_warn("envd cannot be asked: %s", strerror(errno));
	}
	after_globals(x);
}

/* What the kernel says */

/* Passes one event on; while it does not fit, the kernel waits. */
static void put(struct execution *x, struct event *e)
{
	loop_timer_in(x->keepalive, KEEPALIVE);
	output_put(&x->output, e);
	if (!output_idle(&x->output))
		kernel_hold(x->context->kernel, true);
}

static void put_late(struct execution *x)
{
	cleanup_event struct event e = EVENT_INIT;
	struct execution_late *l = x->late;
	x->late = l->next;
	x->n_late--;
	e.frames = steal_pointer(&l->frames);
	if (!l->is_error)
		result_data(&e, l->content, false);
	else if (!x->failed)
		result_error(&e, l->content);
	free(l);
	put(x, &e);
}

/* Everything was said and passed on? */
static void check_done(struct execution *x)
{
	if (x->phase != EXECUTION_CODE || !x->replied)
		return;
	/* Also when nobody listens any more: after an error or an interrupt IRkernel refuses what arrives before it
	 * is idle. */
	if (!x->idle) {
		patience_start(&x->patience, IDLE_TIME);
		return;
	}
	if (!x->gone) {
		while (x->late && output_idle(&x->output))
			put_late(x);
		if (x->late || !output_idle(&x->output))
			return;
	}
	after_code(x);
}

/* False when there are too many. */
static bool add_late(
	struct execution *x, struct frames *f, struct str content, struct str display, bool is_error)
{
	struct execution_late **at = &x->late, *l;
	while (*at && !(display.n && str_eq((*at)->display, display)))
		at = &(*at)->next;
	if (*at) {
		/* A newer state of the same display. */
		frames_unref((*at)->frames);
		l = *at;
	} else {
		l = x->n_late < MAX_LATE ? calloc(1, sizeof(*l)) : NULL;
		if (!l)
			return false;
		*at = l;
		x->n_late++;
	}
	l->frames = frames_ref(f);
	l->content = content;
	l->display = display;
	l->is_error = is_error;
	return true;
}

/* What a reply asks of who reads it: to show a page, which help texts come as, or to expect the kernel's end.
 */
static void take_payload(struct execution *x, const struct wire_message *m, struct frames *f)
{
	struct str list = jsontext_get(m->content, "payload"), item;
	while (jsontext_next(&list, NULL, &item)) {
		struct str source = jsontext_inner(jsontext_get(item, "source"));
		if (str_is(source, "page"))
			add_late(x, f, item, STR(""), false);
		else if (str_is(source, "ask_exit") && !str_is(jsontext_get(item, "keepkernel"), "true"))
			x->context->exits = true;
	}
}

static void on_reply(struct execution *x, const struct wire_message *m, struct frames *f)
{
	struct str status = jsontext_inner(jsontext_get(m->content, "status"));
	x->replied = true;
	if (x->phase == EXECUTION_GLOBAL) {
		x->context->has_env = true;
		if (!str_is(status, "ok"))
			log_warn("context %s: not all of the sandbox's variables could be set",
				x->context->id);
		after_globals(x);
	} else if (x->phase == EXECUTION_SWAP) {
		if (str_is(status, "ok") && !x->gone) {
			run_code(x);
			return;
		}
		if (!x->gone) {
			cleanup_event struct event e = EVENT_INIT;
			e.frames = frames_ref(f);
			result_error(&e, m->content);
			put(x, &e);
		}
		after_code(x);
	} else if (x->phase == EXECUTION_RESTORE) {
		finish(x);
	} else if (x->phase == EXECUTION_CODE) {
		take_payload(x, m, f);
		if (str_is(status, "aborted") || str_is(status, "abort"))
			tell_error(x, "ExecutionAborted", "The kernel did not run it");
		else if (str_is(status, "error"))
			/* Only if it is not published too, which may arrive later. */
			add_late(x, f, m->content, STR(""), true);
		check_done(x);
	}
}

static struct str display_id(struct str content)
{
	return jsontext_get(jsontext_get(content, "transient"), "display_id");
}

static void on_published(struct execution *x, const struct wire_message *m, struct frames *f)
{
	cleanup_event struct event e = EVENT_INIT;
	e.frames = frames_ref(f);
	if (str_is(m->type, "stream")) {
		result_stream(&e, m->content);
	} else if (str_is(m->type, "execute_result")) {
		result_data(&e, m->content, true);
	} else if (str_is(m->type, "display_data")) {
		result_data(&e, m->content, false);
	} else if (str_is(m->type, "update_display_data")) {
		/* The protocol cannot take a result back, so of all the states only the last is told. */
		if (!add_late(x, f, m->content, display_id(m->content), false))
			result_data(&e, m->content, false);
	} else if (str_is(m->type, "clear_output")) {
		drop_late(x);
	} else if (str_is(m->type, "execute_input")) {
		result_count(&e, m->content);
	} else if (str_is(m->type, "error")) {
		x->failed = true;
		result_error(&e, m->content);
	}
	if (e.n)
		put(x, &e);
	check_done(x);
}

static void interrupt(void *arg);

void execution_message(
	struct execution *x, enum kernel_channel from, const struct wire_message *m, struct frames *f)
{
	if (!str_is(m->parent_id, x->id))
		return;
	if (from == KERNEL_SHELL && str_is(m->type, "execute_reply")) {
		on_reply(x, m, f);
	} else if (from == KERNEL_IOPUB && x->phase == EXECUTION_CODE) {
		bool begins = !x->begun && str_is(m->type, "execute_input");
		x->begun |= begins;
		x->idle |= str_is(m->type, "status") &&
			str_is(jsontext_inner(jsontext_get(m->content, "execution_state")), "idle");
		if (!x->gone)
			on_published(x, m, f);
		else if (begins && !x->replied)
			interrupt(x);
		else
			check_done(x);
	}
}

/* Who leaves, and what is lost */

/* Ever more patiently, and then no more. An interrupt before the kernel has begun with the code would be
 * lost. */
static void interrupt(void *arg)
{
	static const int64_t waits[] = {2 * NS_PER_S, 5 * NS_PER_S, 8 * NS_PER_S};
	struct execution *x = arg;
	if (x->interrupts == ARRAY_SIZE(waits)) {
		give_up_kernel(x, "a cancelled execution does not end");
		return;
	}
	kernel_interrupt(x->context->kernel);
	patience_start(&x->patience, waits[x->interrupts++]);
}

static void on_patience(void *arg)
{
	struct execution *x = arg;
	if (x->phase == EXECUTION_CODE && x->gone && !x->replied) {
		interrupt(x);
	} else if (x->phase == EXECUTION_CODE && !x->gone && !output_idle(&x->output)) {
		/* It is the client that is slow; the rest of the output waits. */
		patience_start(&x->patience, IDLE_TIME);
	} else if (x->phase == EXECUTION_CODE) {
		/* It replied, and what it published with the end is lost. */
		tell_error(x, "UnexpectedEndOfExecution",
			"The kernel's output was lost; a single piece over 128 MiB is");
		x->context->lost = true;
		after_code(x);
	} else {
		give_up_kernel(x, "a change of variables does not end");
	}
}

void execution_leave(struct execution *x)
{
	bool had_owner = x->owner;
	let_go(x);
	if (!had_owner || x->phase == EXECUTION_OVER)
		return;
	switch (x->phase) {
	case EXECUTION_QUEUED:
		context_dequeue(x->context, x);
		over(x);
		break;
	case EXECUTION_FETCH:
		fetch_free(steal_pointer(&x->fetch));
		finish(x);
		break;
	case EXECUTION_GLOBAL:
	case EXECUTION_SWAP:
	case EXECUTION_RESTORE:
		patience_start(&x->patience, SILENT_TIME);
		break;
	case EXECUTION_CODE:
		drop_late(x);
		kernel_hold(x->context->kernel, false);
		if (x->replied)
			check_done(x);
		else if (x->begun)
			interrupt(x);
		else
			patience_start(&x->patience, NS_PER_S);
		break;
	case EXECUTION_OVER:
		break;
	}
}

void execution_lost(struct execution *x, const char *name, const char *why)
{
	fetch_free(steal_pointer(&x->fetch));
	if (x->output.req)
		tell_error(x, name, why);
	end_answer(x);
	over(x);
}

/* The answer */

void execution_writable(struct execution *x)
{
	output_writable(&x->output);
	if (!output_idle(&x->output) || x->phase != EXECUTION_CODE)
		return;
	kernel_hold(x->context->kernel, false);
	check_done(x);
}

static void on_keepalive(struct loop_timer *t, void *arg)
{
	struct execution *x = arg;
	if (output_idle(&x->output))
		output_line(&x->output, "{\"type\": \"keepalive\"}\n");
	loop_timer_in(t, KEEPALIVE);
}

int execution_start(struct context *c, const struct execution_request *r, struct execution **ret)
{
	struct execution *x = calloc(1, sizeof(*x));
	if (!x)
		return -ENOMEM;
	x->context = c;
	x->env_vars = json_incref(r->env_vars);
	x->keepalive = loop_timer_new(loop_of(x), on_keepalive, x);
	buf_add_str(&x->code, r->code);
	buf_add_str(&x->token, r->token);
	if (patience_init(&x->patience, loop_of(x), on_patience, x) < 0 || !x->keepalive || x->code.failed ||
		x->token.failed) {
		free_execution(x);
		return -ENOMEM;
	}
	x->output.req = r->req;
	x->owner = ret;
	*ret = x;
	http_start(r->req, 200, NULL,
		"Content-Type: application/x-ndjson\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
		HTTP_BODY_CHUNKED, 0);
	loop_timer_in(x->keepalive, KEEPALIVE);
	context_enqueue(c, x);
	return 0;
}
