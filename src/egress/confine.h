/* What the egress process gives up once it has all it needs. */
#ifndef CUBICLE_EGRESS_CONFINE_H
#define CUBICLE_EGRESS_CONFINE_H

#include "base/error.h"

/* For good: becomes `user` (no supplementary groups, no capabilities, an empty bounding set), no_new_privs, not dumpable, no core file, no new processes; sees of the file
 * system only /etc and /run, to read (Landlock, where the kernel has it); then a seccomp allow-list, under which every other call fails with EPERM. Call with one thread. */
int confine(const char *user, struct error *err);

#endif
