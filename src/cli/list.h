/* Lists as commands print them: a table for people, what the server said for programs (--json). */
#ifndef CUBICLE_CLI_LIST_H
#define CUBICLE_CLI_LIST_H

#include "cli/command.h"
#include "cli/output.h"

struct list {
	const char *titles[TABLE_MAX_COLUMNS + 1];
	void (*row)(struct table *t, const json_t *one); /* adds a cell for each title */
};

void list_table(const struct list *l, const json_t *all);
/* Asks for all pages at `path` (NULL: there was no memory for it), on the admin socket or as any client, and prints them. The command's exit code. */
int list_command(const struct cli *c, bool admin, const char *path, const struct list *l);

#endif
