/* What the spawner is asked for to run a program of the template's own: a service, the ready command. */
#ifndef CUBICLE_GUEST_PROGRAM_H
#define CUBICLE_GUEST_PROGRAM_H

#include "guest/guest.h"
#include "guest/spawn.h"

struct program {
	struct str user;
	struct str workdir;   /* empty = the user's home */
	struct str envs;      /* its own, a raw map: they go before the template's, and behind those that a create gives */
	struct str arguments; /* a list (io/messages.h), well-formed and without a NUL */
};

/* Fills the numbers of the head and the body (spawn.h), with the sandbox's variables. A body without memory has failed. */
void program_request(const struct guest_identity *id, const struct program *p, struct spawn_head *head, struct buf *body);

#endif
