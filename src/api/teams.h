/*
 * Teams: who keys, sandboxes and snapshots belong to. All of them are in memory; front.db keeps them. Functions run on the loop, except those that say
 * "blocks": they touch only the database and run on a worker.
 *
 * The team that every server has is called "default" in keys and in the node's records, where it was before there were teams; others are called by their id.
 */
#ifndef CUBICLE_API_TEAMS_H
#define CUBICLE_API_TEAMS_H

#include "base/error.h"
#include "base/str.h"
#include "store/store.h"

#define TEAM_DEFAULT "default" /* its `ref` */

enum {
	TEAM_ID = 36, /* characters of a UUID */
	TEAM_NAME_MAX = 64,
};

/* What is limited; each has an option for teams that have no limit of their own. */
enum quota_kind {
	QUOTA_SANDBOXES, /* running at once */
	QUOTA_CREATES,   /* started in a second */
	QUOTA_MEMORY,    /* MiB promised to running sandboxes, or kept of paused ones */
	QUOTA_KINDS,
};

enum { QUOTA_DEFAULT = -1 }; /* the server's option counts; 0 = no limit */

struct team {
	char id[TEAM_ID + 1];  /* UUID */
	char ref[TEAM_ID + 1]; /* what keys and the node's records call it */
	char name[TEAM_NAME_MAX + 1];
	int64_t created_at; /* ns, CLOCK_REALTIME */
	bool blocked;       /* its keys get 403; what runs goes on */
	bool deleted;       /* only in memory */
	bool changing;      /* a write is under way */
	int64_t limits[QUOTA_KINDS];
	int64_t paid_until; /* private to quota.c: CLOCK_MONOTONIC until which the rate of creates is used up */
};

struct teams;

/* SQL that makes the table and the team that keys of before belong to. */
extern const char teams_schema[];

/* Reads all teams. Blocks; for the start. 0 or -errno with *err. */
int teams_new(struct store *store, struct teams **ret, struct error *err);
/* Takes NULL. */
void teams_free(struct teams *t);

/* By `ref`; NULL when unknown or deleted. Teams stay where they are in memory until teams_free(), also deleted ones. */
struct team *teams_by_ref(const struct teams *t, struct str ref);
/* By id or name; NULL when unknown or deleted. */
struct team *teams_find(const struct teams *t, struct str id_or_name);
/* In order of creation, deleted ones too. */
size_t teams_count(const struct teams *t);
struct team *teams_at(const struct teams *t, size_t i);
bool team_is_default(const struct team *team);

/* A team that is not stored yet: an id, no limits of its own. The name is cut at TEAM_NAME_MAX. */
void team_make(struct team *ret, struct str name);
/* A stored team becomes valid. The team in memory, or NULL without memory. */
struct team *teams_add(struct teams *t, const struct team *team);

/* Database writes; block. 0, -EEXIST (the name is taken), or another -errno with *err. */
int teams_store(struct store *store, const struct team *team, struct error *err);
int teams_store_changed(struct store *store, const struct team *team, struct error *err);
/* Deletes it and its keys, in one transaction. */
int teams_store_deleted(struct store *store, const struct team *team, struct error *err);

#endif
