/* A small writer of JSON answers: appends to a buffer, puts the commas. Memory is checked once, by the buffer's `failed`. */
#ifndef CUBICLE_API_OUT_H
#define CUBICLE_API_OUT_H

#include "base/buf.h"

#include <stdint.h>

struct out {
	struct buf *to;
	bool more; /* something stands before: a comma is due */
};

/* key is NULL inside arrays and for the outermost value. */
void out_open(struct out *o, const char *key, char bracket); /* '{' or '[' */
void out_close(struct out *o, char bracket);                 /* '}' or ']' */
void out_str(struct out *o, const char *key, struct str value);
void out_int(struct out *o, const char *key, int64_t value);
/* Hundredths: 1234 is 12.34. */
void out_hundredths(struct out *o, const char *key, uint64_t value);
void out_bool(struct out *o, const char *key, bool value);
/* `value` is JSON. */
void out_raw(struct out *o, const char *key, struct str value);
void out_null(struct out *o, const char *key);
/* A member whose name comes from a client. */
void out_pair(struct out *o, struct str key, struct str value);
/* RFC 3339 with microseconds; INT64_MAX, "never", is 9999-12-31T00:00:00Z (design.md §6). */
void out_time(struct out *o, const char *key, int64_t realtime_ns);

#endif
