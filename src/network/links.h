/* Settings of links by rtnetlink: each adds a message to the batch, whose failure is told with `what` (sys/netlink.h). */
#ifndef CUBICLE_NETWORK_LINKS_H
#define CUBICLE_NETWORK_LINKS_H

#include "sys/netlink.h"

#include <linux/rtnetlink.h>

/* About the link with this number (0: its name is among the attributes that follow). */
struct ifinfomsg *link_message(struct netlink *nl, struct nlmsghdr **ret, unsigned type, unsigned flags, int index, const char *what);
void link_up(struct netlink *nl, int index, const char *what);
/* Addresses are in the machine's byte order. */
void link_address(struct netlink *nl, int index, uint32_t address, uint8_t prefix, const char *what);
/* Known ahead, for good: no ARP, so nothing to wait for and nothing to spoof. */
void link_neighbour(struct netlink *nl, int index, uint32_t address, const unsigned char mac[6], const char *what);
void link_default_route(struct netlink *nl, int index, uint32_t gateway);

#endif
