#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void check(const struct buf *b)
{
	assert(b->start <= b->end && b->end <= b->cap);
}

char *buf_reserve(struct buf *b, size_t n)
{
	check(b);
	if (b->cap - b->end >= n && b->data)
		return b->data + b->end;
	size_t len = buf_len(b);
	if (len + n < len)
		goto fail;
	if (b->start && len + n <= b->cap && b->start >= b->cap / 2) {
		memmove(b->data, b->data + b->start, len);
	} else {
		size_t cap = b->cap ? b->cap : 256;
		while (cap < len + n) {
			if (cap > SIZE_MAX / 2)
				goto fail;
			cap *= 2;
		}
		char *fresh = malloc(cap);
		if (!fresh)
			goto fail;
		if (len)
			memcpy(fresh, b->data + b->start, len);
		free(b->data);
		b->data = fresh;
		b->cap = cap;
	}
	b->start = 0;
	b->end = len;
	return b->data + len;
fail:
	b->failed = true;
	return NULL;
}

void buf_commit(struct buf *b, size_t n)
{
	assert(n <= b->cap - b->end);
	b->end += n;
}

int buf_add(struct buf *b, const void *p, size_t n)
{
	if (n == 0)
		return 0;
	char *to = buf_reserve(b, n);
	if (!to)
		return -ENOMEM;
	memcpy(to, p, n);
	b->end += n;
	return 0;
}

int buf_add_str(struct buf *b, struct str s)
{
	return buf_add(b, s.p, s.n);
}

int buf_add_c(struct buf *b, const char *c)
{
	return buf_add(b, c, strlen(c));
}

int buf_vaddf(struct buf *b, const char *fmt, va_list ap)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	char *to = n < 0 ? NULL : buf_reserve(b, (size_t)n + 1);
	if (to) {
		vsnprintf(to, (size_t)n + 1, fmt, again);
		b->end += (size_t)n;
	}
	va_end(again);
	return to ? 0 : -ENOMEM;
}

int buf_addf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int r = buf_vaddf(b, fmt, ap);
	va_end(ap);
	return r;
}

void buf_consume(struct buf *b, size_t n)
{
	check(b);
	assert(n <= buf_len(b));
	b->start += n;
	if (b->start == b->end)
		b->start = b->end = 0;
}

void buf_clear(struct buf *b)
{
	b->start = b->end = 0;
}

const char *buf_cstr(struct buf *b)
{
	char *to = buf_reserve(b, 1);
	if (!to)
		return NULL;
	*to = '\0';
	return b->data + b->start;
}

void buf_done(struct buf *b)
{
	free(b->data);
	*b = BUF_INIT;
}
