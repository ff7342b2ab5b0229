/*
 * Programs of the template that init keeps running (template key "services", node/templates.h; the claim brings them, io/messages.h).
 *
 * init binds the port of each before it answers the claim and holds the socket for the life of the sandbox: whoever connects waits until the program accepts, also
 * while it is started again, and never meets a closed port. The program gets the socket as descriptor 3, as sd_listen_fds(3) has it (LISTEN_FDS, LISTEN_PID), blocking.
 * It is started by the spawner like a command: in the work cgroup, with the sandbox's variables, HOME and USER of its user, in the user's home; in a session of
 * its own. When it ends, by whatever cause, what is left of its session is killed and it is started again: at once, then after pauses that double up to
 * SERVICE_MAX_PAUSE; one that ran for SERVICE_STEADY is like new.
 *
 * One that is said to run once (the start command of a template: "restart": false) is left at its end as it is, with what it has put into the background.
 */
#ifndef CUBICLE_GUEST_SERVICES_H
#define CUBICLE_GUEST_SERVICES_H

#include "guest/envd.h"
#include "guest/process.h"

enum {
	SERVICES_MAX = 4,
	SERVICE_BACKLOG = 1024,          /* connections that wait to be accepted; the kernel's net.core.somaxconn may be less */
	SERVICE_OUTPUT = 16 * 1024,      /* what is kept of its output: the last bytes */
	SERVICE_LINES = 200,             /* ... and how many lines in a minute go to the sandbox's log (guest/logs.h) */
	SERVICE_FIRST_PAUSE_MS = 100,
	SERVICE_MAX_PAUSE_MS = 5000,
	SERVICE_STEADY_MS = 10000,
};

struct services;

/* Reads the claim's lists (`options` may be empty) and binds the ports, on all addresses. Starts nothing yet. *ret is NULL when there are none. 0, or -errno with *err. */
int services_new(struct envd *e, struct msg_list list, struct msg_list options, struct services **ret, struct error *err);
/* Asks the spawner for the first start of each. Takes NULL. */
void services_start(struct services *all);
/* A child of PID 1 was reaped: true when it was one of these. Takes NULL (false). */
bool services_reaped(struct services *all, pid_t pid, struct exit_info exit);
/*
 * Appends what GET /services answers: an array of {"name", "user", "port" (absent without one), "state" ("waiting", "starting", "running", "ended"), "pid" (while it runs), "starts" (how often it was
 * started), "lastEnd" (how the last one ended or why it could not be started; absent before), "output" (its last bytes)}. NULL: an empty array.
 */
void services_json(const struct services *all, struct buf *to);
/* Does each of them execute, or has it run once, as it should? */
bool services_run(const struct services *all);
/* Where the first of them runs, and with what: so does what asks whether they are ready. Views. */
void services_context(const struct services *all, struct str *ret_workdir, struct str *ret_envs);
/* Appends what somebody should read who waits in vain: of the first that does not run, else of the first, how it ended and the last of its output, some hundred bytes. */
void services_last_words(const struct services *all, struct buf *to);
/* Stops watching; the programs live on. Takes NULL. */
void services_free(struct services *all);

#endif
