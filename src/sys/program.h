/* Runs a program of the system to its end and takes its output: for set-up work, off the request path. */
#ifndef CUBICLE_SYS_PROGRAM_H
#define CUBICLE_SYS_PROGRAM_H

#include "base/buf.h"
#include "base/error.h"

#include <limits.h>

/* Looks argv[0] up in the system's directories for programs (not in $PATH) and runs it with a minimal environment, `input` on its standard input.
 * What it writes to standard output and error is appended to *ret_output (may be NULL; at most 1 MiB). Returns its exit status (128 + n after signal n), or -errno;
 * -ENOENT: there is no such program. */
int program_run(const char *const *argv, struct str input, struct buf *ret_output, struct error *err);
/* The same with an open file in place of `input`, which stays the caller's. */
int program_run_on(const char *const *argv, int in, struct buf *ret_output, struct error *err);

/* A sealed copy of a program in memory, without a path, that nobody but root can read and everybody can execute (mode 0711): a descriptor (O_PATH) for execveat(), or -errno. */
int program_copy(const char *path, const char *name, struct error *err);

/* Where a program of ours is: beside this one, where `make install` puts it, or where the build left it (../`built`). 0, -ENOENT or -errno. */
int program_of_ours(const char *name, const char *built, char to[PATH_MAX], struct error *err);

#endif
