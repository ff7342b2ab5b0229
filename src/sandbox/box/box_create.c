#include "sandbox/box/box.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/random.h"

#include <errno.h>
#include <stdio.h>

static struct str put(char **at, struct str s)
{
	struct str copy = str_n(*at, s.n);
	if (s.n)
		memcpy(*at, s.p, s.n);
	(*at)[s.n] = '\0';
	*at += s.n + 1;
	return copy;
}

static int order_init(struct order *o, const struct box_spec *spec)
{
	if (spec->n_layers == 0 || spec->n_layers > BOX_MAX_LAYERS)
		return -EINVAL;
	size_t size = spec->id.n + spec->template_id.n + spec->envs.raw.n + spec->token.n + spec->user.n + spec->workdir.n + spec->services.raw.n + spec->ready.raw.n +
		spec->service_options.raw.n + spec->probe_path.n + spec->allow_out.raw.n + spec->deny_out.raw.n + 12 + (spec->disk ? strlen(spec->disk) + 1 : 0);
	for (size_t i = 0; i < spec->n_layers; i++)
		size += strlen(spec->layers[i]) + 1;
	char *at = o->texts = malloc(size);
	if (!at)
		return -ENOMEM;
	struct box_spec *s = &o->claim.spec;
	*s = *spec;
	s->id = put(&at, spec->id);
	s->template_id = put(&at, spec->template_id);
	s->envs.raw = put(&at, spec->envs.raw);
	s->token = put(&at, spec->token);
	s->user = put(&at, spec->user);
	s->workdir = put(&at, spec->workdir);
	s->services.raw = put(&at, spec->services.raw);
	s->ready.raw = put(&at, spec->ready.raw);
	s->service_options.raw = put(&at, spec->service_options.raw);
	s->probe_path = put(&at, spec->probe_path);
	s->allow_out.raw = put(&at, spec->allow_out.raw);
	s->deny_out.raw = put(&at, spec->deny_out.raw);
	if (spec->disk)
		s->disk = put(&at, str_of(spec->disk)).p;
	for (size_t i = 0; i < spec->n_layers; i++)
		s->layers[i] = put(&at, str_of(spec->layers[i])).p;
	return 0;
}

/* Names that a sandbox has of its own: the id as host name, a boot id and a machine id that no other has. */
static void order_identity(struct order *o)
{
	unsigned char bytes[16];
	struct slot_claim *c = &o->claim;
	snprintf(c->hostname, sizeof(c->hostname), "%.*s", (int)MIN(c->spec.id.n, sizeof(c->hostname) - 1), c->spec.id.p);
	random_bytes(bytes, sizeof(bytes));
	hex_encode(c->machine_id, bytes, sizeof(bytes));
	random_uuid(c->boot_id);
}

int box_take_slot(struct box *b)
{
	struct host *h = b->backend->host;
	int number = numbers_take(b->backend->numbers);
	if (number < 0)
		return error_set(&b->error, -EAGAIN, 503, "all %u sandbox slots are in use", h->capacity);
	b->slot = slot_new((unsigned)number);
	if (b->slot)
		return 0;
	numbers_give(b->backend->numbers, (unsigned)number);
	return error_errno(&b->error, -ENOMEM, "slot");
}

static void create_work(void *arg)
{
	struct box *b = arg;
	numbers_wait_open(b->backend->numbers);
	if (__atomic_load_n(&b->cancelled, __ATOMIC_RELAXED))
		return;
	b->error.code = b->runtime->start(b);
	if (b->slot) {
		b->number = b->slot->number;
		b->has_number = true;
	}
}

static void rest_work(void *arg)
{
	struct slot_rest *rest = arg;
	slot_rest_close(rest);
}

/* What a create has left open is closed behind it. */
static void close_rest(struct box *b)
{
	struct slot_rest *rest = b->slot->rest.n ? malloc(sizeof(*rest)) : NULL;
	if (!rest)
		return; /* the end of the slot closes them */
	*rest = b->slot->rest;
	if (workq_push(b->backend->cleaners, b->backend->loop, rest_work, free, rest) < 0)
		free(rest);
	else
		b->slot->rest.n = 0;
}

static void create_done(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	if (b->cancelled) {
		box_release(b);
		return;
	}
	if (b->error.code < 0) {
		struct error copy = b->error;
		box_fail(b, &copy);
		return;
	}
	box_set_state(b, BOX_STARTING);
	close_rest(b);
	if (box_watch(b, &err) < 0 || loop_timer_in(b->timer, BOX_CLAIM_SECONDS * NS_PER_S) < 0)
		box_fail(b, &err);
}

/* The way of most creates: a slot that needs nothing but its claim is claimed here and now, without the two wake-ups of a worker. 1: there is none. */
static int start_at_once(struct box *b)
{
	struct error err = {0};
	if (!b->runtime->start_at_once || b->runtime->start_at_once(b) == 1)
		return 1;
	b->number = b->slot->number;
	b->has_number = true;
	box_set_state(b, BOX_STARTING);
	int r = box_watch(b, &err);
	if (r == 0)
		r = loop_timer_in(b->timer, BOX_CLAIM_SECONDS * NS_PER_S);
	if (r < 0) {
		b->reported = true; /* by box_create() */
		box_release(b);
	}
	return r;
}

static int take_network(struct box *b, const struct box_spec *spec, struct error *err)
{
	const struct reach_limits limits = network_limits(b->backend->host->network);
	b->order.claim.reach = &b->reach;
	return reach_init(&b->reach, &limits, spec->allow_out, spec->deny_out, spec->internet, err);
}

/* NULL: this server cannot. */
static const struct runtime *runtime_of(struct backend *backend, const struct box_spec *spec, struct error *err)
{
	const char *isolation = backend_isolation(backend, spec->isolation, err);
	return !isolation ? NULL : strcmp(isolation, microvm_runtime.isolation) == 0 ? &microvm_runtime : &namespace_runtime;
}

static struct workq *makers(const struct box *b)
{
	return b->runtime == &microvm_runtime ? b->backend->booters : b->backend->workers;
}

bool box_take_back(struct box *b)
{
	return b->ordered && workq_take_back(makers(b), b);
}

struct box *box_create(struct backend *backend, const struct box_spec *spec, const struct box_ops *ops, void *arg, struct error *err)
{
	const struct runtime *runtime = runtime_of(backend, spec, err);
	if (!runtime || runtime->check(spec, err) < 0)
		return NULL;
	struct box *b = box_new(backend, runtime, spec->id, ops, arg);
	int r = b ? order_init(&b->order, spec) : -ENOMEM;
	if (r == 0 && take_network(b, spec, err) < 0) {
		box_free(b);
		return NULL;
	}
	if (r == 0) {
		b->unassigned = spec->unassigned;
		b->awaits_ready = spec->wait_ready && !spec->unassigned && ops->programs;
		b->ordered = clock_monotonic();
		order_identity(&b->order);
		b->state = BOX_MAKING;
		r = start_at_once(b);
		if (r == 0)
			return b;
		if (r < 0) {
			error_set(err, r, 500, "sandbox: %s", strerror(-r));
			return NULL;
		}
		r = workq_push(makers(b), backend->loop, create_work, create_done, b);
	}
	if (r < 0) {
		if (b)
			box_free(b);
		error_set(err, r, r == -EAGAIN ? 503 : 500, "sandbox: %s", strerror(-r));
		return NULL;
	}
	return b;
}
