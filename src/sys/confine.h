/* How a process that needs no privilege gives up what it has (docs/security.md). */
#ifndef CUBICLE_SYS_CONFINE_H
#define CUBICLE_SYS_CONFINE_H

#include "base/error.h"

#include <stddef.h>

/*
 * As root, before any thread exists (`option` is what names the user, for errors): limits, a mount view of nothing but `directory` (which becomes "/"), then the user's ids without any capability,
 * no_new_privs, not dumpable. 0 or -errno with *err.
 */
int confine_process(const char *option, const char *user, const char *directory, struct error *err);

/* The system-call filter, for all threads: these calls (n of them) work, all others are EPERM. 0 or -errno with *err. */
int confine_syscalls(const int *allowed, size_t n, struct error *err);

#endif
