/* Image references: what names an image of a registry. No I/O. */
#ifndef CUBICLE_IMAGE_REFERENCE_H
#define CUBICLE_IMAGE_REFERENCE_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	REFERENCE_MAX = 512,            /* bytes of a reference as given */
	REFERENCE_HOST_MAX = 254,       /* with the NUL, brackets of an IPv6 address included */
	REFERENCE_REGISTRY_MAX = 261,   /* host:port and the NUL */
	REFERENCE_REPOSITORY_MAX = 256, /* with the NUL */
	REFERENCE_TAG_MAX = 129,
	REFERENCE_DIGEST_MAX = 72, /* "sha256:", 64 hex, NUL */
	REFERENCE_TEXT_MAX = 720,  /* of the normal form, with the NUL */
};

enum reference_scheme {
	REFERENCE_ANY,   /* HTTPS; what registry.insecure names may be plain HTTP instead */
	REFERENCE_HTTPS, /* "https://": never plain */
	REFERENCE_HTTP,  /* "http://": plain HTTP, only where registry.insecure allows it */
};

struct reference {
	enum reference_scheme scheme;
	char registry[REFERENCE_REGISTRY_MAX];     /* host[:port], lower case; "docker.io" for all names of Docker Hub */
	char repository[REFERENCE_REPOSITORY_MAX]; /* "library/busybox" */
	char tag[REFERENCE_TAG_MAX];               /* "" only when there is a digest */
	char digest[REFERENCE_DIGEST_MAX];         /* "" when none was given; it decides where there is a tag, too */
};

/*
 * Parses [docker://|http://|https://][host[:port]/]path[:tag][@sha256:HEX] by the grammar of the distribution specification; without a host Docker Hub's, without
 * tag and digest "latest". 0, or -EINVAL (400) with *err, which never quotes what may be a password.
 */
int reference_parse(struct str text, struct reference *ret, struct error *err);

/* The normal form, host/path:tag@digest without a scheme: equal for equal images, and parsed again it is the same reference. Returns `to`. */
char *reference_format(const struct reference *r, char to[REFERENCE_TEXT_MAX]);

/* A name of a template in a create means an image: docker://..., or a first component before a '/' that has a '.' or ':' or is "localhost". */
bool reference_is_image(struct str name);

/* A registry's host and port, also what the lists registry.* hold: a DNS name, an IPv4 address or an IPv6 address in brackets, with a port or not. Writes the normal
 * form (Docker Hub's names become docker.io, an address is written the shortest way) and the port, 0 = none given. 0 or -EINVAL. */
int reference_host(struct str text, char ret_host[REFERENCE_HOST_MAX], uint16_t *ret_port);

/* "sha256:" and 64 lower-case hexadecimal digits. */
bool reference_digest_valid(struct str text);

#endif
