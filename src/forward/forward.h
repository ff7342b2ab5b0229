/*
 * The loopback forward (agents.md §2): a listener on this machine whose every HTTP request and WebSocket goes to one port of one sandbox, through the public ingress of a server, with
 * the headers that route it there. For programs that can only be given a base URL.
 *
 * Both ways stream, nothing is collected; upgrades are tunnels with half-close. A redirect is never followed; one that leads elsewhere than to the sandbox is answered with a 502 that does not
 * say where. Answers and logs of the forward's own name neither the server nor a token.
 */
#ifndef CUBICLE_FORWARD_FORWARD_H
#define CUBICLE_FORWARD_FORWARD_H

#include "base/error.h"
#include "forward/connection.h"

#include <stdint.h>

struct http_forward_config {
	struct loop *loop;
	const struct destination *to; /* outlives it */
	const char *sandbox;          /* id; the strings are copied */
	uint16_t port;
	const char *traffic_token;    /* or NULL */
	const char *envd_token;       /* or NULL; sent to envd's own port only */
};

struct http_forward_load {
	unsigned connections, requests; /* open, under way */
};

struct http_forward;

/* listen_fd: a listening, non-blocking socket on a loopback address, owned from here. NULL with *err. */
struct http_forward *http_forward_start(const struct http_forward_config *c, int listen_fd, struct error *err);
struct http_forward_load http_forward_stats(const struct http_forward *f);
/* Accepts nothing more, cuts what is under way. What is left after it is in http_forward_stats(): nothing, unless something went wrong; may be asked again. */
void http_forward_stop(struct http_forward *f);
/* Takes NULL. */
void http_forward_free(struct http_forward *f);

/* Does a Location lead to the sandbox itself: relative, or an address of the origin (as URLs have it, or of ours)? For tests, too. */
bool http_forward_stays(struct str location, const struct destination *to, struct str own_authority);

#endif
