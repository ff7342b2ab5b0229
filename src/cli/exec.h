/* Runs one command in a sandbox through envd (e2b.md B.5, B.6), with our standard streams. */
#ifndef CUBICLE_CLI_EXEC_H
#define CUBICLE_CLI_EXEC_H

#include "cli/client.h"

struct exec_request {
	const char *const *argv; /* NULL-terminated; argv[0] is looked up in the sandbox's PATH */
	const struct cli *cli;   /* --env pairs, --json */
	const char *user;        /* NULL = the sandbox's default */
	const char *cwd;         /* NULL = the sandbox's default */
	int64_t timeout_s;       /* 0 = none */
	bool tty;                /* a terminal of our window's size; ours turns raw meanwhile */
	bool stdin_closed;       /* do not read standard input */
	void (*tick)(void *arg); /* called about once a second; may be NULL */
	void *tick_arg;
};

enum { EXEC_TIMED_OUT = 124 };

/*
 * The exit code of the command (128 + n when a signal ended it, EXEC_TIMED_OUT after timeout_s), EXIT_NOT_STARTED with *err when the sandbox refused to start
 * it, or a negative errno with *err: no server, no sandbox, the connection broke. SIGINT, SIGTERM and SIGHUP are passed on as SIGTERM, the second one as SIGKILL;
 * *ret_signal is the first of them, else 0.
 */
int exec_run(struct client *cl, const struct target *t, const struct exec_request *q, int *ret_signal, struct error *err);

#endif
