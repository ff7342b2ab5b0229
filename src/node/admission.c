#include "node/admission.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <assert.h>

#define MIB (UINT64_C(1) << 20)

enum {
	LOOK_EVERY_MS = 200,
	PRESSURE_LIMIT = 20,    /* percent of the last 10 s in which everything waited for memory */
	AVAILABLE_SHARE = 25,   /* a 25th of the memory, at most 1 GiB, stays available */
	STRAINED_SHARE = 8,     /* with less than an eighth, at most 4 GiB, pressure is the machine's own */
};

/* The kernel's figure of pressure also holds the waiting of sandboxes that thrash at their own limits. It says something about the machine only when little is
 * available on it; else one sandbox could shut everybody out. */
static bool is_short(const struct host_memory *m)
{
	uint64_t least = MIN(m->total / AVAILABLE_SHARE, 1024 * MIB), strained = MIN(m->total / STRAINED_SHARE, 4096 * MIB);
	return m->available < least || (m->available < strained && m->pressure > PRESSURE_LIMIT);
}

static int check_memory(struct admission *a, uint32_t memory_mb, struct error *err)
{
	int64_t now = a->host->boottime(a->host->arg);
	if (!a->looked || now - a->looked > LOOK_EVERY_MS * NS_PER_MS) {
		int r = a->host->memory(&a->memory, a->host->arg);
		if (r < 0)
			return error_errno(err, r, "memory of the server");
		a->looked = now;
	}
	const struct host_memory *m = &a->memory;
	if (is_short(m))
		return error_set(err, -EAGAIN, 503, "the server is short of memory (%llu MiB available, %.0f %% pressure); try again later",
			(unsigned long long)(m->available / MIB), m->pressure);
	double most = (double)m->total / (double)MIB * a->options->overcommit_memory;
	if ((double)(a->memory_mb + memory_mb) > most)
		return error_set(err, -EAGAIN, 503, "the server's memory is promised to other sandboxes: %llu MiB of %.0f, %u more were asked for",
			(unsigned long long)a->memory_mb, most, memory_mb);
	return 0;
}

int admission_take(struct admission *a, uint32_t memory_mb, uint32_t disk_mb, struct error *err)
{
	if (a->sandboxes >= (uint64_t)a->options->max_sandboxes)
		return error_set(err, -EAGAIN, 503, "the server holds its most sandboxes (%lld); try again later", (long long)a->options->max_sandboxes);
	int r = check_memory(a, memory_mb, err);
	if (r == 0)
		r = disk_account_admit(a->disk, a->disk_mb, disk_mb, err);
	if (r == 0)
		admission_take_over(a, memory_mb, disk_mb);
	return r;
}

void admission_take_over(struct admission *a, uint32_t memory_mb, uint32_t disk_mb)
{
	a->sandboxes++;
	a->memory_mb += memory_mb;
	a->disk_mb += disk_mb;
}

void admission_take_over_disk(struct admission *a, uint32_t disk_mb)
{
	a->disk_mb += disk_mb;
}

void admission_give(struct admission *a, uint32_t memory_mb)
{
	assert(a->sandboxes > 0 && a->memory_mb >= memory_mb);
	a->sandboxes--;
	a->memory_mb -= memory_mb;
}

void admission_give_disk(struct admission *a, uint32_t disk_mb)
{
	assert(a->disk_mb >= disk_mb);
	a->disk_mb -= disk_mb;
}
