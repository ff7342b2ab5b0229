#include "sandbox/box/box.h"
#include "sandbox/box/handle.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>

static void adopt_work(void *arg)
{
	struct box *b = arg;
	b->error.code = b->runtime->adopt(b);
}

static void adopt_done(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	if (b->cancelled) {
		box_release(b);
		return;
	}
	if (b->error.code < 0) {
		err = b->error;
		box_find_evidence(b);
		box_fail(b, &err);
		return;
	}
	if (box_watch(b, &err) < 0) {
		box_fail(b, &err);
		return;
	}
	box_is_running(b);
}

static void is_host_lost(void *arg)
{
	struct box *b = arg;
	struct error err = {0};
	if (b->cancelled) {
		box_release(b);
		return;
	}
	snprintf(b->death.reason, sizeof(b->death.reason), "host_lost");
	snprintf(b->death.detail, sizeof(b->death.detail), "the machine was started again");
	error_set(&err, -ESTALE, 500, "the machine was started again");
	box_fail(b, &err);
}

/* What an administrator has closed meanwhile (network.private) ends the policy: nothing is reached then, rather than more than was asked for. */
static int adopt_network(struct box *b, const struct box_network *p, bool lost, struct error *err)
{
	static const struct msg_list none;
	const struct reach_limits limits = network_limits(b->backend->host->network);
	int r = lost ? 0 : reach_init(&b->reach, &limits, p->allow_out, p->deny_out, p->internet, err);
	if (r != -EINVAL)
		return r;
	log_write(LOG_WARN, &(struct log_ids){.sandbox = str_of(b->id)}, "its network policy is not allowed any more, it reaches nothing: %s", err->message);
	return reach_init(&b->reach, &limits, none, none, false, err);
}

struct box *box_adopt(struct backend *backend, struct str id, const char *text, const struct box_network *network, const struct box_ops *ops, void *arg,
	struct error *err)
{
	struct handle h;
	if (handle_parse(text, &h) < 0) {
		error_set(err, -EINVAL, 500, "the handle '%.200s' is not understood", text);
		return NULL;
	}
	if (h.slot >= network_capacity(backend->host->network)) {
		error_set(err, -ERANGE, 500, "slot %llu is not within network.pool any more", (unsigned long long)h.slot);
		return NULL;
	}
	bool lost = strcmp(h.boot, backend->host->boot_id) != 0;
	struct box *b = box_new(backend, h.runtime, id, ops, arg);
	struct slot *s = b ? slot_new((unsigned)h.slot) : NULL;
	int r = !s ? -ENOMEM : numbers_reserve(backend->numbers, (unsigned)h.slot);
	if (r == 0)
		r = adopt_network(b, network, lost, err);
	if (r < 0) {
		slot_leave(s);
		if (b)
			box_free(b);
		error_errno(err, r, "slot %llu", (unsigned long long)h.slot);
		return NULL;
	}
	b->state = BOX_MAKING;
	b->warm = h.warm;
	snprintf(s->disk.name, sizeof(s->disk.name), "%s.img", s->name);
	b->slot = s;
	b->number = s->number;
	b->has_number = true;
	if (lost) {
		/* Of another boot only the image is there; what else may have its names goes with it. */
		s->disk.unbound = true;
		s->has_cgroups = s->has_socket = true;
		r = loop_post(backend->loop, is_host_lost, b);
	} else {
		s->pid = (pid_t)h.pid;
		s->start = h.start;
		s->disk.loop = (unsigned)h.loop;
		r = workq_push(backend->workers, backend->loop, adopt_work, adopt_done, b);
	}
	if (r == 0)
		return b;
	numbers_give(backend->numbers, b->number);
	slot_leave(s);
	box_free(b);
	error_errno(err, r, "adoption");
	return NULL;
}
