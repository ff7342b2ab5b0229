/* Looking through the TCP connections of a network namespace, and ending some (what `ss -K` does). */
#ifndef CUBICLE_SYS_SOCK_DIAG_H
#define CUBICLE_SYS_SOCK_DIAG_H

#include "sys/netlink.h"

/* Whether to end a connection whose other end has this IPv4 address (host byte order). */
typedef bool sock_diag_end_fn(uint32_t peer, void *arg);

/*
 * In the calling thread's network namespace: ends each TCP connection over IPv4, established or being made, that `end` names; its user gets ECONNABORTED at once. How
 * many; or -errno (-EOPNOTSUPP: this kernel cannot end connections).
 */
int sock_diag_end(sock_diag_end_fn *end, void *arg, struct error *err);

#endif
