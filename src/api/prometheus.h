/*
 * GET /metrics on the listener of `metrics.listen`, in Prometheus' text format 0.0.4: the node's figures (node/figures.h) and the front's own. No label names a
 * sandbox, a team or anything else that a client chose.
 */
#ifndef CUBICLE_API_PROMETHEUS_H
#define CUBICLE_API_PROMETHEUS_H

#include "base/buf.h"
#include "node/figures.h"

struct api;

/* Appends name="value", with a comma before when the buffer holds a label already; the value escaped. */
void prometheus_label(struct buf *to, const char *name, struct str value);

/* Appends the whole text. node NULL: the node did not answer, its figures are left out. */
void prometheus_write(const struct api *a, const struct node_figures *node, struct buf *to);

#endif
