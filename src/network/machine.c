#include "network/network.h"
#include "network/links.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <stdio.h>
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

int machine_tap(struct network *n, struct net_slot *s, struct netlink *inside, int *ret_index, struct error *err)
{
	struct nlmsghdr *m;
	s->tap = open_tap(err);
	if (s->tap < 0)
		return s->tap;
	int index = (int)if_nametoindex(TAP);
	if (!index)
		return error_errno(err, -errno, "tap of a machine");
	link_message(inside, &m, RTM_NEWLINK, 0, index, "tap");
	mnl_attr_put(m, IFLA_ADDRESS, sizeof(gateway_mac), gateway_mac);
	mnl_attr_put_u32(m, IFLA_MTU, n->mtu);
	link_address(inside, index, MACHINE_GATEWAY, MACHINE_PREFIX, "address of the tap");
	link_up(inside, index, "tap");
	link_neighbour(inside, index, MACHINE_ADDRESS, machine_mac, "neighbour behind the tap");
	int r = netlink_run(inside, err);
	if (r == 0)
		*ret_index = index;
	return r;
}

unsigned network_mtu(const struct network *n)
{
	return n->mtu;
}
