/* The system-call filter of a sandbox (docs/security.md): an allow-list. Compiled by node, loaded by cubicle-init. */
#ifndef CUBICLE_SYS_FILTER_H
#define CUBICLE_SYS_FILTER_H

#include "base/buf.h"
#include "base/error.h"

#include <stdbool.h>

enum seccomp_flags {
	SECCOMP_NESTED_USERNS = 1, /* allows new user namespaces and what a program does inside one (mounts) */
};

/* Appends the filter, a struct sock_filter[], to *to. What is unknown or of a foreign architecture is ENOSYS, what is refused by policy EPERM. */
int seccomp_compile(unsigned flags, struct buf *to, struct error *err);

#endif
