/* The tools: one table, which their schemas, the checks of their arguments and the calls come from (agents.md §1). */
#ifndef CUBICLE_MCP_TOOLS_H
#define CUBICLE_MCP_TOOLS_H

#include "mcp/boxes.h"
#include "mcp/server.h"

#include <jansson.h>

struct tool;

/* One call: on a worker thread, from the check of its arguments to its result. */
struct tool_run {
	const struct mcp_config *config;
	const struct remote_server *server;
	struct boxes *boxes;
	const atomic_bool *cancelled; /* by the client, or by the end of the session */
	const atomic_bool *hurry;     /* the session has waited long enough also for what makes sandboxes; NULL: it never will */
	json_t *args;                 /* an object */
	struct box_entry *box;        /* that it acts on, or NULL; held by the caller of tool_call() */
	json_t *content;              /* what it answers: an array; owned by the caller */
	bool failed;                  /* that is an error */
};

/* The tool of that name, or NULL. */
const struct tool *tool_find(struct str name);
/* The list as `tools/list` answers it; owned by the caller. NULL without memory. */
json_t *tools_list(void);
/* Checks the arguments and finds the sandbox: at the time of the request, before other calls change anything. 0, or -errno with content set. */
int tool_prepare(const struct tool *t, struct tool_run *run);
/* Blocks. content is set in any case (NULL without memory). */
void tool_call(const struct tool *t, struct tool_run *run);

/* Ends a sandbox, or with `keep` pauses it. 0 or -errno with *err; one that is not there any more is a success. */
int tools_end_box(const struct remote_server *s, const char *id, bool keep, int timeout_s, struct error *err);
/* Its lease: the server ends it that long after now, unless it is renewed; never later than its client's deadline. */
int tools_renew(const struct remote_server *s, const struct box_entry *box, int lease_s, struct error *err);

#endif
