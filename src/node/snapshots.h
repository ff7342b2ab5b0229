/*
 * Snapshots, forks and rollbacks. All begin with a copy of a running sandbox's disk (box_copy()), or with one made before; at most one of them is under way in a sandbox,
 * the others wait. Inside the room of node.
 *
 *     snapshot   copy, record, tell: its programs run on. The copy is a layer of what is made from it, below a new empty disk.
 *     fork       copy, then creates from it, as many as were asked for; the copy has no name, and goes with the last sandbox that stands on it.
 *     rollback   a second box on the layers of the snapshot, recorded in place of the first (one transaction: a crash leaves the one or the other), then the first is killed.
 *
 * No memory travels: programs do not run in what comes of it, and what lies in memory (/dev/shm, /run) is not there.
 */
#ifndef CUBICLE_NODE_SNAPSHOTS_H
#define CUBICLE_NODE_SNAPSHOTS_H

#include "node/service.h"

enum {
	SHOTS_WAITING = 64,   /* of one sandbox */
	FORK_MOST = 100,
};

enum shot_kind { SHOT_SNAPSHOT, SHOT_FORK, SHOT_ROLLBACK };

/* One of them, from the request to its end. */
struct shot {
	struct shot *prev_all, *next_all; /* of the node */
	struct shot *next; /* of those that wait for their sandbox */
	enum shot_kind kind;
	struct node *node;
	struct live *live; /* NULL: it is gone, or not needed any more */
	struct request *request; /* NULL: it is answered */
	struct snapshot_record record; /* what is made, or gone back to */
	bool uses;         /* the image and the layers below */
	uint64_t bytes;    /* of the host's disk that the copy may take */
	/* fork */
	struct sandbox parent; /* as it was when it was copied; owned */
	unsigned count, made;
	int64_t timeout;
	struct fork_result *results;
	/* rollback: what the sandbox does not have at the moment, of the two that it may have */
	struct box *box;
	struct box_handle handle;
	struct buf start;
	char launch[9], generation[SANDBOX_GENERATION + 1];
	bool exchanged, recording;
	struct error err;  /* why there is none; code 0 = nothing went wrong */
};

/* Requests of the front. */
void live_snapshot(struct node *n, struct request *r, const struct msg_make_snapshot *m);
void live_fork(struct node *n, struct request *r, const struct msg_fork *m);
void live_rollback(struct node *n, struct request *r, const struct msg_rollback *m);
void snapshot_delete(struct node *n, struct request *r, const struct msg_delete_snapshot *m);

/* The snapshots of this machine. At start: 0 or -errno. */
int snapshots_load(struct node *n, struct error *err);
void snapshots_done(struct node *n);
/* NULL: there is none, or it is being deleted. */
struct snapshot_record *snapshot_find(const struct node *n, struct str id);
void snapshot_message(const struct snapshot_record *s, bool gone, struct msg_snapshot *ret);

/* Layers of what stands on the snapshot, as a raw list: those below it and its image. 0 or -errno. */
int snapshot_layers(const struct snapshot_record *s, struct buf *to, struct error *err);

/* Steps that the files share. */
/* Answers with the message, or with *err. */
void shot_answer(struct shot *x, enum msg_id type, const void *m, const struct error *err);
/* The sandbox is not needed any more: what waits for it goes on. */
void shot_over(struct shot *x);
void shot_free(struct shot *x);
/* All three. */
void shot_done(struct shot *x, enum msg_id type, const void *m, const struct error *err);
void fork_copied(struct shot *x);
void rollback_begin(struct shot *x);
/* The sandbox is being ended. */
void rollback_end(struct shot *x);

#endif
