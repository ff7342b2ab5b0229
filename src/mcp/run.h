/* What the tools do in a sandbox: a command through envd (e2b.md B.6), a cell through the code interpreter (e2b.md C). Blocking. */
#ifndef CUBICLE_MCP_RUN_H
#define CUBICLE_MCP_RUN_H

#include "mcp/boxes.h"
#include "mcp/remote.h"

#include <jansson.h>

enum {
	RUN_MAX_OUTPUT = 50000, /* characters of one stream that the model gets: the first and the last of them */
	RUN_MAX_IMAGES = 8,
	RUN_MAX_IMAGE = 4 * 1024 * 1024, /* bytes of base64 of all of them */
};

/* A text that keeps its beginning and its end. */
struct clipped {
	struct buf head, tail;
	uint64_t total; /* bytes */
};
int clipped_add(struct clipped *c, struct str bytes);
/* Appends it, with a line where something is missing; bytes that are no UTF-8 become U+FFFD. 0 or -ENOMEM. */
int clipped_text(const struct clipped *c, struct buf *to);
void clipped_done(struct clipped *c);

struct command_result {
	struct clipped out, err;
	int exit_code;
	bool timed_out;
	char status[64]; /* "signal: killed", … */
};

/*
 * Runs it in a login shell (bash; sh where there is none). When cancelled its process group is killed in the sandbox. 0, or -errno with *err, as of remote_call() (raw text);
 * -ENOENT: the sandbox is gone.
 */
int run_command(const struct remote_server *s, const struct box_entry *box, const char *command, const char *cwd, int timeout_s, const atomic_bool *cancelled,
	struct command_result *ret, struct error *err);
void command_result_done(struct command_result *r);

struct code_result {
	struct clipped out, err;
	struct clipped text;        /* the results, as text */
	json_t *images;             /* [{"type":"image","data":…,"mimeType":…}] */
	size_t image_bytes;         /* in them */
	unsigned dropped;           /* images that were too many or too big */
	bool failed, timed_out;
	struct buf error;           /* name, value, traceback of the code's own exception */
};

/* A cell in the default context of the language (NULL: Python). A cell that is cancelled, or runs for too long, is interrupted. 0 or -errno with *err. */
int run_code(const struct remote_server *s, const struct box_entry *box, const char *code, const char *language, int timeout_s, const atomic_bool *cancelled,
	struct code_result *ret, struct error *err);
void code_result_done(struct code_result *r);

#endif
