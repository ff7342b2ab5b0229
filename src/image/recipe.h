/* What a layer of a template made here is: a shell script, and files of ours. */
#ifndef CUBICLE_IMAGE_RECIPE_H
#define CUBICLE_IMAGE_RECIPE_H

#include "base/error.h"

#include <limits.h>
#include <stdbool.h>

enum { RECIPE_DIGEST = 64 }; /* hexadecimal digits of a SHA-256 */

struct recipe {
	const char *name;   /* for people */
	const char *script; /* fills $root, and makes `image` of it; runs after recipe_prelude, before nothing */
	const char *files;  /* a tar archive that stands beside the program (recipe_find_files); $files of the script. NULL: none */
	bool mirror;        /* takes packages from the Debian mirror */
	int seconds;        /* how long it took on a machine of two cores: the share of the progress shown */
};

/* The base system; on it the packages of the code interpreter; on these our own programs. Each is made in the tree of those below it. */
extern const struct recipe recipe_base, recipe_interpreter_packages, recipe_interpreter_files;

/* Shell functions and settings that every script begins with. */
extern const char recipe_prelude[];

/* Lines of a script's output that begin with these tell of a phase ("<mark><percent> <phase>"), and what could not be fetched from ("<mark><kind>"). */
#define RECIPE_PHASE "@phase "
#define RECIPE_FAILED "@failed "

/* Where the recipe's files stand. "" when it has none. 0, or -ENOENT with *err. */
int recipe_find_files(const struct recipe *r, char ret[PATH_MAX], struct error *err);

/*
 * A digest of everything that the layer's content follows from, apart from the mirror: the script, the files, and the digest of the layer below ("" = none).
 * Equal digests: no need to make it again. 0, or -errno with *err (the files cannot be read).
 */
int recipe_digest(const struct recipe *r, const char *below, char ret[RECIPE_DIGEST + 1], struct error *err);

#endif
