/* What the files of this room share. */
#ifndef CUBICLE_NETWORK_NETWORK_H
#define CUBICLE_NETWORK_NETWORK_H

#include "base/buf.h"
#include "base/map.h"
#include "network/reach.h"
#include "network/slot.h"
#include "sys/netlink.h"

#include <pthread.h>

struct network {
	struct instance instance;
	struct ipv4_range pool;
	struct buf notes;
	uint32_t mtu;
	int home;      /* the host's network namespace */
	int socket;    /* any socket there, for interface ioctls */
	int ipv6_conf; /* its /proc/sys/net/ipv6/conf; -1 = a kernel without IPv6 */
	pthread_mutex_t lock; /* of the two below */
	int proc;
	unsigned proc_uses;
	struct ipv4_range open[PRIVATE_MAX]; /* private ranges that sandboxes may ask for */
	size_t n_open;
	pthread_mutex_t chains; /* of the host's, and of the map */
	struct mnl_socket *filter; /* netfilter, for changes of it; NULL until one was made */
	struct map opened;      /* slot number (unsigned) → struct reach_ranges, owned: what chains let it reach beside */
	struct guard *guard; /* NULL until network_guard() */
};

static inline uint32_t network_guest_address(const struct network *n, unsigned number)
{
	return n->pool.base + 2 * number + 1;
}

/* machine.c. In the new namespace, before its policy: makes the tap and its settings. *ret_index: its number there. 0 or -errno. */
int machine_tap(struct network *n, struct net_slot *s, struct netlink *inside, int *ret_index, struct error *err);

/* opened.c. (Re)makes the host's chains: 0 or -errno. */
int network_install_chains(struct network *n, struct buf *notes, struct error *err);
/* Private ranges that the slot of this number may reach from now on, instead of those before. 0 or -errno. */
int network_open_ranges(struct network *n, unsigned number, const struct reach_ranges *ranges, struct error *err);
void opened_free(struct network *n);

void guard_free(struct guard *g);

/* A mount of procfs to write a new namespace's settings through, to be closed by the caller; or -errno. */
int network_proc(struct network *n);

#endif
