#include "sandbox/microvm/asks.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/chan.h"

#include <errno.h>

struct ask {
	struct ask *next;
	struct box *box;
	uint64_t request;
	struct loop_timer *timer;
	int failed; /* it could not be sent: who asked is told by the next turn */
	runtime_done_fn *done;
	void *arg;
};

static void finish(struct ask **at, const struct error *err)
{
	struct ask *a = *at;
	*at = a->next;
	loop_timer_free(a->timer);
	a->done(err, a->arg);
	free(a);
}

static void on_timeout(struct loop_timer *t, void *arg)
{
	struct ask *late = arg, **at = &late->box->asks;
	struct error err = {0};
	while (*at != late)
		at = &(*at)->next;
	if (late->failed)
		error_errno(&err, late->failed, "the sandbox's init");
	else
		error_set(&err, -ETIMEDOUT, 504, "the sandbox's init did not answer in time");
	finish(at, &err);
}

void init_ask(struct box *b, enum msg_id type, const void *m, unsigned seconds, runtime_done_fn *done, void *arg)
{
	struct error err = {0};
	struct ask *a = calloc(1, sizeof(*a));
	struct loop_timer *t = a ? loop_timer_new(b->backend->loop, on_timeout, a) : NULL;
	if (t && loop_timer_in(t, seconds * NS_PER_S) == 0) {
		*a = (struct ask){.next = b->asks, .box = b, .request = ++b->log_reads.last_request, .timer = t, .done = done, .arg = arg};
		b->asks = a;
		a->failed = b->chan ? chan_send(b->chan, type, m, a->request, NULL, 0, NULL) : -EPIPE;
		if (a->failed)
			loop_timer_in(t, 0); /* it is armed: that takes no memory */
		return;
	}
	loop_timer_free(t);
	free(a);
	error_errno(&err, -ENOMEM, "the sandbox's init");
	done(&err, arg);
}

bool asks_answer(struct box *b, const struct chan_message *m)
{
	if (m->header.type != MSG_ID_ok && m->header.type != MSG_ID_error)
		return false;
	for (struct ask **at = &b->asks; *at; at = &(*at)->next) {
		if ((*at)->request != m->header.request)
			continue;
		struct error err = {0};
		if (m->header.type == MSG_ID_error)
			error_set(&err, -EIO, 500, "the sandbox's init: %.*s", STR_FMT(m->body->error.message));
		finish(at, err.code ? &err : NULL);
		return true;
	}
	return false;
}

void asks_fail(struct box *b, int code)
{
	struct error err = {0};
	error_set(&err, code, 500, code == -ECANCELED ? "the sandbox ends" : "the sandbox's init gave its control channel up");
	/* Taken off first: who is told may end the box. */
	struct ask *all = steal_pointer(&b->asks);
	while (all)
		finish(&all, &err);
}
