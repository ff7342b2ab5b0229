/*
 * The front's index of sandboxes, templates and snapshots: rebuilt from the node's snapshot, kept by its numbered events (io/messages.h).
 * It is the only thing that the API's reads and the ingress's routing look at. Everything here runs on the front's one loop.
 *
 * A new snapshot replaces the old contents when it is complete: entries that it does not name vanish. While no node is connected the last
 * contents stay, so that reads are answered.
 */
#ifndef CUBICLE_API_INDEX_H
#define CUBICLE_API_INDEX_H

#include "io/messages.h"

struct sandbox_index;

/* Pointers to entries and what they hold are valid until control returns to the loop. */
struct index_sandbox {
	struct str id, team, template_id, alias; /* alias: the template's name, empty when it has none */
	enum sandbox_state state;
	struct str generation;                   /* changes at each resume, restore, fork: key of connection pools */
	struct str isolation, launch;            /* launch is empty when unknown */
	struct str envd_token, traffic_token;    /* empty = none is needed */
	int64_t started_at, end_at;              /* ns, CLOCK_REALTIME; end_at INT64_MAX = never */
	uint64_t cpu_count, memory_mb, disk_mb;
	struct msg_map metadata;
	bool has_internet, internet;             /* allow_internet_access as given; has_internet: it was given */
	bool auto_pause, auto_resume, auto_pause_memory;
	bool memory_kept;                        /* paused, and its memory stays on the machine */
	struct msg_list allow_out, deny_out;     /* of the network policy, as given */
	struct str resumed_from;                 /* of its newest resume: "memory", "disk"; empty = none yet */
	struct str origin;                       /* the sandbox it is a fork of, or the snapshot it was made from; empty = made from a template */
	struct str name, fingerprint;            /* the Idempotency-Key of its create, and what that asked for (api/idempotency.h); empty = none */
	int64_t shutdown_at;                     /* ns, CLOCK_REALTIME: it ends then at the latest; INT64_MAX = nothing was said */
	uint64_t sequence;                       /* of the newest message about it */
	uint64_t epoch;                          /* private: the snapshot that last named it */
};

struct index_template {
	struct str id, alias, build_id;
	struct str team;                         /* empty = everybody's, of this machine */
	struct str kind;                         /* whose API made it: "e2b", "cube", "image"; empty = of this machine */
	struct str status, last_error;           /* of the newest build; status is never empty */
	struct str reference;                    /* of kind image; may be empty */
	struct str source;                       /* JSON: what was asked for, without secrets; may be empty */
	struct msg_map tags;                     /* tag -> "build id created_at" */
	bool public;                             /* others than its team may use it */
	int64_t created_at, updated_at;          /* ns, CLOCK_REALTIME */
	uint64_t cpu_count, memory_mb, disk_mb, size, build_count;
	uint64_t epoch; /* private */
};

/* What a tag of a template means. */
struct index_tag {
	struct str tag, build_id;
	int64_t created_at;
};

struct index_snapshot {
	struct str id, team, name;    /* name: [namespace/]name[:tag], empty when it has none */
	struct str sandbox;           /* what it was made of */
	struct str template_id;       /* of that sandbox */
	int64_t created_at;           /* ns, CLOCK_REALTIME */
	uint64_t cpu_count, memory_mb, disk_mb, size;
	uint64_t epoch; /* private */
};

/* How a sandbox ended; kept for 24 hours (design.md §6). */
struct index_end {
	struct str team, reason, detail; /* detail may be empty */
	int64_t at;                      /* ns, CLOCK_REALTIME */
};

/* Told when a generation ends: the sandbox left "running" (pause, kill, death), came back as another generation, or vanished. `s` is what was
 * known before. Every socket of s->generation must be closed. The callback may look things up but must not change the index. */
struct index_listener {
	void (*ended)(const struct index_sandbox *s, void *arg);    /* or NULL */
	void (*appeared)(const struct index_sandbox *s, void *arg); /* one that was not known, other than with a snapshot; or NULL */
	void *arg;
	struct index_listener *next; /* private */
};

/* NULL without memory. */
struct sandbox_index *index_new(void);
/* Takes NULL. Listeners are not told. */
void index_free(struct sandbox_index *ix);

/* The listener (not owned) must outlive the index or be taken off. */
void index_listen(struct sandbox_index *ix, struct index_listener *l);
void index_unlisten(struct sandbox_index *ix, struct index_listener *l);

/* True once a first snapshot was complete: before, "unknown" means nothing and requests get 503. */
bool index_ready(const struct sandbox_index *ix);

/* The entry in whatever state, or NULL. */
const struct index_sandbox *index_find(const struct sandbox_index *ix, struct str id);
/* What a create of this team with this Idempotency-Key made, in whatever state; NULL. */
const struct index_sandbox *index_named(const struct sandbox_index *ix, struct str team, struct str name);
/* Running, as the protocol shows it (running or snapshotting). */
bool index_is_running(const struct index_sandbox *s);
/* Paused or pausing: shown as "paused". Neither running nor paused = not shown at all (being created or killed). */
bool index_is_paused(const struct index_sandbox *s);
/* How it ended, or NULL when that is not known (any more). `now` is CLOCK_REALTIME. */
const struct index_end *index_end_of(struct sandbox_index *ix, struct str id, int64_t now);

/* All entries in ascending order of (started_at, id); i < index_count(). */
size_t index_count(const struct sandbox_index *ix);
const struct index_sandbox *index_at(const struct sandbox_index *ix, size_t i);
/* Position of the first entry >= (started_at, id); index_count() when there is none. */
size_t index_position(const struct sandbox_index *ix, int64_t started_at, struct str id);

/* By its id; NULL. */
const struct index_template *index_template_find(const struct sandbox_index *ix, struct str id);
/* By the name that a team gave it, ready or not; of this machine with an empty team. NULL. */
const struct index_template *index_template_named(const struct sandbox_index *ix, struct str team, struct str name);
/* The team's template of an image that a create named, ready or not (index_template.reference); NULL. */
const struct index_template *index_template_of_image(const struct sandbox_index *ix, struct str team, struct str image);
/* The one of that name that its team lets others use: has a build that is ready; of several the one that is there longest. NULL. */
const struct index_template *index_template_public(const struct sandbox_index *ix, struct str name);
/* Takes the next tag off *rest (start with t->tags.raw); false at the end. One of this machine has none there. */
bool index_tag_next(struct str *rest, struct index_tag *ret);
/* The build that a tag means ("default" for none); false when it means none. */
bool index_template_tag(const struct index_template *t, struct str tag, struct index_tag *ret);
size_t index_template_count(const struct sandbox_index *ix);
const struct index_template *index_template_at(const struct sandbox_index *ix, size_t i);

/* By id; NULL. */
const struct index_snapshot *index_snapshot_find(const struct sandbox_index *ix, struct str id);
/* The newest one of the team with this name; NULL. */
const struct index_snapshot *index_snapshot_named(const struct sandbox_index *ix, struct str team, struct str name);
/* All in ascending order of (created_at, id); i < index_snapshot_count(). */
size_t index_snapshot_count(const struct sandbox_index *ix);
const struct index_snapshot *index_snapshot_at(const struct sandbox_index *ix, size_t i);
/* Position of the first one >= (created_at, id); index_snapshot_count() when there is none. */
size_t index_snapshot_position(const struct sandbox_index *ix, int64_t created_at, struct str id);

/* What node_client feeds. index_begin: a new snapshot starts (numbers of events may start anew). Afterwards each message, until index_synced. */
void index_begin(struct sandbox_index *ix);
/* `event`: sent by the node unasked (request 0), so its number must follow the last one. 0, -ESTALE (a gap: subscribe again), -ENOMEM. */
int index_put_sandbox(struct sandbox_index *ix, const struct msg_sandbox *m, bool event);
int index_put_template(struct sandbox_index *ix, const struct msg_template *m);
int index_put_snapshot(struct sandbox_index *ix, const struct msg_snapshot *m);
void index_synced(struct sandbox_index *ix, uint64_t sequence);
/* The node answered a kill: gone from every list before the client hears of it, whether the event came already or not. */
void index_killed(struct sandbox_index *ix, struct str id);
/* The node answered the deletion of a template or a snapshot: likewise. */
void index_template_deleted(struct sandbox_index *ix, struct str id);
void index_snapshot_deleted(struct sandbox_index *ix, struct str id);

#endif
