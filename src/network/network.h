/* What the files of this room share. */
#ifndef CUBICLE_NETWORK_NETWORK_H
#define CUBICLE_NETWORK_NETWORK_H

#include "base/buf.h"
#include "network/pool.h"
#include "network/slot.h"

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
	struct guard *guard; /* NULL until network_guard() */
};

void guard_free(struct guard *g);

/* A mount of procfs to write a new namespace's settings through, to be closed by the caller; or -errno. */
int network_proc(struct network *n);

#endif
