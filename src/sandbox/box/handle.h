/* The text by which a box is found again: one line of `key=value` words after the version word. */
#ifndef CUBICLE_SANDBOX_BOX_HANDLE_H
#define CUBICLE_SANDBOX_BOX_HANDLE_H

#include "sandbox/backend.h"

struct runtime;

struct handle {
	const struct runtime *runtime; /* says the version word */
	uint64_t pid, start, slot, loop; /* start: of PID 1, in clock ticks since boot */
	bool warm;
	char boot[37];
};

void handle_format(const struct handle *h, struct box_handle *ret);
/* 0 or -EINVAL: another version, a word missing, twice or out of range. */
int handle_parse(const char *text, struct handle *ret);

#endif
