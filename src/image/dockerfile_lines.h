/* The lines of a Dockerfile: directives, comments, continuation lines, bodies of heredocs. Used by dockerfile.c. */
#ifndef CUBICLE_IMAGE_DOCKERFILE_LINES_H
#define CUBICLE_IMAGE_DOCKERFILE_LINES_H

#include "base/buf.h"
#include "base/error.h"

struct dockerfile_lines {
	struct str rest;
	unsigned line; /* of the last one that was read */
	char escape;
};

/* Reads the directives. 0 or -EINVAL with *err (l->line says where). */
int dockerfile_lines_start(struct dockerfile_lines *l, struct str text, struct error *err);

/* The next instruction, its lines joined, without comments; l->line is its last line, *ret_line its first. 1, 0 at the end, -E2BIG or -ENOMEM with *err. */
int dockerfile_lines_next(struct dockerfile_lines *l, struct buf *to, unsigned *ret_line, struct error *err);

/* Appends lines as they stand up to the one that is `name` (which is read, too); tabs: it may have tabs before. False: it never came. */
bool dockerfile_lines_until(struct dockerfile_lines *l, struct str name, bool tabs, struct buf *to);

#endif
