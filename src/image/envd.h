/*
 * The client of a build box's envd (e2b.md B, and docs/envd.md for its archives): blocking, one connection for each request, made by somebody else.
 * All that comes back is hostile.
 */
#ifndef CUBICLE_IMAGE_ENVD_H
#define CUBICLE_IMAGE_ENVD_H

#include "image/env.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Where it is. connect() gives a fresh connection to a port of the box, which is the caller's, or -errno with *err. */
struct envd {
	int (*connect)(void *arg, unsigned port, struct error *err);
	void *arg;
	const char *token;
};

struct envd_command {
	const char *const *argv; /* NULL-terminated */
	const char *user;        /* NULL: the box's default user */
	const char *cwd;         /* NULL: the default */
	const struct env *env;   /* may be NULL */
	/* Each line of its output, without its end; a line over 4 KiB comes in pieces. May be NULL. */
	void (*line)(void *arg, bool is_stderr, struct str line);
	void *arg;
};

struct envd_end {
	int code;          /* exit status; -1: a signal */
	char status[64];   /* "exit status 7", "signal: killed" */
};

/* Runs a command to its end. 0; -errno with *err: "unauthenticated: invalid username: 'x'" and what else envd says instead of starting it, or the box is lost (-EPIPE). */
int envd_run(const struct envd *e, const struct envd_command *c, struct envd_end *ret, struct error *err);

struct envd_stat {
	bool exists, is_dir, is_link; /* of what the path leads to; is_link: the path itself is a symbolic link */
};

/* What stands at an absolute path. A path that is not there is no error. */
int envd_stat(const struct envd *e, const char *path, struct envd_stat *ret, struct error *err);
/* mkdir -p: what is new belongs to the user (0755). One that is there is no error. */
int envd_make_dir(const struct envd *e, const char *path, const char *user, struct error *err);
/* Removes what stands at an absolute path, with everything below it. Nothing there is no error. */
int envd_remove(const struct envd *e, const char *path, struct error *err);
/* Appends a file as root sees it, at most max bytes (-EFBIG). -ENOENT. */
int envd_read_file(const struct envd *e, const char *path, size_t max, struct buf *to, struct error *err);

/*
 * GET /archive (docs/envd.md): a tar stream of what an absolute path leads to. A directory's begins with "./", which is itself, and its other members are named
 * relative to it; anything else is one member with the last part of its name. *ret belongs to the caller (envd_download_close()). -ENOENT.
 */
struct envd_download;
int envd_download_open(const struct envd *e, const char *path, struct envd_download **ret, struct error *err);
/* Up to n bytes, 0 at the end, -errno. */
ssize_t envd_download_read(struct envd_download *d, void *to, size_t n, struct error *err);
/* Takes NULL. */
void envd_download_close(struct envd_download *d);

/* PUT /archive: places the tar stream that is written to it below an absolute directory, which is made if it is missing, as root. */
struct envd_upload;
int envd_upload_open(const struct envd *e, const char *path, struct envd_upload **ret, struct error *err);
int envd_upload_write(struct envd_upload *u, const void *p, size_t n, struct error *err);
/* Ends the stream and waits for the answer. Frees *u in any case. */
int envd_upload_finish(struct envd_upload *u, struct error *err);
struct envd_file {
	const char *path;  /* relative; "." = the directory itself */
	mode_t mode;       /* with its type: S_IFDIR or S_IFREG */
	uid_t uid;
	gid_t gid;
	struct str text;   /* of a file */
};

/* Places these below a directory, as an upload does. */
int envd_place(const struct envd *e, const char *path, const struct envd_file *files, size_t n, struct error *err);

/* Gives it up: the connection is closed. Takes NULL. */
void envd_upload_abort(struct envd_upload *u);

#endif
