/* An input as a sequence of steps: numbers and bytes are taken from its front; when it is over all are zero and empty. */
#ifndef CUBICLE_TESTS_STEPS_H
#define CUBICLE_TESTS_STEPS_H

#include "fuzz.h"

static inline uint64_t step_number(struct str *in, size_t bytes)
{
	uint64_t n = 0;
	bytes = MIN(bytes, in->n);
	memcpy(&n, in->p, bytes);
	*in = str_from(*in, bytes);
	return n;
}

/* As many bytes as the next one says. */
static inline struct str step_bytes(struct str *in)
{
	size_t n = (size_t)step_number(in, 1);
	n = MIN(n, in->n);
	struct str s = str_n(in->p, n);
	*in = str_from(*in, n);
	return s;
}

#endif
