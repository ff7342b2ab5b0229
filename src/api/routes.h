/* The table of routes: the single source for matching, 404, 405 with Allow, and the API's description. */
#ifndef CUBICLE_API_ROUTES_H
#define CUBICLE_API_ROUTES_H

#include "base/buf.h"

struct api_request;

enum route_flags {
	ROUTE_PUBLIC = 1, /* no key is needed */
	ROUTE_ADMIN = 2,  /* only on the admin socket; elsewhere the path does not exist */
	ROUTE_BODY = 4,   /* takes a JSON object; an empty body is none */
	ROUTE_LATER = 8,  /* known to clients, not served yet: 501 */
};

enum { ROUTE_PARAMS = 3 };

struct route {
	const char *method;
	const char *pattern; /* literal segments and {parameters} */
	unsigned flags;
	void (*handler)(struct api_request *r);
	const char *doc;
};

extern const struct route api_routes[];
extern const size_t api_n_routes;

struct route_match {
	const struct route *route;
	struct str params[ROUTE_PARAMS]; /* decoded, without NUL; views into the storage */
	size_t n_params;
	char allow[80];                  /* methods of the path, for Allow */
};

/*
 * Finds the route of a method (HEAD is served by GET) and a raw path. Each segment is percent-decoded once, after the path was cut, so %2F stays inside its
 * segment. 0, -ENOENT (404), -EPERM (405, ret->allow is set), -EINVAL (a broken escape), -ENOMEM.
 */
int route_find(struct str method, struct str path, bool admin, struct buf *storage, struct route_match *ret);

#endif
