/*
 * Ready pools: sandboxes of templates with services that were started ahead. Their services run and are ready when a create comes, which takes one (docs/architecture.md, "Ready pools").
 * Such a sandbox is in no record, no event and no index; a node that starts anew sweeps it.
 */
#ifndef CUBICLE_NODE_READY_POOLS_H
#define CUBICLE_NODE_READY_POOLS_H

#include "base/error.h"
#include "node/pool_info.h"

struct node;
struct live;
struct request;
struct template;
struct disk_entry;
struct node_figures;
struct msg_set_pool;
struct msg_unset_pool;

/* After records and templates are there; nothing is started yet. 0 or -errno. */
int ready_init(struct node *n, struct error *err);
/* Adoption is over: the pools are filled from now on. */
void ready_start(struct node *n);
/* The node stops: none is started any more, and those that nobody has taken are ended. */
void ready_stop(struct node *n);
/* After ready_stop(): nothing of them is left. */
bool ready_stopped(const struct node *n);
/* Boxes are left alone. */
void ready_done(struct node *n);

/* A template is new, different, or gone: what was started from another state of it is not handed out any more. */
void ready_template(struct node *n, const struct template *t, bool gone);

/* A create looks for a ready sandbox. True: it has one, with its id from now on; live_claimed(), live_unclaimed() or live_refused() follows, perhaps before this returns. */
bool ready_claim(struct live *l);
/* The create is freed; what it had taken stays behind. */
void ready_forget(struct live *l);
/* It was started cold instead. */
void ready_missed(struct live *l);
/* A create begins (or ends): pools are not filled meanwhile. */
void ready_creating(struct node *n, bool begins);

/* Somebody who waits for room; part of him. */
struct room_wait {
	struct room_wait *next;
	void (*go)(void *arg);
	void *arg;
	bool waits;
};
/* Admission refused so much. True: a ready sandbox ends for that, go(arg) follows when it is gone: ask again. False: there is none to end, or it would not help. */
bool ready_make_room(struct node *n, struct room_wait *w, uint32_t memory_mb, uint32_t disk_mb, void (*go)(void *arg), void *arg);
/* Does not wait any more, or has not waited. */
void ready_forget_room(struct node *n, struct room_wait *w);

/* If the entry is that of a ready sandbox, that is ended: true. */
bool ready_ended_for_disk(struct node *n, struct disk_entry *e, const char *detail);

/* What the timer calls, for tests with a clock of their own. */
void ready_tick(struct node *n);

void ready_set(struct node *n, struct request *r, const struct msg_set_pool *m);
void ready_unset(struct node *n, struct request *r, const struct msg_unset_pool *m);
void ready_list(struct node *n, struct request *r);
/* Adds its figures. */
void ready_figures(const struct node *n, struct node_figures *f);

#endif
