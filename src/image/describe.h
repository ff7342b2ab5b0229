/* The description of a template (node/templates.h has its form), from what a build has made. */
#ifndef CUBICLE_IMAGE_DESCRIBE_H
#define CUBICLE_IMAGE_DESCRIBE_H

#include "image/build.h"

struct describe {
	const struct stack *stack;
	const struct build_config *config; /* env, user (a name), workdir */
	bool env_for_all;          /* config.env is part of every command's environment; else only of the start command's */
	/* What runs in every sandbox: a shell command, or a program with its arguments, or neither. */
	const char *shell;         /* that runs shell commands */
	const char *start_command, *ready_command;
	const char *const *start;  /* NULL-terminated, or NULL */
	unsigned probe_port;
	const char *probe_path;    /* NULL: a connection is enough */
};

/* *ret is the caller's. *ret_probe: node shall try whether it gets ready. 0, or -errno with *err. */
int describe(const struct build *b, const struct describe *d, json_t **ret, bool *ret_probe, struct error *err);

/* A ready command that only waits (`sleep 20`, what E2B's clients send when none was given) says nothing about readiness, and would cost every create its time. */
bool describe_only_waits(const char *ready_command);

#endif
