/* What the files of the ready pools share: ready_pools.c (which there are, and what is asked of them), ready_sizing.c (how many, and when), ready_members.c (one ready sandbox). */
#ifndef CUBICLE_NODE_READY_IMPL_H
#define CUBICLE_NODE_READY_IMPL_H

#include "node/ready_pools.h"
#include "node/service.h"

enum { READY_AGE_S = 3600 }; /* then one is replaced */

enum member_state {
	MEMBER_STARTING, /* until its services are ready */
	MEMBER_READY,    /* waits for a create */
	MEMBER_CLAIMED,  /* a create has it; until it is assigned */
	MEMBER_ENDING,   /* killed, until its box is gone */
	MEMBER_STATES,
};

struct ready_pool;

/* A ready sandbox. */
struct member {
	struct member *prev, *next; /* all of the node, in the order of their starts */
	struct node *node;
	struct ready_pool *pool;    /* NULL: that is gone */
	enum member_state state;    /* only member_set_state() writes it */
	struct sandbox s;           /* id, template, sizes, and what its box is started from */
	struct box *box;
	struct box_handle handle;
	struct disk_entry disk;
	struct deadline due;        /* starting: it is given up; ready: it is too old; claimed: its assignment is given up */
	int64_t since;              /* boottime at which it came to be what it is */
	struct live *live;          /* claimed: by this create */
	bool admitted;
};

struct ready_pool {
	struct ready_pool *next;
	struct node *node;
	char template_id[TEMPLATE_ID + 1];
	bool exists;                /* the template does, and has services */
	bool set;                   /* bounds by set_pool */
	uint32_t min, max;
	unsigned n[MEMBER_STATES];
	double wanted;              /* the target, decaying from the last peak */
	unsigned taken;             /* creates in the current window */
	int64_t window_end;
	int64_t used;               /* boottime of the last create; before the first: when it was made */
	int64_t short_since;        /* boottime since when one is missing; 0 = none is */
	int64_t not_before;         /* boottime of the next start */
	int64_t back_off;           /* ns; 0 = the last ones were good */
	bool no_room;               /* for the last one that was to be started */
	int64_t refill;             /* ns, mean of the last ones */
	uint64_t hits, misses, failed, evicted;
	uint64_t memory_mb;         /* promised */
};

struct ready {
	struct ready_pool *pools;
	struct member *first, *last;
	struct deadlines dues;
	struct loop_timer *timer;
	unsigned creating;          /* creates in flight */
	int64_t created;            /* boottime at which the last one began or ended */
	unsigned parallel;          /* starts at once */
	unsigned setting;           /* bounds on their way into the records */
	uint64_t memory_mb;         /* of all that nobody has taken */
	struct room_wait *rooms;    /* who waits for one to end */
	unsigned waiting;
	bool running;
};

static inline int64_t ready_now(const struct node *n)
{
	return n->host->boottime(n->host->arg);
}

/* ready_pools.c */
struct ready_pool *ready_pool_of(const struct node *n, struct str template_id);
/* The same, made if need be. */
struct ready_pool *ready_use_pool(struct node *n, const char *template_id);
/* Back to the server's bounds, or away with it. */
void ready_use_defaults(struct ready_pool *p);
void ready_describe(const struct ready_pool *p, struct pool_info *ret);

/* ready_sizing.c */
unsigned sizing_target(const struct ready_pool *p);
enum pool_block sizing_block(const struct ready_pool *p);
/* Bounds by set_pool, or (set false) the server's. */
void sizing_bounds(struct ready_pool *p, bool set, uint32_t min, uint32_t size, uint32_t max);
/* A create wants one. */
void sizing_taken(struct ready_pool *p);
/* One could not be started, or was lost. */
void sizing_failed(struct ready_pool *p);
/* One was ready so many ns after its start. */
void sizing_refilled(struct ready_pool *p, int64_t ns);
/* Something has changed: looks at it in the next turn of the loop. */
void ready_look(struct node *n);

/* ready_room.c */
/* One is gone: who waits longest is told. */
void ready_room_freed(struct node *n);

/* ready_members.c */
/* Starts one more. 0, -EAGAIN or -ENOSPC when there is no room, or -errno (then the pool has failed). */
int member_start(struct ready_pool *p);
/* Ends one that nobody has taken; again: nothing. */
void member_end(struct member *m, const char *why);
/* Its time is over, whatever that means for it. */
void member_due(struct member *m);
/* All of a pool that nobody has taken. */
void members_end(struct ready_pool *p, const char *why);
/* One that waits is given to a create: true when there was one. */
bool member_claim(struct ready_pool *p, struct live *l);
void members_free(struct node *n);

#endif
