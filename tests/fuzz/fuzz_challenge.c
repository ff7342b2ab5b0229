/* Values of WWW-Authenticate, a line each. */
#include "fuzz.h"

#include "image/challenge.h"

#include <errno.h>

void fuzz_one(struct str input)
{
	struct challenge c = {0};
	int e = challenge_parse(input, &c);
	hold(e == 0 || e == -EINVAL || e == -E2BIG);
	hold(e == 0 || (!c.basic && !c.bearer));
	hold(!c.bearer || *c.realm);
	hold(strlen(c.realm) < sizeof(c.realm) && strlen(c.service) < sizeof(c.service) && strlen(c.scope) < sizeof(c.scope));
	for (const char *p = c.realm; *p; p++)
		hold((unsigned char)*p >= ' ');
}
