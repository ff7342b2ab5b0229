/* How often each route was answered, how, and how long it took: for api/prometheus.h. Bounded: by the table of routes and the statuses that there are. */
#ifndef CUBICLE_API_REQUEST_COUNTS_H
#define CUBICLE_API_REQUEST_COUNTS_H

#include "base/buf.h"

#include <stdint.h>

struct route;
struct request_counts;

/* NULL without memory. */
struct request_counts *request_counts_new(void);
/* Takes NULL. */
void request_counts_free(struct request_counts *c);
/* route NULL: none was found. Without memory for a row it is not counted. */
void request_counts_add(struct request_counts *c, const struct route *route, int status, int64_t ns);
/* Appends the histogram `name`, labels method, route and status. */
void request_counts_write(const struct request_counts *c, const char *name, struct buf *to);

#endif
