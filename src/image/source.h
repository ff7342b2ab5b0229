/*
 * Where images come from: a registry, or an archive that somebody uploaded. Opened, a source is one image of one platform: its configuration, verified, and the
 * list of its layers, whose blobs are fetched into descriptors. Blocking; for the builder (image/builder.h), never for node or front.
 * Everything that a registry or an archive says is hostile: all is bounded, nothing is believed whose digest does not match.
 */
#ifndef CUBICLE_IMAGE_SOURCE_H
#define CUBICLE_IMAGE_SOURCE_H

#include "base/error.h"
#include "base/str.h"
#include "config/options.h"
#include "image/reference.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SOURCE_DIGEST_MAX = REFERENCE_DIGEST_MAX, /* "sha256:", 64 hex, NUL */
	SOURCE_MAX_LAYERS = 512, /* of an image */
	SOURCE_CA_MAX = 4 << 20, /* bytes of registry.ca */
};

enum source_format { SOURCE_TAR, SOURCE_GZIP, SOURCE_ZSTD };

/* "tar", "gzip" or "zstd": as in the message unpack_layer. */
const char *source_format_name(enum source_format f);

/* Of an image; absent texts are "". Lists end with NULL, and are never NULL themselves. */
struct source_config {
	char *architecture, *variant, *os;
	char *user, *workdir, *stop_signal;
	char **env;        /* NAME=value; of a name given twice the last one counts, as in a shell */
	char **entrypoint; /* absent and empty are the same */
	char **cmd;
	char **shell;
	char **on_build;      /* Dockerfile instructions for who builds on it */
	char **exposed_ports; /* "8080/tcp" */
	char **volumes;
	char **labels; /* key, value, key, value, ... */
};

struct source_layer {
	char digest[SOURCE_DIGEST_MAX];  /* of the blob */
	char diff_id[SOURCE_DIGEST_MAX]; /* of its tar; "" when nobody told (only SOURCE_ROOTFS, compressed) */
	uint64_t size;                   /* of the blob, bytes */
	enum source_format format; /* put right when it is fetched: media types of some images do not tell the truth */
};

struct source_image {
	char reference[REFERENCE_TEXT_MAX]; /* normal form; of an archive "" */
	char digest[SOURCE_DIGEST_MAX];            /* of the manifest for this platform; an image with other bytes has another one */
	struct source_config config;
	struct source_layer *layers; /* lowest first */
	size_t n_layers;
};

/* What pulls a user's image: given by him, or found by the operator. At most one form is set; texts are NULL otherwise. Never logged. */
struct source_credentials {
	const char *username, *password;                                  /* Basic, or for the token service */
	const char *identity_token;                                       /* a refresh token of the token service */
	const char *aws_access_key_id, *aws_secret_access_key, *aws_region; /* ECR */
	const char *gcp_service_account;                                  /* JSON of a key */
};

/* Frees the texts (which credentials that nobody allocated must not have) after wiping them. */
void source_credentials_done(struct source_credentials *c);

/* What the options and node give to all sources of a process. Zeroed, then source_env_init(). */
struct source_env {
	const struct options *options; /* registry.*, network.pool */
	struct str ca_pem;             /* content of the file registry.ca, which node gives to a builder as a sealed memory file, fd 5; kept by the caller */
	/* For a pull without credentials: those of registry.auth for this registry (host[:port], "docker.io" for Docker Hub) and repository; node looks them up
	 * (docker_config_find). 0 with *ret untouched: there are none. May be NULL. */
	int (*login)(void *arg, struct str registry, struct str repository, struct source_credentials *ret, struct error *err);
	/* A line for the log of the build: level 0 debug, 1 info, 2 warn. No secrets. May be NULL. */
	void (*log)(void *arg, int level, const char *message);
	/* Polled about five times a second while something is fetched: true ends it with -ECANCELED. May be NULL. */
	bool (*cancelled)(void *arg);
	void *arg;
	const char *architecture, *variant; /* of images, in Go's words ("amd64", "arm64" + "v8"); set by source_env_init() to this machine's */
	unsigned patience_s;            /* that a registry may take to send anything; 0: the usual 30 */
	const char *ecr_endpoint;       /* for tests: URL of Amazon's service; NULL: Amazon's own, which is all that a server ever uses */
	struct source_private *private; /* connections, rules */
};

/* Takes options, ca_pem and the functions as the caller has set them; the process ignores SIGPIPE from then on. 0; -EINVAL (an option, the PEM), -ENOMEM with *err. One thread at a time uses an env. */
int source_env_init(struct source_env *e, struct error *err);
void source_env_done(struct source_env *e);

/* At a server's start: what registry.* names can be used. -EINVAL and others name the option, its entry or file. */
int source_check_options(const struct options *o, struct error *err);

struct source;

/*
 * Opens an image of a registry (image/reference.h). `given` may be NULL; it must stay until source_free().
 * Errors, for the user: 400 the reference, a registry at an address that is refused, credentials over a connection that is not safe, an image of another kind;
 * 401/403 refused credentials (said as -EACCES, status 400: they are the registry's, not the caller's); 404 no such image (-ENOENT); -ENOTSUP no match for the platform
 * or a form that is not served; -EBADMSG a digest; 502/504 the registry; -E2BIG limits.
 */
int source_open_image(struct source **ret, struct source_env *e, struct str reference, const struct source_credentials *given, struct error *err);

enum source_archive {
	SOURCE_OCI_ARCHIVE,    /* tar of an OCI layout directory (image-layout.md of the OCI image specification) */
	SOURCE_DOCKER_ARCHIVE, /* what `docker save` writes, of any age */
	SOURCE_ROOTFS,         /* tar of a root file system, plain, gzip or zstd: an image of one layer without a configuration */
};

/*
 * Opens an image of an archive: fd, a regular file for reading (any offset), is kept by the caller until source_free(). `name` chooses one of several images (a tag
 * or full name as in the archive, or the manifest's digest); empty: there must be only one, else -EINVAL names them.
 * Errors as above; 400 for what is no such archive.
 */
int source_open_archive(struct source **ret, struct source_env *e, int fd, enum source_archive kind, struct str name, struct error *err);

const struct source_image *source_image(const struct source *s);

/* A layer to fetch, into a descriptor: an empty file opened for reading and writing. Its offset afterwards is undefined. */
struct source_want {
	size_t layer; /* index in source_image()->layers */
	int fd;
};

struct source_fetch {
	const struct source_want *wants;
	size_t n_wants;
	/* Bytes that are there, of all of them; at most about ten times a second, and at the end. May be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	/* A layer is whole and its digest right; in any order. Less than 0: ends the fetch with that. May be NULL. */
	int (*complete)(void *arg, const struct source_want *w, struct error *err);
	void *arg;
};

/*
 * Fetches layers, several at once; each blob's size and digest are verified. 0, or the first error: everything that was not complete is then undefined.
 * -ENOSPC (507) when the file cannot be written; -EBADMSG a digest or size; -ECANCELED; else as source_open_image().
 */
int source_fetch(struct source *s, const struct source_fetch *f, struct error *err);

/* NULL is nothing. */
void source_free(struct source *s);

#endif
