/* HTTP for the tools: the control plane, and ports of sandboxes through the ingress. Blocking; from any thread, each with a connection pool of its own. */
#ifndef CUBICLE_MCP_REMOTE_H
#define CUBICLE_MCP_REMOTE_H

#include "base/buf.h"
#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Loads what the library reads from files; called by itself at the first call. */
void remote_init(void);

/* Where the server is, and as whom to speak to it. Owned by the caller; must outlive every call. */
struct remote_server {
	const char *url, *sandbox_url; /* without a trailing slash */
	const char *socket;            /* Unix socket to connect to instead, or NULL */
	const char *key;               /* X-API-Key, or NULL */
	const char *team;              /* to act for, through the socket, or NULL */
};

/* Bytes of an answer with status 200; false ends the transfer. */
typedef bool remote_sink_fn(struct str bytes, void *arg);

struct remote_request {
	const char *method;
	const char *path;          /* begins with '/' */
	struct str body;           /* empty = none */
	const char *content_type;  /* of the body; NULL = application/json */
	const char *header;        /* one more line, or NULL */
	/* A port of a sandbox instead of the control plane: */
	const char *sandbox;       /* id, or NULL */
	const char *token;         /* of envd, or NULL */
	unsigned port;
	int timeout_s;             /* of all of it */
	size_t max;                /* most bytes of an answer that is kept */
	remote_sink_fn *sink;      /* takes the answer when its status is 200; NULL: it is kept */
	void *arg;
	const atomic_bool *cancelled; /* ends the transfer within a moment; NULL: nobody can */
};

/*
 * 0 with *ret_status and the answer's bytes (of one with another status, too, when there is a sink: at most 64 KiB), or -ECANCELED, -ETIMEDOUT, -EMSGSIZE (more than max),
 * -ECONNREFUSED, -ECONNRESET (it broke off), -EPIPE (the sink ended it), -ENOMEM, -EIO, with *err. Texts of the server's go through mcp/scrub.h before others read them.
 */
int remote_call(const struct remote_server *s, const struct remote_request *q, struct buf *answer, long *ret_status, struct error *err);

#endif
