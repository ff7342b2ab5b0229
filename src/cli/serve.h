/* The supervisor: `cubicle serve`. */
#ifndef CUBICLE_CLI_SERVE_H
#define CUBICLE_CLI_SERVE_H

struct options;

/* Runs until SIGTERM or SIGINT and a clean end of its children. Exit status: 0, or 1 with the reason on standard error. */
int serve_main(const struct options *o);

/* Path of the file that holds the first API key (mode 0600 root), "<state.dir>/first-key". */
#define FIRST_KEY_FILE "first-key"

#endif
