/* A node and the envd of its boxes, for builds: all boxes share one file system in memory. */
#ifndef CUBICLE_TESTS_BUILD_WORLD_H
#define CUBICLE_TESTS_BUILD_WORLD_H

#include "unit.h"

#include "base/buf.h"
#include "image/build.h"

#include <pthread.h>

enum { WORLD_FILES = 256, WORLD_LAYERS = 64 };

struct world_file {
	char path[256]; /* absolute, without a '/' at its end; "" = free */
	char type;      /* d, f, l, h (another name of `link`) */
	unsigned mode, uid, gid;
	char link[256];
	char text[4096];
	size_t size;
};

struct world {
	pthread_t thread;
	int node, builder; /* ends of the channel */
	struct world_file files[WORLD_FILES];
	size_t n_files;

	/* What node has. */
	struct {
		char key[129], file[ASK_FILE_NAME];
		bool held;
	} layers[WORLD_LAYERS];
	size_t n_layers;
	struct {
		char hash[65];
		int fd;
	} uploads[8];
	size_t n_uploads;

	/* What was asked for. */
	unsigned boxes, open_boxes, sealed, unpacked, merged, dropped, next;
	struct buf log;      /* "step level message\n" */
	struct buf commands; /* "user cwd: command [NAME=value …]\n" */
	struct buf box_layers; /* "file file …\n" of each box */
	char unpack_error;   /* 'x': the first unpack_layer is -EXDEV */
	bool done;
	char *description, *digest, *message, *step;
	bool probe;
	unsigned progress;
	bool fell;           /* the progress did */

	/* Ends a command: its exit status, or < 0: an error of envd with this text. Output is added to `out`. */
	int (*run)(struct world *w, const char *user, const char *command, struct buf *out, char *refusal, size_t size);
};

void world_start(struct world *w);
/* Runs the build of this spec to its end. base may be NULL. */
int world_build(struct world *w, const char *spec, const char *base, bool force, struct error *err);
/* Forgets the last build, keeps layers, uploads and files. */
void world_again(struct world *w);
void world_stop(struct world *w);

/* The fake sources (build_world_source.c): an image of these layers, by single letters ("abc"), with this configuration; used by every reference. */
struct source_config;
extern const char *world_image;
extern struct source_config world_config;
extern unsigned world_fetched; /* layers */

const struct world_file *world_find(const struct world *w, const char *path);
void world_put(struct world *w, char type, const char *path, unsigned mode, unsigned uid, unsigned gid, const char *text);
/* An uploaded tar of entries "type path[=text or ->target]"; '/'-ended ones are directories. */
void world_upload(struct world *w, const char *hash, const char *const *entries);

/* envd of the world behind a fresh connection. */
int world_connect(void *arg, unsigned port, struct error *err);

#endif
