/* Private to the files of a box: box.c (its states, its end, the control channel), box_create.c, box_adopt.c, box_ask.c (what node asks of a running one), box_network.c,
 * box_assign.c (from unassigned to somebody's), box_save.c (its disk: written out, kept without it). */
#ifndef CUBICLE_SANDBOX_BOX_BOX_H
#define CUBICLE_SANDBOX_BOX_BOX_H

#include "base/log.h"
#include "sandbox/box/impl.h"
#include "sandbox/box/log_reads.h"
#include "sandbox/box/runtime.h"

struct chan;
struct chan_message;
struct flush;
struct monitor_link;

enum {
	BOX_CLAIM_SECONDS = 20,  /* until init must have answered its claim */
	BOX_READY_SECONDS = 56,  /* ... whether its services are ready, of which it has 50 (guest/ready.h) */
	BOX_ASSIGN_SECONDS = 10, /* ... and `assign`: it has no more to do for it than to change two views */
};

enum box_state {
	BOX_MAKING,    /* a worker owns the slot */
	BOX_STARTING,  /* the loop owns it; init was sent its claim, and may have answered it when awaits_ready */
	BOX_RUNNING,   /* started() was called */
	BOX_DEAD,      /* died() was called; the slot is kept as evidence */
	BOX_RELEASING, /* a reaper owns the slot, or will as soon as the spawner's job is over; in between, when its processes do not die, the loop waits for them */
};

/* The copy of a spec that a worker uses; one block of memory. */
struct order {
	struct slot_claim claim;
	char *texts;
};

struct box {
	struct box *prev, *next;
	struct backend *backend;
	const struct runtime *runtime;
	const struct box_ops *ops;
	void *arg;
	enum box_state state;
	bool cancelled;      /* box_kill() while a worker had it; read by the worker: atomic */
	bool reported;       /* the asker knows of the end: no released() */
	bool attaching;      /* a worker attaches a spawner */
	bool warm;
	bool unassigned;     /* of a ready pool, until box_assign() */
	bool ready;          /* what prepared() was told last */
	bool awaits_ready;   /* started() follows when init has said that its services are ready */
	bool claimed;        /* ... and it has answered its claim already */
	char id[33];
	struct slot *slot;
	unsigned number;     /* of the slot; valid while has_number */
	bool has_number;
	struct order order;
	int64_t ordered;     /* its create, CLOCK_MONOTONIC */
	struct reach reach;  /* its network policy; a worker reads it while it has the box */
	struct network_job *network; /* a change of it under way */
	struct chan *chan;
	struct log_reads log_reads;
	struct ask *asks;    /* of init, that wait for their answers (microvm/asks.h) */
	struct monitor_link *monitor; /* of a microVM that is watched (microvm/monitor_link.h); else NULL */
	unsigned openings;   /* into it, that are being made (microvm/openings.h) */
	struct {
		uint64_t request; /* 0: none is under way */
		box_assigned_fn *done;
		void *arg;
	} assign;
	struct loop_fd *watch;
	struct loop_timer *timer;
	struct stats_job *stats; /* being read */
	struct slow_job *slow; /* at most one trim or sync at a time */
	struct copy_job *copy; /* at most one copy of the disk at a time */
	bool frozen;         /* its work group, as box_freeze() was told */
	struct flush *flush; /* under way */
	struct {
		char *image;       /* NULL: nothing is to be saved */
		struct error error;
		void (*done)(const struct error *err, void *arg);
		void *arg;
	} save;
	struct box_death death;
	struct error error;  /* of the worker */
	pid_t spawner;
	bool lives;          /* its processes have not died yet, though they were killed */
	unsigned kills;      /* how often that was so */
	bool late;           /* the loop watches for it: no worker need wait */
};

/* box_assign.c: what init says of an unassigned box: true when it was that. */
bool box_assign_message(struct box *b, const struct chan_message *m);
/* ... of one that is waited for, in BOX_STARTING: likewise. */
bool box_await_message(struct box *b, const struct chan_message *m);
/* No answer will come to an assignment under way. */
void box_assign_failed(struct box *b, const struct error *err);

/* A change of the network policy on a worker (box_network.c). */
struct network_job;
/* The box goes: nobody waits any more. */
void network_job_leave(struct network_job *j);

/* A trim or a sync on a worker. */
struct slow_job {
	struct box *box; /* NULL: it is gone */
	int root;
	bool trim;
};

/* box_copy.c: freezes or thaws the work group beside a copy, which holds it frozen for a moment. 0 or -errno. */
int box_copy_freeze(struct box *b, bool on);
/* The copy under way is to stop, and may not touch the work group any more (`killed`: which is thawed). */
void box_copy_stop(struct box *b, bool killed);

/* In the backend's list; its state is BOX_MAKING. NULL without memory. */
struct box *box_new(struct backend *backend, const struct runtime *runtime, struct str id, const struct box_ops *ops, void *arg);
void box_free(struct box *b);
/* The one place where a state changes; an illegal step aborts. */
void box_set_state(struct box *b, enum box_state to);
/* The slot belongs to the loop from here: its channel and its process are watched. 0 or negative errno with *err. */
int box_watch(struct box *b, struct error *err);
/* It runs: tells the asker, with the handle. */
void box_is_running(struct box *b);
/* The create or adoption has failed: the asker learns it now, the rest goes on behind. */
void box_fail(struct box *b, const struct error *err);
/* Kills and gives back, from any state in which the loop owns the slot; released() follows, unless the asker knows of the end already. */
void box_release(struct box *b);
/* The box is freed: nobody is told of its flush any more. */
void box_forget_flush(struct box *b);
/* Nobody is told of a reading that is under way. */
void box_stats_cancel(struct box *b);
/* On a worker: a free number, and b->slot with it. 0 or -errno in b->error. */
int box_take_slot(struct box *b);
/* In BOX_MAKING: true when it is a create that no worker has begun, and none will. */
bool box_take_back(struct box *b);
/* Has a worker attach a new spawner. */
void box_attach_spawner(struct box *b, pid_t pid);
/* Its image, for reading. A descriptor or -errno. */
int box_open_image(const struct box *b);
/* It is there, running or dead. */
bool box_is_usable(const struct box *b);
/* Fills b->death once. */
void box_find_evidence(struct box *b);

#endif
