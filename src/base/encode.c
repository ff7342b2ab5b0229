#include "base/encode.h"

#include <errno.h>

char *hex_encode(char *to, const void *p, size_t n)
{
	static const char digit[] = "0123456789abcdef";
	const unsigned char *b = p;
	for (size_t i = 0; i < n; i++) {
		to[2 * i] = digit[b[i] >> 4];
		to[2 * i + 1] = digit[b[i] & 15];
	}
	to[2 * n] = '\0';
	return to;
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

void le_put(char *to, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		to[i] = (char)(v >> (8 * i));
}

uint64_t le_get(const char *p, unsigned bytes)
{
	uint64_t v = 0;
	for (unsigned i = 0; i < bytes; i++)
		v |= (uint64_t)(unsigned char)p[i] << (8 * i);
	return v;
}

int hex_decode(struct str s, void *to, size_t n)
{
	if (s.n != 2 * n)
		return -EINVAL;
	unsigned char *out = to;
	for (size_t i = 0; i < n; i++) {
		int hi = nibble(s.p[2 * i]), lo = nibble(s.p[2 * i + 1]);
		if (hi < 0 || lo < 0)
			return -EINVAL;
		out[i] = (unsigned char)(hi << 4 | lo);
	}
	return 0;
}

static int encode(struct buf *to, struct str s, const char *digit, bool pad)
{
	char *out = buf_reserve(to, (s.n + 2) / 3 * 4);
	if (!out)
		return -ENOMEM;
	const unsigned char *p = (const unsigned char *)s.p;
	char *at = out;
	size_t i = 0;
	for (; i + 3 <= s.n; i += 3, p += 3) {
		*at++ = digit[p[0] >> 2];
		*at++ = digit[(p[0] & 3) << 4 | p[1] >> 4];
		*at++ = digit[(p[1] & 15) << 2 | p[2] >> 6];
		*at++ = digit[p[2] & 63];
	}
	if (i < s.n) {
		bool two = s.n - i == 2;
		*at++ = digit[p[0] >> 2];
		*at++ = digit[(p[0] & 3) << 4 | (two ? p[1] >> 4 : 0)];
		if (two)
			*at++ = digit[(p[1] & 15) << 2];
		else if (pad)
			*at++ = '=';
		if (pad)
			*at++ = '=';
	}
	buf_commit(to, (size_t)(at - out));
	return 0;
}

static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char urlsafe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

int base64_encode(struct buf *to, struct str bytes)
{
	return encode(to, bytes, standard, true);
}

int base64url_encode(struct buf *to, struct str bytes)
{
	return encode(to, bytes, urlsafe, false);
}

/* Value of each byte in either alphabet, 64 for none. */
static unsigned char value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (unsigned char)(c - 'A');
	if (c >= 'a' && c <= 'z')
		return (unsigned char)(c - 'a' + 26);
	if (c >= '0' && c <= '9')
		return (unsigned char)(c - '0' + 52);
	if (c == '+' || c == '-')
		return 62;
	if (c == '/' || c == '_')
		return 63;
	return 64;
}

int base64_decode(struct buf *to, struct str s)
{
	size_t padding = 0;
	while (s.n && padding < 2 && s.p[s.n - 1] == '=') {
		s.n--;
		padding++;
	}
	if (s.n % 4 == 1 || (padding && (s.n + padding) % 4))
		return -EINVAL;
	char *out = buf_reserve(to, s.n / 4 * 3 + 3);
	if (!out)
		return -ENOMEM;
	uint32_t acc = 0;
	size_t n = 0;
	int bits = 0;
	for (size_t i = 0; i < s.n; i++) {
		unsigned char v = value_of(s.p[i]);
		if (v == 64)
			return -EINVAL;
		acc = acc << 6 | v;
		bits += 6;
		if (bits >= 8) {
			bits -= 8;
			out[n++] = (char)(acc >> bits);
			acc &= (1u << bits) - 1;
		}
	}
	if (acc)
		return -EINVAL;
	buf_commit(to, n);
	return 0;
}

int shell_quote(struct buf *to, struct str text)
{
	buf_add_c(to, "'");
	struct str head, tail;
	while (str_cut(text, '\'', &head, &tail)) {
		buf_add_str(to, head);
		buf_add_c(to, "'\\''");
		text = tail;
	}
	buf_add_str(to, text);
	return buf_add_c(to, "'");
}
