/* PID 1 of a new sandbox: cloned with its namespaces, given its ids, started. */
#ifndef CUBICLE_SANDBOX_BOX_BIRTH_H
#define CUBICLE_SANDBOX_BOX_BIRTH_H

#include "base/error.h"

#include <sys/types.h>

struct host;

struct newborn {
	pid_t pid;
	int pidfd;
	int go; /* write end of the pipe the child waits on; closing it without birth_start() ends the child */
};

enum { BIRTH_FDS = 64 };

struct birth {
	int program;             /* what it executes */
	const char *const *argv;
	const int *fds;          /* become 3, 4, …; 0 to 2 are /dev/null */
	size_t n_fds;            /* at most BIRTH_FDS */
	int log;                 /* becomes 2 in place of /dev/null; -1 = none */
};

/*
 * Clones the child in the network namespace `netns`, owned by `uid` (the first id of its range), and maps its ids: it is root there, and PID 1. It waits, and holds no other descriptors. The
 * caller has entered the host.
 */
int birth_clone(struct host *h, const struct birth *c, uid_t uid, int netns, struct newborn *ret, struct error *err);
/* cubicle-init with the listening control socket as 3; `group` names its cgroups. */
int birth_init(struct host *h, const char *group, uid_t uid, int netns, int listener, struct newborn *ret, struct error *err);
/* Lets it execute its program; its cgroup namespace begins where it is now. 0 or -errno. */
int birth_start(struct newborn *n, struct error *err);

#endif
