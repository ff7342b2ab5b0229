/*
 * A sandbox's network: a namespace that the host owns, a veth pair with a /31, IPv6 off on the link, its nftables policy, and
 * the two DNS sockets on 127.0.0.53:53 inside (docs/architecture.md, "Network"). Everything here blocks for at most some ms: run it
 * on a worker or the pool filler, never on the loop.
 */
#ifndef CUBICLE_NETWORK_SLOT_H
#define CUBICLE_NETWORK_SLOT_H

#include "base/error.h"
#include "config/instance.h"
#include "network/reach.h"

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#define NETWORK_NAMESERVER "127.0.0.53"

/* A microVM's own network behind its slot's: the same for all, so that a saved machine finds it again wherever it goes on. */
#define MACHINE_NAMESERVER "169.254.0.1"
enum {
	MACHINE_GATEWAY = 0xa9fe0001, /* 169.254.0.1, host byte order */
	MACHINE_ADDRESS = 0xa9fe0002,
	MACHINE_PREFIX = 30,
};
extern const unsigned char machine_mac[6];

struct mnl_socket;
struct network; /* the host's side: address range, static chains, forwarding */

struct net_slot {
	unsigned number;         /* 0..network_capacity()-1; names the link and cuts the /31 */
	int netns;               /* descriptor of the namespace */
	struct mnl_socket *filter; /* netfilter, opened inside: its policy is changed without going there */
	int dns_udp, dns_tcp;    /* bound to port 53 of NETWORK_NAMESERVER inside (of a machine: MACHINE_NAMESERVER), for egress; kept so that a new egress gets them again */
	bool machine;            /* a microVM's: behind the link is a tap, and what comes out of that is forwarded under the slot's address */
	int tap;                 /* its descriptor (vnet headers of 12 bytes, non-blocking), for whoever is to be the machine; -1 = gave it away, or no machine */
	char host_link[IFNAMSIZ];
	uint32_t host_address, guest_address; /* host byte order */
};

/* pool: "a.b.c.d/n" (8..30); open: the private ranges that sandboxes may ask for (option network.private); `configured` false lets an overlapping default move to the next free range of the same size, true refuses an overlap (400).
 * Call in the host's network namespace. Claims the range by an unreachable route whose metric is the instance's link group, so that other servers and a later
 * start see it (a start while links of ours live keeps their range); installs the static host chains (one `nft -f -`) and turns forwarding on. */
int network_new(const struct instance *i, const char *pool, bool configured, const char *open, struct network **ret, struct error *err);
/* Takes NULL. remove_chains: takes chains and claim away again (clean stop with no sandbox left). */
void network_free(struct network *n, bool remove_chains);
/* Numbers of slots: 0..capacity-1. */
unsigned network_capacity(const struct network *n);
/* Lines of text for the log: what had to be changed or is missing on this host ("" when nothing). Valid until network_free(). */
const char *network_notes(struct network *n);
/* Starts a thread that puts the chains back when somebody flushes the machine's firewall, and asks a firewall that starts to drop forwarded packets to let ours pass. tell() gets a
 * line for the log, on that thread. Ends with network_free(). */
typedef void network_tell_fn(const char *what, void *arg);
int network_guard(struct network *n, network_tell_fn *tell, void *arg, struct error *err);

/* Makes namespace, link, addresses, routes, sysctls (ip_unprivileged_port_start=0, ping_group_range), policy, DNS sockets. 0 or -errno. Thread-safe. */
int network_slot_create(struct network *n, unsigned number, struct net_slot *ret, struct error *err);
/* The same struct for a namespace that lives already (re-adoption); netns is taken over on success. DNS sockets are bound anew (SO_REUSEPORT). */
int network_slot_adopt(struct network *n, unsigned number, int netns, struct net_slot *ret, struct error *err);
/* Both for a microVM: with a tap, forwarding and address translation. The tap is there while somebody holds its descriptor, so adoption has none (tap -1). */
int network_machine_create(struct network *n, unsigned number, struct net_slot *ret, struct error *err);
int network_machine_adopt(struct network *n, unsigned number, int netns, struct net_slot *ret, struct error *err);
/* Bytes of a packet on the links. */
unsigned network_mtu(const struct network *n);
/* What reach_init() must know of this server. Views live as long as the network. */
struct reach_limits network_limits(const struct network *n);
/* What network_slot_apply() needs of a slot, for a worker: the slot may be done meanwhile. 0 or -errno; network_slot_done(). */
int network_slot_borrow(const struct net_slot *s, struct net_slot *ret);
/* For a slot that nobody has used yet, or whose policy is as good as this one. 0 or -errno. Takes less than 1 ms unless it opens private ranges. */
int network_slot_set(struct network *n, const struct net_slot *s, const struct reach *r, struct error *err);
/*
 * Replaces what a slot may reach, live: flows that exist are judged like new ones, and TCP connections that are refused now end for their users at once.
 * 0, or -errno: what is in force then is never wider than before. One at a time for a slot; looks through the TCP connections of the machine's table.
 */
int network_slot_apply(struct network *n, const struct net_slot *s, const struct reach *r, struct error *err);
/* Closes the descriptors; namespace and link die with their last user. */
void network_slot_done(struct net_slot *s);

/* A thread that makes connected sockets inside network namespaces (design "Reaching a port"). opener_new: in the host's network namespace; NULL with errno. */
struct opener;
struct loop;
struct opener *opener_new(struct loop *l);
/* Takes NULL. What is not connected yet ends with -ECANCELED; those done() calls come by the loop's next turns too. */
void opener_free(struct opener *o);
/* Connects to 127.0.0.1:port, then [::1]:port, then the guest address, inside the namespace (the descriptor is duplicated). done() runs on the loop with a
 * connected non-blocking socket (owned by the callee) or a negative errno: -ECONNREFUSED when nothing listens, -ETIMEDOUT when nobody takes the connection within 2 s
 * (or 64 others of this namespace wait for that already). 0, -ENOMEM, or -EAGAIN when too many requests are under way. */
int opener_connect(struct opener *o, int netns, uint32_t guest_address, uint16_t port, void (*done)(int fd_or_error, void *arg), void *arg);

#endif
