/* Questions to a box's init whose answer is `ok` or `error`. On the loop. */
#ifndef CUBICLE_SANDBOX_MICROVM_ASKS_H
#define CUBICLE_SANDBOX_MICROVM_ASKS_H

#include "sandbox/box/box.h"

/* Sends it; done() follows once, before this returns only without memory: err NULL for ok, else what init said, -ETIMEDOUT after so many seconds, -EPIPE (the box has no channel), or as asks_fail() says. */
void init_ask(struct box *b, enum msg_id type, const void *m, unsigned seconds, runtime_done_fn *done, void *arg);
/* True when the message answers one. */
bool asks_answer(struct box *b, const struct chan_message *m);
/* Nobody will answer: -ECANCELED, the box goes; -EPIPE, its channel is gone. */
void asks_fail(struct box *b, int code);

#endif
