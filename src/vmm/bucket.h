/* A token bucket: so much a second in the long run, a second's worth at once. */
#ifndef CUBICLE_VMM_BUCKET_H
#define CUBICLE_VMM_BUCKET_H

#include <stdint.h>

struct bucket {
	uint64_t rate;   /* units a second; 0 = no limit */
	int64_t full_at; /* when the bucket will be full again, ns */
};

/* How long from `now` (ns) until something may be taken; 0 = it may be now. */
int64_t bucket_wait(const struct bucket *b, int64_t now);
/* Takes `units`, at most UINT32_MAX, more than there is if need be: what comes next waits longer for it. */
void bucket_take(struct bucket *b, int64_t now, uint64_t units);

#endif
