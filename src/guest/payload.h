/*
 * Bytes that arrive as one long base64 string inside a JSON message, decoded as they come, so that ten megabytes of input never stand in memory as text, as parsed
 * text and as bytes at once. In the text that is parsed the first long string is replaced by PAYLOAD_MARK, which is no base64; what it held is in `bytes`.
 */
#ifndef CUBICLE_GUEST_PAYLOAD_H
#define CUBICLE_GUEST_PAYLOAD_H

#include "base/buf.h"

#define PAYLOAD_MARK "(payload)"

enum { PAYLOAD_LONG = 4096 /* characters of a string that is not long yet */ };

struct payload {
	struct buf bytes;
	bool taken; /* a string was diverted */
	bool bad;   /* ... and is no base64 */
	/* private */
	bool in_string, escape, diverting;
	size_t length;
	unsigned padding;
	uint32_t bits;
	unsigned n_bits;
};

/* Takes the next part of the message; what belongs to the text to parse is appended to `text`. 0 or -ENOMEM. */
int payload_feed(struct payload *p, const char *data, size_t n, struct buf *text);
void payload_done(struct payload *p);

#endif
