#include "sandbox/box/log_reads.h"
#include "base/clock.h"
#include "io/chan.h"

#include <errno.h>
#include <stdlib.h>

/* Who asked has given up before. */
#define PATIENCE (60 * NS_PER_S)

struct log_read {
	struct log_read *next;
	uint64_t request;
	int64_t asked;
	box_log_fn *done;
	void *arg;
};

static void finish(struct log_reads *l, struct log_read **at, const struct msg_log_page *m)
{
	struct log_read *r = *at;
	*at = r->next;
	l->n--;
	r->done(m, r->arg);
	free(r);
}

static void drop_old(struct log_reads *l)
{
	int64_t old = clock_boottime() - PATIENCE;
	struct log_read **at = &l->first;
	while (*at && (*at)->asked > old)
		at = &(*at)->next;
	while (*at)
		finish(l, at, NULL);
}

int log_reads_ask(struct log_reads *l, struct chan *c, uint64_t after, box_log_fn *done, void *arg)
{
	if (l->n == LOG_READS_MAX)
		drop_old(l);
	if (l->n == LOG_READS_MAX)
		return -EBUSY;
	struct log_read *r = malloc(sizeof(*r));
	if (!r)
		return -ENOMEM;
	*r = (struct log_read){.next = l->first, .request = ++l->last_request, .asked = clock_boottime(), .done = done, .arg = arg};
	int e = chan_send(c, MSG_ID_log_read, &(struct msg_log_read){.after = after}, r->request, NULL, 0, NULL);
	if (e < 0) {
		free(r);
		return e;
	}
	l->first = r;
	l->n++;
	return 0;
}

int log_reads_follow(struct log_reads *l, struct chan *c, uint64_t after, box_log_fn *done, void *arg)
{
	struct msg_log_read m = {.after = after};
	if (!done) {
		l->follower.request = 0;
		return 0;
	}
	msg_set(&m, log_read, wait, true);
	uint64_t request = ++l->last_request;
	int e = chan_send(c, MSG_ID_log_read, &m, request, NULL, 0, NULL);
	if (e < 0)
		return e;
	l->follower.request = request;
	l->follower.done = done;
	l->follower.arg = arg;
	return 0;
}

static void end_following(struct log_reads *l)
{
	if (!l->follower.request)
		return;
	l->follower.request = 0;
	l->follower.done(NULL, l->follower.arg);
}

void log_reads_answer(struct log_reads *l, uint64_t request, const struct msg_log_page *m)
{
	if (request && request == l->follower.request) {
		if (m)
			l->follower.done(m, l->follower.arg);
		else
			end_following(l);
		return;
	}
	for (struct log_read **at = &l->first; *at; at = &(*at)->next)
		if ((*at)->request == request) {
			finish(l, at, m);
			return;
		}
}

void log_reads_fail(struct log_reads *l)
{
	while (l->first)
		finish(l, &l->first, NULL);
	end_following(l);
}
