/*
 * Sandboxes as tools of an agent: the Model Context Protocol (docs/mcp.md; contract: agents.md §1). This room is the same for both transports (console.h, http.h):
 * messages go in and out as JSON texts, calls of tools run on worker threads, everything else on the loop.
 *
 * A session holds the sandboxes that its calls have made, and ends them when it ends. A call acts on the sandbox that it found at its start.
 */
#ifndef CUBICLE_MCP_SERVER_H
#define CUBICLE_MCP_SERVER_H

#include "base/error.h"
#include "base/str.h"
#include "io/workq.h"
#include "mcp/remote.h"

#include <jansson.h>
#include <stdbool.h>

enum {
	MCP_MAX_MESSAGE = 4 * 1024 * 1024, /* 512 KB of content, escaped */
	MCP_MAX_CALLS = 64,                /* of one session at once */
	MCP_LEASE_S = 60,                  /* what a sandbox has left when nobody renews it any more */
};

/* What all sessions of a process share. */
struct mcp_config {
	struct loop *loop;
	struct workq *calls;    /* tools */
	struct workq *chores;   /* leases and clean-up: never behind a tool that takes its time */
	const char *template;   /* of sandbox_create without one */
	bool keep;              /* pause the sandboxes at the end instead of ending them */
	bool allow_absolute;    /* paths outside of the workspace */
	int lease_s;
};

struct mcp_session;

/* Takes a message to the client: one JSON text without a line break. `related`: the request that it belongs to (its id as JSON), or NULL.
 * Empty: that request gets no answer, since it was cancelled. */
typedef void mcp_send_fn(struct str message, const char *related, void *arg);

/* The config and the server must outlive the session. NULL without memory. */
struct mcp_session *mcp_session_new(const struct mcp_config *c, const struct remote_server *server, mcp_send_fn *send, void *arg);
/* One message of the client, or a batch of them. Answers go through send(), now or later. True: at least one of them is a request. `initialize`
 * may be NULL; else it is set when the message was a good one of that kind. */
bool mcp_session_take(struct mcp_session *s, struct str message, bool *initialized);
/* Its negotiated version of the protocol, or NULL. */
const char *mcp_session_version(const struct mcp_session *s);
/* Is it a version of the protocol that is spoken here? */
bool mcp_version_known(struct str version);
/* Calls that have not ended: those that nobody waits for any more as well. */
unsigned mcp_session_running(const struct mcp_session *s);
/* No more calls at once than that (at most, and without this, MCP_MAX_CALLS). */
void mcp_session_limit(struct mcp_session *s, unsigned calls);
/* Will send() have something for that request (id as JSON), if only that nothing comes? */
bool mcp_session_waits(const struct mcp_session *s, const char *id);
/* Nothing is under way, and it has no sandbox. */
bool mcp_session_is_empty(struct mcp_session *s);
/* Nobody waits for an answer to that request (id as JSON) any more: its command is killed, it is not answered. */
void mcp_session_cancel(struct mcp_session *s, const char *id);
/*
 * The client is gone, or the server ends: every call is cancelled, then the sandboxes are ended (or paused). done(arg) follows on the loop when that is over or was given up after
 * some 20 s; `left` is the number of sandboxes that were not ended. The session is freed after it. Nothing is sent any more. Once.
 */
void mcp_session_close(struct mcp_session *s, void (*done)(unsigned left, void *arg), void *arg);

#endif
