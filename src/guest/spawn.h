/*
 * Starting processes: PID 1's side, and what it says to the spawner (guest.h, spawner.c).
 *
 * PID 1 never forks for a request and never waits: a request goes to the spawner as one datagram with descriptors, the first of which is the writing end of a
 * pipe. The new process writes its pid there before anything else, then either why it failed, or nothing (the end closes at exec), or what a file worker has
 * to tell. So the pid is always readable before the process can be reaped, and a request that got lost shows as an end of file without a pid. Of such a
 * request nothing has run: it is asked for again, a few times, before it fails.
 */
#ifndef CUBICLE_GUEST_SPAWN_H
#define CUBICLE_GUEST_SPAWN_H

#include "base/buf.h"
#include "io/connect.h"
#include "io/loop.h"

#include <sys/types.h>

enum spawn_kind {
	SPAWN_CONFINE, /* no descriptor; answered on the socket (spawner_confine()) */
	SPAWN_COMMAND, /* descriptors: status, stdin, stdout, stderr; with SPAWN_PTY: status, slave; with SPAWN_LISTEN: also a listening socket */
	SPAWN_FILES,   /* descriptors: status, connection */
};

enum spawn_flags {
	SPAWN_PTY = 1,
	SPAWN_SESSION = 2, /* a session of its own, without a terminal, instead of a process group */
	SPAWN_LISTEN = 4,  /* not with SPAWN_PTY; the socket becomes descriptor 3, told as sd_listen_fds(3) has it */
};

enum { SPAWN_MAX_FDS = 6, SPAWN_MAX_INLINE = 48 * 1024, SPAWN_MAX_BODY = 8 * 1024 * 1024, SPAWN_MAX_ENVS = 4096 };

/* Head of a datagram. The body follows it, or lies in a sealed memfd that is the last descriptor. */
struct spawn_head {
	uint32_t kind, flags;
	uint32_t length; /* of the body */
	/*
	 * SPAWN_COMMAND: user, cwd, default workdir ("" = not given), then n_args and n_envs strings ("NAME=value"), each with its NUL.
	 * SPAWN_FILES: default user, default workdir ("" = none), each with its NUL; then n_head bytes of the request's head; the rest was read beyond it.
	 * SPAWN_CONFINE: n_filter bytes of seccomp filter, then the list of capabilities; flags = no_setuid.
	 */
	union {
		struct {
			uint32_t n_args, n_envs;
		};
		uint32_t n_head;
		uint32_t n_filter;
	};
};

/* Records on the status pipe. */
enum spawn_record_kind {
	SPAWN_PID = 1, /* value = pid */
	SPAWN_FAILED,  /* value = enum connect_code; a message follows */
	SPAWN_AGAIN,   /* the same instead of a pid, when it may be better in a moment */
	SPAWN_SERVED,  /* value = 1 when the connection may be used again; bytes read beyond the request follow */
};
struct spawn_record {
	uint32_t kind;
	int32_t value;
	uint32_t length; /* of what follows */
};
enum { SPAWN_MAX_RECORD = 1024 * 1024 };

struct spawner;
struct spawn;

struct spawner_ops {
	/* The spawner is gone (out of memory, killed from inside): make a new one, then spawner_set(). Requests wait for it, for SPAWN_PATIENCE at most. */
	void (*died)(void *arg);
};

/* A request that got lost is asked for again at most so often, and not later than SPAWN_PATIENCE after it got lost first. */
enum { SPAWN_PATIENCE_MS = 5000, SPAWN_MAX_TRIES = 6, SPAWN_MAX_WAITING = 1024 };

/* NULL without memory. */
struct spawner *spawner_new(struct loop *l, const struct spawner_ops *ops, void *arg);
/* Uses this socket (owned from here) to a living spawner from now on. 0 or -errno. */
int spawner_set(struct spawner *s, int socket);
/* Drops waiting requests without telling. Takes NULL. */
void spawner_free(struct spawner *s);

struct spawn_result {
	/* 0 = executed, or served; else why not, with a message for the user. */
	enum connect_code code;
	struct str message;
	bool keep_alive;     /* SPAWN_FILES */
	struct str rest;     /* SPAWN_FILES */
};

struct spawn_ops {
	/* The process exists. */
	void (*pid)(struct spawn *s, pid_t pid, void *arg);
	/* It runs its program (SPAWN_COMMAND), it is through (SPAWN_FILES), or it failed. The last call: the spawn is freed after it. */
	void (*done)(struct spawn *s, const struct spawn_result *r, void *arg);
};

/* Sends or queues a request. fds (owned from here, also on failure) are those after the status end. Never calls back before it returns.
 * NULL with errno: EAGAIN when too many wait, ENOMEM, EMFILE. */
struct spawn *spawn_new(struct spawner *s, const struct spawn_head *head, struct buf *body, const int *fds, size_t n_fds, const struct spawn_ops *ops, void *arg);
/* Takes what has arrived from processes that are starting: called when a pid was reaped that nobody knows. */
void spawner_poll(struct spawner *s);

#endif
