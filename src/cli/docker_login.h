/* Credentials for registries as `docker login` keeps them on the user's machine: its file, and the helpers that it names. */
#ifndef CUBICLE_CLI_DOCKER_LOGIN_H
#define CUBICLE_CLI_DOCKER_LOGIN_H

#include "image/reference.h"

/*
 * What the file $DOCKER_CONFIG/config.json, else ~/.docker/config.json, says for an image's registry; where it names a helper (credHelpers, credsStore), what the program
 * docker-credential-NAME answers. 1 with *ret_user and *ret_password, the caller's to free; 0 when there is nothing; -errno with *err: -ENOTSUP for an identity token, which
 * no build takes.
 */
int docker_login(const struct reference *image, char **ret_user, char **ret_password, struct error *err);

/* The name of the helper that a configuration names for a registry, owned by the caller; NULL when there is none. */
char *docker_login_helper(struct str config, const char *registry);

#endif
