#include "api/decode.h"
#include "base/clock.h"
#include "base/cleanup.h"
#include "base/encode.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>

static bool all_of(struct str s, bool (*fits)(char))
{
	for (size_t i = 0; i < s.n; i++)
		if (!fits(s.p[i]))
			return false;
	return s.n > 0;
}

static bool is_id(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_name(char c)
{
	return is_id(c) || c == '-' || c == '_';
}

static bool is_tag(char c)
{
	return is_name(c) || c == '.';
}

static bool is_client(char c)
{
	return is_id(c) || c == '-';
}

int decode_sandbox_id(struct str s, struct str *ret, struct error *err)
{
	struct str id = s, client = STR("x");
	str_cut(s, '-', &id, &client);
	if (!all_of(id, is_id) || !all_of(client, is_client))
		return error_set(err, -EINVAL, 400, "Invalid sandbox ID");
	*ret = id;
	return 0;
}

static bool is_uuid(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		bool hex = (s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f');
		if (dash ? s.p[i] != '-' : !hex)
			return false;
	}
	return s.n == 36;
}

static struct str trim_space(struct str s)
{
	while (s.n && (s.p[0] == ' ' || (s.p[0] >= '\t' && s.p[0] <= '\r')))
		s = str_from(s, 1);
	while (s.n && (s.p[s.n - 1] == ' ' || (s.p[s.n - 1] >= '\t' && s.p[s.n - 1] <= '\r')))
		s.n--;
	return s;
}

int decode_template_reference(struct str s, struct template_reference *ret, struct error *err)
{
	struct str trimmed = trim_space(s), tag = STR("default"), space = STR("x");
	char lower[TEMPLATE_REFERENCE_MAX + 1];
	if (trimmed.n == 0 || trimmed.n > TEMPLATE_REFERENCE_MAX)
		goto refuse;
	for (size_t i = 0; i < trimmed.n; i++)
		lower[i] = trimmed.p[i] >= 'A' && trimmed.p[i] <= 'Z' ? (char)(trimmed.p[i] + 32) : trimmed.p[i];
	struct str name = str_n(lower, trimmed.n), alias;
	str_cut(name, ':', &name, &tag);
	alias = name;
	str_cut(name, '/', &space, &alias);
	if (!all_of(space, is_name) || !all_of(alias, is_name) || !all_of(tag, is_tag) || is_uuid(tag))
		goto refuse;
	if (str_is(tag, "default"))
		tag.n = 0;
	memset(ret, 0, sizeof(*ret));
	memcpy(ret->name, name.p, name.n);
	memcpy(ret->tag, tag.p, tag.n);
	return 0;
refuse:
	return error_set(err, -EINVAL, 400, "Invalid template reference: %.*s", (int)MIN(s.n, (size_t)TEMPLATE_REFERENCE_MAX), s.p);
}

int decode_metadata_filter(struct str s, struct buf *ret, struct error *err)
{
	cleanup_buf struct buf whole = BUF_INIT, key = BUF_INIT, value = BUF_INIT;
	int r = url_decode(&whole, s, true);
	struct str rest = buf_str(&whole);
	while (r == 0 && rest.n) {
		struct str pair, raw_key, raw_value;
		if (!str_cut(rest, '&', &pair, &rest)) {
			pair = rest;
			rest = STR("");
		} else if (!rest.n) {
			r = -EINVAL; /* nothing behind the last '&' */
			break;
		}
		if (!str_cut(pair, '=', &raw_key, &raw_value) || str_chr(raw_value, '=') >= 0) {
			r = -EINVAL;
			break;
		}
		buf_clear(&key);
		buf_clear(&value);
		r = url_decode(&key, raw_key, true);
		if (r == 0)
			r = url_decode(&value, raw_value, true);
		if (r == 0)
			r = msg_map_add(ret, buf_str(&key), buf_str(&value));
	}
	if (r == -EINVAL)
		error_set(err, r, 400, "metadata: the filter must be key=value pairs joined by '&', each percent-encoded");
	return r;
}

bool metadata_matches(struct msg_map have, struct msg_map filter)
{
	struct str wanted = filter.raw, key, value;
	while (msg_map_next(&wanted, &key, &value)) {
		struct str rest = have.raw, k, v;
		bool found = false;
		while (!found && msg_map_next(&rest, &k, &v))
			found = str_eq(k, key) && str_eq(v, value);
		if (!found)
			return false;
	}
	return true;
}

int cursor_encode(const struct cursor *c, struct buf *to)
{
	char text[128], time[RFC3339_SIZE];
	rfc3339_format(time, c->at);
	/* The microseconds' 'Z' gives way to the nanoseconds' last digits. */
	time[strlen(time) - 1] = 0;
	snprintf(text, sizeof(text), "%s%03dZ__%s%s", time, (int)(c->at % 1000), c->id, c->ascending ? "__asc" : "");
	return base64url_encode(to, str_of(text));
}

int cursor_decode(struct str s, struct cursor *ret, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	struct cursor c = {0};
	if (s.n > 256 || base64_decode(&text, s) < 0)
		goto refuse;
	struct str whole = buf_str(&text);
	const struct str suffix = STR("__asc");
	if (whole.n > suffix.n && str_eq(str_from(whole, whole.n - suffix.n), suffix)) {
		c.ascending = true;
		whole.n -= suffix.n;
	}
	struct str time, id;
	if (!str_cut(whole, '_', &time, &id) || !id.n || id.p[0] != '_')
		goto refuse;
	id = str_from(id, 1);
	if (!all_of(id, is_client) || id.n >= sizeof(c.id) || rfc3339_parse(time, &c.at) < 0)
		goto refuse;
	memcpy(c.id, id.p, id.n);
	*ret = c;
	return 0;
refuse:
	return error_set(err, -EINVAL, 400, "Invalid next token");
}

int field_any(const json_t *body, const char *name, const char *alias, json_t **ret, struct error *err)
{
	json_t *j = json_object_get(body, name), *other = alias ? json_object_get(body, alias) : NULL;
	if (j && other)
		return error_set(err, -EINVAL, 400, "%s and %s are the same field: give one of them", name, alias);
	j = j ? j : other;
	if (!j || json_is_null(j))
		return 0;
	*ret = j;
	return 1;
}

static int wrong_type(struct error *err, const char *name, const char *wanted)
{
	return error_set(err, -EINVAL, 400, "%s must be %s", name, wanted);
}

int field_bool(const json_t *body, const char *name, const char *alias, bool *ret, struct error *err)
{
	json_t *j;
	int r = field_any(body, name, alias, &j, err);
	if (r <= 0)
		return r;
	if (!json_is_boolean(j))
		return wrong_type(err, name, "true or false");
	*ret = json_is_true(j);
	return 1;
}

int field_int(const json_t *body, const char *name, const char *alias, int64_t *ret, struct error *err)
{
	json_t *j;
	int r = field_any(body, name, alias, &j, err);
	if (r <= 0)
		return r;
	if (!json_is_integer(j))
		return wrong_type(err, name, "an integer");
	*ret = json_integer_value(j);
	return 1;
}

int field_str(const json_t *body, const char *name, const char *alias, struct str *ret, struct error *err)
{
	json_t *j;
	int r = field_any(body, name, alias, &j, err);
	if (r <= 0)
		return r;
	if (!json_is_string(j))
		return wrong_type(err, name, "a string");
	*ret = json_str(j);
	return 1;
}

int field_object(const json_t *body, const char *name, const char *alias, json_t **ret, struct error *err)
{
	int r = field_any(body, name, alias, ret, err);
	return r > 0 && !json_is_object(*ret) ? wrong_type(err, name, "an object") : r;
}

int field_array(const json_t *body, const char *name, const char *alias, json_t **ret, struct error *err)
{
	int r = field_any(body, name, alias, ret, err);
	return r > 0 && !json_is_array(*ret) ? wrong_type(err, name, "an array") : r;
}

int field_name(const json_t *body, const char *name, size_t max, char *to, struct error *err)
{
	struct str s;
	int r = field_str(body, name, NULL, &s, err);
	if (r < 0)
		return r;
	if (r == 0 || !s.n || s.n > max)
		return error_set(err, -EINVAL, 400, "%s: 1 to %zu bytes are needed", name, max);
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f)
			return error_set(err, -EINVAL, 400, "%s holds a control character", name);
	memcpy(to, s.p, s.n);
	to[s.n] = 0;
	return 1;
}

int decode_timeout(const json_t *body, enum timeout_rule rule, const struct options *o, int64_t *ret, struct error *err)
{
	int64_t t = o->timeout_default;
	int r = field_int(body, "timeout", NULL, &t, err);
	if (r < 0)
		return r;
	if (r == 0 && rule == TIMEOUT_OF_SET)
		return error_set(err, -EINVAL, 400, "timeout is missing");
	if (t < -1 || (t == 0 && rule == TIMEOUT_OF_CREATE))
		return error_set(err, -EINVAL, 400, "Timeout must be greater than 0");
	if (t > o->timeout_max)
		return error_set(err, -EINVAL, 400, "Timeout cannot be greater than %lld seconds", (long long)o->timeout_max);
	*ret = t;
	return 0;
}

int decode_query(struct str query, query_pair_fn *fn, void *arg, struct error *err)
{
	struct str rest = query, raw_name, raw_value;
	while (url_query_next(&rest, &raw_name, &raw_value)) {
		cleanup_buf struct buf name = BUF_INIT, value = BUF_INIT;
		int r = url_decode(&name, raw_name, true);
		if (r == 0)
			r = url_decode(&value, raw_value, true);
		if (r == -EINVAL)
			return error_set(err, r, 400, "the query holds a broken percent-escape");
		if (r == 0)
			r = fn(buf_str(&name), buf_str(&value), arg, err);
		if (r < 0)
			return err && err->code ? r : error_set(err, r, 503, "the server is out of memory");
	}
	return 0;
}
