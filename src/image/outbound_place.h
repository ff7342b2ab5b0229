/* Where a URL leads (part of image/outbound.h): which URLs are allowed at all, and the judged, pinned addresses of their hosts. */
#ifndef CUBICLE_IMAGE_OUTBOUND_PLACE_H
#define CUBICLE_IMAGE_OUTBOUND_PLACE_H

#include "base/error.h"
#include "image/address.h"
#include "image/outbound.h"

enum {
	PLACE_ADDRESSES = 16, /* of one name; more are left out */
	PLACES_MAX = 64,      /* names in one build */
};

struct place {
	bool tls;
	uint16_t port;
	char host[REFERENCE_HOST_MAX]; /* lower case; an IPv6 address in brackets */
	struct sockaddr_storage addresses[PLACE_ADDRESSES];
	size_t n;
};

struct places {
	const struct registries *registries;
	struct own_addresses own;
	struct place *list[PLACES_MAX];
	size_t n;
};

/* `url`, relative to `base` (NULL: absolute), in a normal form without fragment; the caller frees it. Host and port to *ret_place, no addresses. -EINVAL for
 * what is no http(s) URL or has a user or password in it, with *err. */
int place_parse(const char *base, const char *url, char **ret_url, struct place *ret_place, struct error *err);

bool place_same(const struct place *a, const struct place *b);

/* host or host:port when it is not the scheme's, for messages. Returns `to`. */
char *place_name(const struct place *p, char to[REFERENCE_REGISTRY_MAX]);

/* The place with its addresses, at least one; resolved once, it stays. -EACCES (400) not allowed, -EHOSTUNREACH no such name, -E2BIG too many names, with *err. */
int places_find(struct places *all, const struct place *wanted, const struct place **ret, struct error *err);

void places_done(struct places *all);

#endif
