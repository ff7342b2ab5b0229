/* What a claim says of names and addresses, where programs inside look for it: hostname, /etc/hosts, /etc/hostname, /etc/resolv.conf, /etc/machine-id; and places that must be there. */
#ifndef CUBICLE_GUEST_NAMES_H
#define CUBICLE_GUEST_NAMES_H

#include "io/messages.h"

/* What programs expect of a fresh /run and of /tmp. 0 or -errno. */
int names_make_places(void);
/* Makes the files that the claim will fill while nobody waits, because the first write to a file of the template copies it to the sandbox's disk. */
void names_touch(void);
struct names {
	char hostname[65], machine_id[33], nameserver[65];
	char address[65]; /* of the link; empty = it has none */
};
/* Copies. */
void names_of(const struct msg_claim *c, struct names *ret);
/* 0 or -errno. */
int names_write(const struct names *n);

#endif
