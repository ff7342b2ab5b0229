#include "image/dockerfile_mount.h"
#include "base/cleanup.h"

#include <errno.h>

static int not_supported(struct str what, struct error *err)
{
	return error_set(err, -ENOTSUP, 501, "--mount with %.*s is not supported", STR_FMT(str_n(what.p, MIN(what.n, 60))));
}

static int bad(struct str field, struct error *err)
{
	return error_set(err, -EINVAL, 400, "--mount: \"%.*s\" is not understood", STR_FMT(str_n(field.p, MIN(field.n, 60))));
}

static int take_type(struct str value, struct dockerfile_mount *m, struct error *err)
{
	static const char *const types[] = {[DF_MOUNT_BIND] = "bind", [DF_MOUNT_CACHE] = "cache", [DF_MOUNT_TMPFS] = "tmpfs"};
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		if (str_eq_nocase(value, str_of(types[i]))) {
			m->type = (enum dockerfile_mount_type)i;
			m->mode = m->type == DF_MOUNT_TMPFS ? 01777 : 0755;
			return 0;
		}
	}
	return str_eq_nocase(value, STR("secret")) ? not_supported(STR("type=secret"), err) : str_eq_nocase(value, STR("ssh")) ? not_supported(STR("type=ssh"), err) :
		error_set(err, -EINVAL, 400, "--mount: unknown type \"%.*s\"", STR_FMT(str_n(value.p, MIN(value.n, 40))));
}

static int take_number(struct str field, struct str value, unsigned base, uint64_t max, unsigned *ret, struct error *err)
{
	uint64_t n = 0;
	for (size_t i = 0; i < value.n; i++) {
		unsigned digit = (unsigned)(value.p[i] - '0');
		if (digit >= base || (n = n * base + digit) > max)
			return bad(field, err);
	}
	*ret = (unsigned)n;
	return value.n ? 0 : bad(field, err);
}

static bool is_flag(struct str value)
{
	return value.n == 0 || str_is(value, "true") || str_is(value, "false") || str_is(value, "1") || str_is(value, "0");
}

/* One key; `type` was read before. */
static int take_field(struct str field, struct dockerfile_mount *m, struct error *err)
{
	struct str key = field, value = STR("");
	bool cache = m->type == DF_MOUNT_CACHE, bind = m->type == DF_MOUNT_BIND;
	str_cut(field, '=', &key, &value);
	if (str_is(key, "type"))
		return 0;
	if (str_is(key, "target") || str_is(key, "dst") || str_is(key, "destination")) {
		m->target = value;
		return value.n ? 0 : bad(field, err);
	}
	if (str_is(key, "from") || str_is(key, "source") || str_is(key, "src")) {
		*(str_is(key, "from") ? &m->from : &m->source) = value;
		return bind ? 0 : cache ? not_supported(STR("type=cache and from or source"), err) : bad(field, err);
	}
	/* Whoever writes into a bind writes into what is taken away. */
	if (str_is(key, "rw") || str_is(key, "readwrite") || str_is(key, "ro") || str_is(key, "readonly"))
		return bind && is_flag(value) ? 0 : bad(field, err);
	if (cache && str_is(key, "id"))
		return value.n ? 0 : bad(field, err);
	if (cache && str_is(key, "sharing"))
		return str_is(value, "shared") || str_is(value, "private") || str_is(value, "locked") ? 0 : bad(field, err);
	if (cache && str_is(key, "mode"))
		return take_number(field, value, 8, 07777, &m->mode, err);
	if (cache && str_is(key, "uid"))
		return take_number(field, value, 10, 65535, &m->uid, err);
	if (cache && str_is(key, "gid"))
		return take_number(field, value, 10, 65535, &m->gid, err);
	return m->type == DF_MOUNT_TMPFS && str_is(key, "size") ? not_supported(STR("type=tmpfs and size"), err) : bad(field, err);
}

int dockerfile_mount_parse(struct str text, struct dockerfile_mount *ret, struct error *err)
{
	struct dockerfile_mount m = {.mode = 0755};
	int r = 0;
	/* The type, wherever it stands, says what the others may be. */
	for (int pass = 0; pass < 2; pass++) {
		for (struct str rest = text, tail; rest.n && r == 0; rest = tail) {
			struct str field = rest;
			tail = STR("");
			str_cut(rest, ',', &field, &tail);
			if (pass == 0 && str_starts(field, STR("type=")))
				r = take_type(str_from(field, 5), &m, err);
			else if (pass == 1)
				r = take_field(field, &m, err);
		}
	}
	if (r == 0 && m.target.n == 0)
		r = error_set(err, -EINVAL, 400, "--mount needs a target");
	if (r == 0)
		*ret = m;
	return r;
}
