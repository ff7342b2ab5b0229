/*
 * JSON text as views: messages of kernels are looked into and passed on without a tree of values in between.
 * So numbers of any size, any nesting up to the limit and strings that are no proper Unicode (a kernel's user
 * may print what he likes) come through, and a message of 100 MB costs no second copy. No I/O.
 *
 * Beyond RFC 8259, which kernels are known to send: NaN, Infinity and -Infinity as values (passed on as
 * null), bytes in strings that are no UTF-8 and surrogates without their other half (passed on as U+FFFD).
 */
#ifndef CUBICLE_INTERP_JSONTEXT_H
#define CUBICLE_INTERP_JSONTEXT_H

#include "base/buf.h"

enum { JSONTEXT_MAX_DEPTH = 512 };

/* Checks that the text is one value: 0 and the value without white space around it, or -EINVAL (malformed),
 * -E2BIG (nested too deep). Everything below wants views that were checked, or parts of them. */
int jsontext_parse(struct str text, struct str *ret);

/* Raw value of the object's first member with that key; the empty view when absent or when it is no object.
 */
struct str jsontext_get(struct str object, const char *key);

/* Walks an object (raw key with its quotes, raw value) or an array (ret_key NULL). *rest starts as the whole
 * value. False at the end, and for other types at once. */
bool jsontext_next(struct str *rest, struct str *ret_key, struct str *ret_value);

static inline bool jsontext_is_string(struct str raw)
{
	return raw.n >= 2 && raw.p[0] == '"';
}

/* What stands between the quotes, still escaped; the empty view for other types. */
static inline struct str jsontext_inner(struct str raw)
{
	return jsontext_is_string(raw) ? str_n(raw.p + 1, raw.n - 2) : STR("");
}

/* Appends a string's characters as UTF-8. 0, -EINVAL for other types, -ENOMEM. */
int jsontext_string(struct str raw, struct buf *to);

/* An integer within int64: 0 or -EINVAL. */
int jsontext_int(struct str raw, int64_t *ret);

/* Where a conversion to ASCII stands: begin with {text, false}, or with {inside of a string, true}. */
struct jsontext_cursor {
	struct str rest;
	bool in_string;
};

/* Appends the text in ASCII, without white space between tokens (so never a line break), until it is done
 * (rest is empty) or `max` bytes or a few more were appended. 0 or -ENOMEM. */
int jsontext_ascii(struct jsontext_cursor *c, struct buf *to, size_t max);

#endif
