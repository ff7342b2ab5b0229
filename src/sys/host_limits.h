/*
 * Limits of the whole machine that sandboxes count against and that are too low by default. Their memory is charged to the sandbox that uses it (its memory
 * cgroup), so the counts need no guard of their own.
 */
#ifndef CUBICLE_SYS_HOST_LIMITS_H
#define CUBICLE_SYS_HOST_LIMITS_H

#include "base/buf.h"

/* Raises those that are lower; never lowers one. What cannot be raised is logged. */
void host_limits_raise(void);

/* Appends those that are too low and that this process may not raise, with their values, ", " between them. How many. */
unsigned host_limits_missing(struct buf *to);

#endif
