/*
 * A backend without kernel: the test decides when boxes start, die and are released. What would be the kernel's (the "machine") lies in shared memory, so
 * that it outlives a node that the test lets crash in a child process.
 */
#ifndef CUBICLE_TESTS_FAKE_BACKEND_H
#define CUBICLE_TESTS_FAKE_BACKEND_H

#include "sandbox/backend.h"

/* Saved disks are real files, which hold the name of the sandbox. */
enum fake_mode {
	FAKE_AUTO,   /* follows at the next turn of the loop */
	FAKE_MANUAL, /* waits for fake_step_...() */
	FAKE_FAIL,   /* starts only: fails with 500 at the next turn */
};

/* Where the process ends without a word (exit status FAKE_CRASHED). */
enum fake_crash {
	CRASH_NOWHERE,
	CRASH_IN_CREATE,   /* the box is asked for */
	CRASH_STARTED,     /* it runs, the node does not know yet */
	CRASH_IN_KILL,     /* the kill is asked for, nothing is dead */
	CRASH_KILLED,      /* all is dead, the node does not know yet */
	CRASH_IN_FLUSH,    /* frozen, to be written out */
	CRASH_IN_SAVE,     /* to be ended, only its disk kept: nothing is done */
	CRASH_SAVE_KILLED, /* dead, its disk where it was */
	CRASH_SAVED,       /* its disk is saved, the node does not know yet */
	CRASH_IN_COPY,     /* of its disk: half of it is there, under another name */
	CRASH_IN_ASSIGN,   /* of a ready one */
	CRASH_COPIED,      /* it is there, the node does not know yet */
	CRASH_POINTS,
};

enum { FAKE_BOXES = 1024, FAKE_CRASHED = 42 };

/* One process tree of the machine. */
struct fake_box {
	char id[33]; /* "" = free */
	char envs[1024]; /* "K=V\n..." */
	unsigned serial; /* 0, but for another one beside the first of that id */
	char token[65], layer[256], user[33];
	char layers[2048]; /* all, relative to the directory, with ' ' between */
	uint32_t memory_mb;
	char allow[512], deny[512]; /* network policy, entries with ' ' between */
	bool alive, internet, frozen, unassigned, known; /* known: the running node has adopted or made it */
	bool disk;        /* dead, but its disk is there */
	char from[64];    /* the saved disk it was started from */
	uint64_t brake;
	unsigned syncs, trims;
	bool flush_room;  /* what the last flush was told */
	struct box_space space;
	struct box_stats stats;
	char log[512]; /* what its init says to each question */
	struct box_death evidence; /* what is found when it is dead */
};

struct fake {
	enum fake_mode start, kill, flush, save, copy;
	enum fake_mode prepare, assign; /* of unassigned ones; FAKE_FAIL: an assignment brings an error */
	int flush_result; /* what a flush and a freeze come to */
	int freeze_result;
	char dir[256];    /* where saved disks are */
	enum fake_crash crash;
	bool full;       /* box_create says 503 */
	bool machines;   /* there are microVMs */
	bool network_fails, network_waits; /* box_network: done() brings an error; comes with fake_step_networks() */
	bool silent;     /* adoption is never answered */
	int open_refused; /* what box_open returns at once; 0 = it does not */
	int open_result; /* what box_open gives; 0 = a socket */
	unsigned assigns;
	unsigned creates, kills, saves, copies, drops, adopts, readies, readings, drains, live, most_live;
	struct fake_box machine[FAKE_BOXES];
};

extern struct fake *fake;

/* Makes the shared memory, or empties it. */
void fake_reset(void);
struct fake_box *fake_find(const char *id);
unsigned fake_alive(void);
/* Manual mode: lets every waiting start (or kill) go on; the number of them. */
unsigned fake_step_starts(void);
unsigned fake_step_kills(void);
/* Those that run and are not assigned are ready now, or are not any more; the number of them. */
unsigned fake_prepare(bool ready);
/* Lets every waiting assignment go on. */
unsigned fake_step_assigns(void);
/* Lets the waiting changes of network policies go on. */
unsigned fake_step_networks(void);
unsigned fake_step_flushes(void);
unsigned fake_step_saves(void);
unsigned fake_step_copies(void);
/* The processes of a box end by themselves; the node (if one runs) is told. */
void fake_die(const char *id, const char *reason, const char *detail);

#endif
