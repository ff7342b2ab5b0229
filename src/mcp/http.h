/*
 * The server over HTTP ("streamable HTTP" of the protocol's versions from 2025-03-26 on): POST, GET and DELETE of /mcp. A session belongs to the key that made it; its id is in the
 * header Mcp-Session-Id. Calls of tools are answered as event streams, all else as JSON. There is no stream of the server's own (GET is 405), and none can be taken up again.
 *
 * Requests whose Host or Origin is a name that is not ours are refused: the name of a page's server may have been made to mean this machine (DNS rebinding).
 */
#ifndef CUBICLE_MCP_HTTP_H
#define CUBICLE_MCP_HTTP_H

#include "mcp/server.h"

enum {
	MCP_SESSIONS = 1000,
	MCP_SESSIONS_OF_KEY = 64,
	MCP_IDLE_S = 30 * 60, /* a session without a request ends, and its sandboxes with it */
};

struct mcp_http;

/* `url`: of the API, without a trailing slash; `domain`: the server's name without a port, or empty. All outlive it. NULL without memory. */
struct mcp_http *mcp_http_new(const struct mcp_config *c, const char *url, struct str domain);
/* A connected, non-blocking socket (owned from here) that speaks HTTP. 0 or -errno. */
int mcp_http_adopt(struct mcp_http *h, int fd);
/* Ends all sessions, takes no new ones; done() follows when their sandboxes are ended. Once. */
void mcp_http_close(struct mcp_http *h, void (*done)(void *arg), void *arg);
/* After mcp_http_close() is done. Takes NULL. */
void mcp_http_free(struct mcp_http *h);

#endif
