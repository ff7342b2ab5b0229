/* What a Dockerfile's variables are, which stages a build needs, and what each stands on. Nothing is asked of anybody. */
#ifndef CUBICLE_IMAGE_DOCKERFILE_PLAN_H
#define CUBICLE_IMAGE_DOCKERFILE_PLAN_H

#include "image/dockerfile.h"
#include "image/env.h"
#include "image/words.h"

/* --build-arg, and who asked for them. */
struct dockerfile_given {
	struct env vars;
	bool used[ENV_MOST];
};

enum dockerfile_base_kind { DF_BASE_IMAGE, DF_BASE_STAGE, DF_BASE_SCRATCH };

struct dockerfile_base {
	enum dockerfile_base_kind kind;
	char *image;   /* DF_BASE_IMAGE: reference, as it is after expansion */
	size_t stage;  /* DF_BASE_STAGE */
	bool needed;   /* the target follows from it */
};

struct dockerfile_plan {
	const struct dockerfile *file;
	struct env platform; /* TARGETPLATFORM and its like */
	struct env globals;  /* ARGs before the first FROM */
	struct dockerfile_base *bases; /* of each stage */
	size_t target;
	size_t steps; /* instructions of the needed stages */
};

/*
 * `target`: a stage's name or number, empty = the last stage. `architecture` and `variant` as in Go ("amd64", "arm64" + "v8"): FROM --platform must be this one; NULL: any will do (who
 * plans is not who builds).
 * 0; 400 with the line: a variable of FROM that is not set, no such target; 501 another platform.
 */
int dockerfile_plan(struct dockerfile_plan *p, const struct dockerfile *d, struct dockerfile_given *given, struct str target, const char *architecture,
	const char *variant, const char *name, struct error *err);
void dockerfile_plan_done(struct dockerfile_plan *p);
#define cleanup_dockerfile_plan __attribute__((__cleanup__(dockerfile_plan_done)))

/* The variables at one place of a stage: ENV goes before ARG. */
struct dockerfile_scope {
	const struct env *env;
	struct env *args;
};

/* Of struct words; data is a struct dockerfile_scope. */
bool dockerfile_scope_get(void *data, struct str name, struct str *ret);

/* ARG in a stage: what was given, its own value, what it was before the first FROM, or of the platform. Without any of them it stays unset. 0 or -errno with *err. */
int dockerfile_scope_arg(const struct dockerfile_plan *p, struct dockerfile_given *given, struct dockerfile_scope *s, const struct dockerfile_instruction *i, struct error *err);

/* True for the ARGs that RUN has without being declared (HTTP_PROXY and its like); they are no part of what a cached layer follows from. */
bool dockerfile_is_proxy(struct str name);

/* The stage or image that COPY --from, or the from of RUN --mount, names; empty: the flag names none. */
struct str dockerfile_flag_from(const struct dockerfile_flag *f);

/* The stage or image that a COPY --from names: kind and *ret_stage. 0, or 400 when it is a later stage or a number of none. */
int dockerfile_copy_from(const struct dockerfile *d, struct str from, size_t stage, enum dockerfile_base_kind *ret_kind, size_t *ret_stage, struct error *err);

#endif
