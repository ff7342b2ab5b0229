#include "network/links.h"

#include <arpa/inet.h>
#include <linux/if.h>
#include <linux/neighbour.h>

struct ifinfomsg *link_message(struct netlink *nl, struct nlmsghdr **ret, unsigned type, unsigned flags, int index, const char *what)
{
	*ret = netlink_add(nl, type, flags, what);
	struct ifinfomsg *i = mnl_nlmsg_put_extra_header(*ret, sizeof(*i));
	i->ifi_index = index;
	return i;
}

void link_up(struct netlink *nl, int index, const char *what)
{
	struct nlmsghdr *m;
	struct ifinfomsg *i = link_message(nl, &m, RTM_NEWLINK, 0, index, what);
	i->ifi_flags = i->ifi_change = IFF_UP;
}

void link_address(struct netlink *nl, int index, uint32_t address, uint8_t prefix, const char *what)
{
	struct nlmsghdr *m = netlink_add(nl, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, what);
	struct ifaddrmsg *a = mnl_nlmsg_put_extra_header(m, sizeof(*a));
	a->ifa_family = AF_INET;
	a->ifa_prefixlen = prefix;
	a->ifa_index = (uint32_t)index;
	mnl_attr_put_u32(m, IFA_LOCAL, htonl(address));
	mnl_attr_put_u32(m, IFA_ADDRESS, htonl(address));
}

void link_neighbour(struct netlink *nl, int index, uint32_t address, const unsigned char mac[6], const char *what)
{
	struct nlmsghdr *m = netlink_add(nl, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, what);
	struct ndmsg *d = mnl_nlmsg_put_extra_header(m, sizeof(*d));
	d->ndm_family = AF_INET;
	d->ndm_ifindex = index;
	d->ndm_state = NUD_PERMANENT;
	mnl_attr_put_u32(m, NDA_DST, htonl(address));
	mnl_attr_put(m, NDA_LLADDR, 6, mac);
}

void link_default_route(struct netlink *nl, int index, uint32_t gateway)
{
	struct nlmsghdr *m = netlink_add(nl, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, "default route");
	struct rtmsg *t = mnl_nlmsg_put_extra_header(m, sizeof(*t));
	t->rtm_family = AF_INET;
	t->rtm_table = RT_TABLE_MAIN;
	t->rtm_protocol = RTPROT_STATIC;
	t->rtm_scope = RT_SCOPE_UNIVERSE;
	t->rtm_type = RTN_UNICAST;
	mnl_attr_put_u32(m, RTA_GATEWAY, htonl(gateway));
	mnl_attr_put_u32(m, RTA_OIF, (uint32_t)index);
}
