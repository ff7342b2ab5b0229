/* GET /metrics (e2b.md B.2). */
#ifndef CUBICLE_GUEST_METRICS_H
#define CUBICLE_GUEST_METRICS_H

#include "base/buf.h"
#include "guest/cgroup.h"

/* Of the previous call, for what was used in between. */
struct metrics_sample {
	int64_t at; /* CLOCK_BOOTTIME */
	uint64_t cpu_ns;
};

/* Appends the JSON object. Numbers of the sandbox's cgroup where it can be read, else of the machine (`proc` is a directory descriptor of /proc). 0 or -errno. */
int metrics_json(const struct guest_cgroup *g, int proc, struct metrics_sample *last, struct buf *to);

#endif
