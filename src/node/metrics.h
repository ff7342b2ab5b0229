/*
 * What the sandboxes use, over time: five-second samples for a quarter of an hour, then a point for every two minutes, for 24 hours. In memory only.
 * struct metrics_sample is also what a `metrics_page` (io/messages.h) is made of: node and front are one program.
 */
#ifndef CUBICLE_NODE_METRICS_H
#define CUBICLE_NODE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* e2b.md A.5.4. Memory: used is what cannot be dropped (files in tmpfs too), cache what can; bytes. */
struct metrics_sample {
	int64_t at;           /* ns, CLOCK_REALTIME */
	uint64_t mem_used, mem_cache, mem_total, disk_used, disk_total;
	uint32_t cpu_count;
	uint32_t cpu_percent; /* of all its processors together since the sample before, in hundredths: 0 to 10000 */
};

/* Of an answer about several sandboxes: the newest sample of one. */
struct metrics_newest {
	char id[24]; /* NUL-terminated */
	struct metrics_sample sample;
};

enum {
	METRICS_EVERY_S = 5,
	METRICS_FINE = 180,       /* samples kept as they are: 15 minutes */
	METRICS_COARSE_S = 120,   /* older ones become one: mean of the CPU, most memory, newest disk */
	METRICS_COARSE = 720,     /* 24 hours */
	METRICS_BATCH = 100,      /* most sandboxes in one question */
};

struct metrics_point;

struct metrics_ring {
	struct metrics_point *points; /* owned; grows as it fills */
	uint32_t first, n, cap, most;
};

/* All zero is empty. 24 bytes for each point: at most 21,600 for a sandbox that runs for a day. */
struct metrics_history {
	struct metrics_ring fine, coarse;
	uint64_t mem_total, disk_total; /* of the newest sample */
	uint32_t cpu_count;
	int64_t bucket;                 /* of the coarse point under way; its sums follow */
	uint64_t cpu_sum;
	uint32_t n_bucket, mem_most, cache_most;
};

/* Without memory the oldest point gives its place, or the sample is lost. */
void metrics_add(struct metrics_history *h, const struct metrics_sample *s);
/* Samples with start <= at <= end (ns), oldest first, into to[most]: their number. *ret_more: there are more behind the last. */
size_t metrics_read(const struct metrics_history *h, int64_t start, int64_t end, struct metrics_sample *to, size_t most, bool *ret_more);
/* False while there is none. */
bool metrics_newest(const struct metrics_history *h, struct metrics_sample *ret);
/* Memory it takes. */
size_t metrics_bytes(const struct metrics_history *h);
void metrics_done(struct metrics_history *h);

#endif
