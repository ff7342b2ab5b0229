#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/boot.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define LINK "eth0"

/* One request of rtnetlink: a header of the kind's own, then attributes. */
struct request {
	struct nlmsghdr h;
	char bytes[256];
};

static void *put_header(struct request *q, uint16_t type, uint16_t flags, size_t size)
{
	*q = (struct request){.h = {.nlmsg_len = (uint32_t)NLMSG_LENGTH(size), .nlmsg_type = type, .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags)}};
	return NLMSG_DATA(&q->h);
}

static void put_u32(struct request *q, uint16_t type, uint32_t value)
{
	struct rtattr a = {.rta_len = RTA_LENGTH(sizeof(value)), .rta_type = type};
	char *at = (char *)q + NLMSG_ALIGN(q->h.nlmsg_len);
	memcpy(at, &a, sizeof(a));
	memcpy(at + RTA_LENGTH(0), &value, sizeof(value));
	q->h.nlmsg_len = (uint32_t)(NLMSG_ALIGN(q->h.nlmsg_len) + RTA_ALIGN(a.rta_len));
}

/* The kernel answers within the call. */
static int ask(int socket, const struct request *q, const char *what, struct error *err)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char bytes[512];
	} answer;
	ssize_t n = send(socket, q, q->h.nlmsg_len, 0);
	if (n >= 0)
		n = recv(socket, &answer, sizeof(answer), 0);
	if (n < 0)
		return error_errno(err, -errno, "%s", what);
	if ((size_t)n < sizeof(answer.h) + sizeof(answer.e.error) || answer.h.nlmsg_type != NLMSG_ERROR)
		return error_set(err, -EPROTO, 500, "%s: the kernel's answer is not understood", what);
	return answer.e.error ? error_errno(err, answer.e.error, "%s", what) : 0;
}

static int link_up(int socket, int index, unsigned mtu, const char *what, struct error *err)
{
	struct request q;
	struct ifinfomsg *i = put_header(&q, RTM_NEWLINK, 0, sizeof(*i));
	i->ifi_index = index;
	i->ifi_flags = i->ifi_change = IFF_UP;
	if (mtu)
		put_u32(&q, IFLA_MTU, mtu);
	return ask(socket, &q, what, err);
}

static int add_address(int socket, int index, const struct boot_config *c, struct error *err)
{
	struct request q;
	struct ifaddrmsg *a = put_header(&q, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, sizeof(*a));
	a->ifa_family = AF_INET;
	a->ifa_prefixlen = (uint8_t)c->prefix;
	a->ifa_index = (uint32_t)index;
	put_u32(&q, IFA_LOCAL, htonl(c->address));
	put_u32(&q, IFA_ADDRESS, htonl(c->address));
	return ask(socket, &q, "address of " LINK, err);
}

static int add_route(int socket, int index, uint32_t gateway, struct error *err)
{
	struct request q;
	struct rtmsg *t = put_header(&q, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, sizeof(*t));
	t->rtm_family = AF_INET;
	t->rtm_table = RT_TABLE_MAIN;
	t->rtm_protocol = RTPROT_STATIC;
	t->rtm_scope = RT_SCOPE_UNIVERSE;
	t->rtm_type = RTN_UNICAST;
	t->rtm_flags = RTNH_F_ONLINK; /* whatever the prefix */
	put_u32(&q, RTA_GATEWAY, htonl(gateway));
	put_u32(&q, RTA_OIF, (uint32_t)index);
	return ask(socket, &q, "default route", err);
}

static int index_of(const char *name)
{
	struct ifreq q = {0};
	cleanup_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	memcpy(q.ifr_name, name, strlen(name));
	return fd < 0 || ioctl(fd, SIOCGIFINDEX, &q) < 0 ? -errno : q.ifr_ifindex;
}

static bool is_link_there(const void *arg)
{
	return index_of(LINK) > 0;
}

/* The link existed before the sysctl for new ones was set. */
static void disable_ipv6(void)
{
	int r = file_write_value(AT_FDCWD, "/proc/sys/net/ipv6/conf/" LINK "/disable_ipv6", STR("1"));
	if (r < 0 && r != -ENOENT)
		log_warn("IPv6 of " LINK ": %s", strerror(-r));
}

static int set_link(int socket, const struct boot_config *c, int events, struct error *err)
{
	int r = boot_events_wait(events, is_link_there, NULL);
	if (r < 0)
		return error_set(err, r, 500, "the network card of the command line is not there");
	int index = index_of(LINK);
	disable_ipv6();
	r = add_address(socket, index, c, err);
	if (r == 0)
		r = link_up(socket, index, c->mtu, "link " LINK, err);
	return r == 0 ? add_route(socket, index, c->gateway, err) : r;
}

int boot_net(const struct boot_config *c, int events, struct error *err)
{
	cleanup_fd int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	if (fd < 0 || connect(fd, (struct sockaddr *)&kernel, sizeof(kernel)) < 0)
		return error_errno(err, -errno, "netlink");
	int r = link_up(fd, 1, 0, "link lo", err);
	return r == 0 && c->address ? set_link(fd, c, events, err) : r;
}
