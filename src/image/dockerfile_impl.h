/* What dockerfile.c and dockerfile_arguments.c share. */
#ifndef CUBICLE_IMAGE_DOCKERFILE_IMPL_H
#define CUBICLE_IMAGE_DOCKERFILE_IMPL_H

#include "image/dockerfile.h"

struct dockerfile_lines;

/* Everything that a parsed file points to; freed at once. */
struct dockerfile_memory {
	void **pieces;
	size_t n;
};

struct parser {
	struct dockerfile *d;
	struct dockerfile_lines *lines; /* NULL: triggers */
	bool triggers;
	struct error *err;
};

/* How the text behind an instruction is read. */
enum dockerfile_form {
	FORM_TEXT,	  /* as one argument */
	FORM_WORDS,	  /* cut at white space */
	FORM_JSON_TEXT,	  /* an array, else as one */
	FORM_JSON_WORDS,  /* an array, else cut at white space */
	FORM_PAIRS,	  /* NAME=value …, or NAME value */
	FORM_NAMES,	  /* NAME, NAME=value … */
	FORM_HEALTHCHECK, /* NONE, or CMD and an array or a text */
};

/* A copy that lives as long as the file. 0 or -ENOMEM. */
int parser_copy(struct parser *p, struct str s, struct str *ret);
/* Room for one more at the end of an array: a pointer to it, zeroed, or NULL without memory. */
void *parser_grow(struct parser *p, void **array, size_t *n, size_t size);

/* Takes the flags from the front of *rest. 0 or a negative errno with p->err, as the others. */
int parser_flags(struct parser *p, struct dockerfile_instruction *i, struct str *rest);
int parser_arguments(struct parser *p, struct dockerfile_instruction *i, enum dockerfile_form form, struct str rest);
/* What holds for the instruction as a whole. */
int parser_check(struct parser *p, const struct dockerfile_instruction *i);

#endif
