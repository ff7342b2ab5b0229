#include "base/cleanup.h"
#include "base/clock.h"
#include "node/service.h"

#include <errno.h>
#include <stdlib.h>

/*
 * lifecycle.shutdownAfterSeconds: a sandbox ends at that moment, in whatever state it is, whatever its deadline is set to. The moments have a heap of their own: a deadline comes and
 * goes with every transition, they stay from the start to the end. Like deadlines they run on CLOCK_BOOTTIME and are shown as wall time; of one that has not run since the machine was
 * started (it is paused, without memory) only the wall time is known.
 */

static int64_t clock_offset(const struct node *n)
{
	return node_realtime(n) - node_boottime(n);
}

/* `shutdown` is of another boot, as it was recorded. */
static bool by_wall(const struct live *l)
{
	return strcmp(l->s.boot_id, l->node->host->boot_id) != 0;
}

int check_shutdown(const struct msg_create *m, struct error *err)
{
	if (msg_has(m, create, shutdown_after) && (m->shutdown_after < 1 || m->shutdown_after > SHUTDOWN_AFTER_MOST))
		return error_set(err, -EINVAL, 400, "lifecycle.shutdownAfterSeconds: 1 to %d", SHUTDOWN_AFTER_MOST);
	return 0;
}

int live_set_shutdown(struct live *l)
{
	struct node *n = l->node;
	if (l->shutdown_after) {
		l->s.shutdown = node_boottime(n) + l->shutdown_after * NS_PER_S;
		l->s.shutdown_at = l->s.started_at + l->shutdown_after * NS_PER_S;
	}
	return deadlines_set(&n->shutdowns, &l->shutdown, l->s.shutdown);
}

void node_restore_shutdowns(struct node *n)
{
	map_foreach(&n->live, slot)
	{
		struct live *l = slot->value;
		if (l->s.shutdown_at == SANDBOX_NEVER || l->s.state == SANDBOX_KILLING)
			continue;
		if (by_wall(l))
			l->s.shutdown = l->s.shutdown_at - clock_offset(n);
		else
			show_deadline(n, l->s.shutdown, &l->s.shutdown_at);
		if (live_set_shutdown(l) < 0)
			abort(); /* it would run for ever */
		if (l->s.state == SANDBOX_RUNNING || l->s.state == SANDBOX_PAUSED)
			records_put(n->records, &l->s, l->s.state, STORE_NORMAL, NULL, NULL);
	}
}

bool live_shutdown_stepped(struct live *l, int64_t step)
{
	if (l->s.shutdown_at == SANDBOX_NEVER)
		return false;
	if (!by_wall(l)) {
		l->s.shutdown_at += step;
		return true;
	}
	l->s.shutdown = l->s.shutdown_at - clock_offset(l->node);
	if (l->shutdown.heap)
		deadlines_set(&l->node->shutdowns, &l->shutdown, l->s.shutdown);
	return false;
}

void node_expire_shutdowns(struct node *n)
{
	struct deadline *x;
	int64_t now = node_boottime(n);
	while ((x = deadlines_due(&n->shutdowns, now)))
		live_end(container_of(x, struct live, shutdown), "timeout", "shutdownAfterSeconds");
}
