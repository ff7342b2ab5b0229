/* The control channel of a claimed sandbox: node's connections to the listening socket that PID 1 inherited (docs/architecture.md). */
#ifndef CUBICLE_GUEST_CONTROL_H
#define CUBICLE_GUEST_CONTROL_H

#include "guest/envd.h"

struct control;
struct machine_disk;

/* Watches the listening socket (owned from here) for a node that comes (again). It may read `logs`. `id` is replaced as a whole by later claims. NULL with errno. */
struct control *control_new(struct loop *l, int listen_fd, struct guest_identity *id, struct logs *logs);
/* Closes the socket and the connections. Takes NULL. */
void control_free(struct control *c);
/* Takes over a connection (owned from here). 0 or -errno. */
int control_adopt(struct control *c, int fd);
struct control_ops {
	/* All but PID 1 is frozen, or not any more. */
	void (*still)(bool on, void *arg);
	/* It is somebody's now, the identity says so: are its services ready? */
	bool (*assigned)(void *arg);
};
/* In a machine of its own: what node asks of the disk is done by `disk` (the caller's), and a later claim sets clock, names and random numbers, too. 0 or -ENOMEM. */
int control_set_machine(struct control *c, struct machine_disk *disk);
void control_set_ops(struct control *c, const struct control_ops *ops, void *arg);
/* Tells every node that is connected that envd listens; `request` is that of the claim. */
void control_tell_claimed(struct control *c, uint64_t request);
/* Tells every node that is connected whether the services are ready, and if not perhaps why. */
void control_tell_prepared(struct control *c, bool ready, struct str why);
/*
 * Makes a new spawner: forks it, lets it tell node, and gives it to `s` as soon as node says that it is attached. Without a connected node, or when the fork
 * fails, it is tried again at the next connection and every second.
 */
void control_replace_spawner(struct control *c, struct spawner *s);

#endif
