/* Hex, base64, little-endian numbers, and quoting for a shell. */
#ifndef CUBICLE_BASE_ENCODE_H
#define CUBICLE_BASE_ENCODE_H

#include "base/buf.h"

#include <stdint.h>

/* Lower-case hex of n bytes and a NUL into to[2n + 1]. Returns to. */
char *hex_encode(char *to, const void *p, size_t n);

/* A number of at most 8 bytes, the lowest first. */
void le_put(char *to, uint64_t v, unsigned bytes);
uint64_t le_get(const char *p, unsigned bytes);

/* Exactly n bytes from 2n hex digits of either case: 0 or -EINVAL. */
int hex_decode(struct str s, void *to, size_t n);

/* Appends standard padded base64 (RFC 4648 §4); url gives §5 without padding. 0 or -ENOMEM. */
int base64_encode(struct buf *to, struct str bytes);
int base64url_encode(struct buf *to, struct str bytes);

/* Appends the decoded bytes; takes both alphabets, padded or not (protobuf JSON mapping). 0, -EINVAL or -ENOMEM. */
int base64_decode(struct buf *to, struct str text);

/* Appends the text quoted for a POSIX shell ('it'\''s'), safe for eval whatever it holds. 0 or -ENOMEM. */
int shell_quote(struct buf *to, struct str text);

#endif
