#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_monotonic(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_boottime(void)
{
	return read_clock(CLOCK_BOOTTIME);
}

int64_t clock_realtime(void)
{
	return read_clock(CLOCK_REALTIME);
}

char *rfc3339_format(char *to, int64_t ns)
{
	int64_t us = ns / NS_PER_US;
	time_t s = (time_t)(us / 1000000);
	int fraction = (int)(us % 1000000);
	if (fraction < 0) {
		fraction += 1000000;
		s--;
	}
	struct tm tm;
	gmtime_r(&s, &tm);
	int year = tm.tm_year + 1900;
	year = year < 0 ? 0 : year > 9999 ? 9999 : year;
	snprintf(to, RFC3339_SIZE, "%04u-%02u-%02uT%02u:%02u:%02u.%06uZ", (unsigned)year % 10000u,
		(unsigned)(tm.tm_mon + 1) % 100u, (unsigned)tm.tm_mday % 100u, (unsigned)tm.tm_hour % 100u,
		(unsigned)tm.tm_min % 100u, (unsigned)tm.tm_sec % 100u, (unsigned)fraction % 1000000u);
	return to;
}

/* Takes exactly n digits off the front of *s: their value, or -1. */
static int digits(struct str *s, size_t n)
{
	int v = 0;
	if (s->n < n)
		return -1;
	for (size_t i = 0; i < n; i++) {
		if (s->p[i] < '0' || s->p[i] > '9')
			return -1;
		v = v * 10 + (s->p[i] - '0');
	}
	*s = str_from(*s, n);
	return v;
}

static bool take(struct str *s, const char *any)
{
	if (!s->n || !strchr(any, s->p[0]) || !s->p[0])
		return false;
	*s = str_from(*s, 1);
	return true;
}

int rfc3339_parse(struct str s, int64_t *ret_ns)
{
	struct tm tm = {0};
	int year = digits(&s, 4);
	if (year < 0 || !take(&s, "-"))
		return -EINVAL;
	tm.tm_year = year - 1900;
	int month = digits(&s, 2);
	if (month < 1 || month > 12 || !take(&s, "-"))
		return -EINVAL;
	tm.tm_mon = month - 1;
	tm.tm_mday = digits(&s, 2);
	if (tm.tm_mday < 1 || tm.tm_mday > 31 || !take(&s, "Tt "))
		return -EINVAL;
	tm.tm_hour = digits(&s, 2);
	if (tm.tm_hour < 0 || tm.tm_hour > 23 || !take(&s, ":"))
		return -EINVAL;
	tm.tm_min = digits(&s, 2);
	if (tm.tm_min < 0 || tm.tm_min > 59 || !take(&s, ":"))
		return -EINVAL;
	tm.tm_sec = digits(&s, 2);
	if (tm.tm_sec < 0 || tm.tm_sec > 60)
		return -EINVAL;
	int64_t fraction = 0, unit = NS_PER_S / 10;
	if (take(&s, ".")) {
		int d = digits(&s, 1);
		if (d < 0)
			return -EINVAL;
		for (; d >= 0; d = digits(&s, 1), unit /= 10)
			fraction += d * unit;
	}
	int64_t offset = 0;
	if (!take(&s, "Zz")) {
		if (!s.n || (s.p[0] != '+' && s.p[0] != '-'))
			return -EINVAL;
		int sign = s.p[0] == '-' ? -1 : 1;
		s = str_from(s, 1);
		int h = digits(&s, 2);
		if (h < 0 || h > 23 || !take(&s, ":"))
			return -EINVAL;
		int m = digits(&s, 2);
		if (m < 0 || m > 59)
			return -EINVAL;
		offset = sign * (h * 3600 + m * 60);
	}
	if (s.n)
		return -EINVAL;
	int64_t seconds = (int64_t)timegm(&tm) - offset;
	if (__builtin_mul_overflow(seconds, NS_PER_S, ret_ns) || __builtin_add_overflow(*ret_ns, fraction, ret_ns))
		*ret_ns = seconds < 0 ? INT64_MIN : INT64_MAX;
	return 0;
}
