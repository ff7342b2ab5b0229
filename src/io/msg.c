#include "io/messages.h"
#include "base/encode.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

static const uint32_t magic = 0x4d425543; /* "CUBM" */

#define REQUIRED true
#define OPTIONAL false
#define ENTRY(message, tag, kind, name, max, need)                                                           \
	{#name, offsetof(struct msg_##message, name), max, tag, MSG_##kind, need},
#define FIELDS(id, message, directions, fds)                                                                 \
	static const struct msg_field fields_##message[] = {MSG_FIELDS_##message(ENTRY){NULL, 0, 0, 0, 0, false}};
MESSAGES(FIELDS)

static const struct msg_type types[] = {
#define TYPE(id, message, directions, fds)                                                                   \
	{#message, fields_##message, sizeof(fields_##message) / sizeof(fields_##message[0]) - 1,             \
		sizeof(struct msg_##message), directions, id, fds},
	MESSAGES(TYPE)};

const struct msg_type *msg_type(unsigned id)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i].id == id)
			return &types[i];
	return NULL;
}

/* Takes one u32-length-prefixed run off *rest; false (rest untouched) when it does not fit. */
static bool take_run(struct str *rest, struct str *ret)
{
	if (rest->n < 4)
		return false;
	size_t n = le_get(rest->p, 4);
	if (n > rest->n - 4)
		return false;
	*ret = str_n(rest->p + 4, n);
	*rest = str_from(*rest, 4 + n);
	return true;
}

static int add_run(struct buf *raw, struct str s)
{
	char n[4];
	if (s.n > MSG_MAX)
		return -EMSGSIZE;
	le_put(n, s.n, 4);
	return buf_add(raw, n, 4) < 0 || buf_add_str(raw, s) < 0 ? -ENOMEM : 0;
}

bool msg_map_next(struct str *rest, struct str *ret_key, struct str *ret_value)
{
	struct str at = *rest, key, value;
	if (!take_run(&at, &key) || !take_run(&at, &value))
		return false;
	*ret_key = key;
	*ret_value = value;
	*rest = at;
	return true;
}

bool msg_list_next(struct str *rest, struct str *ret_item)
{
	return take_run(rest, ret_item);
}

int msg_map_add(struct buf *raw, struct str key, struct str value)
{
	int r = add_run(raw, key);
	return r < 0 ? r : add_run(raw, value);
}

int msg_list_add(struct buf *raw, struct str item)
{
	return add_run(raw, item);
}

static bool well_formed(struct str raw, unsigned runs)
{
	struct str run;
	unsigned n = 0;
	while (raw.n) {
		if (!take_run(&raw, &run))
			return false;
		n++;
	}
	return n % runs == 0;
}

static struct str *view_at(const void *m, const struct msg_field *f)
{
	/* struct msg_map and struct msg_list hold exactly one struct str. */
	return (struct str *)((char *)(uintptr_t)m + f->offset);
}

static void add_field(struct buf *to, const struct msg_field *f, struct str bytes)
{
	char head[8];
	le_put(head, f->tag, 2);
	le_put(head + 2, f->kind, 2);
	le_put(head + 4, bytes.n, 4);
	buf_add(to, head, sizeof(head));
	buf_add_str(to, bytes);
}

static int encode_field(struct buf *to, const struct msg_field *f, const void *m, struct error *err)
{
	char number[8];
	const char *at = (const char *)m + f->offset;
	switch ((enum msg_kind)f->kind) {
	case MSG_U64:
	case MSG_I64:
		le_put(number, *(const uint64_t *)(const void *)at, 8);
		add_field(to, f, str_n(number, 8));
		return 0;
	case MSG_BOOL:
		number[0] = *(const bool *)(const void *)at ? 1 : 0;
		add_field(to, f, str_n(number, 1));
		return 0;
	case MSG_STR:
	case MSG_MAP:
	case MSG_LIST:
		if (view_at(m, f)->n > f->max)
			return error_set(err, -EMSGSIZE, 400, "%s: longer than %u bytes", f->name, f->max);
		add_field(to, f, *view_at(m, f));
		return 0;
	}
	return -EINVAL;
}

int msg_encode(unsigned type, const void *m, uint64_t request, struct buf *to, struct error *err)
{
	const struct msg_type *t = msg_type(type);
	assert(t);
	uint64_t present = *(const uint64_t *)m;
	size_t before = buf_len(to);
	char head[MSG_HEADER] = {0};
	buf_add(to, head, sizeof(head));
	for (const struct msg_field *f = t->fields; f->name; f++) {
		if (!f->required && !(present >> f->tag & 1))
			continue;
		int r = encode_field(to, f, m, err);
		if (r < 0)
			return r;
	}
	if (to->failed)
		return error_errno(err, -ENOMEM, "message %s", t->name);
	size_t length = buf_len(to) - before;
	if (length > MSG_MAX)
		return error_set(err, -EMSGSIZE, 400, "%s: longer than %d bytes in all", t->name, MSG_MAX);
	char *at = to->data + to->start + before;
	le_put(at, magic, 4);
	le_put(at + 4, MSG_VERSION, 2);
	le_put(at + 6, type, 2);
	le_put(at + 8, length, 4);
	le_put(at + 16, request, 8);
	return 0;
}

static int decode_field(const struct msg_field *f, void *m, unsigned kind, struct str bytes)
{
	char *at = (char *)m + f->offset;
	if (kind != f->kind)
		return -EPROTO;
	switch ((enum msg_kind)f->kind) {
	case MSG_U64:
	case MSG_I64:
		if (bytes.n != 8)
			return -EPROTO;
		*(uint64_t *)(void *)at = le_get(bytes.p, 8);
		return 0;
	case MSG_BOOL:
		if (bytes.n != 1 || (unsigned char)bytes.p[0] > 1)
			return -EPROTO;
		*(bool *)(void *)at = bytes.p[0];
		return 0;
	case MSG_STR:
	case MSG_MAP:
	case MSG_LIST:
		if (bytes.n > f->max || (kind == MSG_MAP && !well_formed(bytes, 2)) ||
			(kind == MSG_LIST && !well_formed(bytes, 1)))
			return -EPROTO;
		*view_at(m, f) = bytes;
		return 0;
	}
	return -EPROTO;
}

static const struct msg_field *field_of(const struct msg_type *t, unsigned tag)
{
	for (const struct msg_field *f = t->fields; f->name; f++)
		if (f->tag == tag)
			return f;
	return NULL;
}

int msg_decode(struct str d, struct msg_header *ret_header, void *ret, size_t size, struct error *err)
{
	if (d.n < MSG_HEADER || d.n > MSG_MAX || le_get(d.p, 4) != magic || le_get(d.p + 8, 4) != d.n)
		return error_set(err, -EPROTO, 500, "message: bad header");
	struct msg_header h = {(uint16_t)le_get(d.p + 4, 2), (uint16_t)le_get(d.p + 6, 2), le_get(d.p + 16, 8)};
	const struct msg_type *t = msg_type(h.type);
	if (!t || h.version < MSG_VERSION_OLDEST || h.version > MSG_VERSION)
		return error_set(err, -EOPNOTSUPP, 500, "message: type %u of version %u is unknown", h.type, h.version);
	assert(t->size <= size);
	memset(ret, 0, t->size);
	uint64_t present = 0;
	for (struct str rest = str_from(d, MSG_HEADER); rest.n;) {
		if (rest.n < 8)
			return error_set(err, -EPROTO, 500, "message %s: cut field", t->name);
		unsigned tag = (unsigned)le_get(rest.p, 2), kind = (unsigned)le_get(rest.p + 2, 2);
		size_t n = le_get(rest.p + 4, 4);
		if (n > rest.n - 8)
			return error_set(err, -EPROTO, 500, "message %s: field %u runs over the end", t->name, tag);
		const struct msg_field *f = field_of(t, tag);
		if (f) {
			if (present >> tag & 1)
				return error_set(err, -EPROTO, 500, "message %s: %s comes twice", t->name, f->name);
			if (decode_field(f, ret, kind, str_n(rest.p + 8, n)) < 0)
				return error_set(err, -EPROTO, 500, "message %s: bad %s", t->name, f->name);
			present |= UINT64_C(1) << tag;
		}
		rest = str_from(rest, 8 + n);
	}
	for (const struct msg_field *f = t->fields; f->name; f++)
		if (f->required && !(present >> f->tag & 1))
			return error_set(err, -EPROTO, 500, "message %s: %s is missing", t->name, f->name);
	*(uint64_t *)ret = present;
	*ret_header = h;
	return 0;
}
