#include "base/str.h"

#include <errno.h>
#include <stdlib.h>

static unsigned char lower(unsigned char c)
{
	return c >= 'A' && c <= 'Z' ? (unsigned char)(c + 32) : c;
}

bool str_eq_nocase(struct str a, struct str b)
{
	if (a.n != b.n)
		return false;
	for (size_t i = 0; i < a.n; i++)
		if (lower((unsigned char)a.p[i]) != lower((unsigned char)b.p[i]))
			return false;
	return true;
}

struct str str_from(struct str s, size_t from)
{
	if (from > s.n)
		from = s.n;
	return str_n(s.p + from, s.n - from);
}

struct str str_trim(struct str s)
{
	while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
		s = str_from(s, 1);
	while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
		s.n--;
	return s;
}

bool str_cut(struct str s, char sep, struct str *ret_head, struct str *ret_tail)
{
	ptrdiff_t i = str_chr(s, sep);
	if (i < 0)
		return false;
	*ret_head = str_n(s.p, (size_t)i);
	*ret_tail = str_from(s, (size_t)i + 1);
	return true;
}

ptrdiff_t str_chr(struct str s, char c)
{
	const char *hit = s.n ? memchr(s.p, c, s.n) : NULL;
	return hit ? hit - s.p : -1;
}

char *str_dup(struct str s)
{
	char *c = malloc(s.n + 1);
	if (!c)
		return NULL;
	if (s.n)
		memcpy(c, s.p, s.n);
	c[s.n] = '\0';
	return c;
}

int str_to_u64(struct str s, uint64_t *ret)
{
	if (s.n == 0 || s.n > 20)
		return -EINVAL;
	uint64_t v = 0;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return -EINVAL;
		if (__builtin_mul_overflow(v, 10, &v) ||
			__builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
			return -ERANGE;
	}
	*ret = v;
	return 0;
}

int str_to_i64(struct str s, int64_t *ret)
{
	bool negative = s.n && s.p[0] == '-';
	uint64_t v;
	int r = str_to_u64(negative ? str_from(s, 1) : s, &v);
	if (r < 0)
		return r;
	if (v > (uint64_t)INT64_MAX + (negative ? 1 : 0))
		return -ERANGE;
	*ret = negative ? (int64_t)(0 - v) : (int64_t)v;
	return 0;
}

bool str_eq_secret(struct str a, struct str b)
{
	if (a.n != b.n)
		return false;
	unsigned diff = 0;
	for (size_t i = 0; i < a.n; i++)
		diff |= (unsigned char)a.p[i] ^ (unsigned char)b.p[i];
	return diff == 0;
}

bool str_is_utf8(struct str s)
{
	const unsigned char *p = (const unsigned char *)s.p, *end = p + s.n;
	while (p < end) {
		if (*p < 0x80) {
			p++;
			continue;
		}
		int more = *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
		if (*p < 0xc2 || *p > 0xf4 || end - p <= more)
			return false;
		uint32_t cp = *p & (0x3fu >> more);
		for (int i = 1; i <= more; i++) {
			if ((p[i] & 0xc0) != 0x80)
				return false;
			cp = cp << 6 | (p[i] & 0x3fu);
		}
		if ((more == 2 && cp < 0x800) || (more == 3 && (cp < 0x10000 || cp > 0x10ffff)) ||
			(cp >= 0xd800 && cp <= 0xdfff))
			return false;
		p += more + 1;
	}
	return true;
}
