/* Listening sockets that serve opens for the front, and the notification that systemd waits for. */
#ifndef CUBICLE_CLI_LISTEN_H
#define CUBICLE_CLI_LISTEN_H

#include "base/error.h"

#include <sys/types.h>

/* "address:port" or "[v6]:port" (numeric, or a name that resolves). `option` names it in errors. Non-blocking, close-on-exec descriptor or -errno.
 * Retries for 3 s when the address is in use: the front of a server that was just killed may not have noticed yet. */
int listen_tcp(const char *option, const char *address, struct error *err);

/* A Unix stream socket at path (a stale one is replaced) with that mode. */
int listen_unix(const char *path, mode_t mode, struct error *err);

/* Sends one state line to $NOTIFY_SOCKET (sd_notify(3)); nothing without it. */
void notify_systemd(const char *state);

#endif
