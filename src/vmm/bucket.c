#include "vmm/bucket.h"

#include "base/cleanup.h"
#include "base/clock.h"

int64_t bucket_wait(const struct bucket *b, int64_t now)
{
	/* Empty is: a second to full. */
	int64_t missing = b->full_at - now;
	return b->rate == 0 || missing < NS_PER_S ? 0 : missing - NS_PER_S + 1;
}

void bucket_take(struct bucket *b, int64_t now, uint64_t units)
{
	if (b->rate)
		b->full_at = MAX(b->full_at, now) + (int64_t)(units * (uint64_t)NS_PER_S / b->rate);
}
