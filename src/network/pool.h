/* Which range of addresses the links are cut from. Pure: no I/O. */
#ifndef CUBICLE_NETWORK_POOL_H
#define CUBICLE_NETWORK_POOL_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ipv4_range {
	uint32_t base; /* host byte order, host bits zero */
	unsigned bits; /* prefix length */
};

enum { IPV4_TEXT = 20 };

/* "a.b.c.d/n" with the host bits zero: 0 or -EINVAL with *err (400). */
int ipv4_range_parse(const char *text, struct ipv4_range *ret, struct error *err);
/* Into to[IPV4_TEXT]; returns to. */
char *ipv4_range_format(char *to, struct ipv4_range r);
/* An address alone. */
char *ipv4_format(char *to, uint32_t address);
bool ipv4_range_overlap(struct ipv4_range a, struct ipv4_range b);
uint32_t ipv4_range_last(struct ipv4_range r);

/* Ranges no sandbox may talk to: not globally reachable (IANA special-purpose registry; the three documentation ranges are left out, nothing lives there), multicast,
 * reserved, broadcast. In order, without overlap. */
extern const struct ipv4_range network_private[];
extern const size_t network_private_count;

/* The wanted range when nothing in `used` overlaps it. Else: `fixed` refuses (-EADDRINUSE, 400), otherwise the next free one of the same size, first in the carriers'
 * range 100.64.0.0/10, then in 198.18.0.0/15, 172.16.0.0/12 and 10.0.0.0/8; -EADDRNOTAVAIL when all are taken. */
int pool_choose(struct ipv4_range wanted, bool fixed, const struct ipv4_range *used, size_t count, struct ipv4_range *ret, struct error *err);

#endif
