#include "network/host.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/netlink.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/file.h>

struct survey {
	struct host_survey *s;
	const struct instance *instance;
	uint32_t *links; /* interface indices of our group */
	size_t count, room;
};

static int push(void *array, size_t *count, size_t *room, size_t size, const void *item)
{
	char **at = array;
	if (*count == *room) {
		size_t more = *room ? *room * 2 : 64;
		void *p = reallocarray(*at, more, size);
		if (!p)
			return -ENOMEM;
		*at = p;
		*room = more;
	}
	memcpy(*at + size * (*count)++, item, size);
	return 0;
}

static int take_link(const struct nlmsghdr *m, void *arg)
{
	struct survey *v = arg;
	const struct ifinfomsg *i = mnl_nlmsg_get_payload(m);
	uint32_t group = 0, index = (uint32_t)i->ifi_index;
	struct nlattr *a;
	mnl_attr_for_each (a, m, sizeof(*i))
		if (mnl_attr_get_type(a) == IFLA_GROUP)
			group = mnl_attr_get_u32(a);
	return group == v->instance->link_group ? push(&v->links, &v->count, &v->room, sizeof(index), &index) : 0;
}

static bool ours(const struct survey *v, uint32_t link)
{
	for (size_t i = 0; i < v->count; i++)
		if (v->links[i] == link)
			return true;
	return false;
}

static int take_route(const struct nlmsghdr *m, void *arg)
{
	struct survey *v = arg;
	const struct rtmsg *t = mnl_nlmsg_get_payload(m);
	struct ipv4_range r = {.bits = t->rtm_dst_len};
	uint32_t link = 0, metric = 0;
	struct nlattr *a;
	mnl_attr_for_each (a, m, sizeof(*t)) {
		if (mnl_attr_get_type(a) == RTA_DST)
			r.base = ntohl(mnl_attr_get_u32(a));
		else if (mnl_attr_get_type(a) == RTA_OIF)
			link = mnl_attr_get_u32(a);
		else if (mnl_attr_get_type(a) == RTA_PRIORITY)
			metric = mnl_attr_get_u32(a);
	}
	if (!r.bits) {
		if (t->rtm_type == RTN_UNICAST && t->rtm_table == RT_TABLE_MAIN && !v->s->uplink)
			v->s->uplink = link;
		return 0;
	}
	if (t->rtm_type == RTN_UNREACHABLE && metric == v->instance->link_group) {
		v->s->claimed = true;
		v->s->claim = r;
		return 0;
	}
	return link && ours(v, link) ? 0 : push(&v->s->used, &v->s->count, &v->s->room, sizeof(r), &r);
}

int host_survey(const struct instance *i, struct host_survey *ret, struct error *err)
{
	struct host_survey s = {0};
	struct survey v = {.s = &s, .instance = i};
	cleanup_netlink struct netlink n = NETLINK_INIT;
	int r = netlink_open(&n, NETLINK_ROUTE);
	if (r < 0)
		return error_errno(err, r, "netlink");
	struct nlmsghdr *m = netlink_add(&n, RTM_GETLINK, NLM_F_DUMP, "list of links");
	mnl_nlmsg_put_extra_header(m, sizeof(struct ifinfomsg));
	r = netlink_ask(&n, take_link, &v, err);
	if (r == 0) {
		m = netlink_add(&n, RTM_GETROUTE, NLM_F_DUMP, "list of routes");
		struct rtmsg *t = mnl_nlmsg_put_extra_header(m, sizeof(*t));
		t->rtm_family = AF_INET;
		r = netlink_ask(&n, take_route, &v, err);
	}
	s.links = (unsigned)v.count;
	free(v.links);
	if (r < 0)
		host_survey_done(&s);
	else
		*ret = s;
	return r;
}

void host_survey_done(struct host_survey *s)
{
	free(s->used);
	*s = (struct host_survey){0};
}

int host_lock(struct error *err)
{
	cleanup_fd int fd = open("/run/cubicle-network.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "/run/cubicle-network.lock");
	while (flock(fd, LOCK_EX) < 0)
		if (errno != EINTR)
			return error_errno(err, -errno, "/run/cubicle-network.lock");
	return steal_fd(&fd);
}

int host_claim(const struct instance *i, struct ipv4_range pool, bool on, struct error *err)
{
	cleanup_netlink struct netlink n = NETLINK_INIT;
	int r = netlink_open(&n, NETLINK_ROUTE);
	if (r < 0)
		return error_errno(err, r, "netlink");
	struct nlmsghdr *m = netlink_add(&n, on ? RTM_NEWROUTE : RTM_DELROUTE, on ? NLM_F_CREATE | NLM_F_REPLACE : 0, "route of the sandboxes' range");
	struct rtmsg *t = mnl_nlmsg_put_extra_header(m, sizeof(*t));
	t->rtm_family = AF_INET;
	t->rtm_dst_len = (unsigned char)pool.bits;
	t->rtm_table = RT_TABLE_MAIN;
	t->rtm_protocol = on ? RTPROT_STATIC : RTPROT_UNSPEC;
	t->rtm_scope = on ? RT_SCOPE_UNIVERSE : RT_SCOPE_NOWHERE;
	t->rtm_type = RTN_UNREACHABLE;
	mnl_attr_put_u32(m, RTA_DST, htonl(pool.base));
	mnl_attr_put_u32(m, RTA_PRIORITY, i->link_group);
	r = netlink_run(&n, err);
	return !on && r == -ESRCH ? 0 : r;
}

int host_forwarding_on(struct error *err)
{
	static const char path[] = "/proc/sys/net/ipv4/ip_forward";
	cleanup_buf struct buf now = BUF_INIT;
	int r = file_read(AT_FDCWD, path, 16, &now);
	if (r == 0 && str_starts(buf_str(&now), STR("1")))
		return 0;
	if (r == 0)
		r = file_write_value(AT_FDCWD, path, STR("1"));
	return r < 0 ? error_errno(err, r, "turning on forwarding (%s)", path) : 1;
}
