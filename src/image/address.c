#include "image/address.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

struct range4 {
	uint32_t base;
	int bits;
	enum address_kind kind;
};

/* The first that holds an address decides. */
static const struct range4 ranges4[] = {
	{0xa9fea9fe, 32, ADDRESS_NEVER},   /* 169.254.169.254: metadata of most clouds */
	{0xa9feaa02, 32, ADDRESS_NEVER},   /* 169.254.170.2: credentials of containers (ECS) */
	{0x646464c8, 32, ADDRESS_NEVER},   /* 100.100.100.200: metadata (Alibaba) */
	{0xa83f8110, 32, ADDRESS_NEVER},   /* 168.63.129.16: the host of a machine (Azure), in public space */
	{0xc00000c0, 32, ADDRESS_NEVER},   /* 192.0.0.192: metadata (Oracle) */
	{0x00000000, 8, ADDRESS_NEVER},    /* this host: some kernels connect to themselves */
	{0xe0000000, 4, ADDRESS_NEVER},    /* multicast */
	{0xffffffff, 32, ADDRESS_NEVER},   /* broadcast */
	{0xf0000000, 4, ADDRESS_PRIVATE},  /* reserved */
	{0x0a000000, 8, ADDRESS_PRIVATE},  /* RFC 1918 */
	{0xac100000, 12, ADDRESS_PRIVATE},
	{0xc0a80000, 16, ADDRESS_PRIVATE},
	{0x7f000000, 8, ADDRESS_PRIVATE},  /* loopback */
	{0xa9fe0000, 16, ADDRESS_PRIVATE}, /* link-local */
	{0x64400000, 10, ADDRESS_PRIVATE}, /* shared, RFC 6598 */
	{0xc0000000, 24, ADDRESS_PRIVATE}, /* protocol assignments */
	{0xc0000200, 24, ADDRESS_PRIVATE}, /* documentation */
	{0xc6336400, 24, ADDRESS_PRIVATE},
	{0xcb007100, 24, ADDRESS_PRIVATE},
	{0xc0586300, 24, ADDRESS_PRIVATE}, /* 6to4 relays, deprecated */
	{0xc6120000, 15, ADDRESS_PRIVATE}, /* benchmarks */
};

static enum address_kind judge4(uint32_t a)
{
	for (size_t i = 0; i < ARRAY_SIZE(ranges4); i++)
		if ((a ^ ranges4[i].base) >> (32 - ranges4[i].bits) == 0)
			return ranges4[i].kind;
	return ADDRESS_PUBLIC;
}

static bool starts(const struct in6_addr *a, const uint8_t *prefix, size_t bytes)
{
	return memcmp(a->s6_addr, prefix, bytes) == 0;
}

static uint32_t inner(const struct in6_addr *a, size_t at)
{
	const uint8_t *p = a->s6_addr + at;
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* What stands for an IPv4 address may lead to it: never better than private, and never at all where that one is. */
static enum address_kind judge_inner(uint32_t a)
{
	return judge4(a) == ADDRESS_NEVER ? ADDRESS_NEVER : ADDRESS_PRIVATE;
}

static enum address_kind judge6(const struct in6_addr *a)
{
	static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b}, nat64_local[6] = {0, 0x64, 0xff, 0x9b, 0, 1}, zero[12], ec2[16] = {0xfd, 0, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54};
	static const uint8_t teredo[4] = {0x20, 0x01}, assignments[2] = {0x20, 0x01}, documentation[4] = {0x20, 0x01, 0x0d, 0xb8}, isatap[4] = {0, 0, 0x5e, 0xfe};
	const uint8_t *b = a->s6_addr;
	if (IN6_IS_ADDR_UNSPECIFIED(a) || IN6_IS_ADDR_MULTICAST(a) || starts(a, ec2, 16))
		return ADDRESS_NEVER;
	if (IN6_IS_ADDR_LOOPBACK(a))
		return ADDRESS_PRIVATE;
	if (IN6_IS_ADDR_V4MAPPED(a) || starts(a, nat64, 12) || starts(a, zero, 12) || starts(a, nat64_local, 6))
		return judge_inner(inner(a, 12));
	if (b[0] == 0x20 && b[1] == 0x02)
		return judge_inner(inner(a, 2));
	if ((b[8] & ~3) == 0 && !memcmp(b + 9, isatap + 1, 3))
		return judge_inner(inner(a, 12));
	if (starts(a, teredo, 4) || starts(a, documentation, 4))
		return ADDRESS_PRIVATE;
	if (starts(a, assignments, 2) && b[2] < 2) /* 2001::/23 */
		return ADDRESS_PRIVATE;
	if (b[0] == 0x3f && b[1] == 0xff && b[2] < 0x10) /* 3fff::/20, documentation */
		return ADDRESS_PRIVATE;
	return (b[0] & 0xe0) == 0x20 ? ADDRESS_PUBLIC : ADDRESS_PRIVATE; /* 2000::/3 is all that is given to anybody */
}

enum address_kind address_judge(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return judge4(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr));
	if (a->sa_family == AF_INET6)
		return judge6(&((const struct sockaddr_in6 *)a)->sin6_addr);
	return ADDRESS_NEVER;
}

bool address_equal(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return a->sa_family == AF_INET6 && IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr);
}

static void read_range(struct own_addresses *o, const char *range)
{
	unsigned b[4], bits;
	char end;
	if (sscanf(range, "%u.%u.%u.%u/%u%c", &b[0], &b[1], &b[2], &b[3], &bits, &end) != 5 || bits < 1 || bits > 32)
		return;
	o->mask = UINT32_MAX << (32 - bits);
	o->base = (b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3]) & o->mask;
}

int own_addresses_read(struct own_addresses *o, const char *range)
{
	struct ifaddrs *all;
	*o = (struct own_addresses){0};
	read_range(o, range);
	if (getifaddrs(&all) < 0)
		return -errno;
	int r = 0;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
			continue;
		struct sockaddr_storage *list = reallocarray(o->list, o->n + 1, sizeof(*list));
		if (!list) {
			r = -ENOMEM;
			own_addresses_done(o);
			break;
		}
		o->list = list;
		memcpy(&list[o->n++], i->ifa_addr, i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	}
	freeifaddrs(all);
	return r;
}

void own_addresses_done(struct own_addresses *o)
{
	free(o->list);
	*o = (struct own_addresses){0};
}

bool own_addresses_hold(const struct own_addresses *o, const struct sockaddr *a)
{
	if (a->sa_family == AF_INET && o->mask && (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) & o->mask) == o->base)
		return true;
	for (size_t i = 0; i < o->n; i++)
		if (address_equal((const struct sockaddr *)&o->list[i], a))
			return true;
	return false;
}
