#include "io/tar_header.h"

#include <errno.h>
#include <string.h>

int tar_number(const char *p, size_t n, int64_t *ret)
{
	const unsigned char *u = (const unsigned char *)p;
	uint64_t v = 0;
	if (u[0] & 0x80) {
		bool negative = u[0] & 0x40;
		v = negative ? UINT64_MAX : 0;
		for (size_t i = 0; i < n; i++) {
			unsigned char c = i == 0 ? (unsigned char)(negative ? u[0] : u[0] & 0x7f) : u[i];
			if ((v >> 55) != (negative ? 0x1ff : 0))
				return -ERANGE;
			v = v << 8 | c;
		}
		*ret = (int64_t)v;
		return 0;
	}
	size_t i = 0;
	while (i < n && u[i] == ' ')
		i++;
	for (; i < n && u[i] >= '0' && u[i] <= '7'; i++) {
		if (v >> 60)
			return -ERANGE;
		v = v << 3 | (uint64_t)(u[i] - '0');
	}
	for (; i < n; i++)
		if (u[i] != ' ' && u[i] != '\0')
			return -EINVAL;
	*ret = (int64_t)v;
	return 0;
}

int tar_natural(const char *p, size_t n, uint64_t *ret)
{
	int64_t v;
	int r = tar_number(p, n, &v);
	if (r == 0 && v < 0)
		r = -ERANGE;
	if (r == 0)
		*ret = (uint64_t)v;
	return r;
}

struct str tar_field(const char *p, size_t n)
{
	return str_n(p, strnlen(p, n));
}

bool tar_checksum_holds(const char *block)
{
	int64_t said, plain = 0, with_sign = 0;
	if (tar_number(block + TAR_AT_CHECKSUM, 8, &said) < 0)
		return false;
	for (size_t i = 0; i < TAR_BLOCK; i++) {
		unsigned char c = (unsigned char)(i >= TAR_AT_CHECKSUM && i < TAR_AT_CHECKSUM + 8 ? ' ' : block[i]);
		plain += c;
		with_sign += (signed char)c;
	}
	return said == plain || said == with_sign;
}

bool tar_is_zero(const char *block)
{
	return block[0] == 0 && memcmp(block, block + 1, TAR_BLOCK - 1) == 0;
}

int tar_record(struct str *all, struct str *ret_key, struct str *ret_value)
{
	struct str length, rest;
	uint64_t n;
	if (!str_cut(*all, ' ', &length, &rest) || str_to_u64(length, &n) < 0 || n > all->n || n < length.n + 2 || all->p[n - 1] != '\n')
		return -EINVAL;
	rest.n = (size_t)n - length.n - 2;
	if (!str_cut(rest, '=', ret_key, ret_value))
		return -EINVAL;
	*all = str_from(*all, (size_t)n);
	return 0;
}

int tar_time(struct str s, int64_t *ret, uint32_t *ret_ns)
{
	struct str whole = s, fraction = STR("");
	str_cut(s, '.', &whole, &fraction);
	int64_t seconds;
	uint32_t ns = 0, unit = 100000000;
	if (str_to_i64(whole, &seconds) < 0)
		return -EINVAL;
	for (size_t i = 0; i < fraction.n; i++, unit /= 10) {
		if (fraction.p[i] < '0' || fraction.p[i] > '9')
			return -EINVAL;
		ns += (uint32_t)(fraction.p[i] - '0') * unit;
	}
	/* Behind a minus sign the fraction goes down, too. */
	if (whole.n && whole.p[0] == '-' && ns) {
		if (seconds == INT64_MIN)
			return -ERANGE;
		seconds--;
		ns = 1000000000 - ns;
	}
	*ret = seconds;
	*ret_ns = ns;
	return 0;
}

int tar_sparse_pair(struct str *map, uint64_t *ret_offset, uint64_t *ret_length)
{
	struct str offset, length, rest;
	if (!str_cut(*map, ',', &offset, &rest))
		return -EINVAL;
	if (!str_cut(rest, ',', &length, map)) {
		length = rest;
		*map = STR("");
	}
	return str_to_u64(offset, ret_offset) < 0 || str_to_u64(length, ret_length) < 0 ? -EINVAL : 0;
}
