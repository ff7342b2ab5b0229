/*
 * Of a sandbox that is nobody's yet (claim.unassigned): are its services ready? Once all of them execute the template's ready command is run until it ends with 0, by the
 * spawner, as the default user, in a session of its own in the work cgroup: again after pauses that double from READY_FIRST_PAUSE to READY_MAX_PAUSE, and killed when it
 * takes longer than READY_TRY. Without a command they are ready when they execute. When one of them ends, all begins anew. It runs until the sandbox is assigned.
 */
#ifndef CUBICLE_GUEST_READY_H
#define CUBICLE_GUEST_READY_H

#include "guest/envd.h"
#include "guest/process.h"

enum {
	READY_FIRST_PAUSE_MS = 50,
	READY_MAX_PAUSE_MS = 1000,
	READY_TRY_MS = 10000,
};

struct ready;

typedef void ready_fn(bool ready, void *arg);
/* `command`: a list of arguments, or empty. Nothing happens before the first ready_services_changed(). fn() is told each change, beginning with true. 0, or -errno with *err. */
int ready_new(struct envd *e, struct msg_list command, ready_fn *fn, void *arg, struct ready **ret, struct error *err);
/* A service executes now, or has ended. Takes NULL. */
void ready_services_changed(struct ready *r);
/* A child of PID 1 was reaped: true when it was this one's. Takes NULL (false). */
bool ready_reaped(struct ready *r, pid_t pid, struct exit_info exit);
/* All but PID 1 is frozen, or not any more: no try begins meanwhile, and the time does not count. Takes NULL. */
void ready_stand_still(struct ready *r, bool on);
/* Nobody wants to know any more: what it runs is killed. Was it ready? Takes NULL (true: nothing had to become ready). */
bool ready_end(struct ready *r);
/* Takes NULL. */
void ready_free(struct ready *r);

#endif
