/* What the targets of both kinds of HTTP messages share. */
#ifndef CUBICLE_TESTS_FUZZ_BODIES_H
#define CUBICLE_TESTS_FUZZ_BODIES_H

#include "fuzz.h"
#include "io/http.h"

/* A head is well-formed: its views lie in `in`, nothing in them could start another line. */
void check_head(struct str in, const struct http_head *h);

/* Decodes `in` whole, byte by byte and in uneven pieces: the same bytes, end and refusal each time. */
void check_body(struct str in, enum http_framing framing, uint64_t length);

#endif
