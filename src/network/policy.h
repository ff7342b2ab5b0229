/*
 * The policy inside a sandbox's network namespace (nftables; owned by the host, out of reach of a root inside). It judges what leaves by the
 * link, packet by packet and without connection tracking, so that a change cuts flows that exist, the loopback stays fast and no table can be filled.
 * Order: named set allow4, then deny4, then the private ranges. What is refused is refused at once (TCP reset, ICMP), never left to a timeout.
 */
#ifndef CUBICLE_NETWORK_POLICY_H
#define CUBICLE_NETWORK_POLICY_H

#include "base/error.h"
#include "network/reach.h"

/* `filter`: a netfilter socket that was opened in the sandbox's network namespace. Installs the rules into a new namespace. tap: number of the link behind which a microVM is, whose packets
 * are forwarded under `guest_address` and judged on their way (this needs connection tracking, for the translation only); 0 = none. 0 or -errno. */
int policy_install(struct mnl_socket *filter, struct ipv4_range pool, uint32_t guest_address, int tap, struct error *err);
/* Replaces what the two sets hold, in one transaction: everything is as before, or as asked for. 0 or -errno. */
int policy_apply(struct mnl_socket *filter, const struct reach *r, struct error *err);

#endif
