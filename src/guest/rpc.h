/* Connect calls on an HTTP/1.1 server (e2b.md B.5): JSON codec, unary and streams. */
#ifndef CUBICLE_GUEST_RPC_H
#define CUBICLE_GUEST_RPC_H

#include "guest/envd.h"
#include "guest/payload.h"
#include "io/connect.h"
#include "io/json.h"

enum { RPC_MAX_TEXT = 64 * 1024 };

enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_CLIENT_STREAM };

struct rpc;

struct rpc_method {
	const char *name; /* after the service's "/package.Service/" */
	enum rpc_kind kind;
	size_t max; /* bytes of one message */
	/* The request; for RPC_CLIENT_STREAM each message of it. */
	void (*call)(struct rpc *c, const json_t *message);
	void (*end)(struct rpc *c); /* RPC_CLIENT_STREAM: all messages were given */
	bool payload;               /* RPC_UNARY: one long base64 string is decoded on its way (payload.h); the rest is at most RPC_MAX_TEXT */
};

struct rpc_ops {
	/* The client is gone before the call was answered. */
	void (*gone)(struct rpc *c);
	/* Output fell under the low-water mark after rpc_event() returned true. */
	void (*writable)(struct rpc *c);
};

/* One call; lives as long as its HTTP request. */
struct rpc {
	struct http_req *req;
	const struct rpc_method *method;
	struct envd *envd;
	const struct rpc_ops *ops; /* set by whoever keeps the call beyond method->call; told only while the call is unanswered */
	void *state;               /* theirs */
	uint32_t pid;              /* theirs */
	char user[256];            /* of the Authorization header; "" = the default user */
	int64_t timeout_ns;        /* Connect-Timeout-Ms; 0 = none */
	struct buf body;
	struct payload payload;
	size_t held; /* counted in envd->held */
	bool answered; /* a whole answer, or its end, was given */
	bool opened;   /* the head of a stream went out */
	bool paused;   /* client stream: no message is wanted now */
	bool eof;      /* the request is complete */
	bool busy;     /* inside a callback of the method */
};

/* Takes over a request for this method (POST was checked). */
void rpc_begin(struct envd *e, const struct rpc_method *m, struct http_req *r);

/* Unary and client-stream answer; "{}" for an empty message. The call may be gone when these return. */
void rpc_reply(struct rpc *c, struct str json);
/* Error answer in the form of the method's kind, also after events. */
void rpc_fail(struct rpc *c, enum connect_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* One whole envelope of a server stream, sent at once. True when the client is slow: wait for ops->writable. */
bool rpc_event(struct rpc *c, struct str envelope);
/* Ends a server stream without an error. */
void rpc_end(struct rpc *c);
/* Client streams: stops, and goes on with, giving messages. */
void rpc_pause(struct rpc *c);
void rpc_resume(struct rpc *c);

#endif
