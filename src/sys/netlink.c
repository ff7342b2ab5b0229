#include "sys/netlink.h"

#include <assert.h>
#include <errno.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

int netlink_open(struct netlink *n, int protocol)
{
	n->socket = mnl_socket_open2(protocol, SOCK_CLOEXEC);
	if (!n->socket)
		return -errno;
	/* The kernel answers within sendmsg; the timeout only turns a fault into an error. */
	struct timeval limit = {.tv_sec = 10};
	int one = 1, fd = mnl_socket_get_fd(n->socket);
	if (mnl_socket_bind(n->socket, 0, MNL_SOCKET_AUTOPID) < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
		mnl_socket_setsockopt(n->socket, NETLINK_CAP_ACK, &one, sizeof(one)) < 0) {
		int r = -errno;
		netlink_done(n);
		return r;
	}
	mnl_socket_setsockopt(n->socket, NETLINK_EXT_ACK, &one, sizeof(one)); /* texts of errors: nice to have */
	n->used = n->count = 0;
	n->open = NULL;
	return 0;
}

void netlink_use(struct netlink *n, struct mnl_socket *socket)
{
	n->socket = socket;
	n->used = n->count = 0;
	n->open = NULL;
}

void netlink_done(struct netlink *n)
{
	if (n->socket)
		mnl_socket_close(n->socket);
	n->socket = NULL;
}

static void finish_message(struct netlink *n)
{
	if (n->open)
		n->used += MNL_ALIGN(n->open->nlmsg_len);
	n->open = NULL;
	assert(n->used <= NETLINK_BATCH_BYTES);
}

struct nlmsghdr *netlink_add(struct netlink *n, unsigned type, unsigned flags, const char *what)
{
	finish_message(n);
	assert(n->count < NETLINK_BATCH_MESSAGES && n->used + NETLINK_BATCH_BYTES / 8 <= NETLINK_BATCH_BYTES);
	struct nlmsghdr *m = mnl_nlmsg_put_header(n->data + n->used);
	/* The bits of NLM_F_DUMP mean other things, one at a time, in requests that change something. */
	bool acknowledged = !(flags & NETLINK_NO_ACK) && (flags & NLM_F_DUMP) != NLM_F_DUMP;
	m->nlmsg_type = (uint16_t)type;
	m->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | (acknowledged ? NLM_F_ACK : 0) | (flags & 0xffff));
	m->nlmsg_seq = ++n->sequence;
	if (!n->count)
		n->first = m->nlmsg_seq;
	n->messages[n->count].what = what;
	n->messages[n->count++].acknowledged = acknowledged;
	return n->open = m;
}

static const char *what_of(const struct netlink *n, uint32_t sequence)
{
	return sequence - n->first < n->count ? n->messages[sequence - n->first].what : "netlink";
}

/* The kernel's own words on an error (NETLINK_EXT_ACK), or NULL. */
static const char *reason_of(const struct nlmsghdr *m)
{
	if (!(m->nlmsg_flags & NLM_F_ACK_TLVS))
		return NULL;
	/* With NETLINK_CAP_ACK only the header of the request comes back. */
	struct nlattr *a;
	mnl_attr_for_each (a, m, sizeof(struct nlmsgerr))
		if (mnl_attr_get_type(a) == NLMSGERR_ATTR_MSG && mnl_attr_validate(a, MNL_TYPE_NUL_STRING) >= 0)
			return mnl_attr_get_str(a);
	return NULL;
}

static int send_batch(struct netlink *n)
{
	finish_message(n);
	return mnl_socket_sendto(n->socket, n->data, n->used) < 0 ? -errno : 0;
}

static ssize_t receive(struct netlink *n, char *to, size_t size, int flags)
{
	for (;;) {
		ssize_t got = recv(mnl_socket_get_fd(n->socket), to, size, flags);
		if (got >= 0 || errno != EINTR)
			return got < 0 ? (errno == EAGAIN ? -ETIMEDOUT : -errno) : got;
	}
}

/* One answer of a batch. Returns the errno it carries (0 = an acknowledgement), sets *ret_over when the kernel refused the batch as a whole. */
static int take_answer(struct netlink *n, const struct nlmsghdr *m, bool *ret_over, struct error *err)
{
	const struct nlmsgerr *e = mnl_nlmsg_get_payload(m);
	int r = e->error;
	if (!r)
		return 0;
	uint32_t at = m->nlmsg_seq - n->first;
	*ret_over = at >= n->count || !n->messages[at].acknowledged;
	const char *reason = reason_of(m);
	error_set(err, r, 500, "%s: %s%s%s", what_of(n, m->nlmsg_seq), strerror(-r), reason ? ": " : "", reason ? reason : "");
	return r;
}

int netlink_run(struct netlink *n, struct error *err)
{
	_Alignas(8) char answer[8192];
	unsigned wanted = 0;
	for (unsigned i = 0; i < n->count; i++)
		wanted += n->messages[i].acknowledged;
	int r = send_batch(n);
	if (r < 0)
		error_errno(err, r, "netlink");
	bool over = r < 0;
	while (wanted && !over) {
		/* After an error some acknowledgements may never come; what comes is queued already. */
		ssize_t got = receive(n, answer, sizeof(answer), r < 0 ? MSG_DONTWAIT : 0);
		if (got < 0) {
			r = r < 0 ? r : error_errno(err, (int)got, "netlink");
			break;
		}
		int left = (int)got;
		for (const struct nlmsghdr *m = (void *)answer; mnl_nlmsg_ok(m, left); m = mnl_nlmsg_next(m, &left)) {
			if (m->nlmsg_type != NLMSG_ERROR || m->nlmsg_seq - n->first >= n->count)
				continue;
			int e = take_answer(n, m, &over, r < 0 ? NULL : err);
			r = r < 0 ? r : e;
			wanted -= wanted > 0;
		}
	}
	n->used = n->count = 0;
	return r;
}

int netlink_ask(struct netlink *n, int (*each)(const struct nlmsghdr *, void *), void *arg, struct error *err)
{
	_Alignas(8) char answer[32768];
	const char *what = n->messages[0].what;
	int r = send_batch(n);
	bool over = r < 0;
	while (!over) {
		ssize_t got = receive(n, answer, sizeof(answer), 0);
		if (got < 0) {
			r = (int)got;
			break;
		}
		int left = (int)got;
		for (const struct nlmsghdr *m = (void *)answer; !over && mnl_nlmsg_ok(m, left); m = mnl_nlmsg_next(m, &left)) {
			if (m->nlmsg_seq != n->sequence)
				continue;
			if (m->nlmsg_type == NLMSG_DONE) {
				over = true;
			} else if (m->nlmsg_type == NLMSG_ERROR) {
				r = ((const struct nlmsgerr *)mnl_nlmsg_get_payload(m))->error;
				over = true;
			} else if (r == 0) {
				r = each(m, arg); /* the rest is still read off the socket */
			}
		}
	}
	n->used = n->count = 0;
	return r < 0 ? error_errno(err, r, "%s", what) : 0;
}
