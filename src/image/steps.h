/* The steps of the E2B builder (e2b.md A.6): COPY, ENV, RUN, WORKDIR, USER. */
#ifndef CUBICLE_IMAGE_STEPS_H
#define CUBICLE_IMAGE_STEPS_H

#include "image/build.h"

struct pending;

/* Where a build stands. */
struct steps {
	struct build *b;
	struct stack *stack;
	struct env env;        /* of commands: the image's and that of ENV steps */
	char *user, *workdir;  /* owned; workdir "" = the user's home */
	bool workdir_set;      /* by a step */
	bool force;            /* a step was forced: all that follow are, too */
	struct pending *pending; /* accounts and directories that the next box makes first */
	size_t n_pending;
};

int steps_init(struct steps *s, struct build *b, struct stack *stack, const struct build_config *from, const char *user);
void steps_done(struct steps *s);
#define cleanup_steps __attribute__((__cleanup__(steps_done)))

/* Does all of them; b->step is the number of the one that failed. */
int steps_run(struct steps *s, const struct spec_step *steps, size_t n, struct error *err);
/* What is pending is made in a box of its own. */
int steps_settle(struct steps *s, struct error *err);

/*
 * Appends the value as a shell has it between double quotes, but for commands: $NAME, ${NAME}, ${NAME:-word}, ${NAME-word}, ${NAME:+word}, ${NAME+word};
 * backslashes quote $, `, " and themselves. Unknown ones are empty. -EINVAL with *err: no such expansion.
 */
int steps_expand(struct str value, const struct env *env, struct buf *to, struct error *err);

/* path, from workdir when it is relative, without "." and ".."; a '/' at its end stays. */
int steps_join(const char *workdir, struct str path, struct buf *to);

/* A shell command as a login shell runs it, with the PATH of the environment, if it has one: a login shell would set its own. */
int steps_shell_line(const struct env *env, const char *command, struct buf *to);

#endif
