#include "guest/payload.h"

#include <errno.h>
#include <sys/types.h>

static int digit(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1;
}

/* One character of the diverted string. */
static void decode(struct payload *p, char c, char *to, size_t *n)
{
	int d = digit(c);
	p->length++;
	if (c == '=' && p->padding < 2) {
		p->padding++;
		return;
	}
	if (d < 0 || p->padding) {
		p->bad = true;
		return;
	}
	p->bits = p->bits << 6 | (uint32_t)d;
	p->n_bits += 6;
	if (p->n_bits >= 8) {
		p->n_bits -= 8;
		to[(*n)++] = (char)(p->bits >> p->n_bits);
	}
}

/* Characters of the diverted string up to its end: how many were taken. "\/" is how some writers put a slash;
 * no other escape has a place in base64. */
static ssize_t divert(struct payload *p, const char *data, size_t n)
{
	size_t i = 0, out = 0;
	char *to = buf_reserve(&p->bytes, n);
	if (!to)
		return -ENOMEM;
	for (; i < n && p->diverting; i++) {
		if (p->escape) {
			p->escape = false;
			if (data[i] == '/')
				decode(p, '/', to, &out);
			else
				p->bad = true;
		} else if (data[i] == '\\') {
			p->escape = true;
		} else if (data[i] == '"') {
			p->diverting = p->in_string = false;
			/* Bits that are left must be zero, and less than a digit's; padding fills the last
			 * group. */
			if (p->n_bits == 6 || (p->bits & ((1u << p->n_bits) - 1)) ||
				(p->padding && p->length % 4))
				p->bad = true;
		} else {
			decode(p, data[i], to, &out);
		}
	}
	buf_commit(&p->bytes, out);
	return (ssize_t)i;
}

/* The string is long: what of it stands in the text already is decoded first, and a mark put in its place. */
static int begin(struct payload *p, struct buf *text)
{
	size_t n = p->length;
	text->end -= n;
	p->taken = p->diverting = true;
	p->length = 0;
	ssize_t took = divert(p, text->data + text->end, n);
	return took < 0 ? (int)took : buf_add_c(text, PAYLOAD_MARK);
}

int payload_feed(struct payload *p, const char *data, size_t n, struct buf *text)
{
	while (n) {
		if (p->diverting) {
			ssize_t took = divert(p, data, n);
			if (took < 0)
				return (int)took;
			data += took;
			n -= (size_t)took;
			if (!p->diverting && buf_add_c(text, "\"") < 0)
				return -ENOMEM;
			continue;
		}
		size_t i = 0;
		for (; i < n; i++) {
			char c = data[i];
			if (!p->in_string) {
				if (c == '"') {
					p->in_string = true;
					p->length = 0;
				}
				continue;
			}
			if (p->escape) {
				p->escape = false;
			} else if (c == '\\') {
				p->escape = true;
			} else if (c == '"') {
				p->in_string = false;
			} else if (p->length >= PAYLOAD_LONG && !p->taken) {
				break;
			}
			p->length++;
		}
		if (buf_add(text, data, i) < 0)
			return -ENOMEM;
		data += i;
		n -= i;
		int r = n ? begin(p, text) : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

void payload_done(struct payload *p)
{
	buf_done(&p->bytes);
	*p = (struct payload){0};
}
