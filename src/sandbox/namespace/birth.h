/* PID 1 of a new sandbox: cloned with its namespaces, given its ids, started. */
#ifndef CUBICLE_SANDBOX_NAMESPACE_BIRTH_H
#define CUBICLE_SANDBOX_NAMESPACE_BIRTH_H

#include "base/error.h"

#include <sys/types.h>

struct host;

struct newborn {
	pid_t pid;
	int pidfd;
	int go; /* write end of the pipe the child waits on; closing it without birth_start() ends the child */
};

/*
 * Clones the child in the network namespace `netns`, owned by `uid` (the first id of its range), and maps its ids; `group` names its cgroups. It waits, and holds no descriptor but
 * the listening control socket `listener` (as 3) and /dev/null (0 to 2). The caller has entered the host.
 */
int birth_clone(struct host *h, const char *group, uid_t uid, int netns, int listener, struct newborn *ret, struct error *err);
/* Lets it execute cubicle-init; its cgroup namespace begins where it is now. 0 or -errno. */
int birth_start(struct newborn *n, struct error *err);

#endif
