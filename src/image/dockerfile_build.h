/* What the parts of a Dockerfile's build share (build.h has dockerfile_build() itself). */
#ifndef CUBICLE_IMAGE_DOCKERFILE_BUILD_H
#define CUBICLE_IMAGE_DOCKERFILE_BUILD_H

#include "image/build.h"
#include "image/context_index.h"
#include "image/dockerfile_plan.h"

enum { DF_PENDING = 256 }; /* directories that wait for the next layer */

/* Files and what they say of themselves: a finished stage, or an image. */
struct df_files {
	struct stack stack;
	struct build_config config;
};

struct df_work {
	struct build *b;
	struct dockerfile file;
	struct dockerfile_plan plan;
	struct dockerfile_given given;
	struct df_files **stages; /* of those that are finished, else NULL; owned */
	struct df_image {
		char *reference;
		struct df_files *files;
	} *images; /* that were asked for already; owned */
	size_t n_images;
	int context; /* descriptor; -1 = not opened yet */
	struct context_index index; /* once it is open */
	size_t step; /* instructions that were begun */
};

/* A stage at work. */
struct df_stage {
	struct df_work *w;
	size_t number;
	struct df_files *files; /* as they are so far */
	struct env args;        /* ARGs that have a value */
	bool cmd_set;
	char *pending[DF_PENDING]; /* directories that WORKDIR and VOLUME want; owned */
	size_t n_pending;
};

/* Things told one after the other so that no two lists of them are the same text. */
void df_tell(struct buf *to, struct str s);

/* Words of an instruction, with the variables of the stage. 0 or a negative errno with *err, as all of these. */
int df_expand(struct df_stage *s, struct str text, struct buf *to, struct error *err);

/* `path` seen from the working directory; it keeps a slash at its end. */
int df_absolute(struct df_stage *s, struct str path, struct buf *to, struct error *err);

/* A directory that the next layer has, made as root unless it is there already. */
int df_want_dir(struct df_stage *s, const char *path, struct error *err);

/* build_layer() with the directories that are wanted. */
int df_layer(struct df_stage *s, struct str what, int (*make)(struct box *box, void *arg, struct error *err), void *arg, struct error *err);

/* The image of that name, asked for once in a build. */
int df_image(struct df_work *w, const char *reference, struct df_files **ret, struct error *err);

/* dockerfile_copy.c: COPY and ADD. */
int df_copy(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err);

/* The same in steps: what it takes, with what the layer follows from appended; doing it (arg: *ret); the end. `i` must stay. */
struct copying_out;
int df_copy_open(struct df_stage *s, const struct dockerfile_instruction *i, struct copying_out **ret, struct buf *what, struct error *err);
int df_copy_make(struct box *box, void *arg, struct error *err);
void df_copy_free(struct copying_out *c);

/*
 * dockerfile_run_mounts.c: what RUN --mount asks for. A sandbox cannot mount, so the files are put where they shall be before the command, and everything there is taken away after it; what
 * stood there is kept aside meanwhile. A cache begins empty each time, as one may.
 */
struct df_mounts;
int df_mounts_open(struct df_stage *s, const struct dockerfile_instruction *i, struct df_mounts **ret, struct buf *what, struct error *err);
int df_mounts_place(struct df_mounts *m, struct box *box, struct error *err);
int df_mounts_take_away(struct df_mounts *m, struct box *box, struct error *err);
/* Takes NULL. */
void df_mounts_free(struct df_mounts *m);

/* dockerfile_config.c: instructions that change no file. */
int df_configure(struct df_stage *s, const struct dockerfile_instruction *i, struct error *err);

#endif
