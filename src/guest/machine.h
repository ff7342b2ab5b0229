/*
 * What is different where cubicle-init is PID 1 of a machine of its own (a microVM) and not of a namespace: nobody outside does things for it, so it freezes and joins cgroups itself, sets the
 * clock, and switches the machine off when it must end. In a namespace all of this does nothing.
 */
#ifndef CUBICLE_GUEST_MACHINE_H
#define CUBICLE_GUEST_MACHINE_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct machine {
	int disk;         /* root directory of the writable disk's file system */
	int work;         /* directory of the cgroup of commands */
	uint32_t address; /* of eth0, host byte order; 0 = there is none */
};

/* From here on this process is PID 1 of its own machine; the descriptors are its own for good. Once, at boot. */
void machine_set(const struct machine *m);
/* NULL in a namespace. */
const struct machine *machine_get(void);

/* Moves the calling process into the cgroup of commands and offers it to the OOM killer before the agent. 0 or -errno. */
int machine_join_work(void);
/* Everything in that cgroup stands still, or goes on. 0 or -errno; it does not wait. */
int machine_freeze(bool on);
/* Waits until all stands still, if it is to, a second at most. */
void machine_wait_still(void);
/* Sets the wall clock; 0 = leaves it. 0 or -errno. */
int machine_set_clock(int64_t realtime_ns);
/* Two machines that were restored from one memory have one random generator: bytes that are this one's alone go in, and what it makes from here on is its own. */
void machine_reseed(struct str own);

/* The end of PID 1. In a machine of its own: writes its disk (10 s at most), and switches off. */
_Noreturn void machine_end(int status);

#endif
