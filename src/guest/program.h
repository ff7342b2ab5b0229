/* What the spawner is asked for to run a program of the template's own: a service, the ready command. */
#ifndef CUBICLE_GUEST_PROGRAM_H
#define CUBICLE_GUEST_PROGRAM_H

#include "guest/guest.h"
#include "guest/spawn.h"

/* Fills the numbers of the head and the body (spawn.h): as `user`, in the user's home, with the sandbox's variables. `arguments` is a list (io/messages.h), which must be well-formed
 * and hold no NUL. A body without memory has failed. */
void program_request(const struct guest_identity *id, struct str user, struct str arguments, struct spawn_head *head, struct buf *body);

#endif
