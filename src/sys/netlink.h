/*
 * Netlink requests in batches: several messages leave with one system call, and each is acknowledged. Blocking; the kernel answers within
 * the call. A socket stays in the network namespace that it was opened in.
 */
#ifndef CUBICLE_SYS_NETLINK_H
#define CUBICLE_SYS_NETLINK_H

#include "base/error.h"

#include <libmnl/libmnl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NETLINK_BATCH_BYTES = 32768, NETLINK_BATCH_MESSAGES = 96 };

struct netlink {
	struct mnl_socket *socket; /* NULL = closed */
	struct nlmsghdr *open;     /* the message being built */
	size_t used;               /* bytes of finished messages */
	unsigned count;
	uint32_t first, sequence; /* of the batch; of the last message */
	struct {
		const char *what; /* for errors; static text */
		bool acknowledged;
	} messages[NETLINK_BATCH_MESSAGES];
	_Alignas(8) char data[NETLINK_BATCH_BYTES];
};

#define NETLINK_INIT ((struct netlink){0})

/* Opens a socket of the protocol (NETLINK_ROUTE, NETLINK_NETFILTER) in the calling thread's network namespace: 0 or -errno. */
int netlink_open(struct netlink *n, int protocol);
/* The same on a socket that is open and stays the caller's. */
void netlink_use(struct netlink *n, struct mnl_socket *socket);
/* Closes; a closed one is fine. */
void netlink_done(struct netlink *n);
#define cleanup_netlink __attribute__((__cleanup__(netlink_done)))

/* Begins the next message of the batch; `what` (static text) names it in errors. The caller appends extra header and attributes with mnl_*; the batch's
 * size is the caller's to keep (static contents well below the limit). NETLINK_NO_ACK in `flags` marks messages the kernel does not acknowledge. */
enum { NETLINK_NO_ACK = 1 << 16 };
struct nlmsghdr *netlink_add(struct netlink *n, unsigned type, unsigned flags, const char *what);

/* Sends the batch and reads every acknowledgement: 0, or the first failed message's -errno with *err naming it. The batch is empty afterwards. */
int netlink_run(struct netlink *n, struct error *err);

/* One request that is answered by messages (a dump, or a get): calls each() for every one; a negative return value of it ends the call. 0 or -errno. */
int netlink_ask(struct netlink *n, int (*each)(const struct nlmsghdr *m, void *arg), void *arg, struct error *err);

#endif
