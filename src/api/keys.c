#include "api/keys.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/map.h"
#include "base/random.h"

#include <assert.h>
#include <openssl/sha.h>
#include <stdio.h>

const char keys_schema[] =
	"CREATE TABLE key ("
	" id TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, hint TEXT NOT NULL, hash TEXT NOT NULL UNIQUE,"
	" created_at INTEGER NOT NULL, used_at INTEGER NOT NULL DEFAULT 0, revoked_at INTEGER NOT NULL DEFAULT 0"
	") STRICT, WITHOUT ROWID";

struct keys {
	struct map by_hash;
	struct key **list;
	size_t count, cap;
};

struct key_uses {
	size_t count;
	struct {
		char id[37];
		int64_t at;
	} uses[];
};

void key_hash(struct str secret, char ret[65])
{
	unsigned char digest[SHA256_DIGEST_LENGTH];
	SHA256((const unsigned char *)secret.p, secret.n, digest);
	hex_encode(ret, digest, sizeof(digest));
}

void key_make(char ret_secret[KEY_SECRET + 1], struct key *ret)
{
	unsigned char bytes[20];
	random_bytes(bytes, sizeof(bytes));
	memcpy(ret_secret, "e2b_", 4);
	hex_encode(ret_secret + 4, bytes, sizeof(bytes));
	memset(ret, 0, sizeof(*ret));
	random_uuid(ret->id);
	memcpy(ret->hint, ret_secret, 12);
	key_hash(str_n(ret_secret, KEY_SECRET), ret->hash);
	ret->created_at = clock_realtime();
}

static void copy(char *to, size_t size, struct str s)
{
	size_t n = MIN(s.n, size - 1);
	memcpy(to, s.p, n);
	to[n] = 0;
}

struct key *keys_add(struct keys *k, const struct key *key)
{
	if (k->count == k->cap) {
		size_t cap = k->cap ? k->cap * 2 : 16;
		struct key **list = realloc(k->list, cap * sizeof(*list));
		if (!list)
			return NULL;
		k->list = list;
		k->cap = cap;
	}
	struct key *mine = malloc(sizeof(*mine));
	if (!mine || map_put(&k->by_hash, str_of(key->hash), mine, NULL) < 0) {
		free(mine);
		return NULL;
	}
	*mine = *key;
	k->list[k->count++] = mine;
	return mine;
}

/* Of a statement that could not be prepared. */
static int code_of(const struct error *err)
{
	return err ? err->code : -EIO;
}

static int load(struct keys *k, struct store *store, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(store,
		"SELECT id, team, name, hint, hash, created_at, used_at, revoked_at FROM key ORDER BY created_at, id", err);
	if (!q)
		return code_of(err);
	int r;
	while ((r = stmt_step(q, err)) > 0) {
		struct key key = {.created_at = stmt_get_i64(q, 5), .used_at = stmt_get_i64(q, 6), .stored_use = stmt_get_i64(q, 6),
			.revoked_at = stmt_get_i64(q, 7)};
		copy(key.id, sizeof(key.id), stmt_get_str(q, 0));
		copy(key.team, sizeof(key.team), stmt_get_str(q, 1));
		copy(key.name, sizeof(key.name), stmt_get_str(q, 2));
		copy(key.hint, sizeof(key.hint), stmt_get_str(q, 3));
		copy(key.hash, sizeof(key.hash), stmt_get_str(q, 4));
		if (!keys_add(k, &key))
			return error_errno(err, -ENOMEM, "keys");
	}
	return r;
}

int keys_new(struct store *store, struct keys **ret, struct error *err)
{
	struct keys *k = calloc(1, sizeof(*k));
	if (!k)
		return error_errno(err, -ENOMEM, "keys");
	int r = load(k, store, err);
	if (r < 0) {
		keys_free(k);
		return r;
	}
	*ret = k;
	return 0;
}

void keys_free(struct keys *k)
{
	if (!k)
		return;
	for (size_t i = 0; i < k->count; i++)
		free(k->list[i]);
	free(k->list);
	map_done(&k->by_hash);
	free(k);
}

struct key *keys_check(const struct keys *k, struct str secret)
{
	if (secret.n != KEY_SECRET || !str_starts(secret, STR("e2b_")))
		return NULL;
	/* The map compares hashes, which say nothing of the secret to who measures its time; the last comparison takes the same time anyway. */
	char hash[65];
	key_hash(secret, hash);
	struct key *key = map_get(&k->by_hash, str_of(hash));
	return key && !key->revoked_at && str_eq_secret(str_of(key->hash), str_of(hash)) ? key : NULL;
}

void keys_used(struct key *key, int64_t now)
{
	if (now - key->used_at >= KEY_USE_SECONDS * NS_PER_S || now < key->used_at)
		key->used_at = now;
}

bool keys_has_hash(const struct keys *k, struct str hash)
{
	return map_get(&k->by_hash, hash) != NULL;
}

struct key *keys_find(const struct keys *k, struct str id)
{
	for (size_t i = 0; i < k->count; i++)
		if (!k->list[i]->revoked_at && str_is(id, k->list[i]->id))
			return k->list[i];
	return NULL;
}

size_t keys_count(const struct keys *k)
{
	return k->count;
}

const struct key *keys_at(const struct keys *k, size_t i)
{
	assert(i < k->count);
	return k->list[i];
}

void keys_revoke(struct key *key, int64_t now)
{
	key->revoked_at = now;
}

static void drop_at(struct keys *k, size_t i)
{
	struct key *key = k->list[i];
	map_del(&k->by_hash, str_of(key->hash));
	memmove(k->list + i, k->list + i + 1, (--k->count - i) * sizeof(k->list[0]));
	free(key);
}

void keys_drop(struct keys *k, struct key *key)
{
	for (size_t i = k->count; i-- > 0;)
		if (k->list[i] == key)
			drop_at(k, i);
}

void keys_drop_team(struct keys *k, struct str team)
{
	for (size_t i = k->count; i-- > 0;)
		if (str_is(team, k->list[i]->team))
			drop_at(k, i);
}

size_t keys_count_team(const struct keys *k, struct str team)
{
	size_t n = 0;
	for (size_t i = 0; i < k->count; i++)
		n += !k->list[i]->revoked_at && str_is(team, k->list[i]->team);
	return n;
}

/* Runs one writing statement that is prepared and bound, in a transaction that is on the disk afterwards. */
static int write_one(struct store *store, const char *sql, void (*bind)(struct stmt *q, const void *arg), const void *arg, struct error *err)
{
	int r = store_begin(store, STORE_FULL, err);
	if (r < 0)
		return r;
	struct stmt *q = store_prepare(store, sql, err);
	r = q ? 0 : code_of(err);
	if (q) {
		bind(q, arg);
		r = stmt_step(q, err);
		stmt_done(q);
	}
	if (r < 0) {
		store_rollback(store);
		return r;
	}
	return store_commit(store, err);
}

static void bind_key(struct stmt *q, const void *arg)
{
	const struct key *key = arg;
	stmt_text(q, 1, str_of(key->id));
	stmt_text(q, 2, str_of(key->team));
	stmt_text(q, 3, str_of(key->name));
	stmt_text(q, 4, str_of(key->hint));
	stmt_text(q, 5, str_of(key->hash));
	stmt_i64(q, 6, key->created_at);
}

int keys_store(struct store *store, const struct key *key, struct error *err)
{
	return write_one(store, "INSERT INTO key (id, team, name, hint, hash, created_at) VALUES (?, ?, ?, ?, ?, ?)", bind_key, key, err);
}

static void bind_name(struct stmt *q, const void *arg)
{
	const struct key *key = arg;
	stmt_text(q, 1, str_of(key->name));
	stmt_text(q, 2, str_of(key->id));
}

int keys_store_renamed(struct store *store, const struct key *key, struct error *err)
{
	return write_one(store, "UPDATE key SET name = ? WHERE id = ?", bind_name, key, err);
}

struct revocation {
	const char *id;
	int64_t at;
};

static void bind_revocation(struct stmt *q, const void *arg)
{
	const struct revocation *v = arg;
	stmt_i64(q, 1, v->at);
	stmt_text(q, 2, str_of(v->id));
}

int keys_store_revoked(struct store *store, const char *id, int64_t now, struct error *err)
{
	struct revocation v = {id, now};
	return write_one(store, "UPDATE key SET revoked_at = ? WHERE id = ? AND revoked_at = 0", bind_revocation, &v, err);
}

static void bind_id(struct stmt *q, const void *arg)
{
	stmt_text(q, 1, str_of(arg));
}

int keys_store_dropped(struct store *store, const char *id, struct error *err)
{
	return write_one(store, "DELETE FROM key WHERE id = ?", bind_id, id, err);
}

struct key_uses *keys_take_uses(struct keys *k)
{
	size_t n = 0;
	for (size_t i = 0; i < k->count; i++)
		n += k->list[i]->used_at != k->list[i]->stored_use;
	struct key_uses *u = n ? malloc(sizeof(*u) + n * sizeof(u->uses[0])) : NULL;
	if (!u)
		return NULL;
	u->count = 0;
	for (size_t i = 0; i < k->count; i++) {
		struct key *key = k->list[i];
		if (key->used_at == key->stored_use)
			continue;
		key->stored_use = key->used_at;
		memcpy(u->uses[u->count].id, key->id, sizeof(key->id));
		u->uses[u->count++].at = key->used_at;
	}
	return u;
}

int key_uses_store(struct store *store, const struct key_uses *u, struct error *err)
{
	int r = store_begin(store, STORE_NORMAL, err);
	if (r < 0)
		return r;
	for (size_t i = 0; r >= 0 && i < u->count; i++) {
		struct stmt *q = store_prepare(store, "UPDATE key SET used_at = ? WHERE id = ?", err);
		if (!q) {
			r = code_of(err);
			break;
		}
		stmt_i64(q, 1, u->uses[i].at);
		stmt_text(q, 2, str_of(u->uses[i].id));
		r = stmt_step(q, err);
		stmt_done(q);
	}
	if (r < 0) {
		store_rollback(store);
		return r;
	}
	return store_commit(store, err);
}
