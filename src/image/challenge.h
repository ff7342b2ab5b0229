/* WWW-Authenticate (RFC 9110 §11.6.1): what a registry wants to be told. No I/O; hostile input. */
#ifndef CUBICLE_IMAGE_CHALLENGE_H
#define CUBICLE_IMAGE_CHALLENGE_H

#include "base/str.h"

#include <stdbool.h>

enum {
	CHALLENGE_REALM_MAX = 2048, /* with the NUL, as all */
	CHALLENGE_SERVICE_MAX = 512,
	CHALLENGE_SCOPE_MAX = 2048,
	CHALLENGES_MAX = 16, /* of one answer */
};

struct challenge {
	bool basic;  /* Basic would do */
	bool bearer; /* a token of the realm would do (distribution's token authentication): then realm is a URL, the rest may be "" */
	char realm[CHALLENGE_REALM_MAX], service[CHALLENGE_SERVICE_MAX], scope[CHALLENGE_SCOPE_MAX];
};

/* Values of WWW-Authenticate, one a line. Other schemes are passed over, as are challenges after the first of a scheme. 0; -EINVAL malformed; -E2BIG a limit. */
int challenge_parse(struct str lines, struct challenge *ret);

#endif
