/* envd: what a sandbox answers on port 49983 (e2b.md B). One loop, no threads, no file of the sandbox touched by this process. */
#ifndef CUBICLE_GUEST_ENVD_H
#define CUBICLE_GUEST_ENVD_H

#include "guest/cgroup.h"
#include "guest/guest.h"
#include "guest/metrics.h"
#include "guest/spawn.h"
#include "io/http_server.h"

#include <stddef.h>

struct processes;
struct file_workers;
struct logs;
struct ready;
struct services;

enum {
	ENVD_PORT = 49983,
	/* Bytes of requests, queued input and echoed configurations that are held at once; beyond it calls answer resource_exhausted. */
	ENVD_MAX_HELD = 32 * 1024 * 1024,
	/* Output queued for one client before its process has to wait. */
	ENVD_HIGH_WATER = 64 * 1024,
	ENVD_LOW_WATER = 16 * 1024,
	/* More wait to be accepted. Each that is slow holds up to the high-water mark, a chunk, and its socket's buffer of this process's cgroup. */
	ENVD_MAX_CONNECTIONS = 640,
};

struct envd {
	struct loop *loop;
	struct http_server *http;
	struct spawner *spawner;
	struct processes *processes;
	struct file_workers *files;
	struct logs *logs; /* what happened, for node to read */
	struct services *services; /* NULL = none; envd_done() frees them */
	struct ready *ready; /* NULL = nobody wants to know; likewise */
	const struct guest_identity *identity; /* the current one */
	const struct guest_cgroup *cgroup;
	struct metrics_sample sample;
	size_t held;
	int pts;  /* O_PATH descriptor of the devpts that terminals come from, -1 without one */
	int proc; /* directory descriptor of /proc, -1 without it */
	int null; /* /dev/null as it was before any command could put something else there */
	int signals; /* signalfd for SIGCHLD */
	struct loop_fd *signals_watch;
};

/* Everything but the listeners. The spawner, the identity, the cgroup and the log (NULL = none is kept) are the caller's. 0 or -errno. SIGCHLD must be blocked. */
int envd_init(struct envd *e, struct loop *l, struct spawner *s, const struct guest_identity *id, const struct guest_cgroup *g,
	struct logs *logs);
/* Listens on 127.0.0.1 and, where there is IPv6, ::1. 0 or -errno. */
int envd_listen(struct envd *e, uint16_t port);
void envd_done(struct envd *e);

/*
 * Any command is killed for want of memory before the spawner, whose score node has set lower. Not by the process itself: before it executes, its files in
 * /proc belong to the machine's root, because our program cannot be read from inside. One that cannot be read either keeps the spawner's.
 */
void envd_offer_to_oom_killer(const struct envd *e, pid_t pid);

/* False when n more bytes would be too many; else they count until envd_release(). */
static inline bool envd_hold(struct envd *e, size_t n)
{
	if (n > ENVD_MAX_HELD - e->held)
		return false;
	e->held += n;
	return true;
}

static inline void envd_release(struct envd *e, size_t n)
{
	e->held -= n;
}

#endif
