#include "sandbox/microvm/monitor_link.h"
#include "sandbox/box/slot_control.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/chan.h"
#include "sys/process.h"

#include <errno.h>
#include <stdio.h>

enum {
	QUEUED_MAX = 8192,  /* bytes that the monitor has not taken: each question holds a descriptor of ours for so long */
	AGAIN_FIRST_MS = 50, /* from the break on; a monitor that has ended is known to have by then */
	AGAIN_MOST_MS = 30000, /* each try waits twice as long as the one before, up to this: nobody makes node busy by breaking it */
	HELD_SECONDS = 60,  /* one that held for so long breaks for the first time again */
};

struct monitor_link {
	struct box *box;
	struct chan *chan; /* NULL: it broke, the timer runs */
	struct loop_timer *timer;
	int64_t made_at;   /* CLOCK_MONOTONIC */
	unsigned wait_ms;  /* until the next try */
	bool told;
	struct error why;
};

/* What is refused shows on the descriptor that came with the question. */
static void on_message(struct chan *c, struct chan_message *m, void *arg)
{
}

static void try_later(struct monitor_link *l)
{
	loop_timer_in(l->timer, l->wait_ms * NS_PER_MS);
	l->wait_ms = MIN(l->wait_ms * 2, (unsigned)AGAIN_MOST_MS);
}

/* Questions that are not answered yet are lost with it, and their descriptors show that. */
static void on_closed(struct chan *c, const struct error *err, void *arg)
{
	struct monitor_link *l = arg;
	l->chan = NULL;
	if (clock_monotonic() - l->made_at >= HELD_SECONDS * NS_PER_S) {
		l->wait_ms = AGAIN_FIRST_MS;
		l->told = false;
	}
	l->why = *err;
	try_later(l);
}

static const struct chan_ops chan_ops = {.message = on_message, .closed = on_closed};

static int make(struct monitor_link *l, int fd)
{
	l->chan = chan_new(l->box->backend->loop, fd, MSG_FROM_VMM, CHAN_NO_FDS, &chan_ops, l);
	l->made_at = clock_monotonic();
	return l->chan ? 0 : -errno;
}

static void tell(struct monitor_link *l, int fd)
{
	const struct log_ids ids = {.sandbox = str_of(l->box->id)};
	if (l->told)
		return;
	l->told = true;
	if (fd >= 0)
		log_write(LOG_WARN, &ids, "the connection to its monitor broke, and was made anew: %s", l->why.message);
	else
		log_write(LOG_WARN, &ids, "the connection to its monitor broke (%s), and cannot be made anew: %s; it is tried again", l->why.message, strerror(-fd));
}

static void on_timer(struct loop_timer *t, void *arg)
{
	struct monitor_link *l = arg;
	const struct slot *s = l->box->slot;
	/* Its own end is told by its process. */
	if (process_ended(s->pidfd))
		return;
	int fd = slot_connect_monitor(l->box->backend->host, s);
	tell(l, fd);
	if (fd < 0 || make(l, fd) < 0)
		try_later(l);
}

struct monitor_link *monitor_link_new(struct box *b, int fd)
{
	struct monitor_link *l = calloc(1, sizeof(*l));
	struct loop_timer *timer = l ? loop_timer_new(b->backend->loop, on_timer, l) : NULL;
	if (!timer) {
		close(fd);
		free(l);
		errno = ENOMEM;
		return NULL;
	}
	*l = (struct monitor_link){.box = b, .timer = timer, .wait_ms = AGAIN_FIRST_MS};
	int r = make(l, fd);
	if (r == 0)
		return l;
	monitor_link_free(l);
	errno = -r;
	return NULL;
}

void monitor_link_free(struct monitor_link *l)
{
	if (!l)
		return;
	chan_free(l->chan);
	loop_timer_free(l->timer);
	free(l);
}

int monitor_link_ready(const struct monitor_link *l)
{
	return !l->chan ? -ENOTCONN : chan_queued(l->chan) > QUEUED_MAX ? -EAGAIN : 0;
}

int monitor_link_open(struct monitor_link *l, unsigned port, int fd)
{
	int r = l->chan ? chan_send(l->chan, MSG_ID_vm_open, &(struct msg_vm_open){.port = port}, 1, &fd, 1, NULL) : -ENOTCONN;
	return r == -EPIPE ? -ENOTCONN : r;
}
