/* Hash map from bytes to a pointer, safe against chosen keys (SipHash-1-3 with a random seed per map). */
#ifndef CUBICLE_BASE_MAP_H
#define CUBICLE_BASE_MAP_H

#include "base/str.h"

struct map_slot {
	char *key; /* owned copy; NULL = empty */
	size_t len;
	uint64_t hash;
	void *value; /* the caller's */
};

struct map {
	struct map_slot *slots;
	size_t cap, count;
	uint64_t k0, k1;
};

#define MAP_INIT ((struct map){0})

/* SipHash-1-3 with a key of two words, for tables of another form. */
uint64_t map_hash(uint64_t k0, uint64_t k1, struct str key);

/* The value, or NULL. */
void *map_get(const struct map *m, struct str key);

/* Adds or replaces; the old value goes to *ret_old when asked for (NULL when new). 0 or -ENOMEM. The key is copied. */
int map_put(struct map *m, struct str key, void *value, void **ret_old);

/* Removes and returns the value, or NULL. */
void *map_del(struct map *m, struct str key);

/* Frees keys and table, not the values. */
void map_done(struct map *m);

static inline struct str map_slot_key(const struct map_slot *s)
{
	return str_n(s->key, s->len);
}

/* Keys that are numbers: the bytes of a fixed-width integer. */
#define MAP_KEY(x) str_n(&(x), sizeof(x))

/* for (each used slot): do not add or remove inside, except map_del + break. */
#define map_foreach(m, s)                                                                                    \
	for (struct map_slot *s = (m)->slots; s && s < (m)->slots + (m)->cap; s++)                           \
		if (s->key)

#endif
