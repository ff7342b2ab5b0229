/* Docker's configuration file (~/.docker/config.json, `docker login`): the credentials in it for one registry. */
#ifndef CUBICLE_IMAGE_DOCKER_CONFIG_H
#define CUBICLE_IMAGE_DOCKER_CONFIG_H

#include "image/source.h"

enum { DOCKER_CONFIG_MAX = 1 << 20 };

/*
 * The entry for a registry (host[:port] in normal form, "docker.io" for Docker Hub) and repository in the file's bytes: the longest key that is the registry, or the
 * registry and leading parts of the repository. Keys may be URLs ("https://index.docker.io/v1/"). Texts of *ret are allocated (source_credentials_done()).
 * 1 found, 0 none (*ret untouched); -EINVAL no such file, or too long; -ENOTSUP: for this registry the file names a credential helper (credHelpers, credsStore), which
 * is a program that this server does not run; with *err, which never quotes the file.
 */
int docker_config_find(struct str json, struct str registry, struct str repository, struct source_credentials *ret, struct error *err);

#endif
