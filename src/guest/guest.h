/* Seams between the parts of cubicle-init. */
#ifndef CUBICLE_GUEST_GUEST_H
#define CUBICLE_GUEST_GUEST_H

#include "base/error.h"
#include "io/http_server.h"
#include "io/messages.h"

#include <sys/types.h>

/* What claim brought; copies, owned for the life of the process. Replaced as a whole by a later claim (resume). */
struct guest_identity {
	char *sandbox, *template, *token /* NULL = open */, *user, *workdir /* NULL = the user's home */;
	struct buf envs; /* msg_map raw: system and user variables, complete */
	uint64_t template_envs; /* so many of them, the first, are the template's */
	/* Of the first claim: a later one changes nothing of what runs. */
	struct buf services, service_options; /* msg_list raw */
	struct buf ready; /* msg_list raw: the template's ready command; empty = none */
	uint16_t probe_port; /* 0 = none */
	char *probe_path; /* NULL = a connection is enough */
	bool wait_ready; /* node waits for `prepared` */
	bool unassigned; /* of a ready pool, until `assign` */
	uint64_t claim_request; /* id of the claim that `claimed` answers */
};

/*
 * park.c: set-up as PID 1 from the moment after exec until claimed. listen_fd is the control socket (SEQPACKET, listening). Makes mounts, starts the spawner
 * (fork), answers hello, waits for claim, enters the sandbox's root, loads seccomp, drops capabilities. In a
 * machine of its own (guest/machine.h) the root is there already; then a connection that closes makes place for the next. Blocking. Returns with the connection to node that
 * claimed in *ret_conn and the socket to the spawner in *ret_spawner; envd is then started by the caller, which sends `claimed` on the connection.
 * Exits the process when the first connection closes before a claim, in a namespace.
 */
void guest_park(int listen_fd, struct guest_identity *ret, int *ret_conn, int *ret_spawner);

/* A passwd entry of the sandbox's own /etc/passwd and /etc/group (read as data, no NSS). */
struct guest_user {
	uid_t uid;
	gid_t gid;
	gid_t groups[64];
	size_t n_groups;
	char name[256], home[1024], shell[1024];
};
/*
 * By name or decimal uid, and perhaps a group behind a colon, by name or number, which then is the only one; a uid without an entry is a user with group 0 and home "/", as
 * container images mean it. 0, -ENOENT, -errno. Blocking file reads: call it in the spawner or a worker, or bounded (files over 4 MiB are refused).
 */
int guest_user_find(struct str name, struct guest_user *ret);
/* The default user of a sandbox whose template has none of that name: *user is replaced by "root". */
void guest_user_settle(char **user);

/*
 * spawner.c: the spawner process, forked by PID 1 (guest_park() at park time, or envd after it died). It lives in the work cgroup and forks commands and
 * file workers with CLONE_PARENT, so that PID 1 reaps them. `socket` is its end of a SOCK_SEQPACKET pair; every other descriptor from 3 up is closed at
 * once. The process ends when the other end closes. Requests: guest/spawn.h.
 */
_Noreturn void spawner_run(int socket);
/* The same, once it has told node (over PID 1's connection), so that the kernel says which process it is. In a machine of its own it joins the work cgroup itself. */
_Noreturn void spawner_begin(int node, int socket);

/*
 * Asks a spawner that was forked before the claim to confine itself (guest_confine() in its process), and waits for its answer, which may be asked for later: both
 * take their time. Blocking; for guest_park(). 0 or negative errno with *err.
 */
int spawner_confine(int socket, struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err);
int spawner_confined(int socket, struct error *err);

/* park.c: what a claimed process gives up: bounding set, setuid when asked, seccomp filter (which may be empty only in a machine of its own). Applies to the caller. 0 or negative errno with *err. */
int guest_confine(struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err);

#endif
