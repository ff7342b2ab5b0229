#include "interp/patience.h"

#include "base/clock.h"

#include <errno.h>

#define TOO_LATE (1 * NS_PER_S)

static void on_timer(struct loop_timer *t, void *arg)
{
	struct patience *p = arg;
	if (clock_boottime() - p->due > TOO_LATE)
		patience_start(p, p->time);
	else
		p->fn(p->arg);
}

int patience_init(struct patience *p, struct loop *l, loop_post_fn *fn, void *arg)
{
	*p = (struct patience){.timer = loop_timer_new(l, on_timer, p), .fn = fn, .arg = arg};
	return p->timer ? 0 : -ENOMEM;
}

void patience_done(struct patience *p)
{
	loop_timer_free(p->timer);
	p->timer = NULL;
}

void patience_start(struct patience *p, int64_t ns)
{
	p->time = ns;
	p->due = clock_boottime() + ns;
	loop_timer_at(p->timer, p->due);
}

void patience_stop(struct patience *p)
{
	loop_timer_stop(p->timer);
}
