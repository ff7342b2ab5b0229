/*
 * Of a sandbox that is nobody's yet (claim.unassigned), or whose creation waits (claim.wait_ready): are its services ready? Once all of them execute, or have run once, the
 * template's port is probed (guest/probe.h) until it answers, then the template's ready command is run until it ends with 0, by the spawner, as the default user, in
 * variables and working directory of the first service, in a session of its own in the work cgroup: each again after pauses that double from READY_FIRST_PAUSE to
 * READY_PROBE_PAUSE and READY_MAX_PAUSE; a command is killed when it takes longer than READY_TRY. Without a probe and a command they are ready when they execute. When one
 * of them ends, all begins anew. It runs until the sandbox is assigned; of one that is waited for, until they are ready, or for READY_WAIT.
 */
#ifndef CUBICLE_GUEST_READY_H
#define CUBICLE_GUEST_READY_H

#include "guest/envd.h"
#include "guest/process.h"

enum {
	READY_FIRST_PAUSE_MS = 50,
	READY_PROBE_PAUSE_MS = 500,
	READY_MAX_PAUSE_MS = 1000,
	READY_TRY_MS = 25000,
	READY_WAIT_MS = 50000, /* the server gives up after 55 s, clients after 60 */
};

struct ready;

struct ready_config {
	struct msg_list command; /* arguments; empty = none */
	uint16_t probe_port;     /* 0 = none */
	const char *probe_path;  /* NULL = a connection is enough; kept by the caller */
	bool once;               /* waited for: fn() is told once, ready or not in time */
};

/* why: when they are not and will not become ready: of one that is waited for, or because a service cannot be started; nothing is told after that. Else empty. */
typedef void ready_fn(bool ready, struct str why, void *arg);
/* Nothing happens before the first ready_services_changed(). fn() is told each change, beginning with true. 0, or -errno with *err. */
int ready_new(struct envd *e, const struct ready_config *config, ready_fn *fn, void *arg, struct ready **ret, struct error *err);
/* A service executes now, or has ended. Takes NULL. */
void ready_services_changed(struct ready *r);
/* One that should run once has ended. Takes NULL. */
void ready_service_ended(struct ready *r);
/* A service cannot be started, and will not be tried again. Takes NULL. */
void ready_never(struct ready *r);
/* A child of PID 1 was reaped: true when it was this one's. Takes NULL (false). */
bool ready_reaped(struct ready *r, pid_t pid, struct exit_info exit);
/* All but PID 1 is frozen, or not any more: no try begins meanwhile, and the time does not count. Takes NULL. */
void ready_stand_still(struct ready *r, bool on);
/* Nobody wants to know any more: what it runs is killed. Was it ready? Takes NULL (true: nothing had to become ready). */
bool ready_end(struct ready *r);
/* Takes NULL. */
void ready_free(struct ready *r);

#endif
