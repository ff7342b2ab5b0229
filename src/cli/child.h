/* Programs that a command runs on the user's machine, as the user would: looked up in $PATH, with our environment. */
#ifndef CUBICLE_CLI_CHILD_H
#define CUBICLE_CLI_CHILD_H

#include "base/buf.h"
#include "base/error.h"

struct child {
	const char *const *argv;
	struct str input; /* on its standard input; at most what a pipe holds (64 KiB) */
	int output;       /* descriptor that its standard output becomes; -1: to_output */
	struct buf *to_output; /* at most CHILD_OUTPUT_MAX */
	/* Each line of its standard error; NULL: that is ours. */
	void (*line)(struct str line, void *arg);
	void *arg;
};

enum { CHILD_OUTPUT_MAX = 1 << 20 };

/* Runs it to its end: its exit code (128 + n when a signal ended it), or -errno with *err; -ENOENT: there is no such program. */
int child_run(const struct child *c, struct error *err);

#endif
