#include "api/idempotency.h"
#include "api/keys.h"
#include "base/buf.h"
#include "base/cleanup.h"

#include <errno.h>

static int add(const char *p, size_t n, void *to)
{
	return buf_add(to, p, n);
}

static int fingerprint(const json_t *body, bool v2, char ret[65], struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	buf_add_c(&text, v2 ? "v2 " : "v1 ");
	if (json_dump_callback(body, add, &text, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY) < 0)
		return error_set(err, -ENOMEM, 503, "the server is out of memory");
	key_hash(buf_str(&text), ret);
	return 0;
}

int create_name_parse(const struct http_head *head, const json_t *body, bool v2, struct create_name *ret, struct error *err)
{
	const struct http_header *found = NULL;
	*ret = (struct create_name){.key = STR("")};
	for (size_t i = 0; i < head->n_headers; i++) {
		if (!str_eq_nocase(head->headers[i].name, STR("idempotency-key")))
			continue;
		if (found)
			return error_set(err, -EINVAL, 400, "Idempotency-Key: one is enough");
		found = &head->headers[i];
	}
	if (!found)
		return 0;
	bool fits = found->value.n >= 1 && found->value.n <= IDEMPOTENCY_KEY_MAX;
	for (size_t i = 0; fits && i < found->value.n; i++)
		fits = found->value.p[i] > ' ' && found->value.p[i] < 0x7f;
	if (!fits)
		return error_set(err, -EINVAL, 400, "Idempotency-Key: 1 to %d visible ASCII characters are needed", IDEMPOTENCY_KEY_MAX);
	ret->key = found->value;
	/* Without a body there is nothing to create. */
	return body ? fingerprint(body, v2, ret->fingerprint, err) : 0;
}

int create_name_find(const struct sandbox_index *ix, struct str team, const struct create_name *name, const struct index_sandbox **ret, struct error *err)
{
	const struct index_sandbox *s = name->key.n ? index_named(ix, team, name->key) : NULL;
	if (!s)
		return 0;
	if (!str_is(s->fingerprint, name->fingerprint))
		return error_set(err, -EEXIST, 409, "Idempotency-Key: sandbox %.*s was made with this key by another request", STR_FMT(s->id));
	if (s->state == SANDBOX_KILLING)
		return error_set(err, -EEXIST, 409, "Idempotency-Key: sandbox %.*s, made with this key, is being ended", STR_FMT(s->id));
	*ret = s;
	return index_is_running(s) || index_is_paused(s);
}
