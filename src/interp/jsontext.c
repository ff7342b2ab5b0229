#include "interp/jsontext.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(struct str *s)
{
	while (s->n && is_space(s->p[0]))
		*s = str_from(*s, 1);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int hex_value(char c)
{
	if (is_digit(c))
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Code unit of an escape "\uXXXX" at p, of which n bytes are there; -1 if there is none. */
static int escaped_unit(const char *p, size_t n)
{
	if (n < 6 || p[0] != '\\' || p[1] != 'u')
		return -1;
	int v = 0;
	for (int i = 2; i < 6; i++) {
		int d = hex_value(p[i]);
		if (d < 0)
			return -1;
		v = v * 16 + d;
	}
	return v;
}

/* The checks: each takes what it has found off the front. */

static bool take_string(struct str *s)
{
	const char *p = s->p, *end = s->p + s->n;
	if (p == end || *p++ != '"')
		return false;
	while (p < end && *p != '"') {
		if ((unsigned char)*p < 0x20)
			return false;
		if (*p++ != '\\')
			continue;
		if (p == end)
			return false;
		if (*p == 'u') {
			if (escaped_unit(p - 1, (size_t)(end - p) + 1) < 0)
				return false;
			p += 5;
		} else if (*p && strchr("\"\\/bfnrt", *p)) {
			p++;
		} else {
			return false;
		}
	}
	if (p == end)
		return false;
	*s = str_from(*s, (size_t)(p + 1 - s->p));
	return true;
}

static bool take_digits(struct str *s)
{
	size_t n = 0;
	while (n < s->n && is_digit(s->p[n]))
		n++;
	*s = str_from(*s, n);
	return n > 0;
}

static bool take(struct str *s, struct str word)
{
	if (!str_starts(*s, word))
		return false;
	*s = str_from(*s, word.n);
	return true;
}

static bool take_number(struct str *s)
{
	take(s, STR("-"));
	if (take(s, STR("Infinity")))
		return true;
	if (!take(s, STR("0")) && !take_digits(s))
		return false;
	if (take(s, STR(".")) && !take_digits(s))
		return false;
	if (!take(s, STR("e")) && !take(s, STR("E")))
		return true;
	if (!take(s, STR("+")))
		take(s, STR("-"));
	return take_digits(s);
}

static bool take_scalar(struct str *s)
{
	if (!s->n)
		return false;
	if (s->p[0] == '"')
		return take_string(s);
	if (is_digit(s->p[0]) || s->p[0] == '-' || s->p[0] == 'I')
		return take_number(s);
	return take(s, STR("true")) || take(s, STR("false")) || take(s, STR("null")) || take(s, STR("NaN"));
}

static bool take_key(struct str *s)
{
	skip_space(s);
	if (!take_string(s))
		return false;
	skip_space(s);
	return take(s, STR(":"));
}

/* Takes one value with all that is in it; `open` holds the closing bracket of each container that is open. */
static int take_value(struct str *s)
{
	char open[JSONTEXT_MAX_DEPTH];
	size_t depth = 0;
	for (;;) {
		skip_space(s);
		bool object = take(s, STR("{"));
		if (object || take(s, STR("["))) {
			if (depth == JSONTEXT_MAX_DEPTH)
				return -E2BIG;
			open[depth++] = object ? '}' : ']';
			skip_space(s);
			if (!s->n || s->p[0] != open[depth - 1]) {
				if (object && !take_key(s))
					return -EINVAL;
				continue;
			}
		} else if (!take_scalar(s)) {
			return -EINVAL;
		}
		/* After a value: all the closing brackets, then a comma. */
		for (;;) {
			if (!depth)
				return 0;
			skip_space(s);
			if (!s->n || s->p[0] != open[depth - 1])
				break;
			*s = str_from(*s, 1);
			depth--;
		}
		if (!take(s, STR(",")) || (open[depth - 1] == '}' && !take_key(s)))
			return -EINVAL;
	}
}

int jsontext_parse(struct str text, struct str *ret)
{
	skip_space(&text);
	struct str rest = text;
	int r = take_value(&rest);
	if (r < 0)
		return r;
	*ret = str_n(text.p, text.n - rest.n);
	skip_space(&rest);
	return rest.n ? -EINVAL : 0;
}

/* Looking in: the text was checked, so nothing can go wrong but its end, which is looked at all the same. */

static size_t string_length(struct str s)
{
	size_t i = 1;
	while (i < s.n && s.p[i] != '"')
		i += s.p[i] == '\\' ? 2 : 1;
	return MIN(i + 1, s.n);
}

static size_t value_length(struct str s)
{
	size_t i = 0, depth = 0;
	while (i < s.n) {
		char c = s.p[i];
		if (c == '"') {
			i += string_length(str_from(s, i));
			if (!depth)
				return i;
			continue;
		}
		if (c == '{' || c == '[')
			depth++;
		else if ((c == '}' || c == ']') && depth && --depth == 0)
			return i + 1;
		else if (!depth && (c == ',' || c == '}' || c == ']' || is_space(c)))
			return i;
		i++;
	}
	return s.n;
}

bool jsontext_next(struct str *rest, struct str *ret_key, struct str *ret_value)
{
	if (!rest->n || !strchr(ret_key ? "{," : "[,", rest->p[0]))
		return false;
	struct str s = str_from(*rest, 1), key = STR("");
	skip_space(&s);
	if (!s.n || s.p[0] == '}' || s.p[0] == ']')
		return false;
	if (ret_key) {
		key = str_n(s.p, string_length(s));
		s = str_from(s, key.n);
		skip_space(&s);
		s = str_from(s, 1); /* the colon */
		skip_space(&s);
		*ret_key = key;
	}
	*ret_value = str_n(s.p, value_length(s));
	s = str_from(s, ret_value->n);
	skip_space(&s);
	*rest = s;
	return true;
}

struct str jsontext_get(struct str object, const char *key)
{
	struct str k, v;
	while (jsontext_next(&object, &k, &v))
		if (str_is(jsontext_inner(k), key))
			return v;
	return STR("");
}

int jsontext_int(struct str raw, int64_t *ret)
{
	return str_to_i64(raw, ret) < 0 ? -EINVAL : 0;
}

/* Decoding and writing */

enum { REPLACEMENT = 0xfffd };

/* The character that begins with p[0] >= 0x80, of n bytes: its code point and length; what is no UTF-8 is one
 * U+FFFD a byte. */
static int utf8_char(const unsigned char *p, size_t n, size_t *ret_length)
{
	static const int smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	*ret_length = 1;
	if (p[0] < 0xc2 || p[0] > 0xf4 || n < length)
		return REPLACEMENT;
	int c = p[0] & (0xff >> (length + 1));
	for (size_t i = 1; i < length; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return REPLACEMENT;
		c = c << 6 | (p[i] & 0x3f);
	}
	if (c < smallest[length] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return REPLACEMENT;
	*ret_length = length;
	return c;
}

/* The character that an escape "\uXXXX" at p begins, with its other half when it is a pair. */
static int escaped_char(const char *p, size_t n, size_t *ret_length)
{
	int high = escaped_unit(p, n);
	*ret_length = 6;
	if (high < 0xd800 || high > 0xdfff)
		return high;
	int low = n >= 12 ? escaped_unit(p + 6, n - 6) : -1;
	if (high > 0xdbff || low < 0xdc00 || low > 0xdfff)
		return REPLACEMENT;
	*ret_length = 12;
	return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static int add_utf8(struct buf *to, int c)
{
	char b[4];
	size_t n = 0;
	if (c < 0x80) {
		b[n++] = (char)c;
	} else {
		if (c < 0x800) {
			b[n++] = (char)(0xc0 | c >> 6);
		} else {
			if (c < 0x10000) {
				b[n++] = (char)(0xe0 | c >> 12);
			} else {
				b[n++] = (char)(0xf0 | c >> 18);
				b[n++] = (char)(0x80 | (c >> 12 & 0x3f));
			}
			b[n++] = (char)(0x80 | (c >> 6 & 0x3f));
		}
		b[n++] = (char)(0x80 | (c & 0x3f));
	}
	return buf_add(to, b, n);
}

static int add_escape(struct buf *to, int c)
{
	char b[16];
	int n = c < 0x10000
			? snprintf(b, sizeof(b), "\\u%04x", (unsigned)c)
			: snprintf(b, sizeof(b), "\\u%04x\\u%04x", 0xd800u + ((unsigned)(c - 0x10000) >> 10),
				  0xdc00u + ((unsigned)(c - 0x10000) & 0x3ff));
	return buf_add(to, b, (size_t)n);
}

/* Bytes at the front that stand for themselves in both forms. */
static size_t plain_run(struct str s)
{
	size_t i = 0;
	while (i < s.n && (unsigned char)s.p[i] < 0x80 && s.p[i] != '\\' && s.p[i] != '"')
		i++;
	return i;
}

int jsontext_string(struct str raw, struct buf *to)
{
	static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
	if (!jsontext_is_string(raw))
		return -EINVAL;
	for (struct str s = jsontext_inner(raw); s.n;) {
		size_t length = plain_run(s);
		if (length) {
			buf_add(to, s.p, length);
		} else if (s.p[0] != '\\' || s.n < 2) {
			length = 1;
			add_utf8(to, (unsigned char)s.p[0] < 0x80
					     ? s.p[0]
					     : utf8_char((const unsigned char *)s.p, s.n, &length));
		} else if (s.p[1] == 'u') {
			add_utf8(to, escaped_char(s.p, s.n, &length));
		} else {
			const char *name = strchr(names, s.p[1]);
			length = 2;
			buf_add(to, name ? values + (name - names) : s.p + 1, 1);
		}
		s = str_from(s, length);
	}
	return to->failed ? -ENOMEM : 0;
}

/* One piece of the inside of a string, at most `max` bytes of it where it may be cut. */
static size_t ascii_in_string(struct jsontext_cursor *c, struct buf *to, size_t max)
{
	struct str s = c->rest;
	size_t length = plain_run(str_n(s.p, MIN(s.n, max)));
	if (length) {
		buf_add(to, s.p, length);
	} else if (s.p[0] == '"') {
		c->in_string = false;
		length = 1;
		buf_add(to, s.p, 1);
	} else if ((unsigned char)s.p[0] >= 0x80) {
		add_escape(to, utf8_char((const unsigned char *)s.p, s.n, &length));
	} else if (s.n >= 2 && s.p[1] == 'u') {
		add_escape(to, escaped_char(s.p, s.n, &length));
	} else {
		length = MIN(s.n, 2);
		buf_add(to, s.p, length);
	}
	return length;
}

static size_t ascii_between(struct jsontext_cursor *c, struct buf *to)
{
	struct str s = c->rest;
	if (is_space(s.p[0]))
		return 1;
	if (s.p[0] == '"') {
		c->in_string = true;
		buf_add(to, s.p, 1);
		return 1;
	}
	static const struct str no_numbers[] = {{"NaN", 3}, {"Infinity", 8}, {"-Infinity", 9}};
	for (size_t i = 0; i < ARRAY_SIZE(no_numbers); i++) {
		if (str_starts(s, no_numbers[i])) {
			buf_add_c(to, "null");
			return no_numbers[i].n;
		}
	}
	buf_add(to, s.p, 1);
	return 1;
}

int jsontext_ascii(struct jsontext_cursor *c, struct buf *to, size_t max)
{
	size_t before = buf_len(to);
	while (c->rest.n && buf_len(to) - before < max && !to->failed) {
		size_t left = max - (buf_len(to) - before);
		size_t taken = c->in_string ? ascii_in_string(c, to, left) : ascii_between(c, to);
		c->rest = str_from(c->rest, taken);
	}
	return to->failed ? -ENOMEM : 0;
}
