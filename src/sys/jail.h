/*
 * Runs one of our own programs on hostile input: in namespaces of its own, with nothing of the machine in view but what it was linked with, as a user without privileges. All of it
 * holds before the program begins; nothing in it has to help.
 */
#ifndef CUBICLE_SYS_JAIL_H
#define CUBICLE_SYS_JAIL_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum jail_flags {
	JAIL_NET = 1,    /* the machine's network, and what of /etc and /dev is needed to use it; else an empty network namespace and only libraries */
	JAIL_MERGE = 2,  /* stays root of the machine, with CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH only, in no user namespace */
};

enum { JAIL_FDS = 140 };

struct jail {
	const char *const *argv; /* of ourselves: {"cubicle", "unpack", NULL} */
	const int *fds;          /* become 3, 4, …; 0 to 2 are /dev/null */
	size_t n_fds;            /* at most JAIL_FDS */
	unsigned flags;
	uid_t uid;
	gid_t gid;
	const char *stage;       /* an existing directory: its root is mounted there, in its own mount namespace */
	uint64_t memory;         /* bytes of address space */
	uint64_t file_size;      /* bytes of a file that it writes */
	int nice;
};

struct jailed {
	pid_t pid;
	int pidfd;
};

/*
 * Starts it: PID 1 of its own PID, mount, IPC, UTS and user namespaces; no_new_privs, no capability (in the bounding set neither), killed with the thread that called this.
 * The root is a read-only tmpfs with /usr and what belongs to it, read-only. Blocks some ms: for a worker. 0, or -errno with *err. The caller owns the pidfd and waits for its end.
 */
int jail_start(const struct jail *j, struct jailed *ret, struct error *err);

/* Waits for the end of one that was killed or has ended (the pidfd is readable); its exit status, 128 + n after signal n, or -errno. Closes the pidfd. */
int jail_end(struct jailed *j);

#endif
