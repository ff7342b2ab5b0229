/* A kernel's process: its user, its private directory with the connection file, its output, and what is left
 * of it when this service dies. */
#ifndef CUBICLE_INTERP_LAUNCH_H
#define CUBICLE_INTERP_LAUNCH_H

#include "base/error.h"
#include "interp/kernelspec.h"

#include <sys/resource.h>
#include <sys/types.h>

/* Who kernels run as. */
struct launch_user {
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	int n_groups;
	bool become; /* false: this process's own user, which is all it can be */
	char *name, *home, *shell;
	struct rlimit files; /* what this process was given, before it took more */
};

/* Looks a user up by name (NULL: this process's own). 0 or *err set. */
int launch_user_init(struct launch_user *u, const char *name, struct error *err);
void launch_user_done(struct launch_user *u);

enum { LAUNCH_PORTS = 5, LAUNCH_KEY = 64, LAUNCH_ENDPOINT = 108 };
enum launch_port { PORT_SHELL, PORT_IOPUB, PORT_STDIN, PORT_CONTROL, PORT_HEARTBEAT };

struct launch {
	const char *run_dir;
	char name[24]; /* of its directory in run_dir, and of the record of its process beside it */
	char key[LAUNCH_KEY + 1];
	bool ipc;
	int ports[LAUNCH_PORTS];
	pid_t pid;  /* also its process group and session; 0 = none */
	int pidfd;  /* readable when it ended; it is not reaped before launch_reap() */
	int output; /* its stdout and stderr, non-blocking */
	int why;    /* if it could not even be executed: the reason, as text */
};
#define LAUNCH_NONE ((struct launch){.pidfd = -1, .output = -1, .why = -1})

/* Starts the kernel in `cwd`. run_dir (not copied) belongs to this process alone. 0 or *err set, then nothing
 * is left. */
int launch_start(struct launch *n, const char *run_dir, const struct kernelspec *spec,
	const struct launch_user *user, const char *cwd, struct error *err);

/* ZeroMQ's name of a channel. */
void launch_endpoint(const struct launch *n, enum launch_port port, char ret[LAUNCH_ENDPOINT]);

/* Somebody has one of its ports: asked after its end, that may be why it ended. */
bool launch_lost_port(const struct launch *n);

/* SIGKILL to the whole process group. */
void launch_kill(const struct launch *n);

/* When pidfd is readable: kills what is left of the group, reaps, removes the directory, closes the
 * descriptors. Returns the wait status. */
int launch_reap(struct launch *n);

/* At the start of the service: kills kernels of one that died (also what they left in their process groups),
 * and empties run_dir. Makes it (0711). 0 or -errno. */
int launch_sweep(const char *run_dir);

#endif
