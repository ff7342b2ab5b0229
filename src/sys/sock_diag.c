#include "sys/sock_diag.h"
#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

struct found {
	uint8_t family;
	struct inet_diag_sockid id;
};

struct search {
	sock_diag_end_fn *end;
	void *arg;
	struct found *list;
	size_t n, room;
};

/* Over IPv4 also when the socket is one of IPv6. */
static bool peer_of(const struct inet_diag_msg *d, uint32_t *ret)
{
	if (d->idiag_family == AF_INET6) {
		struct in6_addr a;
		memcpy(&a, d->id.idiag_dst, sizeof(a));
		if (!IN6_IS_ADDR_V4MAPPED(&a))
			return false;
		*ret = ntohl(d->id.idiag_dst[3]);
		return true;
	}
	*ret = ntohl(d->id.idiag_dst[0]);
	return d->idiag_family == AF_INET;
}

static int take(const struct nlmsghdr *m, void *arg)
{
	struct search *s = arg;
	const struct inet_diag_msg *d = mnl_nlmsg_get_payload(m);
	uint32_t peer;
	if (mnl_nlmsg_get_payload_len(m) < sizeof(*d) || !peer_of(d, &peer) || !s->end(peer, s->arg))
		return 0;
	if (s->n == s->room) {
		size_t room = s->room ? s->room * 2 : 64;
		struct found *list = reallocarray(s->list, room, sizeof(*list));
		if (!list)
			return -ENOMEM;
		s->list = list;
		s->room = room;
	}
	s->list[s->n++] = (struct found){d->idiag_family, d->id};
	return 0;
}

static struct inet_diag_req_v2 *add(struct netlink *n, unsigned type, unsigned flags, uint8_t family)
{
	struct nlmsghdr *m = netlink_add(n, type, flags, "TCP connections");
	struct inet_diag_req_v2 *q = mnl_nlmsg_put_extra_header(m, sizeof(*q));
	*q = (struct inet_diag_req_v2){.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP};
	return q;
}

static int search(struct netlink *n, uint8_t family, struct search *s, struct error *err)
{
	struct inet_diag_req_v2 *q = add(n, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family);
	q->idiag_states = ~(1u << TCP_LISTEN | 1u << TCP_TIME_WAIT | 1u << TCP_CLOSE);
	int r = netlink_ask(n, take, s, err);
	return family == AF_INET6 && r == -ENOENT ? 0 : r; /* a kernel without IPv6 */
}

static int end_one(struct netlink *n, const struct found *f, struct error *err)
{
	struct inet_diag_req_v2 *q = add(n, SOCK_DESTROY, 0, f->family);
	q->id = f->id;
	int r = netlink_run(n, err);
	return r == -ENOENT ? 0 : r < 0 ? r : 1; /* over by itself meanwhile */
}

int sock_diag_end(sock_diag_end_fn *end, void *arg, struct error *err)
{
	cleanup_netlink struct netlink n = NETLINK_INIT;
	struct search s = {.end = end, .arg = arg};
	int r = netlink_open(&n, NETLINK_SOCK_DIAG), ended = 0;
	if (r < 0)
		return error_errno(err, r, "TCP connections");
	r = search(&n, AF_INET, &s, err);
	if (r == 0)
		r = search(&n, AF_INET6, &s, err);
	for (size_t i = 0; r >= 0 && i < s.n; i++) {
		r = end_one(&n, &s.list[i], err);
		ended += r > 0;
	}
	free(s.list);
	return r < 0 ? r : ended;
}
