/* Who pulls the images that a Dockerfile names: what `docker login` has stored on the user's machine. */
#ifndef CUBICLE_CLI_BUILD_LOGIN_H
#define CUBICLE_CLI_BUILD_LOGIN_H

#include "image/dockerfile_plan.h"

#include <jansson.h>

/* Sets "registries" in `to` ("dockerfile" of a build, image/spec.h) for those images of needed stages for whose registry docker_login() has something. What no build takes (an identity
 * token) is said on standard error. 0 or -errno with *err. */
int build_logins(const struct dockerfile *d, const struct dockerfile_plan *plan, json_t *to, struct error *err);

#endif
