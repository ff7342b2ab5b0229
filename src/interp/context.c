#include "interp/context.h"
#include "interp/execution.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

static const char died_notice[] =
	"The context was restarted because its kernel ended; what it held in memory is lost.\n";

static const struct kernel_ops kernel_ops;

static void free_context(void *arg)
{
	struct context *c = arg;
	free(c->cwd);
	free(c);
}

static void tell_waiters(struct context *c, const struct error *err)
{
	while (c->waiters) {
		struct context_waiter *w = c->waiters;
		c->waiters = w->next;
		w->context = NULL;
		w->fn(w, err);
	}
}

/* Begins the next execution, if it can. */
static void pump(struct context *c)
{
	if (c->gone || c->current || !c->queue || c->state != CONTEXT_READY)
		return;
	struct execution *x = c->queue;
	c->queue = x->next;
	if (!c->queue)
		c->queue_end = &c->queue;
	c->queued--;
	c->current = x;
	c->used = true;
	execution_begin(x);
}

/* Executions that wait for a kernel that does not come. */
static void fail_queue(struct context *c, const char *name, const char *why)
{
	struct execution *x = c->queue;
	c->queue = NULL;
	c->queue_end = &c->queue;
	c->queued = 0;
	while (x) {
		struct execution *next = x->next;
		execution_lost(x, name, why);
		x = next;
	}
}

static void lose_current(struct context *c, const char *name, const char *why)
{
	struct execution *x = c->current;
	c->current = NULL;
	if (x)
		execution_lost(x, name, why);
}

static int start_kernel(struct context *c, struct error *err)
{
	c->has_env = c->used = c->lost = c->exits = false;
	c->kernel = kernel_new(&c->all->host, c->spec, c->cwd, &kernel_ops, c, err);
	c->state = c->kernel ? CONTEXT_STARTING : CONTEXT_FAILED;
	return c->kernel ? 0 : err->code;
}

static void start_failed(struct context *c, const struct error *err)
{
	c->state = CONTEXT_FAILED;
	log_warn("context %s: %s", c->id, err->message);
	fail_queue(c, "ContextRestarting", err->message);
	tell_waiters(c, err);
	/* One that never was anything is not kept. */
	if (!c->was_ready && !c->gone)
		context_delete(c);
}

static void on_ready(void *arg)
{
	struct context *c = arg;
	c->state = CONTEXT_READY;
	c->was_ready = true;
	tell_waiters(c, NULL);
	pump(c);
}

static void on_ended(const struct error *why, void *arg)
{
	struct context *c = arg;
	struct error err = *why;
	bool was_starting = c->state == CONTEXT_STARTING;
	kernel_free(c->kernel);
	c->kernel = NULL;
	if (was_starting) {
		start_failed(c, &err);
		return;
	}
	log_warn("context %s: %s", c->id, err.message);
	c->notice = died_notice;
	c->state = CONTEXT_FAILED;
	bool again = c->used || c->queue;
	lose_current(c, "ContextRestarting", "Context was restarted");
	/* A kernel that ends by itself without having run anything would do so for ever. */
	if (again && !c->gone && !c->kernel && start_kernel(c, &err) < 0)
		start_failed(c, &err);
}

static void on_message(enum kernel_channel from, const struct wire_message *m, struct frames *f, void *arg)
{
	struct context *c = arg;
	if (c->current)
		execution_message(c->current, from, m, f);
}

static const struct kernel_ops kernel_ops = {.ready = on_ready, .ended = on_ended, .message = on_message};

static const struct kernelspec *find_spec(struct contexts *all, const char *language, struct error *err)
{
	const struct kernelspec *s = kernelspecs_find(&all->specs, language);
	if (s)
		return s;
	cleanup_buf struct buf names = BUF_INIT;
	for (const struct kernelspec *i = all->specs.first; i; i = i->next)
		buf_addf(&names, "%s%s", i == all->specs.first ? "" : ", ", i->name);
	const char *list = buf_cstr(&names);
	/* Java is a language of the protocol; the others are names that somebody made up. */
	int status = strcmp(language, "java") == 0 ? 501 : 500;
	error_set(
		err, -ENOENT, status, "there is no kernel for %s (kernels: %s)", language, list ? list : "");
	return NULL;
}

static struct context *make(struct contexts *all, const struct kernelspec *spec, const char *language,
	const char *cwd, struct error *err)
{
	if (all->n >= CONTEXTS_MAX) {
		error_set(err, -EMFILE, 500, "there are %d contexts already: delete some", CONTEXTS_MAX);
		return NULL;
	}
	struct context *c = calloc(1, sizeof(*c));
	if (!c || !(c->cwd = strdup(cwd ? cwd : all->host.user.home))) {
		free(c);
		error_errno(err, -ENOMEM, "context");
		return NULL;
	}
	c->all = all;
	c->spec = spec;
	c->queue_end = &c->queue;
	wire_new_id(c->id);
	strcpy(c->language, language);
	if (start_kernel(c, err) < 0) {
		free_context(c);
		return NULL;
	}
	struct context **end = &all->first;
	while (*end)
		end = &(*end)->next;
	*end = c;
	all->n++;
	return c;
}

struct context *context_new(struct contexts *all, const char *language, const char *cwd, struct error *err)
{
	const struct kernelspec *spec = find_spec(all, language, err);
	return spec ? make(all, spec, language, cwd, err) : NULL;
}

struct context *context_default(struct contexts *all, const char *language, struct error *err)
{
	const struct kernelspec *spec = find_spec(all, language, err);
	if (!spec)
		return NULL;
	for (struct context *c = all->first; c; c = c->next)
		if (c->is_default && c->spec == spec)
			return c;
	struct context *c = make(all, spec, language, NULL, err);
	if (c)
		c->is_default = true;
	return c;
}

struct context *context_find(struct contexts *all, struct str id)
{
	for (struct context *c = all->first; c; c = c->next)
		if (str_is(id, c->id) ||
			(str_is(id, "default") && c->is_default && strcmp(c->language, "python") == 0))
			return c;
	return NULL;
}

void context_delete(struct context *c)
{
	static const struct error deleted = {
		.code = -ENOENT, .status = 404, .message = "the context was deleted"};
	struct context **at = &c->all->first;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	c->all->n--;
	c->gone = true;
	kernel_free(c->kernel);
	c->kernel = NULL;
	c->state = CONTEXT_FAILED;
	static const char closed[] =
		"Connection to the execution was closed before the execution was finished";
	lose_current(c, "UnexpectedEndOfExecution", closed);
	fail_queue(c, "UnexpectedEndOfExecution", closed);
	tell_waiters(c, &deleted);
	if (loop_defer(c->all->host.loop, free_context, c) < 0)
		log_error("a context is not freed: no memory");
}

void contexts_done(struct contexts *all)
{
	while (all->first)
		context_delete(all->first);
	kernelspecs_done(&all->specs);
}

void context_restart(struct context *c, const char *notice)
{
	struct error err = {0};
	kernel_free(c->kernel);
	c->kernel = NULL;
	c->state = CONTEXT_FAILED;
	c->notice = notice;
	lose_current(c, "ContextRestarting", "Context was restarted");
	if (start_kernel(c, &err) < 0)
		start_failed(c, &err);
}

void context_wait(struct context *c, struct context_waiter *w)
{
	struct error err = {0};
	w->context = c;
	w->next = c->waiters;
	c->waiters = w;
	if (c->state == CONTEXT_FAILED && start_kernel(c, &err) < 0)
		start_failed(c, &err);
	else if (c->state == CONTEXT_READY)
		tell_waiters(c, NULL);
}

void context_unwait(struct context_waiter *w)
{
	if (!w->context)
		return;
	struct context_waiter **at = &w->context->waiters;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	w->context = NULL;
}

bool context_queue_full(const struct context *c)
{
	return c->queued >= CONTEXT_QUEUE_MAX;
}

void context_enqueue(struct context *c, struct execution *x)
{
	struct error err = {0};
	x->next = NULL;
	*c->queue_end = x;
	c->queue_end = &x->next;
	c->queued++;
	if (c->state == CONTEXT_FAILED && start_kernel(c, &err) < 0)
		start_failed(c, &err);
	else
		pump(c);
}

void context_dequeue(struct context *c, struct execution *x)
{
	struct execution **at = &c->queue;
	while (*at && *at != x)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = x->next;
	if (!*at)
		c->queue_end = at;
	c->queued--;
}

void context_release(struct context *c)
{
	c->current = NULL;
	if (c->exits && c->state == CONTEXT_READY) {
		/* Not waiting for its end: what is sent meanwhile would be lost with it. */
		context_restart(c, died_notice);
		return;
	}
	if (c->lost && c->state == CONTEXT_READY) {
		c->state = CONTEXT_STARTING;
		kernel_resubscribe(c->kernel);
	}
	c->lost = false;
	pump(c);
}

const char *context_env_language(const struct context *c)
{
	return c->spec->language;
}
