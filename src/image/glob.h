/* File name patterns: those of COPY and ADD (the rules of Go's filepath.Match), and, with `**`, those of .dockerignore. */
#ifndef CUBICLE_IMAGE_GLOB_H
#define CUBICLE_IMAGE_GLOB_H

#include "base/str.h"

enum {
	GLOB_MAX = 4096,	/* bytes of a pattern */
	GLOB_WORK = 1 << 20,	/* steps of one match; one that takes more does not match */
};

enum glob_kind {
	GLOB_PLAIN,	 /* `*` and `?` stop at a slash */
	GLOB_DOUBLE_STAR, /* `**` does not: it is any number of directories, also none; at the end of a pattern anything */
};

/*
 * `*` any bytes but a slash, `?` one character but a slash, [a-z] and [^a-z] one of a class (never a slash), a backslash takes the next as it is. Characters are UTF-8 (a byte
 * that is no part of any is one). True when the whole path fits.
 */
bool glob_match(struct str pattern, struct str path, enum glob_kind kind);

/* True when it has a character that is not just itself. */
bool glob_is_pattern(struct str pattern);

/* 0, or -EINVAL: an open class, an empty one, a backslash at the end; -E2BIG: longer than GLOB_MAX. */
int glob_check(struct str pattern);

#endif
