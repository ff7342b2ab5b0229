#include "network/network.h"
#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#define TAP "tap0"

enum { VNET_HEADER = 12 };

const unsigned char machine_mac[6] = {0x02, 0xc0, 0, 0, 0, 2};
static const unsigned char gateway_mac[6] = {0x06, 0xc0, 0, 0, 0, 1};

/* The link is of the namespace that the thread is in. */
static int open_tap(struct error *err)
{
	struct ifreq q = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	int size = VNET_HEADER;
	snprintf(q.ifr_name, sizeof(q.ifr_name), "%s", TAP);
	cleanup_fd int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "/dev/net/tun");
	if (ioctl(fd, TUNSETIFF, &q) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &size) < 0)
		return error_errno(err, -errno, "tap of a machine");
	return steal_fd(&fd);
}

static struct ifinfomsg *set_link(struct netlink *nl, struct nlmsghdr **ret, int index)
{
	*ret = netlink_add(nl, RTM_NEWLINK, 0, "tap");
	struct ifinfomsg *i = mnl_nlmsg_put_extra_header(*ret, sizeof(*i));
	i->ifi_index = index;
	return i;
}

static void put_address(struct netlink *nl, int index)
{
	struct nlmsghdr *m = netlink_add(nl, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, "address of the tap");
	struct ifaddrmsg *a = mnl_nlmsg_put_extra_header(m, sizeof(*a));
	a->ifa_family = AF_INET;
	a->ifa_prefixlen = MACHINE_PREFIX;
	a->ifa_index = (uint32_t)index;
	mnl_attr_put_u32(m, IFA_LOCAL, htonl(MACHINE_GATEWAY));
	mnl_attr_put_u32(m, IFA_ADDRESS, htonl(MACHINE_GATEWAY));
}

/* Known ahead: a machine that answers no ARP costs nobody anything. */
static void put_neighbour(struct netlink *nl, int index)
{
	struct nlmsghdr *m = netlink_add(nl, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, "neighbour behind the tap");
	struct ndmsg *d = mnl_nlmsg_put_extra_header(m, sizeof(*d));
	d->ndm_family = AF_INET;
	d->ndm_ifindex = index;
	d->ndm_state = NUD_PERMANENT;
	mnl_attr_put_u32(m, NDA_DST, htonl(MACHINE_ADDRESS));
	mnl_attr_put(m, NDA_LLADDR, sizeof(machine_mac), machine_mac);
}

int machine_tap(struct network *n, struct net_slot *s, struct netlink *inside, int *ret_index, struct error *err)
{
	struct nlmsghdr *m;
	s->tap = open_tap(err);
	if (s->tap < 0)
		return s->tap;
	int index = (int)if_nametoindex(TAP);
	if (!index)
		return error_errno(err, -errno, "tap of a machine");
	set_link(inside, &m, index);
	mnl_attr_put(m, IFLA_ADDRESS, sizeof(gateway_mac), gateway_mac);
	mnl_attr_put_u32(m, IFLA_MTU, n->mtu);
	put_address(inside, index);
	struct ifinfomsg *i = set_link(inside, &m, index);
	i->ifi_flags = i->ifi_change = IFF_UP;
	put_neighbour(inside, index);
	int r = netlink_run(inside, err);
	if (r == 0)
		*ret_index = index;
	return r;
}

unsigned network_mtu(const struct network *n)
{
	return n->mtu;
}
