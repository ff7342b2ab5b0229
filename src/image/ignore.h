/*
 * .dockerignore: a pattern a line (glob.h, with `**`), relative to the context; `#` begins a comment, `!` takes back what an earlier line leaves out. The last line that fits a
 * path or a directory above it decides.
 */
#ifndef CUBICLE_IMAGE_IGNORE_H
#define CUBICLE_IMAGE_IGNORE_H

#include "base/error.h"
#include "base/str.h"

enum { IGNORE_MAX = 256 * 1024, IGNORE_RULES = 4096 };

struct ignore {
	struct ignore_rule {
		char *pattern; /* owned */
		bool keep;     /* `!` */
	} *rules;
	size_t n;
	bool keeps; /* a rule of them has `!`: something below an ignored directory may be kept */
};

/* 0, -E2BIG, -EINVAL (400, names the line) or -ENOMEM with *err. */
int ignore_parse(struct ignore *ig, struct str text, struct error *err);
void ignore_done(struct ignore *ig);
#define cleanup_ignore __attribute__((__cleanup__(ignore_done)))

/* Adds one rule as a line has it. */
int ignore_add(struct ignore *ig, struct str line, struct error *err);

/* True when the path (relative, without ./ and a trailing slash) is left out. */
bool ignore_match(const struct ignore *ig, struct str path);

#endif
