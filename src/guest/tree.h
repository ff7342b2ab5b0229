/* Signals to a process and everything that descends from it. */
#ifndef CUBICLE_GUEST_TREE_H
#define CUBICLE_GUEST_TREE_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Sends sig to the process, its descendants, and the members of its process group or session, whose parents may have died. Repeats while new ones appear, so that a
 * SIGKILL also gets what is forked meanwhile. `proc` is a directory descriptor of /proc. `reaped`: the leader itself is gone; `group_lost`: so are its group and session.
 */
void tree_signal(int proc, pid_t leader, bool reaped, bool group_lost, int sig);

#endif
