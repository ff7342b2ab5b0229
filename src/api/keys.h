/*
 * API keys: "e2b_" and 40 hex digits, known only by their SHA-256. All of them are in memory, so a check is one look-up; front.db keeps them. A revoked key
 * is forgotten, except the one that serve made at its first start: a tombstone keeps it from being taken again. Functions run on the loop, except those that
 * say "blocks": they touch only the database and run on a worker.
 */
#ifndef CUBICLE_API_KEYS_H
#define CUBICLE_API_KEYS_H

#include "base/error.h"
#include "base/str.h"
#include "store/store.h"

enum {
	KEY_SECRET = 44, /* characters of a key */
	KEY_NAME_MAX = 128,
	KEY_USE_SECONDS = 60, /* uses are recorded no finer */
};

struct key {
	char id[37]; /* UUID */
	char name[KEY_NAME_MAX + 1];
	char team[65]; /* its ref (api/teams.h) */
	char hint[17];       /* the key's first characters */
	char hash[65];       /* hex SHA-256 of the key */
	int64_t created_at;  /* ns, CLOCK_REALTIME, as the next ones */
	int64_t used_at;     /* 0 = never */
	int64_t stored_use;  /* private: used_at as the database has it */
	int64_t revoked_at;  /* 0 = valid */
	bool changing;       /* only in memory: a rename is under way */
};

struct keys;

/* SQL that makes the table. */
extern const char keys_schema[];

/* Reads all keys. Blocks; for the start. The store is not owned. 0 or -errno with *err. */
int keys_new(struct store *store, struct keys **ret, struct error *err);
/* Takes NULL. */
void keys_free(struct keys *k);

/* A new key: the secret, and its record without name and team. */
void key_make(char ret_secret[KEY_SECRET + 1], struct key *ret);
/* Hex SHA-256 of a secret. */
void key_hash(struct str secret, char ret[65]);

/* The valid key of that secret, or NULL. */
struct key *keys_check(const struct keys *k, struct str secret);
/* Marks it as used now. */
void keys_used(struct key *key, int64_t now);
/* Whether a hash is known, also of a revoked key. */
bool keys_has_hash(const struct keys *k, struct str hash);
/* By id; NULL when unknown or revoked. */
struct key *keys_find(const struct keys *k, struct str id);
/* In order of creation, revoked ones too. */
size_t keys_count(const struct keys *k);
const struct key *keys_at(const struct keys *k, size_t i);

/* A stored record becomes valid. The key in memory, or NULL without memory. */
struct key *keys_add(struct keys *k, const struct key *key);
/* It stays as a tombstone. */
void keys_revoke(struct key *key, int64_t now);
/* It is forgotten and freed; so are all of a team. */
void keys_drop(struct keys *k, struct key *key);
void keys_drop_team(struct keys *k, struct str team);
/* How many valid ones a team has. */
size_t keys_count_team(const struct keys *k, struct str team);

/* Database writes; block. 0, -EEXIST (the hash is known), or another -errno with *err. */
int keys_store(struct store *store, const struct key *key, struct error *err);
int keys_store_renamed(struct store *store, const struct key *key, struct error *err);
int keys_store_revoked(struct store *store, const char *id, int64_t now, struct error *err);
int keys_store_dropped(struct store *store, const char *id, struct error *err);

/* Uses that the database does not know yet, as a list to be stored; NULL when there are none. */
struct key_uses;
struct key_uses *keys_take_uses(struct keys *k);
/* Blocks. Failure loses uses, nothing else. */
int key_uses_store(struct store *store, const struct key_uses *u, struct error *err);

#endif
