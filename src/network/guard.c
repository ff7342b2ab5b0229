/*
 * Others write to the machine's firewall too: `systemctl restart nftables` flushes everything, Docker and ufw put their dropping chains in place whenever they
 * start. A thread sleeps on the kernel's notifications of such changes and puts ours back.
 */
#include "network/network.h"
#include "base/cleanup.h"
#include "network/host.h"
#include "sys/nft.h"

#include <linux/netfilter/nfnetlink.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

struct guard {
	struct network *network;
	network_tell_fn *tell;
	void *arg;
	struct mnl_socket *events;
	pthread_t thread;
	int stop; /* eventfd */
};

/* Changes come in bursts, and ours are among them: one look at most in this time. */
enum { LULL_MS = 1000 };

static void look(struct guard *g)
{
	struct network *n = g->network;
	cleanup_netlink struct netlink nl = NETLINK_INIT;
	cleanup_buf struct buf notes = BUF_INIT;
	struct error err = {0};
	int r = netlink_open(&nl, NETLINK_NETFILTER);
	if (r == 0)
		r = nft_table_exists(&nl, n->instance.table);
	if (r == 0) {
		r = network_install_chains(n, &notes, &err);
		g->tell(r < 0 ? err.message : "somebody removed the chains that keep sandboxes off the host's networks: they are back", g->arg);
	}
	size_t before = buf_len(&notes);
	r = host_iptables(&n->instance, true, &notes, &err);
	if (r < 0)
		g->tell(err.message, g->arg);
	else if (buf_len(&notes) > before)
		g->tell("iptables drops what it forwards now: the sandboxes' links were put into its chain FORWARD", g->arg);
}

static void drain(struct mnl_socket *s)
{
	char rubbish[8192];
	/* Lost notifications (ENOBUFS) are as good as any. */
	while (recv(mnl_socket_get_fd(s), rubbish, sizeof(rubbish), MSG_DONTWAIT) >= 0 || errno == ENOBUFS)
		;
}

static void *run(void *arg)
{
	struct guard *g = arg;
	struct pollfd p[] = {{.fd = g->stop, .events = POLLIN}, {.fd = mnl_socket_get_fd(g->events), .events = POLLIN}};
	pthread_setname_np(pthread_self(), "network-guard");
	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return NULL;
		if (!p[0].revents && p[1].revents && poll(p, 1, LULL_MS) == 0) {
			drain(g->events);
			look(g);
		}
		if (p[0].revents)
			return NULL;
	}
}

static struct mnl_socket *subscribe(void)
{
	struct mnl_socket *s = mnl_socket_open2(NETLINK_NETFILTER, SOCK_CLOEXEC);
	int group = NFNLGRP_NFTABLES;
	if (s && (mnl_socket_bind(s, 0, MNL_SOCKET_AUTOPID) < 0 || mnl_socket_setsockopt(s, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) < 0)) {
		mnl_socket_close(s);
		s = NULL;
	}
	return s;
}

int network_guard(struct network *n, network_tell_fn *tell, void *arg, struct error *err)
{
	struct guard *g = calloc(1, sizeof(*g));
	if (!g)
		return error_errno(err, -ENOMEM, "network guard");
	*g = (struct guard){.network = n, .tell = tell, .arg = arg, .events = subscribe(), .stop = eventfd(0, EFD_CLOEXEC)};
	int r = !g->events || g->stop < 0 ? -errno : -pthread_create(&g->thread, NULL, run, g);
	if (r == 0) {
		n->guard = g;
		return 0;
	}
	if (g->events)
		mnl_socket_close(g->events);
	if (g->stop >= 0)
		close(g->stop);
	free(g);
	return error_errno(err, r, "network guard");
}

void guard_free(struct guard *g)
{
	uint64_t one = 1;
	if (!g)
		return;
	if (write(g->stop, &one, sizeof(one)) == sizeof(one))
		pthread_join(g->thread, NULL);
	mnl_socket_close(g->events);
	close(g->stop);
	free(g);
}
