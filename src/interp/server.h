/* The HTTP interface of the code interpreter (e2b.md C.1). */
#ifndef CUBICLE_INTERP_SERVER_H
#define CUBICLE_INTERP_SERVER_H

#include "interp/context.h"

enum {
	SERVER_MAX_CODE = 64 << 20,     /* bytes of a body of /execute */
	SERVER_MAX_REQUEST = 64 << 10,  /* of any other */
	SERVER_MAX_PENDING = 128 << 20, /* of all bodies that are held at once */
};

struct server;

/* Serves on a listening, non-blocking socket (not owned). `all` outlives it. NULL with *err set. */
struct server *server_new(struct contexts *all, int listen_fd, struct error *err);
/* Starts the default contexts of these languages ("python,javascript"; one without a kernel is left out).
 * /health is answered when each is ready or has failed. */
void server_start_contexts(struct server *s, const char *languages);
void server_free(struct server *s);

#endif
