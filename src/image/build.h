/*
 * A build, from its spec to the description of a template: what a builder does (image/builder.h). Blocking. File systems grow by layers: those of an image or a template
 * (a `stack`), then one for each thing that is done in a box (build_layer()), which later builds find by its key.
 */
#ifndef CUBICLE_IMAGE_BUILD_H
#define CUBICLE_IMAGE_BUILD_H

#include "config/options.h"
#include "image/ask.h"
#include "image/env.h"
#include "image/envd.h"
#include "image/source.h"
#include "image/spec.h"

enum {
	STACK_MOST = 20,      /* layers of a box */
	STACK_TEMPLATE = 12,  /* of a template (node/templates.h) */
	STACK_IMAGE = 11,     /* that an image is given: deeper ones have their upper layers merged */
	STACK_KEY = 64,
};

struct stack_layer {
	char file[ASK_FILE_NAME]; /* relative to node/ */
	uint64_t size;
};

/* Layers, lowest first, and of what they are the result. */
struct stack {
	struct stack_layer layers[STACK_MOST];
	size_t n;
	char key[STACK_KEY + 1];
};

/* What an image or a template says besides its files. Texts are never NULL, "" = none; lists end with NULL, NULL = none. */
struct build_config {
	struct env env;
	char *user, *workdir, *stop_signal;
	char **entrypoint, **cmd, **shell, **on_build;
	char **exposed_ports;  /* "8080/tcp" */
	char **labels;         /* key, value, key, value, … */
	char digest[SOURCE_DIGEST_MAX]; /* "" = of no image */
};

struct build {
	struct ask *ask;
	const struct build_spec *spec;
	const struct options *options;
	struct source_env *sources;
	json_t *base;          /* description of what start_build.base names, or NULL */
	bool force;
	unsigned cpu_count, memory_mb, disk_mb;
	char step[32];         /* what the log and the error say: "base", "1", …, "finalize"; "" = none */
	char token[65];        /* of its boxes' envd */
	unsigned progress;     /* percent, told last */
	const char *phase;
};

/* A sandbox of the build's own. */
struct box {
	struct build *build;
	uint64_t id;
	struct envd envd;
};

/* Nothing said yet. 0 or -ENOMEM. */
int build_config_init(struct build_config *c);
void build_config_done(struct build_config *c);
#define cleanup_build_config __attribute__((__cleanup__(build_config_done)))

/* Replace a text (NULL is ""), a list (NULL: none) by copies. 0 or -ENOMEM. */
int build_config_text(char **to, const char *text);
int build_config_list(char ***to, const char *const *from);

/* The log: levels 0 debug, 1 info, 2 warn, 3 error. No secrets. */
void build_log(struct build *b, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Phases are those of cube.md D.3; the percentage never falls. */
void build_progress(struct build *b, const char *phase, unsigned percent);

/* ---- what something is made on (build_base.c). None of these may be called while build_layer() makes a layer: two builds would wait for each other. ---- */

/* An image of a registry; credentials may be NULL. *ret_config was initialised, and gets what the image says. */
int build_from_image(struct build *b, const char *reference, const struct source_credentials *credentials, struct stack *ret, struct build_config *ret_config,
	struct error *err);
/* What was uploaded. */
int build_from_archive(struct build *b, enum source_archive kind, const char *hash, const char *name, struct stack *ret, struct build_config *ret_config,
	struct error *err);
/* A file system without files. */
int build_from_scratch(struct build *b, struct stack *ret, struct error *err);
/* What start_build.base names. */
int build_from_base(struct build *b, struct stack *ret, struct build_config *ret_config, struct error *err);

/* ---- doing something (build_box.c) ---- */

/*
 * What follows when `what` (any text that tells it apart from everything else: instruction, arguments, hash of the files, user, environment…) is done to the files: the
 * layer of an earlier build, *ret_cached, or make() is called with a box in which it does it, as often as it likes through box->envd, and the box's changes become the layer.
 * `force`: no earlier one is taken. The stack gets the layer and its new key. make() returns 0; BUILD_NOTHING when it changed nothing (then there is no layer; the key changes);
 * or -errno with *err, which ends it.
 */
enum { BUILD_NOTHING = 1 };
int build_layer(struct build *b, struct stack *s, struct str what, bool force, int (*make)(struct box *box, void *arg, struct error *err), void *arg,
	bool *ret_cached, struct error *err);

/* A box to look into, or to copy out of (copy.from = &box->envd). build_end_box() takes a zeroed one. */
int build_open_box(struct build *b, const struct stack *s, struct box *ret, struct error *err);
void build_end_box(struct box *box);

/* Merges layers until there are few enough for a template. */
int build_squeeze(struct build *b, struct stack *s, struct error *err);

/* A shell command in a box, its output in the log: `argv` with user (NULL: root), working directory and environment. 0; -errno with *err: it could not be started, or
 * "exit status 7", with the last lines that it wrote. `shown` is what the error calls the command. */
int build_command(struct box *box, const char *const *argv, const char *user, const char *cwd, const struct env *env, const char *shown, struct error *err);

/* ---- the end (build.c) ---- */

/* What becomes the template. */
struct build_result {
	struct stack stack;
	struct build_config config;
	bool service; /* entrypoint and cmd run in every sandbox; else only with a start command or a probe */
};

/* dockerfile_build.c: the spec's Dockerfile. Sets b->step to the number of each instruction. *ret was initialised. */
int dockerfile_build(struct build *b, struct build_result *ret, struct error *err);

/* The whole build; it ends with build_done or build_failed. 0 when node has taken it. */
int build_all(struct build *b, struct error *err);

#endif
