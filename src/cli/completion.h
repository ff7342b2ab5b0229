/* Shell completion: candidates come from the tables of commands and options, and from the server where an argument names one of its things. */
#ifndef CUBICLE_CLI_COMPLETION_H
#define CUBICLE_CLI_COMPLETION_H

#include "base/buf.h"

/* What an argument is called in the table of commands, for those that the server knows: the function appends a line for each. */
struct completion_source {
	const char *argument; /* "SANDBOX" */
	void (*list)(struct buf *to, void *arg);
};

/*
 * Appends the candidates for the last of argc words (argv[0] is the program, the last one may be empty): a line each, `word` or `word<TAB>what it is`. Nothing
 * is appended where a file name or a text of the user's own stands. sources is ended by one without argument; arg is passed on. 0 or -ENOMEM.
 */
int completion_words(struct buf *to, int argc, char **argv, const struct completion_source *sources, void *arg);

/* The script that a shell reads ("bash", "zsh" or "fish"); NULL for another one. */
const char *completion_script(const char *shell);

#endif
