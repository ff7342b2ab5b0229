/* How the front process gives up what it does not need (docs/security.md). */
#ifndef CUBICLE_INGRESS_CONFINE_H
#define CUBICLE_INGRESS_CONFINE_H

#include "base/error.h"

/*
 * As root, before any thread exists: limits, a mount view of nothing but `directory` (which becomes "/"), then the user's ids without any capability,
 * no_new_privs, not dumpable. 0 or -errno with *err.
 */
int confine_process(const char *user, const char *directory, struct error *err);

/* The system-call filter, for all threads. After this nothing may be executed, no process or thread made, no socket opened. 0 or -errno with *err. */
int confine_syscalls(struct error *err);

#endif
