/* cmocka with the headers it wants before it. */
#ifndef CUBICLE_TESTS_UNIT_H
#define CUBICLE_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/str.h"

#define assert_str(s, c)                                                                                     \
	do {                                                                                                 \
		struct str s_ = (s);                                                                         \
		const char *c_ = (c);                                                                        \
		assert_int_equal(s_.n, strlen(c_));                                                          \
		assert_memory_equal(s_.p, c_, s_.n);                                                         \
	} while (0)

#endif
