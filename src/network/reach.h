/*
 * What a sandbox may reach: lists of addresses as clients write them (e2b.md A.5.2), made into sorted ranges for the packet filters. Pure: no I/O.
 *
 * allowOut wins over denyOut, denyOut over the default, which is: everything but the private ranges (network/pool.h) and the sandboxes' own. An entry of allowOut that lies
 * within a private range opens it, where the server lets sandboxes in (option network.private); a wider one, like 0.0.0.0/0, means the public addresses in it only.
 */
#ifndef CUBICLE_NETWORK_REACH_H
#define CUBICLE_NETWORK_REACH_H

#include "io/msg.h"
#include "network/pool.h"
#include "sys/nft.h"

enum { REACH_ENTRIES_MAX = 256, REACH_TEXT_MAX = 253 }; /* entries of a list; bytes of an entry (a domain's longest) */

enum reach_kind {
	REACH_BAD,
	REACH_IPV4, /* "a.b.c.d" or "a.b.c.d/n"; bits behind the prefix are not looked at: 1.2.3.4/8 is 1.0.0.0/8 */
	REACH_IPV6, /* an address or a range: sandboxes have no IPv6, so denying it says what is so already */
	REACH_NAME, /* a domain, also "*.domain" */
};
/* *ret is written for REACH_IPV4 only. */
enum reach_kind reach_parse(struct str text, struct ipv4_range *ret);

/* A list of private ranges, comma-separated, for network.private. *ret has room for PRIVATE_MAX. The number of ranges, or -EINVAL with *err (400). */
enum { PRIVATE_MAX = 32 };
int reach_parse_private(const char *text, struct ipv4_range *ret, struct error *err);

struct reach_ranges {
	struct nft_range *list; /* owned, sorted, neither overlapping nor touching */
	size_t n, room;
};

struct reach {
	struct reach_ranges allow, deny; /* what the sets inside hold */
	struct reach_ranges opened;      /* the private part of `allow`, which the host must let pass */
	bool names;                      /* DNS answers: an address that no list names may be reached */
};

/* The rules of the server that do not depend on the sandbox. */
struct reach_limits {
	struct ipv4_range pool; /* of the sandboxes */
	const struct ipv4_range *open; /* network.private */
	size_t n_open;
};

/* internet false is one more entry of denyOut, 0.0.0.0/0. 0; -EINVAL with *err (400, naming list and entry); -ENOMEM. *ret needs reach_done() after success. */
int reach_init(struct reach *ret, const struct reach_limits *limits, struct msg_list allow, struct msg_list deny, bool internet, struct error *err);
void reach_done(struct reach *r);
/* Nothing differs from the default. */
bool reach_is_default(const struct reach *r);
bool reach_ranges_hold(const struct reach_ranges *r, uint32_t address);
bool reach_ranges_eq(const struct reach_ranges *a, const struct reach_ranges *b);
/* Whether an address (host byte order) outside of the sandbox may be reached. */
bool reach_allows(const struct reach *r, const struct reach_limits *limits, uint32_t address);

#endif
