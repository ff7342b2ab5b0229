/*
 * The monitor's own cage, against a guest that breaks out into it: an empty root, no capability, a user of its own, and lists of the system calls that each kind of thread needs. Everything is
 * open before; what node sends later comes by the admin socket.
 */
#ifndef CUBICLE_VMM_JAIL_H
#define CUBICLE_VMM_JAIL_H

#include "base/error.h"

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

enum jail_role {
	JAIL_MAIN,   /* the loop */
	JAIL_VCPU,   /* of KVM's calls KVM_RUN only */
	JAIL_WORKER, /* of a disk */
	JAIL_ROLES,
};

/*
 * As root, of a user namespace or real, with one thread: an empty read-only root, no capabilities (nor any to be had again), that user, no new privileges, not dumpable, limits: no file that it
 * has becomes longer than `file_size` bytes. 0 or -errno.
 */
int jail_enter(uint32_t uid, uint64_t file_size, struct error *err);

/* From now on the calling thread makes the system calls of its role; another one ends the process (SIGSYS), and so does a failure here. Without jail_enter() before it: nothing happens. */
void jail_thread(enum jail_role role);

enum {
	JAIL_PROGRAM_MAX = 256,
	JAIL_FILES = 1536, /* VSOCK_CONNECTIONS and all that is not a connection: one that is sent along with a message has room */
};
/* The role's filter, for tests: how many instructions. */
size_t jail_program(enum jail_role role, struct sock_filter to[JAIL_PROGRAM_MAX]);

#endif
