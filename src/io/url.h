/* Percent-decoding and query strings. No I/O. */
#ifndef CUBICLE_IO_URL_H
#define CUBICLE_IO_URL_H

#include "base/buf.h"

/* Appends the decoded bytes; `plus` also turns '+' into a space (query strings). -EINVAL for a broken %-escape. */
int url_decode(struct buf *to, struct str s, bool plus);
/* Appends s with everything but unreserved characters percent-encoded. */
int url_encode(struct buf *to, struct str s);

/* Walks "a=b&c": the next raw (still encoded) pair; false at the end. Empty pairs are skipped. *rest starts as the whole query. */
bool url_query_next(struct str *rest, struct str *ret_key, struct str *ret_value);

/* Decoded value of the first pair with that (decoded) key: 1 = found, appended to *to; 0 = absent; -EINVAL. */
int url_query_get(struct str query, const char *key, struct buf *to);

#endif
