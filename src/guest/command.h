/* The life of a command between clone and exec (e2b.md B.6). Runs in the new process only. */
#ifndef CUBICLE_GUEST_COMMAND_H
#define CUBICLE_GUEST_COMMAND_H

#include "guest/spawn.h"

/* Sets up session or process group, descriptors, credentials, directory and environment as the request says, then executes it. Says on `status` why it could not.
 * fds: stdin, stdout, stderr, and the listening socket if there is one; or the pty's slave. */
_Noreturn void command_run(const struct spawn_head *head, char *body, int status, const int *fds);

/* Tells PID 1 why this process cannot do its work, and ends it. */
_Noreturn void spawn_fail(int status, enum connect_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
