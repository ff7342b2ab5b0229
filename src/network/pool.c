#include "network/pool.h"
#include "base/cleanup.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <stdio.h>

#define RANGE(a, b, c, d, bits) {(uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d), bits}

const struct ipv4_range network_private[] = {
	RANGE(0, 0, 0, 0, 8),
	RANGE(10, 0, 0, 0, 8),
	RANGE(100, 64, 0, 0, 10),
	RANGE(127, 0, 0, 0, 8),
	RANGE(169, 254, 0, 0, 16),
	RANGE(172, 16, 0, 0, 12),
	RANGE(192, 0, 0, 0, 24),
	RANGE(192, 168, 0, 0, 16),
	RANGE(198, 18, 0, 0, 15),
	RANGE(224, 0, 0, 0, 3), /* multicast, reserved, broadcast */
};
const size_t network_private_count = ARRAY_SIZE(network_private);

static uint32_t mask_of(unsigned bits)
{
	return bits ? UINT32_MAX << (32 - bits) : 0;
}

uint32_t ipv4_range_last(struct ipv4_range r)
{
	return r.base | ~mask_of(r.bits);
}

int ipv4_range_parse(const char *text, struct ipv4_range *ret, struct error *err)
{
	struct str address, bits;
	char dotted[INET_ADDRSTRLEN];
	struct in_addr a;
	uint64_t n;
	if (!str_cut(str_of(text), '/', &address, &bits) || address.n >= sizeof(dotted) || str_to_u64(bits, &n) < 0 || n > 32)
		goto bad;
	memcpy(dotted, address.p, address.n);
	dotted[address.n] = 0;
	if (inet_pton(AF_INET, dotted, &a) != 1)
		goto bad;
	struct ipv4_range r = {ntohl(a.s_addr), (unsigned)n};
	if (r.base & ~mask_of(r.bits))
		return error_set(err, -EINVAL, 400, "'%s': bits are set behind the prefix", text);
	*ret = r;
	return 0;
bad:
	return error_set(err, -EINVAL, 400, "'%s' is no IPv4 range (a.b.c.d/n)", text);
}

char *ipv4_range_format(char *to, struct ipv4_range r)
{
	snprintf(to, IPV4_TEXT, "%u.%u.%u.%u/%u", r.base >> 24, r.base >> 16 & 255, r.base >> 8 & 255, r.base & 255, r.bits);
	return to;
}

char *ipv4_format(char *to, uint32_t a)
{
	snprintf(to, IPV4_TEXT, "%u.%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
	return to;
}

bool ipv4_range_overlap(struct ipv4_range a, struct ipv4_range b)
{
	uint32_t mask = mask_of(MIN(a.bits, b.bits));
	return (a.base & mask) == (b.base & mask);
}

static const struct ipv4_range *overlapping(struct ipv4_range r, const struct ipv4_range *used, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (ipv4_range_overlap(r, used[i]))
			return &used[i];
	return NULL;
}

/* The first free block of `bits` in `area`, beginning behind `after` when that lies in it. */
static bool next_free(struct ipv4_range area, struct ipv4_range after, const struct ipv4_range *used, size_t count, struct ipv4_range *ret)
{
	if (after.bits < area.bits)
		return false;
	uint32_t blocks = UINT32_C(1) << (after.bits - area.bits), size = UINT32_C(1) << (32 - after.bits);
	uint32_t from = ipv4_range_overlap(area, after) ? (after.base - area.base) / size + 1 : 0;
	for (uint32_t i = 0; i < blocks; i++) {
		struct ipv4_range r = {area.base + (from + i) % blocks * size, after.bits};
		if (!overlapping(r, used, count)) {
			*ret = r;
			return true;
		}
	}
	return false;
}

int pool_choose(struct ipv4_range wanted, bool fixed, const struct ipv4_range *used, size_t count, struct ipv4_range *ret, struct error *err)
{
	static const struct ipv4_range areas[] = {
		RANGE(100, 64, 0, 0, 10), RANGE(198, 18, 0, 0, 15), RANGE(172, 16, 0, 0, 12), RANGE(10, 0, 0, 0, 8)};
	char text[IPV4_TEXT], other[IPV4_TEXT];
	const struct ipv4_range *taken = overlapping(wanted, used, count);
	if (!taken) {
		*ret = wanted;
		return 0;
	}
	ipv4_range_format(text, wanted);
	if (fixed)
		return error_set(err, -EADDRINUSE, 400, "network.pool %s overlaps %s, which this machine uses already: choose another range", text,
			ipv4_range_format(other, *taken));
	for (size_t i = 0; i < ARRAY_SIZE(areas); i++)
		if (next_free(areas[i], wanted, used, count, ret))
			return 0;
	return error_set(err, -EADDRNOTAVAIL, 500, "this machine's networks leave no range of the size of %s free for the sandboxes: set network.pool", text);
}
