/*
 * What every command that builds a template does around the build: `template create`, `template import` and `template build`. The commands have BUILD_FLAGS (commands.c) among their flags. In this order:
 *
 *   build_make()     the template and a build that waits
 *   build_upload()   files that the build needs, if any
 *   build_run()      starts it and shows its log until it ended
 */
#ifndef CUBICLE_CLI_BUILD_FOLLOW_H
#define CUBICLE_CLI_BUILD_FOLLOW_H

#include "cli/client.h"
#include "cli/progress.h"

enum { EXIT_INTERRUPTED = 130 };

struct build {
	struct client *client;
	const struct cli *cli;
	struct progress progress; /* of the whole command; progress_init() by build_init() */
	char template_id[65], build_id[37];
	char name[257];           /* as it was given */
	json_int_t cpu, memory, disk; /* without --cpu, --memory, --disk; 0 = the server's default. Set between build_init() and build_make() */
	char reason[1024], step[32]; /* why it failed, as the server told last */
	bool to_stdout;           /* entries of the log go there: they are what was asked for */
	int signals;              /* descriptor, or -1 */
};

/* Begins: nothing is asked of the server yet. `name`: "name" or "name:tag". */
void build_init(struct build *b, struct client *cl, const struct cli *c, const char *name);
void build_done(struct build *b);
#define cleanup_build __attribute__((__cleanup__(build_done)))

/* POST /v3/templates (e2b.md A.6) with --cpu, --memory, --disk; --public is done by build_run(). 0 or -errno with *err. */
int build_make(struct build *b, struct error *err);

/*
 * Sends a file of `size` bytes, from its beginning, as what `hash` (64 hexadecimal digits) names: GET /templates/{id}/files/{hash}, then PUT to the link; nothing when the
 * server has it already. Shows progress. 0 or -errno with *err.
 */
int build_upload(struct build *b, int fd, uint64_t size, const char *hash, struct error *err);

/*
 * POST /v2/templates/{id}/builds/{build} with this body (`force` and `isolation` are added for --no-cache and --isolation), then, but for --no-wait, its log until it ended, and the result: the
 * template's id on standard output, or one last object for --json. Returns the exit code and has said why when it is not EXIT_OK. SIGINT, SIGTERM and SIGHUP end the watching, not
 * the build: EXIT_INTERRUPTED.
 *
 * Beside E2B's (e2b.md A.6) a body has keys of our own, named as in image/spec.h. One of "fromImage", "fromTemplate" (a snapshot's id, too), "source": {"type", "hash"} and
 * "dockerfile": {"text", "context", "args", "target"} says what it is made of. "kind": "image" takes an image as it is (its user, directory and variables; no user `user` is added), which source
 * and dockerfile do anyway unless "kind" is "e2b". "command", "args", "env", "exposedPorts", "probePort", "probePath", "user", "workdir" are what spec.h says of them.
 */
int build_run(struct build *b, json_t *body);

/* The log of a build, from the first entry on; follow: until it ended. *ret_status gets how it is now ("ready", "error", …). 0, -EINTR after a signal, or -errno with *err. */
int build_show_log(struct build *b, bool follow, char ret_status[16], struct error *err);

/* A signal that ends a command came, or comes within that time; signals: signals_block(). */
bool build_interrupted(int signals, int ms);

#endif
