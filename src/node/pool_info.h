/*
 * What a ready pool is asked for and has (node/ready_pools.h): node fills it in, front shows it (GET /pools). A `pools_page` (io/messages.h) carries these as they stand: node and front are one
 * program.
 */
#ifndef CUBICLE_NODE_POOL_INFO_H
#define CUBICLE_NODE_POOL_INFO_H

#include "sandbox/sandbox.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	POOL_SIZE_MAX = 1000, /* of min, size and max */
	POOLS_MAX = 256,      /* that are set, one a template */
};

/* Why fewer are ready than are wanted, and none is being started. */
enum pool_block {
	POOL_FREE,     /* nothing: the next one is started soon */
	POOL_NO_ROOM,  /* no memory (ready.memory, or what may be promised), disk or slot is left for one more */
	POOL_FAILING,  /* starts failed: the next one comes after a pause */
};

struct pool_info {
	char template_id[TEMPLATE_ID + 1];
	bool set;                     /* by a client; else the server's defaults count */
	uint32_t min, size, max;      /* size: how many it wants to have now */
	uint32_t ready, starting;
	uint32_t block;               /* enum pool_block */
	uint64_t hits, misses;        /* creates that got one, or had to do without */
	uint64_t failed, evicted;     /* starts that failed; members that made room for a create */
	uint64_t refill_ms;           /* mean of the last starts; 0 = none yet */
	uint64_t memory_mb;           /* promised to its members */
};

#endif
