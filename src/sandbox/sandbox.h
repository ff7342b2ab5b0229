/*
 * One sandbox: what is recorded of it, and its state machine. All on the node's loop thread.
 *
 *     creating ──► running ◄──► pausing ──► paused ──► running
 *         │             │ │                    └──► pausing (its memory is given up or lost: only the disk is kept)
 *         │             │ └► snapshotting ──► running
 *         ▼             ▼
 *       killing ◄── any of them; killing ──► gone
 *         (gone also straight from creating, when nothing was started, and after a restart that finds no process any more)
 *
 * The rule of every transition: intent is recorded before acting, the result after, so that a crash in between is resolved by what the record says.
 */
#ifndef CUBICLE_SANDBOX_SANDBOX_H
#define CUBICLE_SANDBOX_SANDBOX_H

#include "base/buf.h"
#include "io/messages.h"
#include "sandbox/backend.h"

enum {
	SANDBOX_ID = 21,      /* 'i' and 20 of [a-z0-9] */
	TEMPLATE_ID = 28,     /* at most: "tpl-" and 24 of [0-9a-f], when Cube's API made it (cube.md B.2) */
	TEMPLATE_OWN_ID = 20, /* of all others: [a-z0-9] */
	SANDBOX_TOKEN = 64,   /* hex HMAC-SHA256 */
	SANDBOX_GENERATION = 32,
};

#define SANDBOX_NEVER INT64_MAX

struct sandbox {
	char id[SANDBOX_ID + 1];
	enum sandbox_state state; /* only sandbox_set_state() writes it */
	char team[65], template_id[65], alias[257];
	char build[37];           /* of that template; "" = made by an older version */
	int64_t started_at;       /* ns, CLOCK_REALTIME */
	int64_t end_at;           /* what is shown: ns, CLOCK_REALTIME; SANDBOX_NEVER */
	int64_t deadline;         /* what is run on: ns, CLOCK_BOOTTIME of boot_id; SANDBOX_NEVER */
	int64_t shutdown_at;      /* it ends then whatever its deadline is: ns, CLOCK_REALTIME; SANDBOX_NEVER */
	int64_t shutdown;         /* the same in ns of CLOCK_BOOTTIME; recorded, it counts under the kernel of boot_id only */
	int64_t ended_at;         /* ns, CLOCK_REALTIME; with gone */
	char boot_id[37];         /* of the kernel it runs under */
	uint32_t cpu_count, memory_mb, disk_mb;
	bool secure;              /* envd wants a token */
	bool public_traffic;      /* false: the other ports want a token */
	bool has_internet, internet; /* allow_internet_access as given */
	bool auto_pause, auto_resume;
	bool auto_pause_memory;   /* false: the pause at the deadline keeps the disk only */
	bool memory_kept;         /* paused: its processes are frozen; false: only `image` is there */
	int64_t timeout;          /* seconds, of the create; -1 = never */
	char image[64];           /* paused without memory, or becoming so: its disk, relative to node/; "" = none */
	char origin[33];          /* the sandbox it is a fork of, or the snapshot it was made from; "" = made from a template */
	char resumed_from[9];     /* of the newest resume: "memory", "disk"; "" = none */
	char idempotency[256], fingerprint[65]; /* the name that its create had, and of what was asked for; "" = none */
	struct buf metadata;      /* raw msg_map, owned */
	struct buf allow_out, deny_out; /* network policy: raw msg_list, owned */
	struct buf start;         /* what its box is started from: an encoded message `start`, owned */
	char generation[SANDBOX_GENERATION + 1];
	char envd_token[SANDBOX_TOKEN + 1], traffic_token[SANDBOX_TOKEN + 1]; /* derived, not recorded; "" = none */
	char reason[33];          /* why it ends, from the intent on */
	char detail[257];
	char launch[9];           /* "warm", "cold", "" = not started yet */
	struct box_handle handle; /* "" = not started yet */
};

/* Frees what it owns, not *s. */
void sandbox_done(struct sandbox *s);
/* A copy that owns what it holds; *to need not be initialised. 0 or -ENOMEM (then *to owns nothing). */
int sandbox_clone(struct sandbox *to, const struct sandbox *s);
/* What its box is started from; views into s->start. 0, or -EPROTO for a damaged record. */
int sandbox_start(const struct sandbox *s, struct msg_start *ret);
/* The same of an encoded message by itself. */
int start_decode(const struct buf *start, struct msg_start *ret);

/* What it runs in: "namespace" or "microvm". */
const char *sandbox_isolation(const struct sandbox *s);

/* The one place that changes the state; an illegal transition is a mistake in the program and aborts. */
void sandbox_set_state(struct sandbox *s, enum sandbox_state to);
bool sandbox_can_become(enum sandbox_state from, enum sandbox_state to);
/* Its programs run: also while its disk is copied. */
static inline bool sandbox_runs(const struct sandbox *s)
{
	return s->state == SANDBOX_RUNNING || s->state == SANDBOX_SNAPSHOTTING;
}
/* "creating", ... */
const char *sandbox_state_name(enum sandbox_state state);

/* Well-formed id: 'i' and 20 of [a-z0-9]. */
bool sandbox_id_valid(struct str id);
/* A fresh random id and generation. */
void sandbox_new_id(char to[SANDBOX_ID + 1]);
void sandbox_new_generation(char to[SANDBOX_GENERATION + 1]);

enum { SANDBOX_KEY = 32 };
/* Fills in the tokens that its settings ask for: HMAC-SHA256 of purpose and id under the server's key, so the same after every resume and restart. */
void sandbox_derive_tokens(struct sandbox *s, const unsigned char key[SANDBOX_KEY]);

/* Why it ends; a long detail is cut. */
void sandbox_set_reason(struct sandbox *s, const char *reason, const char *detail);

/* Copies a view into a fixed field; false when it does not fit or holds a NUL (then untouched). */
bool sandbox_copy(char *to, size_t size, struct str from);

#endif
