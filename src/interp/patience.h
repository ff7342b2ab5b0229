/*
 * How long somebody else may take. A deadline that is passed by much was not passed by the other side: this
 * process was not running (a paused sandbox, a machine without time), and neither was he; then he gets the
 * whole time once more.
 */
#ifndef CUBICLE_INTERP_PATIENCE_H
#define CUBICLE_INTERP_PATIENCE_H

#include "io/loop.h"

struct patience {
	struct loop_timer *timer;
	int64_t time, due;
	loop_post_fn *fn;
	void *arg;
};

/* fn(arg) is called when it is over. 0 or -ENOMEM. */
int patience_init(struct patience *p, struct loop *l, loop_post_fn *fn, void *arg);
void patience_done(struct patience *p);

/* Begins (anew), for that many ns. */
void patience_start(struct patience *p, int64_t ns);
void patience_stop(struct patience *p);

#endif
