/*
 * The data plane (e2b.md A.8): takes requests over that route to a sandbox and carries them there and back. HTTP/1.1 with streaming both ways, nothing
 * buffered beyond HTTP_HIGH_WATER, upgrades as tunnels with half-close. What is cut on one side is cut on the other.
 *
 * A closed port is tried again for 300 ms (a service may be about to listen), then 502. An exchange has no time limit of its own: it lives as long as both
 * ends do, which TCP keepalive finds out.
 *
 * A request to a sandbox that is paused, and may be resumed by traffic, waits while it is (ingress/gate.h); nothing of it is sent and nothing more of it is read
 * before. One that was under way when its sandbox was paused is cut.
 */
#ifndef CUBICLE_INGRESS_INGRESS_H
#define CUBICLE_INGRESS_INGRESS_H

#include "api/quota.h"
#include "ingress/route.h"
#include "ingress/tools.h"
#include "io/http_server.h"

struct ingress;

struct ingress_config {
	struct loop *loop;
	struct sandbox_index *index;
	struct node_client *node;
	struct quota *quota;                          /* of teams, for resumes; NULL = none */
	struct tools *tools;                          /* NULL = there is no MCP server */
	unsigned connection_limit;                    /* exchanges at once in one sandbox; more get 429 */
	int64_t wake_patience;                        /* ns that a request waits for its sandbox to be resumed, then 409; 0 = 30 s */
	bool (*own_key)(struct str value, void *arg); /* whether it is a valid API key of this server: never forwarded */
	void *arg;
};

/* Everything in the config outlives the ingress. NULL without memory. */
struct ingress *ingress_new(const struct ingress_config *config);
/* After the HTTP server, whose requests it holds, is freed. Takes NULL. */
void ingress_free(struct ingress *g);

/* Takes over a request from on_request() that route_request() gave to a sandbox. */
void ingress_handle(struct ingress *g, struct http_req *r, const struct route *route);
/* Likewise, a request to the MCP server: as it is, with the caller's key. */
void ingress_handle_tools(struct ingress *g, struct http_req *r);

#endif
