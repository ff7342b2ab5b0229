#include "io/url.h"

#include "base/cleanup.h"
#include "base/encode.h"

#include <errno.h>

int url_decode(struct buf *to, struct str s, bool plus)
{
	char *out = buf_reserve(to, s.n + 1);
	if (!out)
		return -ENOMEM;
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '%') {
			if (s.n - i < 3 || hex_decode(str_n(s.p + i + 1, 2), out + n, 1) < 0)
				return -EINVAL;
			n++;
			i += 2;
		} else {
			out[n++] = plus && s.p[i] == '+' ? ' ' : s.p[i];
		}
	}
	buf_commit(to, n);
	return 0;
}

int url_encode(struct buf *to, struct str s)
{
	static const char digits[] = "0123456789ABCDEF";
	if (s.n > (SIZE_MAX - 1) / 3)
		return -ENOMEM;
	char *out = buf_reserve(to, 3 * s.n + 1);
	if (!out)
		return -ENOMEM;
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (alnum || c == '-' || c == '.' || c == '_' || c == '~') {
			out[n++] = (char)c;
		} else {
			out[n++] = '%';
			out[n++] = digits[c >> 4];
			out[n++] = digits[c & 15];
		}
	}
	buf_commit(to, n);
	return 0;
}

bool url_query_next(struct str *rest, struct str *ret_key, struct str *ret_value)
{
	while (rest->n) {
		struct str pair;
		if (!str_cut(*rest, '&', &pair, rest)) {
			pair = *rest;
			*rest = str_from(*rest, rest->n);
		}
		if (pair.n == 0)
			continue;
		if (!str_cut(pair, '=', ret_key, ret_value)) {
			*ret_key = pair;
			*ret_value = STR("");
		}
		return true;
	}
	return false;
}

int url_query_get(struct str query, const char *key, struct buf *to)
{
	struct str rest = query, raw_key, raw_value;
	while (url_query_next(&rest, &raw_key, &raw_value)) {
		cleanup_buf struct buf name = BUF_INIT;
		int r = url_decode(&name, raw_key, true);
		if (r < 0)
			return r;
		if (!str_is(buf_str(&name), key))
			continue;
		r = url_decode(to, raw_value, true);
		return r < 0 ? r : 1;
	}
	return 0;
}
