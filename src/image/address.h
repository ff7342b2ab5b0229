/* Which addresses a server that fetches what strangers name may connect to. No I/O but own_addresses_read(). */
#ifndef CUBICLE_IMAGE_ADDRESS_H
#define CUBICLE_IMAGE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum address_kind {
	ADDRESS_PUBLIC,
	ADDRESS_PRIVATE, /* private, loopback, link-local, shared (CGNAT), reserved: only where the operator has named the host */
	ADDRESS_NEVER,   /* a cloud's metadata service, multicast, broadcast, unspecified: whoever says what */
};

/*
 * By the registries of IANA (special-purpose addresses of IPv4 and IPv6; RFC 6890 and after). An IPv6 address that stands for an IPv4 one (mapped, compatible, NAT64
 * well-known and local, 6to4, ISATAP's identifiers) is what that one is, and never better than private; Teredo is private. Families other than the two: ADDRESS_NEVER.
 */
enum address_kind address_judge(const struct sockaddr *a);

/* The addresses of this machine's links, and a range of IPv4 addresses that is this server's. */
struct own_addresses {
	struct sockaddr_storage *list;
	size_t n;
	uint32_t base, mask; /* host order; mask 0: no range */
};

/* Reads the links; range as in "100.96.0.0/16" ("" or malformed: none). 0 or -errno. */
int own_addresses_read(struct own_addresses *o, const char *range);
void own_addresses_done(struct own_addresses *o);
bool own_addresses_hold(const struct own_addresses *o, const struct sockaddr *a);

/* The same address (ports do not count). */
bool address_equal(const struct sockaddr *a, const struct sockaddr *b);

#endif
