/* (pointer, length) views of bytes. Not NUL-terminated, not owned, may hold any byte. */
#ifndef CUBICLE_BASE_STR_H
#define CUBICLE_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
	const char *p;
	size_t n;
};

#define STR(lit) ((struct str){(lit), sizeof(lit) - 1})
#define STR_FMT(s) (int)(s).n, (s).p /* for printf's %.*s */

/* View of a C string; NULL gives the empty view. */
static inline struct str str_of(const char *c)
{
	return (struct str){c ? c : "", c ? strlen(c) : 0};
}

static inline struct str str_n(const void *p, size_t n)
{
	return (struct str){p, n};
}

static inline bool str_eq(struct str a, struct str b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool str_is(struct str a, const char *c)
{
	return str_eq(a, str_of(c));
}

static inline bool str_starts(struct str a, struct str prefix)
{
	return a.n >= prefix.n && memcmp(a.p, prefix.p, prefix.n) == 0;
}

static inline bool str_ends(struct str a, struct str suffix)
{
	return a.n >= suffix.n && memcmp(a.p + a.n - suffix.n, suffix.p, suffix.n) == 0;
}

/* ASCII-case-insensitive equality. */
bool str_eq_nocase(struct str a, struct str b);

/* Bytes from `from` to the end; beyond the end gives the empty view. */
struct str str_from(struct str s, size_t from);

/* Without leading and trailing space and tab. */
struct str str_trim(struct str s);

/* Cuts at the first `sep`: before it to *ret_head, after it to *ret_tail. False (both untouched) when absent. */
bool str_cut(struct str s, char sep, struct str *ret_head, struct str *ret_tail);

/* Index of the first byte equal to c, or -1. */
ptrdiff_t str_chr(struct str s, char c);

/* NUL-terminated copy, freed by the caller; NULL without memory. A NUL inside ends what C sees of it. */
char *str_dup(struct str s);

/* Whole view is 1..20 decimal digits within uint64: 0, else -EINVAL or -ERANGE. No sign, no space. */
int str_to_u64(struct str s, uint64_t *ret);

/* Like str_to_u64 with an optional leading '-'. */
int str_to_i64(struct str s, int64_t *ret);

/* Timing independent of the contents (not of the length). */
bool str_eq_secret(struct str a, struct str b);

/* True when the bytes are well-formed UTF-8 (no surrogates, no overlong forms). */
bool str_is_utf8(struct str s);

#endif
