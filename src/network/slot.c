#include "network/network.h"
#include "network/links.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "network/policy.h"
#include "sys/netlink.h"
#include "sys/sock_diag.h"

#include <arpa/inet.h>
#include <assert.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define GUEST_LINK "eth0"

enum { LINK_PREFIX = 31 };

struct mac {
	unsigned char bytes[6];
};

/* Locally administered; pinned, so that nothing on the host renames it and no neighbour entry ever goes stale. */
static struct mac mac_of(const struct network *n, unsigned number, bool host)
{
	unsigned tag = n->instance.link_group & 0xffff;
	return (struct mac){{host ? 0x06 : 0x02, (unsigned char)(tag >> 8), (unsigned char)tag, (unsigned char)(number >> 16), (unsigned char)(number >> 8),
		(unsigned char)number}};
}

static void name_slot(const struct network *n, unsigned number, bool machine, struct net_slot *s)
{
	*s = (struct net_slot){.number = number, .netns = -1, .dns_udp = -1, .dns_tcp = -1, .machine = machine, .tap = -1};
	snprintf(s->host_link, sizeof(s->host_link), "cub%sx%u", n->instance.tag, number & 0x7fffff); /* capacity is at most 2^23 */
	s->host_address = n->pool.base + 2 * number;
	s->guest_address = network_guest_address(n, number);
}

/* A thread left in a sandbox's namespace would do the host's work there. */
static void go_home(int home)
{
	if (setns(home, CLONE_NEWNET) < 0)
		abort();
}

/* In the new namespace. */
static int write_sysctls(struct network *n, bool forward, struct error *err)
{
	static const struct {
		const char *name, *value;
	} sysctls[] = {
		/* For links made from now on; lo exists and keeps ::1. */
		{"ipv6/conf/default/disable_ipv6", "1"},
		{"ipv4/ip_unprivileged_port_start", "0"},
		{"ipv4/ping_group_range", "0 4294967294"},
		/* IPv4's are inherited from the host, which forwards. */
		{"ipv4/ip_forward", "0"},
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/all/accept_source_route", "0"},
		{"ipv4/conf/all/route_localnet", "0"},
	};
	cleanup_fd int proc = network_proc(n);
	cleanup_fd int net = proc < 0 ? proc : openat(proc, "sys/net", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (net < 0)
		return error_errno(err, proc < 0 ? proc : -errno, "/proc/sys/net");
	for (size_t i = 0; i < ARRAY_SIZE(sysctls); i++) {
		int r = file_write_value(net, sysctls[i].name, str_of(sysctls[i].value));
		if (r < 0 && !(r == -ENOENT && i == 0)) /* a kernel without IPv6 */
			return error_errno(err, r, "/proc/sys/net/%s", sysctls[i].name);
	}
	int r = forward ? file_write_value(net, "ipv4/ip_forward", STR("1")) : 0;
	return r < 0 ? error_errno(err, r, "/proc/sys/net/ipv4/ip_forward") : 0;
}

static const char *nameserver(const struct net_slot *s)
{
	return s->machine ? MACHINE_NAMESERVER : NETWORK_NAMESERVER;
}

static int dns_socket(const struct net_slot *s, int type, int *ret)
{
	cleanup_fd int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(53)};
	inet_pton(AF_INET, nameserver(s), &at.sin_addr);
	int one = 1;
	/* A new node binds beside the old one's sockets. Nobody inside can join: the kernel asks for the same user. */
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ||
		(type == SOCK_STREAM && listen(fd, 64) < 0))
		return -errno;
	*ret = steal_fd(&fd);
	return 0;
}

static int dns_sockets(struct net_slot *s, struct error *err)
{
	int r = dns_socket(s, SOCK_DGRAM, &s->dns_udp);
	if (r == 0)
		r = dns_socket(s, SOCK_STREAM, &s->dns_tcp);
	return r < 0 ? error_errno(err, r, "binding %s:53 inside", nameserver(s)) : 0;
}

static int open_filter(struct net_slot *s, struct error *err)
{
	struct netlink n = NETLINK_INIT;
	int r = netlink_open(&n, NETLINK_NETFILTER);
	s->filter = n.socket;
	return r < 0 ? error_errno(err, r, "nftables") : 0;
}

/* In the new namespace, which the calling thread is in: all that needs no link. `inside` stays bound to it. */
static int furnish(struct network *n, struct net_slot *s, struct netlink *inside, struct error *err)
{
	s->netns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (s->netns < 0)
		return error_errno(err, -errno, "network namespace");
	int tap = 0, r = write_sysctls(n, s->machine, err);
	if (r < 0)
		return r;
	r = netlink_open(inside, NETLINK_ROUTE);
	if (r < 0)
		return error_errno(err, r, "netlink");
	link_up(inside, 1, "link up");
	r = netlink_run(inside, err);
	if (r == 0 && s->machine)
		r = machine_tap(n, s, inside, &tap, err);
	if (r == 0)
		r = open_filter(s, err);
	if (r == 0)
		r = policy_install(s->filter, n->pool, s->guest_address, tap, err);
	return r < 0 ? r : dns_sockets(s, err);
}

static void put_end(struct nlmsghdr *m, const char *name, struct mac mac, uint32_t mtu)
{
	mnl_attr_put_strz(m, IFLA_IFNAME, name);
	mnl_attr_put(m, IFLA_ADDRESS, sizeof(mac.bytes), mac.bytes);
	mnl_attr_put_u32(m, IFLA_MTU, mtu);
	/* One queue each: less memory, and quicker to make. */
	mnl_attr_put_u32(m, IFLA_NUM_TX_QUEUES, 1);
	mnl_attr_put_u32(m, IFLA_NUM_RX_QUEUES, 1);
}

static int make_pair(const struct network *n, const struct net_slot *s, struct netlink *host, struct error *err)
{
	struct nlmsghdr *m;
	link_message(host, &m, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, 0, "veth pair");
	put_end(m, s->host_link, mac_of(n, s->number, true), n->mtu);
	mnl_attr_put_u32(m, IFLA_GROUP, n->instance.link_group);
	struct nlattr *info = mnl_attr_nest_start(m, IFLA_LINKINFO);
	mnl_attr_put_strz(m, IFLA_INFO_KIND, "veth");
	struct nlattr *data = mnl_attr_nest_start(m, IFLA_INFO_DATA);
	struct nlattr *peer = mnl_attr_nest_start(m, VETH_INFO_PEER);
	mnl_nlmsg_put_extra_header(m, sizeof(struct ifinfomsg));
	put_end(m, GUEST_LINK, mac_of(n, s->number, false), n->mtu);
	mnl_attr_put_u32(m, IFLA_NET_NS_FD, (uint32_t)s->netns);
	mnl_attr_nest_end(m, peer);
	mnl_attr_nest_end(m, data);
	mnl_attr_nest_end(m, info);
	return netlink_run(host, err);
}

/* The link of an earlier sandbox with this number lives until its namespace is torn down, which happens in the background, and as long as somebody
 * still holds a socket of it. The number is ours now. */
static int remove_stale(const struct net_slot *s, struct netlink *host, struct error *err)
{
	struct nlmsghdr *m;
	link_message(host, &m, RTM_DELLINK, 0, 0, "removing the link of an earlier sandbox");
	mnl_attr_put_strz(m, IFLA_IFNAME, s->host_link);
	int r = netlink_run(host, err);
	return r == -ENODEV ? 0 : r;
}

static int index_of(int socket, const char *name)
{
	struct ifreq q = {0};
	snprintf(q.ifr_name, sizeof(q.ifr_name), "%s", name);
	return ioctl(socket, SIOCGIFINDEX, &q) < 0 ? -errno : q.ifr_ifindex;
}

static int guest_end(const struct network *n, const struct net_slot *s, struct netlink *inside, struct error *err)
{
	int index = index_of(s->dns_udp, GUEST_LINK);
	if (index < 0)
		return error_errno(err, index, "link inside");
	link_address(inside, index, s->guest_address, LINK_PREFIX, "address");
	link_up(inside, index, "link up");
	link_neighbour(inside, index, s->host_address, mac_of(n, s->number, true).bytes, "neighbour");
	link_default_route(inside, index, s->host_address);
	return netlink_run(inside, err);
}

/* Per-link settings of IPv4, whatever the host's defaults are. */
static void put_host_settings(struct nlmsghdr *m)
{
	static const struct {
		uint16_t id;
		uint32_t value;
	} settings[] = {
		{IPV4_DEVCONF_FORWARDING, 1}, {IPV4_DEVCONF_RP_FILTER, 1}, {IPV4_DEVCONF_ARP_IGNORE, 8}, {IPV4_DEVCONF_PROXY_ARP, 0},
		{IPV4_DEVCONF_ACCEPT_REDIRECTS, 0}, {IPV4_DEVCONF_SEND_REDIRECTS, 0}, {IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE, 0},
		{IPV4_DEVCONF_ROUTE_LOCALNET, 0}, {IPV4_DEVCONF_ACCEPT_LOCAL, 0},
	};
	struct nlattr *families = mnl_attr_nest_start(m, IFLA_AF_SPEC);
	struct nlattr *inet = mnl_attr_nest_start(m, AF_INET);
	struct nlattr *conf = mnl_attr_nest_start(m, IFLA_INET_CONF);
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
		mnl_attr_put_u32(m, settings[i].id, settings[i].value);
	mnl_attr_nest_end(m, conf);
	mnl_attr_nest_end(m, inet);
	mnl_attr_nest_end(m, families);
}

static int host_end(const struct network *n, const struct net_slot *s, struct netlink *host, struct error *err)
{
	char path[64];
	int index = index_of(n->socket, s->host_link);
	if (index < 0)
		return error_errno(err, index, "link %s", s->host_link);
	snprintf(path, sizeof(path), "%s/disable_ipv6", s->host_link);
	int r = n->ipv6_conf < 0 ? 0 : file_write_value(n->ipv6_conf, path, STR("1"));
	if (r < 0)
		return error_errno(err, r, "/proc/sys/net/ipv6/conf/%s", path);
	struct nlmsghdr *m;
	link_message(host, &m, RTM_NEWLINK, 0, index, "settings of the link");
	put_host_settings(m);
	link_address(host, index, s->host_address, LINK_PREFIX, "address");
	link_up(host, index, "link up");
	link_neighbour(host, index, s->guest_address, mac_of(n, s->number, false).bytes, "neighbour");
	return netlink_run(host, err);
}

static int take_state(const struct nlmsghdr *m, void *arg)
{
	struct nlattr *a;
	mnl_attr_for_each (a, m, sizeof(struct ifinfomsg))
		if (mnl_attr_get_type(a) == IFLA_OPERSTATE)
			*(uint8_t *)arg = mnl_attr_get_u8(a);
	return 0;
}

/* The end that came up first sends nothing until a worker of the kernel has noticed its carrier; a first SYN that is lost costs a second. Asking makes
 * newer kernels (6.8) do that work at once; older ones are waited for. */
static int await_carrier(const struct net_slot *s, struct netlink *inside, struct error *err)
{
	struct nlmsghdr *m;
	uint8_t state = IF_OPER_UNKNOWN;
	for (int waited = 0; waited < 2000; waited++) {
		link_message(inside, &m, RTM_GETLINK, 0, index_of(s->dns_udp, GUEST_LINK), "state of the link");
		int r = netlink_ask(inside, take_state, &state, err);
		if (r < 0 || state == IF_OPER_UP)
			return r;
		usleep(1000);
	}
	return error_set(err, -ETIMEDOUT, 500, "the link inside does not come up");
}

static int build(struct network *n, struct net_slot *s, struct netlink *host, struct netlink *inside, struct error *err)
{
	if (unshare(CLONE_NEWNET) < 0)
		return error_errno(err, -errno, "network namespace");
	int r = furnish(n, s, inside, err);
	go_home(n->home);
	if (r < 0)
		return r;
	r = make_pair(n, s, host, err);
	if (r == -EEXIST) {
		r = remove_stale(s, host, err);
		if (r == 0)
			r = make_pair(n, s, host, err);
	}
	if (r == 0)
		r = guest_end(n, s, inside, err);
	if (r == 0)
		r = host_end(n, s, host, err);
	return r < 0 ? r : await_carrier(s, inside, err);
}

static int create(struct network *n, unsigned number, bool machine, struct net_slot *ret, struct error *err)
{
	cleanup_netlink struct netlink host = NETLINK_INIT, inside = NETLINK_INIT;
	struct net_slot s;
	assert(number < network_capacity(n));
	name_slot(n, number, machine, &s);
	/* What the last sandbox of this number was let reach ends with it. */
	int r = network_open_ranges(n, number, &(struct reach_ranges){0}, err);
	if (r == 0 && (r = netlink_open(&host, NETLINK_ROUTE)) < 0)
		error_errno(err, r, "netlink");
	if (r == 0)
		r = build(n, &s, &host, &inside, err);
	if (r < 0) {
		network_slot_done(&s);
		return error_wrap(err, r, "network slot %u", number);
	}
	*ret = s;
	return 0;
}

int network_slot_create(struct network *n, unsigned number, struct net_slot *ret, struct error *err)
{
	return create(n, number, false, ret, err);
}

int network_machine_create(struct network *n, unsigned number, struct net_slot *ret, struct error *err)
{
	return create(n, number, true, ret, err);
}

/* Servers of before took the route away where the internet was off. */
static int restore_route(const struct net_slot *s, struct error *err)
{
	cleanup_netlink struct netlink inside = NETLINK_INIT;
	int index = index_of(s->dns_udp, GUEST_LINK), r = netlink_open(&inside, NETLINK_ROUTE);
	if (index < 0 || r < 0)
		return error_errno(err, index < 0 ? index : r, "link inside");
	link_default_route(&inside, index, s->host_address);
	return netlink_run(&inside, err);
}

static int check_link(const struct network *n, const struct net_slot *s, struct error *err)
{
	struct ifreq q = {0};
	snprintf(q.ifr_name, sizeof(q.ifr_name), "%s", s->host_link);
	if (ioctl(n->socket, SIOCGIFADDR, &q) < 0)
		return error_errno(err, -errno, "link %s", s->host_link);
	struct sockaddr_in a;
	memcpy(&a, &q.ifr_addr, sizeof(a));
	return ntohl(a.sin_addr.s_addr) == s->host_address ? 0 :
							     error_set(err, -EADDRNOTAVAIL, 500, "link %s has another address than its number says", s->host_link);
}

static int adopt(struct network *n, unsigned number, int netns, bool machine, struct net_slot *ret, struct error *err)
{
	struct net_slot s;
	assert(number < network_capacity(n));
	name_slot(n, number, machine, &s);
	int r = check_link(n, &s, err);
	if (r == 0 && setns(netns, CLONE_NEWNET) < 0)
		r = error_errno(err, -errno, "network namespace");
	if (r == 0) {
		r = dns_sockets(&s, err);
		if (r == 0)
			r = open_filter(&s, err);
		if (r == 0)
			r = restore_route(&s, err);
		go_home(n->home);
	}
	if (r < 0) {
		network_slot_done(&s);
		return error_wrap(err, r, "network slot %u", number);
	}
	s.netns = netns;
	*ret = s;
	return 0;
}

int network_slot_adopt(struct network *n, unsigned number, int netns, struct net_slot *ret, struct error *err)
{
	return adopt(n, number, netns, false, ret, err);
}

int network_machine_adopt(struct network *n, unsigned number, int netns, struct net_slot *ret, struct error *err)
{
	return adopt(n, number, netns, true, ret, err);
}

struct refused {
	const struct network *network;
	const struct reach *reach;
	uint32_t own;
};

static bool is_refused(uint32_t peer, void *arg)
{
	const struct refused *r = arg;
	const struct reach_limits limits = network_limits(r->network);
	return peer >> 24 != 127 && peer != r->own && !reach_allows(r->reach, &limits, peer);
}

int network_slot_set(struct network *n, const struct net_slot *s, const struct reach *r, struct error *err)
{
	/* The wall of the host first: whichever of the two is narrower counts. */
	int e = network_open_ranges(n, s->number, &r->opened, err);
	return e < 0 ? e : policy_apply(s->filter, r, err);
}

int network_slot_apply(struct network *n, const struct net_slot *s, const struct reach *r, struct error *err)
{
	struct refused refused = {n, r, s->guest_address};
	struct error ignored = {0};
	int e = network_slot_set(n, s, r, err);
	if (e < 0)
		return e;
	if (setns(s->netns, CLONE_NEWNET) < 0)
		return error_errno(err, -errno, "network namespace");
	/* The filter drops what comes and goes; a user that only waits for what comes would not notice. Where the kernel cannot end connections, they hang instead. */
	sock_diag_end(is_refused, &refused, &ignored);
	go_home(n->home);
	return 0;
}

int network_slot_borrow(const struct net_slot *s, struct net_slot *ret)
{
	struct net_slot copy = *s;
	copy.dns_udp = copy.dns_tcp = copy.tap = -1;
	copy.netns = fcntl(s->netns, F_DUPFD_CLOEXEC, 3);
	int filter = fcntl(mnl_socket_get_fd(s->filter), F_DUPFD_CLOEXEC, 3);
	copy.filter = filter < 0 ? NULL : mnl_socket_fdopen(filter);
	if (copy.netns < 0 || !copy.filter) {
		int r = -errno;
		if (filter >= 0 && !copy.filter)
			close(filter);
		network_slot_done(&copy);
		return r;
	}
	*ret = copy;
	return 0;
}

void network_slot_done(struct net_slot *s)
{
	int *fds[] = {&s->netns, &s->dns_udp, &s->dns_tcp, &s->tap};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (*fds[i] >= 0)
			close(steal_fd(fds[i]));
	if (s->filter)
		mnl_socket_close(steal_pointer(&s->filter));
}
