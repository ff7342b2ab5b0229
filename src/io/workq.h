/* A bounded pool of threads for blocking work; completions run in the loop that asked. */
#ifndef CUBICLE_IO_WORKQ_H
#define CUBICLE_IO_WORKQ_H

#include "io/loop.h"

struct workq;

/* `threads` workers, at most `max_queued` waiting jobs. NULL without memory or threads. */
struct workq *workq_new(unsigned threads, unsigned max_queued);
/* Waits for running jobs, drops queued ones without running them. Takes NULL. */
void workq_free(struct workq *q);

/* Runs work(arg) on a worker, then done(arg) in loop l's thread (both with the same arg; done may be NULL).
 * 0, -EAGAIN when the queue is full, -ENOMEM. */
int workq_push(struct workq *q, struct loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg);

/* A job with this arg that no worker has begun is forgotten: true, and neither work() nor done() follows. */
bool workq_take_back(struct workq *q, const void *arg);

#endif
