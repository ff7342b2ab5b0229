/*
 * A fuzz target defines fuzz_one(), which must hold for every input. libFuzzer calls it in the fuzz flavour (scripts/fuzz); the normal tests call it with
 * the files of corpus/<target>/ and regression/<target>/ (replay.c).
 */
#ifndef CUBICLE_TESTS_FUZZ_H
#define CUBICLE_TESTS_FUZZ_H

#include "base/buf.h"
#include "base/cleanup.h"

#include <stdint.h>
#include <stdio.h>

void fuzz_one(struct str input);

/* A property that holds whatever the input. Not assert(): it must work in every flavour. */
#define hold(condition)                                                                                      \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);       \
			abort();                                                                             \
		}                                                                                            \
	} while (0)

/* The view lies inside `in`, or is one of the parser's own constants when empty or "/" or "*". */
static inline bool inside(struct str in, struct str s)
{
	return s.n == 0 || str_is(s, "/") || str_is(s, "*") || (s.p >= in.p && s.p + s.n <= in.p + in.n);
}

#endif
