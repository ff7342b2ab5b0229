/* What the microVMs of a server share, found out once when it starts: whether there can be any, their kernel, its first programs. */
#ifndef CUBICLE_SANDBOX_MICROVM_MACHINES_H
#define CUBICLE_SANDBOX_MICROVM_MACHINES_H

#include "sandbox/backend.h"

struct machines {
	char why[480];  /* why there can be none; "" = there can */
	int kvm;        /* /dev/kvm */
	int kernel;     /* bzImage */
	int initramfs;  /* sealed memory file: cubicle-init and the kernel's modules */
	int program;    /* of a copy of cubicle-vmm in memory */
	unsigned boot_seconds;   /* from a create's order until the guest's init is parked: who asked is told why not (front waits 55 s) */
	unsigned answer_seconds; /* for the guest's init to do what its disk needs */
};

/* Of c->machines, if there are any. Without microVMs that is no error, unless the server's option `isolation` insists: 0 or -errno with *err. Takes up to half a second where there is a KVM to be tried. */
int machines_new(const struct backend_config *c, struct machines **ret, struct error *err);
/* Takes NULL. */
void machines_free(struct machines *m);

#endif
