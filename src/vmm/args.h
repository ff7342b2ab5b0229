/* The monitor's arguments: words key=value, descriptors by number (docs/microvm.md). */
#ifndef CUBICLE_VMM_ARGS_H
#define CUBICLE_VMM_ARGS_H

#include "base/str.h"
#include "vmm/machine.h"

enum { VMM_NAME_MAX = 64 };

struct vmm_args {
	char name[VMM_NAME_MAX + 1];
	struct machine_config machine;
	int kernel, initramfs, state, memfile, admin; /* -1 = not given */
	struct str command_line; /* a view of the argument */
	bool jail;
	uint32_t uid; /* with jail */
};

/* Checks every word, and that they go together; not what the descriptors are. 0 or -EINVAL with the word named. */
int args_parse(int argc, char **argv, struct vmm_args *ret, struct error *err);
/* Are the descriptors open, and of the right kind? Makes them close-on-exec, and those that the loop waits for non-blocking. 0 or -EINVAL. */
int args_check_descriptors(const struct vmm_args *a, struct error *err);

#endif
