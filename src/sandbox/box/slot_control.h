/* What node and a slot's init say to each other before the loop takes the connection over: blocking, on a worker. */
#ifndef CUBICLE_SANDBOX_BOX_SLOT_CONTROL_H
#define CUBICLE_SANDBOX_BOX_SLOT_CONTROL_H

#include "sandbox/box/slot.h"

enum { ANSWER_SECONDS = 10 };

/* A listening socket at <dir>/control/<name>, instead of what is there. A descriptor or -errno. */
int slot_listen(const struct host *h, const char *name, struct error *err);
/* Both sockets of the slot go. */
void slot_unlisten(const struct host *h, const struct slot *s);
/* A connection to it, which gives up after ANSWER_SECONDS. A descriptor or -errno. */
int slot_connect(const struct host *h, const char *name, struct error *err);
/* A connection to its microVM's monitor, without waiting, on the loop. A descriptor or -errno; -EAGAIN: it has not taken the many before. */
int slot_connect_monitor(const struct host *h, const struct slot *s);

/* Message exchange on s->conn. `storage` has MSG_MAX bytes. 0 or -errno. */
int slot_receive(int conn, char *storage, struct msg_header *header, union msg_any *any, pid_t *ret_sender, struct error *err);
int slot_expect(struct slot *s, char *storage, enum msg_id type, union msg_any *any, pid_t *ret_sender, struct error *err);
int slot_say(struct slot *s, enum msg_id type, const void *m, struct error *err);
/* hello, init_state; sets knows_still. */
int slot_greet(struct slot *s, char *storage, union msg_any *any, struct error *err);

#endif
