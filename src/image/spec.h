/*
 * What to build: the JSON that front writes from a checked request and node passes on unread; parsed here again, since nothing that comes over a channel is trusted.
 *
 *     {
 *       "kind": "e2b" | "cube" | "image",
 *                                     made on one of these, or by "dockerfile" alone:
 *       "image": "reference",         of a registry
 *       "base": true,                 what start_build.base names
 *       "source": {"type": "oci-archive" | "docker-archive" | "rootfs", "hash": "<64 hex>", "name": "tag"},   uploaded (keep_file); name: of several images, optional
 *
 *       "registry": {"type": "registry", "username", "password"} | {"type": "aws", "awsAccessKeyId", "awsSecretAccessKey", "awsRegion"} |
 *                   {"type": "gcp", "serviceAccountJson"},
 *       "steps": [{"type": "COPY" | "ENV" | "RUN" | "WORKDIR" | "USER", "args": ["…"], "filesHash": "<64 hex>", "force": true}],     e2b.md A.6
 *       "dockerfile": {"text", "context": "<64 hex>", "args": {"K": "V"}, "target": "stage", "registries": {"host[:port]": {"username", "password"}}},
 *                                     all but the text optional; registries: for the images that it names
 *       "startCmd", "readyCmd",       shell commands
 *       "command": […], "args": […],  instead of the image's ENTRYPOINT and CMD
 *       "env": ["K=V"],
 *       "exposedPorts": [8080], "probePort": 8080, "probePath": "/health",
 *       "user", "workdir"             instead of the image's
 *     }
 *
 * Everything but the kind and what it is made on is optional. An unknown key is an error, so that nothing is accepted and ignored.
 */
#ifndef CUBICLE_IMAGE_SPEC_H
#define CUBICLE_IMAGE_SPEC_H

#include "base/error.h"
#include "image/source.h"

#include <jansson.h>

enum {
	SPEC_MAX = 2 * 1024 * 1024,
	SPEC_MAX_STEPS = 1000,
	SPEC_MAX_ARGS = 1000,         /* of a step; of command and args together 64 */
	SPEC_MAX_TEXT = 256 * 1024,   /* a string of a step */
	SPEC_MAX_LOGINS = 32,
};

/* The label of an image that `cubicle template export` made: the template's description (node/templates.h) without its layers. */
#define DESCRIPTION_LABEL "cubicle.template"

enum spec_kind { SPEC_E2B, SPEC_CUBE, SPEC_IMAGE };
enum spec_from { SPEC_FROM_IMAGE, SPEC_FROM_BASE, SPEC_FROM_SOURCE, SPEC_FROM_DOCKERFILE };
enum spec_step_type { SPEC_COPY, SPEC_ENV, SPEC_RUN, SPEC_WORKDIR, SPEC_USER };

/* Who pulls a Dockerfile's images of one registry. */
struct spec_login {
	char registry[REFERENCE_REGISTRY_MAX]; /* in normal form */
	struct source_credentials credentials;
};

struct spec_step {
	enum spec_step_type type;
	const char **args; /* NULL-terminated */
	size_t n_args;
	const char *files; /* 64 hex, with SPEC_COPY */
	bool force;
};

/* Texts belong to the JSON inside; absent ones are NULL, absent lists have no items but their end. */
struct build_spec {
	json_t *json;
	enum spec_kind kind;
	enum spec_from from;
	const char *image;
	enum source_archive source;
	const char *source_hash, *source_name;
	bool has_registry;
	struct source_credentials registry;
	struct spec_step *steps;
	size_t n_steps;
	const char *dockerfile, *context, *target;
	const json_t *build_args; /* object of strings, or NULL */
	struct spec_login *logins;
	size_t n_logins;
	const char *start_command, *ready_command;
	const char **command, **args, **env; /* NULL-terminated */
	bool has_command, has_args;
	const json_t *exposed; /* array of integers, or NULL */
	unsigned probe_port;   /* 0 = none */
	const char *probe_path;
	const char *user, *workdir;
};

/* 0, or -EINVAL with *err naming the field. */
int spec_parse(struct str text, struct build_spec *ret, struct error *err);
/* Wipes the credentials. Takes a zeroed one. */
void spec_done(struct build_spec *s);
#define cleanup_spec __attribute__((__cleanup__(spec_done)))

/* The credentials of "dockerfile" for an image's registry, or NULL. */
const struct source_credentials *spec_login(const struct build_spec *s, struct str reference);

const char *spec_step_name(enum spec_step_type type);

#endif
