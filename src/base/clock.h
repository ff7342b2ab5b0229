/* Time. All values are int64 nanoseconds unless a name says otherwise. */
#ifndef CUBICLE_BASE_CLOCK_H
#define CUBICLE_BASE_CLOCK_H

#include "base/str.h"

#include <stdint.h>

#define NS_PER_MS 1000000LL
#define NS_PER_US 1000LL
#define NS_PER_S 1000000000LL

/* CLOCK_MONOTONIC, for intervals; CLOCK_BOOTTIME, for deadlines; CLOCK_REALTIME, for what people see. */
int64_t clock_monotonic(void);
int64_t clock_boottime(void);
int64_t clock_realtime(void);

enum { RFC3339_SIZE = 32 };

/* UTC with microseconds, "2026-01-02T03:04:05.678901Z", into to[RFC3339_SIZE]. Years outside 0..9999 are clamped. Returns to. */
char *rfc3339_format(char *to, int64_t realtime_ns);

/* RFC 3339 with any fraction and 'Z' or a numeric offset: 0 or -EINVAL. What int64 cannot hold (before 1677, after 2262) becomes its end. */
int rfc3339_parse(struct str s, int64_t *ret_ns);

#endif
