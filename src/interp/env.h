/*
 * Environment variables inside a kernel (e2b.md C.4): code in the kernel's language that sets them, run
 * silently before the user's code, and code that puts back what was there before, run after it. Runs of their
 * own: the user's line numbers stay, and an error in his code does not keep the second from running. No I/O.
 */
#ifndef CUBICLE_INTERP_ENV_H
#define CUBICLE_INTERP_ENV_H

#include "base/buf.h"
#include "base/error.h"
#include "io/json.h"

enum env_action {
	ENV_SET,     /* for good */
	ENV_SWAP,    /* until ENV_RESTORE */
	ENV_RESTORE, /* what the last ENV_SWAP of this kernel, with the same variables, replaced */
};

/* The language (normalised, or a kernelspec's own) is one whose environment can be changed. */
bool env_supported(const char *language);

/* The variables of a request are strings by names that an environment can hold, in this language: 0, or *err
 * (400). */
int env_check(const char *language, json_t *vars, struct error *err);

/* Appends the code. Variables that env_check() would refuse are left out. 0, -ENOTSUP or -ENOMEM. */
int env_code(const char *language, enum env_action action, json_t *vars, struct buf *to);

#endif
