#include "base/map.h"
#include "base/random.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t rotl(uint64_t x, int b)
{
	return x << b | x >> (64 - b);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1], v[1] = rotl(v[1], 13) ^ v[0], v[0] = rotl(v[0], 32);
	v[2] += v[3], v[3] = rotl(v[3], 16) ^ v[2];
	v[0] += v[3], v[3] = rotl(v[3], 21) ^ v[0];
	v[2] += v[1], v[1] = rotl(v[1], 17) ^ v[2], v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 (Aumasson, Bernstein 2012): keys may be chosen by a client. */
uint64_t map_hash(uint64_t k0, uint64_t k1, struct str key)
{
	uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
	uint64_t word;
	size_t i = 0;
	for (; i + 8 <= key.n; i += 8) {
		memcpy(&word, key.p + i, 8);
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	word = (uint64_t)key.n << 56;
	for (size_t j = 0; i + j < key.n; j++)
		word |= (uint64_t)(unsigned char)key.p[i + j] << (8 * j);
	v[3] ^= word;
	sip_round(v);
	v[0] ^= word;
	v[2] ^= 0xff;
	for (int r = 0; r < 3; r++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot of the key, or the empty slot where it belongs. */
static struct map_slot *find(const struct map *m, struct str key, uint64_t hash)
{
	for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
		struct map_slot *s = &m->slots[i];
		if (!s->key || (s->hash == hash && str_eq(map_slot_key(s), key)))
			return s;
	}
}

static int grow(struct map *m)
{
	size_t cap = m->cap ? m->cap * 2 : 16;
	struct map fresh = {.slots = calloc(cap, sizeof(*fresh.slots)), .cap = cap, .count = m->count, .k0 = m->k0, .k1 = m->k1};
	if (!fresh.slots)
		return -ENOMEM;
	if (!m->cap) {
		random_bytes(&fresh.k0, sizeof(fresh.k0));
		random_bytes(&fresh.k1, sizeof(fresh.k1));
	}
	map_foreach(m, s) *find(&fresh, map_slot_key(s), s->hash) = *s;
	free(m->slots);
	*m = fresh;
	return 0;
}

void *map_get(const struct map *m, struct str key)
{
	return m->cap ? find(m, key, map_hash(m->k0, m->k1, key))->value : NULL;
}

int map_put(struct map *m, struct str key, void *value, void **ret_old)
{
	if ((m->count + 1) * 4 > m->cap * 3 && grow(m) < 0)
		return -ENOMEM;
	uint64_t hash = map_hash(m->k0, m->k1, key);
	struct map_slot *s = find(m, key, hash);
	void *old = s->value;
	if (!s->key) {
		s->key = str_dup(key);
		if (!s->key)
			return -ENOMEM;
		s->len = key.n;
		s->hash = hash;
		m->count++;
	}
	s->value = value;
	if (ret_old)
		*ret_old = old;
	return 0;
}

void *map_del(struct map *m, struct str key)
{
	if (!m->cap)
		return NULL;
	struct map_slot *s = find(m, key, map_hash(m->k0, m->k1, key));
	if (!s->key)
		return NULL;
	void *value = s->value;
	free(s->key);
	*s = (struct map_slot){0};
	m->count--;
	/* Close the gap (linear probing): move back every later entry whose home is not after the gap. */
	size_t gap = (size_t)(s - m->slots);
	for (size_t i = (gap + 1) & (m->cap - 1); m->slots[i].key; i = (i + 1) & (m->cap - 1)) {
		size_t home = m->slots[i].hash & (m->cap - 1);
		if (((i - home) & (m->cap - 1)) >= ((i - gap) & (m->cap - 1))) {
			m->slots[gap] = m->slots[i];
			m->slots[i] = (struct map_slot){0};
			gap = i;
		}
	}
	return value;
}

void map_done(struct map *m)
{
	map_foreach(m, s) free(s->key);
	free(m->slots);
	*m = MAP_INIT;
}
