/* The signals that end a command, read as from a file, so that none is lost and nothing is done in a handler. */
#ifndef CUBICLE_CLI_SIGNALS_H
#define CUBICLE_CLI_SIGNALS_H

#include <stdbool.h>

/* Blocks SIGINT, SIGTERM and SIGHUP, and with `window` SIGWINCH, for this thread and those that it makes; a non-blocking signalfd(2) that tells of them, or -errno. */
int signals_block(bool window);

#endif
