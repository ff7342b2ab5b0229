/* What the files of this room share. */
#ifndef CUBICLE_NETWORK_NETWORK_H
#define CUBICLE_NETWORK_NETWORK_H

#include "base/buf.h"
#include "network/pool.h"
#include "network/slot.h"

struct network {
	struct instance instance;
	struct ipv4_range pool;
	struct buf notes;
	uint32_t mtu;
	int home;   /* the host's network namespace */
	int socket; /* any socket there, for interface ioctls */
};

#endif
