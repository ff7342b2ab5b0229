/* A growable byte buffer: bytes are appended at the end and consumed from the front. */
#ifndef CUBICLE_BASE_BUF_H
#define CUBICLE_BASE_BUF_H

#include "base/str.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct buf {
	char *data;   /* owned; NULL while empty */
	size_t start; /* first unconsumed byte */
	size_t end;   /* one past the last byte */
	size_t cap;   /* allocated bytes */
	bool failed;  /* an append ran out of memory; set until buf_done() */
};

#define BUF_INIT ((struct buf){0})

static inline size_t buf_len(const struct buf *b)
{
	return b->end - b->start;
}

/* The unconsumed bytes; valid until the next call that changes the buffer. */
static inline struct str buf_str(const struct buf *b)
{
	return str_n(b->data ? b->data + b->start : "", b->end - b->start);
}

/* Room for n more bytes: a pointer to write to (then buf_commit), or NULL without memory. */
char *buf_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);

/* Append: 0 or -ENOMEM; `failed` stays set, so a chain of appends may be checked once. */
int buf_add(struct buf *b, const void *p, size_t n);
int buf_add_str(struct buf *b, struct str s);
int buf_add_c(struct buf *b, const char *c);
int buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_vaddf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* Drops n bytes (at most buf_len) from the front. */
void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b);

/* NUL-terminates without counting the NUL, and returns the bytes as a C string owned by the buffer; NULL without memory. */
const char *buf_cstr(struct buf *b);

/* Frees the memory; the buffer may be used again as empty. */
void buf_done(struct buf *b);
#define cleanup_buf __attribute__((__cleanup__(buf_done)))

#endif
