/* Image references, and entries of registry.insecure. */
#include "fuzz.h"

#include "image/reference.h"

#include <errno.h>

void fuzz_one(struct str input)
{
	struct reference r, again;
	struct error err = {0};
	char text[REFERENCE_TEXT_MAX], twice[REFERENCE_TEXT_MAX], host[REFERENCE_HOST_MAX], same[REFERENCE_HOST_MAX];
	uint16_t port, none;
	int e = reference_parse(input, &r, &err);
	hold(e == 0 || (e == -EINVAL && err.status == 400 && *err.message));
	reference_is_image(input);
	if (e == 0) {
		/* The normal form is a fixed point, and names the same. */
		reference_format(&r, text);
		hold(*r.registry && *r.repository && (*r.tag || *r.digest));
		hold(reference_is_image(str_of(text)));
		hold(reference_parse(str_of(text), &again, &err) == 0);
		hold(!strcmp(reference_format(&again, twice), text));
		hold(!*r.digest || reference_digest_valid(str_of(r.digest)));
	}
	if (reference_host(input, host, &port) == 0) {
		hold(*host && strlen(host) < REFERENCE_HOST_MAX);
		hold(reference_host(str_of(host), same, &none) == 0 && !strcmp(host, same) && !none);
	}
}
