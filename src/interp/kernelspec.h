/* Installed kernels (jupyter-client "Kernel specs"): DIRECTORY/NAME/kernel.json. */
#ifndef CUBICLE_INTERP_KERNELSPEC_H
#define CUBICLE_INTERP_KERNELSPEC_H

#include "base/error.h"
#include "base/str.h"

struct kernelspec {
	struct kernelspec *next;
	char *name;     /* of its directory, lower case */
	char *language; /* as it says itself, lower case */
	char *dir;
	char **argv;               /* NULL-terminated; with {connection_file} and {resource_dir} */
	char **env;                /* NULL-terminated NAME=VALUE */
	bool interrupt_by_message; /* interrupt_mode "message", else SIGINT */
	bool ipc; /* metadata.cubicle.transport "ipc": it is spoken to over Unix sockets; else TCP on the
		     loopback address, which every kernel can */
};

/* The kernels found so far; they stay where they are. Starts as KERNELSPECS_INIT. */
struct kernelspecs {
	const char *path; /* DIRECTORY[:DIRECTORY...]: of two with one name the first wins */
	struct kernelspec *first;
};
#define KERNELSPECS_INIT(directories) ((struct kernelspecs){.path = (directories)})

/* Looks for kernels that are new. One that cannot be read is logged and left out. */
void kernelspecs_scan(struct kernelspecs *k);
void kernelspecs_done(struct kernelspecs *k);

/* The kernel of a normalised language (or with that name), looked for anew when it is not known; NULL if
 * there is none. */
const struct kernelspec *kernelspecs_find(struct kernelspecs *k, const char *language);

enum { LANGUAGE_SIZE = 64 };

/* What clients call a language, as one name (e2b.md C.1): lower case, js is javascript, ts is typescript;
 * empty is python. -EINVAL: not a name. */
int language_normalise(struct str s, char ret[LANGUAGE_SIZE]);

/* Parses the text of a kernel.json. `name` and `dir` are copied. NULL with *err set. For kernelspec_free().
 */
struct kernelspec *kernelspec_parse(struct str text, const char *name, const char *dir, struct error *err);
void kernelspec_free(struct kernelspec *s);

#endif
