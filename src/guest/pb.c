#include "guest/pb.h"
#include "base/encode.h"

#include <ctype.h>
#include <errno.h>

const json_t *pb_get(const json_t *o, const char *name)
{
	char camel[64];
	size_t n = 0;
	for (const char *p = name; *p && n < sizeof(camel) - 1; p++)
		camel[n++] = *p == '_' && p[1] ? (char)toupper((unsigned char)*++p) : *p;
	camel[n] = '\0';
	const json_t *v = json_object_get(o, camel);
	if (!v || json_is_null(v))
		v = json_object_get(o, name);
	return v && !json_is_null(v) ? v : NULL;
}

static int wrong(struct error *err, const char *name, const char *wanted)
{
	return error_set(err, -EINVAL, 400, "%s: %s expected", name, wanted);
}

int pb_object(const json_t *o, const char *name, const json_t **ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	if (!v)
		return 0;
	if (!json_is_object(v))
		return wrong(err, name, "an object");
	*ret = v;
	return 1;
}

int pb_array(const json_t *o, const char *name, const json_t **ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	if (!v)
		return 0;
	if (!json_is_array(v))
		return wrong(err, name, "a list");
	*ret = v;
	return 1;
}

int pb_string(const json_t *o, const char *name, size_t max, struct str *ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	if (!v)
		return 0;
	if (!json_is_string(v))
		return wrong(err, name, "a string");
	struct str s = json_str(v);
	if (s.n > max)
		return error_set(err, -EINVAL, 400, "%s: longer than %zu bytes", name, max);
	if (memchr(s.p, '\0', s.n))
		return error_set(err, -EINVAL, 400, "%s: holds a NUL byte", name);
	*ret = s;
	return 1;
}

int pb_u32(const json_t *o, const char *name, uint32_t *ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	uint64_t n = UINT64_MAX;
	if (!v)
		return 0;
	if (json_is_integer(v) && json_integer_value(v) >= 0)
		n = (uint64_t)json_integer_value(v);
	else if (json_is_real(v) && json_real_value(v) >= 0 && json_real_value(v) <= UINT32_MAX &&
		 (double)(uint64_t)json_real_value(v) == json_real_value(v))
		n = (uint64_t)json_real_value(v);
	else if (json_is_string(v) && str_to_u64(json_str(v), &n) < 0)
		n = UINT64_MAX;
	if (n > UINT32_MAX)
		return wrong(err, name, "a whole number of 32 bits");
	*ret = (uint32_t)n;
	return 1;
}

int pb_bool(const json_t *o, const char *name, bool *ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return wrong(err, name, "true or false");
	*ret = json_is_true(v);
	return 1;
}

int pb_bytes(const json_t *o, const char *name, struct buf *ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	if (!v)
		return 0;
	int r = json_is_string(v) ? base64_decode(ret, json_str(v)) : -EINVAL;
	if (r == -ENOMEM)
		return error_errno(err, r, "%s", name);
	return r < 0 ? wrong(err, name, "base64") : 1;
}

int pb_enum(const json_t *o, const char *name, const struct pb_enum *table, int *ret, struct error *err)
{
	const json_t *v = pb_get(o, name);
	if (!v)
		return 0;
	for (; table->name; table++) {
		bool same = json_is_string(v) ? str_is(json_str(v), table->name)
					      : json_is_integer(v) && json_integer_value(v) == table->value;
		if (same) {
			*ret = table->value;
			return 1;
		}
	}
	return wrong(err, name, "one of the values of its enum");
}
